"""The worker's pages: health, readiness, metrics, questions about entities, and operations.

    GET  /health                         200 while it commits pending work, else 503 and why (health.py)
    GET  /ready                          200 once every partition it has is caught up, 503 before
    GET  /status                         each partition in full
    GET  /metrics                        for Prometheus
    GET  /state/TYPE/ID?at=&clock=       the same as `refold state --json`
    GET  /history/TYPE/ID?since=&until=  the same as `refold history --json`
    POST /snapshot, /pin, ...            JSON in and out: streams/worker/operations.py
    POST /lookup/1?partition=            CBOR in and out: streams/log/kafka/lookups.py

refold's web server serves them (streams/web/server.py), with its bounds, its token and its rules about hosts. /health
and /ready also answer callers without the token, with their status and one word: a probe needs no more.

The owner of the partition answers a question; another worker forwards it to the owner, in one hop. Every worker runs an
operation for its own partitions: the called worker forwards it to all others, and answers when it has an answer for
each partition. A worker that does not own the partition of a forwarded question answers 503: the partitions are moving,
ask again. A forwarded request is made from the page's name and its checked parts, never from the request's text.
Requests of other workers have their own lanes, so two workers cannot wait for each other's last thread.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote, unquote, urlencode

from refold.avro.errors import InputError, RefoldError, StorageError, UnknownEntity
from refold.streams.log.kafka.lookups import CBOR, FORWARDED, LOG, LOOKUP, OTHER_LOG, ask
from refold.streams.web.client import PagesClient
from refold.streams.web.page import PageResponse, Request, Route, json_answer, json_object, problem
from refold.streams.web.server import Busy, Lane
from refold.streams.worker.condition import WorkerCondition
from refold.streams.worker.host.health import Status, health_of, readiness_of

FORWARD_TIMEOUT_S = 30.0
# How long another worker may take for an operation.
PATIENCE_S = 3_600.0
PARTITION_DIGITS_MAX = 9
ASKED_AT_ONCE = 16
TEXT = "text/plain; version=0.0.4; charset=utf-8"
OWN_PAGES = ("health", "ready", "status", "metrics")
LANES = {"own": 4, "questions": 16, "operations": 8, "forwarded-questions": 16, "forwarded-operations": 8}

Ask = Callable[[str, Mapping[str, str]], object]
"""(entity, query) -> the answer, as JSON can hold it."""


class WorkerOperations(Protocol):
    """The operations of a worker; see streams/worker/operations.py."""

    @property
    def names(self) -> Sequence[str]:
        """The names of the operations."""

    def wanted(self, name: str, given: Mapping[str, Any]) -> set[int]:
        """The partitions that all answers together must have."""

    def do(self, name: str, given: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Do it for the partitions here; {partition, ...} for each."""


class Pages(NamedTuple):
    """The content of the pages.

    Attributes:
        status: Returns the status by partition; raises if the worker does not fold.
        condition: Returns the condition of brokers, group and folder.
        metrics: Returns the metrics as Prometheus' text.
        partition_of: Returns the partition of an entity.
        owns: Returns whether this worker owns a partition.
        workers: Returns the URL of the owner by partition, without partitions whose owner is unknown.
        questions, operations: The questions and the operations, by the first word of the path.
        lookup: Answers a look-up; the question and the answer are in CBOR.
        log_id: The log's id, 16 bytes.
        own_url: The URL of these pages.
        asker: Sends requests to other workers.
    """

    status: Callable[[], Status]
    condition: Callable[[], WorkerCondition]
    metrics: Callable[[], bytes]
    partition_of: Callable[[str], int]
    owns: Callable[[int], bool]
    workers: Callable[[], Mapping[int, str]]
    questions: Mapping[str, Ask]
    operations: WorkerOperations
    lookup: Callable[[bytes], bytes]
    log_id: bytes
    own_url: str
    asker: PagesClient

    @property
    def lanes(self) -> Mapping[str, int]:
        """Probes have their own threads: they are answered whatever other requests run."""
        return LANES

    def route(self, request: Request) -> Route | PageResponse:
        """Which threads answer, or 404 or 405."""
        first, _, rest = request.path.lstrip("/").partition("/")
        name = request.path.strip("/")
        forwarded = "forwarded-" if FORWARDED in request.headers else ""
        if first in OWN_PAGES and not rest:
            return self._by_method(request, "GET", Route("own", is_open=first in ("health", "ready")))
        if first in self.questions and rest:
            return self._by_method(request, "GET", Route(f"{forwarded}questions"))
        if name == LOOKUP:
            return self._by_method(request, "POST", Route(f"{forwarded}questions"))
        if name in self.operations.names:
            return self._by_method(request, "POST", Route(f"{forwarded}operations"))
        asked = ", ".join(f"/{each}" for each in (*OWN_PAGES, *self.questions))
        posted = ", ".join(f"/{each}" for each in self.operations.names)
        return problem(404, f"no such page: {request.path[:100]}; there are {asked}, and to be posted to, {posted}")

    def _by_method(self, request: Request, method: str, route: Route) -> Route | PageResponse:
        if request.method == method:
            return route
        return problem(405, f"{request.path[:100]} is {'posted to' if method == 'POST' else 'asked for with GET'}")

    def answer(self, request: Request) -> PageResponse:
        """Return the response to a request."""
        here, asked = self.log_id.hex(), request.headers.get(LOG)
        if asked is not None and asked != here:
            return problem(OTHER_LOG, f"this is a worker of the log {here}, and {asked:.80} is asked for")
        first, _, rest = request.path.lstrip("/").partition("/")
        try:
            if first in OWN_PAGES and not rest:
                return self._run_here(first, is_known=request.is_known)
            if first in self.questions:
                return self._question(first, unquote(rest), request)
            if request.path.strip("/") == LOOKUP:
                return self._look_up(request)
            return self._operation(first, json_object(request.content), request)
        except UnknownEntity as error:
            return problem(404, error)
        except InputError as error:
            return problem(400, error)
        except (RefoldError, OSError) as error:
            return problem(503, error)

    def _run_here(self, name: str, *, is_known: bool) -> PageResponse:
        if name == "health":
            health = health_of(self.status(), self.condition())
            return json_answer(200 if health["healthy"] else 503, health if is_known else _word(health, "healthy"))
        if name == "ready":
            ready = readiness_of(self.status(), self.condition())
            return json_answer(200 if ready["ready"] else 503, ready if is_known else _word(ready, "ready"))
        if name == "status":
            return json_answer(200, {"partitions": self.status()})
        return PageResponse(200, self.metrics(), TEXT)

    def _question(self, name: str, entity: str, request: Request) -> PageResponse:
        partition = self.partition_of(entity)
        if self.owns(partition):
            return json_answer(200, self.questions[name](entity, request.query))
        return self._elsewhere(entity, partition, f"{name}/{quote(entity)}", request.query, None, request)

    def _look_up(self, request: Request) -> PageResponse:
        given = request.query.get("partition")
        if given is None or self.owns(_number(given)):
            return PageResponse(200, self.lookup(request.content), CBOR)
        number = _number(given)
        return self._elsewhere(
            f"partition {number}", number, LOOKUP, {"partition": str(number)}, request.content, request
        )

    def _operation(self, name: str, given: Mapping[str, Any], request: Request) -> PageResponse:
        """Run the operation here, and on all other workers unless one of them forwarded it."""
        if FORWARDED in request.headers:
            return json_answer(200, {"partitions": self.operations.do(name, given)})
        wanted = self.operations.wanted(name, given)
        others = sorted({*self.workers().values()} - {self.own_url})
        asking = Lane("refold-web-asking", ASKED_AT_ONCE, waiting_max=len(others))
        try:
            answers = [asking.submit(partial(self._forwarded, url, name, given)) for url in others]
            items = self.operations.do(name, given)
            items += [item for each in answers for item in each.result()]
        except Busy as error:
            raise StorageError(f"/{name}: too many workers to call at once") from error
        finally:
            asking.close()
        missing = sorted(wanted - {int(each["partition"]) for each in items})
        if missing:
            numbers = ", ".join(map(str, missing))
            raise StorageError(
                f"/{name}: no worker did it for partition {numbers}, which may be moving to another worker; ask again"
            )
        return json_answer(200, {"partitions": sorted(items, key=lambda each: int(each["partition"]))})

    def _elsewhere(
        self, what: str, partition: int, path: str, query: Mapping[str, str], content: bytes | None, request: Request
    ) -> PageResponse:
        """The answer of the worker that has a partition. path: quoted already."""
        owner = None if FORWARDED in request.headers else self.workers().get(partition)
        if owner is None:
            return problem(503, f"{what}: no worker has its partition at this moment; ask again")
        url = f"{owner}/{path}" + (f"?{urlencode(query)}" if query else "")
        try:
            return ask(
                self.asker, url, content, log_id=self.log_id, timeout_s=FORWARD_TIMEOUT_S, is_forwarded=True,
                media_type=CBOR,
            )  # fmt: skip
        except OSError as error:
            return problem(503, f"{what}: {owner}, which has its partition, does not answer ({error}); ask again")

    def _forwarded(self, url: str, name: str, given: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
        """Return another worker's answer."""
        try:
            answer = ask(
                self.asker, f"{url}/{name}", json.dumps(given).encode(), log_id=self.log_id, timeout_s=PATIENCE_S,
                is_forwarded=True,
            )  # fmt: skip
            body = json.loads(answer.content)
            if answer.status != 200:
                raise (InputError if answer.status == 400 else StorageError)(f"{url}: {body['error']}")
            found: list[dict[str, Any]] = body["partitions"]
            return found
        except OSError as error:
            raise StorageError(f"{url}, which has partitions, does not answer ({error}); ask again") from error
        except (ValueError, LookupError, TypeError) as error:
            raise StorageError(f"{url}: its answer cannot be read ({error}); is it of the same release?") from error


def _word(found: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the answer for a caller without the token."""
    return {name: found[name]}


def _number(given: str) -> int:
    if not (given.isascii() and given.isdecimal() and len(given) <= PARTITION_DIGITS_MAX):
        raise InputError(f"partition={given[:40]}: give the number of a partition")
    return int(given)
