"""The worker's pages over HTTP: their content, and how a request reaches the worker that can answer it."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest

from refold.avro.errors import InputError, StorageError, UnknownEntity
from refold.streams.log.kafka.lookups import FORWARDED, LOG
from refold.streams.web.client import PagesClient
from refold.streams.web.guard import Token
from refold.streams.web.listening import Access
from refold.streams.web.server import WebServer
from refold.streams.worker.condition import healthy
from refold.streams.worker.host.health import STALLED_S, condition_json
from refold.streams.worker.host.metrics import About, metrics_of
from refold.streams.worker.host.pages import Pages
from refold.testing.kafka.settings import certificates

STATUS: dict[int, dict[str, Any]] = {
    0: {"state": "folding", "lag": 7, "caught_up": False, "batches": 3, "observations": 12, "waits_for": "it"},
    1: {"state": "starting"},
    2: {"state": "standby", "offset": 40, "lag": 2, "caught_up": True},
}
AROUND = condition_json(healthy())
ABOUT = About("shop", 8, Path("/"), "1.2.3")
Serve = Callable[..., str]


PARTITIONS = {"a": 0, "b": 1, "c": 2}
"""The partitions of the workers with these names."""


def partition_of(entity: str) -> int:
    """Return the partition by the first letter of the entity's id."""
    return PARTITIONS.get(entity.partition("/")[2][:1], 7)


class Noting:
    """Notes a worker's commands, and runs them for its own partition; "refuse" is refused."""

    names = ("seal", "refuse")

    def __init__(self, name: str) -> None:
        self.name = name

    def wanted(self, name: str, given: Mapping[str, Any]) -> set[int]:
        return set(given["partitions"])

    def do(self, name: str, given: Mapping[str, Any]) -> list[dict[str, Any]]:
        if name == "refuse":
            raise InputError(f"{self.name} will not")
        return [{"partition": PARTITIONS[self.name], "by": self.name, **given}]


def said_by(name: str) -> Callable[[str, Mapping[str, str]], object]:
    def ask(entity: str, given: Mapping[str, str]) -> object:
        if entity.endswith("unknown"):
            raise UnknownEntity(f"{entity}: nothing")
        return {"by": name, "entity": entity, **given}

    return ask


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serves a worker that owns the entities whose ids begin with its name; returns its URL."""
    with ExitStack() as ending:

        def start(name: str, owner: str | None = None, access: Access | None = None, **given: Any) -> str:
            server = WebServer("127.0.0.1", 0, access)
            ending.callback(server.close)
            pages = Pages(
                status=lambda: STATUS,
                condition=healthy,
                metrics=metrics_of(lambda: STATUS, healthy, ABOUT),
                partition_of=partition_of,
                owns=lambda partition: partition == PARTITIONS.get(name),
                workers=lambda: {} if owner is None else dict.fromkeys(PARTITIONS.values(), owner),
                questions={"state": said_by(name), "history": said_by(name)},
                operations=Noting(name),
                lookup=lambda content: name.encode() + content,
                log_id=b"log",
                own_url=server.url,
                asker=PagesClient(),
            )
            server.serve(pages._replace(**given))
            return server.url

        yield start


def get(url: str) -> tuple[int, Any]:
    """Return status and content of the page."""
    try:
        with urlopen(url, timeout=20) as found:
            content, status = found.read(), found.status
    except HTTPError as error:
        with error:
            content, status = error.read(), error.code
    return status, json.loads(content)


def folding(**given: Any) -> dict[str, Any]:
    return {"state": "folding", "lag": 0, "caught_up": True, "uncommitted_s": 0.0, "waits_for": "", **given}


def test_health_readiness_and_status(serve: Serve) -> None:
    url = serve("a")
    shown: dict[str, Any] = {"0": {"state": "folding", "lag": 7, "waits_for": "it"}, "1": {"state": "starting"}}
    shown["2"] = {"state": "standby", "offset": 40, "lag": 2}
    assert get(f"{url}/health") == (200, {"healthy": True, **AROUND, "partitions": shown})
    assert get(f"{url}/ready") == (503, {"ready": False, "why": "not caught up: partition 0, 1", **AROUND})
    assert get(f"{url}/status") == (200, {"partitions": {str(number): each for number, each in STATUS.items()}})
    assert get(f"{serve('b', status=lambda: {2: folding()})}/ready") == (200, {"ready": True, **AROUND})
    nothing = {"ready": False, "why": "it has no partitions yet", **AROUND}
    assert get(f"{serve('c', status=dict)}/ready") == (503, nothing)


def test_worker_that_does_not_commit_its_records_is_not_healthy(serve: Serve) -> None:
    def health(**given: Any) -> tuple[int, Any]:
        return get(f"{serve('a', status=lambda: {3: folding(), 5: folding(lag=8, **given)})}/health")

    assert health(uncommitted_s=STALLED_S)[0] == 200
    status, said = health(uncommitted_s=STALLED_S + 1)
    assert (status, said["healthy"], said["partitions"]["5"]["lag"]) == (503, False, 8)
    assert "partition 5 has had 8" in said["why"]
    assert "partition 3" not in said["why"]
    # Nothing that a restart would fix.
    assert health(uncommitted_s=STALLED_S + 1, waits_for="the registry")[0] == 200
    # A long time since the last commit does not matter if there was nothing to commit.
    assert health(uncommitted_s=0.5, last_commit_s=9_000.0)[0] == 200


def test_failed_fold_is_not_healthy(serve: Serve) -> None:
    def failed() -> Mapping[int, Any]:
        raise StorageError("the fold has ended")

    assert get(f"{serve('a', status=failed)}/health") == (503, {"error": "the fold has ended"})


def test_metrics_are_current_and_have_units(serve: Serve) -> None:
    with urlopen(f"{serve('a')}/metrics", timeout=20) as found:
        text = found.read().decode()
        assert found.headers["Content-Type"].startswith("text/plain")
    lines = set(text.splitlines())
    assert {
        'refold_worker_info{log="shop",version="1.2.3"} 1.0',
        'refold_log_partitions{log="shop"} 8.0',
        'refold_healthy{log="shop"} 1.0',
        'refold_ready{log="shop"} 0.0',
        'refold_lag_records{log="shop",partition="0"} 7.0',
        'refold_caught_up{log="shop",partition="0"} 0.0',
        'refold_registry_waiting{log="shop",partition="0"} 1.0',
        'refold_batches_total{log="shop",partition="0"} 3.0',
        'refold_observations_total{log="shop",partition="0"} 12.0',
        'refold_partitions{log="shop",state="folding"} 1.0',
        'refold_partitions{log="shop",state="starting"} 1.0',
        'refold_partitions{log="shop",state="standby"} 1.0',
        'refold_standby_lag_records{log="shop",partition="2"} 2.0',
        'refold_standby_offset{log="shop",partition="2"} 40.0',
    } <= lines
    disk = [line for line in lines if line.startswith("refold_disk_free_bytes{")]
    assert len(disk) == 1
    assert float(disk[0].split()[1]) > 0
    assert sorted(line for line in lines if 'partition="1"' in line) == [
        'refold_damaged_waiting{log="shop",partition="1"} 0.0', 'refold_partition_owned{log="shop",partition="1"} 0.0'
    ]  # fmt: skip


def test_lookup_is_answered_by_its_owner_in_one_hop(serve: Serve) -> None:
    last = serve("c")
    owner = serve("b", owner=last)
    url = serve("a", owner=owner)
    assert get(f"{url}/state/document/a1?at=v3&clock=observed") == (
        200,
        {"by": "a", "entity": "document/a1", "at": "v3", "clock": "observed"},
    )
    assert get(f"{url}/history/document/b%C3%A9?since=%40m") == (
        200,
        {"by": "b", "entity": "document/bé", "since": "@m"},
    )
    assert get(f"{url}/state/document/b-unknown") == (404, {"error": "document/b-unknown: nothing"})
    # b knows c, but the request is already forwarded by another worker.
    status, said = get(f"{url}/state/document/c1")
    assert (status, "ask again" in said["error"]) == (503, True)


def test_lookup_with_no_or_a_gone_owner_says_so(serve: Serve) -> None:
    assert get(f"{serve('a')}/state/document/x")[0] == 503
    gone = WebServer("127.0.0.1", 0)
    gone.close()
    status, said = get(f"{serve('b', owner=gone.url)}/state/document/c1")
    assert (status, "does not answer" in said["error"]) == (503, True)


def test_unknown_path_lists_the_pages(serve: Serve) -> None:
    status, said = get(f"{serve('a')}/nothing")
    assert (status, "/state" in said["error"]) == (404, True)


def test_client_that_leaves_before_the_answer_is_not_logged(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    url = serve("a")
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as left:
        left.sendall(b"GET /health HTTP/1.1\r\n")
        left.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, and no end
    assert get(f"{url}/health")[0] == 200
    assert capsys.readouterr().err == ""


def test_port_in_use_is_reported() -> None:
    taken = WebServer("127.0.0.1", 0)
    try:
        port = int(taken.url.rpartition(":")[2])
        with pytest.raises(InputError, match=r"cannot be used.*--port"):
            WebServer("127.0.0.1", port)
    finally:
        taken.close()


def post(url: str, content: bytes, **headers: str) -> tuple[int, bytes]:
    """Status and content of a page to which something is posted."""
    try:
        with urlopen(Request(url, content, headers), timeout=20) as found:
            return found.status, found.read()
    except HTTPError as error:
        with error:
            return error.code, error.read()


def get_json(url: str, **said: Any) -> tuple[int, Any]:
    status, content = post(url, json.dumps(said).encode())
    return status, json.loads(content)


def test_operation_is_done_by_every_worker_for_its_partitions(serve: Serve) -> None:
    other = serve("b")
    url = serve("a", workers=lambda: {0: "http://127.0.0.1:9", 1: other})
    with_own = serve("a", workers=lambda: {1: other})
    assert get_json(f"{with_own}/seal", partitions=[0, 1], x=[None]) == (
        200,
        {"partitions": [{"partition": number, "by": name, "partitions": [0, 1], "x": [None]}
                        for number, name in enumerate("ab")]},
    )  # fmt: skip
    status, said = get_json(f"{with_own}/seal", partitions=[0, 1, 2])
    assert (status, "partition 2" in said["error"], "ask again" in said["error"]) == (503, True, True)
    assert get_json(f"{with_own}/refuse", partitions=[]) == (400, {"error": "a will not"})
    # A worker that owned partitions is gone: nobody reports that it did its part.
    status, said = get_json(f"{url}/seal", partitions=[0, 1])
    assert (status, "127.0.0.1:9" in said["error"]) == (503, True)
    # A request forwarded by another worker is not forwarded again.
    status, content = post(f"{url}/seal", b'{"partitions": [0, 1]}', **{FORWARDED: "1"})
    assert (status, [each["by"] for each in json.loads(content)["partitions"]]) == (200, ["a"])


def test_lookup_is_forwarded_to_the_owner_of_the_partition(serve: Serve) -> None:
    other = serve("b")
    url = serve("a", owner=other)
    assert post(f"{url}/lookup/1?partition=0", b"?") == (200, b"a?")
    assert post(f"{url}/lookup/1?partition=1", b"?") == (200, b"b?")
    assert post(f"{url}/lookup/1", b"?") == (200, b"a?")
    assert post(f"{url}/lookup/1?partition=2", b"?")[0] == 503
    assert post(f"{url}/lookup/1?partition=x", b"?")[0] == 400
    assert post(f"{url}/lookup/2?partition=0", b"?")[0] == 404


def test_invalid_request_is_refused(serve: Serve) -> None:
    url = serve("a")
    assert post(f"{url}/seal", b'{"partitions": []}', Origin="https://example.org")[0] == 403
    assert post(f"{url}/seal", b"[]")[0] == 400
    assert post(f"{url}/seal", b"{")[0] == 400
    assert post(f"{url}/nothing", b"{}")[0] == 404
    assert get(f"{url}/seal")[0] == 405


def test_worker_of_another_log_says_so(serve: Serve) -> None:
    """A client with a loopback URL may be on another machine than the worker."""
    url = serve("a")
    for log, expected in ((b"log", 200), (b"other", 409)):
        assert post(f"{url}/lookup/1?partition=0", b"?", **{LOG: log.hex()})[0] == expected
        assert post(f"{url}/seal", b'{"partitions": [0]}', **{LOG: log.hex()})[0] == expected
    forwarding = serve("b", owner=url, log_id=b"other")
    assert get(f"{forwarding}/state/document/a1")[0] == 409


# Untrusted clients


def test_forwarded_request_is_built_from_validated_parts(serve: Serve) -> None:
    """A target that names a server is refused; one with unusual characters reaches the owner as the same entity."""
    heard: list[str] = []

    def said(entity: str, given: Mapping[str, str]) -> object:
        heard.append(entity)
        return dict(given)

    owner = serve("b", questions={"state": said})
    url = serve("a", owner=owner)
    host, _, port = url.removeprefix("http://").partition(":")
    for target in ("http://evil.example/state/document/b1", f"{owner}/state/document/b1", "state/document/b1"):
        with socket.create_connection((host, int(port))) as raw:
            raw.sendall(f"GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
            assert raw.recv(100).startswith(b"HTTP/1.0 400" if target.startswith("state") else b"HTTP/1.1 400"), target
    for entity in ("document/b é/../?x=1#y&z", "document/b%2F", "document/b@evil.example/", "document/b//c;d\\e"):
        assert get(f"{url}/state/{quote(entity)}?at={quote('@a b&c')}") == (200, {"at": "@a b&c"})
        assert heard.pop() == entity


@pytest.mark.parametrize("partition", ["9" * 5_000, "-1", "1e3", "٣", "%00", "0x1", "1.5", "9" * 10])
def test_invalid_number_is_refused(serve: Serve, partition: str) -> None:
    assert post(f"{serve('a')}/lookup/1?partition={quote(partition)}", b"?")[0] == 400


@pytest.mark.parametrize(
    "posted",
    [b"[" * 100_000, b'{"partitions": ' + b"[" * 5_000 + b"]" * 5_000 + b"}", b'{"a": ' * 5_000, b'{"a": 1e',
     b'{"partitions": ' + b"9" * 5_000 + b"}", b'{"partitions": NaN}', b"\xff\xfe", b"nul", b'"' + b'\\"' * 50_000],
)  # fmt: skip
def test_json_from_strangers_is_refused_in_one_line(
    serve: Serve, posted: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    status, content = post(f"{serve('a')}/seal", posted)
    assert status == 400
    assert "Traceback" not in content.decode()
    assert caplog.text == ""


def test_brackets_in_texts_do_not_count_as_depth(serve: Serve) -> None:
    text = "[{" * 500 + '\\"['
    assert get_json(f"{serve('a')}/seal", partitions=[0], x=text)[0] == 200
    assert get_json(f"{serve('a')}/seal", partitions=[0], x=[[[[text]]]])[0] == 200


def test_probes_need_no_token_and_workers_query_each_other_with_it(serve: Serve) -> None:
    token = Token("0123456789abcdef")
    given = {"access": Access(token=token), "asker": PagesClient(token)}
    other = serve("b", **given)
    url = serve("a", owner=other, **given)
    assert [get(f"{url}/{name}") for name in ("health", "ready")] == [
        (200, {"healthy": True}),
        (503, {"ready": False}),
    ]
    for path in ("status", "metrics", "state/document/a1", "seal", "nothing"):
        assert get(f"{url}/{path}")[0] == 401, path
    asker = PagesClient(token)
    assert asker.ask(f"{url}/metrics", None, {}, 60).status == 200
    assert json.loads(asker.ask(f"{url}/state/document/b1", None, {}, 60).content)["by"] == "b"
    assert asker.ask(f"{url}/health", None, {}, 60).content.count(b"partitions") == 1
    without = serve("a", owner=other, access=Access(token=token))
    assert asker.ask(f"{without}/state/document/b1", None, {}, 60).status == 401


def test_tls_workers_query_each_other(serve: Serve, tmp_path: Path) -> None:
    made = certificates(tmp_path)
    pem = str(made.server)
    given = {"access": Access(certificate=pem, key=pem), "asker": PagesClient(ca=str(made.authority))}
    url = serve("a", owner=serve("b", **given), **given)
    asker = PagesClient(ca=str(made.authority))
    assert json.loads(asker.ask(f"{url}/state/document/b1", None, {}, 60).content)["by"] == "b"
    assert asker.ask(f"{url}/lookup/1?partition=1", b"?", {}, 60).content == b"b?"
