"""`refold run compare`: find where two runs first differ, or compare every run of a log with its own replay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import click

from refold.agents.compare.compare import SelfCheck, against_itself, uncompared
from refold.agents.compare.compare import compare as compared
from refold.agents.compare.divergence import Divergence, divergence_json
from refold.agents.compare.provenance import DEPTH, FieldCauses, FieldProvenance, folded, provenance
from refold.agents.compare.render import describe
from refold.agents.log import AgentLog
from refold.agents.recordings.load import recordings
from refold.avro.errors import InputError, NotAnswerable
from refold.explorer.cli.ask.why import chain_lines
from refold.explorer.cli.options import WHEN, as_json, on_log
from refold.explorer.cli.options import at as at_option
from refold.explorer.cli.output.formatting import ValueFormatter
from refold.explorer.cli.output.screen import Screen, counted, observed_texts
from refold.explorer.cli.runs.clear import compare_clear
from refold.explorer.queries.compare import Pair, compare_json, known_at
from refold.explorer.queries.log_target import LogTarget
from refold.explorer.queries.run import clear_json
from refold.explorer.queries.run_names import known_run
from refold.explorer.queries.sealed import Opener


@click.command("compare", epilog=WHEN)
@click.argument("a", metavar="[A", required=False)
@click.argument("b", metavar="B]", required=False)
@click.option("--all", "is_all", is_flag=True, help="Compare every run of the log with its own replay.")
@click.option("--other", "other_url", metavar="URL", help="The log that holds B [the same].")
@click.option(
    "--exact", is_flag=True, help="Count clock, randomness, fresh ids, points of reading and earlier attempts too."
)
@click.option(
    "--depth", type=click.IntRange(min=0), default=DEPTH, metavar="N", show_default=True,
    help="How many causes back to follow a difference.",
)  # fmt: skip
@click.option("--full", is_flag=True, help="Print every value whole, every difference, every cause.")
@at_option
@as_json
@on_log
def compare(
    target: LogTarget, a: str | None, b: str | None, is_all: bool, other_url: str | None, exact: bool, depth: int,
    full: bool, at: str | None, as_json: bool,
) -> int:  # fmt: skip
    """Find the first point where two runs differ, and why.

    It prints the step, what differs in it, and the origin: the world, which gave another answer to the same request, or
    the agent, which got the same answers and did something else. Then it prints the nearest observations that led to
    it on both sides, with their agents, steps and causes; --full prints all of them. Clock readings, random numbers and
    generated ids are ignored, and so are a crash that the run was resumed from and a step that was tried
    again.

    With --all each run is stepped through again from its input, and compared with its recording.

    If the content of a run has expired, or is sealed with no key here, the hashes are compared: runs with equal hashes
    are equal; for others it prints the step from which they differ.

    Exits with 1 when something differs, and with 0 when nothing does.

    \b
    Examples
      refold run compare 8f2c 91aa
      refold run compare 8f2c 91aa --json
      refold run compare 8f2c 8f2c --other file:copy
      refold run compare --all
    """
    if is_all:
        if a or b or other_url or exact or at:
            raise InputError("--all compares each run with itself: leave out A, B, --other, --exact and --at")
        return _check_all(target, as_json)
    if a is None or b is None:
        raise click.UsageError("name two runs, or say --all")
    if other_url is not None and at is not None:
        raise InputError("--at is a point of one log: leave out --other")
    with ExitStack() as stack:
        log = stack.enter_context(target.read())
        other = log if other_url is None else stack.enter_context(replace(target, url=other_url).read())
        try:
            pair = known_at(log, a, at), known_at(other, b, at)
        except NotAnswerable:
            return compare_clear(_clear(log, a, at), _clear(other, b, at), is_exact=exact, as_json=as_json)
        found = compared(pair[0].run, pair[1].run, exact=exact)
        behind = [] if found is None else provenance(found, *pair, depth)
        if as_json:
            Screen().json(compare_json({"a": log, "b": other}, pair, found, behind, at))
        else:
            _show(Screen(), {"a": log, "b": other}, pair, found, behind, is_full=full)
    return 0 if found is None else 1


def _clear(log: AgentLog, given: str, at: str | None) -> dict[str, Any]:
    """Return a run without its content. Its key `content` says why the content is missing; null if it is not."""
    cut = log.point(at).cut
    run = known_run(log, given, cut)
    try:
        log.recording(run, cut)
    except NotAnswerable as error:
        return clear_json(log, run, cut, error)
    return clear_json(log, run, cut, None)


def _show(
    screen: Screen, logs: Mapping[str, AgentLog], pair: Pair, found: Divergence | None, behind: list[FieldCauses], *,
    is_full: bool,
) -> None:  # fmt: skip
    """Print the answer first, then the two runs, then the observations that caused the difference."""
    lines = list(describe(found, is_short=not is_full, is_folded=not is_full))
    screen.say(lines[0], "bold")
    for label, known in zip("AB", pair, strict=True):
        steps = counted(len(known.run.steps), "step")
        screen.say(f"{label} {known.run.run}  {known.run.agent} {known.run.version}".rstrip() + f"  {steps}", "dim")
    for line in uncompared(pair[0].run, pair[1].run):
        screen.say(line, "dim")
    for line in lines[1:]:
        screen.say(line)
    for each in [FieldProvenance(each, each.chain, 0, 0) for each in behind] if is_full else folded(behind):
        _show_provenance(screen, logs[each.behind.side], each, is_full=is_full)


def _show_provenance(screen: Screen, log: AgentLog, folded: FieldProvenance, *, is_full: bool) -> None:
    behind = folded.behind
    screen.say()
    name = ".".join(part for part in (behind.entity, behind.field, behind.key) if part)
    screen.say(f"provenance in {behind.side.upper()}: {name}", "bold")
    formatter = ValueFormatter(log.types, Opener(log).value)
    sources = (link.observation.source for link in folded.links if link.observation is not None)
    observed = observed_texts(log, sources, log.point().cut)
    for link in folded.links:
        # For a step, the recorded values are the difference itself, which is printed already.
        of_field = None if is_full else behind.field if link.depth == 0 and behind.field != "journal" else ""
        for line in chain_lines(screen, log, formatter, link, observed, only=of_field):
            screen.say("  " * (min(link.depth, 12) + 1) + line)
    if folded.shared:
        screen.say(f"  and {counted(folded.shared, 'observation')} that both sides depend on", "dim")
    if folded.more:
        screen.say(f"  and {counted(folded.more, 'cause')} more (--full)", "dim")


def _check_all(target: LogTarget, as_json: bool) -> int:
    screen = Screen()
    with target.read() as log:
        found = list(_self_checks(log))
    different = [each for each in found if not each.is_equal]
    if as_json:
        screen.json(
            {
                "runs": len(found), "steps": sum(each.steps for each in found),
                "equal": len(found) - len(different), "different": [_self_check_json(each) for each in different],
            }
        )  # fmt: skip
        return 1 if different else 0
    for each in different:
        screen.say(f"run {each.run}", "bold")
        for line in _problem_lines(each):
            screen.say(f"  {line}")
    steps = counted(sum(each.steps for each in found), "step")
    runs = counted(len(found), "run")
    equal = "each equal to itself" if not different else f"{len(different):,} not equal to their own replay"
    screen.say(f"{runs}, {steps} replayed and compared: {equal}" if found else "no run is recorded in this log")
    return 1 if different else 0


def _self_checks(log: AgentLog) -> Iterator[SelfCheck]:
    return map(against_itself, recordings(log, None, log.vault))


def _self_check_json(each: SelfCheck) -> dict[str, Any]:
    divergence = None if each.divergence is None else divergence_json(each.divergence)
    return {"run": each.run, "altered_steps": list(each.altered), "altered": each.is_altered, "divergence": divergence}


def _problem_lines(each: SelfCheck) -> Iterator[str]:
    if each.divergence is not None:
        yield from describe(each.divergence)
    if each.altered:
        numbers = ", ".join(map(str, each.altered))
        yield f"the recorded hashes of step {numbers} do not match its content: it was altered"
    elif each.is_altered:
        yield "the run's recorded hash does not match its content: its end was altered"
