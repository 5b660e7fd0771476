"""Conflicts of one entity, computed from the whole set of observations.

Of the live assertions with the winning priority, each agent's last one in Q is compared. An agent is
`source.agent`, whatever the run; the winner's own agent is included (under `first` it may contradict itself).
An assertion loses if its value differs from the winner's (null values of map keys included) and no live
assertion of the same field with a greater Q names its id in `causes`. That assertion may have any priority
and, in a map, any key.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from refold_tests.reference_cbor import encode
from refold_tests.reference_fold import (
    Assertion,
    Definition,
    Log,
    distinct,
    first_of,
    latest_of,
    live_assertions,
)

LISTED_MAX = 8


def reference_conflicts(definition: Definition, entity: str, log: Log) -> tuple[list[dict[str, Any]], int]:
    """Return the losers of the entity and their number: {field, key (of a map only), agent, observation,
    value}.

    At most 8 for the whole entity are listed, in the order of field name, key (both as UTF-8) and Q.
    """
    seen = distinct(entity, log)
    losers: list[dict[str, Any]] = []
    for field in sorted(definition, key=lambda name: name.encode("utf-8")):
        reducer = definition[field].reducer
        live = live_assertions(seen, field)
        if not live:
            continue
        if reducer in ("latest", "first"):
            winner = latest_of(live) if reducer == "latest" else first_of(live)
            values = {one.id: one.value for one in live}
            losers += ({"field": field, **loser} for loser in _losers(winner, values, live))
        elif reducer == "map":
            for key in sorted({key for one in live for key in one.value}, key=lambda key: key.encode("utf-8")):
                values = {one.id: one.value[key] for one in live if key in one.value}
                winner = latest_of([one for one in live if one.id in values])
                losers += ({"field": field, "key": key, **loser} for loser in _losers(winner, values, live))
    return losers[:LISTED_MAX], len(losers)


def _losers(winner: Assertion, values: dict[bytes, Any], live: list[Assertion]) -> Iterator[dict[str, Any]]:
    """Yield the assertions that lose against `winner`. `values`: the value of each contender; `live`: all live
    assertions of the field in Q order.
    """
    contenders = [one for one in live if one.id in values and one.priority == winner.priority]
    last_of_agent = {one.source.agent: one for one in contenders}
    for one in sorted(last_of_agent.values(), key=lambda one: one.order):
        differs = encode(values[one.id]) != encode(values[winner.id])
        settled = any(one.id in later.causes for later in live if later.order > one.order)
        if differs and not settled:
            yield {"agent": one.source.agent, "observation": one.id, "value": values[one.id]}
