"""The tool calls that hooks record, and how they are united with those of a session's transcript.

    action/<run>#<call id>          a call as hooks.py records it, where <run> is the run of its session
    action/<run>#<step>.<k>         the same call as the transcript has it: with its place in the run, from its message

A hook knows when a call began and ended, its effect, and what a policy decided. It does not know the call's step: that
depends on all messages before it. So each is stored whole, in whatever order they arrive. When the transcript is
recorded, its action gets the effect, the duration and the tags of the hook's. Then the hook's action is linked `same`
to it. The run has only the transcript's: no call is counted twice.

If the process is killed in between, the next recording of the session completes the links.
"""

from __future__ import annotations

from collections.abc import Iterable

from refold.agents.adapters.quoting import quoted
from refold.agents.importers import claude_code
from refold.agents.importers.file import run_id
from refold.agents.importers.turn_keys import TranscriptTurns
from refold.agents.recordings.fields import links_of
from refold.agents.recordings.same_turns import SAME
from refold.avro.envelope import check_entity
from refold.streams.client import Log

ADDED = ("effect", "duration_ms", "tags")
"""The fields of a call that only a hook knows."""


def run_of_session(session: str) -> str:
    """Return the id of the run of a session, the same as its transcript's import gives."""
    return run_id({claude_code.FORMAT: session})


def call_entity(run: str, call: str) -> str:
    """Return the entity of a call that a hook records.

    Args:
        run: The run of the session.
        call: The call's id, from the model's provider.

    Raises:
        ValidationError: The id is too long.
    """
    return check_entity(f"action/{run}#{quoted(call)}")


def unite_calls(log: Log, run: str, transcripts: Iterable[TranscriptTurns]) -> None:
    """Link the calls that hooks recorded to those of transcripts, which must be durable. Durable on return.

    Args:
        log: The log.
        run: The run of the session.
        transcripts: The transcripts of the session and of its subagents.
    """
    targets = {call_entity(run, call): action for each in transcripts for call, action in each.calls.items()}
    hooked = {name: view for name, view in log.states(targets).items() if not links_of(view, SAME)}
    there = log.states(targets[name] for name in hooked)
    for name, view in hooked.items():
        target = targets[name]
        if target in there and "status" in there[target].fields and there[target].fields["status"] != "pending":
            added = {field: view.fields[field] for field in ADDED if field in view.fields}
            if added:
                log.observe(target, added)
            log.link(name, SAME, target)
    log.flush()
