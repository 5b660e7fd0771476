"""A run that has not ended: commands, pages and the deck say since when nothing of it was recorded, and what is known
of its process.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

import refold
from refold.agents.supervise.entries import AgentEntries, OwnedEntries
from refold.agents.supervise.lease import ObservedState
from refold.agents.supervise.settings import AgentSettings
from refold.avro.times import millis_text
from refold.explorer.cli.main import run
from refold_tests.deck_driver import Decked, on_deck
from refold_tests.explored import Explored, explored
from refold_tests.recorded_runs import BEGIN, random_run, write
from refold_tests.supervised import now

pytestmark = pytest.mark.outside

NOT_KNOWN = "whether its process runs is not known"
KNOWN = {
    "alone-1": NOT_KNOWN,
    "desk-1": "its process runs: agent desk is running, its process runs",
    "till-1": "its process is gone: agent till is waiting, it exited with 1",
    "cut-off-1": f"{NOT_KNOWN}: agent cut-off is unknown, its owner x@h/1 renewed nothing since; it was running",
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A log with those runs, each of two steps, of which the second has not ended; and one that has ended."""
    url = f"file:{tmp_path_factory.mktemp('open') / 'log'}"
    states = {
        "desk": (3_600_000, ObservedState("running", "its process runs", "desk-1", 1, pid=99, host="h")),
        "till": (3_600_000, ObservedState("waiting", "it exited with 1", "till-1", 1)),
        "cut-off": (1, ObservedState("running", "its process runs", "cut-off-1", 1, pid=98, host="h")),
    }
    with refold.open(url) as log:
        for name, (lease_ms, observed) in states.items():
            entries = AgentEntries(log, now)
            mine = OwnedEntries(log, now, name, "token", "x@h/1", lease_ms)
            mine.claim(entries.read(name))
            mine.granted(entries.read(name), AgentSettings(command=("x",)))
            mine.status(entries.read(name), observed)
        for number, name in enumerate((*KNOWN, "ended-1")):
            given = random_run(random.Random(number), name, 1, ended=name == "ended-1")
            write(log, msgspec.structs.replace(given, started_at=BEGIN + number, title=name))
    return url


@pytest.fixture(scope="module")
def pages(url: str) -> Iterator[Explored]:
    """The pages of that log."""
    with explored(url) as found:
        yield found


def last_record(url: str, name: str) -> str:
    """Return when the newest record of a run was recorded."""
    with refold.open(url, read_only=True) as log:
        history = [*log.history(f"run/{name}"), *log.history(f"step/{name}#2")]
        return millis_text(max(row.recorded_at for row in history))


def command_output(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run([*arguments]) == 0
    return capsys.readouterr().out


def test_commands_say_what_is_known(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows: list[dict[str, Any]] = json.loads(command_output(capsys, "runs", "--log", url, "--json"))
    text = command_output(capsys, "runs", "--log", url)
    assert [each["run"] for each in rows if "open" in each] == [*reversed(KNOWN)]
    for name, said in KNOWN.items():
        row = next(each for each in rows if each["run"] == name)
        at = last_record(url, name)
        process = {"desk-1": "runs", "till-1": "gone"}.get(name, "not known")
        assert (row["outcome"], row["open"]["last_record"], row["open"]["process"]) == (None, at, process)
        assert f"{name}: no record since {at}; {said}\n" in text
        shown = command_output(capsys, "run", "show", name, "--log", url)
        word = "running" if process == "runs" else "not ended"
        assert f"  outcome   {word}\n            no record since {at}; {said}\n" in shown
        [query] = [json.loads(command_output(capsys, "run", "show", name, "--log", url, "--json"))]
        assert query["open"] == row["open"]
    assert "open" not in json.loads(command_output(capsys, "run", "show", "ended-1", "--log", url, "--json"))


@pytest.mark.parametrize("name", KNOWN)
def test_pages_say_it_at_their_cut(pages: Explored, url: str, name: str) -> None:
    at = last_record(url, name).replace("T", " ").replace("Z", " UTC")
    # At a cut the lease is judged by the newest record below it, which came after the end of the short lease.
    said = f"{'● running' if name == 'desk-1' else '◌ not ended'} no record since {at} ; {KNOWN[name]}"
    for target in ("/", f"/run/{name}", f"/story/{name}"):
        page = pages.get(target)
        assert said in page.text
        assert pages.get(page.url).body == page.body
    assert "no record since" not in pages.get("/run/ended-1").text


def test_deck_says_it(url: str) -> None:
    async def look(deck: Decked) -> None:
        await deck.shows("○ till-1", "▶ desk-1", f"; {KNOWN['till-1']})")
        await deck.press(":")
        await deck.type("run till-1")
        await deck.shows("no record since", KNOWN["till-1"][:30])

    on_deck(url, look, size=(240, 40))
