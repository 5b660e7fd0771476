"""Measures how long a search over many turns takes with the index of `refold run search`.

Turns of 60 words are written directly to an index, 200 per run; the words are as frequent as in a language (Zipf). So
the index is measured, not the recording of turns. A third of the turns call a tool; the cost varies. Then queries of
every kind are run, with words from every part of the vocabulary, with and without filters, each for the newest 20 hits
in the index. Each filter has a row, because a slow one would not show in a p95 over all of them.

Clear turns are searched with FTS5, sealed ones by a hash under each run's key. The keys are in a folder, as those of a
`file:` log. They are read for each query, as by a new process; then queries are run with the keys in memory, as in the
explorer.

An index takes minutes to build, so it stays in the folder of the bench, and the next measurement uses it again.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from itertools import islice
from pathlib import Path
from statistics import quantiles
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from refold.agents.keys.files import FileKeyRing
from refold.agents.usage.of_runs import ModelUsage
from refold.agents.usage.prices import Prices
from refold.agents.usage.tokens import TokenUsage
from refold.agents.vault import run_key
from refold.sinks.search.database import SearchDatabase
from refold.sinks.search.find import SearchConditions, TurnFinder
from refold.sinks.search.turns import SearchedRun, SearchedTurn
from refold.sinks.search.words import search_key
from refold.streams.cut import Cut

TURNS = 1_000_000
TURNS_OF_RUN = 200
WORDS_OF_TURN = 60
VOCABULARY = 50_000
QUESTIONS = 900
SEED = 20261126
HITS = 20
BEGIN = 1_700_000_000_000_000
GOAL_MS = 200
PRICES = Prices({"dear": {"input": 10}, "cheap": {"input": 0.1}})


class SearchFigures(NamedTuple):
    """The figures of some queries, in milliseconds. filter: what they have besides words."""

    filter: str
    queries: int
    p50_ms: float
    p95_ms: float
    longest_ms: float


class SearchIndex(NamedTuple):
    """An index to query. built_s: seconds; None if an earlier measurement built it."""

    database: SearchDatabase
    keys: Path
    bytes: int
    built_s: float | None


def built_index(folder: Path, turns: int, *, is_sealed: bool) -> SearchIndex:
    """Return the index of so many turns, built if the folder has none."""
    words = [f"w{number}" for number in range(VOCABULARY)]
    weights = [1 / (number + 1) for number in range(VOCABULARY)]
    path = folder / f"refold-bench-search-{turns}-{'sealed' if is_sealed else 'clear'}" / "index"
    keys = path.parent / "keys"
    database = SearchDatabase(path, PRICES)
    built_s = None
    if database.cut is None:
        began = time.monotonic()
        _build(database, turns, random.Random(SEED), words, weights, FileKeyRing(keys) if is_sealed else None)
        built_s = time.monotonic() - began
    size = sum(each.stat().st_size for each in path.parent.iterdir() if each.is_file())
    return SearchIndex(database, keys, size, built_s)


def measure(index: SearchIndex, turns: int, *, holds_keys: bool) -> list[SearchFigures]:
    """Query an index: the figures of all queries, then of each filter. holds_keys: whether keys stay in memory."""
    ring = FileKeyRing(index.keys)
    took = defaultdict(list)
    for filtered, wanted in _questions(random.Random(SEED + 1), turns):
        if not holds_keys:
            ring = FileKeyRing(index.keys)
        asked = time.perf_counter()
        list(islice(TurnFinder(index.database, ring).find(wanted), HITS))
        took[filtered].append((time.perf_counter() - asked) * 1000)
    everything = [each for some in took.values() for each in some]
    return [_figures(name, some) for name, some in {"all": everything, **took}.items()]


def _figures(filtered: str, took: list[float]) -> SearchFigures:
    cuts = quantiles(took, n=100)
    return SearchFigures(filtered, len(took), cuts[49], cuts[94], max(took))


def _build(
    database: SearchDatabase, turns: int, rng: random.Random, words: list[str], weights: list[float],
    keys: FileKeyRing | None,
) -> None:  # fmt: skip
    key, text, cut = None, [""], Cut(bytes(16), {0: turns}, 0, bytes(32))
    with database.writing(None, cut):
        if keys is not None:
            database.put_meta("sealed", "yes")
        for number in range(turns):
            run = f"run{number // TURNS_OF_RUN}"
            at = BEGIN + number * 1_000_000
            if number % TURNS_OF_RUN == 0:
                database.put_run(SearchedRun(run, f"agent{number // TURNS_OF_RUN % 20}", "", at))
                if keys is not None:
                    key = search_key(keys.create(run_key(run)))
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


def _questions(rng: random.Random, turns: int) -> list[tuple[str, SearchConditions]]:
    """Return queries, each with the name of its filter."""
    found = []
    for number in range(QUESTIONS):
        # From every part of the vocabulary: frequent words as often as rare ones.
        words = " ".join(f"w{int(VOCABULARY ** rng.random()) - 1}" for _ in range(rng.choice((1, 1, 2, 3))))
        tool = {"tool": f"tool{rng.randrange(50)}"}
        filters: dict[str, dict[str, Any]] = {
            "none": {"text": words},
            "tool": {"text": words, **tool},
            "error": {"text": words, "error": "timeout"},
            "model": {"text": words, "model": "dear"},
            "cost": {"text": words, "min_cost_usd": 0.15},
            "time": {"text": words, "since": BEGIN + rng.randrange(turns) * 1_000_000},
            "agent": {"text": words, "agent": "agent7"},
            "tool and error, no words": {"error": "timeout", **tool},
            "tool and cost, no words": {"min_cost_usd": 0.19, **tool},
        }
        name = list(filters)[number % len(filters)]
        found.append((name, SearchConditions(**filters[name])))
    return found


def show(console: Console, folder: Path, share: int) -> None:
    """Print the table."""
    turns = TURNS // share
    table = Table(title=f"Searching {turns:,} turns for the newest {HITS} hits (goal: p95 under {GOAL_MS} ms)")
    for number, column in enumerate(("content", "filter", "queries", "p50, ms", "p95, ms", "longest, ms")):
        table.add_column(column, justify="right" if number > 1 else "left")
    for content, holds_keys in (("clear", True), ("sealed", False), ("sealed, keys in memory", True)):
        with console.status("searching"):
            index = built_index(folder, turns, is_sealed=content != "clear")
            for each in measure(index, turns, holds_keys=holds_keys):
                table.add_row(content, each.filter, f"{each.queries}", f"{each.p50_ms:.1f}", f"{each.p95_ms:.1f}",
                              f"{each.longest_ms:.1f}")  # fmt: skip
            index.database.close()
        built = "was there" if index.built_s is None else f"was built in {index.built_s:,.0f} s"
        console.print(f"{content}: the index has {index.bytes / 1e6:,.0f} MB and {built}")
    console.print(table)
