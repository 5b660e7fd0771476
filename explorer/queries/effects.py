"""Side effects of write tools, certain or possible: the answer of `refold effects list`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from refold.agents.effects.errors import ResultNotKept
from refold.agents.effects.ledger import Ledger
from refold.agents.effects.listing import Effect
from refold.agents.log import AgentLog
from refold.avro.errors import NotAnswerable
from refold.explorer.queries.query import options_of
from refold.explorer.queries.shapes import time_json


@dataclass(frozen=True, slots=True)
class EffectsQuery:
    """Lists what write tools did, or may have done.

    Args:
        status: Only effects with this status; None: any.
        run: Only effects that the run with this id carried out; empty: any.
        tool: Only effects of this tool; empty: any.
        at: The point to answer for, as WHEN; None: now.
    """

    status: str | None = None
    run: str = ""
    tool: str = ""
    at: str | None = None

    @property
    def arguments(self) -> list[str]:
        """The arguments of `refold effects list`."""
        return ["effects", "list", *options_of(asdict(self))]

    def answer(self, log: AgentLog) -> list[dict[str, Any]]:
        """Return each effect, ordered by when it was first intended."""
        ledger = log.effects
        found = ledger.list(status=self.status or "", run=self.run, tool=self.tool, at=self.at)
        return [effect_json(ledger, each) for each in found]


def effect_json(ledger: Ledger, effect: Effect) -> dict[str, Any]:
    """Return one effect in JSON. Times are RFC 3339 UTC; a missing value is null. Keys may be added, never renamed."""
    arguments, why = opened(lambda: ledger.arguments(effect))
    result, no_result = opened(lambda: ledger.result(effect)) if effect.status == "done" else (None, None)
    message, _ = opened(lambda: ledger.message(effect))
    error = {"exception": effect.error.get("exception"), "message": message, "at": time_json(effect.error.get("at"))}
    return {
        "key": effect.key,
        "status": effect.status,
        "tool": effect.tool,
        "run": effect.run,
        "agent": effect.agent or None,
        "step": effect.step or None,
        "attempts": effect.attempts,
        "intended_at": time_json(effect.intended_at),
        "settled_at": time_json(effect.settled_at),
        "lease_until": time_json(effect.until),
        "arguments": arguments,
        "result": result,
        "error": error if effect.error else None,
        "reconciled_by": effect.reconciled_by or None,
        "undo": effect.undo or None,
        "compensates": effect.compensates or None,
        "compensated_by": effect.compensated_by or None,
        "times_done": effect.times_done,
        "unreadable": why or no_result,
    }


def opened(read: Any) -> tuple[Any, str | None]:
    """Call `read`; return its value and None, or None and the reason why it cannot be read."""
    try:
        return read(), None
    except (NotAnswerable, ResultNotKept) as error:
        return None, str(error)
