"""Measures how long a search over many turns takes with the index of `refold run search`.

Turns of 60 words are written directly to an index, 200 per run; the words are as frequent as in a language (Zipf). So
the index is measured, not the recording of turns. A third of the turns call a tool; the cost varies. Then queries of
every kind are run, with words from every part of the vocabulary, with and without filters, each for the newest 20 hits
in the index. Clear turns are searched with FTS5, sealed ones by a hash under each run's key; the keys are in memory, as
in a long-running process.
"""

from __future__ import annotations

import hashlib
import random
import tempfile
import time
from itertools import islice
from pathlib import Path
from statistics import quantiles
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from refold.agents.usage.of_runs import ModelUsage
from refold.agents.usage.prices import Prices
from refold.agents.usage.tokens import TokenUsage
from refold.sinks.search.database import SearchDatabase
from refold.sinks.search.find import SearchConditions, TurnFinder
from refold.sinks.search.turns import SearchedRun, SearchedTurn
from refold.sinks.search.words import search_key
from refold.streams.cut import Cut

TURNS = 1_000_000
TURNS_OF_RUN = 200
WORDS_OF_TURN = 60
VOCABULARY = 50_000
QUESTIONS = 400
HITS = 20
BEGIN = 1_700_000_000_000_000
GOAL_MS = 200
PRICES = Prices({"dear": {"input": 10}, "cheap": {"input": 0.1}})


class BenchKeys:
    """A key ring in memory."""

    place = "memory"

    def __init__(self) -> None:
        self._held: dict[str, bytes] = {}

    def get(self, key_id: str) -> bytes:
        """Return the key of an id: always the same."""
        found = self._held.get(key_id)
        if found is None:
            found = self._held[key_id] = hashlib.sha512(key_id.encode()).digest()
        return found


class SearchFigures(NamedTuple):
    """The figures for one kind of content. built_s: seconds to build the index; queries in milliseconds."""

    kind: str
    turns: int
    built_s: float
    bytes: int
    p50_ms: float
    p95_ms: float
    longest_ms: float


def measure(folder: Path, turns: int, *, is_sealed: bool) -> SearchFigures:
    """Build an index in a folder, and query it."""
    rng = random.Random(20261126)
    words = [f"w{number}" for number in range(VOCABULARY)]
    weights = [1 / (number + 1) for number in range(VOCABULARY)]
    keys = BenchKeys()
    with tempfile.TemporaryDirectory(dir=folder) as place:
        path = Path(place) / "index"
        began = time.monotonic()
        database = SearchDatabase(path, PRICES)
        _build(database, turns, rng, words, weights, keys if is_sealed else None)
        built_s = time.monotonic() - began
        finder = TurnFinder(database, keys)  # type: ignore[arg-type]  # it is asked for keys alone
        took: list[float] = []
        for wanted in _questions(rng, words, turns):
            asked = time.perf_counter()
            list(islice(finder.find(wanted), HITS))
            took.append((time.perf_counter() - asked) * 1000)
        size = sum(each.stat().st_size for each in Path(place).iterdir())
        database.close()
    cuts = quantiles(took, n=100)
    return SearchFigures("sealed" if is_sealed else "clear", turns, built_s, size, cuts[49], cuts[94], max(took))


def _build(
    database: SearchDatabase, turns: int, rng: random.Random, words: list[str], weights: list[float],
    keys: BenchKeys | None,
) -> None:  # fmt: skip
    cut = Cut(bytes(16), {0: turns}, 0, bytes(32))
    with database.writing(None, cut):
        if keys is not None:
            database.put_meta("sealed", "yes")
        for number in range(turns):
            run = f"run{number // TURNS_OF_RUN}"
            at = BEGIN + number * 1_000_000
            if number % TURNS_OF_RUN == 0:
                database.put_run(SearchedRun(run, f"agent{number // TURNS_OF_RUN % 20}", "", at))
                key = None if keys is None else search_key(keys.get(f"run:{run}"))
                text = rng.choices(words, weights, k=WORDS_OF_TURN * TURNS_OF_RUN)
            begin = number % TURNS_OF_RUN * WORDS_OF_TURN
            model = ("dear", "cheap", "unpriced")[number % 3]
            turn = SearchedTurn(
                f"run/{run}", number % TURNS_OF_RUN + 1, at, keys is not None,
                " ".join(text[begin : begin + WORDS_OF_TURN]),
                [f"tool{rng.randrange(50)}"] if number % 3 == 0 else [], [model],
                "builtins.TimeoutError" if number % 100 == 0 else "", f"agent{number // TURNS_OF_RUN % 20}",
                [ModelUsage(model, TokenUsage(rng.randrange(20_000), 100))],
            )  # fmt: skip
            database.put_turn(turn, key)


def _questions(rng: random.Random, words: list[str], turns: int) -> list[SearchConditions]:
    found = []
    for number in range(QUESTIONS):
        # From every part of the vocabulary: frequent words as often as rare ones.
        some = [words[int(VOCABULARY ** rng.random()) - 1] for _ in range(rng.choice((1, 1, 2, 3)))]
        filters: list[dict[str, object]] = [
            {}, {}, {"tool": f"tool{rng.randrange(50)}"}, {"error": "timeout"}, {"model": "dear"},
            {"min_cost_usd": 0.15}, {"since": BEGIN + rng.randrange(turns) * 1_000_000}, {"agent": "agent7"},
        ]  # fmt: skip
        found.append(SearchConditions(" ".join(some), **filters[number % len(filters)]))  # type: ignore[arg-type]
    return found


def show(console: Console, folder: Path, share: int) -> None:
    """Print the table."""
    table = Table(
        title=f"Searching turns ({QUESTIONS} questions, the newest {HITS} hits; goal: p95 under {GOAL_MS} ms)"
    )
    for number, column in enumerate(("content", "turns", "built in, s", "MB", "p50, ms", "p95, ms", "longest, ms")):
        table.add_column(column, justify="right" if number else "left")
    for is_sealed in (False, True):
        with console.status("searching"):
            each = measure(folder, TURNS // share, is_sealed=is_sealed)
        table.add_row(each.kind, f"{each.turns:,}", f"{each.built_s:,.0f}", f"{each.bytes / 1e6:,.0f}",
                      f"{each.p50_ms:.1f}", f"{each.p95_ms:.1f}", f"{each.longest_ms:.1f}")  # fmt: skip
    console.print(table)
