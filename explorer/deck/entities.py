"""The screen of entities: all types, or all entities of one type."""

from __future__ import annotations

from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable

from refold.agents.log import AgentLog
from refold.explorer.deck.frame import DeckColumn, DeckScreen, Prompt, Rows
from refold.explorer.queries.find import FindQuery
from refold.streams.entity_index import exists, facts

LISTED = 500


class EntitiesScreen(DeckScreen):
    """Lists the types of a log, or the entities of one type."""

    about = "Entities: choose a type, then one of its entities. / keeps those whose id begins with a text."
    BINDINGS: ClassVar[list[BindingType]] = [Binding("slash", "find", "find", key_display="/")]

    def __init__(self, type_name: str = "") -> None:
        super().__init__()
        self._type = type_name
        self._begin = ""

    @property
    def name_shown(self) -> str:
        """The name of the screen, with the type and the prefix that ids are filtered by."""
        return f"Entities  {self._type}{'/' + self._begin if self._begin else ''}".rstrip()

    def compose_answer(self) -> ComposeResult:
        """Yield the table."""
        yield Rows(
            [DeckColumn("entity", 48), DeckColumn("version")]
            if self._type
            else [DeckColumn("type", 24), DeckColumn("fields")]
        )

    async def load(self) -> str:
        """Ask `refold find --type`, and show its answer."""
        at, type_name, begin = self.deck.at, self._type, self._begin
        self.is_live = not at

        def asked(log: AgentLog) -> tuple[str, list[tuple[str, list[str]]], int]:
            cut = log.point(at or None).cut
            if not type_name:
                types = {version.definition.name: version.definition for version in log.port.registry}
                rows = [(name, [name, ", ".join(each.by_first_name)]) for name, each in sorted(types.items())]
                return str(cut), rows, len(rows)
            every = facts(log, type_name, exists, cut)
            names = sorted(each for each in every if each.startswith(f"{type_name}/{begin}"))
            rows = [(name, [name, f"v{each.version}"]) for name, each in log.states(names[:LISTED], cut).items()]
            return str(cut), rows, len(names)

        self.cut_text, rows, total = await self.ask(asked)
        self.queries = [FindQuery(type=type_name, at=self.cut_text)] if type_name else []
        self.query_one(Rows).show(rows)
        return f"the first {len(rows):,} of {total:,} entities: / narrows down" if total > len(rows) else ""

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Open a type, or an entity."""
        key: Any = event.row_key.value
        if self._type:
            self.deck.open_entity(key, "" if self.is_live else self.cut_text)
        else:
            self.app.push_screen(EntitiesScreen(key))

    def action_find(self) -> None:
        """Ask for the beginning of the ids."""
        self.app.push_screen(Prompt("the beginning of the id", self._begin), self._find)

    def _find(self, given: str | None) -> None:
        if given is not None:
            self._begin = given
            self.action_again()
