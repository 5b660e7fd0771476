"""Every form of WHEN, resolved to a cut; and cuts as text."""

from __future__ import annotations

import base64
import datetime as dt
import random
from collections.abc import Iterator
from pathlib import Path

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.avro.errors import InputError, NotAnswerable, UnknownEntity
from refold.streams.client import Log
from refold.streams.cut import Cut, parse_cut
from refold.streams.point import When
from refold_tests.clock import BEGIN_MS, FileClock
from refold_tests.opening import open_log, take
from refold_tests.sample_types import OTHER, THING, A, defined, document, said

B = f"{OTHER.name}/b"
STEP = defined(document("step", folded={"type": "long", "refold.reducer": "latest"}))


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    """Two partitions: A in one, B in the other.

    ms from BEGIN_MS:  0 type of A, A0   10 A1   10 type of B, B0   20 A2   30 B1, B2   40 A3
    """
    clock = FileClock(tmp_path / "clock")
    with open_log(tmp_path, types=(THING, OTHER, STEP)) as opened:
        assert opened.port.partition_of(A) != opened.port.partition_of(B)
        for later, entity, numbers in (
            (0, A, (0,)),
            (10, A, (1,)),
            (10, B, (0,)),
            (20, A, (2,)),
            (30, B, (1, 2)),
            (40, A, (3,)),
        ):
            clock.set(BEGIN_MS + later)
            take(opened, [said(entity, number) for number in numbers])
        clock.set(BEGIN_MS + 10_000)
        yield opened


def place(log: Log, when: When, entity: str | None = None, clock: str = "recorded") -> tuple[int, int, int]:
    """(records of A, records of B, definitions) below the point."""
    cut = log.point(when, entity, clock).cut
    return cut.offsets[log.port.partition_of(A)], cut.offsets[log.port.partition_of(B)], cut.schemas


def time(later_ms: float) -> str:
    moment = dt.datetime.fromtimestamp((BEGIN_MS + later_ms) / 1000, dt.UTC)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


# Times


@pytest.mark.parametrize(
    ("later_ms", "expected"),
    [
        (0, (1, 0, 1)),
        (9, (1, 0, 1)),
        (9.999, (1, 0, 1)),
        (10, (2, 1, 2)),
        (10.5, (2, 1, 2)),
        (20, (3, 1, 2)),
        (29, (3, 1, 2)),
        (30, (3, 3, 2)),
        (40, (4, 3, 2)),
        (9_000, (4, 3, 2)),
    ],
)
def test_time_takes_what_was_recorded_until_then(log: Log, later_ms: float, expected: tuple[int, int, int]) -> None:
    assert place(log, time(later_ms)) == expected
    moment = dt.datetime.fromisoformat(time(later_ms).replace("Z", "+00:00"))
    assert place(log, moment) == expected
    assert place(log, moment.astimezone(dt.timezone(dt.timedelta(hours=9)))) == expected
    assert place(log, moment.astimezone(dt.timezone(dt.timedelta(hours=9))).isoformat()) == expected


def test_time_is_open_until_it_is_five_seconds_old(log: Log, tmp_path: Path) -> None:
    assert not log.point(time(40)).open
    assert not log.point(time(5_000)).open
    assert log.point(time(5_001)).open
    assert log.point(time(99_000)).open
    FileClock(tmp_path / "clock").set(BEGIN_MS + 10_001)
    assert not log.point(time(5_001)).open


def test_time_before_the_log_starts_names_its_start(log: Log) -> None:
    with pytest.raises(NotAnswerable, match=r"the log begins at 2023-11-14T22:13:20\.000Z"):
        log.point(time(-1))


def test_empty_log_has_no_past(tmp_path: Path) -> None:
    with open_log(tmp_path) as empty:
        with pytest.raises(NotAnswerable, match="nothing is recorded in this log yet"):
            empty.point(time(0))
        assert len(empty.rebuild()) == 0
        assert empty.verify().ok
        with pytest.raises(UnknownEntity, match=A):
            empty.state(A)


@pytest.mark.parametrize("when", ["", "now", " now ", None])
def test_now_is_the_end(log: Log, when: str | None) -> None:
    assert place(log, when) == (4, 3, 2)
    assert not log.point(when).open


@pytest.mark.parametrize(
    "when",
    [
        "2023-11-14",
        "2023-11-14T22:13:20",
        "2023-11-14T25:00:00Z",
        "2023-13-14T22:13:20Z",
        "22:13",
        "yesterday",
        "v",
        "vx",
        "v1.0",
        "v-1",
        "v" + "9" * 5000,
        "@",
        "offset",
        "cut",
        "run",
        "1700000000",
        "\x00",
    ],
)
def test_unrecognized_point_is_refused(log: Log, when: str) -> None:
    with pytest.raises(InputError):
        log.point(when, A)


def test_datetime_needs_its_zone_and_a_number_is_no_time(log: Log) -> None:
    with pytest.raises(InputError, match="with its time zone"):
        log.point(dt.datetime(2023, 11, 15))  # noqa: DTZ001  # that it has no zone is the point
    with pytest.raises(InputError, match="not a point in time"):
        log.point(BEGIN_MS)  # type: ignore[arg-type]


def test_offset_has_no_observed_time(log: Log) -> None:
    log.mark("place")
    for when in ("@place", "offset:0=0"):
        with pytest.raises(InputError, match="give a time with that clock"):
            log.point(when, clock="observed")


def test_observed_clock_filters_the_end(log: Log) -> None:
    point = log.point(time(2_000), clock="observed")
    assert point.cut == log.point().cut.until(BEGIN_MS * 1000 + 2_000_000)
    assert log.rebuild(time(2_000), clock="observed")[A].fields["last"] == 2
    assert log.rebuild(time(1_999), clock="observed")[A].fields["last"] == 1
    with pytest.raises(InputError, match="clock 'read'"):
        log.point(time(0), clock="read")


# Markers, cuts, offsets


def test_marker_is_the_cut_it_names(log: Log) -> None:
    marked = log.mark("early", time(10))
    assert place(log, "@early") == (2, 1, 2)
    assert log.point("@early").cut == marked
    assert log.mark("here") == log.point().cut
    take(log, [said(A, 4)])
    assert place(log, "@here") == (4, 3, 2)
    with pytest.raises(InputError, match="@late: no such marker; this log has @early, @here"):
        log.point("@late")
    with pytest.raises(InputError, match="exists"):
        log.mark("early")
    log.mark("early", replace=True)
    assert place(log, "@early") == (5, 3, 2)
    for bad in ("", "@x", "a\nb", "x" * 2_000):
        with pytest.raises(InputError):
            log.mark(bad)


def test_log_without_markers_says_how_to_mark(log: Log) -> None:
    with pytest.raises(InputError, match="none; set one with `refold mark NAME`"):
        log.point("@early")


def test_cut_is_its_text(log: Log) -> None:
    cut = log.point("offset:0=1").cut
    for when in (None, time(10), "offset:0=1"):
        cut = log.point(when).cut
        assert log.point(cut).cut == cut
        assert log.point(str(cut)).cut == cut
        assert parse_cut(str(cut).removeprefix("cut:")) == cut
    with pytest.raises(InputError, match="no marker is at a cut with this short hash"):
        log.point(f"cut:{cut.short}")
    log.mark("m", cut)
    log.mark("same", cut)
    assert log.point(f"cut:{cut.short}").cut == cut


def test_another_logs_cut_is_refused_by_name(log: Log, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with open_log(tmp_path / "other") as other:
        take(other, [said(A, 0)])
        cut = other.point().cut
    for when in (cut, str(cut)):
        with pytest.raises(InputError, match=f"{other.port.log_id.hex()}, and this is {log.port.log_id.hex()}"):
            log.point(when)


def test_cut_past_the_end_or_of_other_types_is_refused(log: Log) -> None:
    here = log.point().cut
    first, *_ = here.offsets
    with pytest.raises(NotAnswerable, match=f"past the end.* {here.offsets[first]}"):
        log.point(Cut(here.log_id, {**here.offsets, first: 99}, here.schemas, here.types_digest))
    with pytest.raises(InputError, match="has 1 partitions, and this log has 2"):
        log.point(Cut(here.log_id, {0: 1}, here.schemas, here.types_digest))
    with pytest.raises(NotAnswerable, match="type definitions this log does not hold"):
        log.point(Cut(here.log_id, here.offsets, here.schemas + 1, here.types_digest))
    with pytest.raises(NotAnswerable, match="type definitions this log does not hold"):
        log.point(Cut(here.log_id, here.offsets, here.schemas - 1, here.types_digest))


def test_offsets_are_next_offsets_and_unnamed_ones_are_at_their_start(log: Log) -> None:
    a, b = log.port.partition_of(A), log.port.partition_of(B)
    assert place(log, f"offset:{a}=2,{b}=1") == (2, 1, 2)
    assert place(log, f"offset: {b} = 1 , {a} = 2 ") == (2, 1, 2)
    assert place(log, f"offset:{a}=1") == (1, 0, 1)
    assert place(log, f"offset:{a}=0") == (0, 0, 0)
    assert place(log, f"offset:{b}=3") == (0, 3, 2)


@pytest.mark.parametrize(
    "when",
    ["offset:", "offset:0", "offset:0=", "offset:=1", "offset:0=1,", "offset:0=-1", "offset:0=x", "offset:0=1;1=1",
     "offset:0=1,0=2", "offset:0=1.0", "offset:2=0", "offset:0=" + "9" * 5000, "offset:٣=1"],
)  # fmt: skip
def test_invalid_offsets_are_refused(log: Log, when: str) -> None:
    with pytest.raises(InputError):
        log.point(when)


def test_offset_past_the_end_names_the_end(log: Log) -> None:
    with pytest.raises(NotAnswerable, match=r"offset 5 of partition \d is past the end; .* 4"):
        log.point(f"offset:{log.port.partition_of(A)}=5")


# Versions and steps


def test_version_is_just_after_its_observation(log: Log) -> None:
    assert [place(log, f"v{version}", A) for version in (1, 2, 3, 4)] == [(1, 0, 1), (2, 1, 2), (3, 1, 2), (4, 3, 2)]
    assert [place(log, f"v{version}", B) for version in (1, 2, 3)] == [(2, 1, 2), (3, 2, 2), (3, 3, 2)]
    take(log, [said(A, 0), said(A, 9)])  # a repeat makes no version
    assert place(log, "v5", A) == (6, 3, 2)
    assert log.state(A, "v5").version == 5


def test_unknown_version_names_the_existing_ones(log: Log) -> None:
    for when in ("v0", "v5", "v999999999999999999"):
        with pytest.raises(NotAnswerable, match="its versions are v1 to v4"):
            log.point(when, A)
    with pytest.raises(InputError, match="a version is one entity's"):
        log.point("v1")
    with pytest.raises(InputError, match="no observation of it is in this log"):
        log.point("v1", f"{A}none")


def test_step_is_just_after_its_last_record(log: Log) -> None:
    take(log, [said("step/r#s#1", 0), said(A, 5), said("step/r#s#1", 1), said("step/r#s#2", 2)], STEP)
    cut = log.point("run:r#s#1").cut
    partition = log.port.partition_of("step/r#s#1")
    assert [each.offset for each in log.port.entity_records("step/r#s#1", 99)][-1] == cut.offsets[partition] - 1
    assert cut.schemas == 3
    assert log.state("step/r#s#1", "run:r#s#1").version == 2
    with pytest.raises(InputError, match="there is no step/r#3 in this log; `refold state run/r` shows"):
        log.point("run:r#3")
    for when in ("run:", "run:r", "run:r#", "run:#1"):
        with pytest.raises(InputError, match="a step is written run:ID#STEP"):
            log.point(when)


# The text of cuts


cuts = st.builds(
    Cut,
    log_id=st.binary(min_size=16, max_size=16),
    offsets=st.dictionaries(st.integers(0, 1023), st.integers(0, 2**63 - 1), min_size=1, max_size=20),
    schemas=st.integers(0, 2**40),
    types_digest=st.binary(min_size=32, max_size=32),
    observed_until=st.one_of(st.none(), st.integers(-(2**62), 2**62)),
)


@given(cuts)
def test_cut_round_trips_through_text(cut: Cut) -> None:
    again = parse_cut(str(cut))
    assert again == cut
    assert (hash(again), str(again), again.short) == (hash(cut), str(cut), cut.short)
    assert str(cut).startswith("cut:1.")


@given(cuts, st.randoms(use_true_random=False))
def test_damaged_text_is_refused(cut: Cut, rng: random.Random) -> None:
    text = str(cut)
    at = rng.randrange(len("cut:1."), len(text))
    letter = rng.choice("ABab01-_=+/ \n")
    for damaged in (text[:at] + letter + text[at + 1 :], text[:at] + text[at + 1 :], text[:at] + letter + text[at:]):
        # If it is still a complete cut, it is another one, and its text shows that.
        try:
            found = parse_cut(damaged)
        except InputError:
            continue
        assert str(found) == damaged
        assert (found == cut) == (damaged == text)


@given(st.one_of(st.binary(max_size=80), st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=3), st.binary(max_size=33), st.floats()),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.sampled_from("lpsvto"), inner)),
).map(cbor2.dumps)))  # fmt: skip
def test_other_bytes_are_no_cut(body: bytes) -> None:
    with pytest.raises(InputError):
        parse_cut("1." + base64.urlsafe_b64encode(body).rstrip(b"=").decode())


@pytest.mark.parametrize(
    "replaced",
    [
        {"l": "x" * 16},
        {"l": bytes(15)},
        {"t": bytes(31)},
        {"p": {0: -1}},
        {"p": {0: True}},
        {"p": {"0": 1}},
        {"p": [1]},
        {"s": -1},
        {"s": 1.0},
        {"o": None},
        {"o": 1.5},
        {"x": 1},
    ],
)
def test_cut_with_an_invalid_part_is_refused(replaced: dict[str, object]) -> None:
    tree = {"l": bytes(16), "p": {0: 1}, "s": 1, "t": bytes(32), "v": 1, **replaced}
    text = "cut:1." + base64.urlsafe_b64encode(cbor2.dumps(tree, canonical=True)).rstrip(b"=").decode()
    with pytest.raises(InputError, match="damaged"):
        parse_cut(text)


def test_cut_of_another_format_or_fold_version_is_named() -> None:
    tree = {"l": bytes(16), "p": {0: 1}, "s": 1, "t": bytes(32), "v": 7}
    text = "cut:1." + base64.urlsafe_b64encode(cbor2.dumps(tree, canonical=True)).rstrip(b"=").decode()
    with pytest.raises(InputError, match="fold version 7, this release folds by version 1"):
        parse_cut(text)
    with pytest.raises(InputError, match="not a cut that this release reads"):
        parse_cut("cut:2.abc")
