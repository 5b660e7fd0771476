"""Debian's Chromium for tests. Nothing is downloaded."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, Page, expect, sync_playwright

from refold_tests.absent import without

PATIENCE_MS = 90_000


@contextmanager
def started_browser() -> Iterator[Browser]:
    """Start the browser. While it runs, no other event loop can run in this thread."""
    program = shutil.which("chromium")
    if program is None:
        without("chromium is not installed")
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        # The test user may be root, for whom Chromium has no sandbox.
        found = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"], timeout=PATIENCE_MS)
        try:
            yield found
        finally:
            found.close()


def opened(page: Page, heading: str) -> None:
    """Wait until a page with this heading is shown and its script handles keys."""
    ready(page, "main :is(h1, h2)", heading)


def ready(page: Page, selector: str, text: str) -> None:
    """Wait until a page with this element is shown and its script handles keys."""
    found = page.locator(f"html[data-ready] {selector}").filter(has_text=text).first
    expect(found).to_be_visible(timeout=PATIENCE_MS)
