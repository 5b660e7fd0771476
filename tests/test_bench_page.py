"""The page that `make bench` writes (bench/page.py): its Markdown, its goals and its pictures."""

from __future__ import annotations

import importlib.util
import io
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest
from rich.table import Table

from refold_tests.tree import ROOT


@pytest.fixture(scope="module")
def page() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_page", ROOT / "bench" / "page.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_page_has_results_goals_and_omissions(page: ModuleType, tmp_path: Path) -> None:
    console = page.PageConsole(file=io.StringIO())
    table = Table(title="A\n title")
    table.add_column("peer")
    table.add_column("rate", justify="right")
    table.add_row("a|b", "1,000")
    console.print(table)
    console.print("a line")
    page.note(console, page.Figure("rate", 1.6, 1.5, "times", "a peer"))
    page.note(console, page.Figure("memory", 600, 500, "MB", "none", at_least=False))
    console.pictures.append(page.Picture("one", "One", "entities", "us", {"a": [(1, 5), (100, 6)], "b": [(10, 2)]}))
    text = page.write(console, "make bench", ["folding (its time was over)"], tmp_path).read_text()
    assert "**A title**\n\n| peer | rate |\n| --- | ---: |\n| a\\|b | 1,000 |\n" in text
    assert "\na line\n" in text
    assert "| rate | 1.60 times | at least 1.5 times | yes | a peer |" in text
    assert "| memory | 600.00 MB | at most 500 MB | no | none |" in text
    assert "Left out of this run: folding (its time was over)." in text
    assert "![One](figures-one.svg)" in text
    assert (tmp_path / "figures-one.svg").is_file()


def test_picture_contains_every_point(page: ModuleType) -> None:
    points = [(1, 5.0), (1_000, 7.5), (1_000_000, 6.0)]
    root = ElementTree.fromstring(page.drawn(page.Picture("x", "a < b", "n", "us", {"one": points, "two": points[:1]})))
    circles = [each for each in root if each.tag.endswith("circle")]
    assert len(circles) == 4
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    assert all(0 < float(each.attrib["cx"]) < width and 0 < float(each.attrib["cy"]) < height for each in circles)
