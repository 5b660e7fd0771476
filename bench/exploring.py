"""Measures the pages of `refold explore` on a large log: the goals are below.

1. The log of explored_log.py is made, if it is not there.
2. `refold explore` is started; the time until it answers /static/icon.svg is measured.
3. Each page is asked for once (its index is made then), and then ROUNDS times, with another run or entity each time.
4. If Chromium is installed, a browser measures the first paint of the page of the long run, and the longest task while
   its list of steps is scrolled through several windows.
5. Observations are recorded for a while, with and without TABS readers that follow the log (/live) and reload the list
   of runs as a browser does. The fold's CPU time for each observation is compared: other load does not change it.
"""

from __future__ import annotations

import http.client
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple
from urllib.parse import urlsplit

from explored_log import ENTITIES, LONG, LONG_RUN, RUNS, explored_log
from page import titled_table
from rich.console import Console
from workload import observations, uniform

import refold

ROUNDS = 30
TABS = 10
FOLDED, PAIRS = 20_000, 3
SCROLLED = 30
WAIT_S = 120
GOALS = {"p95, ms": 200, "first paint, ms": 1_000, "longest task, ms": 50, "ready, s": 1.0, "live tabs, %": 5.0}


class PageFigures(NamedTuple):
    """Milliseconds of one page: the first request, and the later ones."""

    name: str
    first: float
    p50: float
    p95: float


def _pages(share: int) -> dict[str, Callable[[int], str]]:
    """Return, by name, the address of a page for a round."""

    def run(number: int) -> str:
        return f"run-{number * 37 % (RUNS // share):06d}"

    def entity(number: int) -> str:
        return f"entity-{number * 37 % (ENTITIES // share):07d}"

    return {
        "runs": lambda number: "/",
        "runs, failed": lambda number: f"/?outcome=failed&agent=agent-{number % 5}",
        "a run": lambda number: f"/run/{run(number)}",
        "a step": lambda number: f"/run/{run(number)}?step={number % 15 + 1}",
        "a long run": lambda number: f"/run/{LONG_RUN}?step={(number * 3_001) % (LONG // share) + 1}",
        "a story": lambda number: f"/story/{run(number)}",
        "comparison": lambda number: f"/compare?a={run(number)}&b={run(number + 1)}",
        "entities": lambda number: "/entities?type=tool_config",
        "an entity": lambda number: f"/entity/tool_config/{entity(number)}",
        "reads of an entity": lambda number: f"/entity/tool_config/{entity(number)}?clock=read",
        "changes": lambda number: "/changes",
        "agents": lambda number: "/agents",
        "healings": lambda number: "/healings",
        "operate": lambda number: "/operate",
    }


def _get(url: str, target: str) -> None:
    """Get a page, following redirects as a browser does."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=WAIT_S)
    try:
        while True:
            connection.request("GET", target)
            answer = connection.getresponse()
            answer.read()
            if answer.status != 303:
                break
            target = answer.headers["Location"]
        if answer.status != 200:
            raise AssertionError(f"{target}: {answer.status}")
    finally:
        connection.close()


@contextmanager
def _explorer(path: Path) -> Iterator[tuple[str, float]]:
    """Start `refold explore`; yield its URL, and the seconds until it answered."""
    began = time.perf_counter()
    command = [
        sys.executable,
        "-P",
        "-m",
        "refold.explorer.cli.main",
        "explore",
        "--port",
        "0",
        "--log",
        f"file:{path}",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[1].rstrip("/")
        _get(url, "/static/icon.svg")
        try:
            yield url, time.perf_counter() - began
        finally:
            process.terminate()


def _figures(url: str, share: int) -> Iterator[PageFigures]:
    for name, address in _pages(share).items():
        took = []
        for number in range(ROUNDS + 1):
            began = time.perf_counter()
            _get(url, address(number))
            took.append((time.perf_counter() - began) * 1000)
        cuts = quantiles(took[1:], n=100)
        yield PageFigures(name, took[0], cuts[49], cuts[94])


def _browsed(url: str, share: int) -> tuple[float, float] | None:
    """Return milliseconds: the first paint of the long run's page, and the longest task while its steps are scrolled.
    None without Chromium.
    """
    program = shutil.which("chromium")
    if program is None:
        return None
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page()
        page.add_init_script(_OBSERVER)
        page.goto(f"{url}/run/{LONG_RUN}?step={LONG // share // 2}", wait_until="networkidle")
        paint = page.evaluate('performance.getEntriesByName("first-contentful-paint")[0].startTime')
        page.evaluate("tasks.length = 0")
        for _ in range(SCROLLED):
            page.evaluate('document.querySelector(".steps").scrollBy(0, 1500)')
            page.wait_for_timeout(100)  # as a reader scrolls
        longest = page.evaluate("Math.max(0, ...tasks)")
        browser.close()
    return paint, longest


_OBSERVER = """
globalThis.tasks = [];
new PerformanceObserver((list) => { for (const each of list.getEntries()) tasks.push(each.duration); })
    .observe({ type: "longtask", buffered: true });
"""


def _tab(url: str) -> None:
    """Follow the log as a live page does: it reloads at most every 2 s, and for at most a tenth of the time."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=WAIT_S)
    with suppress(OSError):  # the server ends first
        connection.request("GET", "/live", headers={"Accept": "text/event-stream"})
        answer = connection.getresponse()
        while answer.readline():
            began = time.perf_counter()
            _get(url, "/")
            time.sleep(max(2.0, 10 * (time.perf_counter() - began)))
    connection.close()


def _fold(log: refold.AgentLog, seed: int) -> float:
    """Record observations, and return the microseconds of this process's CPU time for each."""
    given = list(islice(observations(FOLDED, uniform(ENTITIES, seed)), FOLDED))
    began = time.process_time()
    for each in given:
        log.observe(**each)
    log.flush()
    return (time.process_time() - began) * 1e6 / FOLDED


def _live_cost(folder: Path) -> float:
    """Return the share of CPU time that TABS live tabs add to the fold: the median of PAIRS pairs, on another log."""
    shares = []
    with tempfile.TemporaryDirectory(dir=folder) as place:
        path = Path(place) / "log"
        with refold.open(f"file:{path}") as log:
            _fold(log, 1)
            with _explorer(path) as (url, _):
                for pair in range(PAIRS):
                    without = _fold(log, 100 + pair)
                    with subprocess.Popen([sys.executable, __file__, url]) as tabs:
                        time.sleep(1)  # until the tabs follow
                        shares.append(_fold(log, 200 + pair) / without - 1)
                        tabs.terminate()
    return median(shares) * 100


def show(console: Console, folder: Path, share: int) -> None:
    """Print the tables."""
    with console.status("the explorer's log"):
        path = explored_log(folder, share)
    table = titled_table(
        f"Pages of refold explore, {RUNS // share:,} runs (goal: p95 under {GOALS['p95, ms']} ms)",
        "page", "first time, ms", "p50, ms", "p95, ms",
    )  # fmt: skip
    with console.status("the explorer"), _explorer(path) as (url, ready_s):
        for each in _figures(url, share):
            table.add_row(each.name, f"{each.first:,.0f}", f"{each.p50:.0f}", f"{each.p95:.0f}")
        browsed = _browsed(url, share)
    with console.status("live tabs"):
        cost = _live_cost(folder)
    console.print(table)
    more = titled_table("The explorer, otherwise", "what", "measured", "goal, under")
    measured = {"ready, s": f"{ready_s:.2f}", "live tabs, %": f"{cost:.1f}"}
    if browsed is not None:
        measured |= {"first paint, ms": f"{browsed[0]:.0f}", "longest task, ms": f"{browsed[1]:.0f}"}
    for name, value in measured.items():
        more.add_row(name, value, str(GOALS[name]))
    console.print(more)


if __name__ == "__main__":  # the readers of _live_cost, in a process of their own
    readers = [threading.Thread(target=_tab, args=(sys.argv[1],), daemon=True) for _ in range(TABS)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
