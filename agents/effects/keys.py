"""Idempotency keys: {task}:{step}:{tool}:{hash of the arguments}, the name of an effect everywhere.

The hash is SHA-256 of the arguments' canonical JSON, so the order of keys does not matter. Arguments that the tool
ignores are left out (agents/journal/volatile.py). A second call with equal arguments in the same step is another effect
(two equal mails that are both intended); its key ends in .2, that of the third in .3. Every attempt at a step counts
from the first again, so a retried step finds the effects of the attempt before, in the order of their calls. A resumed
run skips the keys of calls that the earlier attempt had recorded when it was cut short: the second of two equal mails
is not the first one, which was sent. `%` and `:` in the names of tasks and tools are written as %25 and %3A, so that no
two effects can have the same key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection

from refold.agents.journal.record import Plain
from refold.avro.canonical import json_text
from refold.avro.envelope import check_name

TYPE = "effect"


def inputs_hash(arguments: Plain) -> str:
    """Return the lower-case hex SHA-256 of the arguments' canonical JSON."""
    return hashlib.sha256(json_text(arguments, "arguments").encode()).hexdigest()


def effect_key(task: str, step: int, tool: str, arguments: Plain, ordinal: int = 1) -> str:
    """Return the key of an effect.

    Args:
        task: The task.
        step: The number of the step.
        tool: The tool's name.
        arguments: The tool's arguments.
        ordinal: The number of this call among the equal calls of its step, from 1.

    Raises:
        ValidationError: The arguments are not a JSON tree, or task and tool are too long for an entity's name.
    """
    return _key_of(task, step, tool, inputs_hash(arguments), ordinal)


def entity_of(key: str) -> str:
    """Return the entity that stores an effect."""
    return f"{TYPE}/{key}"


def undo_key(key: str) -> str:
    """Return the key of the effect that undoes this one."""
    return f"{key}:undo"


class StepKeys:
    """Assigns the keys of one attempt at a step, in the order of its calls. Not thread-safe."""

    def __init__(self, task: str, step: int, used: Collection[str] = ()) -> None:
        """Begin an attempt.

        Args:
            used: Keys that are not assigned.
        """
        self._task = task
        self._step = step
        self._taken = used
        self._given: dict[tuple[str, str], int] = {}

    def next(self, tool: str, arguments: Plain) -> str:
        """Return the key of the next call."""
        asked = tool, inputs_hash(arguments)
        while True:
            self._given[asked] = self._given.get(asked, 0) + 1
            key = _key_of(self._task, self._step, *asked, self._given[asked])
            if key not in self._taken:
                return key


def _key_of(task: str, step: int, tool: str, inputs: str, ordinal: int) -> str:
    again = f".{ordinal}" if ordinal > 1 else ""
    key = f"{_escape(task)}:{step}:{_escape(tool)}:{inputs}{again}"
    check_name(entity_of(key), "effect key")
    return key


def _escape(name: str) -> str:
    return name.replace("%", "%25").replace(":", "%3A")
