"""One session that was recorded several times: its records become one run.

A session may be recorded by its own code (`log.run`), as it crosses a proxy (agents/capture), and from the transcript
that its agent wrote (agents/importers). Each record is stored whole, in whatever order they arrive. Links tell which
turns and runs are the same. They lead from a transcript to the captured run, and from there to the run of the code:

    step/T#4  turn  turn/KEY     step 4 of the transcript T is the turn KEY; turn/KEY names the steps that recorded it
    step/T#4  same  step/R#3     it is the same turn as step 3 of the captured run R
    run/T     same  run/R        every turn of T is in R, or in another run that its steps are the same as
    run/R     also  run/T        the reverse

A run, a step or a conversation with a link `same` is not listed, searched or counted: its turns are those of the other
record. A transcript with turns that no proxy saw has no such link, and only these turns of it are searched and counted.

1. A captured turn is noted in turn/KEY when it is recorded. A turn of a transcript is noted after its import.
2. A captured turn that a recorder of the agent's own code sent names its step in a header (capture/step_header.py): its
   link is recorded with it, and needs no key.
3. `unite` looks up the turns of a run, and links the steps. It is called when a captured run ends and when a transcript
   was imported. Both first make durable what they note, so whichever is later finds the other.
4. If every turn of a run has a link, the run gets one. What only the transcript knows is added to the captured runs:
   which call began a sub-agent's run.

A key is a hash of the provider's ids (importers/turn_keys.py). If several captured steps have the same key, as with a
stand-in for a model that repeats its ids, none of them is linked.

Crash points. Each link is looked up before it is recorded, and none depends on another process. A transcript's step is
linked to its turn before turn/KEY names it. If the process is killed between two links, the next `unite` of either
record completes them: a capture that is resumed, or a repeated import.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from refold.agents.importers.turn_keys import TranscriptTurns
from refold.agents.recordings.fields import Fields, links_of
from refold.agents.recordings.load import BEGAN, own_steps, step_count
from refold.agents.vault import ValueCipher
from refold.streams.client import Log
from refold.streams.cut import Cut
from refold.streams.view import EntityView

TURN, SAME, ALSO = "turn", "same", "also"
_CALLS_MAX = 64
"""At most so many calls of a step are searched for the one that began a run."""


class OtherRecords(NamedTuple):
    """The runs that record the same session.

    Attributes:
        same: The fuller record; "" without one.
        also: The other runs.
    """

    same: str
    also: list[str]


def other_records(log: Log, run: str, cut: Cut) -> OtherRecords:
    """Return the other records of a run's session, as they are linked at a cut."""
    view = log.states([f"run/{run}"], cut)[f"run/{run}"]
    same, also = ([each.removeprefix("run/") for each in links_of(view, relation)] for relation in (SAME, ALSO))
    return OtherRecords("".join(same[:1]), also)


def unite_transcripts(log: Log, transcripts: Sequence[TranscriptTurns], vault: ValueCipher) -> None:
    """Note the turns of imported transcripts, and link them. Their observations must be durable. Durable on return.

    Args:
        log: The log.
        transcripts: The transcripts, a parent before its children.
        vault: Decrypts contents.
    """
    for each in transcripts:
        _note(log, each)
    log.flush()
    for each in transcripts:
        unite(log, each.keys.values(), vault)


def unite(log: Log, keys: Iterable[str], vault: ValueCipher) -> None:
    """Link the transcripts' steps of some turns, and the runs whose steps all have a link. Durable on return.

    Args:
        log: The log.
        keys: Of the turns; empty ones are skipped.
        vault: Decrypts contents.
    """
    turns = log.states(f"turn/{each}" for each in dict.fromkeys(keys) if each)
    same = {
        step: captured[0] for view in turns.values() if len(captured := view.fields.get("captured", ())) == 1
        for step in view.fields.get("transcribed", ())
    }  # fmt: skip
    if not same:
        return
    there = log.states({f"step/{each}" for each in [*same, *same.values()]})
    for step, target in same.items():
        if {f"step/{step}", f"step/{target}"} <= there.keys() and not links_of(there[f"step/{step}"], SAME):
            log.link(f"step/{step}", SAME, f"step/{target}")
    log.flush()
    for run in dict.fromkeys(step.rpartition("#")[0] for step in same):
        unite_run(log, run, vault)


def unite_run(log: Log, run: str, vault: ValueCipher) -> None:
    """Link a run if every turn of it has a link, and end its link if it has gone on without. Durable on return.

    Args:
        log: The log.
        run: The run's id.
        vault: Decrypts contents.
    """
    entity = f"run/{run}"
    found = log.states([entity]).get(entity)
    if found is None:
        return
    fields = Fields(found, vault)
    steps = own_steps(log.states, [(run, fields.plain("forked_at_step", 0), step_count(fields))])[run]
    if fields.plain("imported_from"):
        steps = [each for each in steps if links_of(each, TURN)]
    targets = [next(iter(links_of(each, SAME)), "") for each in steps]
    is_whole, linked = bool(targets) and all(targets), links_of(found, SAME)
    if is_whole == bool(linked):
        return
    target = f"run/{_run_of(targets[0])}" if is_whole else linked[0]
    session = f"agent_session/{fields.plain('session', run)}"
    change = log.link if is_whole else log.unlink
    if is_whole:
        _nest(log, found, target)
    change(target, ALSO, entity)
    for each in log.states([session]):
        change(each, SAME, target)
    change(entity, SAME, target)  # the last: it says that the rest is done
    log.flush()


def _note(log: Log, transcript: TranscriptTurns) -> None:
    """Name the steps of a transcript in their turns, and link them to these."""
    names = {f"turn/{key}": f"{transcript.run}#{number}" for number, key in transcript.keys.items() if key}
    noted = log.states(names)
    for name, step in names.items():
        if name not in noted or step not in noted[name].fields.get("transcribed", ()):
            log.link(f"step/{step}", TURN, name)
            log.observe(name, {"transcribed": [step]})
    run = f"run/{transcript.run}"
    for action, view in log.states([transcript.caller] if transcript.caller else []).items():
        if run not in links_of(view, BEGAN):
            log.link(action, BEGAN, run)


def _nest(log: Log, transcript: EntityView, target: str) -> None:
    """Nest a sub-agent's captured run in the run whose call began it, if only its transcript says so.

    Args:
        log: The log.
        transcript: The run of the sub-agent's transcript.
        target: The entity of its captured run.
    """
    callers = log.states(each for each in links_of(transcript, "of") if each.startswith("step/"))
    nested = log.states([target]).get(target)
    if nested is None or nested.fields.get("caller_run"):
        return
    for name, step in callers.items():
        begun = _began(log, name, transcript.entity)
        for captured in links_of(step, SAME):
            action = f"action/{captured.removeprefix('step/')}.{begun}"
            run, _, number = captured.removeprefix("step/").rpartition("#")
            for view in log.states([action] if begun and target != f"run/{run}" else []).values():
                if target not in links_of(view, BEGAN):
                    log.link(action, BEGAN, target)
                log.observe(target, {"caller_run": run, "caller_step": int(number)})


def _began(log: Log, step: str, run: str) -> int:
    """Return the position of the call of a step that began a run; 0 if that is not known."""
    names = [f"action/{step.removeprefix('step/')}.{k}" for k in range(1, _CALLS_MAX + 1)]
    found = log.states(names)
    return next((k for k, name in enumerate(names, 1) if name in found and run in links_of(found[name], BEGAN)), 0)


def _run_of(step: str) -> str:
    return step.removeprefix("step/").rpartition("#")[0]
