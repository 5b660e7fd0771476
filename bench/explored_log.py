"""Makes the log that the explorer's figures are measured on.

1. RUNS runs of STEPS steps, recorded as refold's recorder writes them: state, a tool call and a model call in each
   step. They repeat TEMPLATES recordings under other ids, and so their chains of hashes are valid. Every tenth run
   failed. For each run a person was asked about one call, and one in a hundred did not answer yet.
2. One run of LONG steps.
3. Observations of tool_config entities, up to OBSERVATIONS in all.

The content is stored in clear, because the cost of decryption is measured elsewhere. The log is kept in its folder, and
made again only if its size is another one.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from workload import START_MICROS, observations, uniform

import refold
from refold.agents.journal.record import Attempt, Call, Failure, RecordedRequest, Recording, Step
from refold.agents.journal.self_replay import chained
from refold.agents.recorder.observations import in_clear, run_begun, run_ended, step_ended

OBSERVATIONS, RUNS, STEPS, LONG = 1_000_000, 20_000, 15, 100_000
TEMPLATES, FAILED = 20, 10
ENTITIES = 50_000
FLUSH_EVERY = 20_000
LONG_RUN = "long"
STEP_MICROS = 400_000
"""The duration of a step; it is followed by a wait of the same length."""


def explored_log(folder: Path, share: int) -> Path:
    """Return the folder of the log, which is made unless it is there already. share: 1, or 10 for a tenth."""
    path, done = folder / f"explored-{share}", folder / f"explored-{share}.json"
    size = {"observations": OBSERVATIONS // share, "runs": RUNS // share, "long": LONG // share,
            "entities": ENTITIES // share}  # fmt: skip
    if done.exists() and json.loads(done.read_text(encoding="utf-8")) == size:
        return path
    shutil.rmtree(path, ignore_errors=True)
    with refold.open(f"file:{path}") as log:
        for number, each in enumerate(_observed(**size)):
            log.observe(**each)
            if number % FLUSH_EVERY == 0:
                log.flush()
        log.mark("deploy-1")
    done.write_text(json.dumps(size), encoding="utf-8")
    return path


def _observed(observations: int, runs: int, long: int, entities: int) -> Iterator[dict[str, Any]]:
    templates = [list(_patches(_recording(number, STEPS))) for number in range(TEMPLATES)]
    for run in range(runs):
        at = START_MICROS + run * 60_000_000
        yield from _of_run(f"run-{run:06d}", templates[run % TEMPLATES], at)
        yield _question(f"run-{run:06d}", at, is_open=run % 100 == 0)
    yield from _of_run(LONG_RUN, list(_patches(_recording(0, long))), START_MICROS + runs * 60_000_000)
    recorded = runs * (STEPS + 3) + long + 2
    yield from _configs(observations - recorded, entities)


def _question(run: str, at: int, *, is_open: bool) -> dict[str, Any]:
    approval = {"decision": "requested" if is_open else "approved", "by": "policy limits", "at": at}
    patch = {"tool": "payments.refund", "agent": "agent-0", "run": run, "step": f"{run}#2", "approval": approval,
             "status": "awaiting_approval" if is_open else "pending", "started_at": at}  # fmt: skip
    source = refold.Source("policy", run, "", "", 0)
    return {"entity": f"action/{run}#2.price.1", "patch": patch, "source": source, "observed_at": at}


def _configs(count: int, entities: int) -> Iterator[dict[str, Any]]:
    return observations(count, uniform(entities, seed=3))


def _recording(number: int, steps: int) -> Recording:
    """Return a recording whose times begin at 0."""
    failed = Failure("builtins.TimeoutError", "the shop did not answer", tool="shop.price", retryable=True)
    ends = number % FAILED == FAILED - 1
    made = tuple(_step(number, each, failed if ends and each == steps else None) for each in range(1, steps + 1))
    outcome: Any = "failed" if ends else "succeeded"
    return chained(Recording(
        run="", agent=f"agent-{number % 5}", version="1.4", kind="task", title=f"order {number}",
        user=f"user-{number % 7}", input={"order": number}, state={"seen": 0, "prices": []}, steps=made,
        status="ended", outcome=outcome,
        failure=failed if ends else None, ended_at=steps * 2 * STEP_MICROS, tags=("bench",),
    ))  # fmt: skip


def _step(run: int, number: int, failure: Failure | None) -> Step:
    began = number * 2 * STEP_MICROS
    ask = {
        "args": [],
        "kwargs": {
            "model": "m-1",
            "messages": [
                {
                    "role": "user",
                    "content": f"What does item {number} of order {run} cost, and is that what it cost before?",
                }
            ],
        },
    }
    price = {"args": [f"item-{number}"], "kwargs": {}}
    answer = {"model": "m-1", "choices": [{"finish_reason": "stop", "message": {
        "role": "assistant", "content": f"Item {number} costs {number % 90 + 10} euros."}}],
        "usage": {"prompt_tokens": 40 + number % 9, "completion_tokens": 12}}  # fmt: skip
    calls = (
        Call(asked=_asked("tool", "shop.price", price, "read"), answer={"cents": number % 90 * 100},
             failure=failure, started_at=began, duration_ms=90.0),
        Call(asked=_asked("model", "ask", ask), answer=answer, started_at=began + 100_000, duration_ms=250.0),
    )  # fmt: skip
    edit = ["set", ["seen"], number]
    return Step(
        number=number, name="price", outcome="succeeded" if failure is None else "failed", delta=(edit,),
        attempts=(Attempt(calls=calls, failure=failure, started_at=began, ended_at=began + STEP_MICROS),),
    )  # fmt: skip


def _asked(kind: Any, name: str, request: Any, effect: Any = "") -> RecordedRequest:
    return RecordedRequest(kind=kind, name=name, request=request, effect=effect)


def _patches(recording: Recording) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the part of each entity's name after the run's id, and its patch."""
    yield "", run_begun(replace(recording, started_at=1), "bench", 1, in_clear)
    before = None
    for step in recording.steps:
        begun = {"run": "", "agent": recording.agent, "position": step.number, "name": step.name, "attempts": 1,
                 "started_at": step.attempts[0].started_at}  # fmt: skip
        yield f"#{step.number}", begun | step_ended("", step, before, step.attempts[0], in_clear)
        before = step
    yield "", run_ended(recording, in_clear)


def _of_run(run: str, patches: list[tuple[str, dict[str, Any]]], at: int) -> Iterator[dict[str, Any]]:
    source = refold.Source("bench", run, "", "", 0)
    for seq, (place, patch) in enumerate(patches):
        moved = {name: value + at if name in ("started_at", "ended_at") else value for name, value in patch.items()}
        if place:
            moved["run"] = run
        entity = f"step/{run}{place}" if place else f"run/{run}"
        yield {
            "entity": entity,
            "patch": moved,
            "source": source._replace(seq=seq),
            "observed_at": at + seq * STEP_MICROS,
        }
