"""`refold run replay`: run today's code against a recorded run, or step through the recording without code. With --all
every run of a log is compared with its own replay.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click

from refold.agents.journal.record import Recording
from refold.agents.log import AgentLog
from refold.agents.recordings.load import rebuilt
from refold.agents.redaction.redactor import Redact
from refold.agents.replay.edges import counted as counted_edges
from refold.agents.replay.edges import edges
from refold.agents.replay.run import SteppedState, stepped
from refold.avro.errors import CorruptionError, Expired, InputError, NotConfinable
from refold.explorer.cli.options import as_json, on_log
from refold.explorer.cli.output.fitting import TableColumn
from refold.explorer.cli.output.progress import counting
from refold.explorer.cli.output.screen import Screen, counted
from refold.explorer.cli.runs.code import agent_option, confined_option, entry_of, redact_option, redactor_for
from refold.explorer.cli.runs.lines import Lines, head_of
from refold.explorer.cli.runs.replay_outcome import ReplayOutcome, run_again, step_through
from refold.explorer.queries.log_target import LogTarget
from refold.explorer.queries.run_names import known_run


@click.command()
@click.argument("run_id", metavar="[RUN]", required=False)
@click.option("--all", "is_all", is_flag=True, help="Every run of the log, each compared with its own replay.")
@agent_option
@redact_option
@click.option(
    "--times", type=click.IntRange(1), default=1, metavar="N", help="Replay it N times; every hash must be the same."
)
@confined_option
@click.option("--alone", is_flag=True, help="Run no code: step through the recording, and check its hashes.")
@as_json
@on_log
def replay(
    target: LogTarget,
    run_id: str | None,
    is_all: bool,
    entry: str | None,
    redact: str | None,
    times: int,
    confined: bool,
    alone: bool,
    as_json: bool,
) -> int:
    """Run the agent's code on its recording; report differences.

    Every answer of a model or a tool, every time and every random number is answered from the recording, and the
    network is closed: a replay costs nothing and changes nothing. The hash covers what the code did: its requests,
    decisions, state and result. At a difference, the first differing step is named. A request that is not recorded is
    shown with the nearest recorded one.

    A guard in Python closes the network. With --confined the kernel does, also for native code (Linux); if it refuses,
    nothing is run, and the exit status is 2. docs/REPLAY.md says what each mode prevents.

    An imported run has no code: it is stepped through, and its hashes are computed again.

    With --all each run of the log is replayed by the code that it names, or stepped through if it names none, and the
    runs that differ are listed. Runs whose content has expired are counted separately.

    Exits with 0 if the hashes are equal and nothing else was done, and else with 1.

    \b
    Examples
      refold run replay 8f2c
      refold run replay 8f2c --times 100
      refold run replay 8f2c --agent desk.agents:refund
      refold run replay 8f2c --alone
      refold run replay --all --confined
    """
    if is_all == bool(run_id):
        raise InputError("name one run, or give --all for every run of the log")
    if is_all and entry:
        raise InputError("--agent is for one run: with --all each run is replayed by the code that it names")
    if alone and confined:
        raise InputError("--confined is for code that is run, and --alone runs none: give one of them")
    screen, redactor = Screen(), redactor_for(redact)
    with target.read() as log:
        if not run_id:
            return replay_all(screen, log, redactor, times, alone=alone, confined=confined, as_json=as_json)
        recording = log.recording(known_run(log, run_id, log.point().cut))
        is_alone = alone or not (recording.has_code or entry)
        if is_alone:
            outcome = step_through(recording)
        else:
            outcome = run_again(log, recording, entry, redactor, times, confined=confined)
    if as_json:
        screen.json(outcome.json())
    elif is_alone:
        _print_stepped(screen, outcome)
    else:
        _print(screen, outcome)
    return 0 if outcome.is_same else 1


def _print(screen: Screen, outcome: ReplayOutcome) -> None:
    run, result = outcome.recording.run, outcome.result
    if outcome.departure is not None:
        screen.say(f"run {run} cannot be replayed with {outcome.agent}: it left the recording", "bold")
        for line in str(outcome.departure).splitlines():
            screen.say(f"  {line}", "red")
        return
    assert result is not None
    steps, times = counted(len(outcome.recording.steps), "step"), len(outcome.hashes)
    often = f", {counted(times, 'time')}" if times > 1 else ""
    screen.say(f"replayed run {run} with {outcome.agent}: {steps}{often}", "bold")
    screen.say(f"  recorded  {result.recorded_hash}")
    is_equal = result.hash == result.recorded_hash
    verdict = "equal: the code did the same" if is_equal else "differs: the code did something else"
    if is_equal and result.escapes:
        verdict = "equal, but something ran that is not in the recording"
    screen.say(f"  replayed  {result.hash}  {verdict}", "green" if result.is_same else "red")
    if result.now.failure is not None and not is_equal:
        screen.say(f"  failed    {Lines().failure(result.now.failure)}", "red")
    for escape in result.escapes:
        screen.say(f"  outside   {escape}", "red")
    screen.say(f"  edges     {_edges(outcome.recording)}")
    parting = result.parting
    if parting is not None:
        for line in f"first differs at {parting}".splitlines():
            screen.say(f"  {line}")
        if result.unused:
            screen.say(f"  {counted(len(result.unused), 'recorded call')} not made")


def _print_stepped(screen: Screen, outcome: ReplayOutcome) -> None:
    recording = outcome.recording
    screen.say(f"run {recording.run}, stepped through without code: {counted(len(recording.steps), 'step')}", "bold")
    for each in stepped(recording):
        _print_step(screen, each)
    screen.say()
    screen.say(f"  edges     {_edges(recording)}")
    is_same = outcome.is_same
    verdict = "every hash matches its content" if is_same else "some recorded hashes do not match their steps"
    screen.say(f"  hash      {recording.hash or '-'}  {verdict}", "green" if is_same else "red")


def _print_step(screen: Screen, each: SteppedState) -> None:
    lines = Lines()
    screen.say()
    screen.say(head_of(each.step), "cyan")
    for edit in each.step.delta:
        screen.say(f"  state     {lines.edit(edit)}")
    if each.step.hash:
        note = "" if each.is_whole else "  which does not match its content"
        screen.say(f"  hash      {each.step.hash}{note}", "dim" if each.is_whole else "red")


def _edges(recording: Recording) -> str:
    return ", ".join(f"{count} {name}" for name, count in counted_edges(edges(recording)).items())


COLUMNS = (
    TableColumn("run", "cyan"),
    TableColumn("agent"),
    TableColumn("steps", is_fixed=True),
    TableColumn("result"),
)


@dataclass(frozen=True, slots=True)
class UnreplayedRun:
    """A run that could not be replayed.

    Attributes:
        is_expired: Whether retention removed its content, so that this is not an error.
    """

    run: str
    why: str
    is_expired: bool

    def json(self) -> dict[str, Any]:
        """Return the entry in the list that --json prints."""
        return {"run": self.run, "same": None, "expired": self.is_expired, "error": self.why}


def replay_all(
    screen: Screen, log: AgentLog, redact: Redact | None, times: int, *, alone: bool, confined: bool, as_json: bool
) -> int:
    """Replay each run with its own code, and list the runs that differ. A run without code is stepped through.

    Returns:
        The exit status.
    """
    runs = [name.removeprefix("run/") for name in rebuilt(log, ["run"]) or ()]
    every: list[ReplayOutcome | UnreplayedRun] = []
    with counting("replaying", len(runs), "runs") as advance:
        for each in _replay_runs(log, runs, redact, times, alone=alone, confined=confined):
            every.append(each)
            advance(1)
    done = [each for each in every if isinstance(each, ReplayOutcome)]
    left = [each for each in every if isinstance(each, UnreplayedRun)]
    if as_json:
        screen.json([each.json() for each in every])
    else:
        _print_all(screen, done, left)
    return 0 if all(each.is_same for each in done) and all(each.is_expired for each in left) else 1


def _replay_runs(
    log: AgentLog, runs: list[str], redact: Redact | None, times: int, *, alone: bool, confined: bool
) -> Iterator[ReplayOutcome | UnreplayedRun]:
    for run in runs:
        try:
            recording = log.recording(run)
            if alone or not (recording.has_code and entry_of(log, run)):
                yield step_through(recording)
            else:
                yield run_again(log, recording, None, redact, times, confined=confined)
        except NotConfinable:
            raise  # it concerns every run
        except (InputError, CorruptionError) as error:
            yield UnreplayedRun(run, str(error), isinstance(error, Expired))


def _print_all(screen: Screen, done: list[ReplayOutcome], left: list[UnreplayedRun]) -> None:
    rows = [
        (each.recording.run, each.recording.agent, f"{len(each.recording.steps)}", _outcome_line(each))
        for each in done
        if not each.is_same
    ]
    rows += [(each.run, "-", "-", each.why) for each in left]
    if rows:
        screen.table(COLUMNS, rows)
    if not done and not left:
        screen.say("no run is recorded in this log yet; see `refold demo`")
        return
    same = sum(each.is_same for each in done)
    coded = sum(each.agent is not None for each in done)
    steps = sum(len(each.recording.steps) for each in done)
    ways = f"{coded} with their code, {len(done) - coded} stepped through without"
    screen.say(f"replayed {counted(len(done), 'run')} of {counted(steps, 'step')}: {ways}", "bold")
    screen.say(f"  {same} equal to what was recorded", "green" if same == len(done) else "")
    if same < len(done):
        screen.say(f"  {len(done) - same} not: `refold run replay RUN` says more about a run", "red")
    expired = sum(each.is_expired for each in left)
    if expired:
        screen.say(f"  {expired} not replayed: the content has expired")
    if len(left) > expired:
        screen.say(f"  {len(left) - expired} not replayed: --alone steps through recordings without code",
                   "red")  # fmt: skip


def _outcome_line(outcome: ReplayOutcome) -> str:
    if outcome.departure is not None:
        return f"left the recording: {str(outcome.departure).splitlines()[0]}"
    if outcome.result is not None and outcome.result.parting is not None:
        return f"first differs at {str(outcome.result.parting).splitlines()[0]}"
    if outcome.result is not None and outcome.result.escapes:
        return f"did something that is not recorded: {outcome.result.escapes[0]}"
    return "some recorded hashes do not match their steps"
