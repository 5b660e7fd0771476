"""Recorded values cannot control the deck: no markup, no terminal escapes, no reversed text, no oversized values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import refold
from refold.explorer.deck.frame import REST_MIN, DeckColumn, column_widths
from refold.explorer.deck.texts import value_text
from refold_tests.deck_driver import Decked, on_deck

pytestmark = pytest.mark.outside

HOSTILE = "\x1b[2J\x1b]0;owned\x07 [bold red]markup[/] [@click=app.quit]x[/] \u202egnol\u202c \x00\x9b31m"
NAME = "[bold red]markup[/] [@click=app.quit]x[/]"
ACTED_ON = ("\x1b", "\x07", "\x00", "\x9b", "\u202e")


@pytest.fixture(scope="module")
def hostile_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A log in which every text is hostile."""
    url = f"file:{tmp_path_factory.mktemp('hostile') / 'log'}"
    with refold.open(url) as log:
        log.observe("tool_config/acme", {"tool": HOSTILE, "description": HOSTILE}, source=NAME)
        log.flush()

        def work(run: refold.Run) -> None:
            with run.step(NAME):
                run.read("tool_config/acme")
                run.state["text"] = HOSTILE
                run.state["large"] = "x" * 5_000_000
                run.state["many"] = {f"key {number}": HOSTILE for number in range(10_000)}
                run.decide(HOSTILE, why=HOSTILE)
            raise RuntimeError(HOSTILE)

        with pytest.raises(RuntimeError):
            log.run(NAME, id="hostile-1", title=NAME).drive(work)
    return url


def test_hostile_text_is_shown_without_effect(hostile_url: str) -> None:
    async def look(deck: Decked) -> None:
        screens = []
        for words in ("runs", "run hostile-1", "entity tool_config/acme", "changes", "entities tool_config"):
            await deck.press(":")
            await deck.type(words)
            screens.append(deck.text)
        await deck.press(":")
        await deck.type("run hostile-1")
        for key in (*"234r1", "2", "tab", "G"):
            await deck.press(key)
            screens.append(deck.text)
        assert not [each for text in screens for each in ACTED_ON if each in text]
        assert sum(r"\x1b[2J" in text for text in screens) >= 5
        assert any("[bold red]markup[/]" in " ".join(text.split()) for text in screens)
        assert "more characters" in screens[-1]

    on_deck(hostile_url, look, size=(120, 60))


@given(st.text(), st.integers(0, 8))
def test_no_value_controls_the_terminal(value: str, indent: int) -> None:
    text = value_text(value, indent).plain
    assert all(each.isprintable() or each in "\n\t\u200c\u200d" or each.isspace() for each in text)
    assert "\x1b" not in text
    assert "\r" not in text


@given(
    st.lists(st.builds(DeckColumn, st.just("x"), st.integers(1, 40), st.integers(0, 3)), max_size=8),
    st.integers(1, 300),
)
def test_columns_fit_the_terminal_by_dropping_optional_ones(columns: list[DeckColumn], width: int) -> None:
    every = [DeckColumn("rest"), *columns]
    widths = column_widths(every, width)
    assert 0 in widths
    assert widths[0] >= REST_MIN
    assert {index for index, each in enumerate(every) if not each.drop} <= widths.keys()
    if any(every[index].drop for index in widths):
        assert sum(widths.values()) <= width
