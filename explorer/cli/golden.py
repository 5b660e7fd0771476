"""`refold golden`: runs kept as tests, in files that stand alone."""

from __future__ import annotations

import contextlib
import sys
import traceback
from pathlib import Path
from typing import Any

import click

from refold.agents.golden.exercise import exercised
from refold.agents.golden.file import Golden, found, golden_of, read, replace, signed, text_in
from refold.agents.golden.verdict import Verdict, admitted
from refold.avro.errors import InputError, NotConfinable, RefoldError
from refold.explorer.cli import golden_add
from refold.explorer.cli.options import InOrder, Place, as_json, merged, place_options
from refold.explorer.cli.run_code import confined_option
from refold.explorer.cli.screen import Column, Screen, counted

LISTED = (
    Column("name", "cyan", is_fixed=True),
    Column("agent"),
    Column("steps", is_fixed=True),
    Column("expects"),
    Column("what it is", "dim"),
)
places = click.argument("places", metavar="[DIR]...", nargs=-1, type=click.Path(path_type=Path))


@click.group("golden", cls=InOrder, invoke_without_command=True)
@place_options
@click.pass_context
def golden(
    context: click.Context, log_url: str | None, types: tuple[str, ...], owner_timeout: float | None,
    worker_url: str | None,
) -> int:  # fmt: skip
    """Keep runs as tests: each in one file, and today's code run against it.

    A golden trace is a file NAME.golden.json: a recorded run, whole, with what is expected of the agent. It needs no
    log, no broker, no model and no network. DIR is a folder of them [golden]. docs/GOLDEN.md says more; pytest takes
    them with --refold-golden DIR.

    \b
    Examples
      refold golden add 8f2c --expect "refund<=1" --known-bad "it refunded twice"
      refold golden run
    """
    context.obj = merged(context.find_object(Place) or Place(), log_url, types, owner_timeout, worker_url)
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

    Modules are looked up from the folder this is run in. Nothing is sent, written or asked for outside: what is not
    recorded stops a run, and says what comes nearest. With --confined the kernel holds native code to that, too; where
    it refuses, nothing is run, and the exit status is 2.

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
        tree, said, is_good = _result(path, agent, confined=confined)
        results.append({"file": str(path), **tree})
        if not as_json:
            for line in said.splitlines():
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
        screen.json([_listed(path, each) for path, each in goldens])
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
    """Say that an edit of a golden trace is meant: sign the file as it stands.

    A golden trace carries a hash of what stands in it, and one that was edited is refused. Edit an expectation, or a
    recorded answer, then sign it.

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
        screen.say(f"{path}: {'signed' if text != before else 'is signed as it stands'}")
    return 0


def _files(places: tuple[Path, ...]) -> list[Path]:
    return [path for place in places or (Path(golden_add.FOLDER),) for path in found(place)]


def _result(path: Path, agent: str | None, *, confined: bool) -> tuple[dict[str, Any], str, bool]:
    """What comes of one file: for programs, for people, and whether it is good."""
    try:
        verdict = _verdict(read(path), agent, confined=confined)
    except NotConfinable:
        raise  # of every file
    except RefoldError as error:
        return {"name": path.name, "passed": False, "error": str(error)}, f"{path.name}: {error}", False
    return {**verdict.tree, "error": None}, str(verdict), verdict.passed


def _verdict(golden: Golden, agent: str | None, *, confined: bool) -> Verdict:
    try:
        with contextlib.redirect_stdout(sys.stderr):  # what agents print goes beside the answer
            return exercised(golden, Path.cwd(), agent or "", confined=confined)
    except RefoldError:
        raise
    except Exception as error:  # whatever a user's module raises when it is imported
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise InputError(
            f"{agent or golden.entry} cannot be run: {type(error).__name__}: {error} ({last.filename}:{last.lineno})"
        ) from error


def _listed(path: Path, golden: Golden) -> dict[str, Any]:
    return {
        "name": golden.name, "file": str(path), "description": golden.description, "entry": golden.entry,
        "expect": list(golden.expect), "known_bad": golden.known_bad, "must_fail": golden.must_fail,
        "run": golden.recorded.run, "steps": len(golden.run.steps), "hash": golden.run.hash,
    }  # fmt: skip


for _command in (golden_add.add, run, list_, sign):
    golden.add_command(_command)
