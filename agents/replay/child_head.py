"""The head of a child of a run: everything of its parent, but for the changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from refold.agents.journal.record import Plain, Recording
from refold.agents.journal.self_replay import state_at
from refold.agents.redaction.redactor import Redact, RunRedactor, is_redacting
from refold.agents.redaction.walk import redacted_edits
from refold.agents.replay.patch import patch_of
from refold.avro.errors import InputError


class ForkChanges(NamedTuple):
    """The changes of a fork; see AgentLog.fork."""

    state: Mapping[str, Any] | Callable[[Any], Any] | None
    drop: Sequence[str]
    input: Any
    results: Mapping[str, Any] | None
    arguments: Mapping[str, Mapping[str, Any]] | None


def child_head(
    parent: Recording, at: int, changes: ForkChanges, redact: Redact | None, redacting: RunRedactor, run: str,
    started_at: int, version: str | None, code_version: str | None, tags: Iterable[str],
) -> Recording:  # fmt: skip
    """Return the head of a child.

    Args:
        parent: The parent.
        at: The number of the parent's step after which the child diverges; 0: before the first.
        changes: What is changed.
        redact: The redactor that was given.
        redacting: The child's redactor, made of it.
        run: The child's id.
        started_at: When it begins, microseconds.
        version: The agent's version; None: the parent's.
        code_version: The version of the agent's code; None: the parent's.
        tags: The child's tags.

    Raises:
        InputError: The parent has no code, or is redacted and no redactor is given; a change does not fit its state.
    """
    if not parent.has_code:
        raise InputError(f"run {parent.run} was imported: there is no code for a fork to run")
    require_redactor(parent, redact)
    changed = patch_of(state_at(parent, at), **changes._asdict())
    return replace(
        parent, run=run, kind="fork", task="", parent=parent.run, forked_at=at,
        patch=_redact_patch(changed.tree, redacting), forks=tuple(each for each in parent.parted if each.at <= at),
        version=parent.version if version is None else version,
        code_version=parent.code_version if code_version is None else code_version, tags=tuple(tags),
        started_at=started_at, ended_at=0, steps=(), status="running", outcome="", output=None, failure=None, hash="",
        flagged=False, pinned=False, retention_class="", redacted=is_redacting(redact), caller="", caller_step=0,
        children={},
    )  # fmt: skip


def require_redactor(recording: Recording, redact: Redact | None) -> None:
    """Refuse to continue a redacted run in clear, unless the caller requests it explicitly.

    Raises:
        InputError: The run was redacted, and no redactor is given.
    """
    if recording.redacted and redact is None:
        raise InputError(
            f"run {recording.run} was recorded through a redactor, and its continuation would be written in clear: "
            "give its redactor with redact= (--redact, or --redact module:function); to write in "
            "clear all the same, give refold.agents.redaction.redactor:unredacted"
        )


def _redact_patch(patch: Plain, redact: RunRedactor) -> Plain:
    """Return a fork's patch as it is recorded. The paths of its edits contain names, so they are redacted too."""
    shown = redact.shown(patch)
    return {**shown, "state": redacted_edits(patch["state"], redact.shown)} if "state" in patch else shown
