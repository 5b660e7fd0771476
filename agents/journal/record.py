"""The record of a run: its steps, their attempts, and the request and answer of each call.

    Recording   a run: its input, its steps, how it ended
      Step      one step: attempts, its changes of the state (delta), its result, its position in the chain of hashes
        Attempt one try of a step: its calls in the order in which they began, and its failure if it failed
          Call  one request and its result, with the retries made for it

A call's `kind` names the request:

    tool     request {"args": [...], "kwargs": {...}}; answer what the tool returned
    model    the same for a model client
    read     name is the entity; answer {"version", "state_hash", "observations" (ids), "cut"}, no values: they are
             found by the ids (`knew`), so that erasing an observation's content erases what was read of it. A
             self-contained recording (a golden trace) also has `fields`.
    observe  name is the entity; request the patch; answer the observation's id
    now      answer microseconds since 1970; random: a float in [0, 1); uuid: text
    decide   request {"choice", "why", "options"}; no answer: the code itself computes it
    run      name is the agent of a nested run (recorder/children.py); request {"input", "state", "seed"};
             answer {"run" (its id), "outcome", "hash"}. Before it has ended, the answer has only the id.

All values are JSON trees, with the exact type of each number (journal/json_fidelity.py). Times are microseconds since
1970-01-01.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from typing import Any, Literal, TypeAlias

import msgspec

from refold.agents.journal.volatile import without
from refold.avro.canonical import encode, json_tree

Plain: TypeAlias = Any
"""A JSON value: None, bool, int, float, str, list of them, dict of them by text."""

Kind: TypeAlias = Literal["tool", "model", "read", "observe", "now", "random", "uuid", "decide", "run"]
Effect: TypeAlias = Literal["", "read", "write"]
Outcome: TypeAlias = Literal["", "succeeded", "failed", "cancelled", "timed_out", "unknown"]

OF_THE_CODE: frozenset[Kind] = frozenset({"decide"})
"""Kinds that the agent's code computes itself: deterministic edges. All others are recorded edges."""

FORMAT = 1

_PART = re.compile(r"(?:^|/)step (.*?)#\d+(?=/|$)")


class _Struct(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Immutable; fields with default values are left out when it is written."""


class RecordedRequest(_Struct, frozen=True):
    """A request. `hash` identifies it: equal requests have equal hashes.

    Attributes:
        ignored: The paths in the request that are not compared (journal/volatile.py).
        found_by: The value that is compared instead of the request.
    """

    kind: Kind
    name: str = ""
    request: Plain = None
    effect: Effect = ""
    ignored: tuple[str, ...] = ()
    found_by: Plain = None

    @property
    def is_whole(self) -> bool:
        """Whether the whole request is compared."""
        return not self.ignored and self.found_by is None

    @property
    def counted(self) -> Plain:
        """The parts of the request that are compared."""
        return without(self.request, self.ignored) if self.found_by is None else {"refold.key": self.found_by}

    @property
    def matching(self) -> str:
        """For people: how the request is compared, if it is not compared as a whole."""
        return "matched by its key" if self.found_by is not None else f"matched without {', '.join(self.ignored)}"

    @property
    def hash(self) -> str:
        """The lower-case hex SHA-256 of kind, name and the compared parts of the request."""
        return hashlib.sha256(encode(json_tree([self.kind, self.name, self.counted], "request"))).hexdigest()


class Failure(_Struct, frozen=True):
    """How something failed.

    Attributes:
        exception: The class, by its qualified name (`builtins.TimeoutError`).
        at: When it failed, in microseconds since 1970.
        tool, input, output: The tool that failed, if one did, with its input and its output.
        retryable: Whether it may be tried again; None if that is not known.
        details: What else the exception held (recorder/exception_details.py); the chain of hashes does not cover it.
    """

    exception: str
    message: str = ""
    traceback: str = ""
    at: int = 0
    tool: str = ""
    input: Plain = None
    output: Plain = None
    retryable: bool | None = None
    details: Plain = None


class Retry(_Struct, frozen=True):
    """A failed attempt at a call, counted from 1, and the wait after it."""

    attempt: int
    failure: Failure
    backoff_ms: int = 0


class Call(_Struct, frozen=True):
    """One call.

    Attributes:
        key: The idempotency key, if it had a write effect.
        source: `live` if it was really made, `recorded` if a recording answered it.
        branch: The thread or task that made it, by where it was started (recorder/context.py); "" for the step's own
            code. It distinguishes equal concurrent requests. The chain of hashes does not cover it.
    """

    asked: RecordedRequest
    answer: Plain = None
    failure: Failure | None = None
    retries: tuple[Retry, ...] = ()
    key: str = ""
    started_at: int = 0
    duration_ms: float = 0
    source: Literal["live", "recorded"] = "live"
    branch: str = ""

    @property
    def part(self) -> str:
        """The step that a thread or task opened for the call in a step `parallel`; "" if there is none."""
        found = _PART.findall(self.branch)
        return found[-1] if found else ""


class Attempt(_Struct, frozen=True):
    """One try of a step, counted from 1.

    Attributes:
        backoff_ms: The wait after it, if it failed and another try followed.
        life: How often the run had been begun by then: 1, plus 1 for each time that it was resumed.
    """

    number: int = 1
    life: int = 1
    calls: tuple[Call, ...] = ()
    failure: Failure | None = None
    backoff_ms: int = 0
    started_at: int = 0
    ended_at: int = 0


Edit: TypeAlias = list[Any]
"""One edit of a state: ["set", path, value], ["remove", path], or ["splice", path, index, removed, [items]]."""


class Step(_Struct, frozen=True):
    """One step, `number` counted from 1.

    Attributes:
        outcome: The outcome; "" while the step is pending, "unknown" if it was begun and its end is not known.
        state_before, state_after: The hashes of the run's state before and after it.
        hash: The chain of hashes including this step.
        previous: The chain of hashes before it (journal/chain.py).
    """

    number: int
    name: str = ""
    attempts: tuple[Attempt, ...] = ()
    delta: tuple[Edit, ...] = ()
    result: Plain = None
    outcome: Outcome = ""
    state_before: str = ""
    state_after: str = ""
    previous: str = ""
    hash: str = ""

    @property
    def calls(self) -> tuple[Call, ...]:
        """The calls of the last attempt, which is the one that counts."""
        return self.attempts[-1].calls if self.attempts else ()

    @property
    def failure(self) -> Failure | None:
        """How the last attempt failed, if it did."""
        return self.attempts[-1].failure if self.attempts else None

    @property
    def is_committed(self) -> bool:
        """Whether the step ended with a result that counts, so that it is not run again."""
        return self.outcome not in ("", "unknown")


class Fork(_Struct, frozen=True):
    """The point where a run diverges from its parent: after the parent's step of that number, with these changes."""

    at: int
    patch: Plain = None

    @property
    def changes(self) -> tuple[Edit, ...]:
        """The changes that the patch makes to the state, between the parent's step and the child's first."""
        return tuple(self.patch.get("state", ())) if isinstance(self.patch, dict) else ()


class Recording(_Struct, frozen=True):
    """A recorded run.

    Attributes:
        run: The run's id.
        version: The agent's version.
        state: The run's state at the start.
        parent, forked_at, patch: For a fork, the run it was forked from, the number of the parent's step after which it
            diverges (0: before the first), and the changes. `steps` then start with the parent's.
        forks: For a parent that is a fork itself, where it and its ancestors diverge from their parents, oldest first.
        redacted: Whether it was recorded through a redactor.
        hash: The hash of the whole run (journal/chain.py).
        has_code: Whether code can be replayed against it; an imported conversation has only its messages.
        caller, caller_step: For a nested run, the outer run and its step.
        children: The recordings of its nested runs by their ids, as far as they exist.
        synthetic_time: Whether its source left out times. Then a time of 0 was never known.
    """

    run: str
    agent: str = ""
    version: str = ""
    code_version: str = ""
    kind: str = ""
    task: str = ""
    title: str = ""
    user: str = ""
    input: Plain = None
    seed: int | None = None
    state: Plain = {}
    steps: tuple[Step, ...] = ()
    status: str = ""
    outcome: Outcome = ""
    output: Plain = None
    failure: Failure | None = None
    started_at: int = 0
    ended_at: int = 0
    parent: str = ""
    forked_at: int = 0
    patch: Plain = None
    forks: tuple[Fork, ...] = ()
    redacted: bool = False
    hash: str = ""
    caller: str = ""
    caller_step: int = 0
    children: dict[str, Recording] = {}
    has_code: bool = True
    synthetic_time: bool = False
    flagged: bool = False
    pinned: bool = False
    retention_class: str = ""
    tags: tuple[str, ...] = ()
    metadata: Plain = {}

    @property
    def family(self) -> Iterator[Recording]:
        """This run and all its nested runs, at any depth."""
        yield self
        for child in self.children.values():
            yield from child.family

    @property
    def parted(self) -> tuple[Fork, ...]:
        """Every point where this run, or an ancestor of it, diverges from its parent; oldest first."""
        return (*self.forks, Fork(at=self.forked_at, patch=self.patch)) if self.parent else self.forks

    @property
    def given(self) -> Plain:
        """The input of the run's code: the recorded input, or the input that the last fork changed."""
        patches = [each.patch for each in self.parted if isinstance(each.patch, dict) and "input" in each.patch]
        return patches[-1]["input"] if patches else self.input


def child_of(call: Call) -> str:
    """Return the id of the nested run that a call began; empty if it began none."""
    answer = call.answer
    if call.asked.kind != "run" or not isinstance(answer, dict) or not isinstance(answer.get("run"), str):
        return ""
    found: str = answer["run"]
    return found


def children_of(steps: Iterable[Step]) -> Iterator[str]:
    """Yield the ids of the nested runs that began in some steps, in order, each once."""
    found = (child_of(call) for step in steps for attempt in step.attempts for call in attempt.calls)
    yield from dict.fromkeys(each for each in found if each)


def to_tree(part: msgspec.Struct) -> Plain:
    """Return any of these structures as a JSON tree."""
    return msgspec.to_builtins(part)
