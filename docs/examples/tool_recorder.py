"""The tool recorder: what tools answered is kept, and given back in a replay instead of being asked for again.

    python tool_recorder.py

1. A run is recorded: a tool whose answer is an object, one that fails and is tried again, one that writes, a model.
2. A hundred replays of it call nothing, send nothing, and come to one hash.
3. An agent that asks for something else is stopped, and told what comes nearest. Its write tool is not run either.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

import refold
from refold.errors import Unrecorded

CALLED: list[str] = []  # what was really called
WEATHER = itertools.cycle([None, "rain"])


@dataclass
class Place:
    """What the map answers with: recorded as JSON, and given back as this."""

    name: str
    height_m: float


@refold.tool(effect="read")
def find_place(name: str) -> Place:
    """A read tool. Its annotation says what comes back from the record."""
    CALLED.append("find_place")
    return Place(name, 400.0 + random.random())  # another answer each time


@refold.tool(effect="read", attempts_max=3, retry_on=(TimeoutError,))
def forecast(place: str) -> str:
    """One that fails at first: the attempt and its error are recorded with the call."""
    CALLED.append("forecast")
    found = next(WEATHER)
    if found is None:
        raise TimeoutError(f"no forecast for {place} yet")
    return found


@refold.tool(effect="write")
def book(place: str, nights: int) -> str:
    """A write tool: in a replay it is never run."""
    CALLED.append("book")
    return f"{nights} nights in {place}"


def model(messages: list[str]) -> str:
    """A model's client."""
    CALLED.append("model")
    return "two nights" if "rain" in messages[0] else "four nights"


def agent(run: refold.Run, nights_in_rain: int = 2) -> str:
    """It looks a place and its weather up, asks a model, and books."""
    with run.step("look"):
        place = find_place(run.input["to"])
        weather = forecast(place.name)
        run.state["trip"] = {"height_m": place.height_m, "weather": weather}
    with run.step("book"):
        run.decide(run.model(model, messages=[f"{weather} in {place.name}"]), why="the model says so")
        return book(place.name, nights_in_rain)


def other_agent(run: refold.Run) -> str:
    """The same, but for one thing."""
    return agent(run, nights_in_rain=3)


def main() -> None:
    """Record, replay, and change something."""
    with refold.open("file:.refold") as log:
        run = log.run("traveller", input={"to": "Bern"}, seed=7, id="trip-1")
        print(run.drive(agent))
        print("called:", ", ".join(CALLED))

        look = log.recording("trip-1").steps[0]
        for call in look.calls:
            failed = "".join(f" (failed first: {retry.failure.message})" for retry in call.retries)
            print(f"  {call.asked.name} {call.asked.request['kwargs']} -> {call.answer}{failed}")

        CALLED.clear()
        hashes = {log.replay("trip-1", agent).hash for _ in range(100)}
        print(f"100 replays: {len(hashes)} hash, {len(CALLED)} calls")
        assert hashes == {log.recording("trip-1").hash}

        try:
            log.replay("trip-1", other_agent)
        except Unrecorded as error:
            print(error.what)
        assert CALLED == []


if __name__ == "__main__":
    main()
