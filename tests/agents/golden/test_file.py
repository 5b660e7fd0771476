"""A golden trace in its file: it reads back unchanged, edits are detected, and it holds nothing that it should not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from refold.agents.golden.add import portable
from refold.agents.golden.file import DefaultAnswer, Golden, Origin, found, golden_of, read, signed, text_of, write
from refold.agents.journal.chain import broken
from refold.agents.journal.self_replay import chained, states
from refold.agents.redaction.redactor import Redactor
from refold.avro.errors import CorruptionError, InputError, RedactionFailed
from refold_tests.refunds import refund_run

SPECIMEN = Path(__file__).parent / "format-1.golden.json"


def golden(**changed: Any) -> Golden:
    given: dict[str, Any] = {
        "name": "refund", "description": "Once paid, once refunded.", "entry": "shop:refund",
        "expect": ("outcome=succeeded", "refund<=1"), "run": portable(refund_run()), **changed,
    }  # fmt: skip
    return Golden(**given)


def edited(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new)


def test_file_round_trips(tmp_path: Path) -> None:
    given = golden(
        known_bad="it refunds twice",
        must_fail="not mended yet",
        answers=(DefaultAnswer(name="refund", answer={"ok": 1.0}),),
        recorded=Origin(run="r-17", hash="ab"),
    )
    path = write(given, tmp_path / "made")
    assert path.name == "refund.golden.json"
    assert read(path) == given
    assert text_of(read(path)) == path.read_text(encoding="utf-8")
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_floats_and_text_round_trip(tmp_path: Path) -> None:
    run = chained(
        msgspec.structs.replace(portable(refund_run()), output={"paid": 50.0, "text": "a\nb\n", "$text": [1]})
    )
    assert repr(read(write(golden(run=run), tmp_path)).run.output) == repr(run.output)


def test_file_contains_nothing_of_log_machine_or_time() -> None:
    text = text_of(golden())
    for word in ("cut:1", "u-1", "t:1:", "shop.py", "started_at", "duration", '"at"'):
        assert word not in text, word
    assert "gift" in text, "what was read stands in it"
    assert "1790000000000000" in text, "the time that the code was told stands in it"


def test_portable_run_keeps_its_states_and_has_a_chain() -> None:
    run = portable(refund_run())
    assert list(states(run)) == list(states(refund_run()))
    assert list(broken(run)) == []
    assert len(run.hash) == 64
    assert portable(run) == run


def test_redaction_reaches_every_part() -> None:
    def redact(tree: Any) -> Any:
        if isinstance(tree, dict):
            return {key: "[gone]" if key == "status" else redact(value) for key, value in tree.items()}
        if isinstance(tree, list):
            return [redact(each) for each in tree]
        return tree.replace("ann@example.com", "[mail]") if isinstance(tree, str) else tree

    run = portable(refund_run(output="for ann@example.com", title="ann@example.com"), redact)
    text = text_of(golden(run=run))
    assert "ann@" not in text
    assert '"new"' not in text
    assert '"open"' not in text, "a key of the state that stands in the path of an edit"
    assert list(broken(run)) == []


def test_fork_keeps_its_patch_and_its_states_are_redacted() -> None:
    def redact(tree: Any) -> Any:
        if isinstance(tree, dict):
            return {key: "[gone]" if key == "secret" else redact(value) for key, value in tree.items()}
        return [redact(each) for each in tree] if isinstance(tree, list) else tree

    patch = {"state": [["set", ["secret"], "x1"], ["set", ["ticket", "secret"], "x2"]]}
    fork = chained(refund_run(parent="r-16", forked_at=1, patch=patch))
    before = list(states(fork))
    assert before[2]["secret"] == "x1"
    run = portable(fork, redact)
    assert list(states(run)) == [redact(each) for each in before]
    assert '"x' not in text_of(golden(run=run))
    assert list(broken(run)) == []
    assert golden_of(text_of(golden(run=run)), "x") == golden(run=run)


def test_standard_redactor_leaves_no_secret() -> None:
    told = {"note": "for ann@example.com", "password": "hunter2-is-mine"}
    run = portable(refund_run(input=told, output={"said": "hunter2-is-mine, ann@example.com"}), Redactor())
    text = text_of(golden(run=run))
    assert "ann@example.com" not in text
    assert "hunter2-is-mine" not in text
    assert run.output["said"] == f"{run.input['password']}, {run.input['note'].removeprefix('for ')}"


def test_raising_redactor_stops_the_export() -> None:
    def redact(tree: Any) -> Any:
        raise ZeroDivisionError

    with pytest.raises(RedactionFailed):
        portable(refund_run(), redact)


def test_edit_is_detected_until_signed() -> None:
    text = text_of(golden())
    changed = edited(text, '"price": 50.0', '"price": 49.0')
    with pytest.raises(CorruptionError, match=r"refold golden sign x\.json"):
        golden_of(changed, "x.json")
    mended = golden_of(signed(changed, "x.json"), "x.json")
    assert mended.run.steps[0].calls[2].answer["price"] == 49.0
    assert mended.run.hash != golden().run.hash, "its chain is that of what stands in it"
    assert signed(text, "x.json") == text


def test_whitespace_is_no_edit() -> None:
    assert golden_of(json.dumps(json.loads(text_of(golden())), indent=7, sort_keys=True), "x.json") == golden()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"expect"', '"expects"', "expects"),
        ('"delta"', '"dleta"', "run.steps[0].dleta"),
        ('"refold_golden": 1', '"refold_golden": 99', "99"),
        ('"number": 1', '"number": "one"', "number"),
        ('"refold_golden"', '"else"', "refold golden add"),
        ("{", "{{", "JSON"),
    ],
)
def test_unusable_file_is_refused_by_name(old: str, new: str, said: str) -> None:
    text = text_of(golden())
    assert old in text
    with pytest.raises(InputError) as refused:
        signed(text.replace(old, new, 1), "x.json")
    assert said in str(refused.value)
    assert "x.json" in str(refused.value)


def test_first_format_stays_readable() -> None:
    """A file as the first release wrote it. It must never be regenerated."""
    held = read(SPECIMEN)
    assert held == golden(recorded=Origin(run="r-17", hash=held.recorded.hash))


def test_files_are_found(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="refold golden add RUN --out"):
        found(tmp_path)
    with pytest.raises(InputError, match="no such folder"):
        found(tmp_path / "absent")
    paths = [write(golden(name="b"), tmp_path), write(golden(name="a"), tmp_path / "deep")]
    (tmp_path / "other.json").write_text("{}")
    assert found(tmp_path) == paths
    assert found(paths[0]) == paths[:1]
    with pytest.raises(InputError, match="name"):
        write(golden(name="../up"), tmp_path)
