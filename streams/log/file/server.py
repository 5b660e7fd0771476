"""The owner's server: answers requests of the same user's processes, with a thread for each connection.

There are at most connections_max connections (limits.py). A connection is closed
1. first_s after it was opened, if it sent no request;
2. message_s after the first byte of a request, if the request is incomplete;
3. answer_s after the first byte of an answer was sent, if the answer was not received completely;
4. when a new connection needs its place and it is the connection that has been idle for longest. Its client notices
   that before the next request, and connects again.
If every connection has a request in progress, a new one is refused with a message.
"""

from __future__ import annotations

import logging
import os
import selectors
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Lock, Thread

from refold.avro.errors import InputError, RefoldError, StorageError
from refold.streams.deadline import Deadline
from refold.streams.log.file.client import bind, is_same_user
from refold.streams.log.file.framing import answer_error, encode, receive
from refold.streams.log.file.limits import DEFAULT_LIMITS, FileLogLimits

Handler = Callable[[str, object], object]

REFUSED_QUESTION_S = 0.5

_log = logging.getLogger(__name__)


def serve(path: str | os.PathLike[str], handler: Handler, limits: FileLogLimits = DEFAULT_LIMITS) -> Server:
    """Start the server of the log at `path`, whose lock this process must hold. Raises StorageError if it cannot
    listen.

    `handler(op, payload)` runs in the threads of connections, concurrently. Its result must be encodable as CBOR. A
    RefoldError that it raises is raised in the client; any other error is logged, and is a StorageError there.
    """
    return Server(Path(path).resolve(), handler, limits)


class Server:
    """Serves until `stop`; a context manager."""

    def __init__(self, path: Path, handler: Handler, limits: FileLogLimits) -> None:
        self._handler = handler
        self._limits = limits
        self._listener, self._files = bind(path)
        self._wake, self._waker = socket.socketpair()
        self._lock = Lock()
        self._stopping = False
        self._connections: dict[socket.socket, Thread] = {}
        self._waiting: dict[socket.socket, None] = {}
        self._acceptor = Thread(target=self._accept, name="refold-owner", daemon=True)
        self._acceptor.start()

    def stop(self, grace_s: float = 5.0) -> None:
        """Accept no more requests, let running handlers end and answer, join all threads, remove the socket.
        Idempotent.

        A client that stops receiving its answer is disconnected after `grace_s` seconds.
        """
        with self._lock:
            if self._stopping:
                return
            self._stopping = True
        self._waker.send(b"x")
        self._acceptor.join()
        self._listener.close()
        for file in self._files:
            file.unlink(missing_ok=True)
        with self._lock:
            left = dict(self._connections)
        for connection in left:
            _shut(connection, socket.SHUT_RD)
        deadline = Deadline(grace_s)
        for thread in left.values():
            thread.join(deadline.left_s)
        for connection, thread in left.items():
            _shut(connection, socket.SHUT_RDWR)
            thread.join()
        self._wake.close()
        self._waker.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _accept(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._wake, selectors.EVENT_READ)
            while not self._stopping:
                ready = [key.fileobj for key, _ in selector.select()]
                if self._listener in ready and not self._stopping:
                    self._accept_connection()

    def _accept_connection(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            # Out of file descriptors, or the client left: the next connection may succeed.
            _log.warning("a connection to the log's owner was not accepted: %s", error)
            time.sleep(0.05)
            return
        if not is_same_user(connection):
            connection.close()
            return
        with self._lock:
            if len(self._connections) >= self._limits.connections_max:
                self._close_oldest()
            if len(self._connections) < self._limits.connections_max:
                thread = Thread(target=self._converse, args=(connection,), name="refold-owner-answers", daemon=True)
                self._connections[connection] = thread
                self._waiting[connection] = None
                thread.start()
                return
        refusal = StorageError(f"the log's owner answers {self._limits.connections_max} questions already; ask again")
        # Small enough for the socket's buffer, so this does not wait for the client.
        _send(connection, self._encode(answer_error(refusal, hangs_up=True)))
        _shut(connection, socket.SHUT_WR)
        # Closing with an unread request would reset the connection and lose the answer.
        with suppress(OSError, InputError):
            self._receive(connection, REFUSED_QUESTION_S, REFUSED_QUESTION_S)
        connection.close()

    def _close_oldest(self) -> None:
        """Close the connection that has been idle for longest. Called with the lock held."""
        oldest = next(iter(self._waiting), None)
        if oldest is not None:
            del self._waiting[oldest], self._connections[oldest]
            _shut(oldest, socket.SHUT_RDWR)

    def _converse(self, connection: socket.socket) -> None:
        try:
            first_s: float | None = self._limits.first_s
            while (question := self._receive(connection, first_s, self._limits.message_s)) is not None:
                if not self._begin_answer(connection):
                    return
                answer = self._answer(question)
                connection.settimeout(self._limits.answer_s)
                if not _send(connection, answer):
                    return
                first_s = None
                with self._lock:
                    self._waiting[connection] = None
        except InputError as error:
            # The boundaries of further messages on this connection are unknown.
            connection.settimeout(self._limits.answer_s)
            _send(connection, self._encode(answer_error(error, hangs_up=True)))
        except OSError:
            return
        finally:
            with self._lock:
                self._connections.pop(connection, None)
                self._waiting.pop(connection, None)
            connection.close()

    def _receive(self, connection: socket.socket, first_s: float | None, message_s: float) -> object | None:
        timeouts = _MessageTimeouts(connection, first_s, message_s)
        return receive(connection, timeouts, is_question=True, bytes_max=self._limits.message_bytes_max)

    def _encode(self, answer: object) -> bytes:
        return encode(answer, self._limits.message_bytes_max)

    def _begin_answer(self, connection: socket.socket) -> bool:
        """False if the connection was closed meanwhile: the request was not accepted, and the client repeats it."""
        with self._lock:
            self._waiting.pop(connection, None)
            return connection in self._connections

    def _answer(self, question: object) -> bytes:
        try:
            match question:
                case [str(op), payload]:
                    return self._encode([0, self._handler(op, payload)])
            raise InputError(f"not a question to the log's owner: {question!r:.80}")
        except RefoldError as error:
            return self._encode(answer_error(error))
        except Exception as error:  # a defect: the client gets an answer, and the owner continues
            _log.exception("the log's owner failed on a question")
            failure = StorageError(f"the log's owner failed: {type(error).__name__}: {error}; its log says where")
            return self._encode(answer_error(failure))


class _MessageTimeouts:
    """The timeouts of a message: first_s until its first byte (None: no limit), then message_s until it is complete."""

    def __init__(self, connection: socket.socket, first_s: float | None, message_s: float) -> None:
        self._connection = connection
        self._first_s = first_s
        self._message_s = message_s
        self._has_waited = False
        self._deadline: Deadline | None = None

    def __call__(self) -> None:
        """Before each wait for bytes."""
        if not self._has_waited:
            self._has_waited = True
            self._connection.settimeout(self._first_s)
            return
        self._deadline = self._deadline or Deadline(self._message_s)
        left_s = self._deadline.left_s
        if left_s == 0:
            raise TimeoutError
        self._connection.settimeout(left_s)


def _send(connection: socket.socket, message: bytes) -> bool:
    try:
        connection.sendall(message)
    except OSError:
        return False
    return True


def _shut(connection: socket.socket, how: int) -> None:
    try:
        connection.shutdown(how)
    except OSError:
        # It ended by itself.
        return
