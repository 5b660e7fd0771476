"""The explorer in Debian's Chromium: an incident is solved with the mouse, and with the keyboard alone."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

import refold
from refold.explorer.cli.main import run as command
from refold.explorer.demo.desk import RUN
from refold.explorer.web.limits import PageLimits
from refold_tests.browsing import PATIENCE_MS, opened, ready, started_browser
from refold_tests.explored import CONFIG, Explored, explored, incident_in

# One browser serves the module, so its tests run on one xdist worker.
pytestmark = [pytest.mark.outside, pytest.mark.xdist_group("explorer-browser")]


class RealIncident(NamedTuple):
    """A recorded run of a real model in which something went wrong.

    Attributes:
        name: Of the file.
        text: What the reader searches for.
        steps: The numbers of the steps that are looked at, one after another, and what each shows.
    """

    name: str
    text: str
    steps: tuple[tuple[int, str], ...]


INCIDENTS = (
    RealIncident("tau_bench_airline_gpt4o.jsonl", "does not add up", (
        (10, "payment amount does not add up, total price is 305, but paid 255"),
        (11, "The total cost for the selected flights in economy class is $255"),
        (12, "305 - 250"),
    )),
    RealIncident("pydicom__pydicom-1458.traj", "new syntax error", (
        (6, "Your proposed edit has introduced new syntax error(s)"),
        (7, "It seems there was a syntax error in the edit"),
        (8, "It appears there was another syntax error"),
        (9, "It seems there was a mistake in the previous edit"),
    )),
    RealIncident("networking_1.traj", "flag{", (
        (3, "flag{d316759c281bf925d600be698a4973d5"),
        (4, "submit 'flag{d316759c281bf925d600be698a4973d5"),
    )),
)  # fmt: skip


@pytest.fixture(scope="module")
def real_pages(
    tau_bench_file: Path, sessions_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Explored]:
    """The pages of a log with those runs; of the conversations, only the first."""
    folder = tmp_path_factory.mktemp("real")
    url = f"file:{folder / 'log'}"
    for name in (each.name for each in INCIDENTS):
        packed = tau_bench_file if name.endswith(".jsonl") else sessions_folder / f"{name}.gz"
        with gzip.open(packed, "rt", encoding="utf-8") as stream:
            text = stream.readline() if name.endswith(".jsonl") else stream.read()
        (folder / name).write_text(text, encoding="utf-8")
        assert command(["import", str(folder / name), "--format", "auto", "--log", url]) == 0
    with explored(url) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium."""
    with started_browser() as found:
        yield found


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    """A browser context of a reader in Berlin."""
    found = browser.new_context(timezone_id="Europe/Berlin", viewport={"width": 1280, "height": 900})
    found.set_default_timeout(PATIENCE_MS)
    yield found
    found.close()


@pytest.fixture
def page(context: BrowserContext, pages: Explored) -> Iterator[Page]:
    """A page. At the end it is checked that it sent requests only to its server, and that no script failed."""
    asked: list[str] = []
    failed: list[str] = []
    found = context.new_page()
    found.on("request", lambda request: asked.append(request.url))
    found.on("pageerror", lambda error: failed.append(str(error)))
    found.on("console", lambda message: failed.append(message.text) if "Content Security" in message.text else None)
    yield found
    assert [each for each in asked if not each.startswith(f"{pages.url}/")] == []
    assert failed == []


def test_incident_is_solved_by_clicking(page: Page, pages: Explored) -> None:
    page.goto(f"{pages.url}/")
    page.select_option("select[name=outcome]", "failed")
    page.get_by_role("button", name="Find").click()
    page.get_by_role("link", name="A leaking kettle").click()
    opened(page, "Step 4 pay")
    expect(page.locator(".call.failed .arguments")).to_contain_text("1998")
    page.get_by_role("link", name="← before").click()
    opened(page, "Step 3 price")
    expect(page.locator(".changes")).to_contain_text("cents")
    expect(page.locator(".changes .new")).to_contain_text("1998")
    page.locator("svg a").first.click()
    page.locator(".steps a", has_text="look-up").click()
    opened(page, "Step 1 look-up")
    expect(page.locator(".call")).to_contain_text("19.99")
    page.get_by_role("link", name="compare", exact=True).last.click()
    opened(page, "first divergence at step 4")
    expect(page.locator(".differs .old")).to_contain_text("1998")
    expect(page.locator(".differs .new")).to_contain_text("1999")


@pytest.mark.parametrize("hand", ["clicking", "keyboard"])
@pytest.mark.parametrize("incident", INCIDENTS, ids=lambda each: each.name)
def test_incident_of_a_real_run_is_solved(
    context: BrowserContext, real_pages: Explored, incident: RealIncident, hand: str
) -> None:
    """The run is found by a text, and it opens at the step that has the text. The steps after it show the rest."""
    page = context.new_page()
    page.goto(f"{real_pages.url}/")
    opened(page, "Runs")
    if hand == "clicking":
        page.get_by_label("Text").fill(incident.text)
        page.get_by_role("button", name="Find").click()
        page.locator("[data-row]").click()
    else:
        page.keyboard.press("/")
        page.keyboard.type(incident.text)
        page.keyboard.press("Enter")
        ready(page, ".count", "1 run")
        page.keyboard.press("j")
        page.keyboard.press("Enter")
    for number, shown in incident.steps:
        opened(page, f"Step {number}")
        expect(page.locator("section.step")).to_contain_text(shown)
        if (number, shown) == incident.steps[-1]:
            break
        if hand == "clicking":
            page.locator(f".steps li:nth-child({number + 1}) a").click()
        else:
            page.keyboard.press("j")


def test_authorized_reader_flags_a_run_and_marks_a_point(context: BrowserContext, tmp_path: Path) -> None:
    page = context.new_page()
    with explored(incident_in(tmp_path), can_write=True) as pages:
        page.goto(f"{pages.url}/run/{RUN}?step=2")
        opened(page, "Step 2 decide")
        page.get_by_label("Why it is kept longer").fill("the kettle again")
        page.get_by_role("button", name="Flag").click()
        expect(page.locator("h1 ~ .flag")).to_contain_text("flagged")
        opened(page, "Step 2 decide")
        page.get_by_role("link", name="Operate").click()
        opened(page, "Markers")
        page.get_by_label("Name").fill("after-the-kettle")
        page.get_by_role("button", name="Mark this moment").click()
        expect(page.locator("th", has_text="@after-the-kettle")).to_be_visible()
        page.get_by_role("link", name="Changes").click()
        opened(page, "Changes")
        expect(page.locator("tr", has_text="flagged").first).to_contain_text(f"run/{RUN}")


def test_incident_is_solved_by_keyboard(page: Page, pages: Explored) -> None:
    page.goto(f"{pages.url}/?outcome=failed")
    opened(page, "Runs")
    page.keyboard.press("/")
    expect(page.locator("[data-search]")).to_be_focused()
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    expect(page.locator("[data-row]").first).to_be_focused()
    page.keyboard.press("Enter")
    opened(page, "Step 4 pay")
    page.keyboard.press("k")
    opened(page, "Step 3 price")
    expect(page.locator(".changes .new")).to_contain_text("1998")
    page.keyboard.press("ArrowLeft")
    opened(page, "Step 2 decide")
    expect(page.locator(".decision")).to_contain_text("the customer says that it leaks")
    expect(page.locator(".messages").first).to_contain_text("The kettle leaks.")
    page.keyboard.press("r")
    ready(page, "h5", "Request, as recorded")
    page.keyboard.press("r")
    ready(page, ".decision", "refund the kettle")
    page.keyboard.press("j")
    opened(page, "Step 3 price")
    page.keyboard.press("f")
    opened(page, "Step 4 pay")
    page.keyboard.press("?")
    expect(page.locator("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    opened(page, "Runs")


def test_overwrite_is_found_from_the_run_that_read_it(page: Page, pages: Explored) -> None:
    page.goto(f"{pages.url}/")
    page.get_by_role("link", name="Reads a limit").click()
    opened(page, "Step 1 read")
    page.keyboard.press("j")
    opened(page, "Step 2 use")
    expect(page.locator(".differing").first).to_contain_text("it knew 50, the log had 500, set by deployer")
    page.locator(".reads a").click()
    opened(page, CONFIG)
    ready(page, ".state", "50")
    page.keyboard.press("ArrowRight")
    expect(page.locator(".version")).to_have_text("v2")
    expect(page.locator("tr.changed").filter(has_text="rate_limit").first).to_contain_text("500")
    page.locator(".state tr", has_text="rate_limit").get_by_role("link", name="why").click()
    expect(page.locator("#why")).to_contain_text("deployer")


def test_slider_moves_between_the_points(page: Page, pages: Explored) -> None:
    page.goto(f"{pages.url}/entity/{CONFIG}")
    ready(page, ".version", "v2")
    page.locator("#moment").press("Home")
    expect(page.locator(".version")).to_have_text("v1")
    expect(page.locator("output")).to_contain_text("v1: rate_limit, timeout_ms, by deployer")


def test_times_are_local_with_utc_available(page: Page, pages: Explored) -> None:
    page.goto(f"{pages.url}/run/{RUN}")
    opened(page, "A leaking kettle")
    shown = page.locator("main time").first
    expect(shown).to_contain_text(re.compile(r"\+0[12]:00$"))
    there = shown.get_attribute("datetime") or ""
    page.keyboard.press("u")
    expect(shown).to_contain_text(there[:19].replace("T", " "))
    expect(shown).to_contain_text("UTC")
    page.keyboard.press("u")


def test_token_is_typed_once(context: BrowserContext, incident_url: str) -> None:
    token = "0123456789abcdef-secret"
    page = context.new_page()
    with explored(incident_url, token) as guarded:
        page.goto(f"{guarded.url}/run/{RUN}")
        page.locator("[name=token]").fill(token)
        page.keyboard.press("Enter")
        opened(page, "Runs")
        page.get_by_role("link", name="A leaking kettle").first.click()
        opened(page, "Step 4 pay")


def test_pages_update_live(context: BrowserContext, tmp_path: Path) -> None:
    """A live page reloads as the log grows. A page of a past cut does not change, but says that there is more."""
    url = f"file:{tmp_path / 'log'}"
    page = context.new_page()
    with refold.open(url) as log, explored(url) as other:
        page.goto(f"{other.url}/")
        expect(page.locator(".empty")).to_contain_text("No run is recorded")
        expect(page.locator("[data-live]")).to_have_text("● live")
        then = page.url
        with log.run("worker", id="live-1", title="Works") as run:
            with run.step("first"):
                run.state["count"] = 1
            page.get_by_role("link", name="Works").click()
            opened(page, "Step 1 first")
            expect(page.locator("[data-live]")).to_have_text("● live")
            with run.step("second"):
                run.state["count"] = 2
            opened(page, "Step 2 second")
            expect(page.locator(".steps li")).to_have_count(2)
            page.goto(then)
            expect(page.locator("[data-key=n].newer")).to_be_visible()
            expect(page.locator(".empty")).to_contain_text("No run is recorded")
            page.keyboard.press("n")
            expect(page.get_by_role("link", name="Works")).to_be_visible()
            expect(page.locator("[data-live]")).to_have_text("● live")
            page.keyboard.press("l")
            expect(page.locator("[data-live]")).to_have_text("○ live")
            page.keyboard.press("l")
        expect(page.locator(".outcome.succeeded")).to_be_visible()


def test_list_of_a_long_runs_steps_continues_as_it_is_scrolled(context: BrowserContext, tmp_path: Path) -> None:
    limits = PageLimits(steps_loaded=20, steps_around=12)
    with refold.open(f"file:{tmp_path / 'log'}") as log, log.run("long", id="long") as going:
        for number in range(1, 61):
            with going.step(f"s{number}"):
                going.state["n"] = number
    page = context.new_page()
    with explored(f"file:{tmp_path / 'log'}", limits=limits) as pages:
        page.goto(f"{pages.url}/run/long?step=30")
        opened(page, "Step 30")
        for more, top in (("after", "list.scrollHeight"), ("before", "0")):
            page.wait_for_function(
                f"""() => {{ const list = document.querySelector(".steps"); list.scrollTop = {top};
                return !list.querySelector("[data-more={more}]"); }}"""
            )
        numbers = page.locator(".steps .number").all_text_contents()
        assert [int(each) for each in numbers] == list(range(1, 61))
        expect(page.locator(".steps [aria-current]")).to_contain_text("30")
        page.locator(".steps a", has_text="s60").click()
        opened(page, "Step 60")
    assert "part=" not in page.url
