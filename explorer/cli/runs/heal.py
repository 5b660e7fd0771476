"""`refold heal`: find what is wrong with a run, prove a remedy on a copy, and let the run continue with it."""

from __future__ import annotations

import shlex
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import click

from refold.agents.entry import Agent
from refold.agents.golden.add import golden_of_run
from refold.agents.golden.file import SUFFIX, write
from refold.agents.heal.agents_file import plan_in
from refold.agents.heal.apply import Healer, HealSetting, Remediable
from refold.agents.heal.diagnosis import Diagnosis
from refold.agents.heal.healings import Healing, healings
from refold.agents.heal.lease import ELSEWHERE, HealedElsewhere, healing_lease
from refold.agents.heal.plan import DEFAULT, HealPlan
from refold.agents.heal.report import FailureCount, report
from refold.agents.log import AgentLog
from refold.agents.recorder.log_backend import read_again
from refold.agents.recorder.run import Run
from refold.agents.recorder.writer import RecordingFailed
from refold.avro.errors import InputError, RefoldError, StorageError
from refold.explorer.cli.options import as_json, on_log
from refold.explorer.cli.output.fitting import TableColumn
from refold.explorer.cli.output.screen import Screen, counted
from refold.explorer.cli.runs.code import agent_option, driven, redact_option, redactor_for
from refold.explorer.cli.runs.golden import FOLDER, keep_content
from refold.explorer.queries.healings import HealingsQuery
from refold.explorer.queries.log_target import LogTarget
from refold.explorer.queries.run_names import known_run

DONE = ("healed",)
COLUMNS = (
    TableColumn("failure", "cyan"), TableColumn("runs", is_fixed=True), TableColumn("healed", is_fixed=True),
    TableColumn("left", is_fixed=True), TableColumn("tokens", is_fixed=True), TableColumn("USD", is_fixed=True),
    TableColumn("remedies"),
)  # fmt: skip


@click.command()
@click.argument("run_id", metavar="[RUN]", default="")
@click.option(
    "--plan", "mode", flag_value="plan", default="plan", help="Show what is wrong and what could be done (the default)."
)
@click.option("--apply", "mode", flag_value="apply", help="Heal it: prove a remedy on a copy, then let the run go on.")
@click.option("--report", "mode", flag_value="report", help="Show which failures came how often, and what helped.")
@click.option("--keep", "keep", is_flag=False, flag_value=FOLDER, metavar="[DIR]",
              help=f"Write the healed run as a golden trace into DIR [{FOLDER}].")  # fmt: skip
@click.option("--remedies", metavar="FILE", help="The remedies (docs/guides/heal.md) [retry, refresh, ask a person].")
@click.option("--file", "agents_file", metavar="FILE", help="A refold.toml: the remedies are its agent's table `heal`.")
@click.option("--supervised", default="", metavar="NAME", hidden=True, help="As `refold up` heals its agent NAME.")
@agent_option
@redact_option
@as_json
@on_log
def heal(
    target: LogTarget, run_id: str, mode: str, keep: str | None, remedies: str | None, agents_file: str | None,
    supervised: str, entry: str | None, redact: str | None, as_json: bool,
) -> int:  # fmt: skip
    """Heal a run: find what is wrong, prove a remedy, and continue.

    Without an option it only shows what is wrong, what that rests on, the last good step, and the remedies that
    could be applied. With --apply the run is forked there, with writes closed, and the remedy is proved on the
    fork: by what is expected of it, and by the golden traces of the agent. Only then the run itself continues with
    the remedy, or a person is asked. A remedy that is not proved changes nothing but the fork, and the next one is
    tried.

    After a crash, run the same command again. It continues where it was. One process heals a run at a time.

    Exits with 1 if something is wrong and not healed (--plan), or if the run was not healed (--apply). Exits with 3 if
    another process heals the run: the message says which, and since when.

    \b
    Examples
      refold heal 8f2c
      refold heal 8f2c --apply --remedies heal.toml
      refold heal 8f2c --apply --file refold.toml
      refold heal 8f2c --keep
      refold heal --report
    """
    screen = Screen()
    if remedies is not None and agents_file is not None:
        raise InputError("--remedies and --file both name the remedies: give one of them")
    setting = HealSetting(_drive, entry or "", redactor_for(redact), supervised=supervised)
    if mode == "report" and keep is None:
        return _report(target, screen, run_id, as_json=as_json)
    if not run_id:
        raise InputError("name the run: `refold runs --outcome failed` lists those that failed")
    plan = _plan(target, run_id, remedies, agents_file, supervised)
    if keep is not None:
        return _keep(target, screen, run_id, Path(keep), plan, entry, redact, as_json=as_json)
    if mode == "apply":
        return _apply(target, screen, run_id, plan, setting, is_supervised=bool(supervised), as_json=as_json)
    with target.read() as log, redirect_stdout(sys.stderr):
        run_id = known_run(log, run_id, log.point().cut)
        healer = Healer(log, plan, setting)
        diagnosis = healer.diagnosis(run_id)
        healed = next((each for each in healings(log, run_id) if each.status == "healed"), None)
        choices = [] if healed is not None else _choices(log, healer, diagnosis)
    if as_json:
        screen.json(_plan_json(diagnosis, healed, choices))
    else:
        given = {"--remedies": remedies, "--file": agents_file, "--agent": entry, "--redact": redact}
        given |= {"--log": target.url}
        options = [word for option, value in given.items() if value is not None for word in (option, value)]
        again = shlex.join(["refold", "heal", run_id, "--apply", *options])
        _show_plan(screen, diagnosis, healed, choices, again)
    return 1 if diagnosis.findings and healed is None else 0


def _plan(
    target: LogTarget, run_id: str, remedies: str | None, agents_file: str | None, supervised: str
) -> HealPlan:  # fmt: skip
    if remedies is not None:
        return HealPlan.load(remedies)
    if agents_file is None:
        return DEFAULT
    with target.read() as log:
        agent = log.state(f"run/{known_run(log, run_id, log.point().cut)}").fields.get("agent", "")
    return plan_in(Path(agents_file), agent, supervised)


def _drive(run: Run, agent: Agent) -> Exception | None:
    """Run the agent's code to its end; return the exception that it raised, also a denial by its policy.

    Raises:
        RefoldError: The run cannot be recorded.
    """
    try:
        return driven(run, agent)
    except (RecordingFailed, StorageError):
        raise
    except RefoldError as error:
        return error


def _choices(log: AgentLog, healer: Healer, diagnosis: Diagnosis) -> list[Remediable]:
    return healer.remedies(log.recording(diagnosis.run), diagnosis) if diagnosis.findings else []


def _plan_json(diagnosis: Diagnosis, healed: Healing | None, choices: list[Remediable]) -> dict[str, Any]:
    return {
        "run": diagnosis.run, "agent": diagnosis.agent, "outcome": diagnosis.outcome, "failure": diagnosis.failure,
        "held": diagnosis.held, "healed_by": "" if healed is None else healed.healed_by,
        "findings": [each._asdict() for each in diagnosis.findings],
        "remedies": [
            {"remedy": each.remedy.name, "does": each.remedy.do, "finding": each.finding.kind, "at": each.at,
             "asks": each.remedy.approve or each.remedy.do == "ask"}
            for each in choices
        ],
    }  # fmt: skip


def _show_plan(
    screen: Screen, diagnosis: Diagnosis, healed: Healing | None, choices: list[Remediable], again: str
) -> None:
    screen.say(f"run {diagnosis.run} of {diagnosis.agent}: {diagnosis.outcome}", "bold")
    if not diagnosis.findings:
        screen.say("nothing is wrong with it")
        return
    for each in diagnosis.findings:
        screen.say(f"{each.kind}  {each.said}", "red")
        screen.say(f"  last good step  {each.at}" if each.at else "  last good step  none: it would begin again")
        for observation in each.observations:
            screen.say(f"  rests on        {screen.id(observation)}")
    if diagnosis.held:
        screen.say(diagnosis.held, "bold")
        return
    if healed is not None:
        screen.say(f"it {healed.healed_text}", "green")
        return
    screen.say("what could be done, in this order:" if choices else "no remedy is declared for this")
    for each_choice in choices:
        remedy = each_choice.remedy
        asks = ", after a person's approval" if remedy.approve or remedy.do == "ask" else ""
        screen.say(f"  {remedy.name} ({remedy.do}): go on after step {each_choice.at}{asks}")
    if choices:
        screen.say(f"to do it: {again}", "dim")


def _apply(
    target: LogTarget, screen: Screen, run_id: str, plan: HealPlan, setting: HealSetting, *, is_supervised: bool,
    as_json: bool,
) -> int:  # fmt: skip
    with target.write(make=False) as log, redirect_stdout(sys.stderr):
        run_id = known_run(log, run_id, log.point().cut)
        healer = Healer(log, plan, setting)
        try:
            with healing_lease(log, run_id):
                attempts = healer.apply_or_stop(run_id) if is_supervised else healer.apply(run_id)
        except HealedElsewhere as error:
            click.echo(f"refold: {error}", err=True)
            return ELSEWHERE
    if as_json:
        screen.json([each.json() for each in attempts])
    elif not attempts:
        screen.say(f"nothing is wrong with run {run_id}")
    else:
        for each in attempts:
            _show_attempt(screen, each)
    return 0 if not attempts or attempts[-1].status in DONE else 1


def _show_attempt(screen: Screen, each: Healing) -> None:
    screen.say(f"attempt {each.attempt}: {each.failure}", "bold")
    if each.remedy:
        screen.say(f"  remedy    {each.remedy} ({each.does}), after step {each.at_step}")
    if each.proof:
        screen.say(f"  proof     run {each.proof}")
    for one in each.checks:
        screen.say(f"    {'ok' if one.get('satisfied') else 'no'}      {one.get('check')}")
    screen.say(f"  {each.status:<9} {each.reason}", "green" if each.status in DONE else "red")
    if each.healed_by and each.healed_by != each.run:
        screen.say(f"  goes on   run {each.healed_by}")
    screen.say(f"the whole chain: refold why healing/{each.id}.status", "dim")


def _report(target: LogTarget, screen: Screen, run_id: str, *, as_json: bool) -> int:
    with target.read() as log:
        run = known_run(log, run_id, log.point().cut) if run_id else ""
        if as_json:
            screen.json(HealingsQuery(run).answer(log))
            return 0
        found = report(healings(log, run))
    if not found:
        screen.say("no run was healed yet")
    screen.table(COLUMNS, [_row(each) for each in found])
    return 0


def _row(each: FailureCount) -> list[str]:
    helped = [f"{one.remedy}: {one.healed} of {one.attempts}" for one in each.remedies]
    cost = "-" if each.cost_usd is None else f"{each.cost_usd:.4f}"
    tokens = f"{each.input_tokens + each.output_tokens:,}"
    return [each.failure, str(each.runs), str(each.healed), str(each.stopped), tokens, cost, ", ".join(helped) or "-"]


def _keep(
    target: LogTarget, screen: Screen, run_id: str, folder: Path, plan: HealPlan, entry: str | None, redact: str | None,
    *, as_json: bool,
) -> int:  # fmt: skip
    """Write the run that a healed run continued as, as a golden trace."""
    with target.read() as log:
        run_id = known_run(log, run_id, log.point().cut)
        last = _last_healed(log, run_id)
        if last is None:
            raise InputError(f"run {run_id} was not healed: `refold heal {run_id}` shows what is wrong with it")
        run = log.recording(last.healed_by)
        checked = [str(each["check"]) for each in last.checks if not str(each["check"]).startswith("golden ")]
        golden = golden_of_run(
            run, lambda entity, answer: read_again(log, entity, answer).shown(), name=f"healed-{run_id}",
            entry=entry or str(log.state(f"run/{run.run}").fields.get("entry", "")), expect=checked or plan.expect,
            description=f"{last.failure}; healed by the remedy {last.remedy}", redact=redactor_for(redact),
            redactor=redact or "",
        )  # fmt: skip
        path = folder / f"{golden.name}{SUFFIX}"
        if path.exists():
            raise InputError(f"{path} exists: remove it, or name another folder")
        path = write(golden, folder)
    not_kept = keep_content(target, run.run, golden.name)
    if as_json:
        screen.json({"file": str(path), "name": golden.name, "run": run.run, "expect": list(golden.expect)})
    else:
        screen.say(f"{path}: {counted(len(golden.run.steps), 'step')}, expects {'; '.join(golden.expect)}")
        screen.say(f"run it with: refold golden run {folder}", "dim")
    if not_kept:
        click.echo(f"warning: the file is complete, but the run's content may expire in the log: {not_kept}", err=True)
    return 0


def _last_healed(log: AgentLog, run: str) -> Healing | None:
    """Return the last attempt that healed a run, or its continuation if that one failed and was healed."""
    while True:
        attempts = healings(log, run)
        healed = [each for each in attempts if each.status == "healed"]
        later = [each.healed_by for each in attempts if each.healed_by not in ("", run)]
        if healed or not later:
            return healed[-1] if healed else None
        run = later[-1]
