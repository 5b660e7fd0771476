"""Help for a screen: its keys and its purpose."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen
from textual.widgets import Static

from refold.explorer.deck.frame import DeckScreen, Pane
from refold.explorer.deck.texts import lines

MOVING = """\
On every screen
j k           down, up; the arrows do the same
g G           first, last
ctrl+d ctrl+u a page down, a page up
tab           the next part of the screen
enter         open what is under the cursor
esc           back
y             copy the command of refold that gives this answer
ctrl+r        ask again
@             look at another moment; empty: now
:             go to a screen: runs, run ID, entity TYPE/ID
q             leave the deck"""
EVERYWHERE = frozenset({"escape", "y", "ctrl+r", "question_mark", "colon", "at", "q", "tab", "shift+tab", "ctrl+c"})
NAMES = {"left_square_bracket": "[", "right_square_bracket": "]", "slash": "/"}


class HelpScreen(ModalScreen[None]):
    """Shows the keys of a screen. Esc, q, ? and Enter close it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark,enter", "dismiss(None)", "back")]

    def __init__(self, screen: DeckScreen) -> None:
        super().__init__()
        self._screen = screen

    def compose(self) -> ComposeResult:
        """Yield the text."""
        pane = Pane(classes="dialog")
        yield pane

    def on_mount(self) -> None:
        """Show the keys of the screen first, then those of every screen."""
        keys = [
            Text(f"{NAMES.get(each.key, each.key):14}{each.description}")
            for each in _own(self._screen)
        ]  # fmt: skip
        text = [Text(self._screen.about), Text(), *keys, Text(), Text(MOVING), Text(), Text("esc: back", "dim")]
        self.query_one(Pane).show(lines(text))
        self.query_one(Pane).query_one(Static).styles.width = "100%"


def _own(screen: DeckScreen) -> list[Binding]:
    """Return the keys that only this screen has."""
    found: dict[str, Binding] = {}
    for given in type(screen).BINDINGS:
        if isinstance(given, Binding) and given.key not in EVERYWHERE:
            found[given.key] = given
    return list(found.values())
