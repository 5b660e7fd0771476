"""The explorer in Debian's Chromium: an incident is solved with the mouse, and with the keyboard alone."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

import refold
from refold.explorer.demo.desk import RUN
from refold.explorer.web import run_page
from refold_tests.absent import without
from refold_tests.explored import CONFIG, FORK, READER, Explored, explored, incident_in
from refold_tests.npm import AXE, package_folder

# One browser serves the module, so its tests run on one xdist worker.
pytestmark = [pytest.mark.outside, pytest.mark.xdist_group("explorer-browser")]

PATIENCE_MS = 90_000
expect.set_options(timeout=PATIENCE_MS)
PAGES = {
    "runs": "/", "run": f"/run/{RUN}", "step": f"/run/{READER}?step=2", "raw": f"/run/{RUN}?step=2&raw=1",
    "story": f"/story/{RUN}", "entities": "/entities?type=tool_config", "entity": f"/entity/{CONFIG}?field=rate_limit",
    "compare": f"/compare?a={RUN}&b={FORK}", "choose": f"/compare?a={RUN}", "diff": "/diff?a=@deploy-1&b=now",
    "operate": "/operate", "healings": "/healings", "changes": "/changes", "error": "/run/nobody",
}  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium; nothing is downloaded."""
    program = shutil.which("chromium")
    if program is None:
        without("chromium is not installed")
    with sync_playwright() as playwright:
        # The test user may be root, for whom Chromium has no sandbox.
        found = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"], timeout=PATIENCE_MS)
        yield found
        found.close()


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


def opened(page: Page, heading: str) -> None:
    """Wait until a page with this heading is shown and its script handles keys."""
    ready(page, "main :is(h1, h2)", heading)


def ready(page: Page, selector: str, text: str) -> None:
    """Wait until a page with this element is shown and its script handles keys."""
    found = page.locator(f"html[data-ready] {selector}").filter(has_text=text).first
    expect(found).to_be_visible(timeout=PATIENCE_MS)


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
    expect(page.locator(".differing").first).to_contain_text("it knew 50, the log had 500")
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


def test_list_of_a_long_runs_steps_continues_as_it_is_scrolled(
    context: BrowserContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_page, "STEPS_LOADED_MAX", 20)
    monkeypatch.setattr(run_page, "WINDOW_AROUND", 12)
    with refold.open(f"file:{tmp_path / 'log'}") as log, log.run("long", id="long") as going:
        for number in range(1, 61):
            with going.step(f"s{number}"):
                going.state["n"] = number
    page = context.new_page()
    with explored(f"file:{tmp_path / 'log'}") as pages:
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


def test_every_page_fits_does_not_shift_and_is_accessible(browser: Browser, pages: Explored) -> None:
    """Tested on a phone in dark mode and on a desktop in light mode. axe: the rules of WCAG 2.1 A and AA, and best
    practices.
    """
    axe = (package_folder(AXE) / "axe.min.js").read_text(encoding="utf-8")
    wrong: dict[str, Any] = {}
    for label, width, scheme in (("phone", 360, "dark"), ("screen", 1280, "light")):
        with browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme) as context:  # type: ignore[arg-type]
            page = context.new_page()
            page.add_init_script(SHIFTS)
            for name, target in PAGES.items():
                page.goto(f"{pages.url}{target}")
                page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
                over = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
                shift = page.evaluate("shifted")
                headings = page.locator("h1").count()
                page.evaluate(axe)
                violations = page.evaluate(VIOLATIONS)
                if over > 0 or shift > 0.02 or headings != 1 or violations:
                    wrong[f"{name}, {label}"] = (over, shift, headings, violations)
    assert wrong == {}


VIOLATIONS = """
axe.run(document, {resultTypes: ["violations"]}).then((found) => found.violations.map((each) =>
    [each.id, each.nodes.map((node) => `${node.target} ${node.html.slice(0, 120)}: ${node.failureSummary}`)]))
"""
SHIFTS = """
globalThis.shifted = 0;
new PerformanceObserver((list) => { for (const each of list.getEntries()) shifted += each.value; })
    .observe({ type: "layout-shift", buffered: true });
"""
