"""The inputs of the other published vectors: JSON values, states, order keys, record keys, tables and cuts."""

from __future__ import annotations

import hashlib
import random
import struct
from decimal import Decimal
from typing import Any

from refold.streams.cut import Cut
from refold_tests.vector_inputs import BEGIN, BLOB, ID_A, ID_B, SEALED


def _doubles(count: int) -> list[float]:
    """Return finite doubles of all magnitudes, always the same ones."""
    source = random.Random(1)
    drawn = (struct.unpack(">d", source.randbytes(8))[0] for _ in range(count * 2))
    return [value for value in drawn if abs(value) < float("inf")][:count]


JSON_VALUES: list[Any] = [
    *(None, True, False, "", [], {}, [[]], {"": {}}),
    *(0, -0.0, 1.0, -1, 255.0, 2**53, 2**53 + 1, 2**63, 2**64 - 1, -(2**63)),
    *(0.1, 0.5, -0.5, 1 / 3, 100.25, 1e-6, 1e-7, 1.5e-6, 1.5e-7, 123e-20, 5e-324, 2.2250738585072014e-308),
    *(2.0**64, -(2.0**63) - 2048, 1.2345678901234567e20, 1e20, 999999999999999900000.0, 1e21, 1.5e21, 1e22, 1e300),
    *(1.7976931348623157e308, 4.35, 0.000001, 9007199254740993.5, 0.1 + 0.2, 333333333.3333333, 4.5e15 + 0.5),
    *_doubles(40),
    '\u0000\u0001\b\t\n\u000b\f\r\u001f "\\/\u007f\u0080\u2028\u2029\ufeff\U0001f680',
    "e\u0301 caf\u00e9",
    {"b": 1, "a": 2, "aa": 3, "B": 4, "1": 5, "10": 6, "2": 7},
    {"\ufb33": "by code point, not by UTF-16 unit", "\U0001f600": 1, "\u20ac": 2, "\u00f6": 3, "\r": 4},
    {"__proto__": 1, "constructor": [], "z": {"y": {"x": [None, True, "1", 1.5]}}},
    [1, [2, [3, [4.5]]], {"k": [{"k": []}]}],
]

JSON_REFUSED: list[tuple[str, Any]] = [
    ("NaN", float("nan")),
    ("infinity", float("inf")),
    ("minus infinity, inside", {"a": [float("-inf")]}),
    ("an integer past 2^64 that no double holds", 2**64 + 1),
    ("an integer below -2^63 that no double holds", [-(2**63) - 1]),
    ("bytes", b"x"),
]


def _entry(second: int, agent: str = "a", **given: Any) -> dict[str, Any]:
    """Return an observation of specimen/s, `second` seconds after BEGIN."""
    source = {"agent": agent, "run": "r", "seq": second}
    return {"entity": "specimen/s", "observed_at": BEGIN + second * 1_000_000, "source": source, **given}


STATES: list[dict[str, Any]] = [
    {"name": "one field", "given": [_entry(0, patch={"flag": True})]},
    {
        "name": "every reducer",
        "given": [
            _entry(0, patch={"flag": True, "small": 3, "whole": 5, "single": 0.1, "digest": b"abcd", "tags": ["b", "a"],
                            "log": ["1", "2"], "labels": {"x": "1", "y": "2"}, "hits": "p"}),
            _entry(2, patch={"flag": False, "small": 2, "whole": 2**62, "single": -1.5, "digest": b"efgh",
                            "tags": ["c", "a"], "log": ["3", BLOB], "labels": {"x": None, "z": "3"}, "hits": "q"}),
            _entry(1, "b", priority=1, patch={"flag": True, "small": 9, "whole": -7, "labels": {"y": "4"}}),
            _entry(3, patch={"whole": 2**62, "title": "T", "money": Decimal("1.50"), "json": {"b": 1, "a": [0.5]}}),
        ],
    },
    {
        "name": "clears",
        "given": [
            _entry(0, priority=5, patch={"flag": True, "whole": 1, "hits": "x", "labels": {"k": "v"}}),
            _entry(1, cleared=["flag", "whole", "hits", "labels"]),
            _entry(2, patch={"whole": 2}),
        ],
    },
    {
        "name": "links",
        "given": [
            _entry(0, kind="link", link={"relation": "uses", "target": "tool_config/acme", "valid_from": 0}),
            _entry(1, kind="link", link={"relation": "b", "target": "x/1"}),
            _entry(2, kind="link", link={"relation": "uses", "target": "tool_config/acme", "valid_to": BEGIN}),
            _entry(3, kind="unlink", link={"relation": "b", "target": "x/1"}),
        ],
    },
    {"name": "nothing left", "given": [_entry(0, patch={"flag": True}), _entry(1, cleared=["flag"])]},
    {"name": "a retraction of what is not there", "given": [_entry(0, retracts=[ID_A])]},
    {
        "name": "values of every kind",
        "given": [
            _entry(0, patch={"point": {"x": 1, "label": "l", "inner": {"a": 1}}, "text": "caf\u00e9", "raw": b"\0\xff",
                            "colour": "BLUE", "moment": BEGIN, "day": 19_675, "number": 1e300, "list": [2, 1],
                            "settings": SEALED, "token": "00112233-4455-6677-8899-aabbccddeeff"}),
        ],
    },
]  # fmt: skip

ORDERS: list[tuple[int, str, str, int, bytes]] = [
    (-62_135_596_800_000_000, "z", "z", 9, ID_B),
    (-1, "z", "z", 9, ID_B),
    (0, "", "", 0, ID_B),
    (BEGIN, "", "b", 0, ID_A),
    (BEGIN, "a", "", 5, ID_A),
    (BEGIN, "a", " ", 0, ID_A),
    (BEGIN, "a", "b", 0, ID_A),
    (BEGIN, "a", "b", 1, ID_B),
    (BEGIN, "a", "b", 1, ID_A),
    (BEGIN, "a", "b", 2**63 - 1, ID_A),
    (BEGIN, "a!", "", 0, ID_A),
    (BEGIN, "ab", "", 0, ID_A),
    (BEGIN, "\ufb33", "", 0, ID_A),
    (BEGIN, "\U0001f600", "", 0, ID_A),
    (253_402_300_799_999_999, "", "", 0, ID_A),
]  # fmt: skip

KEYS = [
    *("21", "foobar", "a-little-bit-long-string", "a-little-bit-longer-string", "abc"),
    "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8",
    *("tool_config/acme", "agent_session/s-17", "document/a", "document/caf\u00e9", "document/\U0001f680", "run/1"),
]

STATE_HASHES = [hashlib.sha256(b"state %d" % number).digest() for number in range(200)]


SHARED = ("document/578", "document/2973", "document/4062")
"""Three keys with the same slot and bucket."""

TABLES: list[tuple[str, dict[str, bytes]]] = [
    ("no entity", {}),
    ("one entity", {"tool_config/acme": STATE_HASHES[0]}),
    ("three in one bucket, and another", dict(zip((*SHARED, "run/1"), STATE_HASHES, strict=False))),
    ("two hundred", {f"document/{number}": STATE_HASHES[number] for number in range(200)}),
]

LOG_ID = bytes(range(16))
CUTS = [
    ("beginning", Cut(LOG_ID, {0: 0}, 0, ID_A)),
    ("one partition", Cut(LOG_ID, {0: 41}, 3, ID_A)),
    ("eight partitions", Cut(LOG_ID, {number: number * 1000 for number in range(8)}, 12, ID_B)),
    ("thirty-two partitions", Cut(LOG_ID, {number: 2**number for number in range(32)}, 12, ID_B)),
    ("observed until", Cut(LOG_ID, {0: 41, 1: 17}, 3, ID_A, BEGIN)),
    ("observed until before 1970", Cut(LOG_ID, {0: 41, 1: 17}, 3, ID_A, -1)),
]
