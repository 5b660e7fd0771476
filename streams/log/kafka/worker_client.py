"""A client's requests to a log's workers, over their pages.

The workers are found through the members of their group (lookups.py). If the URL of one worker is given, only that one
is asked: it forwards what another worker must answer. A look-up without an answer returns None, and the caller reads
the log instead. A command that only a worker can run fails with an error that names what is missing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import cbor2
from confluent_kafka.admin import AdminClient

from refold.avro.errors import InputError, NotAnswerable, StorageError
from refold.streams.deadline import Deadline
from refold.streams.log.kafka.clients import Clients
from refold.streams.log.kafka.lookups import (
    CBOR,
    LOOKUP,
    OTHER_LOG,
    IdMatches,
    IndexedHistory,
    IndexedRecords,
    TableClient,
    WorkerCommands,
    ask,
    parse_arrivals,
    parse_pairs,
    parse_places,
    parse_records,
    parse_totals,
    read_answer,
    workers_of,
)
from refold.streams.log.kafka.topics import Topics
from refold.streams.log.kafka.url import Address, merged
from refold.streams.log.port import Checkpoint, Mismatch, OtherTables
from refold.streams.snapshots.garbage import Collected, collected_of
from refold.streams.snapshots.manifest import Epoch
from refold.streams.table import keys
from refold.streams.table.checkpoints import checkpoint_of
from refold.streams.web.client import PagesClient, pages_client_of
from refold.streams.web.page import PageResponse

WORKER_ENVIRONMENT = "REFOLD_WORKER"
KNOWN_S = 5.0
LOOKUP_S = 5.0
# How long a worker may take to run a command.
PATIENCE_S = 3_600.0
RETRY_S = 0.1


class Workers:
    """The addresses of a log's workers' pages.

    Args:
        address: the log.
        config: Kafka client settings.
        url: the pages of one worker, if only that one is to be asked.
        asker: the HTTP client; by default one with the token and the authority of this process's environment.

    log_id must be set by the code that opens the log, before the first request.

    Raises:
        InputError: `url` is not a URL.
    """

    def __init__(
        self,
        address: Address,
        config: Mapping[str, str] | None,
        url: str | None = None,
        asker: PagesClient | None = None,
    ) -> None:
        if url is not None and not url.startswith(("http://", "https://")):
            raise InputError(f"{url}: a worker's pages are given as http://HOST:PORT or https://HOST:PORT")
        self.asker = asker or pages_client_of()
        self.log = address.url
        self.log_id = b""
        self.given = None if url is None else url.rstrip("/")
        self._clients = Clients(merged(address, config), address.prefix)
        self._topics = Topics(address.prefix)
        self._admin: AdminClient | None = None
        self._owners: dict[int, str] = {}
        self._known_at_s: float | None = None

    def owner(self, partition: int) -> str | None:
        """Return the URL to ask about a partition; None if no worker owns it."""
        return self.given or self._by_partition().get(partition)

    def all(self) -> list[str]:
        """Return the URLs to try in turn until one answers."""
        return [self.given] if self.given else sorted(set(self._by_partition().values()))

    def forget(self) -> None:
        """Read the group's members again at the next request, because a worker did not answer."""
        self._known_at_s = None

    def absent(self, why: str) -> NotAnswerable:
        """Return the error for a request that no worker answers."""
        if self.given:
            return NotAnswerable(f"no worker answers at {self.given} ({why}): start `refold worker` there, or give "
                                 "another one's pages with --worker URL")  # fmt: skip
        return NotAnswerable(f"no worker of {self.log} answers ({why}): start `refold worker`, or give the pages of "
                             "one that this machine reaches with --worker URL")  # fmt: skip

    def _by_partition(self) -> Mapping[int, str]:
        now = time.monotonic()
        if self._known_at_s is None or now - self._known_at_s > KNOWN_S:
            self._admin = self._admin or self._clients.admin()
            try:
                self._owners = workers_of(self._admin, self._topics.group, self._topics.observations)
            except StorageError:  # a client that may not describe the group knows no worker
                self._owners = {}
            self._known_at_s = now
        return self._owners


class WorkerTables(TableClient):
    """Look-ups in the workers' tables."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    def arrivals(self, partition: int, entity: str, start: int, end: int) -> IndexedHistory | None:
        return parse_arrivals(self._of(partition, "arrivals", entity, start, end))

    def records_of(self, partition: int, entity: str, qs: Sequence[bytes]) -> IndexedRecords | None:
        return parse_records(self._of(partition, "records", entity, list(qs)))

    def checkpoint(self, partition: int, entity: str, end: int, definition: int) -> Checkpoint | None:
        row = self._of(partition, "checkpoint", entity, end, definition)
        return None if row is None else checkpoint_of(*parse_pairs([row])[0])

    def places_of(self, observation_id: bytes) -> IdMatches:
        places: list[tuple[int, int]] = []
        through: dict[int, int] = {}
        for url in self._workers.all():
            tree = self._looked_up(url, "places", observation_id)
            if tree is not None:
                found = parse_places(tree)
                places += found.positions
                through.update(found.through)
        return IdMatches(places, through)

    def entities(self, partition: int) -> Iterator[tuple[str, bytes]]:
        after = b""
        while rows := parse_pairs(self._required(partition, "rows", partition, after)):
            for key, packed in rows:
                yield keys.entity_of(key), packed
            after = rows[-1][0]

    def totals(self, partition: int) -> tuple[int, int]:
        return parse_totals(self._required(partition, "totals", partition))

    def _of(self, partition: int, name: str, *arguments: Any) -> Any:
        url = self._workers.owner(partition)
        return None if url is None else self._looked_up(url, name, partition, *arguments, partition=partition)

    def _looked_up(self, url: str, *question: Any, partition: int | None = None) -> Any:
        """Return the answer, or None if there is none."""
        try:
            answer = self._look_up(url, question, partition)
        except OSError:
            self._workers.forget()
            return None
        return read_answer(answer.content, url) if answer.status == 200 else None

    def _required(self, partition: int, *question: Any) -> Any:
        url = self._workers.owner(partition)
        if url is None:
            raise self._workers.absent(f"no worker owns partition {partition}")
        try:
            answer = self._look_up(url, question, partition)
        except OSError as error:
            self._workers.forget()
            raise self._workers.absent(str(error)) from error
        if answer.status == OTHER_LOG:
            raise self._workers.absent(_refusal_message(answer))
        if answer.status != 200:
            raise _refusal(url, answer)
        return read_answer(answer.content, url)

    def _look_up(self, url: str, question: Sequence[Any], partition: int | None) -> PageResponse:
        query = "" if partition is None else f"?partition={partition}"
        content = cbor2.dumps(list(question))
        log_id = self._workers.log_id
        asker = self._workers.asker
        return ask(asker, f"{url}/{LOOKUP}{query}", content, log_id=log_id, timeout_s=LOOKUP_S, media_type=CBOR)


class WorkerFolding(WorkerCommands):
    """Commands to the workers over their pages.

    Args:
        timeout_s: How long to wait for the fold to reach an offset.
    """

    def __init__(self, workers: Workers, timeout_s: float) -> None:
        self._workers = workers
        self._timeout_s = timeout_s

    def await_folded(self, offsets: Mapping[int, int], schemas: int) -> None:
        deadline = Deadline(self._timeout_s)
        while True:
            try:
                self._command_all("flush", offsets=dict(offsets), schemas=schemas)
                return
            except StorageError as error:
                if deadline.is_past:
                    raise StorageError(
                        f"the workers have not folded the log to its end within {self._timeout_s:g} s ({error}); their "
                        "page /status shows their progress; wait for longer with --owner-timeout"
                    ) from error
            time.sleep(RETRY_S)

    def snapshot(self, pinned_at: int | None) -> Sequence[Epoch]:
        found = self._command_all("snapshot", pinned_at=pinned_at)
        return [Epoch(*each["epoch"]) for each in found if each["epoch"] is not None]

    def pin(self, epochs: Iterable[Epoch], pinned_at: int | None) -> None:
        named = [list(epoch) for epoch in epochs]
        if pinned_at is None:
            self._command_all("unpin", epochs=named)
        else:
            self._command_all("pin", epochs=named, pinned_at=pinned_at)

    def collect(self, *, dry_run: bool, damaged: bool) -> Sequence[Collected]:
        return [
            collected_of(each["collected"]) for each in self._command_all("collect", dry_run=dry_run, damaged=damaged)
        ]

    def recover(self, *, wait: bool) -> Mapping[str, object]:
        sources: list[Mapping[str, Any]] = [each["source"] or {} for each in self._command_all("recover", wait=wait)]
        epochs: dict[str, int] = {}
        for each in sources:
            epochs.update(each.get("snapshot_epochs", {}))
        counts = {name: sum(each.get(name, 0) for each in sources)
                  for name in ("replayed", "reopened", "scanned", "apart")}  # fmt: skip
        fallbacks = [problem for each in sources for problem in each.get("fallbacks", ())]
        return {"snapshot_epochs": epochs, **counts, "fallbacks": fallbacks}

    def verify(self) -> OtherTables:
        found = self._command_all("verify")
        return OtherTables([Mismatch(*one) for each in found for one in each["mismatches"]])

    def _command_all(self, name: str, **given: Any) -> list[dict[str, Any]]:
        """Send a command, and return all workers' answers, sorted by partition."""
        why = "nobody has a partition in the group"
        for url in self._workers.all():
            try:
                answer = ask(
                    self._workers.asker, f"{url}/{name}", json.dumps(given).encode(), log_id=self._workers.log_id,
                    timeout_s=PATIENCE_S,
                )  # fmt: skip
            except OSError as error:
                why = f"{url}: {getattr(error, 'reason', None) or error}"
                self._workers.forget()
                continue
            if answer.status == OTHER_LOG:
                why = f"{url}: {_refusal_message(answer)}"
                continue
            if answer.status != 200:
                raise _refusal(f"{url}/{name}", answer)
            try:
                found: list[dict[str, Any]] = json.loads(answer.content)["partitions"]
                return sorted(found, key=lambda each: int(each["partition"]))
            except (ValueError, LookupError, TypeError) as error:
                raise StorageError(f"{url}/{name}: this is not a page of a refold worker ({error!r:.200})") from error
        raise self._workers.absent(why)


def _refusal_message(answer: PageResponse) -> str:
    """Return the message of a response that refuses a request."""
    try:
        return str(json.loads(answer.content)["error"])
    except (ValueError, LookupError, TypeError):
        return f"status {answer.status}"


def _refusal(url: str, answer: PageResponse) -> InputError | StorageError:
    """Return the error for a response that refuses a request."""
    message = _refusal_message(answer)
    if answer.status == 400:
        return InputError(message)
    # InputError for what the caller can fix: the token, or the host name in the URL.
    return (InputError if answer.status in (401, 403) else StorageError)(f"{url}: {message}")
