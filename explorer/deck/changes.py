"""The screen of changes: the newest changes of all entities, updated live."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable

from refold.explorer.deck.frame import DeckColumn, DeckScreen, Rows
from refold.explorer.deck.texts import source_text, utc
from refold.explorer.queries.tail import TailQuery, by_observation, cut_before
from refold.explorer.views.recorded_text import cell

if TYPE_CHECKING:
    from refold.agents.log import AgentLog


class ChangesScreen(DeckScreen):
    """The changes in the newest records, newest first."""

    about = "Changes: what changed in any entity, the newest first. p holds the list still; enter opens the entity."
    BINDINGS: ClassVar[list[BindingType]] = [Binding("p", "pause", "pause")]

    def __init__(self) -> None:
        super().__init__()
        self._is_paused = False

    @property
    def name_shown(self) -> str:
        """The name of the screen; it says whether the list is paused."""
        return "Changes, held" if self._is_paused else "Changes"

    def compose_answer(self) -> ComposeResult:
        """Yield the table."""
        yield Rows([
            DeckColumn("recorded (UTC)", 24), DeckColumn("entity", 24), DeckColumn("v", 5), DeckColumn("by", 18, 1),
            DeckColumn("change"),
        ])  # fmt: skip

    async def load(self) -> str:
        """Ask `refold tail`, and show its answer."""
        at = self.deck.at
        self.is_live = not at and not self._is_paused

        def asked(log: AgentLog) -> tuple[str, TailQuery, list[dict[str, Any]]]:
            cut = log.point(at or None).cut
            query = TailQuery(str(cut_before(cut)))
            rows = [
                row
                for change in query.changes(log)
                for row in by_observation(change)
                if row["position"]["offset"] < cut.offsets[row["position"]["partition"]]
            ]
            rows.sort(key=lambda row: (row["recorded_at"] or "", row["position"]["offset"]), reverse=True)
            return str(cut), query, rows

        self.cut_text, query, rows = await self.ask(asked)
        self.queries = [query]
        self.query_one(Rows).show([
            (f"{row['position']['partition']} {row['position']['offset']} {number} {row['entity']}", [
                utc(row["recorded_at"]), row["entity"], f"v{row['version']}", source_text(row["source"]),
                ", ".join(f"{each['field']} = {cell(each['new'], 60)}" for each in row["mutations"][:6]),
            ])
            for number, row in enumerate(rows)
        ])  # fmt: skip
        return ""

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Open the entity."""
        entity = str(event.row_key.value).split(" ", 3)[3]
        self.deck.open_entity(entity, end="" if self.is_live else self.cut_text)

    def action_pause(self) -> None:
        """Pause the list, or resume it."""
        self._is_paused = not self._is_paused
        self.action_again()
