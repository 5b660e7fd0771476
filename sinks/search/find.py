"""Finding turns in the search index, the newest first.

1. For clear content FTS5 returns the turns that contain every word, ordered by id and so by time. Facts (a tool, a
   model, an error, a range of costs) are words of the same index, so FTS5 intersects them too.
2. For sealed content each run has its own key: the words are hashed under it, and compared with the run's filter
   (filters.py). Only in a run whose filter may have all of them are its hashes searched. Runs are searched in the order
   of their newest turns, until enough hits are newer than all remaining runs. Without a run's key its hashes cannot be
   computed, so nothing of it is found.
3. Both results are merged by time. A hit is read from the log before it is shown. It is dropped if it cannot be read,
   or no longer contains the words: so removed content is not found.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

from refold.agents.keys.ring import KeyRing
from refold.agents.log import AgentLog
from refold.agents.recordings.fields import Fields
from refold.agents.usage.of_runs import UsageSum, summed
from refold.agents.vault import run_key
from refold.avro.errors import CorruptionError, InputError, KeyUnreadable, NotAnswerable
from refold.sinks.search.database import TURNS_AT_ONCE, SearchDatabase, cost_bucket, fact
from refold.sinks.search.filters import may_have
from refold.sinks.search.turns import text_of
from refold.sinks.search.words import SearchText, blinded, search_key, search_text, snippet

READ_AT_ONCE = 32
_BUCKETS = range(64)


@dataclass(frozen=True, slots=True)
class SearchConditions:
    """A search: the conditions that a turn must meet, all of them.

    Attributes:
        text: Words, and phrases in quotes.
        tool, model, error: A part of a name, in any case of letters.
        agent: The agent of the run.
        since, until: The bounds of the time when the turn began, in microseconds since 1970.
        min_cost_usd, max_cost_usd: The bounds of the cost of the turn, in US dollars.
    """

    text: str = ""
    tool: str = ""
    model: str = ""
    error: str = ""
    agent: str = ""
    since: int | None = None
    until: int | None = None
    min_cost_usd: float | None = None
    max_cost_usd: float | None = None


class FoundTurn(NamedTuple):
    """A turn that was found.

    Attributes:
        number: Its id in the index.
        step: The number of the step; 0 for the content of a whole run or conversation.
    """

    number: int
    owner: str
    step: int
    error: str
    cost_usd: float | None

    @property
    def entity(self) -> str:
        """The entity that holds it."""
        return f"step/{self.owner.partition('/')[2]}#{self.step}" if self.step else self.owner

    @property
    def at(self) -> int:
        """When it began, in microseconds since 1970; 0 if that is unknown."""
        return self.number // TURNS_AT_ONCE


class SearchHit(NamedTuple):
    """A turn as it is shown.

    Attributes:
        run: The run; "" for a conversation without a run.
        snippet: The snippet; "" if the search has no text.
    """

    run: str
    agent: str
    found: FoundTurn
    usage: UsageSum | None
    snippet: str


class TurnFinder:
    """Searches one index.

    Args:
        ring: The keys of sealed content; None without keys.
    """

    def __init__(self, database: SearchDatabase, ring: KeyRing | None) -> None:
        self._database = database
        self._ring = ring

    def find(self, wanted: SearchConditions) -> Iterator[FoundTurn]:
        """Return the matching turns of the index, newest first.

        Raises:
            InputError: The search is empty.
        """
        asked = search_text(wanted.text)
        if wanted.text.strip() and not asked.words:
            raise InputError(f"{wanted.text!r} has no word in it: words are letters and digits")
        if wanted == SearchConditions():
            raise InputError("say what to search for: a text, or one of --tool, --model, --error, --min-cost")
        facts = self._facts(wanted)
        if facts is None:
            return iter(())
        checks, values = _checks(wanted)
        clear = self._clear(asked, facts, checks, values)
        if not asked.words or not self._database.has_sealed or self._ring is None:
            return clear
        sealed = self._sealed(asked, facts, checks, values, self._ring)
        return heapq.merge(clear, sealed, key=lambda each: -each.number)

    def _facts(self, wanted: SearchConditions) -> list[list[str]] | None:
        """The words of the index for each fact of the search; None if a fact never occurs."""
        found = []
        for kind in ("tool", "model", "error"):
            part = getattr(wanted, kind)
            if part:
                rows = self._database.connection.execute("SELECT name FROM name WHERE kind = ?", (kind,))
                found.append([fact(kind, name) for (name,) in rows if part.casefold() in name.casefold()])
        if wanted.agent:
            found.append([fact("agent", wanted.agent)])
        if wanted.min_cost_usd is not None or wanted.max_cost_usd is not None:
            least = 0 if wanted.min_cost_usd is None else cost_bucket(wanted.min_cost_usd)
            most = _BUCKETS[-1] if wanted.max_cost_usd is None else cost_bucket(wanted.max_cost_usd)
            found.append([f"_cost_{each}" for each in _BUCKETS if least <= each <= most])
        return found if all(found) else None

    def _clear(
        self, asked: SearchText, facts: list[list[str]], checks: str, values: Mapping[str, Any]
    ) -> Iterator[FoundTurn]:
        parts = [f"text: {_quoted(*phrase)}" for phrase in asked.phrases]
        parts += [f"text: {_quoted(word)}" for word in asked.words]
        parts += [f"facts: ({' OR '.join(map(_quoted, some))})" for some in facts]
        if not parts:  # by time or agent alone
            return self._rows(f"SELECT {_COLUMNS} FROM turn WHERE {checks} ORDER BY id DESC", values)
        return self._rows(
            # The cross join keeps the order: the words first, each found turn then by its id.
            f"SELECT {_COLUMNS} FROM said CROSS JOIN turn ON turn.id = said.rowid "
            f"WHERE said MATCH :match AND {checks.replace('turn.id', 'said.rowid')} ORDER BY said.rowid DESC",
            {**values, "match": " AND ".join(parts)},
        )

    def _sealed(
        self, asked: SearchText, facts: list[list[str]], checks: str, values: Mapping[str, Any], ring: KeyRing
    ) -> Iterator[FoundTurn]:
        """Search run by run. A turn is yielded when no remaining run can have a newer one."""
        # The cost is not among the hashes, for it follows the price table.
        groups = [[word] for word in asked.words] + [some for some in facts if not some[0].startswith("_cost_")]
        groups.sort(key=_order)
        waiting: list[tuple[int, FoundTurn]] = []
        runs = self._database.connection.execute(
            "SELECT number, owner, newest FROM sealed_run WHERE newest >= ? ORDER BY newest DESC",
            (values.get("since", 0),),
        ).fetchall()
        begin, size = 0, _RUNS_AT_FIRST
        while begin < len(runs):
            for run in self._with_all(runs[begin : begin + size], groups, ring):
                while waiting and -waiting[0][0] > run.newest:
                    yield heapq.heappop(waiting)[1]
                for each in self._in_run(run, checks, values):
                    heapq.heappush(waiting, (-each.number, each))
            begin, size = begin + size, min(size * 2, _RUNS_AT_ONCE)
        while waiting:
            yield heapq.heappop(waiting)[1]

    def _with_all(
        self, runs: Sequence[tuple[int, str, int]], groups: Sequence[Sequence[str]], ring: KeyRing
    ) -> Iterator[_HashedRun]:  # fmt: skip
        """Return those of some runs whose filter may have a word of each group, with the hashes of the words."""
        numbers = ", ".join(str(number) for number, _, _ in runs)
        filters: dict[int, bytes] = dict(
            self._database.connection.execute(f"SELECT run, bits FROM sealed_filter WHERE run IN ({numbers})")
        )
        cheapest_first = sorted(range(len(groups)), key=lambda at: len(groups[at]))
        for number, owner, newest in runs:
            try:
                key = ring.get(run_key(owner.partition("/")[2]))
            except KeyUnreadable:
                continue
            bits = filters.get(number)
            if key is None or bits is None:  # None: the run was erased, or the index is being made again
                continue
            own = search_key(key)
            hashes: list[list[int]] = [[]] * len(groups)
            for at in cheapest_first:
                hashes[at] = [each for each in blinded(own, groups[at]) if may_have(bits, each)]
                if not hashes[at]:
                    break
            else:
                yield _HashedRun(number, owner, newest, hashes)

    def _in_run(self, run: _HashedRun, checks: str, values: Mapping[str, Any]) -> Iterator[FoundTurn]:
        named = {f"w{at}_{each}": word for at, some in enumerate(run.hashes) for each, word in enumerate(some)}
        query = _query_of_run(tuple(map(len, run.hashes)), checks)
        yield from self._rows(query, {**values, **named, "run": run.number, "owner": run.owner})

    def _rows(self, query: str, values: Mapping[str, Any]) -> Iterator[FoundTurn]:
        yield from (FoundTurn(*row) for row in self._database.connection.execute(query, values))


class _HashedRun(NamedTuple):
    """A run of sealed content.

    Attributes:
        hashes: The hashes of each group of words under the run's key, as far as the filter may have them.
    """

    number: int
    owner: str
    newest: int
    hashes: list[list[int]]


def _order(group: Sequence[str]) -> int:
    """Where a group of words is in a look-up: first what the fewest turns of a run usually have."""
    kinds = ("_error_", "_tool_", "", "_model_", "_agent_")
    return next(at for at in (0, 1, 3, 4, 2) if group[0].startswith(kinds[at]))


@lru_cache(maxsize=64)
def _query_of_run(counts: tuple[int, ...], checks: str) -> str:
    """Return the look-up of hashes in a run. SQLite compiles an equal text once, and there are thousands of runs.

    Args:
        counts: How many hashes each group has.
        checks: The conditions on each turn.
    """
    first, *others = (f"IN ({', '.join(f':w{at}_{each}' for each in range(count))})" for at, count in enumerate(counts))
    both = "".join(
        f" AND EXISTS (SELECT 1 FROM sealed WHERE run = :run AND word {group} AND turn = s.turn)" for group in others
    )
    return (
        f"SELECT {_COLUMNS} FROM sealed s CROSS JOIN turn ON turn.id = s.turn "
        f"WHERE s.run = :run AND s.word {first}{both} AND {checks.replace('turn.id', 's.turn')} AND turn.owner = :owner"
    )


_COLUMNS = "turn.id, turn.owner, turn.step, turn.error, turn.cost"
_RUNS_AT_FIRST, _RUNS_AT_ONCE = 8, 512


def search(
    database: SearchDatabase, log: AgentLog, wanted: SearchConditions, limit: int, unread: Callable[[str], None]
) -> list[SearchHit]:
    """Return at most `limit` hits that can be read now.

    Args:
        unread: Called with each entity that cannot be read.
    """
    asked = search_text(wanted.text)
    cut = database.cut
    hits: list[SearchHit] = []
    found = TurnFinder(database, log.vault.ring).find(wanted)
    while len(hits) < limit and (some := list(islice(found, READ_AT_ONCE))):
        views = log.states([each.entity for each in some], cut)
        for each in some:
            shown = ""
            if asked.words:
                try:
                    text = text_of(Fields(views[each.entity], log.vault)) if each.entity in views else ""
                except (NotAnswerable, CorruptionError):
                    unread(each.entity)
                    continue
                if not asked.is_in(text):
                    continue
                shown = snippet(text, asked)
            hits.append(_hit(database, each, shown))
            if len(hits) == limit:
                break
    return hits


def _hit(database: SearchDatabase, found: FoundTurn, shown: str) -> SearchHit:
    kind, _, name = found.owner.partition("/")
    if kind == "step":
        kind, name = "run", name.rpartition("#")[0]
    column = "run" if kind == "run" else "session"
    row = database.connection.execute(
        f"SELECT run, agent FROM run WHERE {column} = ? ORDER BY started_at LIMIT 1", (name,)
    ).fetchone()
    run, agent = row or (name if kind == "run" else "", "")
    return SearchHit(run, agent, found, summed(database.usage(found.number)), shown)


def _checks(wanted: SearchConditions) -> tuple[str, dict[str, Any]]:
    """The conditions on each turn as SQL, and their values."""
    parts, values = ["1"], {
        "since": None if wanted.since is None else wanted.since * TURNS_AT_ONCE,
        "until": None if wanted.until is None else (wanted.until + 1) * TURNS_AT_ONCE - 1,
        "least": wanted.min_cost_usd, "most": wanted.max_cost_usd,
    }  # fmt: skip
    conditions = {
        "since": "turn.id >= :since", "until": "turn.id <= :until", "least": "turn.cost >= :least",
        "most": "turn.cost <= :most",
    }  # fmt: skip
    parts += [conditions[name] for name, value in values.items() if value is not None]
    return " AND ".join(parts), {name: value for name, value in values.items() if value is not None}


def _quoted(*words: str) -> str:
    return f'"{" ".join(words)}"'
