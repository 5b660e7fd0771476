"""The screen of runs. It has the filters of `refold runs`."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable

from refold.agents.recordings.find import RunList, RunRow
from refold.avro.errors import InputError
from refold.explorer.deck.frame import DeckColumn, DeckScreen, Prompt, Rows
from refold.explorer.deck.texts import outcome_text, utc
from refold.explorer.queries.open_runs import UnendedRun
from refold.explorer.queries.runs import MORE_SEARCHED, STEPS_SEARCHED, RunsQuery, as_tree
from refold.explorer.queries.shapes import time_json
from refold.explorer.views.recorded_text import took

LISTED = 200
FILTERS = ("since", "until", "tool", "error", "outcome", "agent", "user", "tag", "parent", "model")


class RunsScreen(DeckScreen):
    """The runs, newest first. A fork, or a run within another, follows the run that it belongs to."""

    about = (
        "Runs: each line is a run of an agent.\n"
        "✓ succeeded  ✗ failed or timed out  ▶ runs  ○ not ended  ■ cancelled  ? unknown\n\n"
        "/ finds words in all that a run was given, said, called and got.\n"
        "agent:NAME outcome:failed tool:NAME error:TEXT model:NAME user:NAME\n"
        "tag:TAG parent:RUN since:TIME until:TIME flagged   narrow it down.\n"
        "A search reads some steps at first; steps:N reads N."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "find", "find", key_display="/"),
        Binding("space", "mark", "mark"),
        Binding("c", "compare", "compare"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._wanted = ""
        self._parents: dict[str, str] = {}

    @property
    def name_shown(self) -> str:
        """The name of the screen, with the filter."""
        return f"Runs  {self._wanted}".rstrip()

    def compose_answer(self) -> ComposeResult:
        """Yield the table."""
        yield Rows([
            DeckColumn("", 3), DeckColumn("run", 24), DeckColumn("title"), DeckColumn("agent", 14, 1),
            DeckColumn("started (UTC)", 20), DeckColumn("took", 9, 2), DeckColumn("steps", 6),
        ])  # fmt: skip

    async def load(self) -> str:
        """Ask `refold runs`, and show its answer."""
        at, wanted = self.deck.at, wanted_runs(self._wanted)
        self.is_live = not at

        def asked(log: Any) -> tuple[RunsQuery, RunList, dict[str, UnendedRun]]:
            query = RunsQuery(**wanted, limit=LISTED, at=str(log.point(at or None).cut))
            if query.is_in_steps:
                query = replace(query, search_steps=query.search_steps or STEPS_SEARCHED)
            found = query.find(log)
            return query, found, replace(query, at=at or None).open_runs(log, found)

        query, found, known = await self.ask(asked)
        self.queries, self.cut_text = [query], query.at or ""
        self._parents = {row.run: row.parent for row in found.rows}
        self.query_one(Rows).show([
            (row.run, [
                outcome_text(known[row.run].outcome if row.run in known else row.outcome).append(
                    "*" if row.run == self.deck.marked else " "
                ),
                "└ " * min(depth, 3) + row.run, _title_of(row, known.get(row.run)), row.agent,
                utc(started)[:19], took(started, time_json(row.ended_at)), f"{row.steps:,}",
            ])
            for row, depth in as_tree(found.rows, with_forks=True)
            for started in [time_json(row.started_at)]
        ])  # fmt: skip
        if found.older and query.search_steps and len(found) < LISTED:
            return f"{found.older:,} runs were not searched: steps:{query.search_steps * MORE_SEARCHED} searches more"
        if found.rows:
            return ""
        return "no run matches" if self._wanted else "no run is recorded here"

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Open a run."""
        self.deck.open_run(str(event.row_key.value), at=self.cut_text, is_live=self.is_live)

    def action_find(self) -> None:
        """Ask for a filter."""
        self.app.push_screen(
            Prompt("words, agent:NAME outcome:failed tool:NAME error:TEXT tag:T since:T flagged steps:N", self._wanted),
            self._find,
        )

    def _find(self, given: str | None) -> None:
        if given is None:
            return
        try:
            wanted_runs(given)
        except (InputError, ValueError) as error:
            self.say_problem(str(error))
            return
        self._wanted = given
        self.action_again()

    def action_mark(self) -> None:
        """Mark the run, or unmark it."""
        run = self.query_one(Rows).key
        self.deck.marked = "" if run == self.deck.marked else run
        self.action_again()

    def action_compare(self) -> None:
        """Compare with the marked run, or else with the run that this was forked from."""
        run = self.query_one(Rows).key
        other = self.deck.marked or self._parents.get(run, "")
        if not run or not other or run == other:
            self.say_problem("mark a run with space, then press c on another; or press c on a fork")
            return
        self.deck.open_compare(other, run, self.cut_text)


def _title_of(row: RunRow, known: UnendedRun | None) -> str:
    """Return the title of a run, whether it is flagged, and what is known of one that has not ended."""
    parts = ["!" if row.flagged else "", row.title or "", "" if known is None else f"({known.text})"]
    return " ".join(filter(None, parts))


def wanted_runs(text: str) -> dict[str, Any]:
    """Parse a filter such as `outcome:failed agent:support kettle` into the arguments of a RunsQuery.

    Raises:
        InputError: A filter has a value that is not allowed.
        ValueError: A quote is not closed.
    """
    wanted: dict[str, Any] = {}
    words = []
    for word in shlex.split(text):
        name, colon, value = word.partition(":")
        if word == "flagged":
            wanted["flagged"] = True
        elif colon and name == "steps" and value.isdecimal() and len(value) < 10:
            wanted["search_steps"] = int(value)
        elif colon and name in FILTERS:
            wanted[name] = value
        else:
            words.append(word)
    RunsQuery(**wanted)
    return {**wanted, "text": " ".join(words)}
