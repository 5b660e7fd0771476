"""The public log object: observe, ask, rebuild, compare, follow, mark, verify.

Every observation has a source, whose seq is counted from 0 for each (agent, run).
"""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from threading import RLock
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from refold.avro.blob import Blob
from refold.avro.codec import reframed
from refold.avro.definition import TypeDefinition
from refold.avro.envelope import check_entity, check_name
from refold.avro.errors import Expired, InputError, NotAnswerable, SchemaError, ValidationError
from refold.avro.observation import Kind, Link, Observation, Source, type_of
from refold.avro.registry import TypeVersion
from refold.avro.times import datetime_micros, parse_time
from refold.streams.asof import entities_at, entity_at
from refold.streams.changes import Change, MutationFormatter, Row, rows
from refold.streams.cut import Cut
from refold.streams.entity_index import EntityIndexes
from refold.streams.feed import changes_from
from refold.streams.history import difference, moments, observed_below
from refold.streams.log.port import LogPort, Marked
from refold.streams.point import Point, Points, When
from refold.streams.rebuild.partition import Progress
from refold.streams.rebuild.plan import limits_of
from refold.streams.rebuild.rebuild import rebuild
from refold.streams.snapshots.garbage import Collected
from refold.streams.snapshots.manifest import Epoch
from refold.streams.snapshots.store import Snapshot, every_epoch, listed
from refold.streams.table.folds import Folds
from refold.streams.verify.report import VerifyReport
from refold.streams.verify.run import verify
from refold.streams.view import EntityView, StateView


class Sources:
    """Counts seq for agents that are given by name alone, each in a new run of this process."""

    def __init__(self, agent: str, new_id: Callable[[], str]) -> None:
        self._agent = agent
        self._new_id = new_id
        self._current: dict[str, Source] = {}

    def next(self, given: Source | str | None) -> tuple[Source, Callable[[], None]]:
        """Return the source of the next observation, and a function to call when it was accepted, so that a refused
        observation uses no seq.
        """
        if isinstance(given, Source):
            return given, lambda: None
        agent: object = self._agent if given is None else given
        if not isinstance(agent, str):
            raise ValidationError("source", "a Source, an agent's name, or nothing", given)
        source = self._current.get(agent)
        if source is None:
            source = self._current[agent] = Source(agent, self._new_id())

        def count() -> None:
            self._current[agent] = source._replace(seq=source.seq + 1)

        return source, count


Time = int | dt.datetime | str
F = TypeVar("F", bound=Callable[..., Any])

UNREGISTERED = -1


@dataclass(frozen=True, slots=True)
class RuntimeContext:
    """A log's environment: a clock in microseconds since 1970, a generator of ids, and the name of this process."""

    now_micros: Callable[[], int]
    new_id: Callable[[], str]
    agent: str


def _in_turn(method: F) -> F:
    """Run the method under the log's lock."""

    @functools.wraps(method)
    def taken(self: Log, *args: Any, **kwargs: Any) -> Any:
        with self.turn:
            return method(self, *args, **kwargs)

    return cast(F, taken)


class Log:
    """An open log; a context manager. For one thread. Other threads may record and flush at the same time, or use
    `port` while they hold `turn`.

    Times given are RFC 3339 text, aware datetimes or integer microseconds; WHEN is described in streams/point.py.
    """

    def __init__(
        self, port: LogPort, types: Mapping[str, TypeDefinition], mine: set[str], runtime: RuntimeContext
    ) -> None:
        self.turn = RLock()
        self._port = port
        self._types = types
        self._mine = mine
        self._runtime = runtime
        self._sources = Sources(runtime.agent, runtime.new_id)
        self._writers: dict[str, TypeVersion] = {}
        # Set by processes that list entities often; shared by their logs. Without it, lists are rebuilt.
        self.indexes: EntityIndexes | None = None

    # Recording

    @_in_turn
    def observe(
        self,
        entity: str,
        patch: Mapping[str, Any] | None = None,
        *,
        source: Source | str | None = None,
        observed_at: Time | None = None,
        kind: Kind = "assert",
        priority: int = 0,
        causes: Iterable[str | bytes] = (),
        cleared: Iterable[str] = (),
        retracts: Iterable[str | bytes] = (),
        link: Link | None = None,
        subject: str = "",
        allow_future: bool = False,
    ) -> str:
        """Record one observation and return its id; durable when `flush` returns.

        source: a Source with its own seq, an agent's name (run and seq are then assigned here), or None for this
        process. Raises ValidationError, which names the field, the rule and the given value; nothing is recorded then.
        """
        version = self._writer(type_of(check_entity(entity)))
        now = self._runtime.now_micros()
        blobs: dict[bytes, bytes] | None = {} if self._port.has_store else None
        origin, count = self._sources.next(source)
        observation = version.validator.build(
            entity, patch, observed_at=now if observed_at is None else _micros(observed_at), now=now, kind=kind,
            priority=priority, source=origin, causes=causes, cleared=cleared, retracts=retracts, link=link,
            subject=subject, allow_future=allow_future, blobs=blobs,
        )  # fmt: skip
        self._writers[version.definition.name] = version = self._registered(version)
        count()
        return self._append(observation, version, blobs or {}).hex()

    def link(self, entity: str, relation: str, target: str, *, valid_from: Time | None = None,
             valid_to: Time | None = None, **given: Any) -> str:  # fmt: skip
        """Record a typed relation to `target`; further keywords as for `observe`."""
        times = (("link.valid_from", valid_from), ("link.valid_to", valid_to))
        validity = [None if each is None else _micros(each, path) for path, each in times]
        return self.observe(entity, kind="link", link=Link(relation, target, *validity), **given)

    def unlink(self, entity: str, relation: str, target: str, **given: Any) -> str:
        """Record that a relation ended; further keywords as for `observe`."""
        return self.observe(entity, kind="unlink", link=Link(relation, target), **given)

    def retract(self, entity: str, observation: str | bytes, **given: Any) -> str:
        """Record that an earlier observation of the entity was wrong; further keywords as for `observe`."""
        return self.observe(entity, retracts=[observation], **given)

    @_in_turn
    def take(self, observation: Observation, observation_id: bytes, definition: TypeDefinition,
             blobs: Mapping[bytes, bytes], data: bytes | None = None) -> None:  # fmt: skip
        """Record an observation that was built elsewhere, under the definition it was built by.

        Args:
            observation: The observation.
            observation_id: Its id.
            definition: The definition.
            blobs: The contents that it names, by their SHA-256.
            data: Its framed bytes under the definition, with any wire id, if the caller has them.
        """
        version = self._registered(self._port.registry.find(definition) or TypeVersion(definition, UNREGISTERED, 0))
        codec = version.codec
        own = codec.encode_observation(observation) if data is None else reframed(data, codec.schema_id)
        self._put(observation, observation_id, own, blobs)

    def _append(self, observation: Observation, version: TypeVersion, blobs: Mapping[bytes, bytes]) -> bytes:
        data, observation_id = version.codec.encode_identified(observation)
        self._put(observation, observation_id, data, blobs)
        return observation_id

    def _put(self, observation: Observation, observation_id: bytes, data: bytes, blobs: Mapping[bytes, bytes]) -> None:
        for digest, content in blobs.items():
            self._port.blobs.put(digest, content)
        self._port.append(observation, observation_id, data)

    def _writer(self, type_name: str) -> TypeVersion:
        """The version for writing a type: the user's file, else the log's newest, else the shipped one."""
        found = self._writers.get(type_name)
        if found is not None:
            return found
        mine = self._types.get(type_name)
        known = self._port.registry.in_effect(type_name)
        if not known:  # registered only once, because another process may have registered a newer version
            self._port.refresh()
            known = self._port.registry.in_effect(type_name)
        if mine is not None and (type_name in self._mine or not known):
            return self._port.registry.find(mine) or TypeVersion(mine, UNREGISTERED, 0)
        if not known:
            names = ", ".join(sorted(self._types))
            raise SchemaError(f"unknown type {type_name!r}; known here: {names}. Add its .avsc file with --types")
        return known[-1]

    def _registered(self, version: TypeVersion) -> TypeVersion:
        """The version in the log: the first valid observation of a type registers it."""
        if version.offset != UNREGISTERED:
            return version
        self._port.register(version.definition)
        found = self._port.registry.find(version.definition)
        assert found is not None
        return found

    @_in_turn
    def register(self, definition: TypeDefinition) -> None:
        """Register a type definition; entities of an older version are folded again by it."""
        self._port.register(definition)
        self._writers.pop(definition.name, None)

    @_in_turn
    def put_blob(self, content: bytes, media_type: str) -> Blob:
        """Store a content, durable on return. The returned reference can be used in a patch. Equal contents are stored
        once.
        """
        blob = Blob(hashlib.sha256(content).digest(), len(content), media_type)
        self._port.blobs.put(blob.hash, content)
        return blob

    def flush(self) -> None:
        """Return when everything observed is durable. In a `file:` log it is folded, too; on Kafka workers fold it
        later. If several threads flush at once, one syncs for all.
        """
        with self.turn:
            end = self._port.begin_flush()
        end()

    @_in_turn
    def mark(self, name: str, at: When = None, *, replace: bool = False) -> Cut:
        """Set a marker at a point, now or `at`. Raises InputError if the name is taken and replace is False."""
        check_name(name, "marker")
        if name.startswith("@"):
            raise InputError(f"{name}: give the name without @; it is used as @{name.lstrip('@')}")
        self.flush()
        cut = self.point(at).cut
        self._port.mark(Marked(name, str(cut), self._runtime.now_micros() // 1000), replace=replace)
        return cut

    # Asking

    @_in_turn
    def point(self, when: When = None, entity: str | None = None, clock: str = "recorded") -> Point:
        """Resolve a WHEN to a cut. Raises NotAnswerable, which names the nearest point that can be answered."""
        self._port.flush()
        self._port.refresh()
        return Points(self._port, self._runtime.now_micros() // 1000).resolve(when, entity, clock)

    def state(self, entity: str, at: When = None, clock: str = "recorded") -> EntityView:
        """Return one entity at a point. Raises UnknownEntity if it has no observation there."""
        check_entity(entity)
        cut = self.point(at, entity, clock).cut
        folds = Folds(self._port.registry, cut.schemas)
        found = entity_at(self._port, folds, entity, cut)
        if not found.version:
            raise NotAnswerable(f"{entity}: no observation of it was made by then")
        return EntityView(self._port, folds, cut, found)

    def states(self, entities: Iterable[str], at: When = None, clock: str = "recorded") -> dict[str, EntityView]:
        """Return several entities at a point, by name, read together. Entities without an observation there are left
        out.
        """
        names = [check_entity(each) for each in entities]
        cut = self.point(at, None, clock).cut
        folds = Folds(self._port.registry, cut.schemas)
        found = entities_at(self._port, folds, names, cut)
        return {name: EntityView(self._port, folds, cut, entity) for name, entity in found.items()}

    def rebuild(self, at: When = None, *, clock: str = "recorded", types: Iterable[str] | None = None,
                entities: Iterable[str] | None = None, since: Time | None = None, full: bool = False,
                parallel: bool | None = None,
                progress: Progress = lambda more, total: None) -> StateView:  # fmt: skip
        """Return every entity at a point. It reads with a separate reader, so no live consumer's offsets move.

        types, entities: only the entities of these types, and these entities (TYPE/ID). since: without entities that
        were closed (by their type's `refold.closed_by`) by an observation observed before this time. A limited view has
        no root. full: begin at the first record and use no snapshots. parallel: in several processes, or in this one;
        None for the faster. full and parallel do not change the entities.
        """
        cut = self.point(at, None, clock).cut
        since_micros = None if since is None else _micros(since, "since")
        limits = limits_of(self._port.registry, cut.schemas, types, entities, since_micros)
        rebuilt = rebuild(self._port, cut, progress, full=full, limits=limits, parallel=parallel)
        return StateView(self._port, cut, rebuilt)

    def history(self, entity: str, *, since: When = None, until: When = None, clock: str = "recorded",
                python: bool = True) -> list[Row]:  # fmt: skip
        """The mutations of one entity, in log order, after `since` and up to `until`.

        With clock "observed" both are times, and the result has what was observed after `since` and up to `until`.
        """
        check_entity(entity)
        last = self.point(until, entity, clock).cut
        after = None if since is None else self.point(since, entity, clock).cut
        partition = self._port.partition_of(entity)
        observed = observed_below(self._port, entity, last)
        type_fold = Folds(self._port.registry, last.schemas).of_entity(entity)
        shown = MutationFormatter(type_fold.version.definition, python=python)
        found: list[Row] = []
        for moment in moments(type_fold.fold, entity, observed):
            seen = moment.observed.seen
            if after is not None and after.observed_until is None and seen.offset < after.offsets[partition]:
                continue
            if not _within(seen.observation.observed_at, after, last):
                continue
            found += rows(
                shown, entity, moment.mutations, by=seen.id, version=moment.version, partition=partition,
                offset=seen.offset, observed_at=seen.observation.observed_at,
                recorded_at=moment.observed.recorded_at, source=seen.observation.source,
            )  # fmt: skip
        return found

    def diff(self, a: When, b: When = None, entity: str | None = None, *, clock: str = "recorded",
             python: bool = True) -> list[Row]:  # fmt: skip
        """Return the differences between points `a` and `b`, of one entity or of the whole log."""
        before, after = self.point(a, entity, clock).cut, self.point(b, entity, clock).cut
        return difference(self._port, before, after, entity, python=python)

    def changes(self, from_: When = None, *, live: bool = False, poll_s: float = 0.2) -> Iterator[Change]:
        """Yield entity changes after a point (without one: from the beginning), up to now, or with `live` also new
        ones.
        """
        cut = None if from_ is None else self.point(from_).cut
        self._port.flush()
        return changes_from(self._port, cut, live=live, poll_s=poll_s)

    def verify(self, progress: Progress = lambda more, total: None) -> VerifyReport:
        """Fold the whole log again and compare the result with every table, index, change and content."""
        self._port.flush()
        with self._port.frozen(is_verified=True) as port:
            return verify(port, Points(port, self._runtime.now_micros() // 1000).end(), progress)

    def snapshot(self, *, pin: bool = False) -> list[Epoch]:
        """Seal an epoch of every partition that has records, from which rebuilds begin; durable on return.

        pin: also pin these epochs. Epochs are also sealed automatically, in the background, as the log grows.
        """
        return list(self._port.snapshot(self._runtime.now_micros() // 1000 if pin else None))

    def recover(self, *, wait: bool = True) -> Mapping[str, Any]:
        """Delete the entity tables and make them again from snapshots and records; returns how.

        For tables that `verify` found damaged. wait: False returns when the states exist again; the indexes are filled
        in the background, and questions are answered from the log meanwhile.
        """
        return self._port.recover(wait=wait)

    def snapshots(self, only: Iterable[Epoch] | None = None) -> list[Snapshot]:
        """Return every sealed epoch, or those in `only`, by partition and offset."""
        self._port.flush()
        self._port.refresh()
        reader = self._port.snapshots
        return list(listed(reader, every_epoch(reader, self._port.partitions) if only is None else only))

    def pin(self, epochs: Iterable[Epoch]) -> None:
        """Pin sealed epochs. Raises InputError, and pins none, if one of them does not exist."""
        self._port.pin(list(epochs), self._runtime.now_micros() // 1000)

    def unpin(self, epochs: Iterable[Epoch]) -> None:
        """Unpin epochs: the retention policy applies to them again."""
        self._port.pin(list(epochs), None)

    def collect(self, *, dry_run: bool = False, damaged: bool = False) -> list[Collected]:
        """Remove the snapshots that the retention policy does not keep (streams/snapshots/retention_policy.py). Returns
        the result by partition.

        The log's owner does this automatically as the log grows. Answers do not change; some rebuilds take longer.
        dry_run: remove nothing, only report; works in a log opened to read. damaged: also remove snapshots whose
        manifest cannot be read.
        """
        return list(self._port.collect(dry_run=dry_run, damaged=damaged))

    def blob(self, reference: Blob | str) -> bytes:
        """Return the content of a Blob, given as Blob or as its SHA-256 in hex."""
        try:
            digest = reference.hash if isinstance(reference, Blob) else bytes.fromhex(reference)
        except (TypeError, ValueError):
            raise InputError(f"{reference!r:.80}: give a content's Blob, or its SHA-256 in hex") from None
        content = self._port.blobs.get(digest)
        if content is None and self._port.blobs.has_expired(digest):
            raise Expired(f"{digest.hex()}: the content has expired; it was removed from the log's store")
        if content is None:
            raise InputError(f"{digest.hex()}: no such content in this log's store")
        return content

    @property
    def port(self) -> LogPort:
        """The underlying log, for tools that read raw records."""
        return self._port

    @property
    def types(self) -> dict[str, TypeDefinition]:
        """Every type that can be observed here: the log's newest versions, and the shipped and given ones."""
        registry = self._port.registry
        return {**self._types, **{name: registry.newest(name).definition for name in registry.fingerprints()}}

    def close(self) -> None:
        """Flush and close the log."""
        self._port.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
            return
        with contextlib.suppress(Exception):  # the first error is the one to report
            self.close()


def _micros(given: Time, path: str = "observed_at") -> int:
    if isinstance(given, str):
        return parse_time(given, path)
    if isinstance(given, dt.datetime):
        if given.tzinfo is None:
            raise ValidationError(path, "a datetime with its time zone", given)
        return datetime_micros(given)
    return given


def _within(observed_at: int, after: Cut | None, last: Cut) -> bool:
    if last.observed_until is not None and observed_at > last.observed_until:
        return False
    return after is None or after.observed_until is None or observed_at > after.observed_until
