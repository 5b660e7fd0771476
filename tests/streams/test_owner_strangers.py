"""A log's owner with clients that are silent, slow, never read or send junk: it keeps serving, and stores no junk."""

from __future__ import annotations

import logging
import random
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import cbor2
import pytest

import refold
from refold.agents.log import open_log
from refold.avro.errors import InputError, RefoldError
from refold.avro.ids import identify
from refold.streams.cut import parse_cut
from refold.streams.log.file import framing
from refold.streams.log.file.client import Client
from refold.streams.log.file.limits import DEFAULT_LIMITS, FileLogLimits
from refold.streams.log.file.log import FileLog
from refold.streams.log.file.server import serve
from refold.streams.open import process_context
from refold.streams.rocks.database import Database
from refold_tests.waiting import await_true

PATIENCE_S = 60.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """An empty log without an owner."""
    Database.create(tmp_path / "log").close()
    return tmp_path / "log"


@pytest.fixture
def log(tmp_path: Path) -> Iterator[refold.Log]:
    """A log that this process owns, with some observations. Its owner soon gives up an incomplete request."""
    runtime = replace(process_context(), file_limits=FileLogLimits(message_s=0.05))
    with open_log(f"file:{tmp_path / 'log'}", runtime=runtime) as opened:
        for number in range(5):
            opened.observe(f"document/d{number}", {"fields": {"a": number}}, source="one")
        opened.flush()
        yield opened


def folder(log: refold.Log) -> Path:
    assert isinstance(log.port, FileLog)
    return log.port.path


def echo(op: str, payload: object) -> object:
    return [op, payload]


def connect(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(path / "owner.sock"))
    connection.settimeout(PATIENCE_S)
    return connection


def has_ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(1 << 16) == b""
    except ConnectionError:
        return True


# Connections


@pytest.mark.parametrize("begun", [b"", b"\0", struct.pack(">I", 100) + b"\x82"])
def test_silent_connections_exclude_nobody(path: Path, begun: bytes) -> None:
    with serve(path, echo) as owner, ExitStack() as ending:
        for _ in range(DEFAULT_LIMITS.connections_max + 6):
            ending.enter_context(connect(path)).sendall(begun)
        await_true(lambda: len(owner._waiting) == DEFAULT_LIMITS.connections_max)
        for number in range(50):
            with Client(path, PATIENCE_S) as client:
                assert client.call("x", number) == ["x", number]


def test_displaced_client_reconnects(path: Path) -> None:
    with serve(path, echo), ExitStack() as ending:
        clients = [ending.enter_context(Client(path, PATIENCE_S)) for _ in range(DEFAULT_LIMITS.connections_max + 6)]
        for number, client in enumerate(clients * 2):
            assert client.call("x", number) == ["x", number]


def test_one_more_client_than_can_be_answered_is_refused(path: Path) -> None:
    entered, let_go = threading.Semaphore(0), threading.Event()

    def hold(op: str, payload: object) -> object:
        entered.release()
        let_go.wait(PATIENCE_S)
        return op

    with serve(path, hold, FileLogLimits(connections_max=2)), ExitStack() as ending:
        held = [ending.enter_context(connect(path)) for _ in range(2)]
        for each in held:
            each.sendall(framing.encode(["x", 1]))
        for _ in held:
            entered.acquire()
        with Client(path, PATIENCE_S) as more, pytest.raises(RefoldError, match="ask again"):
            more.call("x", 1)
        # A refused slow client delays nobody for longer than the owner waits for its request.
        dripping = ending.enter_context(connect(path))
        dripping.sendall(b"\0")
        let_go.set()
        for each in held:
            assert framing.result_of(framing.receive(each)) == "x"
        with Client(path, PATIENCE_S) as more:
            assert more.call("y", 1) == "y"


@pytest.mark.parametrize(
    ("limits", "begun"),
    [
        (FileLogLimits(first_s=0.1), b""),
        (FileLogLimits(message_s=0.1), b"\0"),
        (FileLogLimits(message_s=0.1), struct.pack(">I", 100) + b"\x82"),
    ],
    ids=["nothing", "part of the size", "part of the request"],
)
def test_half_open_connections_end(path: Path, limits: FileLogLimits, begun: bytes) -> None:
    with serve(path, echo, limits) as owner, connect(path) as connection:
        connection.sendall(begun)
        assert has_ended(connection)
        await_true(lambda: not owner._connections)


def test_idle_client_keeps_its_connection(path: Path) -> None:
    with serve(path, echo, FileLogLimits(first_s=0.2, message_s=0.2)) as owner, Client(path, PATIENCE_S) as client:
        assert client.call("x", 1) == ["x", 1]
        with connect(path) as later:
            assert has_ended(later)
        assert len(owner._connections) == 1
        assert client.call("x", 2) == ["x", 2]
        assert client.session == 1


def test_connection_that_does_not_read_its_answer_is_closed(path: Path) -> None:
    limits = FileLogLimits(answer_s=0.1)
    with serve(path, lambda op, payload: bytes(8 << 20), limits) as owner, connect(path) as connection:
        connection.sendall(framing.encode(["x", 1]))
        await_true(lambda: len(owner._connections) == 1)
        await_true(lambda: not owner._connections)


@pytest.mark.parametrize(
    "body",
    [b"\x82\x61x" + b"\x81" * 300 + b"\x01", b"\x81" * 100_000, b"\x82\x61x\xd8\x1c\x81\xd8\x1d\x00",
     b"\x82\x61x\xd8\x23\x63(((", b"\x82\x61x\xd9\x03\xe7\x01", b"\x82\x61x\xc2\x49" + b"\xff" * 9],
    ids=["deep", "deeper", "holds itself", "pattern", "unknown tag", "big number"],
)  # fmt: skip
def test_invalid_request_parts_are_refused(path: Path, body: bytes) -> None:
    with serve(path, echo):
        with connect(path) as raw:
            raw.sendall(struct.pack(">I", len(body)) + body)
            with pytest.raises(InputError):
                framing.result_of(framing.receive(raw))
        with Client(path, PATIENCE_S) as client:
            assert client.call("x", 1) == ["x", 1]


# Stored data


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 1025, 7, None, b"b", ["n"], {"n": 1}])
def test_marker_names_from_other_processes_are_validated_as_in_python(log: refold.Log, name: object) -> None:
    cut = str(log.mark("good"))
    with Client(folder(log), PATIENCE_S) as client, pytest.raises(RefoldError):
        client.call("mark", {"marked": [name, cut, 1], "replace": False})
    assert [each.name for each in log.port.markers()] == ["good"]


def test_marker_from_another_process_is_at_a_point_of_this_log(log: refold.Log, tmp_path: Path) -> None:
    cut = log.mark("good")
    with refold.open(f"file:{tmp_path / 'other'}") as another:
        foreign = str(another.mark("x"))
    beyond = replace(cut, offsets={**cut.offsets, 0: 1_000})
    elsewhere = replace(cut, offsets={**cut.offsets, 99: 0})
    defined = replace(cut, schemas=1_000)
    texts = ["", "junk", 7, None, "cut:1.", str(cut)[:-2], foreign, *map(str, (beyond, elsewhere, defined))]
    with Client(folder(log), PATIENCE_S) as client:
        for text in texts:
            with pytest.raises(RefoldError):
                client.call("mark", {"marked": ["bad", text, 1], "replace": False})
        for at in (-1, 2**64, 1.5, "1", True, None):
            with pytest.raises(RefoldError):
                client.call("mark", {"marked": ["bad", str(cut), at], "replace": False})
        client.call("mark", {"marked": ["right", str(cut), 1], "replace": False})
    assert {each.name: parse_cut(each.cut) for each in log.port.markers()} == {"good": cut, "right": cut}


JUNK: list[Any] = [
    None, True, False, 0, -1, 1, 2**63, 2**64 - 1, -(2**63), 1.5, float("nan"), float("inf"), "", "a\nb", "\u0000",
    "é" * 2000,
    "cut:1.x", b"", b"\0" * 32, b"\0\0\0\0\1abc", [], [[]], {}, {1: 2}, {"type": "record"}, {"": None},
    [b"\0" * 32, b""],
]  # fmt: skip
OPS = ["append", "flush", "register", "mark", "snapshot", "pin", "collect", "recover", "nothing", "", 7, None]


def mutated(draw: random.Random, tree: Any) -> Any:
    """A tree with some part of it replaced, removed, doubled or nested."""
    if isinstance(tree, dict) and tree and draw.random() < 0.7:
        name = draw.choice(list(tree))
        return {**tree, name: mutated(draw, tree[name])} if draw.random() < 0.8 else {draw.choice(JUNK[:3]): tree}
    if isinstance(tree, list) and tree and draw.random() < 0.7:
        at = draw.randrange(len(tree))
        how = draw.random()
        if how < 0.6:
            return [*tree[:at], mutated(draw, tree[at]), *tree[at + 1 :]]
        return tree[:at] + tree[at + 1 :] if how < 0.8 else [*tree, tree[at]]
    if isinstance(tree, bytes) and tree and draw.random() < 0.7:
        changed = bytearray(tree)
        for _ in range(draw.randrange(1, 4)):
            changed[draw.randrange(len(changed))] = draw.randrange(256)
        return bytes(changed[: draw.choice([len(changed), draw.randrange(len(changed) + 1)])])
    return draw.choice(JUNK)


def questions(draw: random.Random, seeds: list[list[Any]], port: FileLog) -> Iterator[bytes]:
    """Random bytes, random payloads, requests with a changed part, and changed observations with the original id."""
    while True:
        how = draw.random()
        if how > 0.8:
            data = mutated(draw, seeds[0][1][0][1])
            with suppress(RefoldError, TypeError):
                yield framing.encode(["append", [[identify(port.registry.decode(data)), data]]])
            continue
        if how < 0.15:
            yield draw.randbytes(draw.randrange(1, 60))
        elif how < 0.3:
            body = draw.randbytes(draw.randrange(1, 60))
            yield struct.pack(">I", len(body)) + body
        elif how < 0.4:
            body = cbor2.dumps([draw.choice(OPS), draw.choice(JUNK)])
            yield struct.pack(">I", len(body)) + body
        else:
            body = cbor2.dumps(mutated(draw, draw.choice(seeds)))
            yield struct.pack(">I", len(body)) + body


@pytest.mark.parametrize("seed", range(3))
def test_junk_never_ends_the_owner_and_is_never_stored(
    log: refold.Log, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    cut = str(log.mark("good"))
    port = log.port
    assert isinstance(port, FileLog)
    record = next(record for partition in range(port.partitions) for record in port.read(partition, 0, 99))
    document = next(iter(port.registry)).definition.document
    seeds: list[list[Any]] = [
        ["append", [[record.id, record.data]]], ["register", document], ["flush", None],
        ["mark", {"marked": ["good", cut, 5], "replace": False}],
        ["mark", {"marked": ["new", cut, 5], "replace": True}],
        ["pin", {"epochs": [[0, 1, 1]], "pinned_at": 5}], ["collect", {"dry_run": True, "damaged": False}],
        ["snapshot", None],
    ]  # fmt: skip
    root = log.rebuild().root
    draw = random.Random(seed)
    source = questions(draw, seeds, port)
    answered = 0
    for number in range(400):
        sent = next(source)
        with connect(port.path) as raw:
            try:
                raw.sendall(sent)
                answer = framing.receive(raw)
            except OSError:
                continue
        answered += isinstance(answer, list)
        failed = [each.getMessage() for each in caplog.records if "failed on a question" in each.getMessage()]
        assert failed == [], (seed, number, sent, answer, caplog.text[-2_000:])
    assert answered > 200, seed
    for marked in port.markers():
        assert marked.name.isprintable(), (seed, marked)
        assert parse_cut(marked.cut).log_id == port.log_id, (seed, marked)
    with Client(port.path, PATIENCE_S) as client:
        client.call("flush", None)
    # Different content with its own id is another observation; a repeat counts once.
    for partition in range(port.partitions):
        for each in port.read(partition, 0, port.ends()[partition]):
            assert identify(port.registry.decode(each.data)) == each.id, (seed, each)
    assert log.verify().ok, seed
    assert log.rebuild(cut).root == root, seed
