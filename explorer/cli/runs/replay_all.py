"""`refold run replay --all`: compare every run of a log with its own replay."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from refold.agents.log import AgentLog
from refold.agents.recordings.load import rebuilt
from refold.agents.redaction.redactor import Redact
from refold.avro.errors import CorruptionError, Expired, InputError, NotConfinable
from refold.explorer.cli.output.fitting import TableColumn
from refold.explorer.cli.output.progress import counting
from refold.explorer.cli.output.screen import Screen, counted
from refold.explorer.cli.runs.code import entry_of
from refold.explorer.cli.runs.replay_outcome import ReplayOutcome, run_again, step_through

COLUMNS = (
    TableColumn("run", "cyan"),
    TableColumn("agent"),
    TableColumn("steps", is_fixed=True),
    TableColumn("result"),
)


@dataclass(frozen=True, slots=True)
class UnreplayedRun:
    """A run that could not be replayed. is_expired: retention removed its content, so this is not an error."""

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
        for each in _replayed(log, runs, redact, times, alone=alone, confined=confined):
            every.append(each)
            advance(1)
    done = [each for each in every if isinstance(each, ReplayOutcome)]
    left = [each for each in every if isinstance(each, UnreplayedRun)]
    if as_json:
        screen.json([each.json() for each in every])
    else:
        _tell(screen, done, left)
    return 0 if all(each.is_same for each in done) and all(each.is_expired for each in left) else 1


def _replayed(
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


def _tell(screen: Screen, done: list[ReplayOutcome], left: list[UnreplayedRun]) -> None:
    rows = [
        (each.recording.run, each.recording.agent, f"{len(each.recording.steps)}", _said(each))
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


def _said(outcome: ReplayOutcome) -> str:
    if outcome.departure is not None:
        return f"left the recording: {str(outcome.departure).splitlines()[0]}"
    if outcome.result is not None and outcome.result.parting is not None:
        return f"first differs at {str(outcome.result.parting).splitlines()[0]}"
    if outcome.result is not None and outcome.result.escapes:
        return f"did something that is not recorded: {outcome.result.escapes[0]}"
    return "some recorded hashes do not match their steps"
