"""`refold import`: the format, named or detected; renamed keys; parts that are not understood; missing times."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from refold_tests.command import SOURCE, held, refold_command
from refold_tests.tree import ROOT

SAMPLES = ROOT / "tests" / "agents" / "samples"
ASKED: list[dict[str, Any]] = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]


def written(path: Path, *lines: object) -> Path:
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


def test_auto_detects_and_names_the_format_of_each_file(tmp_path: Path) -> None:
    log = f"file:{tmp_path / 'log'}"
    files = [
        SAMPLES / "chat.jsonl",
        SAMPLES / "array.json",
        SAMPLES / "function_calling.traj",
        SAMPLES / "tau_bench.jsonl",
    ]
    done = refold_command("import", *files, "--format", "auto", log=log)
    assert done.status == 0, done.err
    for path, form in zip(files, ("chat", "chat", "swe-agent", "tau-bench"), strict=True):
        assert f"{path}: {form}, an " in done.out or f"{path}: {form}, a list" in done.out
    told = refold_command("import", *files, "--format", "auto", "--json", log=log).json
    assert (told["new"], told["conversations"]) == (0, 10)
    assert [each["format"] for each in told["files"]] == ["chat", "chat", "swe-agent", "tau-bench"]
    before = held(tmp_path / "log")
    for name in ("x.jsonl", "x.avro"):
        assert refold_command("export", tmp_path / name, log=log).status == 0
    files = [tmp_path / "x.jsonl", tmp_path / "x.avro", SAMPLES / "chat.jsonl"]
    told = refold_command("import", *files, "--format", "auto", "--json", log=log).json
    assert [each["format"] for each in told["files"]] == ["observations", "observations", "chat"]
    assert told["new"] == 0
    assert held(tmp_path / "log") == before
    assert refold_command("export", tmp_path / "a.avro", "--archive", log=log).status == 0
    copy = f"file:{tmp_path / 'copy'}"
    assert refold_command("import", tmp_path / "a.avro", "--format", "auto", log=copy).status == 0
    said = refold_command("import", tmp_path / "a.avro", files[2], "--format", "auto", log=copy).refused()
    assert "import this file by itself" in said


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (
            [{"a": 1}],
            [":1: no format is recognised", "tried observations, archive, chat, tau-bench, swe-agent", "--map"],
        ),
        (
            [ASKED, {"task_id": 1, "reward": 0, "traj": ASKED}],
            ["may be chat (a list", "or tau-bench (an object", "--format chat"],
        ),
    ],
)
def test_auto_refuses_files_of_no_format_or_of_two(tmp_path: Path, lines: list[Any], words: list[str]) -> None:
    path = written(tmp_path / "x.jsonl", *lines)
    said = refold_command("import", path, "--format", "auto", log=f"file:{tmp_path / 'log'}").refused()
    assert all(word in said for word in (str(path), *words)), said
    assert not (tmp_path / "log" / "FORMAT").exists()


def test_auto_refuses_files_that_are_not_json(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("hello\nyou\n")
    said = refold_command("import", tmp_path / "x.txt", "--format", "auto", log=f"file:{tmp_path / 'log'}").refused()
    assert "x.txt:1: is not JSON" in said
    assert "tried observations, archive, chat" in said


def test_document_over_several_lines_is_refused_by_its_line(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('[\n {"messages": [\n  {"role": "user",\n   "content": oops}\n ]}\n]\n')
    said = refold_command("import", tmp_path / "x.json", "--format", "chat", log=f"file:{tmp_path / 'log'}").refused()
    assert "x.json:4: is not JSON" in said
    said = refold_command(
        "import", SAMPLES / "array.json", "--format", "chat", "--max-line-bytes", 1000, log=f"file:{tmp_path / 'log'}"
    ).refused()
    assert "array.json:1: " in said
    assert "--max-line-bytes" in said


def test_keys_may_be_renamed(tmp_path: Path) -> None:
    log = f"file:{tmp_path / 'log'}"
    path = written(tmp_path / "x.jsonl", {"turns": [{"who": "user", "said": "a"}, {"who": "assistant", "said": "b"}]})
    keys = ["--map", "messages=turns", "--map", "role=who", "--map", "content=said"]
    assert refold_command("import", path, "--format", "chat", *keys, log=log).status == 0
    [run] = refold_command("runs", "--json", log=log).json
    shown = refold_command("run", "show", run["run"], "--json", log=log).json
    assert (shown["input"], shown["output"], shown["steps"]) == ("a", "b", 1)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (["role"], "give KEY=THEIRS"),
        (["role="], "give KEY=THEIRS"),
        (["role=a", "role=b"], "role is named twice"),
        (["role=a", "content=a"], "a is named twice"),
        (["nope=a"], "the format chat has no key nope"),
        (["role=content"], "would lose one of them"),
    ],
)
def test_unmappable_key_is_refused(tmp_path: Path, keys: list[str], words: str) -> None:
    path = written(tmp_path / "x.jsonl", ASKED)
    given = [part for each in keys for part in ("--map", each)]
    said = refold_command("import", path, "--format", "chat", *given, log=f"file:{tmp_path / 'log'}").refused()
    assert words in said


def test_only_formats_with_keys_accept_a_map(tmp_path: Path) -> None:
    given = ["--map", "role=a", "--format"]
    log = f"file:{tmp_path / 'log'}"
    said = refold_command("import", SAMPLES / "tau_bench.jsonl", *given, "tau-bench", log=log).refused()
    assert "none of its keys can have another name" in said
    assert (
        "--map"
        in refold_command("import", written(tmp_path / "x.jsonl", {}), *given, "observations", log=log).refused()
    )


def test_unknown_format_lists_the_known_ones(tmp_path: Path) -> None:
    said = refold_command(
        "import", SAMPLES / "chat.jsonl", "--format", "caht", log=f"file:{tmp_path / 'log'}"
    ).refused()
    assert "no format is called 'caht'" in said
    assert "observations, archive, auto, chat, tau-bench, swe-agent" in said


OWN = """
from refold.importer import Conversation, Importer, parse_messages

def read(file):
    for line in file.lines():
        file.keep("odd line")
        yield Conversation(run=file.run_of(line.value), messages=parse_messages(line.value["dialog"], line.place),
                           agent="desk", imported_from="desk", place=line.place)

DESK = Importer(name="desk", summary="", read=read, recognise=lambda value: "a dialog" if "dialog" in value else "")
NOT_ONE = 1
"""


def test_user_defined_importer(tmp_path: Path) -> None:
    (tmp_path / "desk_importer.py").write_text(OWN)
    more = {"PYTHONPATH": f"{tmp_path}:{SOURCE}"}
    path, log = written(tmp_path / "x.jsonl", {"dialog": ASKED}), f"file:{tmp_path / 'log'}"
    done = refold_command("import", path, "--format", "desk_importer:DESK", log=log, more=more)
    assert "not understood and stored unchanged: 1 odd line" in done.out
    assert refold_command("runs", "--json", log=log).json[0]["agent"] == "desk"
    for name, words in (
        ("nope:X", "cannot be imported"),
        ("desk_importer:NOT_ONE", "is not a refold.importer.Importer"),
    ):
        assert words in refold_command("import", path, "--format", name, log=log, more=more).refused()


def test_importer_from_an_entry_point(tmp_path: Path) -> None:
    (tmp_path / "desk_importer.py").write_text(OWN)
    info = tmp_path / "desk-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: desk\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[refold.importers]\ndesk = desk_importer:DESK\n")
    more = {"PYTHONPATH": f"{tmp_path}:{SOURCE}"}
    path, log = written(tmp_path / "x.jsonl", {"dialog": ASKED}), f"file:{tmp_path / 'log'}"
    assert refold_command("import", path, "--format", "desk", log=log, more=more).status == 0
    told = refold_command("import", path, "--format", "auto", "--json", log=log, more=more).json
    assert (told["new"], told["files"][0]["format"], told["unknown"]) == (0, "desk", {"odd line": 1})
    (info / "entry_points.txt").write_text("[refold.importers]\nchat = desk_importer:DESK\n")
    said = refold_command("import", path, "--format", "auto", log=log, more=more).refused()
    assert "two importers are called 'chat'" in said


def test_missing_times_are_reported(tmp_path: Path) -> None:
    log = f"file:{tmp_path / 'log'}"
    refold_command("import", written(tmp_path / "x.jsonl", ASKED), "--format", "chat", log=log)
    timed = [{**each, "timestamp": f"2026-01-02T00:00:0{number}Z"} for number, each in enumerate(ASKED)]
    refold_command("import", written(tmp_path / "y.jsonl", timed), "--format", "chat", log=log)
    first, second = refold_command("runs", "--json", log=log).json
    assert (first["started"], first.get("synthetic_time")) == ("2026-01-02T00:00:00.000000Z", None)
    assert (second["started"], second["ended"], second["synthetic_time"]) == (None, None, True)
    assert second["outcome"] == "unknown"
    run = second["run"]
    entities = (f"run/{run}", f"agent_session/{run}", f"step/{run}#1")
    for arguments in (
        ["runs"], ["run", "show", run], ["run", "steps", run], *(["history", each] for each in entities),
        *(["state", each] for each in entities), ["why", f"run/{run}.status"],
        ["history", entities[0], "--clock", "observed"],
    ):  # fmt: skip
        done = refold_command(*arguments, log=log)
        assert done.status == 0, done.err
        assert ("no time" in done.out) == (arguments[:2] != ["run", "steps"]), done.out
        told = refold_command(*arguments, "--json", log=log)
        assert "2000-01-01" not in done.out + told.out, arguments
    for row in refold_command("history", entities[0], "--json", log=log).json:
        assert (row["observed_at"], row["synthetic_time"]) == (None, True)
    other = first["run"]
    for row in refold_command("history", f"run/{other}", "--json", log=log).json:
        assert row["observed_at"].startswith("2026-01-02")
        assert "synthetic_time" not in row
    rows = refold_command("diff", "offset:0=0", "now", "--json", log=log).json
    assert {row["observed_at"] is None for row in rows} == {True, False}
    assert refold_command("runs", "--outcome", "unknown", "--json", log=log).json == [first, second]
