"""`refold golden add`: a recorded run becomes a test."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from refold.agents.golden.adding import golden_of_run
from refold.agents.golden.file import SUFFIX, write
from refold.agents.journal.record import Plain
from refold.agents.recorder.log_reach import read_again
from refold.avro import strict_json
from refold.avro.errors import InputError, StorageError
from refold.explorer.cli.options import Place, as_json, on_log
from refold.explorer.cli.recorded import recorded_run, run_argument
from refold.explorer.cli.run_code import redactor_for
from refold.explorer.cli.screen import Screen, counted
from refold.streams.client import Log

FOLDER = "golden"
SOURCE = "refold golden"

EXPECTATIONS = """\b
An expectation is one of
  exact                          it does all that was recorded, and nothing else (the default)
  outcome=succeeded              how it ends: succeeded, failed, cancelled, timed_out
  tools=lookup,...,send_mail     the tools it calls, in order; ... stands for any others. Also steps, decisions
  search_docs<=3                 how often it calls a tool; also tools, steps, decisions, model_calls, reads
  state[3].ticket.status=open    its state after step 3; state.ticket: at the end
  output.refund=50               what it returns
  error=TimeoutError             what it fails with; error~lost: what that says
with = != < <= > >= or ~ (holds this part). Values are JSON where they can be: 50 is a number, "50" is text.
"""


@click.command(epilog=EXPECTATIONS)
@run_argument
@click.option("--expect", multiple=True, metavar="TEXT", help="What must hold; may be repeated [exact].")
@click.option("--name", default="", metavar="NAME", help="What it is called, and its file [the agent and the run].")
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), default=FOLDER, show_default=True, metavar="DIR",
    help="The folder it is written into.",
)  # fmt: skip
@click.option("--entry", default="", metavar="ENTRY", help="The agent, module:function [what the run says].")
@click.option("--describe", default="", metavar="TEXT", help="What it is about, for whoever sees it fail.")
@click.option("--known-bad", default="", metavar="WHY", help="The run itself went wrong: it misses what is expected.")
@click.option("--must-fail", default="", metavar="WHY", help="Today's code fails it still; passing is a failure.")
@click.option(
    "--answer", "answers", multiple=True, metavar="NAME=JSON",
    help="What a tool or model answers to a request that was not recorded; may be repeated.",
)  # fmt: skip
@click.option(
    "--redact", is_flag=False, flag_value="", default=None, metavar="[ENTRY]",
    help="Take secrets out: by the standard rules, or by a function of yours, module:function.",
)  # fmt: skip
@click.option("--replace", is_flag=True, help="Write over a golden trace of that name.")
@as_json
@on_log
def add(
    place: Place, run_id: str, expect: tuple[str, ...], name: str, out: Path, entry: str, describe: str,
    known_bad: str, must_fail: str, answers: tuple[str, ...], redact: str | None, replace: bool, as_json: bool,
) -> int:  # fmt: skip
    """Keep a run as a golden trace: one file that replays without log, broker or network.

    The file holds what the run was given, every answer it got, the values of what it read, and what is expected of the
    code from now on. Of a run that went wrong, say --known-bad and what good code does instead. The run's own content
    is kept from then on, whatever its class; where this user may not write to the log, a warning says that it is not.

    \b
    Examples
      refold golden add 8f2c
      refold golden add 8f2c --name paid-twice --known-bad "it refunded twice" \\
          --expect outcome=succeeded --expect "refund<=1" --expect "state[2].case.status=open"
    """
    screen = Screen()
    stand_ins = _answers(answers)
    with place.read() as log:
        run = recorded_run(log, run_id, log.point(None).cut)
        golden = golden_of_run(
            run, lambda entity, answer: read_again(log, entity, answer).shown(),
            name=name, entry=entry or _entry(log, run.run), expect=expect, description=describe, known_bad=known_bad,
            must_fail=must_fail, answers=stand_ins, redact=redactor_for(redact), redactor=redact or "",
        )  # fmt: skip
        path = out / f"{golden.name}{SUFFIX}"
        if path.exists() and not replace:
            raise InputError(f"{path} is there already; give another --name, or --replace it")
        path = write(golden, out)
    not_kept = _keep(place, run.run, golden.name)
    if as_json:
        screen.json({"file": str(path), "name": golden.name, "run": run.run, "expect": list(golden.expect),
                     "steps": len(golden.run.steps), "hash": golden.run.hash, "kept": not not_kept})  # fmt: skip
    else:
        screen.say(f"{path}: {counted(len(golden.run.steps), 'step')}, expects {'; '.join(golden.expect)}")
        screen.say(f"run it with: refold golden run {out}", "dim")
    if not_kept:
        click.echo(f"warning: the file is complete, but the run's content may expire in the log: {not_kept}", err=True)
    return 0


def _keep(place: Place, run: str, name: str) -> str:
    """Have the run's content kept; why it is not, where this user may not write to the log."""
    try:
        with place.write(make=False) as log:
            log.observe(f"run/{run}", {"golden": name}, source=SOURCE)
    except StorageError as error:
        return str(error)
    return ""


def _entry(log: Log, run: str) -> str:
    return str(log.state(f"run/{run}").fields.get("entry", ""))


def _answers(texts: Sequence[str]) -> dict[str, Plain]:
    found = {}
    for text in texts:
        name, sign, value = text.partition("=")
        try:
            found[name.strip()] = strict_json.loads(value)
        except ValueError:
            sign = ""
        if not (sign and name.strip()):
            raise InputError(f"--answer is NAME=JSON, as in --answer 'send_mail=null'; given {text!r}")
    return found
