"""A worker's log lines: one per record, read back as text and as JSON; dead letters are rate limited."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from refold.streams.events import (
    LETTERS_EVERY_S,
    LETTERS_MAX,
    PASSED_EVERY_S,
    DeadLetterLog,
    SkippedRecordsLog,
    log_event,
)
from refold.streams.log.port import Foreign, Position
from refold.streams.worker.host.logs import JsonLines, TextLines, logged_to_stderr

FIELDS: dict[str, Any] = {
    "partition": 3,
    "took_s": 0.25,
    "why": 'no "x" = y\nat all',
    "made_from": {"replayed": 2},
    "left": None,
}


@pytest.fixture
def log() -> Iterator[logging.Logger]:
    found = logging.getLogger("refold.tests.log")
    found.propagate = False
    found.setLevel(logging.INFO)
    yield found
    found.handlers.clear()


def lines(log: logging.Logger, form: logging.Formatter) -> io.StringIO:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(form)
    log.addHandler(handler)
    return stream


def test_event_as_text_is_one_line_of_time_level_event_and_fields(log: logging.Logger) -> None:
    stream = lines(log, TextLines())
    log_event(log, "partition_folding", **FIELDS)
    (line,) = stream.getvalue().splitlines()
    time, level, event, rest = line.split(" ", 3)
    assert (time[10], time[-1], level, event) == ("T", "Z", "INFO", "partition_folding")
    assert rest == 'partition=3 took_s=0.25 why="no \\"x\\" = y\\nat all" made_from={"replayed":2}'


def test_event_as_json_is_one_object(log: logging.Logger) -> None:
    stream = lines(log, JsonLines())
    log_event(log, "partition_folding", logging.WARNING, **FIELDS)
    (line,) = stream.getvalue().splitlines()
    found = json.loads(line)
    assert [*found][:5] == ["time", "level", "logger", "event", "message"]
    assert found.pop("time").endswith("Z")
    assert found.pop("message").startswith("partition_folding partition=3 took_s=0.25")
    given = {name: value for name, value in FIELDS.items() if value is not None}
    assert found == {"level": "warning", "logger": log.name, "event": "partition_folding", **given}


@pytest.mark.parametrize("form", [TextLines(), JsonLines()])
def test_ordinary_log_record_is_one_line_with_its_traceback(log: logging.Logger, form: logging.Formatter) -> None:
    stream = lines(log, form)
    try:
        raise ValueError("it")
    except ValueError:
        log.exception("failed: %s", "x y")
    (line,) = stream.getvalue().splitlines()
    for part in ("message", "failed: x y", "Traceback", "ValueError: it", log.name):
        assert part in line


def test_dead_letters_are_counted_past_a_bound_and_reported_again_later(log: logging.Logger) -> None:
    stream, now_s = lines(log, TextLines()), 0.0
    letters = DeadLetterLog(log, lambda: now_s)
    for offset in range(LETTERS_MAX + 7):
        letters.log(2, offset, "undecodable")
    now_s = LETTERS_EVERY_S
    letters.flush_if_due()
    letters.log(2, 99, "misplaced")
    events = [line.split(" ", 2)[2] for line in stream.getvalue().splitlines()]
    assert events[:LETTERS_MAX] == [
        f"dead_letter partition=2 offset={offset} reason=undecodable" for offset in range(LETTERS_MAX)
    ]
    assert events[LETTERS_MAX:] == [
        "dead_letters_suppressed count=7 seconds=60",
        "dead_letter partition=2 offset=99 reason=misplaced",
    ]


def test_logging_is_restored_after_a_worker(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """A process that runs a worker and continues, such as a test, keeps its own log."""
    log = logging.getLogger("refold.tests.after")
    with caplog.at_level(logging.INFO):
        with logged_to_stderr("warning", "text"):
            log.info("not written")
            log.warning("written")
        log.info("heard by the root logger")
    assert [record.getMessage() for record in caplog.records] == ["heard by the root logger"]
    assert capsys.readouterr().err.count("\n") == 1


def test_skipped_records_are_reported_rarely_and_only_when_there_are_more(log: logging.Logger) -> None:
    stream, now_s = lines(log, TextLines()), 0.0
    passed = SkippedRecordsLog(log, lambda: now_s)

    def look(records: int) -> None:
        passed.update("foreign_records", [Foreign("shop.schemas", records, Position(0, 4))])

    passed.update("foreign_records", [])
    look(1)
    look(5)
    passed.update("damaged_records", [Foreign("shop.schemas", 2, Position(0, 4))])
    now_s = PASSED_EVERY_S
    look(9)
    now_s = 2 * PASSED_EVERY_S
    look(9)
    assert [line.split(" ", 2)[2] for line in stream.getvalue().splitlines()] == [
        "foreign_records topic=shop.schemas records=1 partition=0 offset=4",
        "damaged_records topic=shop.schemas records=2 partition=0 offset=4",
        "foreign_records topic=shop.schemas records=9 partition=0 offset=4",
    ]
