"""Files and logs that name code which the operator did not register: it is not imported, and other entities work.

The code can be imported: the module creates a file when it is.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import refold
from refold_tests.archives import archived
from refold_tests.command import SOURCE, Done, refold_command
from refold_tests.reducers import REDUCERS, trap

pytestmark = pytest.mark.outside

NAME = "refold_trap:folded"
ALLOW = f"--reducers {NAME}"
CONFIG = "tool_config/acme"
EVIL = ("unittest.__main__:run", ":run", "os:system", "builtins:exec")
FORMS = ("jsonl", "jsonl.gz", "avro", "archive")


class Trapped:
    """A folder with the module, the type that names it, and a log and files with entities of that type."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.imported = trap(folder)
        self.types = folder / "own.avsc"
        field = {"name": "text", "type": "string", "refold.reducer": "custom", "refold.function": NAME}
        closed = {"name": "done", "type": ["null", "boolean"], "refold.reducer": "latest"}
        document = {"type": "record", "name": "own", "fields": [field, closed], "refold.closed_by": "done"}
        self.types.write_text(json.dumps(document))

    def file(self, form: str) -> Path:
        """Return the part of the log that is in a file."""
        return self.folder / ("log.archive.avro" if form == "archive" else f"log.{form}")

    def ask(self, *arguments: object, log: str = "log", more: str = "") -> Done:
        """Run a command in a process that could import the module; check that it does so only if allowed."""
        self.imported.unlink(missing_ok=True)
        path = f"{SOURCE}:{self.folder}"
        reducers = {"REFOLD_REDUCERS": more}
        return refold_command(*arguments, log=f"file:{self.folder / log}", more={"PYTHONPATH": path, **reducers})

    def refused(self, *arguments: object, log: str = "log") -> str:
        """Return why a command refuses; check that nothing was imported."""
        said = self.ask(*arguments, log=log).refused()
        assert not self.imported.exists()
        return said


@pytest.fixture
def trapped(tmp_path: Path) -> Trapped:
    found = Trapped(tmp_path)
    made = [("observe", "own/1", "text=a"), ("observe", "own/1", "text=b"), ("observe", CONFIG, "rate_limit=50")]
    for arguments in made:
        assert found.ask("--types", found.types, "--reducers", NAME, *arguments).status == 0
    for form in FORMS:
        words = ["--archive"] * (form == "archive")
        done = found.ask("export", found.file(form), *words, more=NAME)
        assert done.status == 0, done.err
    return found


def test_log_with_a_held_type_answers_for_others(trapped: Trapped) -> None:
    assert trapped.ask("state", CONFIG, "--json").json["fields"]["rate_limit"]["value"] == 50
    for arguments in (
        ("history", CONFIG, "--json"), ("why", f"{CONFIG}.rate_limit", "--json"),
        ("rebuild", "--type", "tool_config", "--json"), ("observe", CONFIG, "rate_limit=51"), ("types", "--json"),
        ("types", "own", "--json"), ("mark", "here"), ("export", trapped.folder / "again.jsonl"),
    ):  # fmt: skip
        done = trapped.ask(*arguments)
        assert done.status == 0, (arguments, done.err)
        assert not trapped.imported.exists(), arguments
    assert ALLOW in trapped.refused("state", "own/1")
    assert ALLOW in trapped.refused("history", "own/1")
    assert ALLOW in trapped.refused("rebuild")
    assert ALLOW in trapped.refused("observe", "own/1", "text=c")
    assert trapped.ask("doctor", "--json").status == 1
    assert not trapped.imported.exists()
    assert trapped.ask("verify", "--json").status in (0, 1)
    assert not trapped.imported.exists()
    for allowed in (("--reducers", NAME), ("--reducers", "refold_trap:folded", "--reducers", "refold_trap")):
        done = trapped.ask("state", "own/1", *allowed, "--json")
        assert done.json["fields"]["text"]["value"] == "folded"
    assert trapped.ask("state", "own/1", "--json", more=NAME).json["version"] == 2
    assert trapped.ask("verify", "--json", more=NAME).json["ok"]


@pytest.mark.parametrize("form", FORMS)
def test_file_that_names_code_is_refused_whole_with_the_remedy(trapped: Trapped, form: str) -> None:
    file = trapped.file(form)
    words = ["--format", "archive"] * (form == "archive")
    assert ALLOW in trapped.refused("import", file, *words, log="copy")
    assert not (trapped.folder / "copy" / "FORMAT").exists()
    done = trapped.ask("import", file, *words, "--reducers", NAME, log="copy")
    assert done.status == 0, done.err
    assert trapped.ask("state", "own/1", "--json", log="copy", more=NAME).json["version"] == 2


@pytest.mark.parametrize("name", EVIL)
def test_code_named_by_a_line_is_refused(trapped: Trapped, name: str) -> None:
    file = trapped.folder / "evil.jsonl"
    file.write_text(trapped.file("jsonl").read_text().replace(NAME, name))
    said = trapped.refused("import", file, log="copy")
    assert repr(name) in said
    assert "not registered here" in said


def test_unused_definition_does_not_refuse_a_file(trapped: Trapped) -> None:
    lines = [line for line in trapped.file("jsonl").read_text().splitlines() if "own/1" not in line]
    assert any(NAME in line for line in lines)
    (trapped.folder / "rest.jsonl").write_text("\n".join(lines) + "\n")
    done = trapped.ask("import", trapped.folder / "rest.jsonl", log="copy")
    assert done.status == 0, done.err
    assert trapped.ask("rebuild", "--json", log="copy").json["entities"] == 1
    assert not trapped.imported.exists()


def test_type_file_names_code_but_registers_none(trapped: Trapped) -> None:
    assert ALLOW in trapped.refused("types", "--register", trapped.types, log="copy")
    assert ALLOW in trapped.refused("observe", "own/1", "text=a", "--types", trapped.types, log="copy")
    assert not (trapped.folder / "copy").exists()
    assert trapped.ask("types", "--register", trapped.types, "--reducers", NAME, log="copy").status == 0


def test_child_processes_of_rebuild_and_sealing_have_the_commands_registrations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Trapped(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with refold.open(f"file:{tmp_path / 'log'}?partitions=4", types=[found.types], reducers=[NAME]) as log:
        for number in range(40):
            log.observe(f"own/{number}", {"text": "x"})
        log.snapshot()
        alone, apart = log.rebuild(parallel=False), log.rebuild(parallel=True, full=True)
        assert (apart.root, apart.source["apart"]) == (alone.root, 4)
        assert not apart.source["fallbacks"]
        found.imported.unlink()


def test_archive_with_an_unused_held_type_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Trapped(tmp_path)
    monkeypatch.setenv("REFOLD_REDUCERS", f"{REDUCERS},{NAME}")
    monkeypatch.syspath_prepend(tmp_path)
    with refold.open(f"file:{tmp_path / 'log'}", types=[found.types]) as log:
        log.register(log.types["own"])
        log.observe(CONFIG, {"rate_limit": 50})
        log.flush()
        root = log.rebuild().root
        file = archived(log, tmp_path / "log.archive.avro")
    done = found.ask("import", file, "--format", "archive", log="copy")
    assert done.status == 0, done.err
    assert found.ask("rebuild", "--json", log="copy").json["root"] == root
    assert found.ask("snapshot", log="copy").status in (0, 2)
    assert not found.imported.exists()
