"""The common parts of all screens of the deck.

    title bar      the log, the screen, the cut
    the answer
    command line   the `refold` command that gives the same answer, or the error
    keys           the keys of this screen

1. A screen asks its question in the log's thread, and shows the answer. Keys work in the meantime.
2. If a question has no answer, or the log cannot be read, the command line shows the error. The old answer stays.
3. A live screen asks again when the log has grown. A screen of the past never changes.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar, cast

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen, Screen
from textual.widgets import DataTable, Footer, Input, OptionList, Static
from textual.widgets.option_list import Option
from textual.worker import Worker

from refold.agents.log import AgentLog
from refold.avro.errors import RefoldError
from refold.explorer.deck.log_thread import LogThread
from refold.explorer.queries.query import Query, command_text
from refold.explorer.views.recorded_text import visible
from refold.streams.cut import read_cut

T = TypeVar("T")
REST_MIN = 16
_CUT = re.compile(r"cut:\S{20,}")
MOVES: list[BindingType] = [
    Binding("j", "cursor_down", "down", show=False), Binding("k", "cursor_up", "up", show=False),
    Binding("g", "scroll_top", "first", show=False), Binding("G", "scroll_bottom", "last", show=False),
    Binding("ctrl+d", "page_down", "page down", show=False), Binding("ctrl+u", "page_up", "page up", show=False),
]  # fmt: skip


class Deck(Protocol):
    """The parts of the app that screens use; see DeckApp."""

    log_thread: LogThread
    shown_url: str | None
    at: str
    marked: str

    def open_run(self, run: str, step: int = 0, at: str = "", *, is_live: bool | None = None) -> None:
        """Open a run at a step; 0: at its failure."""

    def open_entity(self, entity: str, at: str = "", end: str = "") -> None:
        """Open an entity at a moment.

        Args:
            entity: The entity, as TYPE/ID.
            at: The moment, as WHEN; empty: the deck's `at`.
            end: The cut at which its slider ends; empty: the newest.
        """

    def open_why(self, value: str, at: str) -> None:
        """Open the sources of a value, TYPE/ID.FIELD."""

    def open_compare(self, a: str, b: str, at: str = "") -> None:
        """Open two runs side by side."""


class DeckColumn(NamedTuple):
    """A column of a table.

    Attributes:
        width: The width in characters, with a space at its end; 0: all remaining width.
        drop: How early the column is left out if the terminal is too narrow: the highest first, 0 never (see Rows).
    """

    heading: str
    width: int = 0
    drop: int = 0


class Rows(DataTable[Any]):
    """A table with a cursor on a row. After a new answer the cursor stays on the same row, if that still exists.

    A column of width 0 gets the remaining width. If the terminal is too narrow, columns are left out, the one with the
    highest `drop` first. Columns with a `drop` of 0 always stay.
    """

    BINDINGS: ClassVar[list[BindingType]] = MOVES

    def __init__(self, columns: Sequence[DeckColumn], **given: Any) -> None:
        super().__init__(cursor_type="row", zebra_stripes=False, cell_padding=0, **given)
        self._all = columns
        self._rows: Sequence[tuple[str, Sequence[str | Text]]] = ()

    def on_resize(self) -> None:
        """Lay out the columns again."""
        self.show(self._rows)

    def show(self, rows: Sequence[tuple[str, Sequence[str | Text]]]) -> None:
        """Show rows. Each has a key, and a cell for each column."""
        kept, at = self.key, self.cursor_row
        self._rows = rows
        widths = column_widths(self._all, self.size.width)
        self.clear(columns=True)
        for index, width in widths.items():
            self.add_column(Text(self._all[index].heading, "dim"), width=width)
        for key, cells in rows:
            self.add_row(*(_cell(cells[index], width) for index, width in widths.items()), key=key)
        keys = [key for key, _ in rows]
        if kept in keys:
            self.move_cursor(row=keys.index(kept))
        elif rows:
            self.move_cursor(row=min(at, len(rows) - 1))

    @property
    def key(self) -> str:
        """The key of the row under the cursor; empty if there is none."""
        if not self.is_valid_row_index(self.cursor_row):
            return ""
        return str(self.ordered_rows[self.cursor_row].key.value)


def _shorten_cut(cut: re.Match[str]) -> str:
    """Shorten a cut in a command, to fit the screen. `y` copies the whole command."""
    return f"cut:…{cut[0][-8:]}"


def column_widths(columns: Sequence[DeckColumn], width: int) -> dict[int, int]:
    """Return the widths of the columns that fit, by index. Each width includes a space at its end."""
    shown = dict(enumerate(columns))
    while len(shown) > 1 and sum(each.width or REST_MIN for each in shown.values()) > width:
        dropped = max(shown, key=lambda index: shown[index].drop)
        if not shown[dropped].drop:
            break
        del shown[dropped]
    rest = max(width - sum(each.width for each in shown.values()), REST_MIN)
    return {index: each.width or rest for index, each in shown.items()}


def _cell(given: str | Text, width: int) -> Text:
    """Return a cell on one line, truncated at the width of its column."""
    text = Text(visible(" ".join(given.split()))) if isinstance(given, str) else given.copy()
    text.truncate(max(width - 1, 1), overflow="ellipsis")
    return text


class Pane(VerticalScroll, can_focus=True):
    """A text that can be scrolled."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "scroll_down", "down", show=False), Binding("k", "scroll_up", "up", show=False),
        Binding("g", "scroll_home", "first", show=False), Binding("G", "scroll_end", "last", show=False),
        Binding("ctrl+d", "page_down", "page down", show=False), Binding("ctrl+u", "page_up", "page up", show=False),
    ]  # fmt: skip

    def compose(self) -> ComposeResult:
        """Yield the text."""
        yield Static(markup=False)

    def show(self, text: Text) -> None:
        """Show a text from its beginning."""
        self.query_one(Static).update(text)
        self.scroll_home(animate=False)


class Choices(OptionList):
    """A list to choose from."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "cursor_down", "down", show=False), Binding("k", "cursor_up", "up", show=False),
    ]  # fmt: skip


class Chooser(ModalScreen[str | None]):
    """Lets the reader choose one of several items. Esc returns None."""

    AUTO_FOCUS = "Choices"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "back")]

    def __init__(self, about: str, choices: Sequence[tuple[str, str]]) -> None:
        """
        Args:
            about: The question, shown above the list.
            choices: For each item, the value to return and the text to show.
        """
        super().__init__()
        self._about, self._choices = about, choices

    def compose(self) -> ComposeResult:
        """Yield the question, with the list below it."""
        with Vertical(classes="dialog"):
            yield Static(self._about, markup=False)
            yield Choices(*(Option(Text(visible(shown))) for _, shown in self._choices))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Return the chosen item."""
        self.dismiss(self._choices[event.option_index][0])


class Prompt(ModalScreen[str | None]):
    """Asks for a line of text. Esc returns None."""

    AUTO_FOCUS = "Input"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "back")]

    def __init__(self, about: str, given: str = "", sign: str = "/") -> None:
        super().__init__()
        self._about, self._given, self._sign = about, given, sign

    def compose(self) -> ComposeResult:
        """Yield the question, with the input line below it."""
        with Vertical(classes="prompt"):
            yield Static(f"{self._sign} {self._about}", markup=False)
            yield Input(self._given, compact=True, select_on_focus=False)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Return the line."""
        self.dismiss(event.value.strip())


class DeckScreen(Screen[None]):
    """A screen that shows one answer. `about`: what it is for, shown by `?`."""

    about: ClassVar[str] = ""
    is_live: bool = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "back", "back"),
        Binding("y", "copy", "copy command", show=False),
        Binding("ctrl+r", "again", "ask again", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.queries: Sequence[Query] = ()
        self.cut_text = ""

    @property
    def deck(self) -> Deck:
        """The app."""
        return cast("Deck", self.app)

    def compose(self) -> ComposeResult:
        """Yield the frame and the answer's widgets."""
        yield Static(id="title", markup=False)
        yield from self.compose_answer()
        yield Static(id="command", markup=False)
        yield Footer(show_command_palette=False, compact=True)

    def compose_answer(self) -> ComposeResult:
        """Yield the widgets of the answer."""
        raise NotImplementedError

    @property
    def name_shown(self) -> str:
        """The name of the screen in the title bar."""
        raise NotImplementedError

    async def load(self) -> str:
        """Ask, and show the answer; set `queries` and `cut_text`.

        Returns:
            A note to show in the command line instead of the command; empty for none.

        Raises:
            RefoldError: There is no answer.
        """
        raise NotImplementedError

    def on_mount(self) -> None:
        """Ask for the first time."""
        self._show_title("…")
        self.action_again()

    def moment_chosen(self) -> None:
        """Reload, for the moment that the reader chose for all screens."""
        self.action_again()

    def action_again(self) -> None:
        """Reload: ask the question again."""
        _: Worker[None] = self.run_worker(self._load, exclusive=True, group="load")

    async def _load(self) -> None:
        try:
            note = await self.load()
        except (RefoldError, OSError) as error:
            self.say_problem(str(error))
            return
        self._show_title("● live" if self.is_live else f"cut {read_cut(self.cut_text).short}")
        if note:
            self._show_line(Text(visible(note), "yellow"))
        else:
            self._show_command()

    async def ask(self, question: Callable[[AgentLog], T]) -> T:
        """Ask a question; see LogThread.ask.

        Raises:
            CancelledError: The screen is closed meanwhile, and has nothing to show the answer in.
        """
        try:
            return await self.deck.log_thread.ask(question)
        finally:
            if not self.display:  # Textual displays no screen that it is removing
                raise asyncio.CancelledError

    def answer_then(self, question: Callable[[AgentLog], T], show: Callable[[T], None]) -> None:
        """Ask, and show the answer as soon as it arrives. A newer question cancels one that still runs."""

        async def asked() -> None:
            try:
                show(await self.ask(question))
            except (RefoldError, OSError) as error:
                self.say_problem(str(error))
            else:
                self._show_command()

        _: Worker[None] = self.run_worker(asked, exclusive=True, group="part")

    def _show_title(self, right: str) -> None:
        left = f" refold  {visible(self.name_shown)}"
        room = max(1, self.app.size.width - len(left) - len(right) - 1)
        self.query_one("#title", Static).update(left + " " * room + right)

    def _show_command(self) -> None:
        text = f"$ {_CUT.sub(_shorten_cut, visible(self.command))}" if self.queries else ""
        self._show_line(Text(text, "dim"))

    def say_problem(self, problem: str) -> None:
        """Show why there is no answer."""
        self._show_line(Text(f"! {visible(problem)}", "bold red"))

    def _show_line(self, text: Text) -> None:
        self.query_one("#command", Static).update(text)

    @property
    def command(self) -> str:
        """The command that gives the same answer as the newest part of the screen."""
        return command_text(self.queries[-1].arguments, self.deck.shown_url) if self.queries else ""

    def action_back(self) -> None:
        """Leave the screen. The first screen cannot be left."""
        if len(self.app.screen_stack) > 2:
            self.app.pop_screen()

    def action_copy(self) -> None:
        """Copy the command that gives the same answer."""
        self.app.copy_to_clipboard(self.command)
        self.app.notify(visible(self.command), title="Copied", markup=False)
