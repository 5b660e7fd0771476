"""`refold checkout`: open a run at a hash."""

from __future__ import annotations

from itertools import islice
from typing import Any

import click

from refold.agents.capture.exchange import is_exchange
from refold.agents.capture.turns import going_on, turn_of
from refold.agents.journal.record import Plain, Recording
from refold.agents.journal.self_replay import states
from refold.agents.recordings.hashes import StateAfterStep, at_hash
from refold.avro.errors import InputError
from refold.explorer.cli.options import as_json, on_log
from refold.explorer.cli.output.screen import Screen, counted
from refold.explorer.cli.runs.lines import Lines, head_of
from refold.explorer.queries.log_target import LogTarget

WHATS = {"step": "the chain after this step", "run": "the whole run", "state": "the state after this step"}


@click.command()
@click.argument("hash_", metavar="HASH")
@click.option("--state", "only_state", is_flag=True, help="Print only the run's state there, as JSON.")
@click.option(
    "--messages", "only_messages", is_flag=True,
    help="Print only the request that continues the conversation from there, as JSON.",
)  # fmt: skip
@as_json
@on_log
def checkout(target: LogTarget, hash_: str, only_state: bool, only_messages: bool, as_json: bool) -> int:
    """Open a run at a hash: its state there, and how to continue.

    Every step has a hash, which covers all requests, answers, decisions and changes in it and in the steps before it.
    HASH is the hash of a step, of a whole run, or of a state; its beginning is enough.

    With --messages it opens a turn of a captured run: the model, its tools and settings, and the messages including the
    reply, in the provider's format. Add the next message, and send it. A reply that calls tools needs their results
    first.

    \b
    Examples
      refold checkout a7b6f7a73238
      refold checkout a7b6f7a73238 --state
      refold checkout a7b6f7a73238 --messages > next.json
    """
    screen = Screen()
    with target.read() as log:
        stood = at_hash(log, log.vault, hash_)
        run = log.recording(stood.run)
    state: Plain = next(islice(states(run), stood.step, None))
    if only_state:
        screen.json(state)
    elif only_messages:
        screen.json(_continuing_request(stood, run, state))
    elif as_json:
        screen.json(_json(stood, run, state))
    else:
        _show(screen, stood, run, state)
    return 0


def _json(stood: StateAfterStep, run: Recording, state: Plain) -> dict[str, Any]:
    step = run.steps[stood.step - 1] if stood.step else None
    return {
        "run": stood.run,
        "step": stood.step,
        "name": None if step is None else step.name,
        "what": stood.what,
        "hash": stood.hash,
        "state_hash": None if step is None else step.state_after or None,
        "state": state,
        "others": stood.others,
    }


def _continuing_request(stood: StateAfterStep, run: Recording, state: Plain) -> dict[str, Any]:
    """Return the last request before this point, with the conversation as it was after its reply.

    Raises:
        InputError: There is no turn of a captured conversation.
    """
    requests = (
        call.asked.request for step in reversed(run.steps[: stood.step]) for call in step.calls
        if call.asked.kind == "model" and is_exchange(call.asked.request)
    )  # fmt: skip
    messages = state.get("messages") if isinstance(state, dict) else None
    found = next((each for each in requests if turn_of(each) is not None), None)
    body = None if found is None or not isinstance(messages, list) else going_on(found, messages)
    if body is None:
        raise InputError(f"run {run.run} has no turn of a captured conversation there: --state prints its state")
    return body


def _show(screen: Screen, stood: StateAfterStep, run: Recording, state: Plain) -> None:
    screen.say(f"run {run.run} of {run.agent}, after step {stood.step} of {len(run.steps)}", "bold")
    if stood.step:
        screen.say(f"  {head_of(run.steps[stood.step - 1])}")
    screen.say(f"  hash    {stood.hash}  ({WHATS[stood.what]})")
    if stood.others:
        screen.say(f"  also    {counted(stood.others, 'other place')} in this log with this hash and the same content")
    lines = Lines()
    whole = not isinstance(state, dict) or not state
    screen.say(f"  state   {lines.value(state)}" if whole else "  state")
    for name, value in () if whole else state.items():
        screen.say(f"    {name} = {lines.value(value)}")
    if not run.has_code:
        return
    screen.say()
    screen.say("to continue from here with something changed:")
    screen.say(f"  refold run fork {run.run} --at {stood.step} --set NAME=VALUE")
