"""Requests to a log's owner: transmitted errors, bounds, and owners that are really killed or stopped."""

from __future__ import annotations

import os
import signal
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cbor2
import pytest

from refold.avro import errors
from refold.avro.errors import (
    InputError,
    LockedError,
    NotAnswerable,
    OwnerGone,
    OwnerSilent,
    RefoldError,
    StorageError,
    ValidationError,
)
from refold.streams.log.file import framing, server
from refold.streams.log.file.client import Client
from refold.streams.log.file.limits import MESSAGE_BYTES_MAX, FileLogLimits
from refold.streams.log.file.server import serve
from refold.streams.rocks.database import Database
from refold_tests.child import Child

# Long for requests that are answered at once; only tests of silence wait for less.
PATIENCE_S = 60.0

OWNER = """
import signal, sys
from refold.avro.errors import LockedError, ValidationError
from refold.streams.rocks.database import Database
from refold.streams.log.file.server import serve

def answer(op, payload):
    if op == "put":
        batch = log.batch()
        batch.put("observations", payload, b"v")
        log.write(batch, sync=True)
        return log.sequence
    if op == "die":
        signal.raise_signal(signal.SIGKILL)
    raise ValidationError("patch.rate", "must be an int", payload)

log = Database.open(sys.argv[1])
with serve(sys.argv[1], answer):
    print("serving", flush=True)
    sys.stdin.readline()
log.close()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """An empty log without an owner."""
    Database.create(tmp_path / "log").close()
    return tmp_path / "log"


def echo(op: str, payload: object) -> object:
    return [op, payload]


# Questions and answers


def test_requests_are_answered(path: Path) -> None:
    payload = {"text": "ä", "bytes": b"\x00", "list": [1, -1, 2**63, 1.5, None, True], "none": None}
    with serve(path, echo), Client(path, PATIENCE_S) as client:
        assert client.call("first", payload) == ["first", payload]
        assert client.call("second", None) == ["second", None]
        large = os.urandom(5_000_000)
        assert client.call("large", large) == ["large", large]


def test_threads_share_a_client_and_clients_share_an_owner(path: Path) -> None:
    wrong = []

    def ask(client: Client, name: str) -> None:
        for number in range(200):
            if client.call(name, number) != [name, number]:
                wrong.append((name, number))

    with serve(path, echo), Client(path, PATIENCE_S) as shared, Client(path, PATIENCE_S) as other:
        threads = [threading.Thread(target=ask, args=(each, str(n))) for n, each in enumerate([shared, shared, other])]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


@pytest.mark.parametrize("kind", sorted(framing._CLASSES))
def test_every_error_is_transferred(path: Path, kind: str) -> None:
    arguments = {"ValidationError": ("patch.a", "must be an int", {1}), "DamagedRecord": ("why", "observations", 1, 7)}
    made = getattr(errors, kind)(*arguments.get(kind, ("why",)))

    def fail(op: str, payload: object) -> object:
        raise made

    with serve(path, fail), Client(path, PATIENCE_S) as client:
        for _ in range(2):
            with pytest.raises(RefoldError) as caught:
                client.call("x", None)
            assert type(caught.value) is type(made)
            if kind != "ValidationError":
                assert str(caught.value) == str(made)
                assert "why" in str(made)


def test_parts_of_a_validation_error_are_transferred(path: Path) -> None:
    def fail(op: str, payload: object) -> object:
        raise ValidationError("patch.rate", "must be an int", payload)

    with serve(path, fail), Client(path, PATIENCE_S) as client, pytest.raises(ValidationError) as caught:
        client.call("x", "fifty")
    assert (caught.value.field, caught.value.rule, caught.value.given) == (
        "patch.rate",
        "must be an int",
        "fifty",
    )
    assert str(caught.value) == str(ValidationError("patch.rate", "must be an int", "fifty"))


def test_subclass_is_transferred_as_its_known_base_class(path: Path) -> None:
    class Nearer(NotAnswerable):
        pass

    def fail(op: str, payload: object) -> object:
        raise Nearer("ask for less")

    with (
        serve(path, fail),
        Client(path, PATIENCE_S) as client,
        pytest.raises(NotAnswerable, match="ask for less"),
    ):
        client.call("x", None)


@pytest.mark.parametrize("made", [KeyError("lost"), RuntimeError("broken")])
def test_defect_of_the_owner_is_reported_and_it_keeps_serving(path: Path, made: Exception) -> None:
    def fail(op: str, payload: object) -> object:
        if op == "fail":
            raise made
        return object() if op == "odd" else "fine"

    with serve(path, fail), Client(path, PATIENCE_S) as client:
        with pytest.raises(StorageError, match=f"the log's owner failed: {type(made).__name__}"):
            client.call("fail", None)
        with pytest.raises(RefoldError, match="cannot be encoded"):
            client.call("odd", None)
        assert client.call("x", None) == "fine"


# Bounds


def test_messages_are_bounded_on_both_sides(path: Path) -> None:
    limits = FileLogLimits(message_bytes_max=1_000)
    with (
        serve(path, lambda op, payload: bytes(2_000) if op == "much" else op, limits),
        Client(path, PATIENCE_S, limits.message_bytes_max) as client,
    ):
        with pytest.raises(InputError, match="at most 1000"):
            client.call("x", bytes(1_000))
        with pytest.raises(InputError, match="at most 1000"):
            client.call("much", None)
        assert client.call("x", None) == "x"


@pytest.mark.parametrize(
    "sent",
    [
        struct.pack(">I", MESSAGE_BYTES_MAX + 1),
        struct.pack(">I", 3) + b"\xff\xff\xff",
        struct.pack(">I", 1) + cbor2.dumps(7),
        struct.pack(">I", 6) + cbor2.dumps(["op", 1, 2]),
    ],
)
def test_invalid_request_is_refused_and_the_owner_keeps_serving(path: Path, sent: bytes) -> None:
    with serve(path, echo):
        with socket.socket(socket.AF_UNIX) as raw:
            raw.connect(str(path / "owner.sock"))
            raw.sendall(sent)
            with pytest.raises(InputError):
                framing.result_of(framing.receive(raw))
        with Client(path, PATIENCE_S) as client:
            assert client.call("x", 1) == ["x", 1]


def test_invalid_response_is_an_error() -> None:
    for odd in (None, 7, [2, "x"], [1, "SystemExit", ["x"]], [1, "InputError", "x"]):
        with pytest.raises(StorageError, match="invalid answer"):
            framing.result_of(odd)
    with pytest.raises(StorageError, match="ValidationError"):
        framing.result_of([1, "ValidationError", ["too few"]])


def test_connections_are_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shut = server._shut

    def shut_late(connection: socket.socket, how: int) -> None:
        time.sleep(0.02)  # the refused one asks again before its connection has ended
        shut(connection, how)

    monkeypatch.setattr(server, "_shut", shut_late)
    entered, let_go = threading.Semaphore(0), threading.Event()

    def hold(op: str, payload: object) -> object:
        if op == "hold":
            entered.release()
            let_go.wait(PATIENCE_S)
        return [op, payload]

    with (
        serve(path, hold, FileLogLimits(connections_max=2)),
        ThreadPoolExecutor(2) as pool,
        Client(path, PATIENCE_S) as third,
    ):
        held = [pool.submit(_ask_once, path, "hold") for _ in range(2)]
        for _ in held:
            entered.acquire()
        for _ in range(2):
            with pytest.raises(StorageError, match="already"):
                third.call("x", 3)
        let_go.set()
        assert [each.result() for each in held] == [["hold", None]] * 2
        assert third.call("x", 3) == ["x", 3]


def _ask_once(path: Path, op: str) -> object:
    with Client(path, PATIENCE_S) as client:
        return client.call(op, None)


# Where it listens


def test_only_the_user_may_connect(path: Path) -> None:
    with serve(path, echo):
        found = (path / "owner.sock").lstat()
        assert stat.S_ISSOCK(found.st_mode)
        assert stat.S_IMODE(found.st_mode) == 0o600
    assert not (path / "owner.sock").exists()


@pytest.mark.skipif(os.getuid() != 0, reason="becoming another user takes root")
def test_another_user_is_rejected_even_with_a_world_writable_socket(path: Path, child: Callable[..., Child]) -> None:
    code = """
import os, socket, sys
raw = socket.socket(socket.AF_UNIX)
raw.connect(sys.argv[1])
raw.sendall(b"x")
print(raw.recv(1), flush=True)
"""
    with serve(path, echo):
        (path / "owner.sock").chmod(0o666)
        for folder in (path, *path.parents):
            if folder.stat().st_uid == os.getuid() and folder != Path("/"):
                folder.chmod(folder.stat().st_mode | 0o011)
        # Another user who already runs: only the connecting differs.
        connect = code.replace("raw = socket", "os.setuid(65534)\nraw = socket", 1)
        assert child(connect, path / "owner.sock").line() in ("b''", "")


def test_path_too_long_for_a_socket_still_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 120) / "log"
    Database.create(long).close()
    (tmp_path / "t").mkdir()
    for base in (tmp_path / "t", tmp_path / ("y" * 120)):
        monkeypatch.setattr("tempfile.tempdir", str(base))
        with serve(long, echo), Client(long, PATIENCE_S) as client:
            assert client.call("x", 1) == ["x", 1]
            place = (long / "owner.sock").readlink()
            assert stat.S_IMODE(place.parent.stat().st_mode) == 0o700
            # Another temporary folder, as another process may have: the link says where.
            monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
            with Client(long, PATIENCE_S) as other:
                assert other.call("x", 2) == ["x", 2]
        assert not place.exists()
        assert not (long / "owner.sock").is_symlink()


def test_short_folder_writable_by_others_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 120) / "log"
    Database.create(long).close()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("refold.streams.log.file.client._fits", lambda name: "x" * 120 not in str(name))
    (tmp_path / f"refold-{os.getuid()}").mkdir(mode=0o755)
    with pytest.raises(StorageError, match="not a folder of this user alone"):
        serve(long, echo)


# The end of a server


def test_stop_always_completes(path: Path) -> None:
    entered, leave = threading.Event(), threading.Event()

    def slow(op: str, payload: object) -> object:
        entered.set()
        leave.wait()
        return "done"

    before = threading.active_count()
    served = serve(path, slow)
    late, busy = Client(path, PATIENCE_S), Client(path, PATIENCE_S)
    answers: list[object] = []
    asking = threading.Thread(target=lambda: answers.append(busy.call("x", None)))
    asking.start()
    entered.wait()
    stopping = threading.Thread(target=served.stop)
    stopping.start()
    while (path / "owner.sock").exists():
        leave.wait(0.001)
    with pytest.raises(OwnerGone):
        late.call("x", None)
    leave.set()
    stopping.join()
    asking.join()
    served.stop()
    assert answers == ["done"]
    assert threading.active_count() == before
    with pytest.raises(OwnerGone):
        busy.call("x", None)
    busy.close()


def test_stop_does_not_wait_for_idle_or_greedy_clients(path: Path) -> None:
    before = threading.active_count()
    served = serve(path, lambda op, payload: bytes(20_000_000))
    with socket.socket(socket.AF_UNIX) as idle, socket.socket(socket.AF_UNIX) as greedy:
        idle.connect(str(path / "owner.sock"))
        greedy.connect(str(path / "owner.sock"))
        # It requests much and reads none of it, and has sent half of its next request.
        greedy.sendall(framing.encode(["x", None]) + b"\x00\x00")
        assert greedy.recv(1) == b"\x01"
        served.stop(grace_s=0.01)
    assert threading.active_count() == before


# Owners that end


def test_missing_listener_is_reported(path: Path, tmp_path: Path) -> None:
    for place in (path, tmp_path / "nothing"):
        with Client(place, PATIENCE_S) as client, pytest.raises(OwnerGone):
            client.call("x", None)


def test_lock_of_a_killed_owner_is_taken_over(path: Path, child: Callable[..., Child]) -> None:
    owner = child(OWNER, path)
    assert owner.line() == "serving"
    with Client(path, PATIENCE_S) as client:
        assert client.call("put", b"a") == 1
        with pytest.raises(ValidationError, match=r"patch\.rate"):
            client.call("check", "x")
        with pytest.raises(LockedError):
            Database.open(path)
        with pytest.raises(OwnerGone):
            client.call("die", None)
        owner.kill()
        assert (path / "owner.sock").exists()
        with pytest.raises(OwnerGone):
            client.call("put", b"b")

        with Database.open(path) as log, serve(path, lambda op, payload: log.sequence):
            assert log.get("observations", b"a") == b"v"
            assert client.call("x", None) == 1

        successor = child(OWNER, path)
        assert successor.line() == "serving"
        assert client.call("put", b"b") == 2
        successor.say("stop")
        assert successor.end() == 0
    with Database.open(path) as log:
        assert [key for key, _ in log.scan("observations")] == [b"a", b"b"]


@pytest.mark.faults
def test_acknowledged_writes_of_a_killed_owner_exist(
    path: Path, child: Callable[..., Child], fault_rounds: int
) -> None:
    acknowledged = []
    for turn in range(min(fault_rounds, 10)):
        owner = child(OWNER, path)
        assert owner.line() == "serving"
        killer = threading.Timer(0.01 * turn, owner.process.kill)
        killer.start()
        with Client(path, PATIENCE_S) as client:
            number = 0
            while True:
                key = b"%02d-%06d" % (turn, number)
                try:
                    client.call("put", key)
                except OwnerGone:
                    break
                acknowledged.append(key)
                number += 1
        killer.join()
        owner.kill()
    with Database.open(path) as log:
        assert set(acknowledged) <= {key for key, _ in log.scan("observations")}


def test_stopped_owner_is_reported_as_silent(path: Path, child: Callable[..., Child]) -> None:
    owner = child(OWNER, path)
    assert owner.line() == "serving"
    with Client(path, 0.3) as known, Client(path, 0.3) as new:
        assert known.call("put", b"a") == 1
        owner.signal(signal.SIGSTOP)
        for client in (known, new, known):
            with pytest.raises(OwnerSilent, match=r"did not answer in 0\.3 s"):
                client.call("put", b"b")
        with pytest.raises(LockedError):
            Database.open(path)
        owner.signal(signal.SIGCONT)
        # Late answers to earlier requests are not taken for the answer to this one.
        patient = Client(path, PATIENCE_S)
        with pytest.raises(ValidationError, match="'mine'"):
            patient.call("check", "mine")
        patient.close()
        with pytest.raises(ValidationError, match="'yours'"):
            known.call("check", "yours")


@pytest.mark.parametrize("sent", [struct.pack(">I", 2**32 - 1), struct.pack(">I", 3) + b"\xff\xff\xff"])
def test_garbled_response_does_not_raise_an_input_error(path: Path, sent: bytes) -> None:
    """An InputError would blame the request, and drop it."""
    with socket.socket(socket.AF_UNIX) as listener, Client(path, PATIENCE_S) as client:
        listener.bind(str(path / "owner.sock"))
        listener.listen()

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                framing.receive(connection)
                connection.sendall(sent)
                connection.recv(1)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(StorageError, match="answered is no message"):
            client.call("x", None)
        thread.join()


def test_trickling_owner_times_out(path: Path) -> None:
    place = path / "owner.sock"
    with socket.socket(socket.AF_UNIX) as listener, Client(path, 0.3) as client:
        listener.bind(str(place))
        listener.listen()
        ended = threading.Event()

        def trickle() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(struct.pack(">I", 1_000_000))
                while not ended.wait(0.05):
                    try:
                        connection.sendall(b"x")
                    except OSError:
                        return

        thread = threading.Thread(target=trickle)
        thread.start()
        with pytest.raises(OwnerSilent):
            client.call("x", None)
        ended.set()
        thread.join()
