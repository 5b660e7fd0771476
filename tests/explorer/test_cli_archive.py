"""Archives on the command line: export, import, queries, refusals, forks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import refold
from refold_tests.command import held, refold_command

CONFIG = "tool_config/acme"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A log of three records with a marker and a content, and its archive x.avro."""
    with refold.open(f"file:{tmp_path / 'log'}?partitions=4") as log:
        first = log.observe(CONFIG, {"rate_limit": 50}, source="deployer")
        log.flush()
        log.mark("deploy-1")
        log.observe(CONFIG, {"rate_limit": 70}, source="ops", causes=[first])
        log.observe("document/d", {"fields": {"text": "x" * 300_000}}, source="ops")
    assert refold_command("export", "x.avro", "--archive", log="file:log", folder=tmp_path).status == 0
    return tmp_path


ASKED = (
    ("rebuild",), ("rebuild", "--at", "@deploy-1"), ("state", CONFIG, "--at", "v1"), ("state", CONFIG),
    ("history", CONFIG), ("why", f"{CONFIG}.rate_limit"), ("markers",), ("types",),
)  # fmt: skip


def test_imported_archive_answers_as_the_log(folder: Path) -> None:
    made = refold_command("import", "x.avro", "--format", "archive", "--json", log="file:copy", folder=folder).json
    cut = refold_command("rebuild", "--json", log="file:log", folder=folder).json["cut"]
    with refold.open(f"file:{folder / 'log'}", read_only=True) as log:
        assert made == {
            "log": log.port.log_id.hex(),
            "forked_from": None,
            "cut": cut,
            "observations": 3,
            "definitions": 2,
        }
    for question in (*ASKED, ("state", CONFIG, "--at", cut)):
        one, other = (refold_command(*question, "--json", log=f"file:{at}", folder=folder) for at in ("log", "copy"))
        assert json.loads(one.out) == json.loads(other.out), question
        assert (one.status, one.err) == (other.status, other.err) == (0, "")
    assert refold_command("verify", log="file:copy", folder=folder).status == 0


def test_archive_passes_through_pipes(folder: Path) -> None:
    sent = refold_command("export", "x2.avro", "--archive", "--json", log="file:log", folder=folder).json
    assert {name: sent[name] for name in ("observations", "definitions", "contents", "deadletters", "markers")} == {
        "observations": 3, "definitions": 2, "contents": 1, "deadletters": 0, "markers": 1,
    }  # fmt: skip
    given = (folder / "x2.avro").read_bytes()
    done = refold_command("import", "-", "--format", "archive", log="file:copy", folder=folder, given=given)
    assert done.status == 0, done.err
    assert "takes no appends" in done.out


def test_archive_accepts_only_markers_until_forked(folder: Path) -> None:
    refold_command("import", "x.avro", "--format", "archive", log="file:copy", folder=folder)
    before = held(folder / "copy")
    said = refold_command("observe", CONFIG, "rate_limit=1", log="file:copy", folder=folder).refused()
    assert "takes no appends" in said
    assert "refold import --format archive --fork --log file:" in said
    lines = folder / "x.jsonl"
    refold_command("export", lines, log="file:log", folder=folder)
    # Importing what an archive contains already appends nothing.
    assert refold_command("import", lines, "--json", log="file:copy", folder=folder).json["new"] == 0
    assert held(folder / "copy") == before
    cut = refold_command("rebuild", "--json", log="file:copy", folder=folder).json["cut"]
    assert refold_command("mark", "here", log="file:copy", folder=folder).status == 0
    forked = refold_command("import", "--format", "archive", "--fork", "--json", log="file:copy", folder=folder).json
    assert forked["log"] != forked["forked_from"]
    assert refold_command("observe", CONFIG, "rate_limit=1", log="file:copy", folder=folder).status == 0
    assert "and this is its fork" in refold_command("rebuild", "--at", cut, log="file:copy", folder=folder).refused()
    for name in ("@deploy-1", "@here"):
        assert refold_command("rebuild", "--at", name, log="file:copy", folder=folder).status == 0
    assert refold_command("verify", log="file:copy", folder=folder).status == 0
    again = refold_command("import", "--format", "archive", "--fork", log="file:copy", folder=folder).refused()
    assert "already takes appends" in again


def test_import_and_fork_in_one_command(folder: Path) -> None:
    made = refold_command(
        "import", "x.avro", "--format", "archive", "--fork", "--json", log="file:c", folder=folder
    ).json
    assert made["log"] != made["forked_from"]
    assert made["log"] in refold_command("doctor", log="file:c", folder=folder).out
    assert refold_command("observe", CONFIG, "rate_limit=1", log="file:c", folder=folder).status == 0


@pytest.mark.parametrize(
    ("arguments", "url", "reason"),
    [
        (["import", "x.avro", "--format", "archive"], "file:log", "there is a log here already"),
        (["import", "x.avro", "x.avro", "--format", "archive"], "file:c", "name one file"),
        (
            ["import", "x.avro", "--format", "archive"],
            "file:c?partitions=8",
            "has 4 partitions; leave out ?partitions=8",
        ),
        (["import", "x.avro", "--fork"], "file:c", "add --format archive"),
        (["import", "--fork"], "file:c", "add --format archive"),
        (["import", "--format", "archive"], "file:c", "Missing argument"),
        (["import"], "file:c", "Missing argument"),
        (["import", "--format", "archive", "--fork"], "file:c", "there is no refold log here"),
        (["import", "--format", "archive", "--fork"], "file:log", "not imported from an archive"),
        (["import", "x.avro"], "file:c", "import it with --format archive"),
        (["import", "o.avro", "--format", "archive"], "file:c", "is not an archive of refold"),
        (["import", "cut.avro", "--format", "archive"], "file:c", "cut.avro"),
        (["import", "nowhere.avro", "--format", "archive"], "file:c", "cannot be read"),
        (["export", "y.avro", "--archive", "--at", "@deploy-1"], "file:log", "leave out --at"),
        (["export", "y.jsonl", "--archive"], "file:log", "ends in .avro"),
        (["export", "x.avro", "--archive"], "file:log", "--force"),
    ],
)
def test_impossible_request_is_refused_and_changes_nothing(
    folder: Path, arguments: list[str], url: str, reason: str
) -> None:
    refold_command("export", "o.avro", log="file:log", folder=folder)
    (folder / "cut.avro").write_bytes((folder / "x.avro").read_bytes()[:-100])
    names = sorted(each.name for each in folder.iterdir())
    before = held(folder / "log")
    assert reason in refold_command(*arguments, log=url, folder=folder).refused()
    assert sorted(each.name for each in folder.iterdir()) == names
    assert held(folder / "log") == before
