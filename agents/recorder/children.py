"""Nested runs: a run that begins in the code of another run is its child.

For a live run, step by step:

1. The child's begin is a call of the parent, of the kind `run`, in the open step, or in its own step. Its request is
   the child's input.
2. Everything that the parent recorded before is written.
3. The child's id is derived from the parent's id, the step, how many of its attempts failed, the position of the call
   in the attempt, and the request. The position is the name of the thread or task (recorder/context.py), and how many
   runs it began before: it does not depend on work that a resume need not repeat.
4. The child's begin is written: the entity `run/<id>`, which names the parent and the step. It is durable before
   anything that is made durable after it.
5. The child is a separate run, with steps, a chain and children. Its task is derived from the parent's task, the step
   and the position. So the keys of its effects are the same in every attempt at the step.
6. The child's end is made durable.
7. The parent's call is answered with the child's id, outcome and hash. It becomes durable as any call does: within 10
   ms, or with the end of its step.

If the process is killed, the parent is resumed, and its code reaches the same call:

    before 4        nothing of the child is recorded: it is begun
    between 4 and 6 the child is found by its id, and resumed
    after 6         the child is found by its id. It has ended: its code runs again, answered only by its recording, and
                    the parent's call is answered with the child's result. The same holds after 7: for two equal
                    children at once, the parent's recording may hold the call of the one that ended, and cannot
                    tell which one it was
    after the step  a step that is a function is not run again, and so neither is the child. The code of a block runs
                    again, and with it the child's code; the parent's recording answers with the child's id

An attempt at the step that failed leaves its children as they ended. The next attempt begins new ones, whose effects
have the same keys, so no effect happens twice.

In a replay the child's code runs against the child's recording. Its result is the answer of the parent's call, so a
parent whose child behaves differently has another hash. A departure of the child is a departure of the parent. In a
fork, a child that began before the fork is answered by its recording; a child that begins after it follows the fork's
policy.

A run that begins in a tool that is really called is not a child: the tool's answer is recorded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from msgspec.structs import replace

from refold.agents.journal.record import Outcome, Plain, Recording, child_of
from refold.agents.recorder.answers import Answers, ChildAnswers, Departure, WithinRun
from refold.agents.recorder.calls import CallRecorder
from refold.agents.recorder.context import Strays
from refold.agents.recorder.failures import raised
from refold.agents.recorder.open_call import OpenRun
from refold.avro.canonical import encode, json_tree

_DIGITS = 32


class RunOptions(NamedTuple):
    """The options of a new run, in addition to its head.

    Attributes:
        is_named, has_task: Whether its id and its task were given, as opposed to derived from the outer run.
    """

    entry: str = ""
    sample: float = 1
    strays: Strays = "refuse"
    is_named: bool = False
    has_task: bool = False


class Children(Protocol):
    """Creates the nested runs of one run: in its log, or in memory."""

    def require_log(self, url: str) -> None:
        """Check that nested runs are recorded in this log.

        Raises:
            InputError: They are recorded in another log.
        """

    def begin(self, head: Recording, options: RunOptions, within: ChildAnswers, call: ChildCall) -> Any:
        """Begin a nested Run.

        Args:
            head: Its head, with its id.
            options: Its other options.
            within: The source of its answers.
            call: Is informed of its end.
        """


class ChildCall:
    """The parent's side of a child, which is informed of the child's end.

    Args:
        depart: Ends the parent with a departure.
    """

    def __init__(self, run: str, opened: OpenRun, depart: Callable[[Departure], None]) -> None:
        self._run = run
        self._opened = opened
        self._depart = depart
        self._expected: tuple[Outcome, str] | None = None

    def expect(self, ended: Recording) -> None:
        """Note that the child is answered by this recording, and must end as recorded."""
        self._expected = ended.outcome, ended.hash

    def ended(self, outcome: Outcome, hash: str) -> None:
        """Report the end of the child.

        Raises:
            WithinRun: It ended differently from its recording.
        """
        if self._expected not in (None, (outcome, hash)):
            changed = WithinRun(
                self._run, self._opened.call.name, "its code does not end as it ended when it was recorded"
            )
            self.departed(changed)
            raise changed
        self._opened.call.answered({"run": self._run, "outcome": outcome, "hash": hash})

    def departed(self, departure: Departure) -> None:
        """Report that the child departed from its recording; the parent departs too."""
        self._depart(departure)
        self._opened.call.failed(departure)


class Parent(Protocol):
    """The part of a run that its nested runs need."""

    id: str
    task: str
    answers: Answers


def begin_child(parent: Parent, calling: CallRecorder, children: Children, head: Recording, options: RunOptions) -> Any:
    """Begin a nested Run.

    Args:
        parent: The outer run.
        calling: The outer run's calls.
        children: Creates the nested run.
        head: Its head. Without an id, the id is derived from the parent's.
        options: Its other options.

    Raises:
        Departure: A recording answers the parent, and does not hold the child.
    """
    request: dict[str, Plain] = {"input": head.input, "state": head.state}
    if head.seed is not None:
        request["seed"] = head.seed
    opened = calling.opened_run(head.agent, request)
    try:
        if opened.found is not None and opened.found.failure is not None and not child_of(opened.found):
            raise raised(opened.found.failure)  # it could not begin when it was recorded, so it cannot now
        options = options._replace(has_task=bool(head.task))
        head = replace(
            head, run=head.run or child_id(parent.id, opened), caller=parent.id, caller_step=opened.site.step,
            task=head.task or _task(parent.task, opened),
        )  # fmt: skip
        within = parent.answers.within(opened.site, head, opened.found)
        run = within.recording.run if within.is_whole and within.recording is not None else head.run
        call = ChildCall(run, opened, parent.answers.depart)
        if within.is_final and within.recording is not None:
            call.expect(within.recording)
        child = children.begin(head, options, within, call)
        opened.call.says({"run": run})
        return child
    except BaseException as error:
        if isinstance(error, Departure):
            parent.answers.depart(error)
        opened.call.failed(error)
        raise


def child_id(parent: str, opened: OpenRun) -> str:
    """Return the id of a nested run: derived from its parent, its position there, and its request."""
    return _digest("child", [parent, opened.site.step, opened.failed, opened.branch, opened.nth, opened.hash])


def _task(parent: str, opened: OpenRun) -> str:
    return _digest("task", [parent, opened.site.step, opened.branch, opened.nth])


def _digest(what: str, tree: Plain) -> str:
    data = b"refold-" + what.encode() + b"/1\0" + encode(json_tree(tree, what))
    return hashlib.sha256(data).hexdigest()[:_DIGITS]
