"""A run with nested runs that is killed at any moment: each effect takes place once, and the result is the same."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import refold
from refold.agents.golden.add import golden_of_run
from refold.agents.golden.runner import judged_run
from refold_tests import equal_children
from refold_tests.brokers import SharedKafka
from refold_tests.child import Child
from refold_tests.nested_runs import EFFECTS, FINISHED, KINDS, OUTPUT, RUNS, Lives, Nested, drive, effects

pytestmark = [pytest.mark.faults, pytest.mark.timeout(7200)]


def campaign(url: str, child: Callable[..., Child], folder: Path, seed: int, rounds: int) -> None:
    """Make this many runs, each killed once or twice at a random moment; then check what is stored of them."""
    print(f"seed {seed}, {rounds} rounds")
    rng = random.Random(seed)
    lives = Lives(child, url)
    counts: dict[str, int] = {}
    for kind in KINDS:
        status, counts[kind] = lives.live(folder / kind, kind, kind)
        assert status == FINISHED
    ends: Counter[int] = Counter()
    runs = []
    for number in range(rounds):
        kind = rng.choice(KINDS)
        run, world = f"run-{number}", folder / f"world-{number}"
        plan = [rng.randint(4, counts[kind]) for _ in range(rng.choice((1, 1, 2)))]  # its begin is stored
        print(f"round {number}: {kind}, killed behind {plan}")
        status = FINISHED
        for dies_behind in plan:
            status, _ = lives.live(world, run, kind, dies_behind)
            ends[status] += 1
            assert status in (FINISHED, -9)
            if status == FINISHED:
                break
        if status != FINISHED:
            assert lives.live(world, run, kind)[0] == FINISHED
        assert effects(world) == EFFECTS
        runs.append((run, kind, world))
    print(f"ends of the lives that were to be killed: {dict(ends)}")
    assert ends[-9] > 0
    with refold.open(url) as log:
        for run, kind, world in runs:
            assert_whole(log, run, kind, world)


def assert_whole(log: refold.AgentLog, run: str, kind: str, world: Path) -> None:
    """Check that the log has of a run what it has of one that was not killed, and that a replay makes no calls."""
    recording = log.recording(run)
    assert (recording.outcome, recording.output) == ("succeeded", OUTPUT)
    family = list(recording.family)
    assert len(family) == RUNS
    assert all(each.outcome == "succeeded" for each in family)
    assert log.compare(kind, run) is None
    assert log.replay(run, Nested(log, world, kind).agent).is_same
    assert effects(world) == EFFECTS


def test_run_killed_at_any_moment_executes_each_effect_once(
    tmp_path: Path, child: Callable[..., Child], seed: int, fault_rounds: int
) -> None:
    campaign(f"file:{tmp_path}/log", child, tmp_path, seed, fault_rounds)


def test_run_killed_at_any_moment_on_kafka_executes_each_effect_once(
    kafka: SharedKafka, prefix: str, tmp_path: Path, child: Callable[..., Child], seed: int, fault_rounds: int
) -> None:
    campaign(f"kafka://{kafka.bootstrap}/{prefix}?partitions=2", child, tmp_path, seed, max(2, fault_rounds // 10))


@pytest.mark.parametrize("turns", [(0, 1), (1, 0)], ids=["as before", "the other first"])
def test_equal_concurrent_children_are_distinguished_by_place(
    tmp_path: Path, child: Callable[..., Child], turns: tuple[int, int]
) -> None:
    """The order of their resumes does not tell which of them had ended."""
    url, world = f"file:{tmp_path}/log", tmp_path / "world"
    assert child(equal_children.CODE, url, world).end() == -9
    assert world.read_text().splitlines() == ["b"]
    with refold.open(url) as log:
        assert log.run("outer", resume="r1").drive(equal_children.agent_of(world, turns)) == ["b", "b"]
        assert world.read_text().splitlines() == ["b", "b"]
        assert [each.outcome for each in log.recording("r1").family] == ["succeeded"] * 3
        assert log.replay("r1", equal_children.agent_of(tmp_path / "none", turns)).is_same
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_order_of_parallel_children_does_not_depend_on_timing(tmp_path: Path, kind: str) -> None:
    with refold.open(f"file:{tmp_path}/log") as log:
        hashes = set()
        for number in range(3):
            assert drive(log, tmp_path / f"{number}", f"r{number}", kind) == OUTPUT
            hashes.add(log.recording(f"r{number}").hash)
            assert {log.replay("r0", Nested(log, tmp_path / "none", kind).agent).hash} == {log.recording("r0").hash}
        assert len(hashes) == 1
        agent = Nested(log, tmp_path / "none", kind).agent
        assert log.fork("r0", at=0, policy="recorded").drive(agent) == OUTPUT
        assert log.fork("r0", at=0, policy="live").drive(agent) == OUTPUT
        assert log.fork("r0", at=2).drive(agent) == OUTPUT
        for expect in ("exact", "outcome = succeeded"):
            golden = golden_of_run(log.recording("r0"), log._fields, entry="agents:agent", expect=[expect])
            assert judged_run(golden, agent, "agent", tmp_path).passed
        assert not (tmp_path / "none").exists(), "nothing took place again"


AFTER_OTHERS = """
import asyncio, os, signal, sys, threading
import refold

url, world, how, dies = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:] == ["dies"]

def happens(text):
    with open(world, "a") as file:
        file.write(text + chr(10))

@refold.tool(effect="write")
def post(text, *, idempotency_key=""):
    happens(text)

@refold.tool(effect="write")
async def post_async(text, *, idempotency_key=""):
    happens(text)

@refold.tool
def look():
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
    return "x" * 1_000_000

@refold.tool
async def look_async():
    return "x" * 1_000_000

def clerk(run):
    run.step("send", post, f"of {run.input}")
    if dies and run.input == "the last":
        os.kill(os.getpid(), signal.SIGKILL)

def agent(run):
    with run.step("all"):
        if how == "after a write":
            post("first")
        if how == "after a thread":
            look()
        if how == "after a run within":
            run.child("clerk", input="the first").drive(clerk)
        run.child("clerk", input="the last").drive(clerk)

async def agent_async(run):
    async with run.step("all"):
        await (look_async() if how == "after a large answer" else post_async("first"))
        await run.child("clerk", input="the last").drive_async(clerk)

with refold.open(url) as log:
    run = log.run("a", **({"id": "r"} if dies else {"resume": "r"}))
    if how in ("after an async write", "after a large answer"):
        asyncio.run(run.drive_async(agent_async))
    else:
        run.drive(agent)
"""


@pytest.mark.parametrize(
    "how", ["after a write", "after an async write", "after a large answer", "after a thread", "after a run within"]
)
def test_interrupted_child_is_found_after_steps_that_are_not_repeated(
    tmp_path: Path, child: Callable[..., Child], how: str
) -> None:
    """A resumed run starts fewer threads than the first process did, because it need not request what is recorded."""
    url, world = f"file:{tmp_path}/log", tmp_path / "world"
    assert child(AFTER_OTHERS, url, world, how, "dies").end() == -9
    assert child(AFTER_OTHERS, url, world, how).end() == 0
    happened = world.read_text().splitlines()
    assert happened.count("of the last") == 1, happened
    assert len(happened) == len({*happened})
    with refold.open(url) as log:
        assert [each.outcome for each in log.recording("r").family].count("succeeded") == len(log.runs())
