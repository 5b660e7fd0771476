"""`refold effects`: list what write tools did, settle effects of unknown status, and undo effects."""

from __future__ import annotations

import getpass
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from refold.agents.effects.errors import NotDone
from refold.agents.effects.ledger import Ledger
from refold.agents.effects.listing import FATES, Effect, chosen_by
from refold.agents.effects.order import Done, Undo
from refold.agents.effects.undo import UndoResult, to_undo
from refold.agents.entry import agent_of, recorded_agent_of
from refold.agents.journal.objects import bare
from refold.avro.errors import InputError
from refold.avro.strict_json import json_or_text
from refold.explorer.cli.options import WHEN, InOrder, as_json, merged, on_log, place_options
from refold.explorer.cli.options import at as at_option
from refold.explorer.cli.output.fitting import TableColumn
from refold.explorer.cli.output.screen import Screen, counted, moment
from refold.explorer.queries.effects import effect_json, opened
from refold.explorer.queries.log_target import LogTarget

COLUMNS = (
    TableColumn("status"),
    TableColumn("intended", "dim", is_fixed=True),
    TableColumn("tries", is_fixed=True),
    TableColumn("key", "cyan"),
    TableColumn("result"),
)
UNDONE = (TableColumn("ended"), TableColumn("key", "cyan"), TableColumn("why"))


@click.group(cls=InOrder, invoke_without_command=True)
@place_options
@click.pass_context
def effects(
    context: click.Context, log_url: str | None, types: tuple[str, ...], owner_timeout: float | None,
    worker_url: str | None,
) -> int:  # fmt: skip
    """List what write tools did; settle what is unknown; undo.

    Each call of a write tool is an effect. Its key is TASK:STEP:TOOL:HASH of the arguments. It is carried out once.

    \b
    Status
      intended   about to be sent; its holder is at work
      done       carried out; a repeated call gets the first result
      failed     not carried out; may be tried again as often as its tool allows
      released   given up before it was sent
      unknown    sent, with an unknown result: never sent again before it is settled

    \b
    Examples
      refold effects list --status unknown
      refold effects settle order-7:3:refund:5a0c --done '{"id": "r-1"}' --note "seen in the bank's list"
      refold effects compensate 8f2c --dry-run
    """
    context.obj = merged(context.find_object(LogTarget) or LogTarget(), log_url, types, owner_timeout, worker_url)
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
    return 0


@effects.command("list", epilog=WHEN)
@click.option("--status", type=click.Choice(FATES), help="Only effects with this status.")
@click.option("--run", "run_id", default="", metavar="RUN", help="Only effects that this run may have carried out.")
@click.option("--tool", default="", help="Only effects of this tool.")
@at_option
@as_json
@on_log
def list_(target: LogTarget, status: str | None, run_id: str, tool: str, at: str | None, as_json: bool) -> int:
    """List effects, in the order in which they were first intended.

    An effect that is still intended when its lease ends is listed as unknown, because its holder is gone.

    \b
    Examples
      refold effects list
      refold effects list --status unknown --json
      refold effects list --run 8f2c --tool refund --at @deploy-1
    """
    screen = Screen()
    with target.read() as log:
        ledger = log.effects
        every = ledger.list(at=at)
        run = _match_run(every, run_id) if run_id else ""
        found = [*filter(chosen_by(status or "", run, tool), every)]
        if as_json:
            screen.json([effect_json(ledger, each) for each in found])
            return 0
        screen.table(COLUMNS, [_cells(ledger, each) for each in found])
    if not found:
        screen.say("no effect matches" if every else "no effect is recorded here: no run called a write tool")
        return 0
    unknown = sum(each.status == "unknown" for each in found)
    screen.say(counted(len(found), "effect") + (f", {unknown} to be settled" if unknown else ""))
    return 0


@effects.command()
@click.argument("key")
@click.option("--done", "result", metavar="RESULT", help="It was carried out; the tool's result: JSON, or text.")
@click.option("--not-done", is_flag=True, help="It was not carried out, and will not be: it may be tried again.")
@click.option("--probe", metavar="MODULE:FUNCTION", help="Call this function with key and arguments to find out.")
@click.option("--note", default="", help="How it was found out.")
@click.option("--by", default="", metavar="NAME", help="Who found out [the user].")
@as_json
@on_log
def settle(
    target: LogTarget, key: str, result: str | None, not_done: bool, probe: str | None, note: str, by: str,
    as_json: bool,
) -> int:  # fmt: skip
    """Record the result of an effect whose status is unknown.

    KEY may be the beginning of a key. An answer that it was carried out is final. If you wrongly answer that it was
    not, the effect is sent again. A probe may also be folder/file.py:function. It returns refold.Done(result), raises
    refold.NotDone, or returns None if it cannot tell; then the exit status is 1.

    An effect that used all its attempts gets new ones with --not-done. An effect that is done, but whose result could
    not be recorded, gets the result with --done.

    \b
    Examples
      refold effects settle order-7:3:refund:5a0c --not-done --note "not in the bank's list"
      refold effects settle order-7:3:refund:5a0c --done '{"id": "r-1"}'
      refold effects settle order-7:3:refund:5a0c --probe payments:look_up
    """
    if sum((result is not None, not_done, probe is not None)) != 1:
        raise InputError(f"{key}: give the result, with one of --done RESULT, --not-done and --probe")
    prober = None if probe is None else agent_of(probe, Path.cwd(), "probe")
    screen = Screen()
    with target.write(make=False) as log:
        ledger = log.effects
        effect = _match_effect(ledger.list(), key)
        who = by or getpass.getuser()
        if prober is not None:
            found = ledger.settle_by(effect.key, prober, by=who, note=note)
        else:
            outcome = NotDone() if result is None else Done(_value(result))
            found = ledger.settle(effect.key, outcome, by=who, note=note)
        if as_json:
            screen.json(effect_json(ledger, found))
        elif found.status == "unknown":
            screen.say(f"{found.key} is still unknown: the probe cannot tell")
        else:
            screen.say(f"{found.key} is {found.status}, says {who}")
    return 1 if found.status == "unknown" else 0


@effects.command()
@click.argument("run_id", metavar="RUN")
@click.option("--undo", "given", multiple=True, metavar="TOOL=MODULE:FUNCTION",
              help="What undoes a tool's effects, instead of its registered function; repeatable.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Print what would be undone, and undo nothing.")
@as_json
@on_log
def compensate(target: LogTarget, run_id: str, given: tuple[str, ...], dry_run: bool, as_json: bool) -> int:
    """Undo what a run did, the last effect first.

    Each effect is undone by the function that its tool was registered with (undo=...), imported from the current
    folder, or by the function that --undo names. An undo is itself an effect, so nothing is undone twice: after a
    crash, run the command again. If an effect could not be undone, the command names it, continues with the others, and
    exits with 1.

    \b
    Examples
      refold effects compensate 8f2c --dry-run
      refold effects compensate 8f2c
      refold effects compensate 8f2c --undo refund=payments:cancel
    """
    screen = Screen()
    named = dict(map(_parse_undo, given))
    with target.write(make=False) as log:
        ledger = log.effects
        every = ledger.list()
        run = _match_run(every, run_id)
        undos, missing = _undos(to_undo(every, run), named)
        found = [
            _with_reason(each, missing)
            for each in ledger.compensate(run, undos, agent=getpass.getuser(), is_dry=dry_run)
        ]
    if as_json:
        screen.json(
            [{"key": each.key, "tool": each.tool, "ended": each.ended, "why": each.why or None} for each in found]
        )
    elif found:
        screen.table(UNDONE, [[each.ended, each.key, each.why or "-"] for each in found])
    else:
        screen.say(f"run {run} has no effect that could be undone")
    return 1 if any(each.is_left for each in found) else 0


def _cells(ledger: Ledger, effect: Effect) -> list[str]:
    intended = moment(effect.intended_at)[:19].replace("T", " ")
    return [effect.status, intended, str(effect.attempts), effect.key, _result_text(ledger, effect)]


def _result_text(ledger: Ledger, effect: Effect) -> str:
    """Describe the result in a few words."""
    if effect.times_done > 1:
        return f"done {effect.times_done} times: it was settled wrongly in between"
    if effect.compensated_by:
        return "undone"
    if effect.status == "done":
        result, why = opened(lambda: ledger.result(effect))
        return f"[{why}]" if why else json.dumps(bare(result), ensure_ascii=False)
    message, _ = opened(lambda: ledger.message(effect))
    return f"{effect.error.get('exception') or ''}: {message or ''}".strip(": ") or "-"


def _value(text: str) -> Any:
    """Parse JSON. Text that is not valid JSON is returned as a string."""
    return json_or_text(text)


def _match_run(every: Iterable[Effect], given: str) -> str:
    """Return the id of a run that has effects. given: the id, or the beginning of it.

    Raises:
        InputError: No run matches, or several do.
    """
    runs = sorted({run for each in every for run in each.runs})
    found = [given] if given in runs else [run for run in runs if given and run.startswith(given)]
    return _only(found, given, "run with effects")


def _match_effect(every: Iterable[Effect], given: str) -> Effect:
    """Return an effect. given: its key, or the beginning of it.

    Raises:
        InputError: No effect matches, or several do.
    """
    by_key = {each.key: each for each in every}
    found = [given] if given in by_key else [key for key in by_key if given and key.startswith(given)]
    return by_key[_only(found, given, "effect")]


def _only(found: list[str], given: str, what: str) -> str:
    if len(found) == 1:
        return found[0]
    if found:
        raise InputError(f"{given}: {len(found)} begin with it; give more of it: {', '.join(found[:3])}")
    raise InputError(f"{given}: there is no {what} of this name; `refold effects list` lists them")


def _parse_undo(text: str) -> tuple[str, str]:
    tool, equals, name = text.partition("=")
    if not (tool and equals and name):
        raise InputError(f"--undo {text!r}: give TOOL=MODULE:FUNCTION, such as refund=payments:cancel")
    return tool, name


def _undos(own: Iterable[Effect], named: dict[str, str]) -> tuple[dict[str, Undo], dict[str, str]]:
    """Return the undo functions by tool, and for each tool whose function cannot be found the reason.

    Raises:
        InputError: A function that the user named cannot be found.
    """
    undos: dict[str, Undo] = {tool: agent_of(name, Path.cwd(), "undo function") for tool, name in named.items()}
    missing: dict[str, str] = {}
    for each in own:
        if each.undo and each.tool not in undos and each.tool not in missing:
            try:
                undos[each.tool] = recorded_agent_of(each.undo, Path.cwd(), "undo function")
            except InputError as error:
                missing[each.tool] = f"{error}; or name one with --undo {each.tool}=MODULE:FUNCTION"
    return undos, missing


def _with_reason(undone: UndoResult, missing: dict[str, str]) -> UndoResult:
    if undone.is_unregistered and undone.tool in missing:
        return UndoResult(undone.key, undone.tool, undone.ended, missing[undone.tool])
    return undone
