"""`refold run replay`: today's code against a recorded run, or the recording alone."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from typing import Any

import click

from refold.agents.journal.record import Recording
from refold.agents.log import AgentLog
from refold.agents.recorder.answers import Departure
from refold.agents.replay.edges import counted as counted_edges
from refold.agents.replay.edges import edges
from refold.agents.replay.run import Replayed, Stepped, stepped
from refold.explorer.cli.options import Place, as_json, on_log
from refold.explorer.cli.recorded import known_run, run_argument
from refold.explorer.cli.run_code import agent_for, agent_option, redact_option, redactor_for
from refold.explorer.cli.run_lines import Lines, head_of
from refold.explorer.cli.screen import Screen, counted


@click.command()
@run_argument
@agent_option
@redact_option
@click.option(
    "--times", type=click.IntRange(1), default=1, metavar="N", help="Replay it so often; every hash must be the same."
)
@click.option("--alone", is_flag=True, help="Without any code: step through the recording, and check its hashes.")
@as_json
@on_log
def replay(
    place: Place, run_id: str, entry: str | None, redact: str | None, times: int, alone: bool, as_json: bool
) -> int:
    """Run the agent's code again on what was recorded, and say whether it did the same.

    Every answer of a model or a tool, every time and every random number comes from the recording, and the network is
    closed off: a replay costs nothing and changes nothing. The hash is of what the code did: asked, decided, kept and
    returned. Where it does something else the first step that differs is named, and a request that is not recorded is
    shown beside the nearest one that is.

    A run that was imported has no code: it is stepped through, and its hashes are computed again.

    Exits with 0 where the hashes are equal, and with 1 where they are not.

    \b
    Examples
      refold run replay 8f2c
      refold run replay 8f2c --times 100
      refold run replay 8f2c --agent desk.agents:refund
      refold run replay 8f2c --alone
    """
    screen = Screen()
    with place.read() as log:
        run_id = known_run(log, run_id, log.point().cut)
        recording = log.recording(run_id)
        if alone or not (recording.has_code or entry):
            return _step_through(screen, recording, as_json)
        return _run_again(screen, log, recording, entry, redact, times, as_json)


def _run_again(
    screen: Screen,
    log: AgentLog,
    recording: Recording,
    entry: str | None,
    redact: str | None,
    times: int,
    as_json: bool,
) -> int:
    name, agent = agent_for(log, recording.run, entry)
    redactor = redactor_for(redact)
    hashes: list[str] = []
    result: Replayed | None = None
    departure: Departure | None = None
    for _ in range(times):
        try:
            with redirect_stdout(sys.stderr):
                result = log.replay(recording.run, agent, redact=redactor)
        except Departure as error:
            departure = error
            break
        hashes.append(result.hash)
        if not result.is_same:
            break
    is_same = departure is None and result is not None and result.is_same
    if as_json:
        screen.json(_json(recording, name, hashes, result, departure, is_same))
    else:
        _tell(screen, recording, name, hashes, result, departure)
    return 0 if is_same else 1


def _json(
    recording: Recording, name: str, hashes: list[str], result: Replayed | None, departure: Departure | None,
    is_same: bool,
) -> dict[str, Any]:  # fmt: skip
    parting = None if result is None else result.parting
    return {
        "run": recording.run,
        "agent": name,
        "same": is_same,
        "times": len(hashes),
        "hash": hashes[-1] if hashes else None,
        "recorded_hash": recording.hash or (None if result is None else result.recorded_hash),
        "steps": len(recording.steps) if result is None else len(result.now.steps),
        "edges": counted_edges(edges(recording)),
        "unused": 0 if result is None else len(result.unused),
        "parting": None if parting is None else {
            "step": parting.step, "name": parting.name,
            "differences": [each.line("now", "recorded") for each in parting.differences],
        },
        "departure": None if departure is None else str(departure),
    }  # fmt: skip


def _tell(
    screen: Screen, recording: Recording, name: str, hashes: list[str], result: Replayed | None,
    departure: Departure | None,
) -> None:  # fmt: skip
    steps = len(recording.steps)
    if departure is not None:
        screen.say(f"run {recording.run} cannot be replayed with {name}: it left the recording", "bold")
        for line in str(departure).splitlines():
            screen.say(f"  {line}", "red")
        return
    assert result is not None
    often = f", {counted(len(hashes), 'time')}" if len(hashes) > 1 else ""
    screen.say(f"replayed run {recording.run} with {name}: {counted(steps, 'step')}{often}", "bold")
    screen.say(f"  recorded  {result.recorded_hash}")
    verdict = "equal: the code did the same" if result.is_same else "another: the code did something else"
    screen.say(f"  replayed  {result.hash}  {verdict}", "green" if result.is_same else "red")
    screen.say(f"  edges     {_edges(recording)}")
    parting = result.parting
    if parting is not None:
        for line in f"first differs at {parting}".splitlines():
            screen.say(f"  {line}")
        if result.unused:
            screen.say(f"  {counted(len(result.unused), 'recorded call')} it did not make")


def _step_through(screen: Screen, recording: Recording, as_json: bool) -> int:
    every = list(stepped(recording))
    is_whole = all(each.is_whole for each in every)
    if as_json:
        screen.json({
            "run": recording.run, "agent": None, "same": is_whole, "times": 1, "hash": recording.hash or None,
            "recorded_hash": recording.hash or None, "steps": len(every), "edges": counted_edges(edges(recording)),
            "unused": 0, "parting": None, "departure": None,
        })  # fmt: skip
        return 0 if is_whole else 1
    screen.say(f"run {recording.run}, stepped through without code: {counted(len(every), 'step')}", "bold")
    for each in every:
        _tell_step(screen, each)
    screen.say()
    screen.say(f"  edges     {_edges(recording)}")
    verdict = "every hash follows from what stands there" if is_whole else "some steps do not hash to what is recorded"
    screen.say(f"  hash      {recording.hash or '-'}  {verdict}", "green" if is_whole else "red")
    return 0 if is_whole else 1


def _tell_step(screen: Screen, each: Stepped) -> None:
    lines = Lines()
    screen.say()
    screen.say(head_of(each.step), "cyan")
    for edit in each.step.delta:
        screen.say(f"  state     {lines.edit(edit)}")
    if each.step.hash:
        said = "" if each.is_whole else "  which does not follow from what stands there"
        screen.say(f"  hash      {each.step.hash}{said}", "dim" if each.is_whole else "red")


def _edges(recording: Recording) -> str:
    return ", ".join(f"{count} {name}" for name, count in counted_edges(edges(recording)).items())
