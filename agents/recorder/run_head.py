"""The head of a run: its arguments, as they are recorded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from refold.agents.journal.record import Recording
from refold.agents.recorder.plain import decoded, kept


def head_of(
    run: str, agent: str, *, version: str = "", code_version: str = "", kind: str = "", task: str = "",
    title: str = "", user: str = "", seed: int | None = None, input: Any = None,
    state: Mapping[str, Any] | None = None, tags: Iterable[str] = (), metadata: Mapping[str, Any] | None = None,
) -> Recording:  # fmt: skip
    """Return the recording of a run that has done nothing yet.

    Raises:
        InputError: The input, the state or the metadata cannot be recorded.
    """
    return Recording(
        run=run, agent=agent, version=version, code_version=code_version, kind=kind, task=task, title=title,
        user=user, seed=seed, input=decoded(kept(input, "the run's input")),
        state=decoded(kept(dict(state or {}), "the run's state")), tags=tuple(tags),
        metadata=decoded(kept(dict(metadata or {}), "the run's metadata")),
    )  # fmt: skip
