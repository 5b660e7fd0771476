"""`refold run show` and `refold run steps`: one run, in short and step by step."""

from __future__ import annotations

from typing import Any

import click

from refold.agents.journal.record import Recording, Step
from refold.agents.journal.self_replay import ChainCheck, checked_chain
from refold.agents.recordings.same_turns import other_records
from refold.agents.usage.of_runs import UsageSum
from refold.avro.errors import NotAnswerable
from refold.explorer.cli.options import WHEN, as_json, at, on_log, run_argument
from refold.explorer.cli.output.fitting import TableColumn
from refold.explorer.cli.output.screen import NO_TIME, Screen, counted, moment
from refold.explorer.cli.runs.clear import show_clear
from refold.explorer.cli.runs.lines import LABEL_WIDTH, Lines, decision_text, head_of, tree_of
from refold.explorer.cli.runs.runs import took
from refold.explorer.queries.log_target import LogTarget
from refold.explorer.queries.open_runs import UnendedRun
from refold.explorer.queries.run import clear_json, known_of, steps_json, usage_of, whole_json
from refold.explorer.queries.run_names import known_run, recorded_step
from refold.explorer.queries.run_shapes import status_of, usage_text
from refold.streams.point import Point

STEPS = (
    TableColumn("step", "cyan", is_fixed=True),
    TableColumn("name"),
    TableColumn("status"),
    TableColumn("decided"),
    TableColumn("called"),
    TableColumn("retried", is_fixed=True),
    TableColumn("failed"),
    TableColumn("hash", "dim", is_fixed=True),
)
SHOWN = ("tool", "model", "read", "observe", "run")


@click.command(epilog=WHEN)
@run_argument
@at
@click.option("--verify", is_flag=True, help="Check the chain of hashes over the steps; exits with 1 if it is broken.")
@as_json
@on_log
def show(target: LogTarget, run_id: str, at: str | None, verify: bool, as_json: bool) -> int:
    """Show a run: its input, status and result.

    RUN is the run's id, or the beginning of it. Each step is one line: its decision, calls, retries and failure;
    `refold run steps` shows all of it. Nested runs are shown as a tree. If the content of a run has expired, or is
    sealed with no key here, the fields stored in clear are shown.

    \b
    Examples
      refold run show 8f2c
      refold run show 8f2c --verify
      refold run show 8f2c --at 2026-11-21T03:12:00Z --json
    """
    screen = Screen()
    with target.read() as log:
        point = log.point(at)
        run_id = known_run(log, run_id, point.cut)
        try:
            run = log.recording(run_id, point.cut)
        except NotAnswerable as error:
            if verify:
                raise
            return _show_clear(screen, point, clear_json(log, run_id, point.cut, error), as_json)
        others = other_records(log, run_id, point.cut)
        known = known_of(log, run, point.cut, is_now=at is None)
        usage = usage_of(log, run, point.cut)
    check = checked_chain(run) if verify else None
    status = 0 if check is None or check.is_whole else 1
    if as_json:
        chain = None if check is None else {"ok": check.is_whole, "broken": check.broken}
        screen.json(whole_json(run, usage, chain, known))
        return status
    screen.point(point)
    for line in _head(run, Lines(), known, usage):
        screen.say(line)
    if others.same:
        screen.say(f"  same as   run {others.same}, which has all of its turns")
    if others.also:
        screen.say(f"  also      recorded as {', '.join(f'run {each}' for each in others.also)}")
    screen.say()
    screen.table(STEPS, [_row(screen, step) for step in run.steps])
    if check is not None:
        screen.say()
        screen.say(chain_text(check, run), "green" if check.is_whole else "red")
    return status


@click.command(epilog=WHEN)
@run_argument
@at
@click.option("--step", "number", type=click.IntRange(1), metavar="N", help="Show only this step.")
@click.option("--full", is_flag=True, help="Print every value whole.")
@as_json
@on_log
def steps(target: LogTarget, run_id: str, at: str | None, number: int | None, full: bool, as_json: bool) -> int:
    """Show what a run did, step by step.

    For each step it prints the decision and its reason, each call with its arguments and result, retries, the failure,
    and the changes of the run's state. An edge says what a replay has of a call: `recorded` is answered from the
    recording, `deterministic` is computed by the code itself, and of an `unknown` call nothing was recorded.

    \b
    Examples
      refold run steps 8f2c
      refold run steps 8f2c --step 3 --full
      refold run steps 8f2c --json
    """
    screen = Screen()
    with target.read() as log:
        point = log.point(at)
        run = recorded_step(log, run_id, point.cut, number)
    chosen = [step for step in run.steps if number in (None, step.number)]
    if as_json:
        screen.json(steps_json(run, number))
        return 0
    screen.point(point)
    lines = Lines(is_whole=full, has_code=run.has_code)
    for step in chosen:
        screen.say()
        screen.say(head_of(step), "bold")
        for name, text in lines.step(step):
            screen.say(f"  {name:<{LABEL_WIDTH}}{text}")
        if step.hash:
            screen.say(f"  {'hash':<{LABEL_WIDTH}}{screen.id(step.hash)}", "dim")
    if not chosen:
        screen.say(f"run {run.run} has {counted(len(run.steps), 'step')}")
    return 0


def _show_clear(screen: Screen, point: Point, found: dict[str, Any], as_json: bool) -> int:
    if as_json:
        screen.json(found)
    else:
        screen.point(point)
        show_clear(screen, found)
    return 0


def _head(run: Recording, lines: Lines, known: UnendedRun | None, usage: UsageSum | None) -> list[str]:
    version = f" {run.version}" if run.version else ""
    said = [f"run {run.run} of {run.agent or 'an agent'}{version}" + (f": {run.title}" if run.title else "")]
    outcome = run.outcome or ("unknown" if known is None else known.outcome)
    said.append(f"  outcome   {outcome}" + (f": {lines.failure(run.failure)}" if run.failure else ""))
    said += [f"            {known.text}"] if known is not None else []
    took_text = f", took {took(run.started_at, run.ended_at)}" if run.ended_at else ""
    started = NO_TIME if run.synthetic_time and not run.started_at else moment(run.started_at or None)
    said.append(f"  started   {started}{took_text}{_untimed_text(run)}")
    if run.steps:
        said.append(f"  position  {head_of(run.steps[-1])}")
    for name, value in (("user", run.user), ("task", run.task), ("code", run.code_version), ("kind", run.kind)):
        said += [f"  {name:<10}{value}"] if value else []
    if run.parent:
        said.append(f"  parent    {run.parent}, forked after step {run.forked_at} with {lines.value(run.patch)}")
    if run.caller:
        said.append(f"  within    {run.caller}, in its step {run.caller_step}")
    if run.flagged:
        said.append("  flagged   kept longer")
    said += [f"  {name:<10}{lines.value(value)}" for name, value in (("input", run.input), ("output", run.output))
             if value is not None]  # fmt: skip
    said += _usage_lines(usage)
    said += [f"  hash      {run.hash}"] if run.hash else []
    said += [f"  {'runs' if not number else '':<10}{line}" for number, line in enumerate(tree_of(run))]
    return said


def _usage_lines(usage: UsageSum | None) -> list[str]:
    """Return the usage of a run's model calls, and of each model if there are several."""
    if usage is None:
        return []
    by_model = usage.by_model if len(usage.by_model) > 1 else {}
    return [
        f"  usage     {usage_text(usage)}",
        *(f"            {name}: {usage_text(each)}" for name, each in by_model.items()),
    ]


def _untimed_text(run: Recording) -> str:
    if not run.synthetic_time:
        return ""
    return "; some messages have no time" if run.started_at else ": its source has none"


def _row(screen: Screen, step: Step) -> list[str]:
    called = ", ".join(call.asked.name for call in step.calls if call.asked.kind in SHOWN)
    retried = sum(len(call.retries) for call in step.calls) + len(step.attempts) - 1
    failure = step.failure
    return [
        str(step.number),
        step.name or "-",
        step.outcome or status_of(step),
        screen.cell(decision_text(step)),
        screen.cell(called) or "-",
        str(max(retried, 0)) if retried > 0 else "-",
        "-" if failure is None else Lines().failure(failure),
        screen.id(step.hash) or "-",
    ]


def chain_text(check: ChainCheck, run: Recording) -> str:
    """Return the result of checking a run's hashes, in one line."""
    if check.is_whole:
        return f"the chain holds: {counted(len(run.steps), 'step')}, each hash covers the one before"
    if not check.broken:
        return "the chain is broken at the end: how the run ended does not match its hash"
    numbers = ", ".join(map(str, check.broken))
    return f"the chain is broken at step {numbers}: its content does not match its hash"
