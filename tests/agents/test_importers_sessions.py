"""Sessions of coding agents: messages over several lines, subagents as children, growing files, changed formats."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.agents.importers import claude_code, codex
from refold.agents.importers.file import run_id
from refold.avro.errors import InputError
from refold.testing.importers import Imports, imports_of
from refold_tests.command import refold_command
from refold_tests.tree import ROOT

SAMPLES = ROOT / "tests" / "agents" / "samples"
CLAUDE = SAMPLES / "claude.jsonl"
SESSION = "5f2a8c1e-0000-4000-8000-000000000001"
MAIN = run_id({"claude-code": SESSION})
CHILD = run_id({"claude-code": SESSION, "agent": "a1"})


def latest(found: Imports, entity: str) -> dict[str, Any]:
    """Return each field's last assertion; JSON values, which are stored as text, are parsed."""
    patches = [each.patch for each in found.by_id.values() if each.entity == entity]
    fields: dict[str, Any] = {name: value for patch in patches for name, value in patch.items()}
    names = ("input", "output", "inputs") if entity.startswith("run/") else ("inputs",)
    read = {name: json.loads(fields[name]) for name in names if name in fields}
    metadata = {key: json.loads(value) for key, value in fields.get("metadata", {}).items()}
    return {**fields, **read, "metadata": metadata}


def links(found: Imports) -> set[tuple[str, str]]:
    every = found.by_id.values()
    return {
        (each.entity, each.link.target) for each in every if each.link is not None and each.entity.startswith("run/")
    }


def copied(folder: Path) -> Path:
    shutil.copytree(SAMPLES / "claude", folder / "claude")
    return Path(shutil.copy(CLAUDE, folder))


def lines_of(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def written(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


def test_lines_of_one_answer_are_one_step_with_its_calls() -> None:
    found = imports_of(claude_code.IMPORTER, CLAUDE)
    first, second, third = (latest(found, f"step/{MAIN}#{number}") for number in (1, 2, 3))
    assert (first["message"], first["rationale"]) == ("I look at the tests.", "Look at them first.")
    assert first["decision"] == "call Read, Task"
    assert (first["status"], first["outcome"], second["outcome"]) == ("committed", "succeeded", "failed")
    assert (third["decision"], third["message"]) == ("reply", "One assertion is wrong.")
    assert latest(found, f"action/{MAIN}#1.1")["output"] == "1\tassert 1 == 2"
    assert latest(found, f"action/{MAIN}#2.1")["error"]["message"] == "2 failed"
    run = latest(found, f"run/{MAIN}")
    assert (run["model"], run["agent_version"], run["title"]) == ("claude-x", "2.1.219", "Fix the shop's tests")
    assert (run["input"], run["output"], run["metadata"]["gitBranch"]) == ("Fix the tests.", third["message"], "main")


def test_subagent_is_a_child_of_the_step_that_called_it() -> None:
    found = imports_of(claude_code.IMPORTER, CLAUDE)
    assert {(f"run/{CHILD}", f"run/{MAIN}"), (f"run/{CHILD}", f"step/{MAIN}#1")} <= links(found)
    assert latest(found, f"run/{CHILD}")["metadata"]["meta"]["agentType"] == "Explore"
    [tie] = (each for each in found.by_id.values() if each.link and each.link.target == f"step/{MAIN}#1"
             and each.entity == f"run/{CHILD}")  # fmt: skip
    [cause] = (found.by_id[cause.hex()] for cause in tie.causes)
    assert (cause.entity, cause.patch["tool"]) == (f"action/{MAIN}#1.2", "Task")


def test_subagents_own_file_makes_the_same_run() -> None:
    whole, own = (imports_of(claude_code.IMPORTER, path) for path in
                  (CLAUDE, SAMPLES / "claude" / "subagents" / "agent-a1.jsonl"))  # fmt: skip
    assert set(own.ids) < set(whole.ids)
    assert links(own) == {(f"run/{CHILD}", f"agent_session/{CHILD}"), (f"run/{CHILD}", f"run/{MAIN}")}


def test_sidechain_in_the_sessions_file_is_found_by_its_prompt() -> None:
    found = imports_of(claude_code.IMPORTER, SAMPLES / "claude_sidechain.jsonl")
    main, child = run_id({"claude-code": "old-1"}), run_id({"claude-code": "old-1", "agent": "u2"})
    assert (f"run/{child}", f"step/{main}#1") in links(found)
    assert latest(found, f"run/{child}")["output"] == "Here."


def test_result_names_the_subagent_when_there_is_no_meta_file(tmp_path: Path) -> None:
    path = copied(tmp_path)
    (tmp_path / "claude" / "subagents" / "agent-a1.meta.json").unlink()
    assert (f"run/{CHILD}", f"step/{MAIN}#1") in links(imports_of(claude_code.IMPORTER, path))


def test_links_next_to_a_session_are_not_followed(tmp_path: Path) -> None:
    path = copied(tmp_path)
    agent = tmp_path / "claude" / "subagents" / "agent-a1.jsonl"
    agent.rename(tmp_path / "elsewhere.jsonl")
    agent.symlink_to(tmp_path / "elsewhere.jsonl")
    assert imports_of(claude_code.IMPORTER, path).conversations == 1


def test_bad_line_of_a_subagent_is_named_by_its_own_file(tmp_path: Path) -> None:
    path = copied(tmp_path)
    agent = tmp_path / "claude" / "subagents" / "agent-a1.jsonl"
    agent.write_text(agent.read_text() + "{oops\n")
    with pytest.raises(InputError, match=r"agent-a1\.jsonl:5: is not JSON"):
        imports_of(claude_code.IMPORTER, path)
    (tmp_path / "claude" / "subagents" / "agent-a1.meta.json").write_text("{oops")
    with pytest.raises(InputError, match=r"agent-a1\.meta\.json:1: is not JSON"):
        imports_of(claude_code.IMPORTER, path)


@pytest.mark.parametrize("name", ["claude.jsonl", "codex.jsonl"])
def test_import_of_a_grown_session_adds_only_what_is_new(name: str, tmp_path: Path) -> None:
    importer = claude_code.IMPORTER if "claude" in name else codex.IMPORTER
    form, log = importer.name, f"file:{tmp_path / 'log'}"
    lines = lines_of(SAMPLES / name)
    path = tmp_path / name
    if importer is claude_code.IMPORTER:
        copied(tmp_path)
    held: set[str] = set()
    for end in (8, len(lines) - 3, len(lines)):
        written(path, lines[:end])
        assert refold_command("import", path, "--format", form, log=log).status == 0
        again = refold_command("import", path, "--format", form, "--json", log=log).json
        assert again["new"] == 0
        held |= set(imports_of(importer, path).ids)
    run = MAIN if importer is claude_code.IMPORTER else run_id({"codex": "cx-1"})
    with refold.open(log, read_only=True) as opened:
        grown = opened.state(f"run/{run}").fields
        whole = imports_of(importer, SAMPLES / name)
        assert grown["output"] == latest(whole, f"run/{run}")["output"]
        assert opened.state(f"action/{run}#1.2").fields["status"] == "succeeded"
    assert set(whole.ids) <= held


def test_items_of_one_turn_are_one_step() -> None:
    found = imports_of(codex.IMPORTER, SAMPLES / "codex.jsonl")
    run = run_id({"codex": "cx-1"})
    first = latest(found, f"step/{run}#1")
    assert (first["message"], first["rationale"], first["decision"]) == (
        "I list them.",
        "Use ls.",
        "call shell, apply_patch",
    )
    assert [latest(found, f"action/{run}#1.{k}")["output"] for k in (1, 2)] == ["a.py\n", "Done"]
    assert latest(found, f"action/{run}#1.1")["inputs"] == {"command": ["ls"]}
    head = latest(found, f"run/{run}")
    assert (head["input"], head["output"], head["model"]) == ("List the files.", "There is a.py.", "gpt-x")
    assert (f"run/{run}", f"run/{run_id({'codex': 'cx-0'})}") in links(found)


def test_every_line_is_in_some_observation() -> None:
    """Nothing is lost: each text of each line is in some observation."""
    for importer, name in ((claude_code.IMPORTER, "claude.jsonl"), (codex.IMPORTER, "codex.jsonl")):
        found = imports_of(importer, SAMPLES / name)
        said = json.dumps([[each.patch, each.observed_at] for each in found.by_id.values()], default=str)
        for line in lines_of(SAMPLES / name):
            for text in texts(line):
                assert json.dumps(text)[1:-1] in said or json.dumps(json.dumps(text))[3:-3] in said, (name, text)


def texts(tree: Any) -> list[str]:
    if isinstance(tree, dict):
        return [text for key, each in tree.items() if key not in ("timestamp", "type") for text in texts(each)]
    if isinstance(tree, list):
        return [text for each in tree for text in texts(each)]
    return [tree] if isinstance(tree, str) and tree != SESSION else []


@pytest.mark.parametrize("importer", [claude_code.IMPORTER, codex.IMPORTER])
@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([{"a": 1}, {"b": 2}], r"x\.jsonl:1: no line of the file is of a"),
        ([[1]], r"x\.jsonl:1: "),
    ],
)
def test_file_of_another_format_is_refused(importer: Any, lines: list[Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=words):
        imports_of(importer, written(tmp_path / "x.jsonl", lines))


@pytest.mark.parametrize("importer", [claude_code.IMPORTER, codex.IMPORTER])
@pytest.mark.parametrize("kind", [["user"], {"a": 1}, 5, None])
def test_line_of_an_unknown_type_is_kept(importer: Any, kind: Any, tmp_path: Path) -> None:
    name = "claude.jsonl" if importer is claude_code.IMPORTER else "codex.jsonl"
    strange = {"type": kind, "timestamp": "2026-03-01T10:00:01Z", "payload": {}}
    assert importer.recognise(strange) == ""
    path = written(tmp_path / name, [strange, *lines_of(SAMPLES / name)])
    assert imports_of(importer, path).unknown["line without a type"] == 1


@pytest.mark.parametrize("name", ["claude.jsonl", "codex.jsonl"])
def test_conversation_over_many_lines_is_bounded(name: str, tmp_path: Path) -> None:
    form, log = name.partition(".")[0].replace("claude", "claude-code"), f"file:{tmp_path / 'log'}"
    path = tmp_path / f"{name}.gz"
    path.write_bytes(gzip.compress((SAMPLES / name).read_bytes()))
    for option, bound in (("--max-conversation-bytes", 2000), ("--max-line-bytes", 100), ("--max-items", 5)):
        said = refold_command("import", path, "--format", form, option, bound, log=log).refused()
        assert f"{path}:" in said
        assert option in said
    assert refold_command("import", path, "--format", "auto", log=log).status == 0
