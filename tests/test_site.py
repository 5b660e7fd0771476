"""`make docs` builds a site of all pages that loads nothing from elsewhere."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from refold_tests.absent import without
from refold_tests.tree import ROOT

BUILD = ROOT / "docs" / "site" / "build.py"


@pytest.fixture(scope="module")
def builder() -> ModuleType:
    """docs/site/build.py, which is in no package."""
    spec = spec_from_file_location("docs_site_build", BUILD)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.outside
@pytest.mark.timeout(900)
def test_site_builds_with_every_page(tmp_path: Path, builder: ModuleType) -> None:
    if shutil.which("npm") is None:
        without("npm is missing, with which the scripts of the site are fetched")
    done = subprocess.run(
        [sys.executable, "-P", str(BUILD), str(tmp_path)], capture_output=True, text=True, timeout=800, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    site = tmp_path / "site"
    for page in builder.pages():
        built = (site / page.relative_to(ROOT)).with_suffix(".html")
        assert built.exists() or (page.name == "README.md" and built.with_name("index.html").exists()), page
    assert (site / "ARCHITECTURE.html").read_text(encoding="utf-8").count('<pre class="mermaid">') == 4
    assert 'src="assets/mermaid.js"' in (site / "ARCHITECTURE.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("page", "found"),
    [
        ('<script src="https://cdn.example/a.js"></script>', 1),
        ('<link rel="stylesheet" href="//fonts.example/css?family=Roboto">', 1),
        ('<link href="https://fonts.example" rel="preconnect" crossorigin>', 1),
        ('<img alt="x" src="http://pictures.example/a.png">', 1),
        ("<style>@font-face { src: url(https://fonts.example/a.woff2) }</style>", 1),
        ('<style>@import "https://styles.example/a.css";</style>', 1),
        ('<a href="https://elsewhere.example">a link to follow</a><script src="assets/a.js"></script>', 0),
        ('<link rel="canonical" href="https://here.example/">', 0),
    ],
    ids=["script", "style", "preconnect", "picture", "font", "import", "link", "canonical"],
)
def test_external_request_of_a_page_is_found(page: str, found: int, tmp_path: Path, builder: ModuleType) -> None:
    (tmp_path / "page.html").write_text(page, encoding="utf-8")
    assert len(list(builder.fetched_from_elsewhere(tmp_path))) == found


def test_navigation_equals_the_index(builder: ModuleType) -> None:
    index = "# x\n\n## One\n\n[A](a.md), [B](../b.md)\n\n## Two\n\n| [C](c/d.md#e) | [F](c/f.md) |\n\n## Decisions\n"
    page = ROOT / "docs" / "decisions" / "168-the-inner-loop-by-fixtures.md"
    assert builder.navigation(index, [page]) == [
        {"Home": "README.md"},
        {"One": [{"A": "docs/a.md"}, {"B": "b.md"}]},
        {"Two": [{"F": "docs/c/f.md"}]},
        {"Decisions": [{"168: The inner loop is found by fixtures and markers": str(page.relative_to(ROOT))}]},
    ]
