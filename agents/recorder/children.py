"""Runs within runs: a run that begins in the code of another run is its child.

Of a live run, step by step:

1. The child's begin is a call of the parent, of the kind `run`, in the open step, or in one of its own. Its request is
   what the child is started with.
2. Everything that the parent recorded before is written.
3. The child's id follows from the parent's id, the step, how many of its attempts failed, the place of the call in the
   attempt, and the request. The place is the name of the thread or task (recorder/context.py), and how many runs that
   one began before: what a resume need not do again plays no part in it.
4. The child's begin is written: the entity `run/<id>`, which names the parent and the step. It is durable before
   anything that is made durable after it.
5. The child is a run of its own, with steps, a chain and children. Its task follows from the parent's task, the step
   and the place. So the keys of its effects are the same in every attempt at the step.
6. The child's end is made durable.
7. The parent's call is answered with the child's id, outcome and hash. It is durable as any call is: within 10 ms, or
   with the end of its step.

A process that is killed leaves the parent to be resumed, whose code comes to the same call:

    before 4        nothing of the child stands: it is begun
    between 4 and 6 the child is found by its id, and resumed
    after 6         the child is found by its id. It ended: its code runs again, answered by its recording alone, and
                    the parent's call is answered with what it came to. So it is after 7, too: of two equal children at
                    once, the parent's recording may have the call of the one that ended, and not tell them apart
    after the step  a step that is a function is not run again, and so nothing of the child. The code of a block runs
                    again, and in it the child's code; the parent's recording answers with the child's id

An attempt at the step that failed leaves its children as they ended. The next attempt begins others, whose effects
have the same keys: none takes place twice.

In a replay the child's code runs against the child's recording. What it comes to now is the answer of the parent's
call, so a parent whose child did otherwise has another hash. A departure of the child's is one of the parent's.
In a fork, a child that began before the fork is answered by its recording; one that begins after it goes by the fork's
policy.

A run that begins in a tool that is really called is no child: the tool's answer is recorded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from msgspec.structs import replace

from refold.agents.journal.record import Outcome, Plain, Recording, child_of
from refold.agents.recorder.answers import Answers, Departure, Within, WithinRun
from refold.agents.recorder.calls import Calling
from refold.agents.recorder.context import Strays
from refold.agents.recorder.failures import raised
from refold.agents.recorder.open_call import OpenRun
from refold.avro.canonical import encode, json_tree

_DIGITS = 32


class RunOptions(NamedTuple):
    """What a run is begun with, beside its head. is_named, has_task: whether its id, or its task, was given, and does
    not follow from the run around it."""

    entry: str = ""
    sample: float = 1
    strays: Strays = "refuse"
    is_named: bool = False
    has_task: bool = False


class Children(Protocol):
    """Makes the runs within one run: in its log, or in memory."""

    def require_log(self, url: str) -> None:
        """InputError where the runs within are recorded in another log than this."""

    def begin(self, head: Recording, given: RunOptions, within: Within, call: ChildCall) -> Any:
        """A Run within. head: with its id. within: what answers it; call: is told how it ends."""


class ChildCall:
    """The parent's side of a child: told how that ended. depart: ends the parent with a departure."""

    def __init__(self, run: str, opened: OpenRun, depart: Callable[[Departure], None]) -> None:
        self._run = run
        self._opened = opened
        self._depart = depart
        self._expected: tuple[Outcome, str] | None = None

    def expect(self, ended: Recording) -> None:
        """It is answered by what stands recorded of it, and has to end as that did."""
        self._expected = ended.outcome, ended.hash

    def ended(self, outcome: Outcome, hash: str) -> None:
        """The child ended.

        Raises:
            WithinRun: otherwise than was recorded, where that stands.
        """
        if self._expected not in (None, (outcome, hash)):
            changed = WithinRun(
                self._run, self._opened.call.name, "its code does not end as it ended when it was recorded"
            )
            self.departed(changed)
            raise changed
        self._opened.call.answered({"run": self._run, "outcome": outcome, "hash": hash})

    def departed(self, departure: Departure) -> None:
        """The child left its recording: so does the parent."""
        self._depart(departure)
        self._opened.call.failed(departure)


class Parent(Protocol):
    """A run, as far as those within it need it."""

    id: str
    task: str
    answers: Answers


def begin_child(parent: Parent, calling: Calling, children: Children, head: Recording, given: RunOptions) -> Any:
    """Begin a Run within one. head: without an id, where it follows from the parent.

    Raises:
        Departure: a recording answers the parent, and has nothing of it.
    """
    request: dict[str, Plain] = {"input": head.input, "state": head.state}
    if head.seed is not None:
        request["seed"] = head.seed
    opened = calling.opened_run(head.agent, request)
    try:
        if opened.found is not None and opened.found.failure is not None and not child_of(opened.found):
            raise raised(opened.found.failure)  # it could not begin, then as now
        given = given._replace(has_task=bool(head.task))
        head = replace(
            head, run=head.run or child_id(parent.id, opened), caller=parent.id, caller_step=opened.place.step,
            task=head.task or _task(parent.task, opened),
        )  # fmt: skip
        within = parent.answers.within(opened.place, head, opened.found)
        run = within.recording.run if within.is_whole and within.recording is not None else head.run
        call = ChildCall(run, opened, parent.answers.depart)
        if within.stands and within.recording is not None:
            call.expect(within.recording)
        child = children.begin(head, given, within, call)
        opened.call.says({"run": run})
        return child
    except BaseException as error:
        if isinstance(error, Departure):
            parent.answers.depart(error)
        opened.call.failed(error)
        raise


def child_id(parent: str, opened: OpenRun) -> str:
    """The id of a run within: of its parent, and of where it begins there and with what."""
    return _digest("child", [parent, opened.place.step, opened.failed, opened.branch, opened.nth, opened.hash])


def _task(parent: str, opened: OpenRun) -> str:
    return _digest("task", [parent, opened.place.step, opened.branch, opened.nth])


def _digest(what: str, tree: Plain) -> str:
    data = b"refold-" + what.encode() + b"/1\0" + encode(json_tree(tree, what))
    return hashlib.sha256(data).hexdigest()[:_DIGITS]
