"""Changes to bytes, texts and JSON trees, as a careless or hostile writer could make them."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Sequence
from typing import Any

TEXTS = (
    "", " ", "a", "a/b", "tool_config/acme", "run/r", "\ud800", "x\udfffy", "\u0000", "a\nb", "\u202e", "\ufeff",
    "é" * 600,    "x" * 2000, "../../etc", "%00", "%ff", "2026-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z",
    "0001-01-01T00:00:00Z",
    "10000-01-01T00:00:00Z", "2026-02-30T00:00:00Z", "-1", "NaN", "1e999", "null", "[", "{", '"', "\\", "$blob", "${x}",
    "AAAA", "0" * 64, "f" * 64, "g" * 64, "refold.code", ":run", "absent.module:run", "a:b:c", "=", "~", "state[0].a",
)  # fmt: skip
NUMBERS = (
    0, 1, -1, 2**31 - 1, 2**31, -(2**31) - 1, 2**53 + 1, 2**63 - 1, 2**63, -(2**63) - 1, 2**64, 10**20, 10**30, 10**309,
    253402300799999999, 253402300800000000, -62135596800000001, 0.5, -0.0, 1e308, 5e-324,
)  # fmt: skip
RAW = (
    "NaN",
    "Infinity",
    "-Infinity",
    "9" * 5000,
    "1e999",
    "-0",
    "[" * 2000 + "]" * 2000,
    '{"a":' * 300 + "1" + "}" * 300,
)
"""JSON texts that are inserted unchanged in place of a value."""

_HOLE = "\x01raw\x01"


def value(chance: random.Random, depth: int = 0) -> Any:
    """Return any JSON value."""
    kind = chance.randrange(9 if depth < 3 else 6)
    if kind == 0:
        return chance.choice((None, True, False))
    if kind in (1, 2):
        return chance.choice(NUMBERS)
    if kind in (3, 4, 5):
        return chance.choice(TEXTS)
    if kind == 6:
        return [value(chance, depth + 1) for _ in range(chance.randrange(4))]
    if kind == 7:
        return {chance.choice(TEXTS): value(chance, depth + 1) for _ in range(chance.randrange(4))}
    tree: Any = 1
    for _ in range(chance.choice((5, 70, 110, 400))):
        tree = [tree] if chance.random() < 0.5 else {"a": tree}
    return tree


def places(tree: Any, limit: int = 4000) -> list[tuple[Any, Any]]:
    """Return every member of a tree, as its container and key."""
    found: list[tuple[Any, Any]] = []
    waiting = [tree]
    while waiting and len(found) < limit:
        each = waiting.pop()
        keys = list(each) if isinstance(each, dict) else range(len(each)) if isinstance(each, list) else ()
        for key in keys:
            found.append((each, key))
            waiting.append(each[key])
    return found


def mutated(chance: random.Random, tree: Any, donors: Sequence[Any] = ()) -> Any:
    """Return a copy of a tree with one to three changes. donors: trees that parts are taken from."""
    tree = copy.deepcopy(tree)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        found = places(tree)
        if not found:
            return value(chance)
        holder, key = chance.choice(found)
        what = chance.randrange(10)
        if what < 4:
            holder[key] = value(chance)
        elif what == 4 and isinstance(holder, dict):
            del holder[key]
        elif what == 5 and isinstance(holder, dict):
            holder[chance.choice(TEXTS)] = holder[key] if chance.random() < 0.3 else holder.pop(key)
        elif what == 6:
            other, name = chance.choice(places(chance.choice(donors)) if donors else found)
            holder[key] = copy.deepcopy(other[name])
        elif what == 7:
            holder[key] = _HOLE
        elif what == 8 and isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[key]))
        else:
            holder[key] = near(chance, holder[key])
    return tree


def near(chance: random.Random, given: Any) -> Any:
    """Return a value similar to the given one."""
    if isinstance(given, bool) or given is None:
        return not given
    if isinstance(given, (int, float)):
        return chance.choice((given + 1, -given, given * 2, str(given), chance.choice(NUMBERS)))
    if isinstance(given, str):
        return text(chance, given)
    if isinstance(given, list):
        return chance.choice((given * 2, given[1:], [given], {"a": given}))
    return [given]


def text(chance: random.Random, given: str) -> str:
    """Return a text with a changed part."""
    at, end = sorted((chance.randint(0, len(given)), chance.randint(0, len(given))))
    piece = chance.choice((*TEXTS, str(chance.choice(NUMBERS)), given, ""))
    return chance.choice((given[:at] + piece + given[end:], given[:at] + piece + given[at:], given[:at], piece))


def written(chance: random.Random, tree: Any) -> bytes:
    """Return a tree as JSON, with lone surrogates escaped, and sometimes with what no JSON library writes."""
    said = json.dumps(tree, ensure_ascii=chance.random() < 0.7)
    hole = json.dumps(_HOLE)
    while hole in said:
        said = said.replace(hole, chance.choice(RAW), 1)
    return said.encode("utf-8", "surrogatepass" if chance.random() < 0.3 else "replace")


def damaged(chance: random.Random, data: bytes) -> bytes:
    """Return bytes with one to four changes: flipped, cut, repeated, or inserted."""
    found = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4))):
        at = chance.randrange(len(found) + 1)
        what = chance.randrange(6)
        if what == 0 and at < len(found):
            found[at] ^= 1 << chance.randrange(8)
        elif what == 1:
            del found[at : at + chance.choice((1, 2, 16, len(found)))]
        elif what == 2:
            found[at:at] = found[at : at + chance.choice((1, 8, 100))]
        elif what == 3:
            found[at:at] = chance.choice((b"\x00", b"\xff" * 9 + b"\x01", b"\x80" * 12, b"\n", b"Obj\x01", b"\x1f\x8b"))
        elif what == 4 and at < len(found):
            found[at] = chance.choice((0, 0x7F, 0x80, 0xFF, 0x22, 0x5B, 0x7B))
        else:
            found[at : at + 8] = chance.randbytes(8)
    return bytes(found)
