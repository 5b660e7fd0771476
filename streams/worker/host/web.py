"""The worker's pages: health, readiness, metrics, what it is asked about entities, and what it is told to do.

    GET  /health                         200 while it commits what there is to commit, 503 and why else (health.py)
    GET  /ready                          200 once every partition it has is caught up, 503 before
    GET  /status                         each partition in full
    GET  /metrics                        for Prometheus
    GET  /state/TYPE/ID?at=&clock=       what `refold state --json` prints
    GET  /history/TYPE/ID?since=&until=  what `refold history --json` prints
    POST /snapshot, /pin, ...            JSON in and out: streams/worker/operations.py
    POST /lookup/1?partition=            CBOR in and out: streams/log/kafka/lookups.py

Python's own threaded server: pages answer whatever Faust's event loop is at, and one may wait for a disk.

A question is answered by the worker that has the partition; another worker asks that one, in one hop. What is to be
done is done by every worker for its own partitions: the one that is asked asks all others, and has an answer when it
has one for each partition. A worker that is asked by another and has not the partition says 503: the group is on the
move, ask again.

It binds to loopback unless told otherwise: there are no passwords here. A page of some web site, open in a browser on
this machine, may post to loopback too; browsers say so (Origin), and that is refused.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Protocol
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from refold.avro.errors import InputError, RefoldError, StorageError, UnknownEntity
from refold.streams.log.kafka.pages import CBOR, FORWARDED, LOG, LOOKUP, OTHER_LOG, Answer, ask
from refold.streams.worker.condition import Surroundings
from refold.streams.worker.host.health import Status, health_of, readiness_of

FORWARD_TIMEOUT_S = 30.0
# What another worker may take for what it is told to do.
PATIENCE_S = 3_600.0
POSTED_BYTES_MAX = 16 << 20
ASKED_AT_ONCE = 16
TEXT = "text/plain; version=0.0.4; charset=utf-8"

Ask = Callable[[str, Mapping[str, str]], object]
"""An entity and the query, to what is said of it, as JSON can hold it."""


class Operations(Protocol):
    """What a worker can be told to do; see streams/worker/operations.py."""

    @property
    def names(self) -> Sequence[str]:
        """What can be asked for."""

    def wanted(self, name: str, given: Mapping[str, Any]) -> set[int]:
        """The partitions that all answers together must have."""

    def do(self, name: str, given: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Do it for the partitions here; {partition, ...} for each."""


class Pages(NamedTuple):
    """What the pages say.

    status: by partition, how the worker stands; raises where it does not fold. around: brokers, group and folder.
    metrics: Prometheus' text. partition_of: that of an entity. owns: whether a partition is here. workers: by
    partition, the URL of the worker that has it, without those that nobody is known to have. questions, operations: by
    the first word of the path. lookup: the answer to one, in CBOR. own_url: where they are.
    """

    status: Callable[[], Status]
    around: Callable[[], Surroundings]
    metrics: Callable[[], bytes]
    partition_of: Callable[[str], int]
    owns: Callable[[int], bool]
    workers: Callable[[], Mapping[int, str]]
    questions: Mapping[str, Ask]
    operations: Operations
    lookup: Callable[[bytes], bytes]
    log_id: bytes
    own_url: str

    def answer(self, target: str, *, is_forwarded: bool) -> Answer:
        """The page behind a request's target."""
        path, query = urlsplit(target)[2:4]
        first, _, rest = path.lstrip("/").partition("/")
        try:
            if first == "health" and not rest:
                health = health_of(self.status(), self.around())
                return _json(200 if health["healthy"] else 503, health)
            if first == "ready" and not rest:
                ready = readiness_of(self.status(), self.around())
                return _json(200 if ready["ready"] else 503, ready)
            if first == "status" and not rest:
                return _json(200, {"partitions": self.status()})
            if first == "metrics" and not rest:
                return Answer(200, self.metrics(), TEXT)
            if first in self.questions and rest:
                entity, given = unquote(rest), dict(parse_qsl(query))
                partition = self.partition_of(entity)
                if self.owns(partition):
                    return _json(200, self.questions[first](entity, given))
                return self._elsewhere(entity, partition, target, None, is_forwarded=is_forwarded)
        except (RefoldError, OSError) as error:
            return _refused(error)
        if path.strip("/") == LOOKUP or first in self.operations.names:
            return _problem(405, f"/{first} is posted to")
        return self._no_page(path)

    def posted(self, target: str, content: bytes, *, is_forwarded: bool) -> Answer:
        """The page behind what was posted to a target."""
        path, query = urlsplit(target)[2:4]
        name = path.strip("/")
        try:
            if name == LOOKUP:
                given = dict(parse_qsl(query)).get("partition")
                if given is None or self.owns(_number(given)):
                    return Answer(200, self.lookup(content), CBOR)
                where = f"partition {given}"
                return self._elsewhere(where, _number(given), target, content, is_forwarded=is_forwarded)
            if name in self.operations.names:
                return self._done(name, _object(content), is_forwarded=is_forwarded)
        except (RefoldError, OSError) as error:
            return _refused(error)
        return self._no_page(path)

    def _no_page(self, path: str) -> Answer:
        asked = ", ".join(f"/{each}" for each in ("health", "ready", "status", "metrics", *self.questions))
        told = ", ".join(f"/{each}" for each in self.operations.names)
        return _problem(404, f"no such page: {path[:100]}; there are {asked}, and to be posted to, {told}")

    def _done(self, name: str, given: Mapping[str, Any], *, is_forwarded: bool) -> Answer:
        """Done here, and by all others unless one of them asks."""
        if is_forwarded:
            return _json(200, {"partitions": self.operations.do(name, given)})
        wanted = self.operations.wanted(name, given)
        others = sorted({*self.workers().values()} - {self.own_url})
        with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
            answers = [pool.submit(_told, url, name, given, self.log_id) for url in others]
            items = self.operations.do(name, given)
            items += [item for each in answers for item in each.result()]
        missing = sorted(wanted - {int(each["partition"]) for each in items})
        if missing:
            numbers = ", ".join(map(str, missing))
            raise StorageError(
                f"/{name}: no worker did it for partition {numbers}, which may be on the move; ask again"
            )
        return _json(200, {"partitions": sorted(items, key=lambda each: int(each["partition"]))})

    def _elsewhere(
        self, what: str, partition: int, target: str, content: bytes | None, *, is_forwarded: bool
    ) -> Answer:
        owner = None if is_forwarded else self.workers().get(partition)
        if owner is None:
            return _problem(503, f"{what}: no worker has its partition at this moment; ask again")
        url = owner + quote(target, safe="/?&=%:@+,.~-_#")
        try:
            return ask(url, content, log_id=self.log_id, timeout_s=FORWARD_TIMEOUT_S, is_forwarded=True)
        except OSError as error:
            return _problem(503, f"{what}: {owner}, which has its partition, does not answer ({error}); ask again")


def _told(url: str, name: str, given: Mapping[str, Any], log_id: bytes) -> Iterable[dict[str, Any]]:
    """What another worker did."""
    try:
        answer = ask(
            f"{url}/{name}", json.dumps(given).encode(), log_id=log_id, timeout_s=PATIENCE_S, is_forwarded=True
        )
        said = json.loads(answer.content)
        if answer.status != 200:
            raise (InputError if answer.status == 400 else StorageError)(f"{url}: {said['error']}")
        found: list[dict[str, Any]] = said["partitions"]
        return found
    except OSError as error:
        raise StorageError(f"{url}, which has partitions, does not answer ({error}); ask again") from error
    except (ValueError, LookupError, TypeError) as error:
        raise StorageError(f"{url}: what it answered cannot be read ({error}); is it of the same release?") from error


def _number(given: str) -> int:
    if not given.isdecimal():
        raise InputError(f"partition={given[:40]}: give a number")
    return int(given)


def _object(content: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(content or b"{}")
    except ValueError as error:
        raise InputError(f"what was posted is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise InputError("what was posted is no JSON object")
    return found


class WebServer:
    """The pages on one address; served from a thread of its own until closed."""

    def __init__(self, host: str, port: int) -> None:
        """Binds at once; port 0: a free one. InputError where the port is taken, or the address not here."""
        try:
            self._server = _Server((host, port), _Handler)
        except (OSError, OverflowError) as error:
            raise InputError(
                f"{host}:{port} cannot be used for the worker's pages: {getattr(error, 'strerror', None) or error}; "
                "give another with --port, or --port 0 for a free one"
            ) from error
        self.url = f"http://{host}:{self._server.server_address[1]}"

    def serve(self, pages: Pages) -> None:
        """Answer from now on."""
        self._server.pages = pages
        threading.Thread(target=self._server.serve_forever, name="refold-web", daemon=True).start()

    def close(self) -> None:
        """Answer no more."""
        if self._server.pages is not None:
            self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # Of two workers on one port the second is to hear of it.
    allow_reuse_port = False
    pages: Pages | None = None

    def handle_error(self, request: Any, client_address: Any) -> None:
        """One that leaves before it has heard the answer is no news."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "refold"
    sys_version = ""
    timeout = 30

    def do_GET(self) -> None:
        if not self._is_of_another_log():
            self._send(self._pages.answer(self.path, is_forwarded=FORWARDED in self.headers))

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "0")
        if "Origin" in self.headers:
            self.close_connection = True
            self._send(_problem(403, "these pages are not for web sites"))
        elif "Transfer-Encoding" in self.headers or not length.isdecimal() or int(length) > POSTED_BYTES_MAX:
            self.close_connection = True
            self._send(_problem(413, f"post at most {POSTED_BYTES_MAX} bytes, and say how many (Content-Length)"))
        else:
            content = self.rfile.read(int(length))
            if not self._is_of_another_log():
                self._send(self._pages.posted(self.path, content, is_forwarded=FORWARDED in self.headers))

    def _is_of_another_log(self) -> bool:
        """Whether another log is asked about, which is refused then."""
        here, asked = self._pages.log_id.hex(), self.headers.get(LOG)
        if asked in (None, here):
            return False
        self._send(_problem(OTHER_LOG, f"this is a worker of the log {here}, and {asked[:80]} is asked for"))
        return True

    @property
    def _pages(self) -> Pages:
        server = self.server
        assert isinstance(server, _Server)
        assert server.pages is not None
        return server.pages

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.media_type)
        self.send_header("Content-Length", str(len(answer.content)))
        self.end_headers()
        self.wfile.write(answer.content)

    def log_message(self, *_: object) -> None:
        """A page asked for every few seconds is no news."""


def _json(status: int, said: object) -> Answer:
    return Answer(status, (json.dumps(said, ensure_ascii=False, separators=(",", ":")) + "\n").encode())


def _refused(error: Exception) -> Answer:
    status = 404 if isinstance(error, UnknownEntity) else 400 if isinstance(error, InputError) else 503
    return _problem(status, error)


def _problem(status: int, why: object) -> Answer:
    return _json(status, {"error": str(why)})
