"""`refold approvals`, `refold approve` and `refold deny`: answer what a policy asks a person about a call."""

from __future__ import annotations

import getpass
import json
from typing import TYPE_CHECKING

import click

from refold.agents.policy.decision_log import HEAL_QUESTION
from refold.explorer.cli.options import as_json, on_log
from refold.explorer.cli.output.screen import Screen, moment
from refold.explorer.queries.log_target import LogTarget
from refold.explorer.queries.operate import question_json

if TYPE_CHECKING:
    from refold.agents.log import AgentLog

_by = click.option("--by", default="", metavar="NAME", help="Who answers [the user].")
_reason = click.option("--reason", default="", metavar="TEXT", help="Why; the agent gets the reason of a rejection.")


@click.command()
@click.option("--all", "all_too", is_flag=True, help="Also list those that have an answer.")
@as_json
@on_log
def approvals(target: LogTarget, all_too: bool, as_json: bool) -> int:
    """List what policies ask people about calls of runs.

    The oldest is listed first. A rule with `action = "ask"` asks: its call is made only after somebody approves it.

    \b
    Examples
      refold approvals
      refold approvals --all --json
    """
    screen = Screen()
    with target.read() as log:
        found = log.questions(all_too=all_too)
    if as_json:
        screen.json([question_json(each) for each in found])
        return 0
    for each in found:
        approval = each.approval
        given = each.arguments
        arguments = "arguments that cannot be opened here" if given is None else json.dumps(given, ensure_ascii=False)
        screen.say(each.id)
        screen.say(f"  {each.tool} with {arguments}")
        screen.say(f"  {approval.decision} by {approval.by} at {moment(approval.at)}"
                   + (f": {approval.reason}" if approval.reason else ""))  # fmt: skip
        if approval.decision == "requested" and approval.expires_at:
            screen.say(f"  waits until {moment(approval.expires_at)}")
    if not found:
        screen.say("no call waits for an approval")
    return 0


@click.command()
@click.argument("question")
@_reason
@_by
@as_json
@on_log
def approve(target: LogTarget, question: str, reason: str, by: str, as_json: bool) -> int:
    """Let a call through that a policy asks about.

    QUESTION is an id that `refold approvals` lists. The call is made when the run is resumed, once. An answer is final.

    \b
    Examples
      refold approve desk-1#2.5a0c11d2e3f4.1 --reason "checked with the customer"
    """
    return _answer(target, question, reason, by, is_approved=True, as_json=as_json)


@click.command()
@click.argument("question")
@_reason
@_by
@as_json
@on_log
def deny(target: LogTarget, question: str, reason: str, by: str, as_json: bool) -> int:
    """Reject a call that a policy asks about.

    QUESTION is an id that `refold approvals` lists. When the run is resumed, its code gets a denial. An answer is
    final.

    \b
    Examples
      refold deny desk-1#2.5a0c11d2e3f4.1 --reason "the parcel is lost"
    """
    return _answer(target, question, reason, by, is_approved=False, as_json=as_json)


def _answer(target: LogTarget, question: str, reason: str, by: str, *, is_approved: bool, as_json: bool) -> int:
    screen = Screen()
    who = by or getpass.getuser()
    with target.write(make=False) as log:
        log.answer(question, is_approved=is_approved, by=who, reason=reason)
        run = question.partition("#")[0]
        is_resumed_here = _is_resumed_here(log, run)
    decision = "approved" if is_approved else "rejected"
    if as_json:
        screen.json({"question": question, "decision": decision, "by": who})
    else:
        screen.say(f"{question} is {decision}, says {who}")
        is_heal = question.rpartition("#")[2].split(".")[1:2] == [HEAL_QUESTION]
        if is_heal:
            screen.say(f"to go on: refold heal {run} --apply, with its other options")
        elif is_resumed_here:
            screen.say(f"to go on: refold run resume {run} --guard FILE")
        else:
            screen.say("to go on: resume the session with the SDK that ran it, with the same hooks")
    return 0


def _is_resumed_here(log: AgentLog, run: str) -> bool:
    """Return whether `refold run resume` can continue a run: not one that hooks of another SDK asked for."""
    entity = f"run/{run}"
    found = log.states([entity])
    return entity in found and not found[entity].fields.get("imported_from")
