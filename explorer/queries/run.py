"""One run: the answers of `refold run show`, `refold run steps` and `refold knew`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from refold.agents.journal.record import Recording
from refold.agents.log import AgentLog
from refold.avro.errors import NotAnswerable
from refold.explorer.queries.clear import clear_json
from refold.explorer.queries.knew import knowledge_json
from refold.explorer.queries.query import options_of, positionals
from refold.explorer.queries.run_names import known_run, recorded_run
from refold.explorer.queries.run_shapes import run_json, step_json


@dataclass(frozen=True, slots=True)
class RunQuery:
    """A whole run. run: its id, or the beginning of it."""

    run: str
    at: str | None = None

    @property
    def arguments(self) -> list[str]:
        """`refold run show`."""
        return ["run", "show", *options_of({"at": self.at}), *positionals(self.run)]

    def answer(self, log: AgentLog) -> dict[str, Any]:
        """Return the run and its steps; if its content cannot be read, the fields stored in clear."""
        cut = log.point(self.at).cut
        run = known_run(log, self.run, cut)
        try:
            return whole_json(log.recording(run, cut))
        except NotAnswerable as error:
            return clear_json(log, run, cut, error)


def whole_json(run: Recording, chain: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return a run with its steps. chain: the result of checking its hashes, null if they were not checked."""
    layers = [step_json(step, has_code=run.has_code) for step in run.steps]
    return {**run_json(run), "chain": chain, "layers": layers}


@dataclass(frozen=True, slots=True)
class StepsQuery:
    """The steps of a run, or the one with a number."""

    run: str
    at: str | None = None
    step: int | None = None

    @property
    def arguments(self) -> list[str]:
        """`refold run steps`."""
        return ["run", "steps", *options_of({"at": self.at, "step": self.step}), *positionals(self.run)]

    def answer(self, log: AgentLog) -> list[dict[str, Any]]:
        """Return one object for each step."""
        return steps_json(recorded_run(log, self.run, log.point(self.at).cut), self.step)


def steps_json(run: Recording, number: int | None = None) -> list[dict[str, Any]]:
    """Return the steps, or the one with a number."""
    return [step_json(step, has_code=run.has_code) for step in run.steps if number in (None, step.number)]


@dataclass(frozen=True, slots=True)
class KnewQuery:
    """What an agent knew by a moment. run: only what it knew in that run; every: not only the latest."""

    agent: str
    at: str | None = None
    run: str | None = None
    every: bool = False

    @property
    def arguments(self) -> list[str]:
        """`refold knew`."""
        named = {"at": self.at, "run": self.run, "all": self.every}
        return ["knew", *options_of(named), *positionals(self.agent)]

    def answer(self, log: AgentLog) -> dict[str, Any]:
        """Return its reads and answers, and what the log held then."""
        return knowledge_json(self.agent, log.knew(self.agent, self.at, run=self.run, every=self.every))
