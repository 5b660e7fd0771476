"""The public log object: observe, ask, rebuild, compare, follow, mark, verify.

Every observation has a source, whose seq is counted from 0 for each (agent, run).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from threading import RLock
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from refold.avro.blob import Blob
from refold.avro.codec import reframed
from refold.avro.definition import TypeDefinition
from refold.avro.envelope import check_entity, check_name
from refold.avro.errors import InputError, NotAnswerable
from refold.avro.observation import Kind, Link, Observation, Source
from refold.avro.registry import TypeVersion
from refold.reducers.cells import new_tuple
from refold.streams.asof import entities_at, entity_at
from refold.streams.blobs.store import content_of
from refold.streams.change_reader import changes_from
from refold.streams.changes import Change, Row
from refold.streams.cut import Cut
from refold.streams.entity_index import EntityIndexes
from refold.streams.history import difference, rows_between
from refold.streams.log.port import AppendedObservation, LogPort, Marked
from refold.streams.point import Point, Points, When
from refold.streams.rebuild.partition import Progress
from refold.streams.rebuild.plan import limits_of
from refold.streams.rebuild.rebuild import rebuild
from refold.streams.runtime_context import RuntimeContext
from refold.streams.snapshots.garbage import Collected
from refold.streams.snapshots.manifest import Epoch
from refold.streams.snapshots.store import Snapshot, every_epoch, listed
from refold.streams.sources import Sources, Time, micros_of
from refold.streams.table.folds import Folds
from refold.streams.verify.report import VerifyReport
from refold.streams.verify.run import verify
from refold.streams.view import EntityView, StateView
from refold.streams.writer_types import EncodedObservation, WriterTypes

F = TypeVar("F", bound=Callable[..., Any])


def _locked(method: F) -> F:
    """Run the method under the log's lock."""

    @functools.wraps(method)
    def locked(self: Log, *args: Any, **kwargs: Any) -> Any:
        with self.lock:
            return method(self, *args, **kwargs)

    return cast(F, locked)


class Log:
    """An open log; a context manager.

    For one thread. Other threads may record and flush at the same time, or use `port` while they hold `lock`. On Kafka
    they wait while one of them flushes.

    A `Time` is RFC 3339 text, an aware datetime or integer microseconds since 1970. A WHEN is described in
    streams/point.py. `clock` says which time of an observation a WHEN that is a time refers to: `recorded` is when the
    log took it, `observed` when it happened. Every method with a WHEN raises InputError if it cannot be parsed, and
    NotAnswerable, which names the nearest point that can be answered.
    """

    def __init__(
        self, port: LogPort, types: Mapping[str, TypeDefinition], mine: set[str], runtime: RuntimeContext
    ) -> None:
        self.lock = RLock()
        self._port = port
        self._types = types
        self._runtime = runtime
        self._sources = Sources(runtime.agent, runtime.new_id)
        self._writers = WriterTypes(port, types, mine)
        # Set by processes that list entities often; shared by their logs. Without it, lists are rebuilt.
        self.indexes: EntityIndexes | None = None

    # Recording

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
        """Record one observation; durable when `flush` returns.

        Args:
            entity: `type/id`.
            patch: The fields that it asserts.
            source: A Source with its own seq; an agent's name, for which run and seq are assigned here; None for this
                process.
            observed_at: When it happened; None for now.
            kind: `assert`, `link` or `unlink`.
            priority: For reducers that compare priorities.
            causes: Ids of observations that it was derived from.
            cleared: Fields that it empties.
            retracts: Ids of earlier observations of the entity that were wrong.
            link: The relation, for the kinds `link` and `unlink`.
            subject: The person that it is about; their key seals its sealed values.
            allow_future: Whether `observed_at` may be far ahead of the clock.

        Returns:
            Its id, as 64 hex digits.

        Raises:
            ValidationError: A value is refused. The message names the field, the rule and the value. Nothing is
                recorded.
            SchemaError: The type is unknown.
        """
        with self.lock:
            version = self._writers.of_entity(entity)
            now = self._runtime.now_micros()
            blobs: dict[bytes, bytes] | None = {} if self._port.has_store else None
            origin = self._sources.peek(source)
            at = observed_at if type(observed_at) is int else micros_of(now if observed_at is None else observed_at)
            data, observation_id, observation = version.encode(
                entity, patch, source=origin, observed_at=at, now=now, kind=kind, priority=priority, causes=causes,
                cleared=cleared, retracts=retracts, link=link, subject=subject, allow_future=allow_future, blobs=blobs,
            )  # fmt: skip
            registered = self._writers.ensure_registered(version)
            if registered is not version:
                data = reframed(data, registered.codec.wire_id)
            if origin is not source:
                self._sources.advance(origin)
            self._put(new_tuple(AppendedObservation, (entity, observation_id, data, observation)), blobs)
            return observation_id.hex()

    def link(self, entity: str, relation: str, target: str, *, valid_from: Time | None = None,
             valid_to: Time | None = None, **given: Any) -> str:  # fmt: skip
        """Record a typed relation; returns the observation's id, as `observe`.

        Args:
            entity: Where it begins.
            relation: Its name.
            target: The entity that it leads to.
            valid_from: From when it holds; None for always.
            valid_to: Until when it holds; None for ever.
            given: Further keywords of `observe`.
        """
        times = (("link.valid_from", valid_from), ("link.valid_to", valid_to))
        validity = [None if each is None else micros_of(each, path) for path, each in times]
        return self.observe(entity, kind="link", link=Link(relation, target, *validity), **given)

    def unlink(self, entity: str, relation: str, target: str, **given: Any) -> str:
        """Record that a relation ended. Arguments and result as for `link`."""
        return self.observe(entity, kind="unlink", link=Link(relation, target), **given)

    def retract(self, entity: str, observation: str | bytes, **given: Any) -> str:
        """Record that an earlier observation of the entity was wrong. Further keywords and result as for `observe`."""
        return self.observe(entity, retracts=[observation], **given)

    @_locked
    def append(self, observation: Observation, observation_id: bytes, definition: TypeDefinition,
               blobs: Mapping[bytes, bytes], data: bytes | None = None) -> None:  # fmt: skip
        """Append an observation that was built elsewhere, under the definition it was built by.

        Args:
            observation: The observation.
            observation_id: Its id.
            definition: The definition.
            blobs: The contents that it names, by their SHA-256.
            data: Its framed bytes under the definition, with any wire id, if the caller has them.
        """
        version = self._writers.ensure_definition_registered(definition)
        codec = version.codec
        own = codec.encode_observation(observation) if data is None else reframed(data, codec.wire_id)
        self._put(AppendedObservation(observation.entity, observation_id, own, observation), blobs)

    @_locked
    def append_encoded(self, observations: Sequence[EncodedObservation]) -> None:
        """Append observations that the kernel built and encoded, in their order. Their bytes are not checked.

        Args:
            observations: Each with its entity, id, definition, Avro bytes, and the contents that it names, by digest.
        """
        versions: dict[bytes, TypeVersion] = {}
        appended = []
        for entity, observation_id, definition, data, blobs in observations:
            version = versions.get(definition.fingerprint)
            if version is None:
                version = versions[definition.fingerprint] = self._writers.ensure_definition_registered(definition)
            for digest, content in blobs.items():
                self._port.blobs.put(digest, content)
            appended.append(AppendedObservation(entity, observation_id, reframed(data, version.codec.wire_id)))
        self._port.append_encoded(appended)

    def _put(self, appended: AppendedObservation, blobs: Mapping[bytes, bytes] | None) -> None:
        for digest, content in blobs.items() if blobs else ():
            self._port.blobs.put(digest, content)
        self._port.append(appended)

    @_locked
    def register(self, definition: TypeDefinition) -> None:
        """Register a type definition; entities of an older version are folded again by it."""
        self._port.register(definition)
        self._writers.forget(definition.name)

    @_locked
    def put_blob(self, content: bytes, media_type: str) -> Blob:
        """Store a content, durable on return, and return a reference for patches.

        Args:
            content: The content. Equal ones are stored once.
            media_type: Its type, such as `image/png`.
        """
        blob = Blob(hashlib.sha256(content).digest(), len(content), media_type)
        self._port.blobs.put(blob.hash, content)
        return blob

    def flush(self) -> None:
        """Return when everything observed is durable.

        In a `file:` log it is folded, too. If several threads flush at once, one syncs for all, and others may record
        meanwhile. On Kafka workers fold it later, and a flush holds the log's lock until the brokers have acknowledged
        every record, so other threads wait to record.

        Raises:
            StorageError: The storage failed, or no broker answers. A later flush sends again what was not stored.
        """
        with self.lock:
            end = self._port.begin_flush()
        end()

    @_locked
    def mark(self, name: str, at: When = None, *, replace: bool = False) -> Cut:
        """Store a marker, a name for a cut, and return the cut.

        Args:
            name: The marker's name, without `@`.
            at: The point; None for now.
            replace: Whether to replace a marker of the same name.

        Raises:
            InputError: The name is taken, or not valid.
        """
        check_name(name, "marker")
        if name.startswith("@"):
            raise InputError(f"{name}: give the name without @; it is used as @{name.lstrip('@')}")
        self.flush()
        cut = self.point(at).cut
        self._port.mark(Marked(name, str(cut), self._runtime.now_micros() // 1000), replace=replace)
        return cut

    # Asking

    @_locked
    def point(self, when: When = None, entity: str | None = None, clock: str = "recorded") -> Point:
        """Resolve a WHEN to a cut. Flushes first, so the cut includes everything observed here.

        Args:
            when: The WHEN; None for now.
            entity: The entity that the forms `vN` and `run:` refer to, if any.
            clock: `recorded` or `observed`.

        Returns:
            The cut, whether records may still arrive below it, and whether the time is in the future.

        Raises:
            StorageError: As by `flush`.
        """
        self._port.flush()
        self._port.refresh()
        return Points(self._port, self._runtime.now_micros() // 1000).resolve(when, entity, clock)

    def state(self, entity: str, at: When = None, clock: str = "recorded") -> EntityView:
        """Return one entity at a point.

        Args:
            entity: `type/id`.
            at: The point; None for now.
            clock: `recorded` or `observed`.

        Raises:
            UnknownEntity: It has no record below the point.
            NotAnswerable: With the clock `observed`: none of its observations was made by then.
        """
        check_entity(entity)
        cut = self.point(at, entity, clock).cut
        folds = Folds(self._port.registry, cut.schemas)
        found = entity_at(self._port, folds, entity, cut)
        if not found.version:
            raise NotAnswerable(f"{entity}: no observation of it was made by then")
        return EntityView(self._port, folds, cut, found)

    def states(self, entities: Iterable[str], at: When = None, clock: str = "recorded") -> dict[str, EntityView]:
        """Return several entities at one point, read together. `at` and `clock`: as of `state`.

        Returns:
            The entities by name, without those that have no observation there.
        """
        names = [check_entity(each) for each in entities]
        cut = self.point(at, None, clock).cut
        folds = Folds(self._port.registry, cut.schemas)
        found = entities_at(self._port, folds, names, cut)
        return {name: EntityView(self._port, folds, cut, entity) for name, entity in found.items()}

    def rebuild(
        self, at: When = None, *, clock: str = "recorded", types: Iterable[str] | None = None,
        entities: Iterable[str] | None = None, since: Time | None = None, full: bool = False,
        parallel: bool | None = None, progress: Progress = lambda more, total: None,
    ) -> StateView:  # fmt: skip
        """Return every entity at a point. It reads with a separate reader, so no live consumer's offsets move.

        Args:
            at: The point; None for now.
            clock: `recorded` or `observed`.
            types: Only entities of these types.
            entities: Only these entities, as `type/id`.
            since: Leave out entities whose closing observation was observed before this time (`refold.closed_by`).
            full: Whether to begin at the first record and use no snapshots. The entities are the same.
            parallel: Whether to use child processes; None for whatever is faster. The entities are the same.
            progress: Called with the number of further records read, and the present estimate of the total.

        Returns:
            A read-only view. With `types`, `entities` or `since` it has no root.
        """
        cut = self.point(at, None, clock).cut
        since_micros = None if since is None else micros_of(since, "since")
        limits = limits_of(self._port.registry, cut.schemas, types, entities, since_micros)
        rebuilt = rebuild(self._port, cut, progress, full=full, limits=limits, parallel=parallel)
        return StateView(self._port, cut, rebuilt)

    def history(self, entity: str, *, since: When = None, until: When = None, clock: str = "recorded",
                python: bool = True) -> list[Row]:  # fmt: skip
        """Return the mutations of one entity, in log order.

        Args:
            entity: `type/id`.
            since: Leave out what is up to this point.
            until: Leave out what is after this point; None for now.
            clock: With `observed` both are times, compared with when observations happened.
            python: Whether values are Python objects; otherwise they are in JSON form.

        Returns:
            One row for each mutation.

        Raises:
            UnknownEntity: It has no record below `until`.
        """
        check_entity(entity)
        last = self.point(until, entity, clock).cut
        after = None if since is None else self.point(since, entity, clock).cut
        return rows_between(self._port, entity, after, last, python=python)

    def diff(self, a: When, b: When = None, entity: str | None = None, *, clock: str = "recorded",
             python: bool = True) -> list[Row]:  # fmt: skip
        """Return the differences between two points.

        Args:
            a: The first point.
            b: The second point; None for now.
            entity: The entity to compare; None for the whole log.
            clock: `recorded` or `observed`.
            python: As for `history`.

        Returns:
            The mutations that lead from `a` to `b`, by entity.

        Raises:
            UnknownEntity: The given entity exists at neither point.
        """
        before, after = self.point(a, entity, clock).cut, self.point(b, entity, clock).cut
        return difference(self._port, before, after, entity, python=python)

    def changes(self, from_: When = None, *, live: bool = False, poll_s: float = 0.2) -> Iterator[Change]:
        """Yield entity changes, in order within each partition. Flushes first, and raises StorageError as `flush` does.

        Args:
            from_: Begin after this point; None for the first change.
            live: Whether to wait for further changes; otherwise it ends at the present end.
            poll_s: How often to look for further ones, in seconds.
        """
        cut = None if from_ is None else self.point(from_).cut
        self._port.flush()
        return changes_from(self._port, cut, live=live, poll_s=poll_s)

    def verify(self, progress: Progress = lambda more, total: None, *, parallel: bool | None = None) -> VerifyReport:
        """Fold the whole log again and compare the result with every table, index, change and content.

        Args:
            progress: Called with the number of further records done, and the number of all records.
            parallel: Whether to use child processes; None for whatever is faster. The report is the same.
        """
        self._port.flush()
        with self._port.frozen(is_verified=True) as port:
            end = Points(port, self._runtime.now_micros() // 1000).end()
            return verify(port, end, progress, parallel=parallel)

    def snapshot(self, *, pin: bool = False) -> list[Epoch]:
        """Seal an epoch of every partition that has records. The log's owner, or its workers, also do so as it grows.

        Args:
            pin: Whether to pin these epochs.

        Returns:
            The epochs, which are durable.
        """
        return list(self._port.snapshot(self._runtime.now_micros() // 1000 if pin else None))

    def recover(self, *, wait: bool = True) -> Mapping[str, Any]:
        """Make damaged entity tables again, from snapshots and records.

        Args:
            wait: Whether to wait for the indexes too. Otherwise they are filled in the background, and questions are
                answered from the log meanwhile.

        Returns:
            From what they were made; see `StateView.source`.
        """
        return self._port.recover(wait=wait)

    def snapshots(self, only: Iterable[Epoch] | None = None) -> list[Snapshot]:
        """Return every sealed epoch, or those in `only`, by partition and offset."""
        self._port.flush()
        self._port.refresh()
        reader = self._port.snapshots
        return list(listed(reader, every_epoch(reader, self._port.partitions) if only is None else only))

    def pin(self, epochs: Iterable[Epoch]) -> None:
        """Pin sealed epochs.

        Raises:
            InputError: One of them does not exist. None is pinned then.
        """
        self._port.pin(list(epochs), self._runtime.now_micros() // 1000)

    def unpin(self, epochs: Iterable[Epoch]) -> None:
        """Unpin epochs: the retention policy applies to them again."""
        self._port.pin(list(epochs), None)

    def collect(self, *, dry_run: bool = False, damaged: bool = False) -> list[Collected]:
        """Remove the snapshots that the retention policy does not keep (streams/snapshots/retention_policy.py).

        The log's owner, or its workers, do this as the log grows. Answers do not change; some rebuilds take longer.

        Args:
            dry_run: Whether to remove nothing and only report. This works in a log opened to read.
            damaged: Whether to also remove snapshots whose manifest cannot be read.

        Returns:
            What was removed, by partition.
        """
        return list(self._port.collect(dry_run=dry_run, damaged=damaged))

    def blob(self, reference: Blob | str) -> bytes:
        """Return the content of a blob.

        Args:
            reference: The Blob, or its SHA-256 in hex.

        Raises:
            Expired: The content was removed by retention.
            InputError: The store has no such content.
        """
        return content_of(self._port.blobs, reference)

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
