"""Retention on real logs: what was removed is gone, what remains verifies, and no recording is disturbed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from refold.agents.log import AgentLog, open_log
from refold.agents.recorder.run import Run
from refold.agents.replay.run import replayed
from refold.agents.retention.classes import DAY_MICROS, days_of
from refold.agents.retention.marks import flag, pin, unflag, unpin
from refold.agents.retention.plan import plan
from refold.agents.retention.sweep import SweepResult, sweep
from refold.avro.errors import Expired, InputError
from refold.explorer.cli.main import run
from refold_tests.child import Child

SECRET = "the customer's own words "
MASTER = "REFOLD_MASTER_KEY"
DAYS = days_of([])


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    return f"file:{tmp_path}/log"


@pytest.fixture
def kafka_url(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    broker = request.getfixturevalue("broker")
    monkeypatch.setenv(MASTER, "bWFzdGVyIGtleSBvZiB0aGUgdGVzdHMsIDMyIGJ5dGVz")
    return f"kafka://{broker.bootstrap}/{broker.prefix}?partitions=2"


def agent(run: Run) -> Any:
    """Run three steps; each has content over a record's limit, and content within it."""
    for number in range(3):
        with run.step(f"step {number}"):
            answer = run.model(lambda **given: {"text": SECRET * given["times"]}, times=1 + 99 * (number % 2))
            run.state[f"said {number}"] = answer["text"]
    return {"said": len(run.state)}


def record(log: AgentLog, name: str, **given: Any) -> str:
    """Record a run of the agent, ended; return its hash."""
    with log.run("agent", id=name, input={"of": name}, **given) as run:
        run.output = agent(run)
    return log.recording(name).hash


def later(days: float) -> int:
    return time.time_ns() // 1000 + round(days * DAY_MICROS)


def swept(log: AgentLog, days: float = 8, classes: Mapping[str, float] = DAYS) -> SweepResult:
    return sweep(log, log.vault.ring, classes, later(days))


def permanent_facts(log: AgentLog) -> dict[str, Any]:
    """Return everything that must remain, whatever expires."""
    cut = log.point().cut
    records = [(each.partition, each.offset, each.entity, each.id, each.recorded_at, each.data)
               for partition, end in cut.offsets.items() for each in log.port.read(partition, 0, end)]  # fmt: skip
    view = log.rebuild()
    steps = [each for each in view if each.startswith("step/")]
    return {
        "records": records, "root": view.root, "hashes": view.entity_hashes(),
        "why": [[link.observation_id for link in view[each].why("status")] for each in steps],
        "history": [[(row.field, row.op, row.observation) for row in log.history(each)] for each in steps],
    }  # fmt: skip


def stored(tmp_path: Path) -> bytes:
    """Return every byte below a folder."""
    return b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


@pytest.mark.parametrize("kind", ["file", pytest.param("kafka", marks=pytest.mark.kafka)])
def test_expired_runs_are_removed_and_everything_else_stays(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = request.getfixturevalue(f"{kind}_url")
    with open_log(url) as log:
        names = ("a", "b", "pinned", "flagged", "parent", "tested")
        hashes = {name: record(log, name, kind="test" if name == "tested" else "") for name in names}
        pin(log, log.vault, "pinned")
        flag(log, log.vault, "flagged", "refunded twice")
        log.fork("parent", at=2, id="child").drive(agent)
        hashes["child"] = log.recording("child").hash
        pin(log, log.vault, "child")
        log.flush()
        before = permanent_facts(log)
        assert plan(log, log.vault.ring, DAYS, later(0)).expiring == []
        assert [each.run for each in plan(log, log.vault.ring, DAYS, later(2)).expiring] == ["tested"]
        assert permanent_facts(log) == before, "a plan changes nothing"
        ring = log.vault.ring
        assert ring is not None
        keys = {name: ring.get(f"run:{name}") for name in names}
        contents = len([*log.port.blobs.stored()])

        done = swept(log)
        assert sorted(done.runs) == ["a", "b", "tested"]
        assert (done.keys, done.left) == (3, 0)
        assert done.contents == contents - len([*log.port.blobs.stored()]) > 0
        assert {name: ring.get(f"run:{name}") == keys[name] for name in names} == {
            name: name not in done.runs for name in names
        }
        again = swept(log)
        assert (again.runs, again.keys, again.contents) == ([], 0, 0)
        assert permanent_facts(log) == before

    with open_log(url) as log:
        for name, hash_ in hashes.items():
            if name in done.runs:
                with pytest.raises(Expired, match=f"run {name}: .*expired"):
                    log.recording(name)
            else:
                assert replayed(agent, log.recording(name)).hash == hash_, "kept runs are replayable"
        assert permanent_facts(log) == before
        verdict = log.verify()
        assert verdict.ok, verdict.mismatches
        assert verdict.root == before["root"]
        for keep in (pin, lambda log, vault, run: flag(log, vault, run, "late")):
            with pytest.raises(Expired, match="nothing of run/a is left to keep"):
                keep(log, log.vault, "a")
        unflag(log, "flagged")
        unpin(log, "pinned")
        log.flush()
        assert plan(log, log.vault.ring, DAYS, later(8)).runs["parent"].kept == ["parent of child"]
        assert sorted(swept(log).runs) == ["flagged", "pinned"]
        unpin(log, "child")
        log.flush()
        assert sorted(swept(log).runs) == ["child", "parent"]
        assert log.verify().ok
    if kind == "file":
        whole = stored(tmp_path)
        assert not any(key is not None and key.hex().encode() in whole for key in keys.values())
        assert SECRET.encode() not in whole


def test_equal_unsealed_blobs_stay_while_referenced(
    file_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("REFOLD_KEYS", "none")
    with open_log(file_url) as log:
        for name in ("a", "b"):
            log.observe(f"run/{name}", {"output": SECRET * 99, "status": "ended", "ended_at": later(-1)})
        log.observe("run/b", {"description": SECRET * 98})
        log.observe("document/d", {"fields": {"x": SECRET * 20_000}})
        log.observe("run/a", {"variables": {"x": SECRET * 20_000}})
        log.flush()
        pin(log, log.vault, "a")
        assert swept(log, 31).contents == 1, "what only b says"
        assert log.vault.open("run/a", "output", log.state("run/a").fields["output"]) == SECRET * 99
        with pytest.raises(Expired, match="run/b description: expired"):
            log.vault.open("run/b", "description", log.state("run/b").fields["description"])
        unpin(log, "a")
        assert swept(log, 0, days_of(["failed=0"])).left == 1, "put just now: a run may be about to name it"
        assert swept(log, 31).contents == 1
        assert log.vault.open("document/d", "fields", log.state("document/d").fields["fields"])
        assert log.verify().ok
    whole = stored(tmp_path / "log" / "blobs")
    assert whole.count(SECRET.encode()) == 20_000, "the document's"


def test_sealed_content_without_its_ring_is_kept(file_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_log(file_url) as log:
        record(log, "a")
    monkeypatch.setenv("REFOLD_KEYS", "none")
    with open_log(file_url) as log, pytest.raises(InputError, match="no key ring is open here"):
        swept(log)
    monkeypatch.delenv("REFOLD_KEYS")
    with open_log(file_url) as log:
        assert log.recording("a").output == {"said": 3}


def test_concurrent_recorder_is_undisturbed(file_url: str) -> None:
    """Sweep with 0 days between any two steps: open runs keep everything, also one that was resumed."""
    nothing = days_of(["success=0", "failed=0"])
    with open_log(file_url) as log, open_log(file_url) as beside:
        with log.run("agent", id="a") as run:
            for number in range(4):
                with run.step(f"{number}"):
                    run.model(lambda **given: SECRET * 99, number=number)
                    assert swept(beside, 99, nothing).runs == []
        recording = beside.recording("a")
        assert [len(each.calls) for each in recording.steps] == [1] * 4
        assert swept(beside, 99, nothing).runs == ["a"]
        with pytest.raises(Expired):
            log.recording("a")


SWEEPING = """
import sys
from refold.agents.log import open_log
from refold.agents.retention.classes import days_of
from refold.agents.retention.sweep import sweep

with open_log(sys.argv[1]) as log:
    log.vault.ring.ids()
    print("begin", flush=True)
    sweep(log, log.vault.ring, days_of([]), int(sys.argv[2]))
print("end", flush=True)
"""


@pytest.mark.faults
def test_killed_sweep_leaves_a_valid_log_and_is_finished_by_the_next(
    file_url: str, child: Callable[..., Child], fault_rounds: int, seed: int, tmp_path: Path
) -> None:
    """kill -9 at any moment: before the first key, between keys, between keys and contents, after everything."""
    rounds = max(3, fault_rounds // 2)
    hashes: dict[str, str] = {}
    gone: set[str] = set()
    for number in range(rounds):
        with open_log(file_url) as log:
            for each in "xyz":
                name = f"{number}{each}"
                hashes[name] = record(log, name)
            pin(log, log.vault, f"{number}x")
        process = child(SWEEPING, file_url, later(8))
        assert process.line() == "begin"
        _until(process, tmp_path, (seed + number) % 4, f"{number}y")
        process.kill()
        with open_log(file_url) as log:
            for name, hash_ in hashes.items():
                try:
                    assert log.recording(name).hash == hash_, (name, seed)
                    assert name not in gone, (name, seed)
                except Expired:
                    assert not name.endswith("x"), (name, seed)
                    gone.add(name)
            assert log.verify().ok, seed
    with open_log(file_url) as log:
        swept(log)
        assert plan(log, log.vault.ring, DAYS, later(8)).expiring == []
        ring = log.vault.ring
        assert ring is not None
        assert {*ring.ids()} == {f"run:{number}x" for number in range(rounds)}
        assert all(log.recording(f"{number}x").hash for number in range(rounds))
        assert log.verify().ok


def _until(process: Child, folder: Path, moment: int, run: str) -> None:
    """Wait for a moment of a sweep: at once, one key fewer, one content fewer, its end."""
    keys, contents = folder / "log" / "keys", folder / "log" / "blobs"
    counts: list[Callable[[], int]] = [
        lambda: 0, lambda: len([*keys.iterdir()]), lambda: len([*contents.glob("??/*")]), lambda: 0,
    ]  # fmt: skip
    count, first = counts[moment], counts[moment]()
    while moment and process.process.poll() is None and count() == first:
        time.sleep(0.0005)


def test_command_prints_its_plan_and_executes_it(file_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    def refold(*arguments: str) -> str:
        assert run([*arguments, "--log", file_url]) == 0
        return capsys.readouterr().out

    def refused(*arguments: str) -> str:
        assert run([*arguments, "--log", file_url]) == 2
        return capsys.readouterr().err

    with open_log(file_url) as log:
        for name in ("a", "b", "c"):
            record(log, name)
    assert "0 runs would expire: 0 keys, 0 contents, 0 bytes; 3 kept" in refold("retain")
    dry = refold("retain", "--class", "success=0")
    assert "3 runs would expire: 3 keys" in dry
    assert "nothing was removed; do it with --apply" in dry
    assert json.loads(refold("run", "flag", "a", "--reason", "refunded twice", "--json"))["run"] == "a"
    assert "run b is pinned" in refold("run", "pin", "b")
    found = json.loads(refold("retain", "--class", "success=0", "--json", "--apply"))
    assert {each["run"]: (each["expires"], each["kept"]) for each in found["runs"]} == {
        "a": (False, ["class flagged for 90 days"]), "b": (False, ["pinned"]), "c": (True, []),
    }  # fmt: skip
    assert found["removed"]["keys"] == 1
    assert not found["dry_run"]
    assert json.loads(refold("retain", "--class", "success=0", "--json"))["contents"] == 0
    listed = refold("retain", "--class", "success=0", "--all")
    assert "class flagged for 90 days" in listed
    assert "2 kept, 1 with nothing left to remove" in listed
    for place, word in (("step/c#1", "was sealed under key run:c"), ("step/c#2", "expired blob")):
        for shown in (refold("state", place), refold("history", place), refold("why", f"{place}.journal")):
            assert word in shown
        assert '"expired": true' in refold("state", place, "--json")
        assert "expired" not in refold("state", place.replace("c", "a"))
    assert "run a is no longer flagged" in refold("run", "flag", "a", "--unflag")
    assert "nothing of run/c is left to keep" in refused("run", "pin", "c")
    assert "give one of them" in refused("retain", "--dry-run", "--apply")
    assert "such as failed=60" in refused("retain", "--class", "failed")
    assert "everything stored matches a full replay" in refold("verify")
    status = run(["run", "show", "c", "--log", file_url])
    shown = "".join(capsys.readouterr())
    assert "expired" in shown, status
