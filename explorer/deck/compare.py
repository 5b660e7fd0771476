"""The screen of two runs side by side, opened at their first difference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from refold.explorer.deck.frame import DeckColumn, DeckScreen, Pane, Rows
from refold.explorer.deck.texts import DIM, HEADING, change_text, heading, lines, outcome_text, words_text
from refold.explorer.deck.why import link_text, patch_lines
from refold.explorer.queries.compare import CompareQuery
from refold.explorer.queries.run_names import known_run
from refold.explorer.views.comparison import comparison
from refold.explorer.views.recorded_text import visible

if TYPE_CHECKING:
    from refold.agents.log import AgentLog


class CompareScreen(DeckScreen):
    """Compares two runs of one log."""

    about = (
        "Compare: the steps of both runs side by side; ≠ where they first differ, ~ where they differ later.\n"
        "Below: what differs there, and the observations that led to it."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("a", "open(0)", "open A"), Binding("b", "open(1)", "open B"),
    ]  # fmt: skip

    def __init__(self, a: str, b: str, at: str = "") -> None:
        super().__init__()
        self._runs, self._at = (a, b), at

    @property
    def name_shown(self) -> str:
        """The name of the screen, with both runs."""
        return f"Compare A {self._runs[0]}  B {self._runs[1]}"

    def compose_answer(self) -> ComposeResult:
        """Yield the steps, and a pane below them."""
        yield Rows([DeckColumn("", 2), DeckColumn("#", 5), DeckColumn("A", 34), DeckColumn("B")], id="pairs")
        yield Pane(id="pane")

    async def load(self) -> str:
        """Ask `refold run compare`, and show its answer."""
        at, given = self._at or self.deck.at, self._runs

        def asked(log: AgentLog) -> tuple[CompareQuery, dict[str, Any]]:
            cut = log.point(at or None).cut
            query = CompareQuery(known_run(log, given[0], cut), known_run(log, given[1], cut), str(cut))
            return query, comparison(log, query)

        query, shown = await self.ask(asked)
        self.queries, self.cut_text, self._runs = [query], query.at or "", (query.a, query.b)
        table = self.query_one("#pairs", Rows)
        rows = shown["steps"]
        table.show([
            (str(row["number"]), [
                Text("≠", "bold red") if row["parts"] else Text("~" if row["differs"] else " ", "yellow"),
                str(row["number"]), *map(_side, row["sides"]),
            ])
            for row in rows
        ])  # fmt: skip
        parting = next((index for index, row in enumerate(rows) if row["parts"]), 0)
        table.move_cursor(row=parting)
        self.query_one(Pane).show(lines(_difference_lines(shown)))
        table.focus()
        return ""

    def moment_chosen(self) -> None:
        """Reload. The chosen moment replaces the one at which the runs were opened."""
        self._at = ""
        super().moment_chosen()

    def action_open(self, side: int) -> None:
        """Open one of the runs at the step under the cursor."""
        step = self.query_one("#pairs", Rows).key
        self.deck.open_run(self._runs[side], int(step or 0), self.cut_text)


def _side(side: Mapping[str, Any] | None) -> Text:
    if side is None:
        return Text("-", DIM)
    name = side["name"] or ", ".join(side["calls"])
    return outcome_text(side["outcome"]).append(f" {visible(' '.join(name.split()))[:30]}", "")


def _difference_lines(shown: Mapping[str, Any]) -> Iterator[Text]:
    """Yield the first difference, word by word, and the observations it comes from."""
    first, *rest = shown["lines"]
    yield heading(first)
    if shown["why"]:
        yield Text(visible(shown["why"]), DIM)
    if not shown["sides"]:
        yield from (Text(visible(line)) for line in rest)
    for each in shown["sides"]:
        if each["words"] is None:
            yield change_text(each["path"], each["left"], each["right"],
                              has_before=each["has_left"], has_after=each["has_right"])  # fmt: skip
            continue
        yield Text(visible(each["path"]), HEADING)
        for sign, style, words in zip("-+", ("red", "green"), each["words"], strict=True):
            yield words_text(words, sign, style)
    for behind in shown["answer"]["provenance"]:
        name = ".".join(part for part in (behind["entity"], behind["field"], behind["key"]) if part)
        yield Text()
        yield heading(f"provenance in {behind['side'].upper()}: {name}")
        for link in behind["chain"][:8]:
            yield Text("  " * (min(link["depth"], 12) + 1)).append_text(link_text(link))
            if link["depth"] == 0:
                yield from (Text("    ").append_text(each) for each in patch_lines(link)[:6])
