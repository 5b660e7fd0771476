"""The worker's pages: health, readiness, metrics, what it is asked about entities, and what it is told to do.

    GET  /health                         200 while it commits what there is to commit, 503 and why else (health.py)
    GET  /ready                          200 once every partition it has is caught up, 503 before
    GET  /status                         each partition in full
    GET  /metrics                        for Prometheus
    GET  /state/TYPE/ID?at=&clock=       what `refold state --json` prints
    GET  /history/TYPE/ID?since=&until=  what `refold history --json` prints
    POST /snapshot, /pin, ...            JSON in and out: streams/worker/operations.py
    POST /lookup/1?partition=            CBOR in and out: streams/log/kafka/lookups.py

refold's web server serves them (streams/web/server.py): its bounds, its token and its rules about hosts are theirs.
/health and /ready answer callers without the token too, with their status and one word: a probe needs no more.

A question is answered by the worker that has the partition; another worker asks that one, in one hop. What is to be
done is done by every worker for its own partitions: the one that is asked asks all others, and has an answer when it
has one for each partition. A worker that is asked by another and has not the partition says 503: the group is on the
move, ask again. What one worker asks another is made of the page's name and its checked parts, never of the request's
text. What another worker asks runs in lanes of its own, so two workers cannot wait for each other's last thread.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote, unquote, urlencode

from refold.avro.errors import InputError, RefoldError, StorageError, UnknownEntity
from refold.streams.log.kafka.lookups import CBOR, FORWARDED, LOG, LOOKUP, OTHER_LOG, ask
from refold.streams.web.client import Asker
from refold.streams.web.page import PageResponse, Request, Route, json_answer, json_object, problem
from refold.streams.web.thread_pool import Busy, Lane
from refold.streams.worker.condition import WorkerCondition
from refold.streams.worker.host.health import Status, health_of, readiness_of

FORWARD_TIMEOUT_S = 30.0
# What another worker may take for what it is told to do.
PATIENCE_S = 3_600.0
PARTITION_DIGITS_MAX = 9
ASKED_AT_ONCE = 16
TEXT = "text/plain; version=0.0.4; charset=utf-8"
OWN_PAGES = ("health", "ready", "status", "metrics")
LANES = {"own": 4, "questions": 16, "operations": 8, "forwarded-questions": 16, "forwarded-operations": 8}

Ask = Callable[[str, Mapping[str, str]], object]
"""An entity and the query, to what is said of it, as JSON can hold it."""


class WorkerOperations(Protocol):
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
    the first word of the path. lookup: the answer to one, in CBOR. own_url: where they are. asker: how other workers
    are asked.
    """

    status: Callable[[], Status]
    around: Callable[[], WorkerCondition]
    metrics: Callable[[], bytes]
    partition_of: Callable[[str], int]
    owns: Callable[[int], bool]
    workers: Callable[[], Mapping[int, str]]
    questions: Mapping[str, Ask]
    operations: WorkerOperations
    lookup: Callable[[bytes], bytes]
    log_id: bytes
    own_url: str
    asker: Asker

    @property
    def lanes(self) -> Mapping[str, int]:
        """Probes have threads of their own: they are answered whatever else is asked."""
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
        told = ", ".join(f"/{each}" for each in self.operations.names)
        return problem(404, f"no such page: {request.path[:100]}; there are {asked}, and to be posted to, {told}")

    def _by_method(self, request: Request, method: str, route: Route) -> Route | PageResponse:
        if request.method == method:
            return route
        return problem(405, f"{request.path[:100]} is {'posted to' if method == 'POST' else 'asked for with GET'}")

    def answer(self, request: Request) -> PageResponse:
        """The page behind a request."""
        here, asked = self.log_id.hex(), request.headers.get(LOG)
        if asked is not None and asked != here:
            return problem(OTHER_LOG, f"this is a worker of the log {here}, and {asked:.80} is asked for")
        first, _, rest = request.path.lstrip("/").partition("/")
        try:
            if first in OWN_PAGES and not rest:
                return self._own(first, is_known=request.is_known)
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

    def _own(self, name: str, *, is_known: bool) -> PageResponse:
        if name == "health":
            health = health_of(self.status(), self.around())
            return json_answer(200 if health["healthy"] else 503, health if is_known else _word(health, "healthy"))
        if name == "ready":
            ready = readiness_of(self.status(), self.around())
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
        """Done here, and by all others unless one of them asks."""
        if FORWARDED in request.headers:
            return json_answer(200, {"partitions": self.operations.do(name, given)})
        wanted = self.operations.wanted(name, given)
        others = sorted({*self.workers().values()} - {self.own_url})
        asking = Lane("refold-web-asking", ASKED_AT_ONCE, waiting_max=len(others))
        try:
            answers = [asking.submit(partial(self._told, url, name, given)) for url in others]
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

    def _told(self, url: str, name: str, given: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
        """What another worker did."""
        try:
            answer = ask(
                self.asker, f"{url}/{name}", json.dumps(given).encode(), log_id=self.log_id, timeout_s=PATIENCE_S,
                is_forwarded=True,
            )  # fmt: skip
            said = json.loads(answer.content)
            if answer.status != 200:
                raise (InputError if answer.status == 400 else StorageError)(f"{url}: {said['error']}")
            found: list[dict[str, Any]] = said["partitions"]
            return found
        except OSError as error:
            raise StorageError(f"{url}, which has partitions, does not answer ({error}); ask again") from error
        except (ValueError, LookupError, TypeError) as error:
            raise StorageError(f"{url}: its answer cannot be read ({error}); is it of the same release?") from error


def _word(found: Mapping[str, Any], name: str) -> dict[str, Any]:
    """What a caller without the token is told."""
    return {name: found[name]}


def _number(given: str) -> int:
    if not (given.isascii() and given.isdecimal() and len(given) <= PARTITION_DIGITS_MAX):
        raise InputError(f"partition={given[:40]}: give the number of a partition")
    return int(given)
