"""`refold demo`, run for real. Its output is compared with the log, which is read and folded by independent code."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE

import pytest

import refold
from refold.avro.ids import identify
from refold.avro.observation import Observation
from refold.avro.shipped import shipped_types
from refold.explorer.demo import commands, demo_folder, deployer
from refold.explorer.demo.names import CONFIG, CRASH, DEPLOYED, EVALUATION, PIPELINE, RUN
from refold.explorer.demo.run import run
from refold.explorer.demo.stage import Actor, DemoFailed, Stage
from refold_tests.command import Done, started
from refold_tests.reference import reference_hash, reference_root, reference_state
from refold_tests.sample_types import reference_definition
from refold_tests.tree import ROOT

pytestmark = pytest.mark.outside

CLI = [sys.executable, "-P", "-m", "refold.explorer.cli.main"]
PLAY = [sys.executable, "-P", "-c", "import sys; from refold.explorer.demo.run import run; sys.exit(run())"]
SOURCE = str(Path(refold.__file__).parent.parent)


def environment() -> dict[str, str]:
    """Return this process's environment, extended so that the package can be imported in any folder."""
    return {**os.environ, "PYTHONPATH": SOURCE, "COLUMNS": "100"}


def called(command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, with its output piped."""
    return subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, check=False)


def run_printed(command: Sequence[str], folder: Path) -> Done:
    """Run a command that the demo printed in a folder, without the start of an interpreter."""
    program, *words = command
    assert Path(program).name == commands.PROGRAM
    with started(*words, env=environment(), cwd=folder, stdout=PIPE, stderr=PIPE) as process:
        out, err = process.communicate()
    return Done(process.wait(), out, err)


Placed = list[tuple[int, Observation]]
"""(offset, observation) pairs, in the order of each partition."""


@dataclass(frozen=True)
class Played:
    """A demo that was run in a folder, and the contents of its log: all of it, and the part before each marker."""

    folder: Path
    output: str
    all: Placed
    deployed: Placed
    crashed: Placed

    def commands(self) -> list[list[str]]:
        """Return the commands that the demo prints at its end."""
        lines = self.output.partition("\nAsk it yourself\n")[2].splitlines()
        return [shlex.split(line) for line in lines if not line.strip().startswith("#")]

    def table(self, *head: str) -> list[list[str]]:
        """Return the rows below the header that begins with these cells. Cells are at least two spaces apart."""
        lines = iter(self.output.splitlines())
        next(line for line in lines if re.split(r"  +", line.strip())[: len(head)] == list(head))
        rows = []
        for line in lines:
            cells = re.split(r"  +", line.strip())
            if len(cells) < 2:
                break
            rows.append(cells)
        return rows

    def number(self, pattern: str) -> int:
        """Return the one number in the output that matches the pattern's group."""
        (found,) = re.findall(pattern, self.output)
        return int(found)


def contents(url: str) -> tuple[Placed, Placed, Placed]:
    """Return all observations of a log, and those before the demo's two markers."""
    with refold.open(url, read_only=True) as log:
        port = log.port
        placed = [
            (partition, record.offset, port.registry.decode(record.data))
            for partition, end in port.ends().items()
            for record in port.read(partition, 0, end)
        ]
        ends = [port.ends(), *(log.point(f"@{name}").cut.offsets for name in (DEPLOYED, CRASH))]
    return tuple(  # type: ignore[return-value]
        [(offset, said) for partition, offset, said in placed if offset < end[partition]] for end in ends
    )


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    folder = tmp_path_factory.mktemp("demo")
    result = called(PLAY, folder)
    assert (result.returncode, result.stderr) == (0, ""), result.stdout + result.stderr
    return Played(folder, result.stdout, *contents(f"file:{folder / demo_folder.DEFAULT}"))


def naive_hash(entity: str, log: Placed) -> bytes:
    """Return an entity's state hash, computed by the naive fold."""
    definition = reference_definition(shipped_types()[entity.partition("/")[0]])
    return reference_hash(reference_state(definition, entity, log))


def test_pipeline_matches_the_naive_fold_at_every_version(played: Played) -> None:
    ordered = [placed for placed in played.crashed if placed[1].entity == PIPELINE]
    rows = played.table("version", "time")
    assert [row[0] for row in rows] == [f"v{n}" for n in range(1, len(ordered) + 1)]
    hashes = [naive_hash(PIPELINE, ordered[:n]).hex() for n in range(1, len(ordered) + 1)]
    assert all(found[:12] in row for row, found in zip(rows, hashes, strict=True))
    assert f"state matches v{len(ordered)}   {hashes[-1]}\n" in played.output
    assert "deterministic: yes" in played.output


def test_root_matches_the_naive_fold(played: Played) -> None:
    entities = {said.entity for _, said in played.crashed}
    root = reference_root({entity: naive_hash(entity, played.crashed) for entity in entities}).hex()
    assert re.findall(r"root ([0-9a-f]{64})$", played.output, re.MULTILINE) == [root]
    assert played.number(r"They fold into (\d+) entities") == len(entities)


def test_every_acknowledged_observation_is_in_the_state(played: Played) -> None:
    ids = {identify(said) for _, said in played.crashed}
    acknowledged = played.number(r"(\d+) of its observations, the entries in the log, had been acknowledged")
    assert len(ids) == len(played.crashed) == played.number(r"(\d+) observations led to it")
    assert acknowledged == sum(said.source.agent == "refund-agent" for _, said in played.crashed)


def test_changes_since_the_deploy_are_the_expected_ones(played: Played) -> None:
    before = {identify(said) for _, said in played.deployed}
    made = [said for _, said in played.crashed if said.entity == CONFIG and identify(said) not in before]
    assert len(made) == 1
    old: dict[str, object] = {}
    for _, said in played.deployed:
        old |= said.patch if said.entity == CONFIG else {}
    by, observation = made[0].source.agent, identify(made[0]).hex()[:12]
    rows = [[row[0], row[1], row[2], *row[4:]] for row in played.table("field", "old")]
    expected = [[name, str(old[name]), str(new), by, observation] for name, new in made[0].patch.items()]
    assert sorted(rows) == sorted(expected) != []


def test_evaluation_is_traced_to_its_sources(played: Played) -> None:
    known = {identify(said): said for _, said in played.all}
    (verdict,) = [each for each, said in known.items() if said.entity == EVALUATION]
    distances, waiting = {verdict: 0}, [verdict]
    for each in waiting:
        for cause in known[each].causes:
            if cause not in distances:
                distances[cause] = distances[each] + 1
                waiting.append(cause)
    rows = played.table("away", "entity")
    listed = sorted([str(away), each.hex()[:12]] for each, away in distances.items() if away <= 3)
    assert sorted([row[0], row[-1]] for row in rows) == listed
    assert len(distances) - len(listed) == played.number(r"and (\d+) more before these")
    assert known[verdict].patch["subject_state_hash"] == naive_hash(PIPELINE, played.crashed).hex()


def status_of(said: Observation) -> object:
    """Return the status that an observation gives a document."""
    fields = said.patch["fields"]
    assert isinstance(fields, dict)
    return json.loads(fields["status"])


def test_unanswered_payment_is_known_later(played: Played) -> None:
    (late,) = [said for _, said in played.all if said.source.agent == "acme-statement"]
    before = [said for _, said in played.crashed if said.entity == late.entity]
    assert late not in before
    newest = max(before, key=lambda said: said.observed_at)
    states = [status_of(said) for said in (newest, late)]
    assert [row[1] for row in played.table(late.entity, "status")] == states == ["approved", "paid"]


def test_each_command_works_as_printed(played: Played) -> None:
    commands = played.commands()
    assert 5 <= len(commands) <= 9
    for command in commands:
        result = run_printed(command, played.folder)
        differs = int("diff" in command)
        assert (result.status, result.err) == (differs, ""), shlex.join(command)
        assert result.out
    assert called(commands[0], played.folder).returncode == 0


def test_commands_answer_as_the_demo_did(played: Played) -> None:
    (rebuild,) = [each for each in played.commands() if "rebuild" in each]
    rebuilt = run_printed([*rebuild, "--json"], played.folder).json
    assert f"root {rebuilt['root']}" in played.output
    assert rebuilt["observations"] == len(played.crashed)
    (true,) = [each for each in played.commands() if "observed" in each]
    state = run_printed([*true, "--json"], played.folder).json
    assert state["fields"]["fields"]["value"]["status"] == "paid"


def test_piped_output_fits_and_has_no_colour(played: Played) -> None:
    told = played.output.partition("\nAsk it yourself\n")[0]
    assert max(len(line) for line in told.splitlines()) <= 100
    assert "\x1b" not in played.output
    assert played.output.isascii()


def test_second_demo_command_replaces_the_log(played: Played) -> None:
    result = called([*CLI, "demo"], played.folder)
    assert (result.returncode, result.stderr) == (0, "")
    assert "instead of a former demo's" in result.stdout
    every, _, crashed = contents(f"file:{played.folder / demo_folder.DEFAULT}")
    # On a slow machine the begin of a step is recorded separately from its end, which adds one observation of an
    # entity.
    assert list(dict.fromkeys(said.entity for _, said in every)) == list(
        dict.fromkeys(said.entity for _, said in played.all)
    )
    assert {identify(said) for _, said in every}.isdisjoint(identify(said) for _, said in played.all)
    assert len(crashed) == len(played.crashed)


@pytest.fixture
def actors(monkeypatch: pytest.MonkeyPatch) -> list[Actor]:
    """The processes that a demo starts in this test, in order."""
    started: list[Actor] = []
    start = Stage.start

    def remembered(stage: Stage, module: str, *arguments: str) -> Actor:
        started.append(start(stage, module, *arguments))
        return started[-1]

    monkeypatch.setattr(Stage, "start", remembered)
    return started


def statuses(actors: Sequence[Actor]) -> list[tuple[str, int | None]]:
    """Return the name and exit status of each process; a status of None means that it still runs."""
    return [(each.name, each._process.returncode) for each in actors]


@pytest.mark.outside
def test_agent_is_killed_and_the_others_finish(tmp_path: Path, actors: list[Actor]) -> None:
    assert run(tmp_path / "log", keep=False) == 0
    expected = [("deployer", 0), ("agent", -signal.SIGKILL), ("deployer", 0), ("evaluator", 0), ("bank", 0)]
    assert statuses(actors) == expected


def test_differences_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(deployer.OVERWRITTEN, "rate_limit", 51)
    assert run(tmp_path / "log") == 1
    said = capsys.readouterr().out
    assert f"1 of 13 comparisons differ:\n   changes since @{DEPLOYED}: expected" in said


def test_failing_agent_ends_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], actors: list[Actor]
) -> None:
    monkeypatch.setattr("refold.explorer.demo.run.SEED", "no number")
    assert run(tmp_path / "log") == 1
    assert "agent ended with status 2" in capsys.readouterr().err
    assert statuses(actors) == [("deployer", 0), ("agent", 2)]


@pytest.mark.outside
def test_interrupted_demo_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, actors: list[Actor]
) -> None:
    def interrupted(actor: Actor) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Actor, "go_on", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "log")
    assert statuses(actors) == [("deployer", 0), ("agent", -signal.SIGKILL)]


def test_agent_exits_when_its_demo_is_gone(tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'log'}"
    with Stage() as stage:
        stage.play("deployer", url, "deploy")
        agent = stage.start("agent", url, "--cued")
        assert agent.listen()["at"] == "start"
        assert agent._process.stdin is not None
        agent._process.stdin.close()
        with pytest.raises(DemoFailed, match="status 1"):
            agent.finish()


def test_undisturbed_agent_finishes_its_work(tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'log'}"
    with Stage() as stage:
        stage.play("deployer", url, "deploy")
        stage.play("agent", url)
    with refold.open(url, read_only=True) as log:
        assert log.state(PIPELINE).fields["status"] == "succeeded"
        assert log.state(f"run/{RUN}").fields["outcome"] == "succeeded"
        assert log.verify().ok


def test_unrelated_folder_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "work.txt").write_text("precious")
    with pytest.raises(refold.InputError, match="something else"):
        demo_folder.make(folder, keep=False)
    where, replaced = demo_folder.make(folder, keep=True)
    assert (where, replaced) == (tmp_path / "mine-2", False)
    assert [each.name for each in folder.iterdir()] == ["work.txt"]


def test_unrelated_log_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    with refold.open(f"file:{folder}") as log:
        log.observe("document/mine", {"kind": "precious"})
    with pytest.raises(refold.InputError, match="something else"):
        demo_folder.make(folder, keep=False)


def test_extended_demo_log_is_left_alone(tmp_path: Path) -> None:
    folder, _ = demo_folder.make(tmp_path / "log", keep=False)
    (folder / "notes.txt").write_text("precious")
    with pytest.raises(refold.InputError, match="something else"):
        demo_folder.make(folder, keep=False)


def test_keep_leaves_the_former_log(tmp_path: Path) -> None:
    first, _ = demo_folder.make(tmp_path / "log", keep=False)
    second, replaced = demo_folder.make(tmp_path / "log", keep=True)
    assert (first.name, second.name, replaced) == ("log", "log-2", False)
    assert demo_folder.make(first, keep=False) == (first, True)


def test_commands_use_the_program_name_that_the_shell_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "my venv" / "bin" / "refold"
    script.parent.mkdir(parents=True)
    script.touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(script.with_name("python")))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert commands.program() == "'my venv/bin/refold'"
    monkeypatch.chdir(script.parent)
    assert commands.program() == "./refold"
    monkeypatch.setenv("PATH", str(script.parent))
    assert commands.program() == "refold"


def test_demo_uses_only_the_public_surface() -> None:
    for path in (ROOT / "explorer" / "demo").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [each.name for each in node.names] if isinstance(node, ast.Import) else []
            inside = [name for name in names if name.startswith("refold.")]
            assert all(name.startswith("refold.explorer.demo") for name in inside), f"{path.name}: {inside}"
