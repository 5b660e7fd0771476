"""Runs, steps and calls as lines of text."""

from __future__ import annotations

import json
from collections.abc import Iterator

from refold.agents.journal.delta import Path
from refold.agents.journal.objects import bare, is_mark
from refold.agents.journal.record import Attempt, Call, Edit, Failure, Plain, Recording, Step, child_of
from refold.agents.replay.edges import of_call
from refold.explorer.cli.output.screen import counted, moment
from refold.explorer.queries.run_shapes import decision_of, status_of

SHOWN_MAX = 160
LABEL_WIDTH = 10
OF_THE_PROCESS = ("now", "random", "uuid")


class Lines:
    """Formats runs, steps and calls.

    Args:
        is_whole: Whether values are shown whole, and not shortened.
        has_code: Whether code can be run against the run.
    """

    def __init__(self, *, is_whole: bool = False, has_code: bool = True) -> None:
        self._is_whole = is_whole
        self._has_code = has_code

    def value(self, value: Plain) -> str:
        """Return a value as JSON without quotes, shortened in its middle."""
        text = json.dumps(bare(value), ensure_ascii=False)
        if self._is_whole or len(text) <= SHOWN_MAX:
            return text
        half = SHOWN_MAX // 2
        return f"{text[:half]} ... {text[-half // 2 :]} ({len(text):,} characters)"

    def failure(self, failure: Failure) -> str:
        """Return a failure as the last part of the class's name, and the message."""
        name = failure.exception.rpartition(".")[2]
        message = failure.message if self._is_whole else failure.message.partition("\n")[0][:SHOWN_MAX]
        return f"{name}: {message}" if message else name

    def request(self, call: Call) -> str:
        """Format a call as `mail.send("x", to="y")`."""
        recorded, request = call.asked, call.asked.request
        if isinstance(request, dict) and request and request.keys() <= {"args", "kwargs"}:
            given = [self.value(each) for each in request.get("args", ())]
            given += [f"{name}={self.value(each)}" for name, each in request.get("kwargs", {}).items()]
            return f"{recorded.name}({', '.join(given)})"
        return " ".join(each for each in (recorded.name, "" if request is None else self.value(request)) if each)

    def answer(self, call: Call) -> str:
        """Return the result of a call."""
        if call.failure is not None:
            return f"failed: {self.failure(call.failure)}"
        if call.asked.kind == "now":
            return moment(call.answer)
        if call.asked.kind == "read" and isinstance(call.answer, dict):
            return f"v{call.answer.get('version')}"
        if call.asked.kind == "run" and isinstance(call.answer, dict):
            return f"{call.answer.get('outcome', 'not ended')}, run {child_of(call)}"
        return self.value(call.answer)

    def step(self, step: Step) -> Iterator[tuple[str, str]]:
        """Yield the lines of a step, each with its layer: earlier attempts, then calls and decisions in code order."""
        for attempt in step.attempts if not step.is_committed else step.attempts[:-1]:
            yield "attempt", self._attempt(attempt)
        part = ""
        for call in step.calls:
            if call.part != part:
                part = call.part
                yield "part", part
            yield from self._call(call)
        if step.failure is not None and step.is_committed:
            yield "failed", self.failure(step.failure)
        if step.result is not None:
            yield "returned", self.value(step.result)
        for edit in step.delta:
            yield "state", self.edit(edit)

    def _call(self, call: Call) -> Iterator[tuple[str, str]]:
        if call.asked.kind == "decide":
            yield "decided", self._decision_line(call.asked.request)
            return
        answer = f"-> {self.answer(call)}  [{of_call(call, has_code=self._has_code)[0]}]"
        if call.asked.kind in OF_THE_PROCESS:
            yield call.asked.kind, answer
            return
        matching = "" if call.asked.is_whole else f"  ({call.asked.matching})"
        yield call.asked.kind, f"{self.request(call)}{matching}"
        for retry in call.retries:
            wait = f"; again after {retry.backoff_ms} ms" if retry.backoff_ms else ""
            yield "", f"try {retry.attempt} failed: {self.failure(retry.failure)}{wait}"
        yield "", answer

    def _decision_line(self, decided: Plain) -> str:
        """Format a decision as `refund: it was paid, of ["refund", "refuse"]`."""
        why, options = decided.get("why"), decided.get("options")
        among = f", of {self.value(options)}" if options else ""
        return f"{_text(decided['choice'])}{f': {why}' if why else ''}{among}"

    def _attempt(self, attempt: Attempt) -> str:
        calls = f" after {counted(len(attempt.calls), 'call')}" if attempt.calls else ""
        if attempt.failure is None:
            return f"{attempt.number} was cut short, or continues: what it did is not recorded  [unknown]"
        wait = f"; again after {attempt.backoff_ms} ms" if attempt.backoff_ms else ""
        return f"{attempt.number} failed{calls}: {self.failure(attempt.failure)}{wait}"

    def edit(self, edit: Edit) -> str:
        """Format one change of the state."""
        kind, path, *rest = edit
        where = path_text(path) or "all of it"
        if kind == "set":
            return f"{where} = {self.value(rest[0])}"
        if kind == "remove":
            return f"{where} is gone"
        index, removed, items = rest
        what = [f"{removed} gone"] if removed else []
        what += [f"new {', '.join(map(self.value, items))}"] if items else []
        return f"{where}[{index}]: {', '.join(what)}"


def path_text(path: Path) -> str:
    """Format a path as `order.items[2].price`."""
    text = "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in path if not is_mark(each))
    return text.removeprefix(".")


def head_of(step: Step) -> str:
    """Format the head of a step as `step 3 pay: committed, failed`."""
    name = f" {step.name}" if step.name else ""
    outcome = f", {step.outcome}" if step.outcome else ""
    attempts = f", attempt {len(step.attempts)}" if len(step.attempts) > 1 or not step.is_committed else ""
    return f"step {step.number}{name}: {status_of(step)}{outcome}{attempts}"


def tree_of(run: Recording, depth: int = 0) -> Iterator[str]:
    """Yield a line for each nested run at any depth, such as `worker 8f2c: succeeded, in step 2`.

    Args:
        run: The run whose nested runs are listed.
        depth: How deep `run` is nested. Each level indents the lines by two spaces.
    """
    for child in run.children.values():
        outcome = child.outcome or "running"
        yield f"{'  ' * depth}{child.agent or 'an agent'} {child.run}: {outcome}, in step {child.caller_step}"
        yield from tree_of(child, depth + 1)


def decision_text(step: Step) -> str:
    """Return the choice of a step's last decision; "-" if there is none."""
    decided = decision_of(step)
    return "-" if decided is None else _text(decided["choice"])


def _text(value: Plain) -> str:
    return value if isinstance(value, str) else json.dumps(bare(value), ensure_ascii=False)
