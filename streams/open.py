"""Opening a log by its URL.

file:PATH[?partitions=8]            embedded, one folder
kafka://host:port[,host:port]/NAME  Apache Kafka
"""

from __future__ import annotations

import getpass
import os
import socket
import time
import uuid
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import parse_qsl, unquote

from refold.avro.errors import InputError
from refold.avro.shipped import load_types, shipped_types
from refold.reducers.custom import code_of
from refold.streams.client import Log, Surroundings
from refold.streams.log.file.layout import is_log
from refold.streams.log.file.log import OWNER_TIMEOUT_S, FileLog
from refold.streams.partition import check_partitions

DEFAULT_URL = "file:.refold"
ENVIRONMENT = "REFOLD_LOG"


def open_log(
    url: str | None = None,
    *,
    types: Iterable[str | os.PathLike[str]] = (),
    read_only: bool = False,
    owner_timeout_s: float = OWNER_TIMEOUT_S,
    around: Surroundings | None = None,
) -> Log:
    """Open a log; `file:` makes one that is not there, unless read_only.

    url: see the module; without one REFOLD_LOG, else file:.refold. types: .avsc files, or folders of them, beside or
    instead of the shipped ones. around: clock, ids and name of this process, for tests.
    """
    path, partitions = _place(url)
    mine = load_types([Path(each) for each in types], code_of)
    surroundings = around or process_surroundings()
    port = FileLog(
        path,
        clock_ms=lambda: surroundings.now_micros() // 1000,
        new_id=lambda: uuid.uuid4().bytes,
        partitions=partitions,
        read_only=read_only,
        owner_timeout_s=owner_timeout_s,
    )
    return Log(port, {**shipped_types(), **mine}, set(mine), surroundings)


def log_exists(url: str | None = None) -> bool:
    """Whether a log is at the URL; InputError where the URL is none, or another thing is there."""
    return is_log(file_path(url))


def file_path(url: str | None = None) -> Path:
    """The folder of a `file:` log, whether one is there or not; InputError where the URL names none."""
    return _place(url)[0]


def _place(url: str | None) -> tuple[Path, int | None]:
    """The folder a URL names, and the partitions it asks for."""
    place = url or os.environ.get(ENVIRONMENT) or DEFAULT_URL
    scheme, colon, rest = place.partition(":")
    if colon and scheme == "kafka":
        raise InputError(f"{place}: this release has the embedded log only; give file:PATH")
    if not colon or scheme != "file":
        raise InputError(f"{place!r} is no log's URL; give file:PATH, such as {DEFAULT_URL}")
    path, _, query = rest.removeprefix("//").partition("?")
    if not path:
        raise InputError(f"{place!r} names no folder; give file:PATH, such as {DEFAULT_URL}")
    return Path(unquote(path)).expanduser(), _partitions(place, query)


def _partitions(url: str, query: str) -> int | None:
    options = dict(parse_qsl(query, keep_blank_values=True))
    partitions = options.pop("partitions", None)
    if options:
        raise InputError(f"{url}: unknown option {sorted(options)[0]!r}; a file: log takes ?partitions=N")
    if partitions is None:
        return None
    if not partitions.isdecimal():
        raise InputError(f"{url}: partitions={partitions}: give a whole number")
    return check_partitions(int(partitions))


def process_surroundings() -> Surroundings:
    """The clock of this machine, random ids, and user@host/pid as the agent."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return Surroundings(
        now_micros=lambda: time.time_ns() // 1000,
        new_id=lambda: uuid.uuid4().hex,
        agent=f"{user}@{socket.gethostname()}/{os.getpid()}",
    )
