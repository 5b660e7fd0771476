"""Random runs, written to a log as a recorder writes them, for tests of what reads them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import msgspec

from refold.agents.journal import self_replay
from refold.agents.journal.delta import edits
from refold.agents.journal.json_fidelity import written
from refold.agents.journal.record import (
    Attempt,
    Call,
    Failure,
    Fork,
    Plain,
    RecordedRequest,
    Recording,
    Retry,
    Step,
    to_tree,
)
from refold.agents.vault import ValueCipher, run_key
from refold.avro.observation import Source
from refold.streams.client import Log

BEGIN = 1_700_000_000_000_000
SECOND = 1_000_000
TOOLS = ("orders.get", "mail.send", "risk.score")


def call(tool: str, answer: Plain = None, *args: Plain, **more: Any) -> Call:
    """Return a call of a tool that was answered."""
    asked = RecordedRequest(
        kind=more.pop("kind", "tool"), name=tool, request={"args": list(args), "kwargs": more.pop("given", {})}
    )
    return Call(asked=asked, answer=answer, **more)


def chained(run: Recording, states: Iterable[Plain] | None = None) -> Recording:
    """Return the run with all its hashes. states: the state after each step, if the steps have no edits yet."""
    if states is not None:
        every = [run.state, *states]
        deltas = [edits(before, after) for before, after in pairwise(every)]
        some = zip(run.steps, [*deltas, *[()] * (len(run.steps) - len(deltas))], strict=True)
        run = msgspec.structs.replace(run, steps=tuple(msgspec.structs.replace(step, delta=d) for step, d in some))
    return self_replay.chained(run)


def random_run(rng: random.Random, name: str, steps: int, *, ended: bool = True) -> Recording:
    """Return a run of some steps. One that did not end has another, pending step, with a failed attempt."""
    state: dict[str, Any] = {"seen": []}
    states: list[Plain] = []
    found: list[Step] = []
    for number in range(1, steps + 1):
        state = {**state, "seen": [*state["seen"], number], rng.choice("abc"): rng.choice((1, 0.5, "ä", None, [1, 2]))}
        states.append(state)
        found.append(_step(rng, number))
    started = BEGIN + rng.randrange(1000) * SECOND
    if not ended:
        attempts = (_attempt(rng, 1, Failure(exception="E", at=1)), Attempt(number=2))
        found.append(Step(number=steps + 1, name="waits", attempts=attempts))
    failed = ended and rng.random() < 0.3
    failure = Failure(exception="builtins.ValueError", message="no", at=started + 5, tool="mail.send", input={"a": 1})
    run = Recording(
        run=name, agent=rng.choice(("refunds", "support")), version=rng.choice(("1", "2")), code_version="c0ffee",
        kind="production", task=f"task-{name}", title=f"Run {name}", user=rng.choice(("u-1", "u-2")),
        input={"n": steps}, seed=rng.randrange(100), state={"seen": []}, steps=tuple(found),
        status="ended" if ended else "running",
        outcome=("failed" if failed else "succeeded") if ended else "", output={"done": steps} if ended else None,
        failure=failure if failed else None, started_at=started, ended_at=started + 9 * SECOND if ended else 0,
        retention_class=("failed" if failed else "success") if ended else "", tags=("t",), metadata={"place": {"x": 1}},
    )  # fmt: skip
    return chained(run, states)


def forked(parent: Recording, name: str, at: int, *steps: Step, patch: Plain = None) -> Recording:
    """Return a child that diverges from a run after step `at`, with its own steps."""
    patch = {"state": [["set", ["x"], 1]]} if patch is None else patch
    before = (*parent.forks, Fork(at=parent.forked_at, patch=parent.patch)) if parent.parent else ()
    child = msgspec.structs.replace(
        parent, forks=before, run=name, parent=parent.run, forked_at=at, patch=patch,
        steps=(*parent.steps[:at], *steps), hash="", title="", task=f"task-{name}", outcome="succeeded",
        status="ended", ended_at=parent.started_at + 20 * SECOND, failure=None, output=None, tags=(), metadata={},
    )  # fmt: skip
    return chained(child)


def write(log: Log, run: Recording, vault: ValueCipher | None = None) -> None:
    """Record a run as the recorder does. It is durable on return."""
    _Writer(log, run, vault).all()
    log.flush()


class _Writer:
    def __init__(self, log: Log, run: Recording, vault: ValueCipher | None) -> None:
        self._log = log
        self._run = run
        self._vault = vault
        self._seq = 0

    def all(self) -> None:
        run, entity = self._run, f"run/{self._run.run}"
        v = self._content(entity)
        begun = {
            "agent": run.agent, "agent_version": run.version, "code_version": run.code_version, "kind": run.kind,
            "task": run.task, "user": run.user, "title": v("title", run.title or None), "status": "running",
            "input": v("input", written(run.input)), "state": v("state", written(run.state)), "seed": run.seed,
            "started_at": run.started_at, "attempts": 1, "tags": list(run.tags),
            "metadata": {key: v("metadata", value) for key, value in run.metadata.items()},
        }  # fmt: skip
        if run.parent:
            begun |= {
                "parent_run": run.parent,
                "forked_at_step": run.forked_at,
                "fork_patch": v("fork_patch", written(run.patch)),
            }
        self._say(entity, begun, run.started_at)
        own = run.steps[run.forked_at :] if run.parent else run.steps
        for step in own:
            self._step(step, run.started_at + step.number * SECOND)
        if run.ended_at:
            ended = {
                "status": run.status, "outcome": run.outcome, "output": v("output", written(run.output)),
                "hash": run.hash, "error": self._failure(v, "error", run.failure), "step_count": len(run.steps),
                "position": len(run.steps), "ended_at": run.ended_at, "retention_class": run.retention_class,
            }  # fmt: skip
            self._say(entity, ended, run.ended_at)
        if run.flagged:
            self._say(entity, {"flagged": True, "retention_class": "flagged"}, run.ended_at)

    def _step(self, step: Step, at: int) -> None:
        entity = f"step/{self._run.run}#{step.number}"
        v = self._content(entity)
        begun = {"run": self._run.run, "agent": self._run.agent, "position": step.number, "name": step.name}
        attempts = len(step.attempts)
        self._say(entity, {**begun, "status": "pending", "started_at": at, "attempts": attempts}, at, str(step.number))
        last = step.attempts[-1].number if step.is_committed else 0
        for attempt in step.attempts:
            if attempt.number != last and attempt.failure is not None:
                part = v("journal", written({"attempt": to_tree(attempt)}))
                self._say(entity, {"journal": {str(attempt.number): part}}, at + 1, str(step.number))
        if not last:
            return
        part = {"attempt": to_tree(step.attempts[-1]), "delta": list(step.delta), "result": step.result}
        decided = [each.asked.request for each in step.calls if each.asked.kind == "decide"]
        ended = {
            "status": "committed", "outcome": step.outcome, "journal": {str(last): v("journal", written(part))},
            "calls": [{"position": k, "tool": each.asked.name}
                      for k, each in enumerate((each for each in step.calls if each.asked.kind == "tool"), 1)],
            "decision": v("decision", decided[-1]["choice"] if decided else None),
            "rationale": v("rationale", decided[-1]["why"] if decided else None),
            "state_before": step.state_before, "state_after": step.state_after, "turn_hash": step.hash,
            "previous_turn_hash": step.previous, "failure": self._failure(v, "failure", step.failure),
            "ended_at": at + 2,
        }  # fmt: skip
        self._say(entity, ended, at + 2, str(step.number))

    def _content(self, entity: str) -> Callable[[str, Plain], Any]:
        def content(field: str, tree: Plain) -> Any:
            if tree is None or self._vault is None:
                return tree
            return self._vault.seal(run_key(self._run.run), entity, field, tree)

        return content

    def _failure(self, v: Callable[[str, Plain], Any], field: str, failure: Failure | None) -> Any:
        if failure is None:
            return None
        texts = {name: v(field, getattr(failure, name) or None) for name in ("message", "traceback", "input")}
        known = {"exception": failure.exception, "at": failure.at or None, "tool": failure.tool or None}
        return {name: value for name, value in {**known, **texts}.items() if value is not None}

    def _say(self, entity: str, patch: dict[str, Any], at: int, step: str = "") -> None:
        source = Source(self._run.agent, self._run.run, step, "", self._seq)
        self._seq += 1
        given = {name: value for name, value in patch.items() if value not in (None, "", [], {})}
        self._log.observe(entity, given, source=source, observed_at=at)


def _step(rng: random.Random, number: int) -> Step:
    name = rng.choice(("plan", "act", "")) or f"step-{number}"
    failed = rng.random() < 0.2
    last = _attempt(rng, 1, Failure(exception="builtins.OSError", message="down", at=7) if failed else None)
    attempts: tuple[Attempt, ...] = (last,)
    if rng.random() < 0.3:
        first = rng.choice((_attempt(rng, 1, Failure(exception="TimeoutError", at=3)), Attempt(number=1)))
        attempts = (first, msgspec.structs.replace(last, number=2))
    result = rng.choice((None, {"n": number}, "text"))
    return Step(number=number, name=name, attempts=attempts, result=result, outcome="failed" if failed else "succeeded")


def _attempt(rng: random.Random, number: int, failure: Failure | None = None) -> Attempt:
    calls = [
        call(
            rng.choice(TOOLS),
            {"ok": rng.random(), "text": "x" * rng.choice((1, 3000)), "price": 50.0},
            number,
            given={"to": "ä"},
        ),
        Call(asked=RecordedRequest(kind="now"), answer=17),
    ]
    if rng.random() < 0.5:
        retry = Retry(attempt=1, failure=Failure(exception="TimeoutError"), backoff_ms=200)
        calls.append(call("mail.send", {"sent": 1}, given={"a": [1]}, retries=(retry,), key="k", duration_ms=1.5))
    if rng.random() < 0.5:
        asked = RecordedRequest(
            kind="decide", request={"choice": "refund", "why": "small", "options": ["refund", "ask"]}
        )
        calls.append(Call(asked=asked))
    return Attempt(number=number, calls=tuple(calls), failure=failure, started_at=BEGIN, ended_at=BEGIN + 5)
