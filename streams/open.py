"""Opens a log by its URL.

file:PATH[?partitions=8][&blobs=URL]                    embedded, one folder; blobs: streams/blobs/url.py
kafka://HOST:PORT[,HOST:PORT...]/PREFIX[?partitions=8]  Apache Kafka; more in streams/log/kafka/url.py
"""

from __future__ import annotations

import getpass
import os
import socket
import time
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import parse_qsl, unquote

from refold.avro.definition import TypeDefinition
from refold.avro.errors import InputError
from refold.avro.shipped import load_types, shipped_types
from refold.reducers.custom import code_of
from refold.reducers.registered import Registered, allow
from refold.streams.blobs.url import store_url
from refold.streams.client import Log
from refold.streams.defaults import OWNER_TIMEOUT_S
from refold.streams.log.port import LogPort
from refold.streams.partitioner import check_partitions
from refold.streams.rocks.layout import is_log
from refold.streams.runtime_context import RuntimeContext

if TYPE_CHECKING:
    from refold.streams.log.kafka.log import KafkaLog

L = TypeVar("L", bound=Log)

DEFAULT_URL = "file:.refold"
ENVIRONMENT = "REFOLD_LOG"
KAFKA = "kafka"


def open_as(
    kind: type[L],
    url: str | None = None,
    *,
    types: Iterable[str | os.PathLike[str]] = (),
    reducers: Iterable[Registered] = (),
    read_only: bool = False,
    owner_timeout_s: float = OWNER_TIMEOUT_S,
    config: Mapping[str, str] | None = None,
    worker: str | None = None,
    memory_bytes: int | None = None,
    runtime: RuntimeContext | None = None,
) -> L:
    """Open a log, as a Log or a subclass. A log that does not exist is created, unless `read_only`.

    Args:
        kind: The class.
        url: The log's URL, as in this module's docstring; None for REFOLD_LOG, else file:.refold.
        types: .avsc files, or folders of them, in addition to or instead of the shipped ones.
        reducers: Custom reducers to register in this process, as functions or by name (reducers/registered.py).
        read_only: Whether the log is only read.
        owner_timeout_s: How long to wait for the process that owns a `file:` log, or for Kafka's brokers, in seconds.
        config: Settings of Kafka's clients. They override those in the file that REFOLD_KAFKA_CONFIG names.
        worker: The URL of a worker's pages; None for REFOLD_WORKER. Without one the workers are found by their group.
        memory_bytes: RocksDB's memory if this process owns a `file:` log, in bytes; None for 192 MiB.
        runtime: The clock, ids, process name and settings of snapshots to use; for tests.

    Raises:
        InputError: The URL is invalid, or `read_only` and there is no log.
        StorageError: The log cannot be opened.
    """
    allow(reducers)
    mine = load_types([Path(each) for each in types], code_of)
    runtime = runtime or process_context()
    port = open_port(
        url, runtime, read_only=read_only, owner_timeout_s=owner_timeout_s, config=config, worker=worker,
        memory_bytes=memory_bytes,
    )  # fmt: skip
    return kind(port, {**shipped_types(), **mine}, set(mine), runtime)


def log_from_port(port: LogPort, mine: Mapping[str, TypeDefinition], runtime: RuntimeContext) -> Log:
    """Return a Log on an open port.

    Args:
        port: The port. The Log closes it.
        mine: The user's types by name, in addition to or instead of the shipped ones.
        runtime: The clock, ids and process name.
    """
    return Log(port, {**shipped_types(), **mine}, set(mine), runtime)


def open_port(
    url: str | None = None,
    runtime: RuntimeContext | None = None,
    *,
    read_only: bool = False,
    owner_timeout_s: float = OWNER_TIMEOUT_S,
    config: Mapping[str, str] | None = None,
    worker: str | None = None,
    memory_bytes: int | None = None,
) -> LogPort:
    """Open the port below a Log, which has records, not observations. Arguments and errors as for `open_as`."""
    if is_kafka(url):
        return open_kafka(url, read_only=read_only, timeout_s=owner_timeout_s, config=config, worker=worker)
    from refold.streams.log.file.log import FileLog

    path, partitions, blobs = _place(url)
    runtime = runtime or process_context()
    return FileLog(
        path,
        clock_ms=lambda: runtime.now_micros() // 1000,
        new_id=lambda: uuid.uuid4().bytes,
        partitions=partitions,
        read_only=read_only,
        owner_timeout_s=owner_timeout_s,
        blobs=blobs,
        memory_bytes=memory_bytes,
        settings=runtime.snapshots,
        limits=runtime.file_limits,
    )


def open_kafka(
    url: str | None = None,
    *,
    read_only: bool = False,
    timeout_s: float = OWNER_TIMEOUT_S,
    config: Mapping[str, str] | None = None,
    worker: str | None = None,
) -> KafkaLog:
    """Open a Kafka log as a client. Arguments and errors as for `open_as`."""
    try:
        from refold.streams.log.kafka.log import KafkaLog
        from refold.streams.log.kafka.url import parse_url
        from refold.streams.log.kafka.worker_client import WORKER_ENVIRONMENT, WorkerFolding, Workers, WorkerTables
        from refold.streams.registry.ids import SchemaIds
        from refold.streams.registry.settings import registry_settings
    except ModuleNotFoundError as error:
        raise _without_kafka(url, error) from error
    address, settings = parse_url(resolved_url(url)), registry_settings(os.environ)
    schema_ids = None if settings is None else SchemaIds(settings)
    workers = Workers(address, config, worker or os.environ.get(WORKER_ENVIRONMENT))
    log = KafkaLog(
        address, config=config, read_only=read_only, timeout_s=timeout_s, schema_ids=schema_ids,
        tables=WorkerTables(workers), folding=WorkerFolding(workers, timeout_s),
    )  # fmt: skip
    workers.log_id = log.log_id
    return log


def _without_kafka(url: str | None, error: ModuleNotFoundError) -> Exception:
    if (error.name or "").partition(".")[0] != "confluent_kafka":
        return error
    return InputError(f"{resolved_url(url)}: Kafka's client is not installed here; pip install 'refold[kafka]'")


def resolved_url(url: str | None = None) -> str:
    """Return the URL, or else REFOLD_LOG, or else file:.refold."""
    return url or os.environ.get(ENVIRONMENT) or DEFAULT_URL


def is_kafka(url: str | None = None) -> bool:
    """Whether the URL is of a log on Kafka."""
    return resolved_url(url).partition(":")[0] == KAFKA


def log_exists(url: str | None = None, timeout_s: float = OWNER_TIMEOUT_S) -> bool:
    """Return whether a log exists at a URL.

    Args:
        url: The URL; None for REFOLD_LOG, else file:.refold.
        timeout_s: How long to wait for Kafka's brokers, in seconds.

    Raises:
        InputError: The URL is invalid, or something else is there.
    """
    if not is_kafka(url):
        return is_log(file_path(url))
    try:
        from refold.streams.log.kafka.topics import kafka_log_exists
        from refold.streams.log.kafka.url import parse_url
    except ModuleNotFoundError as error:
        raise _without_kafka(url, error) from error
    return kafka_log_exists(parse_url(resolved_url(url)), timeout_s=timeout_s)


def require_openable(url: str | None = None) -> None:
    """Check a URL for what no later attempt can change, without opening anything.

    Raises:
        InputError: It is not a log's URL, or Kafka's client is not installed.
    """
    if not is_kafka(url):
        _place(url)
        return
    try:
        from refold.streams.log.kafka.topics import kafka_log_exists  # noqa: F401  # for the client that it imports
        from refold.streams.log.kafka.url import parse_url
    except ModuleNotFoundError as error:
        raise _without_kafka(url, error) from error
    parse_url(resolved_url(url))


def file_path(url: str | None = None) -> Path:
    """Return the folder of a `file:` log, whether it exists or not.

    Raises:
        InputError: The URL names none.
    """
    return _place(url)[0]


def partitions_in_url(url: str | None = None) -> int | None:
    """Return the number of partitions in the URL, if any.

    Raises:
        InputError: The URL is invalid.
    """
    return _place(url)[1]


def content_store_in_url(url: str | None = None) -> str | None:
    """Return the content store in the URL of a `file:` log, if any.

    Raises:
        InputError: The URL is invalid.
    """
    return _place(url)[2]


def _place(url: str | None) -> tuple[Path, int | None, str | None]:
    """The folder, the number of partitions and the content store in a URL."""
    place = resolved_url(url)
    scheme, colon, rest = place.partition(":")
    if colon and scheme == KAFKA:
        raise InputError(f"{place}: this takes a log in a folder; give file:PATH")
    if not colon or scheme != "file":
        raise InputError(
            f"{place!r} is not a log's URL; give file:PATH, such as {DEFAULT_URL}, or kafka://HOST:PORT/PREFIX"
        )
    path, _, query = rest.removeprefix("//").partition("?")
    if not path:
        raise InputError(f"{place!r} names no folder; give file:PATH, such as {DEFAULT_URL}")
    options = dict(parse_qsl(query, keep_blank_values=True))
    partitions, blobs = options.pop("partitions", None), options.pop("blobs", None)
    if options:
        raise InputError(
            f"{place}: unknown option {sorted(options)[0]!r}; a file: log takes ?partitions=N and ?blobs=URL"
        )
    return _folder(place, path), _partitions(place, partitions), store_url(blobs) if blobs else None


def _folder(url: str, quoted: str) -> Path:
    """The folder of a URL's path. Raises InputError if it is not a valid path."""
    try:
        name = unquote(quoted, errors="strict")
    except UnicodeDecodeError:
        raise InputError(f"{url}: its path is not UTF-8 after %XX is decoded") from None
    if "\0" in name:
        raise InputError(f"{url}: its path holds a zero byte, which is not allowed in a path")
    try:
        return Path(name).expanduser()
    except RuntimeError as error:
        raise InputError(f"{url}: {error}") from None


def _partitions(url: str, partitions: str | None) -> int | None:
    if partitions is None:
        return None
    if not partitions.isdecimal() or len(partitions) > 18:
        raise InputError(f"{url}: partitions={partitions:.80}: give a whole number")
    return check_partitions(int(partitions))


def process_context() -> RuntimeContext:
    """The clock of this machine, random ids, and user@host/pid as the agent."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return RuntimeContext(
        now_micros=lambda: time.time_ns() // 1000,
        new_id=lambda: uuid.uuid4().hex,
        agent=f"{user}@{socket.gethostname()}/{os.getpid()}",
    )
