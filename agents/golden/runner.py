"""Run today's agent against a golden trace.

1. The agent's function runs from the start, with the recording's input, state and seed. No log, tool, model or clock is
   available: requests are answered from the recording, and waits take no time.
2. If `exact` is expected, a request is answered by an equal one of the same attempt of the same step, as in any replay.
   Otherwise the code may have changed, and is answered as in golden/lenient.py.
3. A request without an answer ends the run: a Departure, which the agent's code cannot suppress.
4. An exception of the agent itself is how its run ended, and is judged as that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import msgspec

from refold.agents.entry import Agent, agent_of, recorded_agent_of, require_known
from refold.agents.golden.file import Golden
from refold.agents.golden.lenient import LenientAnswers
from refold.agents.golden.result import CheckResult, judged
from refold.agents.journal.record import Recording
from refold.agents.recorder.answers import Departure
from refold.agents.redaction.redactor import Redact, for_run
from refold.agents.redaction.tokens import fresh_key
from refold.agents.replay.run import Replayed, replayed
from refold.agents.replay.unrecorded import Unrecorded


def exercised(golden: Golden, base: Path, entry: str = "", *, confined: bool = False) -> CheckResult:
    """Run the agent that the file names, or another one, and judge it.

    Args:
        golden: The golden trace.
        base: The folder from which entries are found.
        entry: Another agent than the file names.
        confined: Whether it runs in a process that the kernel confines.

    Raises:
        InputError: There is no such agent or redactor.
        NotConfinable: The kernel refuses.
    """
    named = entry or golden.entry
    if confined:
        return _judge_recording(golden, named, *driven_confined(golden, entry, base))
    if not entry:
        require_known(named, base)
    return judged_run(golden, agent_of(named, base), named, base)


def judged_run(golden: Golden, agent: Agent, name: str, base: Path) -> CheckResult:
    """Run an agent's function, and judge it.

    Args:
        golden: The golden trace.
        agent: The function.
        name: Its name in messages.
        base: The folder from which the redactor is found.
    """
    return _judge_recording(golden, name, *driven(golden, agent, base))


def _judge_recording(golden: Golden, name: str, did: Recording, departure: Departure | None) -> CheckResult:
    return judged(golden, name, did, "" if departure is None else _describe_departure(departure, golden))


def _describe_departure(departure: Departure, golden: Golden) -> str:
    if not isinstance(departure, Unrecorded):
        return str(departure)
    request = departure.asked
    if golden.is_exact:
        advice = "If it is meant to do otherwise, expect what should hold in place of exact"
    elif request.kind in ("tool", "model"):
        advice = (
            f"If it is right to ask this, say what is answered: --answer {request.name}=JSON when the trace is added, "
            "or in `answers` of its file"
        )
    else:
        advice = "If it is right to ask this, record a run with this code, and make that the golden trace"
    return f"{departure.what}\n{advice}"


def driven(golden: Golden, agent: Agent, base: Path) -> tuple[Recording, Departure | None]:
    """Run an agent's function against a golden trace.

    Args:
        golden: The trace.
        agent: The function.
        base: The folder from which a redactor is found.

    Returns:
        What it did, and its first unanswered request, if any.
    """
    redact = for_run(recorded_agent_of(golden.redact, base, "redactor"), fresh_key) if golden.redact else None
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _driven(golden, agent, redact)
    with ThreadPoolExecutor(1) as executor:  # this thread already runs a loop, and a coroutine needs its own
        return executor.submit(_driven, golden, agent, redact).result()


def driven_confined(golden: Golden, entry: str, base: Path) -> tuple[Recording, Departure | None]:
    """As `driven`, in a process that the kernel confines.

    Args:
        golden: The golden trace.
        entry: Another agent than the file names.
        base: The folder from which entries are found.

    Raises:
        NotConfinable: The kernel refuses.
    """
    if not entry:
        require_known(golden.entry, base)
    return _run_to_end(golden, partial(_replay_confined, golden, entry or golden.entry, base))


def _driven(golden: Golden, agent: Agent, redact: Redact | None) -> tuple[Recording, Departure | None]:
    answers = None if golden.is_exact else LenientAnswers(golden.run, golden.answers)
    return _run_to_end(golden, partial(replayed, agent, golden.run, answers=answers, redact=redact))


def _replay_confined(golden: Golden, entry: str, base: Path) -> Replayed:
    from refold.agents.confined.replay import replayed_confined

    if golden.redact:
        require_known(golden.redact, base, "redactor")
    answers = None if golden.is_exact else {each.name: each.answer for each in golden.answers}
    return replayed_confined(entry, golden.run, redactor=golden.redact, golden=answers, base=base)


def _run_to_end(golden: Golden, replay: Callable[[], Replayed]) -> tuple[Recording, Departure | None]:
    """Return what a replay did, and the departure or escape that ended it, if any."""
    try:
        done = replay()
    except Departure as departure:
        did = departure.so_far or msgspec.structs.replace(golden.run, steps=(), outcome="", output=None, hash="")
        return did, departure
    return done.now, Departure(f"something ran that is not recorded: {done.escapes[0]}") if done.escapes else None
