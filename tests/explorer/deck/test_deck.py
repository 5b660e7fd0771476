"""The deck, used only by keys: an incident is solved, a stale read is traced, and each screen shows its command."""

from __future__ import annotations

import json
import os
import shlex
import threading
from pathlib import Path

import pytest
from textual.widgets import Static

import refold
from refold.explorer.deck.frame import DeckScreen
from refold.explorer.demo.desk import RUN
from refold_tests.command import refold_command
from refold_tests.deck_driver import PATIENCE_S, Decked, masked, on_deck
from refold_tests.explored import CONFIG, FORK, READER

pytestmark = pytest.mark.outside

SCREENS = Path(__file__).parent / "screens"


def test_incident_is_solved_by_keys(incident_url: str) -> None:
    async def solve(deck: Decked) -> None:
        await deck.shows("A leaking kettle", "Reads a limit", "$ refold runs")
        await deck.press("/")
        await deck.type("outcome:failed kettle")
        await deck.shows("Runs outcome:failed kettle", RUN)
        assert READER not in deck.text
        await deck.press("enter")
        await deck.shows("Step 4 pay: failed", "PaymentRefused", "cents = 1998")
        await deck.press("k", "2")
        await deck.shows("cents", "+ 1998")
        await deck.press("k", "1")
        await deck.shows("Step 2 decide", "refund the kettle", "because the customer says that it leaks")
        await deck.press("f")
        await deck.shows("Step 4 pay: failed")
        await deck.press("c")
        await deck.shows("first divergence at step 4", "kwargs.cents", "- 1998", "+ 1999")
        await deck.press("b")
        await deck.shows("Step 4 pay: succeeded", "cents = 1999")
        await deck.press("escape", "escape", "escape")
        await deck.shows("Runs outcome:failed kettle")

    on_deck(incident_url, solve)


def test_search_says_how_many_runs_it_left_out(incident_url: str) -> None:
    async def search(deck: Decked) -> None:
        await deck.press("/")
        await deck.type("kettle steps:1")
        await deck.shows("3 runs were not searched: steps:4 searches more")
        await deck.press("/")
        await deck.press(*["backspace"] * len("1"))
        await deck.type("4")
        await deck.shows("incident-1", "A leaking kettle")

    on_deck(incident_url, search)


def test_overwrite_is_found_from_the_run_that_read_it(incident_url: str) -> None:
    async def find(deck: Decked) -> None:
        await deck.press(":")
        await deck.type(f"run {READER} 2")
        await deck.shows("Run Reads a limit")
        await deck.press("4")
        await deck.shows("stale", "rate_limit: it knew 50, the log had 500")
        await deck.press("e")
        await deck.shows(f"{CONFIG} v1", "1 of 2", "50 → 500")
        await deck.press("right")
        await deck.shows(f"{CONFIG} v2", "v2: rate_limit, timeout_ms, by deployer")
        await deck.press("w")
        await deck.shows(f"Why {CONFIG}.rate_limit", "by deployer", "rate_limit = 500")
        await deck.press("e")
        await deck.shows(f"{CONFIG} v2")

    on_deck(incident_url, find)


def test_slider_moves_over_three_clocks(incident_url: str) -> None:
    async def move(deck: Decked) -> None:
        await deck.press(":")
        await deck.type(f"entity {CONFIG}")
        await deck.shows(f"{CONFIG} v2", "2 of 2")
        await deck.press("home")
        await deck.shows(f"{CONFIG} v1", "1 of 2", "v1: rate_limit, timeout_ms, by deployer")
        await deck.press("c")
        await deck.shows("true: when it happened", "1 of 2")
        await deck.press("l")
        await deck.shows(f"{CONFIG} v2", "2 of 2")
        await deck.press("c")
        await deck.shows("read: when an agent read it", "at none of its 1 moments")
        await deck.press("l")
        await deck.shows(f"{CONFIG} v1", "v1, read by reader in step 1 of reader-1")

    on_deck(incident_url, move)


def test_state_of_a_requested_time(incident_url: str) -> None:
    async def ask(deck: Decked) -> None:
        await deck.press("@")
        await deck.type("@deploy-1")
        await deck.shows("no run is recorded here")
        await deck.press(":")
        await deck.type("entities tool_config")
        await deck.shows(CONFIG, "v1")
        await deck.press("enter")
        await deck.shows(f"{CONFIG} v1")
        await deck.press("@")
        await deck.type("@nobody")
        await deck.shows("nobody")
        await deck.press("escape", ":")
        await deck.type("now")
        await deck.shows(CONFIG, "v2")

    on_deck(incident_url, ask)


def test_two_marked_runs_are_compared(incident_url: str) -> None:
    async def compare(deck: Decked) -> None:
        await deck.press(" ", "j")
        await deck.shows("✗* incident-1")
        await deck.press("c")
        await deck.shows(f"Compare A {RUN} B {FORK}", "first divergence at step 4")
        await deck.press("escape", "j", "c")
        await deck.shows(f"Compare A {RUN} B {READER}")

    on_deck(incident_url, compare)


def test_related_runs_are_one_key_away(incident_url: str) -> None:
    async def walk(deck: Decked) -> None:
        await deck.press(":")
        await deck.type(f"run {READER}")
        await deck.shows("Run Reads a limit")
        await deck.press("x", "enter")
        await deck.shows("Run helper-1", "Step 1 look")
        await deck.press("x")
        await deck.shows("this run began in its step 2")
        await deck.press("escape")
        await deck.shows("Run helper-1")

    on_deck(incident_url, walk)


def test_each_shown_command_prints_the_values_of_its_screen(incident_url: str) -> None:
    seen: dict[str, str] = {}

    async def walk(deck: Decked) -> None:
        seen["runs"] = deck.command
        for name, words in {
            "entities": "entities tool_config", "entity": f"entity {CONFIG}", "run": f"run {RUN} 4",
            "compare": f"compare {RUN} {FORK}", "changes": "changes",
        }.items():  # fmt: skip
            await deck.press(":")
            await deck.type(words)
            seen[name] = deck.command
        await deck.press(":")
        await deck.type(f"entity {CONFIG}")
        await deck.press("w")
        await deck.shows("Why")
        seen["why"] = deck.command

    on_deck(incident_url, walk)

    def answer(name: str) -> str:
        asked = refold_command(*shlex.split(seen[name])[1:], *([] if name == "changes" else ["--json"]))
        assert asked.status in (0, 1), (seen[name], asked)
        return asked.out

    assert {row["run"] for row in json.loads(answer("runs"))} == {RUN, FORK, READER, "helper-1"}
    assert [each["entity"] for each in json.loads(answer("entities"))] == [CONFIG]
    state = json.loads(answer("entity"))
    assert (state["version"], state["fields"]["rate_limit"]["value"]) == (2, 500)
    assert (
        json.loads(answer("run"))[0]["failure"]["message"] == "order 1042: 1998 cents is not what was captured "
        "for the kettle"
    )
    assert json.loads(answer("compare"))["divergence"]["step"] == 4
    assert json.loads(answer("why"))[0]["patch"] == {"rate_limit": 500, "timeout_ms": 30000}
    assert "rate_limit" in answer("changes")


def test_active_run_is_updated_live(tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'log'}"
    with refold.open(url) as log:
        log.observe(CONFIG, {"rate_limit": 1})
        log.flush()

        async def watch(deck: Decked) -> None:
            await deck.shows("no run is recorded here")
            with log.run("worker", id="live-1", title="Works") as run:
                with run.step("first"):
                    run.state["count"] = 1
                await deck.shows("Works")
                await deck.press("enter")
                await deck.shows("Step 1 first", "● live")
                with run.step("second"):
                    run.state["count"] = 2
                await deck.shows("✓ 2 second")
            await deck.shows("Run Works", "cut ")

        on_deck(url, watch, live_s=0.5)


def test_answer_for_a_closed_screen_is_dropped(incident_url: str) -> None:
    """It arrives while the widgets of the screen are removed."""
    shown: list[bool] = []

    async def leave(deck: Decked) -> None:
        asked = threading.Event()

        class Removed(Static):
            async def on_unmount(self) -> None:
                asked.set()
                await deck.until(lambda: all(each.is_finished for each in deck.app.workers), "the answer")

        screen = deck.app.screen
        assert isinstance(screen, DeckScreen)
        await screen.mount(Removed())
        screen.answer_then(lambda log: asked.wait(PATIENCE_S), shown.append)

    on_deck(incident_url, leave)
    assert shown == []


def test_errors_are_shown(incident_url: str) -> None:
    async def ask(deck: Decked) -> None:
        for words, said in {
            "run nobody": "no run nobody is in this log", "entity tool_config/none": "tool_config/none",
            "compare a b": "no run a is in this log", "nonsense": "go to one of runs",
            "run 'open quote": "No closing quotation",
        }.items():  # fmt: skip
            await deck.press(":")
            await deck.type(words)
            await deck.shows("!", said)
        await deck.press("escape", "escape", "escape", "escape", "escape")
        await deck.press("/")
        await deck.type("outcome:rich")
        await deck.shows("outcome: one of succeeded")
        await deck.press("c")
        await deck.shows("mark a run with space")

    on_deck(incident_url, ask)


def test_question_mark_shows_the_keys_and_q_quits(incident_url: str) -> None:
    async def ask(deck: Decked) -> None:
        for words, taught in {
            "runs": "agent:NAME", f"entity {CONFIG}": "three clocks", f"run {RUN}": "opens at the failure",
            "changes": "p pause",
        }.items():  # fmt: skip
            await deck.press(":")
            await deck.type(words)
            await deck.press("?")
            await deck.shows(taught)
            await deck.press("G")
            await deck.shows("leave the deck")
            await deck.press("escape")
        await deck.press("q")
        await deck.until(lambda: not deck.app.is_running, "the end")

    on_deck(incident_url, ask)


def test_screens_match_their_snapshots(incident_url: str) -> None:
    """The screens are 80x24. After an intended change: `make looks`, and look at the files."""

    async def look(deck: Decked) -> None:
        for name, words in {
            "runs": "runs", "run": f"run {RUN}", "entities": "entities", "entity": f"entity {CONFIG}",
            "compare": f"compare {RUN} {FORK}",
        }.items():  # fmt: skip
            await deck.press(":")
            await deck.type(words)
            path = SCREENS / f"{name}.txt"
            if os.environ.get("REFOLD_RENEW_LOOKS"):
                path.write_text(masked(deck.lines), encoding="utf-8")
            assert masked(deck.lines) == path.read_text(encoding="utf-8"), name

    on_deck(incident_url, look)
