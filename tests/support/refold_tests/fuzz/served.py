"""The servers in the fuzzed process: a log's owner on its socket, a worker's pages, the explorer's pages.

A conversation is CBOR: a list of bytes to send and of numbers, which are seconds to wait. Then the sending side is
closed, and all answers are read. It is a defect if

1. the server logs that a question or a page failed, or answers 500;
2. nothing ends within PATIENCE_S, although the server's own deadlines are far shorter;
3. the server does not answer one valid question afterwards;
4. the owner refused everything, but its log has changed; or something is stored under an id that is not its own;
5. a server with a token gave a page to a caller without it.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, cast

import cbor2

import refold
from refold.agents.log import open_log
from refold.avro.errors import RefoldError
from refold.avro.ids import identify
from refold.explorer.queries.log_target import LogTarget
from refold.explorer.queries.shapes import row_json, state_json
from refold.explorer.web.site import explorer as site_of
from refold.streams.cut import parse_cut
from refold.streams.log.file import framing
from refold.streams.log.file.client import Client, locate
from refold.streams.log.file.limits import FileLogLimits
from refold.streams.log.file.log import FileLog
from refold.streams.open import process_context
from refold.streams.web.client import PagesClient
from refold.streams.web.connection import Bounds
from refold.streams.web.guard import Token
from refold.streams.web.listening import Access
from refold.streams.web.server import WebServer
from refold.streams.worker.condition import healthy
from refold.streams.worker.host.metrics import About, metrics_of
from refold.streams.worker.host.pages import Pages
from refold.streams.worker.operations import Operations
from refold.streams.worker.own_tables import OwnTables, answer_lookup

PATIENCE_S = 45.0
"""Longer than any deadline of the servers below, and shorter than the driver's."""
SHORT_S = 0.3
STORED_MAX = 2_000
TOKEN = "0123456789abcdef-fuzz"
STATUS = re.compile(rb"^HTTP/\d\.\d (\d{3})", re.MULTILINE)
OPEN_WORDS = ({"healthy"}, {"ready"})
_FAILED = ("failed on a question", "the page ", "a page failed", "a connection failed")


class _Noting(logging.Handler):
    """Remembers what servers log about defects."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.notes: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        said = record.getMessage()
        if said.startswith(_FAILED) or "failed on a question" in said:
            trace = logging.Formatter().formatException(record.exc_info) if record.exc_info else ""
            self.notes.append(f"{said}\n{trace}")


@cache
def noting() -> _Noting:
    """Return what servers in this process log about defects, from the first call on."""
    found = _Noting()
    logging.getLogger("refold").addHandler(found)
    return found


class Answered(NamedTuple):
    """The result of a conversation. done: how many questions were not refused."""

    done: int
    refused: int


# The owner's socket


class _Owned:
    """A log that this process owns. path: its folder, a copy of the world's log."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "served"
        shutil.rmtree(self.path, ignore_errors=True)
        shutil.copytree(folder / "kept", self.path)
        limits = FileLogLimits(first_s=SHORT_S, message_s=SHORT_S)
        self.log = open_log(f"file:{self.path}", runtime=replace(process_context(), file_limits=limits))
        self.log.flush()
        assert isinstance(self.log.port, FileLog)
        self.port = self.log.port

    def held(self) -> object:
        ids = {part: [each.id for each in self.port.read(part, 0, end)] for part, end in self.port.ends().items()}
        return ids, [each.definition.fingerprint for each in self.port.registry], [*self.port.markers()]

    def stored(self) -> int:
        return sum(self.port.ends().values())

    def check(self) -> None:
        """Check that everything is stored under its own id."""
        for part, end in self.port.ends().items():
            for each in self.port.read(part, 0, end):
                assert identify(self.port.registry.decode(each.data)) == each.id, f"{part}={each.offset}"
        for marked in self.port.markers():
            assert parse_cut(marked.cut).log_id == self.port.log_id, marked
            assert marked.name.isprintable(), marked


_owned: _Owned | None = None


def _owner() -> _Owned:
    global _owned  # noqa: PLW0603  # one log at a time
    if _owned is not None and _owned.stored() > STORED_MAX:
        close()
    if _owned is None:
        _owned = _Owned(Path.cwd())
    return _owned


def close() -> None:
    """Close the owned log, if there is one."""
    global _owned  # noqa: PLW0603
    if _owned is not None:
        _owned.log.close()
        _owned = None


def owner(data: bytes) -> None:
    """Have a conversation with the owner of a log.

    Raises:
        RefoldError: Everything was refused.
    """
    noted, owned = noting(), _owner()
    noted.notes.clear()
    before = owned.held()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE_S)
        connection.connect(locate(owned.path))
        _send(connection, cbor2.loads(data))
        found = _answers(connection)
    assert not noted.notes, noted.notes[0]
    with Client(owned.path, PATIENCE_S) as client:
        client.call("flush", None)
    if found.done:
        owned.check()
    else:
        assert owned.held() == before, "everything was refused, and the log is changed"


def _answers(connection: socket.socket) -> Answered:
    done = refused = 0
    while True:
        try:
            answer = framing.receive(connection)
        except ConnectionError:
            return Answered(done, refused)
        if answer is None:
            return Answered(done, refused)
        try:
            framing.result_of(answer)
            done += 1
        except RefoldError:
            refused += 1


def _send(connection: socket.socket, parts: list[Any]) -> None:
    with suppress(OSError):  # the server closed the connection, and may have said why
        for part in parts:
            if isinstance(part, bytes):
                connection.sendall(part)
            else:
                time.sleep(part)
        connection.shutdown(socket.SHUT_WR)


# Pages


class _Log:
    partitions = 2


class _Sealing:
    def seal(self, pinned_at: int | None) -> dict[int, None]:
        return {}

    def pin(self, epochs: object, pinned_at: int | None) -> list[Any]:
        return []

    def collect(self, *, dry_run: bool, damaged: bool) -> list[Any]:
        return []


class _Service:
    """A worker's service without a partition."""

    log = _Log()
    sealing = _Sealing()

    def table(self, partition: int) -> None:
        return None

    def owns(self, partition: int) -> bool:
        return False

    def recover(self) -> list[int]:
        return []


class _Operations(Operations):
    """The operations of workers, except a full replay of a log on Kafka."""

    @property
    def names(self) -> list[str]:
        return [each for each in super().names if each != "verify"]


def _pages(own_url: str) -> Pages:
    folder = Path.cwd() / "pages"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(Path.cwd() / "kept", folder)
    log = open_log(f"file:{folder}", read_only=True)

    def state(entity: str, given: Mapping[str, str]) -> object:
        point = log.point(given.get("at"), entity, given.get("clock", "recorded"))
        return state_json(point, log.state(entity, point.cut))

    def history(entity: str, given: Mapping[str, str]) -> object:
        rows = log.history(entity, since=given.get("since"), until=given.get("until"),
                           clock=given.get("clock", "recorded"), python=False)  # fmt: skip
        return [row_json(row) for row in rows]

    tables = OwnTables(lambda partition: None, 2)
    status = {0: {"state": "folding", "lag": 0, "caught_up": True, "uncommitted_s": 0.0, "waits_for": ""}}
    return Pages(
        status=lambda: status, condition=healthy,
        metrics=metrics_of(lambda: status, healthy, About("p", 2, folder, "1")),
        partition_of=lambda entity: 0, owns=lambda partition: partition == 0, workers=lambda: {1: "http://127.0.0.1:1"},
        questions={"state": state, "history": history},
        operations=_Operations(cast(Any, _Service()), cast(Any, None)),
        lookup=lambda content: answer_lookup(tables, content), log_id=log.port.log_id, own_url=own_url,
        asker=PagesClient(),
    )  # fmt: skip


@cache
def _servers() -> list[WebServer]:
    found = []
    for token in (None, Token(TOKEN)):
        bounds = Bounds(head_s=SHORT_S, content_s=SHORT_S)
        web = WebServer("127.0.0.1", 0, Access(token=token, allowed_hosts=["worker"]), bounds)
        web.serve(_pages(web.url))
        found.append(web)
    return found


def pages(data: bytes) -> None:
    """Have a conversation with a worker's pages, with a token and without."""
    noted = noting()
    for web, has_token in zip(_servers(), (False, True), strict=True):
        noted.notes.clear()
        converse(web.url, cbor2.loads(data), has_token=has_token)
        assert not noted.notes, noted.notes[0]


# The explorer


class _Explored(NamedTuple):
    """An explorer of a log. log: its folder; is_known: whether callers need no token."""

    web: WebServer
    log: Path
    is_known: bool


@cache
def _explorers() -> list[_Explored]:
    found = []
    for number, token in enumerate((None, Token(TOKEN))):
        folder = Path.cwd() / f"explored-{number}"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(Path.cwd() / "kept", folder)
        bounds = Bounds(head_s=SHORT_S, content_s=SHORT_S)
        web = WebServer("127.0.0.1", 0, Access(token=token, allowed_hosts=["worker"]), bounds)
        web.serve(site_of(LogTarget(f"file:{folder}"), token, is_secure=False, can_write=True))
        found.append(_Explored(web, folder, token is None))
    return found


def explorer(data: bytes) -> None:
    """Have a conversation with the explorer, with a token and without. It may write only through its actions."""
    noted = noting()
    for web, log, is_known in _explorers():
        noted.notes.clear()
        before = _stored(log)
        statuses, answer = converse(web.url, cbor2.loads(data), is_checked=False)
        assert not noted.notes, noted.notes[0]
        if not is_known:
            assert b"y" * 40 not in answer, bytes(answer[:2000])
            assert b'rate_limit"' not in answer, bytes(answer[:2000])
        if not is_known or 303 not in statuses:
            assert _stored(log) == before, "nothing was done, and the log is changed"


def _stored(log: Path) -> object:
    with refold.open(f"file:{log}", read_only=True) as opened:
        port = opened.port
        for part, end in port.ends().items():
            for each in port.read(part, 0, end):
                assert identify(port.registry.decode(each.data)) == each.id, f"{part}={each.offset}"
        return port.ends(), [*port.markers()]


def converse(
    url: str, parts: list[Any], *, has_token: bool = False, is_checked: bool = True
) -> tuple[list[int], bytearray]:
    """Send bytes to a server of pages, and check its answers.

    Args:
        url: The server.
        parts: The bytes to send, and seconds to wait.
        has_token: Whether the requests have the token.
        is_checked: Whether the server must be healthy afterwards.

    Returns:
        The statuses in the answers, and the answers.
    """
    place = ("127.0.0.1", int(url.rpartition(":")[2]))
    answer = bytearray()
    with socket.create_connection(place) as connection:
        connection.settimeout(PATIENCE_S)
        _send(connection, parts)
        with suppress(ConnectionError):
            while part := connection.recv(1 << 16):
                answer += part
    statuses = [int(each) for each in STATUS.findall(answer)]
    assert statuses or not answer, bytes(answer[:200])
    assert b"Traceback" not in answer, bytes(answer[:2000])
    assert 500 not in statuses, bytes(answer[:2000])
    if has_token and 200 in statuses:
        bodies = [json.loads(each) for each in re.findall(rb"\r\n\r\n(\{.*\})\n", answer)]
        assert all(each.keys() in (*OPEN_WORDS, {"error"}) for each in bodies), bytes(answer[:2000])
        assert b"# HELP" not in answer
    with socket.create_connection(place) as connection:
        connection.settimeout(PATIENCE_S)
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        with connection.makefile("rb") as file:
            assert file.readline().startswith(b"HTTP/1.1 200" if is_checked else b"HTTP/1.1 ")
    return statuses, answer
