"""Time travel: a recorded run is opened at each of its steps, and gone on from one of them in another way.

    python docs/examples/time_travel.py

prints where the run stood after each step, then a child of it that parts after the first with more money, and the first
place where the two differ:

    0 start   {'left': 300}
    1 hotel   {'hotel': 'Plain', 'left': 220}
    2 train   {'hotel': 'Plain', 'left': 130, 'train': 'slow'}
    what if there were 900 left after step 1?
    2 train   {'hotel': 'Plain', 'left': 660, 'train': 'fast'}
    first divergence at step 2: other arguments
    the parent is as it was: True
"""

from __future__ import annotations

import tempfile

import refold
from refold.compare import Recording, compare, describe, states


def model(task: str, left: int) -> str:
    """Stands in for a language model."""
    if task == "hotel":
        return "Grand" if left > 500 else "Plain"
    return "fast" if left > 500 else "slow"


@refold.tool(effect="read")
def price(what: str) -> int:
    """A catalogue."""
    return {"Grand": 380, "Plain": 80, "fast": 240, "slow": 90}[what]


def plan(run: refold.Run) -> None:
    """Choose a hotel and a train for what is left."""
    for task in ("hotel", "train"):
        with run.step(task):
            choice = run.model(model, task=task, left=run.state["left"])
            run.decide(choice, why=f"{run.state['left']} left")
            run.state[task] = choice
            run.state["left"] -= price(choice)


def show(recording: Recording, since: int) -> None:
    """Where it stood after each step from one on."""
    names = ["start", *(step.name for step in recording.steps)]
    for number, (name, state) in enumerate(zip(names, states(recording), strict=True)):
        if number >= since:
            print(number, f"{name:<7}", dict(sorted(state.items())))


with tempfile.TemporaryDirectory() as folder, refold.open(f"file:{folder}/log") as log:
    log.run("planner", state={"left": 300}, id="trip").drive(plan)
    trip = log.recording("trip")
    show(trip, 0)

    print("what if there were 900 left after step 1?")
    log.fork("trip", at=1, state={"left": 900}, id="rich-trip").drive(plan)
    rich = log.recording("rich-trip")
    show(rich, 2)

    print(next(iter(describe(compare(trip, rich)))))
    print("the parent is as it was:", log.recording("trip").hash == trip.hash)
