"""`refold deck`: the explorer in a terminal.

    runs       all runs                           run       one run, step by step
    entities   all entities                       entity    one entity: its state at a moment, its history
    why        the sources of a value             compare   two runs, from their first difference
    changes    changes as they are recorded

The deck only reads. Each screen asks the same questions as the explorer's pages, and shows the `refold` command that
gives the same answer. Keys follow k9s and lazygit: `:` switches screens, `/` filters, `?` shows help.
"""

from __future__ import annotations

import shlex
from typing import ClassVar

from textual.app import App
from textual.binding import Binding, BindingType

from refold.avro.errors import InputError, RefoldError
from refold.explorer.deck.changes import ChangesScreen
from refold.explorer.deck.compare import CompareScreen
from refold.explorer.deck.entities import EntitiesScreen
from refold.explorer.deck.entity import EntityScreen
from refold.explorer.deck.frame import DeckScreen, Prompt
from refold.explorer.deck.help import HelpScreen
from refold.explorer.deck.log_thread import LogThread
from refold.explorer.deck.run import RunScreen
from refold.explorer.deck.runs import RunsScreen
from refold.explorer.deck.why import WhyScreen
from refold.explorer.queries.log_target import LogTarget

LIVE_S = 1.0
GO_TO = "runs | entities [TYPE] | entity TYPE/ID | run ID [STEP] | compare A B | changes | at WHEN | now | q"


class DeckApp(App[None]):
    """The deck over one log.

    Attributes:
        shown_url: The log as commands name it; None: REFOLD_LOG names it.
        at: The moment that newly opened screens show, as WHEN; empty: now.
        marked: The run that `space` marked, to compare it with another.
    """

    TITLE = "refold"
    CSS_PATH = "deck.tcss"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("colon", "go_to", "go to", key_display=":"),
        Binding("at", "moment", "moment", key_display="@", show=False),
        Binding("question_mark", "teach", "help", key_display="?"),
        Binding("q", "quit", "quit"),
    ]

    def __init__(self, target: LogTarget, *, live_s: float = LIVE_S) -> None:
        super().__init__()
        self.log_thread = LogThread(target)
        self.shown_url = target.url
        self.at = ""
        self.marked = ""
        self._live_s = live_s

    def open_run(self, run: str, step: int = 0, at: str = "", *, is_live: bool | None = None) -> None:
        """Open a run at a step; 0: at its failure."""
        self.push_screen(RunScreen(run, step, at, is_live=is_live))

    def open_entity(self, entity: str, at: str = "", end: str = "") -> None:
        """Open an entity at a moment.

        Args:
            entity: The entity, as TYPE/ID.
            at: The moment, as WHEN; empty: the deck's `at`.
            end: The cut at which its slider ends; empty: the newest.
        """
        self.push_screen(EntityScreen(entity, at, end))

    def open_why(self, value: str, at: str) -> None:
        """Open the sources of a value, TYPE/ID.FIELD."""
        self.push_screen(WhyScreen(value, at))

    def open_compare(self, a: str, b: str, at: str = "") -> None:
        """Open two runs side by side."""
        self.push_screen(CompareScreen(a, b, at))

    def on_mount(self) -> None:
        """Show the runs, and check for new records at an interval."""
        self.push_screen(RunsScreen())
        self.set_interval(self._live_s, self._reload_if_grown)

    def on_unmount(self) -> None:
        """Close the log."""
        self.log_thread.close()

    async def _reload_if_grown(self) -> None:
        """Reload the screen if the log has grown."""
        screen = self.screen
        if not isinstance(screen, DeckScreen) or not screen.is_live or not screen.cut_text:
            return
        try:
            newest = await self.log_thread.ask(lambda log: str(log.point(None).cut))
        except (RefoldError, OSError) as error:
            if screen.display:  # it may have been closed meanwhile
                screen.say_problem(str(error))
            return
        if screen.display and screen.is_current and newest != screen.cut_text:
            screen.action_again()

    def action_teach(self) -> None:
        """Show the keys of the current screen."""
        if isinstance(self.screen, DeckScreen):
            self.push_screen(HelpScreen(self.screen))

    def action_moment(self) -> None:
        """Ask the reader for a moment."""
        if isinstance(self.screen, DeckScreen):
            self.push_screen(
                Prompt("the moment to look at: a time, @MARKER, a cut, run:ID#STEP; empty: now", self.at, "@"),
                self._set_moment,
            )

    def _set_moment(self, given: str | None) -> None:
        if given is None:
            return
        self.at = "" if given == "now" else given
        if isinstance(self.screen, DeckScreen):
            self.screen.moment_chosen()

    def action_go_to(self) -> None:
        """Ask the reader for the next screen."""
        if isinstance(self.screen, DeckScreen):
            self.push_screen(Prompt(GO_TO, sign=":"), self._open_typed)

    def _open_typed(self, given: str | None) -> None:
        if not given:
            return
        try:
            self._open_screen(shlex.split(given))
        except (InputError, ValueError) as error:
            if isinstance(self.screen, DeckScreen):
                self.screen.say_problem(str(error))

    def _open_screen(self, words: list[str]) -> None:
        """Open the screen that the reader typed.

        Raises:
            InputError: The words name no screen.
        """
        match words:
            case ["runs"]:
                self.push_screen(RunsScreen())
            case ["run", run]:
                self.open_run(run)
            case ["run", run, step] if step.isdecimal():
                self.open_run(run, int(step))
            case ["entities", *types] if len(types) <= 1:
                self.push_screen(EntitiesScreen(*types))
            case ["entity", entity]:
                self.open_entity(entity)
            case ["compare", a, b]:
                self.open_compare(a, b)
            case ["changes"]:
                self.push_screen(ChangesScreen())
            case ["at", moment]:
                self._set_moment(moment)
            case ["now"]:
                self._set_moment("")
            case ["q" | "quit"]:
                self.exit()
            case _:
                raise InputError(f"{shlex.join(words)}: go to one of {GO_TO}")
