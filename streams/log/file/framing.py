"""Messages between processes that share a `file:` log: a length (u32 big-endian) and that many bytes of CBOR.

    question  [op, payload]
    answer    [0, result] | [1, error class, its arguments] | [2, error class, its arguments]

After a 2 the owner closes the connection, and the next request uses another one. Errors are sent by name, and the
receiver creates only classes of `refold.avro.errors`.

A message has at most 64 MiB and 200 levels. A request may not have CBOR tags: refold needs none, and tags allow a
message that contains itself, or a regular expression.
"""

from __future__ import annotations

import io
import socket
import struct
from collections.abc import Callable
from typing import NoReturn

import cbor2

from refold.avro import errors
from refold.avro.errors import DamagedRecord, InputError, RefoldError, StorageError, UnknownWireId, ValidationError
from refold.streams.log.file.limits import MESSAGE_BYTES_MAX

DEPTH_MAX = 200

_CLASSES: dict[str, type[RefoldError]] = {
    name: value for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, RefoldError)
}


# The tags that cbor2 decodes itself; any other calls the hook.
_KNOWN_TAGS = (0, 1, 2, 3, 4, 5, 25, 28, 29, 30, 35, 36, 37, 52, 54, 100, 256, 258, 260, 261, 1004, 43000, 55799)


def _no_tag(*_: object) -> NoReturn:
    raise ValueError("a question has no tags")


_NO_TAGS = dict.fromkeys(_KNOWN_TAGS, _no_tag)


def encode(message: object, bytes_max: int = MESSAGE_BYTES_MAX) -> bytes:
    """Encode a message with its length.

    Args:
        message: The message.
        bytes_max: Its largest size in bytes, without the length.

    Returns:
        The bytes to send.

    Raises:
        InputError: It is too long, or has a value that CBOR cannot encode.
    """
    try:
        body = cbor2.dumps(message)
    except cbor2.CBOREncodeError as error:
        raise InputError(f"a message to the log's owner cannot be encoded: {error}") from error
    if len(body) > bytes_max:
        raise InputError(
            f"a message to or from the log's owner has {len(body)} bytes; at most {bytes_max}: ask for less at a time"
        )
    return struct.pack(">I", len(body)) + body


def receive(
    connection: socket.socket, before_each: Callable[[], None] = lambda: None, *, is_question: bool = False,
    bytes_max: int = MESSAGE_BYTES_MAX,
) -> object | None:  # fmt: skip
    """Receive the next message.

    Args:
        connection: A connected socket.
        before_each: Called before each wait for bytes.
        is_question: The message is a request: CBOR tags in it are refused.
        bytes_max: Its largest size in bytes, without the length.

    Returns:
        The message; None at the end of the stream.

    Raises:
        OSError: The connection broke.
        InputError: The message is invalid, or a request has tags.
    """
    head = _exactly(connection, 4, before_each)
    if head is None:
        return None
    (size,) = struct.unpack(">I", head)
    if size > bytes_max:
        raise InputError(f"a message of {size} bytes was announced; at most {bytes_max}")
    body = _exactly(connection, size, before_each)
    if body is None:
        return None
    try:
        if is_question:
            message: object = cbor2.loads(body, max_depth=DEPTH_MAX, semantic_decoders=_NO_TAGS, tag_hook=_no_tag)
        else:
            message = cbor2.loads(body, max_depth=DEPTH_MAX)
    except (cbor2.CBORDecodeError, ValueError, TypeError) as error:
        raise InputError(f"a message is not CBOR: {error}") from error
    return message


def answer_error(error: RefoldError, *, hangs_up: bool = False) -> list[object]:
    """Return the answer for an error.

    Args:
        hangs_up: It is the last one on its connection.
    """
    kind = 2 if hangs_up else 1
    if isinstance(error, ValidationError):
        # Its message is made of the three; a value that CBOR cannot encode is sent as its text in parentheses.
        given = error.given
        try:
            cbor2.dumps(given)
        except cbor2.CBOREncodeError:
            given = f"({given!r:.120})"
        return [kind, type(error).__name__, [error.field, error.rule, given]]
    if isinstance(error, UnknownWireId):
        return [kind, type(error).__name__, [error.wire_id]]
    if isinstance(error, DamagedRecord):
        return [kind, type(error).__name__, [str(error), error.topic, error.partition, error.offset]]
    name = next(each.__name__ for each in type(error).__mro__ if each.__name__ in _CLASSES)
    return [kind, name, [str(error)]]


def is_last(answer: object) -> bool:
    """Whether the owner closes the connection after this answer."""
    return isinstance(answer, list) and answer[:1] == [2]


def result_of(answer: object) -> object:
    """Return the result in an answer, or raise its error.

    Raises:
        StorageError: The answer is invalid.
    """
    match answer:
        case [0, result]:
            return result
        case [1 | 2, str(name), [*arguments]] if name in _CLASSES:
            raise _remade(name, arguments)
    raise StorageError(f"the log's owner sent an invalid answer: {answer!r:.80}; is it another release?")


def _remade(name: str, arguments: list[object]) -> RefoldError:
    try:
        return _CLASSES[name](*arguments)
    except (TypeError, ValueError, AttributeError, LookupError):
        return StorageError(f"{name}: {arguments!r:.200}")


def _exactly(connection: socket.socket, size: int, before_each: Callable[[], None]) -> bytes | None:
    found = io.BytesIO()
    while (missing := size - found.tell()) > 0:
        before_each()
        part = connection.recv(min(missing, 1 << 20))
        if not part:
            return None
        found.write(part)
    return found.getvalue()
