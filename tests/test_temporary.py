"""What refold leaves in the temporary folder: nothing where it ends, and nothing for good where it is killed."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import refold
from refold.agents.golden.add import portable
from refold.agents.golden.file import Golden, write
from refold.streams import temporary
from refold_tests.code_histories import History
from refold_tests.command import COMMAND, environment, refold_command
from refold_tests.tree import ROOT, shipped_files
from refold_tests.waiting import await_true

NAMED = {"mkdtemp", "mkstemp", "TemporaryDirectory", "NamedTemporaryFile", "SpooledTemporaryFile", "mktemp"}
# What has a name without a lock, and why nothing of it stays for good.
OTHERWISE = {
    "streams/temporary.py": "it makes the folders that are swept",
    "streams/rocks/reader.py": "within refold-read-*",
    "streams/blobs/folder.py": "within a store of contents: `refold blobs` finds what killed processes left",
    "streams/objects/folder.py": "within a store of objects: whoever opens it removes it",
    "testing/fetching.py": "within the cache of fetched servers",
    "testing/kafka/cluster.py": "refold-kafka-*: the supervisor of its first node removes it",
    "testing/postgres.py": "refold-postgres-*: its supervisor removes it",
    "testing/registry.py": "refold-registry-*: its supervisor removes it",
}


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    """Each call in a module by the last part of its name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func).rpartition(".")[2], node


def modules() -> Iterator[tuple[str, ast.Module]]:
    for name in shipped_files():
        if name.endswith(".py") and (path := ROOT / "src" / name).is_file():
            yield name.removeprefix("refold/"), ast.parse(path.read_text(encoding="utf-8"))


def test_each_named_temporary_file_is_temporary() -> None:
    """Where this fails: have a TemporaryFolder, which is swept, or a file without a name (tempfile.TemporaryFile)."""
    found = {module for module, tree in modules() for name, _ in calls(tree) if name in NAMED}
    assert found == {*OTHERWISE}


def test_each_kind_of_folder_is_listed_with_a_unique_prefix() -> None:
    made: set[str] = set()
    for _, tree in modules():
        constants = {
            ast.unparse(node.targets[0]): ast.literal_eval(node.value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        }
        for name, call in calls(tree):
            if name == "TemporaryFolder":
                given = call.args[0]
                found = given.value if isinstance(given, ast.Constant) else constants.get(ast.unparse(given))
                # A name that is imported is a constant of the module that it is from.
                made |= {found} if isinstance(found, str) else set()
    assert made == {*re.findall(r"^\| `(refold-\w+-)\*` \|", temporary.__doc__ or "", re.MULTILINE)}
    assert not [(one, other) for one in made for other in made if one != other and other.startswith(one)]


@contextmanager
def killed(command: list[str], log: str, folder: Path, made: str) -> Iterator[list[Path]]:
    """Run a command until there is what it is to make in `folder`, and kill it; the block gets what is left there."""
    with subprocess.Popen(
        command, env=environment(log, {"TMPDIR": str(folder)}), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    ) as dying:
        await_true(lambda: any(folder.glob(made)))
        os.kill(dying.pid, signal.SIGKILL)
    yield [*folder.iterdir()]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where the temporary files of commands go."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    return folder


@pytest.mark.outside
def test_folder_of_a_killed_import_is_removed_by_the_next(tmp_path: Path, place: Path) -> None:
    log = f"file:{tmp_path / 'log'}"
    with killed([*COMMAND, "import", "-"], log, place, "refold-import-*/0") as (left,):
        other = place / "refold-import"
        other.mkdir()
        line = {"observed_at": "2026-01-01T00:00:00Z", "entity": "tool_config/acme", "patch": {"rate_limit": 7},
                "source": {"agent": "a"}}  # fmt: skip
        given = json.dumps(line).encode()
        done = refold_command("import", "-", log=log, given=given, more={"TMPDIR": str(place)})
        assert done.status == 0, done.err
        assert not left.exists()
        assert [*place.iterdir()] == [other]


WAITS = """
import os, signal
from pathlib import Path

def agent(run):
    Path(os.environ["WAITS_IN"]).write_text(str(os.getpid()))
    signal.pause()
"""


@pytest.mark.outside
def test_folders_of_a_killed_bisect_are_removed_by_the_next(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = History(tmp_path / "code")
    history.commit("first", {"agent.py": "def agent(run):\n    return 1\n"})
    history.commit("wrong", {"agent.py": "def agent(run):\n    return 2\n"})
    history.commit("waits", {"agent.py": WAITS})
    with refold.open(f"file:{tmp_path / 'log'}") as log:
        with log.run("a", id="r", entry="agent.py:agent") as run:
            run.output = 1
        golden = write(Golden(name="a", entry="agent.py:agent", run=portable(log.recording("r"))), tmp_path)
    note = place / "pid"
    monkeypatch.setenv("WAITS_IN", str(note))
    command = ["bisect", str(golden), "--repo", str(history.folder), "--good", history.ids["first"]]
    before = history.standing()
    whole = [*COMMAND, *command, "--bad", history.ids["waits"]]
    with killed(whole, "", place, "pid") as left:
        assert len(left) == 3
        await_true(lambda: note.read_text() != "")
        os.kill(int(note.read_text()), signal.SIGKILL)
        note.unlink()
        done = refold_command(*command, "--bad", history.ids["wrong"], more={"TMPDIR": str(place)})
        assert "first bad commit" in done.out, done
        assert not [each for each in left if each.exists()]
        assert [*place.iterdir()] == []
        assert history.standing() == before


SCRATCH = """
import signal
from refold.streams.objects.remote import RemoteObjects
with RemoteObjects("memory://store").scratch() as folder:
    (folder / "file").write_bytes(b"1")
    signal.pause()
"""


@pytest.mark.outside
def test_folder_of_a_killed_sink_is_removed_by_the_next(tmp_path: Path, place: Path) -> None:
    command = [sys.executable, "-P", "-c", SCRATCH]
    with killed(command, "", place, "refold-scratch-*/file") as (left,):
        again = SCRATCH.replace("signal.pause()", "pass")
        done = subprocess.run([*command[:-1], again], env=environment("", {"TMPDIR": str(place)}), check=False)
        assert done.returncode == 0
        assert not left.exists()
        assert [*place.iterdir()] == []
