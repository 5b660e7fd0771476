"""The protocol in a simulated world: processes run in random order, are killed at any point, see the log late."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.agents.effects.claims import EffectState
from refold.agents.effects.errors import EffectFailed, EffectUnknown, NotDone
from refold.avro.errors import StorageError
from refold_tests.effect_world import LEASE_MICROS, Process, World

ATTEMPTS_MAX = 3


def read_state(world: World) -> EffectState:
    standing = EffectState()
    for patch, cleared in world.said:
        standing.apply(patch, cleared)
    return standing


def run_all(world: World, processes: list[Process], *, is_settling: bool = False) -> None:
    """Advance random processes until all have ended. Time advances when all of them sleep."""
    while running := [each for each in processes if not each.ended]:
        awake = [each for each in running if each.asleep_until <= world.now]
        if not awake:
            world.now = min(each.asleep_until for each in running)
            continue
        world.rng.choice(awake).turn()
        if is_settling and world.rng.random() < 0.05:
            settle(world)


def settle(world: World) -> None:
    """Let a person check the other side when nothing can be in progress any more, and record the truth."""
    claim = read_state(world).holder
    if claim is not None and world.now > claim.until:
        said = "done" if world.took_place() else "failed"
        patch = {
            "claims": {claim.token: said},
            "reconciled_by": "ann",
            **({"result": '"paid"'} if said == "done" else {}),
        }
        world.said.append((patch, ()))


@given(st.integers(0, 2**64 - 1), st.integers(1, 4), st.booleans(), st.floats(0, 1), st.booleans())
def test_effect_happens_at_most_once_and_is_never_lost(
    seed: int, count: int, is_probing: bool, luck: float, is_settling: bool
) -> None:
    world = World(random.Random(seed))
    runs = [world.rng.choice("abc") for _ in range(count)]
    processes = [Process(world, run, is_probing=is_probing, luck=luck, attempts_max=ATTEMPTS_MAX) for run in runs]
    run_all(world, processes, is_settling=is_settling)
    world.now += LEASE_MICROS
    assert world.took_place() <= 1
    for each in processes:
        how, *what = each.ended
        if how == "returned":
            assert what == ["paid"]
            assert world.took_place() == 1
        elif how == "raised":
            assert isinstance(what[0], (EffectUnknown, EffectFailed, NotDone, StorageError))
            assert not (is_probing and isinstance(what[0], EffectUnknown))
    # A later process that can check the other side finds out the result, or carries the effect out.
    while True:
        last = Process(world, "later", is_probing=True, luck=1, attempts_max=ATTEMPTS_MAX)
        run_all(world, [last])
        if not isinstance(last.ended[1], StorageError):  # then the log was slow, and nothing was sent
            break
    if last.ended[0] == "raised":
        assert isinstance(last.ended[1], EffectFailed)
        assert read_state(world).failures >= ATTEMPTS_MAX
        assert world.took_place() == 0
    else:
        assert last.ended == ("returned", "paid")
        assert world.took_place() == 1


def test_model_world_detects_a_protocol_that_sends_twice() -> None:
    """If other processes could take over an unknown claim, this simulation would detect it."""
    twice = 0
    for seed in range(300):
        world = World(random.Random(seed))
        processes = [Process(world, run, is_probing=False, luck=0.3, attempts_max=9) for run in "ab"]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("refold.agents.effects.claims.EffectState.apply", forgetting(EffectState.apply))
            run_all(world, processes)
        world.now += LEASE_MICROS
        twice += world.took_place() > 1
    assert twice


def forgetting(take: object) -> object:
    def taken(self: EffectState, patch: dict[str, object], cleared: tuple[str, ...] = ()) -> None:
        take(self, patch, cleared)  # type: ignore[operator]
        if self.holder is not None and self.holder.is_unknown:
            self.holder = None

    return taken
