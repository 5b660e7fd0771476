"""Takes the pictures of the explorer in README and the guide, from the real pages over the demo's log.

make pictures
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from playwright.sync_api import Browser, sync_playwright

from refold_tests.command import COMMAND
from refold_tests.explored import explored
from refold_tests.tree import ROOT

FOLDER = ROOT / "docs" / "guides" / "pictures"
LOG = ".refold-demo"
PATIENCE_MS = 300_000


class Picture(NamedTuple):
    """One picture: its address, light or dark, and its size."""

    target: str
    scheme: str = "light"
    width: int = 1280
    height: int = 800


PICTURES = {
    "run": Picture("/run/incident-1"),
    "stale": Picture("/run/nightly-1", "dark"),
    "entity": Picture("/entity/tool_config/acme-config?field=rate_limit"),
}


def take(browser: Browser, url: str, name: str, picture: Picture) -> Path:
    """Write one picture."""
    with browser.new_context(
        viewport={"width": picture.width, "height": picture.height},
        color_scheme="dark" if picture.scheme == "dark" else "light",
        timezone_id="Europe/Berlin",
    ) as context:
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.goto(f"{url}{picture.target}")
        page.locator("html[data-ready]").wait_for(state="attached")
        # The picture should not show where the demo ran on this machine.
        page.evaluate(f"document.querySelector('.where .log').textContent = 'file:{LOG}'")
        file = FOLDER / f"{name}.png"
        page.screenshot(path=file)
        return file


def main() -> int:
    """Run the demo, and take every picture."""
    program = shutil.which("chromium")
    if program is None:
        sys.exit("error: chromium is not installed")
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        bare = {name: value for name, value in os.environ.items() if not name.startswith("REFOLD_")}
        subprocess.run([*COMMAND, "demo"], cwd=folder, env=bare, check=True, stdout=subprocess.DEVNULL)
        with explored(f"file:{Path(folder) / LOG}") as pages, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
            for name, picture in PICTURES.items():
                file = take(browser, pages.url, name, picture)
                print(f"{file.relative_to(ROOT)}: {file.stat().st_size:,} bytes")
            browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
