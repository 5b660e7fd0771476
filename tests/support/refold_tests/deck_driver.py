"""The deck of a log, driven by keys without a terminal. Its screen is read as lines of text."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Coroutine
from typing import Any

from textual.pilot import Pilot

from refold.explorer.deck.app import DeckApp
from refold.explorer.deck.frame import DeckScreen
from refold.explorer.queries.log_target import LogTarget

PATIENCE_S = 120.0
LOOK_S = 0.02
SIZE = (80, 24)
KEYS = {"/": "slash", ":": "colon", "?": "question_mark", "@": "at", "[": "left_square_bracket",
        "]": "right_square_bracket", " ": "space", "-": "minus"}  # fmt: skip


class Decked:
    """An open deck. Keys are pressed only while the screen waits for input, not while an answer is being loaded."""

    def __init__(self, app: DeckApp, pilot: Pilot[None]) -> None:
        self.app = app
        self._pilot = pilot

    @property
    def lines(self) -> list[str]:
        """Return the lines of the screen, without trailing spaces."""
        found = self.app.screen._compositor.render_strips()
        return ["".join(segment.text for segment in strip).rstrip() for strip in found]

    @property
    def text(self) -> str:
        """Return the text of the whole screen."""
        return "\n".join(self.lines)

    @property
    def command(self) -> str:
        """Return the complete command that the screen shows."""
        screen = self.app.screen
        assert isinstance(screen, DeckScreen)
        return screen.command

    async def press(self, *keys: str) -> None:
        """Press keys, given by character or name. Each is pressed after the previous one was handled."""
        for key in keys:
            await self._pilot.press(KEYS.get(key, key))
            await self._await_idle()

    async def type(self, text: str) -> None:
        """Type a text, and press Enter."""
        await self.press(*text, "enter")

    async def shows(self, *texts: str) -> None:
        """Wait until every text is on the screen. Any whitespace counts as one space."""
        await self.until(lambda: all(each in " ".join(self.text.split()) for each in texts), f"{texts} on the screen")

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until a condition holds."""
        end = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < end, f"not seen in {PATIENCE_S:g} s: {what}; the screen:\n{self.text}"
            await self._pilot.pause(LOOK_S)

    async def _await_idle(self) -> None:
        await self._pilot.pause()
        await self.until(lambda: all(each.is_finished for each in self.app.workers), "the answer")
        await self._pilot.pause()


def on_deck(
    url: str, body: Callable[[Decked], Coroutine[Any, Any, None]], *, size: tuple[int, int] = SIZE, live_s: float = 3600
) -> None:
    """Open the deck of a log, run `body`, and close it. live_s: the interval of its checks for new records, in
    seconds.
    """

    async def opened() -> None:
        app = DeckApp(LogTarget(url), live_s=live_s)
        async with app.run_test(size=size) as pilot:
            deck = Decked(app, pilot)
            await deck.until(lambda: isinstance(app.screen, DeckScreen), "a first screen")
            await deck._await_idle()
            await body(deck)

    asyncio.run(opened())


_TOOK = re.compile(r"\b0(?:\.0)? (?:µs|ms|s|min|h)\b")


def masked(lines: list[str]) -> str:
    """Return lines with numbers, durations and spaces masked, so that they do not depend on when the log was
    written.
    """
    found = []
    for line in lines:
        numbers = re.sub(r"[0-9]+", "0", re.sub(r"cut [0-9a-f]{12}|cut:\S+|--log \S+|\b[0-9a-f]{16}…", "cut", line))
        found.append(" ".join(_TOOK.sub("0 t", numbers).split()))
    return "\n".join(found) + "\n"
