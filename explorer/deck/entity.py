"""The screen of an entity: its state at a moment, a slider over its moments, and its history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Static

from refold.agents.log import AgentLog
from refold.explorer.deck.frame import DeckColumn, DeckScreen, Rows
from refold.explorer.deck.texts import source_text, utc
from refold.explorer.queries.entity import HistoryQuery, StateQuery
from refold.explorer.queries.operate import MarkersQuery
from refold.explorer.queries.tail import cut_before
from refold.explorer.views.moments import CLOCKS, READS_SEARCHED, SliderStops, moments_of, placed
from refold.explorer.views.recorded_text import cell, visible

HISTORY_LISTED = 300
CLOCK_WORDS = {
    "known": "known: when the log took it", "true": "true: when it happened", "read": "read: when an agent read it",
}  # fmt: skip


class EntityAnswer(NamedTuple):
    """An entity at a cut, and its history up to the end of the slider.

    Attributes:
        unsearched: In how many of the oldest records reads were not looked for.
    """

    cut: str
    end: str
    state: dict[str, Any]
    rows: list[dict[str, Any]]
    stops: SliderStops
    unsearched: int


class EntityScreen(DeckScreen):
    """One entity at a moment.

    Args:
        end: The cut at which the slider ends; empty: the newest.
    """

    about = (
        "An entity: its state at one moment, the moments it had, and its history.\n"
        "The slider moves over one of three clocks: when the log took each change (known), when it happened (true),\n"
        "and when agents read the entity (read). | marks a marker of the log, such as a deploy."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("h,left", "move(-1)", "earlier", key_display="h", priority=True),
        Binding("l,right", "move(1)", "later", key_display="l", priority=True),
        Binding("home,0", "edge(0)", "first moment", show=False, priority=True),
        Binding("end,dollar_sign", "edge(-1)", "last moment", show=False, priority=True),
        Binding("c", "clock", "clock"),
        Binding("w", "why", "why"),
    ]

    def __init__(self, entity: str, at: str = "", end: str = "") -> None:
        super().__init__()
        self._entity, self._at, self._end = entity, at, end
        self._at_clock = "recorded"
        self._clock = CLOCKS[0]
        self.is_live = not at
        self._answer: EntityAnswer | None = None

    @property
    def name_shown(self) -> str:
        """The name of the entity, with its version."""
        version = "" if self._answer is None else f"  v{self._answer.state['version']}"
        return f"{self._entity}{version}"

    def compose_answer(self) -> ComposeResult:
        """Yield the slider, the state and the history."""
        yield Static(id="slider", markup=False)
        yield Rows([
            DeckColumn("", 2), DeckColumn("field", 20), DeckColumn("value"), DeckColumn("by", 18, 1),
            DeckColumn("since (UTC)", 20),
        ], id="state")  # fmt: skip
        yield Rows([
            DeckColumn("v", 5), DeckColumn("recorded (UTC)", 20), DeckColumn("by", 18, 1), DeckColumn("field", 16),
            DeckColumn("change"),
        ], id="history")  # fmt: skip

    async def load(self) -> str:
        """Ask `refold state` and `refold history`, and show their answers."""
        at, clock = self._at or self.deck.at, self._clock
        self.is_live = not at
        entity, end, at_clock = self._entity, self._end, self._at_clock

        def asked(log: AgentLog) -> EntityAnswer:
            cut = log.point(at or None, entity, at_clock).cut
            last = log.point(end or None).cut
            state = StateQuery(entity, str(cut)).answer(log)
            rows = HistoryQuery(entity, until=str(last)).answer(log)
            begin = cut_before(last, READS_SEARCHED)
            stops = moments_of(log, entity, clock, state["version"], rows, cut, last, begin)
            unsearched = begin.records if clock == "read" else 0
            return EntityAnswer(
                str(cut), str(last), state, rows, placed(clock, stops, MarkersQuery().answer(log)), unsearched
            )

        answer = await self.ask(asked)
        self._answer, self.cut_text = answer, answer.cut
        self.queries = [HistoryQuery(entity, until=answer.end), StateQuery(entity, answer.cut)]
        changed = {row["field"] for row in answer.rows if row["version"] == answer.state["version"]}
        self.query_one("#state", Rows).show([
            (name, [
                Text("*" if name in changed else " ", "yellow"), name, cell(field["value"], 200),
                source_text(field["source"]), utc(field["recorded_at"])[:19],
            ])
            for name, field in answer.state["fields"].items()
        ])  # fmt: skip
        self.query_one("#history", Rows).show([
            (f"{row['by']} {number}", [
                Text(f"v{row['version']}", "bold" if row["version"] == answer.state["version"] else ""),
                utc(row["recorded_at"])[:19], source_text(row["source"]), row["field"],
                Text(cell(row["old"], 40), "red").append(" → ", "dim").append(cell(row["new"], 60), "green"),
            ])
            for number, row in list(enumerate(answer.rows))[-HISTORY_LISTED:][::-1]
        ])  # fmt: skip
        self._show_slider()
        return ""

    def moment_chosen(self) -> None:
        """Reload. The chosen moment replaces the slider's."""
        self._at, self._at_clock, self._end = "", "recorded", ""
        super().moment_chosen()

    def _show_slider(self) -> None:
        if self._answer is None:
            return
        stops = self._answer.stops
        left_out = self._answer.unsearched
        where = f", in the newest {READS_SEARCHED:,} records" if left_out else ""
        text = Text(f" {CLOCK_WORDS[stops.clock]}{where}   c: next clock\n", "dim", no_wrap=True, overflow="ellipsis")
        text.append_text(slider_text(stops, max(self.app.size.width - 2, 20))).append("\n")
        chosen = stops.moments[stops.chosen] if stops.chosen >= 0 else None
        number = stops.earlier + stops.chosen + 1
        total = stops.earlier + len(stops.moments) + stops.later
        if chosen is None:
            text.append(f" at none of its {total:,} moments" if total else " no moment on this clock", "dim")
        else:
            text.append(f" {number:,} of {total:,}  {utc(chosen.time)} UTC  {visible(chosen.about)}")
        self.query_one("#slider", Static).update(text)

    def action_move(self, by: int) -> None:
        """Go to a neighbouring moment of the clock."""
        if self._answer is None:
            return
        stops = self._answer.stops
        self._move_to_stop(stops.chosen + by)

    def action_edge(self, index: int) -> None:
        """Go to the first or the last moment."""
        if self._answer is not None:
            self._move_to_stop(index % len(self._answer.stops.moments) if self._answer.stops.moments else -1)

    def _move_to_stop(self, index: int) -> None:
        if self._answer is None or not 0 <= index < len(self._answer.stops.moments):
            return
        stop = self._answer.stops.moments[index]
        self._at, self._at_clock = stop.at, stop.clock or "recorded"
        self._end = self._end or self._answer.end
        self.action_again()

    def action_clock(self) -> None:
        """Switch to the next clock."""
        self._clock = CLOCKS[(CLOCKS.index(self._clock) + 1) % len(CLOCKS)]
        self.action_again()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Trace a field of the state, or go to the moment of a change."""
        if event.data_table.id == "state":
            self.action_why()
        elif self._answer is not None:
            number = int(str(event.row_key.value).rpartition(" ")[2])
            self._at, self._at_clock = f"v{self._answer.rows[number]['version']}", "recorded"
            self._end = self._end or self._answer.end
            self.action_again()

    def action_why(self) -> None:
        """Trace the sources of the field under the cursor."""
        field = self.query_one("#state", Rows).key
        if field and self._answer is not None:
            self.deck.open_why(f"{self._entity}.{field}", self._answer.cut)


def slider_text(stops: SliderStops, width: int) -> Text:
    """Draw the slider as one line: ● the chosen moment, ○ the others, | markers."""
    line: list[tuple[str, str]] = [("─", "dim")] * width
    places: Sequence[tuple[float, str, str]] = [
        *((mark.x, "|", "yellow") for mark in stops.marks),
        *((stop.x, "○", "") for stop in stops.moments),
        *((stop.x, "●", "bold cyan") for stop in stops.moments if stop.is_chosen),
    ]  # fmt: skip
    for x, sign, style in places:
        line[min(width - 1, max(0, round(x / 100 * (width - 1))))] = (sign, style)
    return Text.assemble(" ", *line, no_wrap=True)
