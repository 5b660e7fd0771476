"""Requests of OTLP as real emitters wrote them, and damaged ones."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

from refold.agents.adapters.otlp.requests import JSON, PROTOBUF
from refold.agents.adapters.otlp.signals import SIGNALS, Signal
from refold_tests.otlp_requests import OLDER, TODAY, as_protobuf, log_request
from refold_tests.tree import ROOT

SEED = 29
SAMPLES = [ROOT / "tests" / "agents" / "samples" / name for name in
           ("otlp_gen_ai.jsonl", "otlp_openinference.jsonl", "otlp_traceloop.json")]  # fmt: skip


class Body(NamedTuple):
    """A request. data: its body."""

    data: bytes
    content_type: str
    signal: Signal


def whole() -> list[Body]:
    """Return requests of both signals and both encodings, as real emitters wrote them."""
    traces, logs = SIGNALS
    texts = [path.read_text() for path in SAMPLES]
    lines = [line for path, text in zip(SAMPLES, texts, strict=True)
             for line in ([text] if path.suffix == ".json" else text.splitlines())]  # fmt: skip
    found = [Body(line.encode(), JSON, traces) for line in lines if "resourceSpans" in line]
    found += [Body(log_request(*each), JSON, logs) for each in (OLDER, TODAY)]
    return found + [Body(as_protobuf(each.data), PROTOBUF, each.signal) for each in found]


def damaged_bodies(count: int) -> Iterator[Body]:
    """Yield requests that are damaged, always the same."""
    chance, bodies = random.Random(SEED), whole()
    for _ in range(count):
        body = chance.choice(bodies)
        yield body._replace(data=damaged(body.data, chance))


def damaged(body: bytes, chance: random.Random) -> bytes:
    """Change some bytes, or cut out, repeat or move a part; half of the damage is within the text of values."""
    made = bytearray(body)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(made) + 1)
        end = min(len(made), at + chance.choice((1, 2, 8, 200)))
        way = chance.randrange(5)
        if way == 0 and at < len(made):
            made[at] = chance.randrange(256)
        elif way == 1:
            del made[at:end]
        elif way == 2:
            made[at:at] = made[at:end]
        elif way == 3:
            made[at:end] = chance.choice((b"null", b"-1", b"1e999", b"[]", b"{}", b'""', b"true", b"\x00", b"\xff" * 9))
        else:
            other = chance.randrange(len(made) + 1)
            made[other:other] = made[at:end]
    return bytes(made)
