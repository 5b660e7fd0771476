"""The pages' own scripts: their types are checked, and their size is small."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from refold.explorer.web.rendering import assets
from refold_tests.absent import without
from refold_tests.npm import TYPESCRIPT, package_folder
from refold_tests.tree import ROOT

pytestmark = pytest.mark.outside

STATIC = ROOT / "explorer" / "web" / "static"
CHECK = (
    "--noEmit", "--allowJs", "--checkJs", "--strict", "--noUnusedLocals", "--noImplicitReturns", "--target", "es2022",
    "--module", "es2022", "--lib", "es2022,dom,dom.iterable", "--pretty", "false",
)  # fmt: skip
LOADED_BYTES_MAX = 150_000


@pytest.mark.timeout(900)
def test_types_of_our_javascript_modules_check() -> None:
    node = shutil.which("node")
    if node is None:
        without("node is missing, with which TypeScript's compiler runs")
    compiler = package_folder(TYPESCRIPT) / "lib" / "tsc.js"
    scripts = sorted(STATIC.glob("*.js"))
    assert len(scripts) > 1
    done = subprocess.run([node, compiler, *CHECK, *scripts], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_browser_payload_is_small() -> None:
    assert sum(len(content) for content, _ in assets().values()) < LOADED_BYTES_MAX
    assert all("@ts-check" in each.read_text(encoding="utf-8") for each in STATIC.glob("*.js"))
