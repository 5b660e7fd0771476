"""`refold bisect`: find the commit at which an agent stopped matching a recorded run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import click

from refold.agents.bisect.bisect import TIMEOUT_S, BisectionReport, bisect
from refold.agents.bisect.probe import BisectResult
from refold.agents.bisect.repository import Commit, Repository
from refold.agents.golden.file import SUFFIX, read
from refold.agents.journal.record import Recording
from refold.agents.log import AgentLog
from refold.agents.recorder.log_backend import read_again
from refold.agents.recordings.values import with_values
from refold.agents.redaction.tokens import ENVIRONMENT, kept_key
from refold.agents.vault import Vault
from refold.avro.errors import InputError
from refold.explorer.cli.options import as_json, on_log
from refold.explorer.cli.output.screen import Screen, counted
from refold.explorer.cli.runs.code import confined_option
from refold.explorer.queries.log_target import LogTarget
from refold.explorer.queries.run_names import known_run

ID_DIGITS = 12
REASON_CHARACTERS_MAX = 100


class BisectTarget(NamedTuple):
    """A self-contained recording, with the names of its agent's function and its redactor, empty if it names none."""

    recording: Recording
    entry: str
    redactor: str = ""
    settings: Mapping[str, str] = MappingProxyType({})


@click.command("bisect")
@click.argument("run", metavar="RUN")
@click.option("--good", required=True, metavar="REV", help="A commit whose agent matches the recording.")
@click.option("--bad", required=True, metavar="REV", help="A later commit whose agent does not match.")
@click.option("--agent", metavar="MODULE:FUNCTION", help="The agent [as the run or golden trace names it].")
@click.option(
    "--redact", metavar="MODULE:FUNCTION", help="The redactor of the recording [as the golden trace names it]."
)
@click.option(
    "--repo", type=click.Path(path_type=Path, file_okay=False), default=".", metavar="PATH", show_default=True,
    help="A folder of the repository, from which the agent's module is imported.",
)  # fmt: skip
@click.option(
    "--timeout", type=click.FloatRange(min=0, min_open=True), default=TIMEOUT_S, metavar="SECONDS", show_default=True,
    help="How long one commit may take.",
)  # fmt: skip
@confined_option
@as_json
@on_log
def bisect_(
    target: LogTarget, run: str, good: str, bad: str, agent: str | None, redact: str | None, repo: Path, timeout: float,
    confined: bool, as_json: bool,
) -> int:  # fmt: skip
    """Find the commit at which an agent stops matching a run.

    RUN is a run's id, or a golden trace's file. The command halves the commits between good and bad, and replays the
    run with the agent of the commit in the middle. Each commit is checked out into a temporary work tree and run in a
    separate process, without network. Your own work tree is not touched. A commit that cannot be replayed is skipped.
    With --confined the kernel confines each process, and a commit whose code tries to reach outside counts as
    different.

    Exits with 1 when several commits are left, because those between cannot be replayed.

    \b
    Examples
      refold bisect 8f2c --good v1.4 --bad main
      refold bisect 8f2c --good v1.4 --bad main --agent support.agent:run --repo services/support
      refold bisect golden/refund.golden.json --good HEAD~40 --bad HEAD
    """
    screen = Screen()
    given = _target_of(target, run, redact)
    entry = agent or given.entry
    if not entry:
        raise InputError(f"{run} does not name its agent's function: name it with --agent module:function")
    if not given.recording.has_code:
        raise InputError(
            f"{run} was imported: there is no code to run against it; use a golden trace or a recorded run"
        )

    def tested(commit: Commit, finding: BisectResult) -> None:
        if not as_json:
            screen.say(f"{commit.id[:ID_DIGITS]}  {_status(finding):<18}  {commit.subject}")
            screen.flush()

    found = bisect(
        given.recording, entry, Repository(repo), good, bad, redactor=given.redactor, settings=given.settings,
        timeout_s=timeout, tested=tested, confined=confined,
    )  # fmt: skip
    if as_json:
        screen.json(_json(found))
    else:
        _show(screen, found)
    return 0 if found.first_bad is not None else 1


def _target_of(target: LogTarget, run: str, redactor: str | None) -> BisectTarget:
    if run.endswith(SUFFIX) or Path(run).is_file():
        golden = read(Path(run))
        return BisectTarget(golden.run, golden.entry, redactor or golden.redact)
    with target.read() as log:
        cut = log.point().cut
        name = known_run(log, run, cut)
        recording = log.recording(name, cut)
        entry = log.state(f"run/{name}", cut).fields.get("entry", "")
        alone = with_values(recording, lambda entity, answer: read_again(log, entity, answer).shown())
        return BisectTarget(alone, entry, redactor or "", _redaction(log) if redactor else {})


def _redaction(log: AgentLog) -> Mapping[str, str]:
    """Return the environment variable with the log's key for redaction tokens, for agents that run without the log."""
    vault = log.vault
    return {ENVIRONMENT: kept_key(vault.ring if isinstance(vault, Vault) else None, os.environ).hex()}


def _status(finding: BisectResult) -> str:
    if finding.status == "unusable":
        return "cannot be replayed"
    if finding.status == "same":
        return "same"
    return f"differs at step {finding.step}" if finding.step else "differs"


def _show(screen: Screen, found: BisectionReport) -> None:
    screen.say()
    first = found.first_bad
    if first is not None:
        screen.say(f"first bad commit: {first.id}  {first.subject}", "bold")
    else:
        screen.say(f"it is one of {counted(len(found.suspects), 'commit')}, because some cannot be replayed:", "bold")
        reasons = dict(found.tested)
        for commit in found.suspects:
            finding = reasons.get(commit)
            why = finding.lines[0][:REASON_CHARACTERS_MAX] if finding and finding.status == "unusable" else ""
            screen.say(f"  {commit.id[:ID_DIGITS]}  {commit.subject}" + (f"  ({why})" if why else ""))
    screen.say()
    for line in found.finding.lines:
        screen.say(line)


def _json(found: BisectionReport) -> dict[str, Any]:
    first = found.first_bad
    return {
        "first_bad": None if first is None else _commit_json(first),
        "suspects": [_commit_json(each) for each in found.suspects],
        "step": found.finding.step,
        "divergence": found.finding.divergence,
        "lines": list(found.finding.lines),
        "tested": [
            {**_commit_json(commit), "status": each.status, "step": each.step, "lines": list(each.lines)}
            for commit, each in found.tested
        ],
    }  # fmt: skip


def _commit_json(commit: Commit) -> dict[str, str]:
    return {"commit": commit.id, "subject": commit.subject}
