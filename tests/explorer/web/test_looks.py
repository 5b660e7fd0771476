"""How the explorer's pages look: they fit, do not shift, are accessible in dark and light, and match their pictures.

After an intended change: `make looks`, and look at the pages.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from refold.explorer.demo.desk import RUN
from refold_tests.browsing import PATIENCE_MS, started_browser
from refold_tests.explored import CONFIG, FORK, READER, Explored, explored
from refold_tests.npm import AXE, package_folder
from refold_tests.thumbnails import difference, thumbnail

# One browser serves the module, so its tests run on one xdist worker.
pytestmark = [pytest.mark.outside, pytest.mark.xdist_group("explorer-looks")]

RENEW = "REFOLD_RENEW_LOOKS"
PICTURES = Path(__file__).parent / "looks"
WIDTHS = (390, 900, 1440)
HEIGHT = 1200
DIFFERENT_MAX = 0.05
"""The share of cells that may differ. Times and ids differ from run to run, and fonts from machine to machine."""
PAGES = {
    "runs": "/", "none": "/?agent=nobody", "run": f"/run/{RUN}?scale=step", "step": f"/run/{READER}?step=2&scale=step",
    "raw": f"/run/{RUN}?step=2&raw=1&scale=step", "story": f"/story/{RUN}", "entities": "/entities?type=tool_config",
    "entity": f"/entity/{CONFIG}?field=rate_limit", "compare": f"/compare?a={RUN}&b={FORK}",
    "choose": f"/compare?a={RUN}", "diff": "/diff?a=@deploy-1&b=now", "operate": "/operate", "healings": "/healings",
    "agents": "/agents", "changes": "/changes", "error": "/run/nobody",
}  # fmt: skip
WRITABLE = {"run-write": f"/run/{RUN}?scale=step", "operate-write": "/operate"}
DIFFERENT_MORE = {"changes": 0.4, "diff": 0.4}
"""Their rows may be in another order in each log: records of one millisecond are in several partitions."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium."""
    with started_browser() as found:
        yield found


@pytest.fixture(scope="module")
def axe() -> str:
    """The script that finds what is not accessible."""
    return (package_folder(AXE) / "axe.min.js").read_text(encoding="utf-8")


class LookedAt:
    """A page that is looked at, and what is wrong with it.

    asked: the addresses of its requests.
    """

    def __init__(self, browser: Browser, axe: str, width: int) -> None:
        self._context = browser.new_context(viewport={"width": width, "height": HEIGHT}, color_scheme="dark")
        self._context.set_default_timeout(PATIENCE_MS)
        self._axe = axe
        self.asked: list[str] = []
        self.page: Page = self._context.new_page()
        self.page.add_init_script(SHIFTS)
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.blank = self._context.new_page()

    def open(self, address: str) -> dict[str, Any]:
        """Open a page in dark mode; return what is wrong with it, in dark and in light."""
        page = self.page
        page.emulate_media(color_scheme="dark")
        page.goto(address)
        page.locator("html[data-ready], .sign-in").first.wait_for(state="attached")
        page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        page.evaluate("document.querySelectorAll('.where .log').forEach((each) => { each.textContent = 'file:log'; })")
        found: dict[str, Any] = {"shift": page.evaluate("shifted") > 0.02, "h1": page.locator("h1").count() != 1,
                                 "over": self.is_over()}  # fmt: skip
        page.evaluate(self._axe)
        found["dark"] = page.evaluate(VIOLATIONS)
        page.emulate_media(color_scheme="light")
        found["light"] = page.evaluate(VIOLATIONS)
        return {name: value for name, value in found.items() if value}

    def is_over(self) -> bool:
        """Whether the page is wider than the window."""
        wide = self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        return bool(wide > 0)

    def picture(self, width: int) -> list[str]:
        """Return the picture of the page at a width."""
        self.page.set_viewport_size({"width": width, "height": HEIGHT})
        return thumbnail(self.page, self.blank)

    def close(self) -> None:
        """Close it."""
        self._context.close()


def test_every_page_fits_is_accessible_and_looks_as_it_did(browser: Browser, axe: str, pages: Explored) -> None:
    """axe: the rules of WCAG 2.1 A and AA, and best practices. No request goes elsewhere."""
    wrong: dict[str, Any] = {}
    seen = LookedAt(browser, axe, WIDTHS[0])
    for name, target in PAGES.items():
        found = seen.open(f"{pages.url}{target}")
        pictures = [seen.picture(width) for width in WIDTHS]
        found |= {"over later": True} if seen.is_over() else {}
        file = PICTURES / f"{name}.txt"
        if os.environ.get(RENEW):
            file.write_text("\n\n".join(map("\n".join, pictures)) + "\n", encoding="utf-8")
        known = [each.splitlines() for each in file.read_text(encoding="utf-8").split("\n\n")]
        apart = [round(difference(*each), 3) for each in zip(pictures, known, strict=True)]
        if max(apart) > DIFFERENT_MORE.get(name, DIFFERENT_MAX):
            found["unlike"] = apart
        if found:
            wrong[name] = found
        seen.page.set_viewport_size({"width": WIDTHS[0], "height": HEIGHT})
    assert wrong == {}
    assert [each for each in seen.asked if not each.startswith(f"{pages.url}/")] == []
    # A page that lost a part of its layout is not like its picture.
    for broken in ("main { visibility: hidden; }", ".two { display: block; }", ":root { --panel: #777; }"):
        seen.open(f"{pages.url}{PAGES['run']}")
        seen.page.evaluate(ADD_RULE, broken)
        widest = (PICTURES / "run.txt").read_text(encoding="utf-8").split("\n\n")[-1].splitlines()
        assert difference(seen.picture(WIDTHS[-1]), widest) > DIFFERENT_MAX, broken
    seen.close()


def test_every_page_at_other_widths(
    browser: Browser, axe: str, pages: Explored, incident_url: str, is_soak: bool
) -> None:
    """In a soak every page at the other widths, with forms too; else the pages with forms and the sign-in page."""
    token = "0123456789abcdef-secret"
    wrong = {}
    with explored(incident_url, can_write=True) as writable, explored(incident_url, token) as guarded:
        for width in WIDTHS[1:] if is_soak else WIDTHS[:1]:
            seen = LookedAt(browser, axe, width)
            addresses = {name: f"{writable.url}{target}" for name, target in WRITABLE.items()}
            addresses |= {name: f"{pages.url}{target}" for name, target in PAGES.items()} if is_soak else {}
            for name, address in {**addresses, "sign-in": f"{guarded.url}/"}.items():
                found = seen.open(address)
                if found:
                    wrong[f"{name}, {width}"] = found
            seen.close()
    assert wrong == {}


ADD_RULE = "(rule) => document.styleSheets[0].insertRule(rule, document.styleSheets[0].cssRules.length)"
VIOLATIONS = """
axe.run(document, {resultTypes: ["violations"]}).then((found) => found.violations.map((each) =>
    [each.id, each.nodes.map((node) => `${node.target} ${node.html.slice(0, 120)}: ${node.failureSummary}`)]))
"""
SHIFTS = """
globalThis.shifted = 0;
new PerformanceObserver((list) => { for (const each of list.getEntries()) shifted += each.value; })
    .observe({ type: "layout-shift", buffered: true });
"""
