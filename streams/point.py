"""Resolves each form of WHEN to a cut.

2026-11-21T03:12:00Z   a time, RFC 3339
@deploy-1              a marker
cut:1.oWF...           a cut, or its short hash
offset:0=41,1=17       next offsets
v12                    a version (with one entity)
run:ID#STEP            after a step of a run
now                    the end
"""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from typing import TypeAlias

from refold.avro.errors import InputError, NotAnswerable, ValidationError
from refold.avro.times import datetime_micros, millis_text, parse_time, time_text
from refold.streams.cut import PREFIX, SHORT_DIGITS, Cut, parse_cut, read_cut, require_fold_version
from refold.streams.defaults import CLOCKS
from refold.streams.log.port import LogReader

CLOCK_SLACK_MS = 5000
FORMS = "a time (2026-11-21T03:12:00Z), @marker, cut:TEXT, offset:0=41,1=17, vN with one entity, run:ID#STEP, or now"
VERSION = re.compile(r"v([0-9]{1,18})\Z")
OFFSET = re.compile(r" *([0-9]{1,18}) *= *([0-9]{1,18}) *\Z")
SHORT = re.compile(rf"[0-9a-f]{{{SHORT_DIGITS}}}\Z")

When: TypeAlias = "Cut | dt.datetime | str | None"


@dataclass(frozen=True, slots=True)
class Point:
    """A resolved WHEN.

    Attributes:
        cut: The cut.
        open: Whether records may still arrive below it: always for an observed time; for another time if it is less
            than CLOCK_SLACK_MS ago.
        is_future: Whether the time is in the future, by the reader's clock.
    """

    cut: Cut
    open: bool = False
    is_future: bool = False


class Points:
    """Resolves WHEN on one log."""

    def __init__(self, log: LogReader, now_ms: int) -> None:
        self._log = log
        # An archive does not have what its origin recorded after the archiving.
        self._now_ms = now_ms if log.archived_at is None else min(now_ms, log.archived_at)

    def resolve(self, when: When, entity: str | None = None, clock: str = "recorded") -> Point:
        """Resolve a WHEN.

        Args:
            when: A Cut, a datetime with its zone, or text; None for now.
            entity: The entity that the forms `vN` and `run:` refer to, if any.
            clock: With `observed` a time is a filter on observed_at over everything recorded.

        Returns:
            The point.

        Raises:
            InputError: It is not a WHEN.
            NotAnswerable: It is a point that the log cannot answer. The message names the nearest one that it can.
        """
        if clock not in CLOCKS:
            raise InputError(f"clock {clock!r}: one of {', '.join(CLOCKS)}")
        if isinstance(when, Cut):
            return Point(self._checked(when))
        if isinstance(when, dt.datetime):
            if when.tzinfo is None:
                raise InputError(f"{when!r}: give a datetime with its time zone")
            return self._time(datetime_micros(when), clock)
        if not isinstance(when, str | None):
            raise InputError(f"{when!r} is not a point in time: give a Cut, a datetime, or the text of {FORMS}")
        text = (when or "now").strip()
        if text == "now":
            return Point(self.end())
        if text.startswith(PREFIX):
            return Point(self._cut(text))
        place = self._place(text, entity)
        if place is not None:
            if clock == "observed":
                raise InputError(f"{text}: a position in the log has no observed time; give a time with that clock")
            return Point(place)
        try:
            micros = parse_time(text, "WHEN")
        except ValidationError as error:
            if re.match(r"\d{4}-", text):
                raise
            raise InputError(f"{text!r} is not a point in time that this log knows: give {FORMS}") from error
        return self._time(micros, clock)

    def _place(self, text: str, entity: str | None) -> Cut | None:
        """The cut of a text that names a position in the log; None for any other text."""
        if text.startswith("@"):
            return self._marker(text[1:])
        if text.startswith("offset:"):
            return self._offsets(text)
        if text.startswith("run:"):
            return self._step(text)
        version = VERSION.match(text)
        return self._version(int(version[1]), entity) if version else None

    def end(self) -> Cut:
        """Everything recorded by now."""
        return self._at(self._log.ends(), len(self._log.registry))

    def _at(self, offsets: dict[int, int], schemas: int) -> Cut:
        return Cut(self._log.log_id, dict(sorted(offsets.items())), schemas, self._log.registry.digest(schemas))

    def _time(self, micros: int, clock: str) -> Point:
        if clock == "observed":
            return Point(self.end().until(micros), open=True)
        time_ms = micros // 1000
        if self._log.archived_at is not None and time_ms > self._log.archived_at:
            raise NotAnswerable(
                f"{time_text(micros)}: this log was archived at {millis_text(self._log.archived_at)}; that is the "
                "latest time it can answer, and `now` is everything it holds"
            )
        offsets = {partition: self._log.first_after(partition, time_ms) for partition in self._log.ends()}
        if not any(offsets.values()):
            raise NotAnswerable(f"{time_text(micros)}: {self._before_begin()}")
        cut = self._at(offsets, self._log.registry.schemas_offset_at(time_ms))
        return Point(cut, open=time_ms > self._now_ms - CLOCK_SLACK_MS, is_future=time_ms > self._now_ms)

    def _before_begin(self) -> str:
        begins = [record.recorded_at for p in self._log.ends() if (record := self._log.record_at(p, 0)) is not None]
        if not begins:
            return "nothing is recorded in this log yet"
        return f"the log begins at {millis_text(min(begins))}; that is the earliest time it can answer"

    def _marker(self, name: str) -> Cut:
        markers = {marked.name: marked for marked in self._log.markers()}
        if name not in markers:
            known = ", ".join(f"@{each}" for each in markers) or "none; set one with `refold mark NAME`"
            raise InputError(f"@{name}: no such marker; this log has {known}")
        return self._checked(parse_cut(markers[name].cut))

    def _cut(self, text: str) -> Cut:
        short = text.removeprefix(PREFIX)
        if not SHORT.match(short):
            return self._checked(parse_cut(text))
        found = {cut for cut in (read_cut(marked.cut) for marked in self._log.markers()) if cut.short == short}
        if len(found) != 1:
            reason = "several markers are at cuts with" if found else "no marker is at a cut with"
            raise InputError(f"{text}: {reason} this short hash; give the cut's whole text")
        return self._checked(require_fold_version(found.pop()))

    def _checked(self, cut: Cut) -> Cut:
        """Return the cut if it belongs to this log and is not past its end. Raises InputError or NotAnswerable
        otherwise.
        """
        if cut.log_id == self._log.forked_from:
            raise InputError(
                f"cut {cut.short} is of the log {cut.log_id.hex()}, and this is its fork {self._log.log_id.hex()} "
                f"({self._log.url}); use the same point by its marker, time or offsets, or open that log's archive"
            )
        if cut.log_id != self._log.log_id:
            raise InputError(
                f"cut {cut.short} is of the log {cut.log_id.hex()}, and this is {self._log.log_id.hex()} "
                f"({self._log.url}); open the log it was taken from"
            )
        ends = self._log.ends()
        if cut.offsets.keys() != ends.keys():
            raise InputError(f"cut {cut.short} has {len(cut.offsets)} partitions, and this log has {len(ends)}")
        self._within(cut.offsets, ends)
        if cut.schemas > len(self._log.registry) or cut.types_digest != self._log.registry.digest(cut.schemas):
            raise NotAnswerable(f"cut {cut.short} was taken under type definitions this log does not hold")
        return cut

    def _within(self, offsets: object, ends: dict[int, int]) -> None:
        assert isinstance(offsets, dict)
        for partition, offset in offsets.items():
            if partition not in ends:
                raise InputError(f"offset:{partition}={offset}: this log has the partitions 0 to {len(ends) - 1}")
            if offset > ends[partition]:
                raise NotAnswerable(
                    f"offset {offset} of partition {partition} is past the end; the next offset is {ends[partition]}"
                )

    def _offsets(self, text: str) -> Cut:
        ends = self._log.ends()
        offsets = dict.fromkeys(ends, 0)
        given: dict[int, int] = {}
        for part in text.removeprefix("offset:").split(","):
            found = OFFSET.match(part)
            if found is None or int(found[1]) in given:
                raise InputError(
                    f"{text!r}: offsets are written offset:PARTITION=NEXT,..., each partition once, "
                    "such as offset:0=41,1=17"
                )
            given[int(found[1])] = int(found[2])
        self._within(given, ends)
        offsets.update(given)
        return self._at(offsets, self._schemas_of(offsets))

    def _schemas_of(self, offsets: dict[int, int]) -> int:
        """The next offset of `.schemas` at the time of the last record below the offsets."""
        latest = max(self._log.recorded_below(partition, offset) for partition, offset in offsets.items())
        return self._log.registry.schemas_offset_at(latest) if latest else 0

    def _version(self, version: int, entity: str | None) -> Cut:
        if entity is None:
            raise InputError(
                f"v{version}: a version is one entity's; give TYPE/ID where the command takes it, else another point: "
                f"{FORMS}"
            )
        partition, found = self._log.partition_of(entity), 0
        for found, arrival in enumerate(self._log.arrivals(entity, self._log.ends()[partition]), 1):
            if found == version:
                return self._just_after(partition, arrival.offset, arrival.recorded_at)
        if not found:
            raise InputError(f"{entity}: no observation of it is in this log")
        raise NotAnswerable(f"{entity}: v{version} does not exist; its versions are v1 to v{found}")

    def _just_after(self, partition: int, offset: int, recorded_at: int) -> Cut:
        offsets = {other: self._log.first_after(other, recorded_at) for other in self._log.ends()}
        offsets[partition] = offset + 1
        return self._at(offsets, self._log.registry.schemas_offset_at(recorded_at))

    def _step(self, text: str) -> Cut:
        """The point after the latest record of the step's entity."""
        run, hash_sign, step = text.removeprefix("run:").rpartition("#")
        if not hash_sign or not run or not step:
            raise InputError(f"{text!r}: a step is written run:ID#STEP, such as run:8f2c#3")
        entity = f"step/{run}#{step}"
        end = self._log.ends()[self._log.partition_of(entity)]
        last = None
        for last in self._log.entity_records(entity, end):  # noqa: B007  # the last one is what is asked for
            pass
        if last is None:
            raise InputError(
                f"{text}: there is no {entity} in this log; `refold state run/{run}` shows what the run has"
            )
        return self._just_after(last.partition, last.offset, last.recorded_at)
