"""Users' own agents over `.changes`: plain functions in a module that `refold worker --agents MODULE` names.

    from refold import Change, Log
    from refold.streams.worker.agents import changes_agent

    @changes_agent("step", "effect")          # of these entity types; without any, every change
    def watch(change: Change, log: Log) -> None:
        log.observe("audit_event/...", {...})

Each change is delivered after it is committed, an entity's in order. It is acknowledged once every agent of the module
has returned and their observations are durable. An agent that raises ends the worker, and the change is delivered again
at its next start: an agent sees each change at least once, and none is skipped. Give your observations a Source whose
run and seq follow from the change, and a repeated change observes the same observation. Agents are called one after the
other, in the order of the module, by one thread.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from refold.avro.errors import InputError
from refold.avro.observation import type_of
from refold.streams.changes import Change
from refold.streams.client import Log

Act = Callable[[Change, Log], None]


@dataclass(frozen=True, slots=True)
class ChangesAgent:
    """A function to call with changes.

    Attributes:
        types: The entity types whose changes are wanted; all if empty.
    """

    name: str
    types: frozenset[str]
    act: Act

    def __call__(self, change: Change, log: Log) -> None:
        if not self.types or type_of(change.entity) in self.types:
            self.act(change, log)


def changes_agent(*types: str) -> Callable[[Act], ChangesAgent]:
    """Have `refold worker --agents` call a function with each change of some entity types, or of all."""

    def mark(act: Act) -> ChangesAgent:
        return ChangesAgent(act.__qualname__, frozenset(types), act)

    return mark


def load_agents(module: str) -> Sequence[ChangesAgent]:
    """The agents that a module holds, in its order; InputError where it cannot be imported, or holds none."""
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        raise InputError(
            f"the agents' module {module!r:.100} cannot be imported: {error}; give a dotted name that "
            "`python -c 'import NAME'` finds, and its folder in PYTHONPATH"
        ) from error
    agents = [each for each in vars(found).values() if isinstance(each, ChangesAgent)]
    if not agents:
        raise InputError(f"{module} holds no agents; mark its functions with @changes_agent() "
                         "(refold.streams.worker.agents)")  # fmt: skip
    return agents
