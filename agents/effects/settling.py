"""Settling what is unknown, by hand or by a probe.

1. Read what stands. Only a claim that is unknown, or past its lease, is settled: within its lease its holder may still
   be at work, and its word goes before anybody else's.
2. Say `done` of the claim's token, with the result, or `failed`; who says so, and how it was found out.
3. Read again: what the log says now is the answer, also where somebody else settled it at the same time.

`done` is also said of an effect that is done and whose result was not kept, which gives it one; and `failed` of one
that failed, which gives it new attempts.
"""

from __future__ import annotations

from typing import Any

from refold.agents.effects.book import DONE_PRIORITY, Book
from refold.agents.effects.claims import Claim, Standing, run_of
from refold.agents.effects.errors import NotDone
from refold.agents.effects.order import Done, Order
from refold.avro.errors import InputError
from refold.avro.times import time_text


def settle(book: Book, key: str, found: Done | NotDone, now_micros: int, *, by: str, note: str = "") -> Standing:
    """Say what became of an effect; what stands of it then. by: who found out.

    InputError where nothing is open that could be settled.
    """
    standing = book.read(key)
    if isinstance(found, Done) and standing.done is not None and standing.done.result is None:
        token = standing.done.token
    elif isinstance(found, NotDone) and standing.status == "failed" and standing.failed is not None:
        token = standing.failed.token
    else:
        token = require_unknown(key, standing, now_micros).token
    if not by:
        raise InputError(f"effect {key}: say who settles it")
    said: dict[str, Any] = {"claims": {token: "done" if isinstance(found, Done) else "failed"}, "token": token,
                            "reconciled_by": by}  # fmt: skip
    order = Order(key, "", None, run=run_of(token))
    if note:
        said["reconciled_note"] = book.sealed(order, "reconciled_note", book.redacted(order, note))
    if isinstance(found, Done):
        sealed, _ = book.sealed_result(order, found.result)
        said |= {"status": "done", "settled_at": now_micros, "result": sealed, "result_type": "application/json"}
        if found.receipt:
            said["receipt"] = book.sealed(order, "receipt", book.redacted(order, found.receipt))
        book.say(order, said, by=by, priority=DONE_PRIORITY, cleared=standing.disproved)
    else:
        book.say(order, {**said, "status": "failed"}, by=by, cleared=("settled_at",) if standing.is_settled else ())
    return book.read(key, standing)


def require_unknown(key: str, standing: Standing, now_micros: int) -> Claim:
    """The claim whose fate is not known; InputError where there is none."""
    if not standing.status:
        raise InputError(f"effect {key}: nothing is known of it; `refold effects list` shows the keys there are")
    claim = standing.holder
    if claim is None:
        raise InputError(f"effect {key}: it is {standing.status}, so there is nothing to settle")
    if not claim.is_unknown and claim.until > now_micros:
        raise InputError(f"effect {key}: run {claim.run} may still be carrying it out; unless it says what became of "
                         f"it, settle it after {time_text(claim.until)}")  # fmt: skip
    return claim
