"""Replay one commit's agent against a recording, in a separate process:

    python -P -m refold.agents.bisect.probe RECORDING ENTRY REDACTOR FOLDER ANSWER [TRACE]

FOLDER is the commit's folder; imports search it first (and FOLDER/src). refold itself is imported as in this process.
ANSWER is the file for the result, because the agent may print anything. With TRACE, the process is confined before any
of the commit's code is imported: the kernel lets it write only in ANSWER's folder, and TRACE is the file for the reason
why the kernel ended the process (agents/confined/kernel.py).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Literal

import msgspec

from refold.agents.compare.compare import compare
from refold.agents.compare.divergence import Divergence, divergence_json
from refold.agents.compare.render import describe
from refold.agents.confined.kernel import NotConfined, confine
from refold.agents.entry import Agent, recorded_agent_of
from refold.agents.journal.record import Plain, Recording
from refold.agents.recorder.answers import Departure
from refold.agents.redaction.redactor import for_run
from refold.agents.redaction.tokens import kept_key
from refold.agents.replay.run import replayed
from refold.agents.replay.unrecorded import Unrecorded


class BisectResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result.

    Attributes:
        lines: The result in lines for people.
        step: The step where it differs; None if it differs only at the end or not at all.
        status: `same` if the code did what was recorded, `parted` if it did not, `unusable` if this commit cannot be
            judged.
        refused: Why the process could not be confined; then no code was run.
    """

    status: Literal["same", "parted", "unusable"]
    lines: tuple[str, ...] = ()
    step: int | None = None
    divergence: Plain = None
    refused: str = ""


def probe(recording: Recording, entry: str, folder: Path, redactor: str = "", *, confined_to: str = "") -> BisectResult:
    """Replay the agent of a commit.

    Args:
        recording: The recording, with the values of its reads.
        entry: The agent, as module:function.
        folder: The commit's folder, from which the agent is imported.
        redactor: The function that the recording used, as module:function; empty if it used none.
        confined_to: If the kernel confines this process, the only folder in which it may write files; else empty.

    Returns:
        The result. Errors of the commit's code are part of it; they are not raised.
    """
    try:
        agent = _load_agent(entry, folder, "agent")
        redact = for_run(_load_agent(redactor, folder, "redactor"), _redaction_key) if redactor else None
    except Exception as error:  # a half-finished commit may raise anything when it is imported
        return BisectResult(status="unusable", lines=(f"{type(error).__name__}: {error}",))
    try:
        done = replayed(agent, recording, redact=redact, confined_to=confined_to)
    except Departure as departure:
        return _departure_result(recording, departure)
    if done.is_same:
        return BisectResult(status="same")
    found = compare(recording, done.now, exact=True)
    if found is None:
        lines = str(done.parting).splitlines() if done.parting is not None else map(str, done.escapes)
        return BisectResult(status="parted", lines=tuple(lines))
    return _divergence_result(found)


def _departure_result(recording: Recording, departure: Departure) -> BisectResult:
    """Return the result for code that made an unrecorded request or a forbidden operation.

    The code may have differed from the recording before that; then that earlier difference is the result.
    """
    last = departure.left_in
    if departure.so_far is not None:
        steps = (*departure.so_far.steps, *([last] if last is not None else []))
        found = compare(recording, msgspec.structs.replace(departure.so_far, steps=steps), exact=True)
        is_before = last is not None and found is not None and found.step is not None and found.step < last.number
        if found is not None and is_before:
            return _divergence_result(found)
        if found is not None and isinstance(departure, Unrecorded):  # the end of the step is not known
            return _divergence_result(_first_alone(found))
    step = None if last is None else last.number
    return BisectResult(status="parted", lines=tuple(str(departure).splitlines()), step=step)


def _first_alone(found: Divergence) -> Divergence:
    """Return the difference without further ones, there and in the nested run in which they differ."""
    within = None if found.within is None else _first_alone(found.within)
    return msgspec.structs.replace(found, also=(), later=(), within=within)


def _divergence_result(found: Divergence) -> BisectResult:
    return BisectResult(
        status="parted", lines=tuple(describe(found, is_short=True)), step=found.step, divergence=divergence_json(found)
    )


def _load_agent(entry: str, folder: Path, what: str) -> Agent:
    sources = folder / "src"
    if sources.is_dir():
        sys.path.insert(0, str(sources))
    found = recorded_agent_of(entry, folder, what)
    place = _place(sys.modules.get(entry.rpartition(":")[0]))
    if place is not None and folder.resolve() not in place.parents:
        raise ImportError(f"{entry} was imported from {place}, not from this commit")
    return found


def _redaction_key() -> bytes:
    """Return the log's key, which the starter of this process passed: tokens must equal the recorded ones."""
    return kept_key(None, os.environ)


def _place(module: ModuleType | None) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file).resolve() if file else None


def main() -> None:
    """Read the recording, replay and write the result; see the module."""
    recording, entry, redactor, folder, answer, *trace = sys.argv[1:]
    run = msgspec.json.decode(Path(recording).read_bytes(), type=Recording)
    confined_to = str(Path(answer).parent) if trace else ""
    try:
        if trace:
            descriptor = os.open(trace[0], os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            confine(descriptor, confined_to, [*sys.path, folder, confined_to])
    except NotConfined as error:
        found = BisectResult(status="unusable", refused=str(error))
    else:
        found = probe(run, entry, Path(folder), redactor, confined_to=confined_to)
    Path(answer).write_bytes(msgspec.json.encode(found))
    if trace:  # the interpreter's shutdown could do something that the kernel denies
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


if __name__ == "__main__":
    main()
