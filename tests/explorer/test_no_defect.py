"""Inputs that once ended with exit status 70 are now refused with 2 and a line that names what is wrong and where."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import refold
from refold_tests.command import COMMAND, environment, refold_command
from refold_tests.tree import ROOT

GOLDEN = ROOT / "docs" / "examples" / "golden" / "paid-four-times.golden.json"
LINE = {"entity": "tool_config/a", "observed_at": "2026-01-01T00:00:00Z", "patch": {"rate_limit": 1}}


def deep(levels: int) -> Any:
    tree: Any = 1
    for _ in range(levels):
        tree = [tree]
    return tree


def first_call(tree: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = tree["run"]["steps"][0]["attempts"][0]["calls"][0]
    return found


def with_delta(*edits: Any) -> Callable[[dict[str, Any]], object]:
    return lambda tree: tree["run"]["steps"][0].update(delta=list(edits))


GOLDENS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "format of a list": (lambda tree: tree.update(refold_golden=[1]), "format"),
    "format of a float": (lambda tree: tree.update(refold_golden=1.0), "format"),
    "infinity": (lambda tree: tree["run"].update(input="1e999"), "NaN and infinity"),
    "integer past a double": (lambda tree: tree["run"].update(input=10**30 + 1), "integer"),
    "lone surrogate": (lambda tree: tree.update(description="\ud800"), "surrogates"),
    "deep answer": (lambda tree: first_call(tree).update(answer=deep(99)), "deep"),
    "edit of nothing": (with_delta([]), "edit"),
    "edit of a missing key": (with_delta(["remove", ["nope"]]), "edit"),
    "edit of a text": (with_delta(["set", "ab", 1]), "edit"),
    "edit by a path of a number": (with_delta(["set", 5, 1]), "edit"),
    "splice of a text": (with_delta(["splice", [], "a", 1, 2]), "edit"),
    "edit of another kind": (with_delta(["nope", [], 1]), "edit"),
    "decision without a choice": (
        lambda tree: first_call(tree).update(asked={"kind": "decide", "request": {}}), "choice",
    ),
    "decision of null": (lambda tree: first_call(tree).update(asked={"kind": "decide"}), "choice"),
    "text of numbers": (lambda tree: tree["run"].update(input={"$text": [1]}), "$text"),
    "patch without edits": (
        lambda tree: tree["run"].update(parent="p", forked_at=0, patch={"state": 5}), "list of edits",
    ),
    "expectation of many digits": (lambda tree: tree.update(expect=["refund<=" + "9" * 5000]), "refund"),
    "index of many digits": (lambda tree: tree.update(expect=["state[" + "9" * 5000 + "]=1"]), "expectation"),
    "expectation of NaN": (lambda tree: tree.update(expect=["output.refund=NaN"]), "NaN"),
}  # fmt: skip


@pytest.mark.parametrize("case", GOLDENS)
def test_invalid_golden_file_is_refused(case: str, tmp_path: Path) -> None:
    change, word = GOLDENS[case]
    tree = json.loads(GOLDEN.read_text())
    change(tree)
    file = tmp_path / "bad.golden.json"
    file.write_text(json.dumps(tree).replace('"1e999"', "1e999"))
    said = refold_command("golden", "sign", file).refused()
    assert "bad.golden.json" in said
    assert word in said
    ran = refold_command("golden", "run", file)
    assert (ran.status, ran.err) == (1, ""), ran
    listed = refold_command("golden", "list", file).refused()
    assert "bad.golden.json" in listed


def test_golden_file_that_is_too_long_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "long.golden.json"
    with file.open("wb") as made:
        made.truncate((64 << 20) + 1)
    said = refold_command("golden", "list", file).refused()
    assert f"{file}: not a golden trace: it is longer than 67,108,864 bytes" in said


def test_golden_file_with_huge_integers_is_refused(tmp_path: Path) -> None:
    for number, text in enumerate(
        ('{"refold_golden": 1' + "0" * 5000 + "}", "[" * 100_000, "NaN", '{"refold_golden": NaN}')
    ):
        (tmp_path / f"{number}.golden.json").write_text(text)
        assert "not a golden trace" in refold_command("golden", "sign", tmp_path / f"{number}.golden.json").refused()


DOCUMENTS: dict[str, tuple[str, str, str]] = {
    "id with a surrogate": ("observations", json.dumps({**LINE, "entity": "tool_config/\ud800"}), "surrogates"),
    "run id with a surrogate": ("observations", json.dumps({**LINE, "source": {"run": "\udfff"}}), "surrogates"),
    "key with a surrogate": ("observations", json.dumps({**LINE, "\ud800": 1}), "surrogates"),
    "5,000 digits": ("observations", '{"entity": ' + "9" * 5000 + "}", "4,300 digits"),
    "seq of 4,000 digits": (
        "observations", json.dumps(LINE)[:-1] + ', "source": {"seq": ' + "9" * 4000 + "}}", "source.seq",
    ),
    "NaN": ("observations", '{"entity": NaN}', "NaN is not a JSON number"),
    "infinity": ("chat", '[{"role": "user", "content": "a", "x": 1e999}]', "NaN and infinity"),
    "deep metadata": ("chat", json.dumps({"messages": [], "metadata": deep(500)}), "nested deeper"),
    "date out of range": ("observations", json.dumps({**LINE, "observed_at": 2**62}), "1 to 9999"),
    "deep definition": ("observations", json.dumps({"definition": deep(500)}), "nested deeper"),
}  # fmt: skip


@pytest.mark.parametrize("case", DOCUMENTS)
def test_bad_line_is_refused_by_its_position(case: str, tmp_path: Path) -> None:
    form, line, word = DOCUMENTS[case]
    (tmp_path / "x.jsonl").write_text(line)
    said = refold_command("import", tmp_path / "x.jsonl", "--format", form, log=f"file:{tmp_path / 'log'}").refused()
    assert "x.jsonl:1" in said
    assert word in said


ARGUMENTS: dict[str, tuple[list[str], str]] = {
    "zero byte in a path": (["state", "a/b", "--log", "file:%00"], "zero byte"),
    "zero byte in a store": (["observe", "a/b", "x=1", "--log", "file:x?blobs=file:///%00"], "zero byte"),
    "path that is not UTF-8": (["state", "a/b", "--log", "file:%ff"], "UTF-8"),
    "partitions of 5,000 digits": (["state", "a/b", "--log", "file:x?partitions=" + "9" * 5000], "whole number"),
    "no such user": (["state", "a/b", "--log", "file:~nobody-of-that-name/x"], "home directory"),
    "value of 5,000 digits": (["observe", "tool_config/a", "settings.x=" + "9" * 5000], "digits"),
    "deep value": (["observe", "tool_config/a", "settings.x=" + "[" * 5000], "settings.x"),
    "surrogate in a value": (["observe", "tool_config/a", 'settings.x="\\ud800"'], "surrogates"),
}


@pytest.mark.parametrize("case", ARGUMENTS)
def test_invalid_argument_is_refused(case: str, tmp_path: Path) -> None:
    arguments, word = ARGUMENTS[case]
    assert word in refold_command(*arguments, log=f"file:{tmp_path / 'log'}", folder=tmp_path).refused()


@pytest.mark.parametrize("command", ["state", "history", "observe", "why", "mark"])
def test_argument_that_is_not_utf_8_is_refused(command: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, command, os.fsdecode(b"tool_config/\xff")],
        env=environment(f"file:{tmp_path / 'log'}"), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "UTF-8" in done.stderr


@pytest.mark.parametrize("data", [bytes(16), b"", b"\xff" * 16, b"MANIFEST-999999\n"])
def test_damaged_current_file_is_damage_of_the_log(data: bytes, tmp_path: Path) -> None:
    with refold.open(f"file:{tmp_path / 'log'}") as log:
        log.observe("tool_config/a", {"rate_limit": 1}, source="a")
    (tmp_path / "log" / "db" / "CURRENT").write_bytes(data)
    for command in (["state", "tool_config/a"], ["verify"], ["observe", "tool_config/a", "rate_limit=2"]):
        shutil.copytree(tmp_path / "log", tmp_path / "copy")
        assert "copy" in refold_command(*command, log=f"file:{tmp_path / 'copy'}").refused()
        shutil.rmtree(tmp_path / "copy")


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('{"type": "record", "name": "t", "name": "u"}', "twice"), ("[" * 5000, "nested deeper"),
        ("9" * 5000, "digits"), ('{"type": "record", "doc": "\\ud800"}', "surrogates"), ('{"a": NaN}', "NaN"),
        (" " * (5 << 20), "longer than"),
    ],
)  # fmt: skip
def test_invalid_type_file_is_refused(text: str, word: str, tmp_path: Path) -> None:
    (tmp_path / "x.avsc").write_text(text)
    said = refold_command("types", "--register", tmp_path / "x.avsc", log=f"file:{tmp_path / 'log'}").refused()
    assert "x.avsc" in said
    assert word in said
