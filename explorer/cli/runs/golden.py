"""`refold golden`: recorded runs as tests, in self-contained files."""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from refold.agents.golden.add import golden_of_run
from refold.agents.golden.file import SUFFIX, Golden, found, golden_of, read, replace, signed, text_in, write
from refold.agents.golden.result import CheckResult, admitted
from refold.agents.golden.runner import exercised
from refold.agents.journal.record import Plain
from refold.agents.recorder.log_backend import read_again
from refold.avro import strict_json
from refold.avro.errors import InputError, NotConfinable, RefoldError, StorageError
from refold.explorer.cli.options import InOrder, as_json, merged, on_log, place_options, run_argument
from refold.explorer.cli.output.fitting import TableColumn
from refold.explorer.cli.output.screen import Screen, counted
from refold.explorer.cli.runs.code import confined_option, redactor_for
from refold.explorer.queries.log_target import LogTarget
from refold.explorer.queries.run_names import recorded_run
from refold.streams.client import Log

FOLDER = "golden"
SOURCE = "refold golden"

EXPECTATIONS = """\b
An expectation is one of
  exact                          it does exactly what was recorded (the default)
  outcome=succeeded              how it ends: succeeded, failed, cancelled, timed_out
  tools=lookup,...,send_mail     the tools it calls, in order; ... stands for any others. Also steps, decisions
  search_docs<=3                 how often it calls a tool; also tools, steps, decisions, model_calls, reads
  state[3].ticket.status=open    its state after step 3; state.ticket: at the end
  output.refund=50               what it returns
  error=TimeoutError             what it fails with; error~lost: its message holds "lost"
with = != < <= > >= or ~ (holds this part). Values are JSON where they can be: 50 is a number, "50" is text.
"""


@click.command(epilog=EXPECTATIONS)
@run_argument
@click.option("--expect", multiple=True, metavar="TEXT", help="What must hold; may be repeated [exact].")
@click.option("--name", default="", metavar="NAME", help="Its name, and that of its file [the agent and the run].")
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), default=FOLDER, show_default=True, metavar="DIR",
    help="The folder to write the file to.",
)  # fmt: skip
@click.option("--entry", default="", metavar="ENTRY", help="The agent, module:function [as the run names it].")
@click.option("--describe", default="", metavar="TEXT", help="A description, for the reader of a failure.")
@click.option("--known-bad", default="", metavar="WHY", help="The run itself was wrong: it misses what is expected.")
@click.option("--must-fail", default="", metavar="WHY", help="Today's code still fails it; passing is a failure.")
@click.option(
    "--answer", "answers", multiple=True, metavar="NAME=JSON",
    help="What a tool or model answers to a request that was not recorded; may be repeated.",
)  # fmt: skip
@click.option(
    "--redact", is_flag=False, flag_value="", default=None, metavar="[ENTRY]",
    help="Remove secrets: by the standard rules, or by a function of yours, module:function.",
)  # fmt: skip
@click.option("--replace", is_flag=True, help="Replace the file of that name.")
@as_json
@on_log
def add(
    target: LogTarget, run_id: str, expect: tuple[str, ...], name: str, out: Path, entry: str, describe: str,
    known_bad: str, must_fail: str, answers: tuple[str, ...], redact: str | None, replace: bool, as_json: bool,
) -> int:  # fmt: skip
    """Keep a run as a golden trace: one file that replays without log, broker or network.

    The file holds the run's input, every answer it got, the values of what it read, and what is expected of the code
    from now on. If the run was wrong, give --known-bad and what good code does instead. From then on the run's own
    content in the log is kept, whatever its class. If this user may not write to the log, a warning says that the
    content is not kept.

    \b
    Examples
      refold golden add 8f2c
      refold golden add 8f2c --name paid-twice --known-bad "it refunded twice" \\
          --expect outcome=succeeded --expect "refund<=1" --expect "state[2].case.status=open"
    """
    screen = Screen()
    stand_ins = _answers(answers)
    with target.read() as log:
        run = recorded_run(log, run_id, log.point(None).cut)
        golden = golden_of_run(
            run, lambda entity, answer: read_again(log, entity, answer).shown(),
            name=name, entry=entry or _entry(log, run.run), expect=expect, description=describe, known_bad=known_bad,
            must_fail=must_fail, answers=stand_ins, redact=redactor_for(redact), redactor=redact or "",
        )  # fmt: skip
        path = out / f"{golden.name}{SUFFIX}"
        if path.exists() and not replace:
            raise InputError(f"{path} exists; give another --name, or --replace it")
        path = write(golden, out)
    not_kept = keep_content(target, run.run, golden.name)
    if as_json:
        screen.json({"file": str(path), "name": golden.name, "run": run.run, "expect": list(golden.expect),
                     "steps": len(golden.run.steps), "hash": golden.run.hash, "kept": not not_kept})  # fmt: skip
    else:
        screen.say(f"{path}: {counted(len(golden.run.steps), 'step')}, expects {'; '.join(golden.expect)}")
        screen.say(f"run it with: refold golden run {out}", "dim")
    if not_kept:
        click.echo(f"warning: the file is complete, but the run's content may expire in the log: {not_kept}", err=True)
    return 0


def keep_content(target: LogTarget, run: str, name: str) -> str:
    """Mark a run so that its content is kept.

    Returns:
        Why it is not kept, if this user may not write to the log; empty if it is kept.
    """
    try:
        with target.write(make=False) as log:
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


LISTED = (
    TableColumn("name", "cyan", is_fixed=True),
    TableColumn("agent"),
    TableColumn("steps", is_fixed=True),
    TableColumn("expects"),
    TableColumn("what it is", "dim"),
)
places = click.argument("places", metavar="[DIR]...", nargs=-1, type=click.Path(path_type=Path))


@click.group("golden", cls=InOrder, invoke_without_command=True)
@place_options
@click.pass_context
def golden(
    context: click.Context, log_url: str | None, types: tuple[str, ...], owner_timeout: float | None,
    worker_url: str | None,
) -> int:  # fmt: skip
    """Keep runs as tests, and run today's code against them.

    A golden trace is a file NAME.golden.json: a whole recorded run, with what is expected of the agent. It needs no
    log, no broker, no model and no network. DIR is a folder of golden traces [golden]. docs/GOLDEN.md says more; pytest
    runs them with --refold-golden DIR.

    \b
    Examples
      refold golden add 8f2c --expect "refund<=1" --known-bad "it refunded twice"
      refold golden run
    """
    context.obj = merged(context.find_object(LogTarget) or LogTarget(), log_url, types, owner_timeout, worker_url)
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
    return 0


@click.command()
@places
@click.option("--agent", metavar="ENTRY", help="Run this agent, module:function or FILE.py:function, in all of them.")
@confined_option
@as_json
def run(places: tuple[Path, ...], agent: str | None, confined: bool, as_json: bool) -> int:
    """Run today's agents against the golden traces; exits with 1 where one does not do what is expected.

    Modules are imported from the current folder. Nothing outside is called or written: a request that is not recorded
    stops a run, and the message shows the nearest recorded one. With --confined the kernel enforces this for native
    code too; if the kernel refuses, nothing is run, and the exit status is 2.

    \b
    Examples
      refold golden run
      refold golden run --confined
      refold golden run docs/examples/golden --agent docs/examples/golden/old_agent.py:answer
      refold golden run golden/paid-twice.golden.json --json
    """
    screen = Screen()
    results = []
    for path in _files(places):
        tree, lines, is_good = _result(path, agent, confined=confined)
        results.append({"file": str(path), **tree})
        if not as_json:
            for line in lines.splitlines():
                screen.say(line, "green" if is_good else "red")
    bad = sum(not each["passed"] for each in results)
    if as_json:
        screen.json(results)
    else:
        screen.say(f"{counted(len(results), 'golden trace')}, {bad} failed" if bad else f"all {len(results)} passed")
    return 1 if bad else 0


@click.command("list")
@places
@as_json
def list_(places: tuple[Path, ...], as_json: bool) -> int:
    """List the golden traces, and what each expects.

    \b
    Examples
      refold golden list
      refold golden list docs/examples/golden --json
    """
    screen = Screen()
    goldens = [(path, read(path)) for path in _files(places)]
    if as_json:
        screen.json([_golden_json(path, each) for path, each in goldens])
        return 0
    rows = []
    for _, each in goldens:
        notes = [each.description, each.known_bad and f"known bad: {each.known_bad}"]
        notes += [each.must_fail and f"must fail: {each.must_fail}"]
        rows.append([each.name, each.entry, str(len(each.run.steps)), "; ".join(each.expect),
                     "; ".join(note for note in notes if note) or "-"])  # fmt: skip
    screen.table(LISTED, rows)
    return 0


@click.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path))
def sign(files: tuple[Path, ...]) -> int:
    """Accept an edit of a golden trace: sign the file as it is.

    A golden trace carries a hash of its content, and an edited file is refused. Edit an expectation, or a recorded
    answer, then sign it.

    \b
    Examples
      refold golden sign golden/paid-twice.golden.json
    """
    screen = Screen()
    for path in files:
        before = text_in(path)
        text = signed(before, str(path))
        try:
            admitted(golden_of(text, str(path)))
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
        if text != before:
            replace(path, text)
        screen.say(f"{path}: {'signed' if text != before else 'was signed already'}")
    return 0


def _files(places: tuple[Path, ...]) -> list[Path]:
    return [path for place in places or (Path(FOLDER),) for path in found(place)]


def _result(path: Path, agent: str | None, *, confined: bool) -> tuple[dict[str, Any], str, bool]:
    """Return the result for one file: as JSON, as text, and whether it passed."""
    try:
        verdict = _verdict(read(path), agent, confined=confined)
    except NotConfinable:
        raise  # it concerns every file
    except RefoldError as error:
        return {"name": path.name, "passed": False, "error": str(error)}, f"{path.name}: {error}", False
    return {**verdict.tree, "error": None}, str(verdict), verdict.passed


def _verdict(golden: Golden, agent: str | None, *, confined: bool) -> CheckResult:
    try:
        with contextlib.redirect_stdout(sys.stderr):  # keep the agents' output out of the command's answer
            return exercised(golden, Path.cwd(), agent or "", confined=confined)
    except RefoldError:
        raise
    except Exception as error:  # a user's module may raise anything when it is imported
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise InputError(
            f"{agent or golden.entry} cannot be run: {type(error).__name__}: {error} ({last.filename}:{last.lineno})"
        ) from error


def _golden_json(path: Path, golden: Golden) -> dict[str, Any]:
    return {
        "name": golden.name, "file": str(path), "description": golden.description, "entry": golden.entry,
        "expect": list(golden.expect), "known_bad": golden.known_bad, "must_fail": golden.must_fail,
        "run": golden.recorded.run, "steps": len(golden.run.steps), "hash": golden.run.hash,
    }  # fmt: skip


for _command in (add, run, list_, sign):
    golden.add_command(_command)
