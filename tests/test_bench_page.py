"""`make bench` (bench/run.py): its parts are kept and reused, and make the page (bench/results.py, bench/page.py)."""

from __future__ import annotations

import importlib
import io
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
from rich.table import Table

from refold_tests.tree import ROOT

BENCH = ROOT / "bench"
SAMPLES = ROOT / "tests" / "samples" / "bench"
"""Parts of a run with --quick, as bench/results.py kept them."""


@dataclass(frozen=True)
class Bench:
    """The modules of bench/ that need nothing else of it."""

    page: ModuleType
    results: ModuleType


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    names = ("results", "page")
    sys.path.insert(0, str(BENCH))
    try:
        results, page = map(importlib.import_module, names)
        yield Bench(page, results)
    finally:
        sys.path.remove(str(BENCH))
        for name in names:
            sys.modules.pop(name, None)


def setting_of(bench: Bench, **changed: Any) -> Any:
    here = bench.results.Setting(
        command="make bench", options={"quick": False}, processor="A processor", cores=2, memory_gb=16,
        system="Linux 6 on x86_64", python="3.11.7", kernel="kernel 0.1.0", commit="0123456789ab",
    )  # fmt: skip
    return msgspec.structs.replace(here, **changed)


def part(bench: Bench, console: Any, name: str = "a part") -> Any:
    return bench.results.PartResult(
        name=name, begun="2026-01-02T03:04:05+00:00", seconds=90, load_before=0.1, load_after=1.5,
        blocks=console.blocks, pictures=console.pictures, figures=console.figures, values=console.values,
    )  # fmt: skip


def test_page_has_goals_tables_machine_and_omissions(bench: Bench, tmp_path: Path) -> None:
    console = bench.page.PageConsole(file=io.StringIO())
    table = Table(title="A\n title")
    table.add_column("peer")
    table.add_column("rate", justify="right")
    table.add_row("a|b", "1,000")
    console.print(table)
    console.print("a line")
    figure = bench.results.Figure
    bench.page.note(console, figure("rate", 1.6, 1.5, "times", "a peer", moonshot=3, limit="the disk: 9"))
    bench.page.note(console, figure("memory", 600, 500, "MB", at_least=False))
    bench.page.note(console, figure("fold", 41_234.5, None, "a second"))
    points = {"a": [(1, 5), (100, 6)], "b": [(10, 2)]}
    bench.page.draw(console, bench.results.Picture("one", "One", "entities", "us", points))
    bench.page.record(console, "logs", {"few": 1})
    left_out = ["folding (its time was over)"]
    page = bench.page.write([part(bench, console)], setting_of(bench), left_out, tmp_path)
    assert page.name == "PERFORMANCE.md"
    text = page.read_text()
    assert "**A title**\n\n| peer | rate |\n| --- | ---: |\n| a\\|b | 1,000 |\n" in text
    assert "\na line\n" in text
    assert "| rate | 1.60 times | at least 1.5 times | at least 3 times | yes | a peer | the disk: 9 |" in text
    assert "| memory | 600.00 MB | at most 500 MB | - | no | - | - |" in text
    assert "| fold | 41,234 a second | - | - | - | - | - |" in text
    assert "Left out of this run: folding (its time was over)." in text
    assert "| processor | A processor, 2 cores |" in text
    assert "| a part | 2026-01-02 03:04 | 1.5 | 0.1 | 1.5 |" in text
    assert "![One](performance-one.svg)" in text
    assert (tmp_path / "performance-one.svg").is_file()


def test_page_of_a_recorded_run_has_all_its_figures(bench: Bench, tmp_path: Path) -> None:
    kept = [
        msgspec.json.decode(each.read_bytes(), type=bench.results.PartResult) for each in sorted(SAMPLES.glob("*.json"))
    ]
    figures = [figure for each in kept for figure in each.figures]
    pictures = [picture for each in kept for picture in each.pictures]
    assert len(kept) >= 3
    assert figures
    assert pictures
    text = bench.page.write(kept, setting_of(bench), [], tmp_path).read_text()
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")]
    for figure in figures:
        (row,) = (row for row in rows if row[0] == f"| {figure.name}")
        shown = float(row[1].split()[0].replace(",", ""))
        assert shown == pytest.approx(figure.measured, abs=0.5 if figure.measured >= 1_000 else 0.005)
        assert row[4] == {True: "yes", False: "no", None: "-"}[figure.is_reached]
    assert sum(line.startswith("**") for line in text.splitlines()) == sum(
        block.startswith("**") for each in kept for block in each.blocks
    )
    for picture in pictures:
        circles = [each for each in ElementTree.parse(tmp_path / f"performance-{picture.name}.svg").iter()
                   if each.tag.endswith("circle")]  # fmt: skip
        assert len(circles) == sum(map(len, picture.series.values()))


def test_picture_contains_every_point(bench: Bench) -> None:
    points = [(1, 5.0), (1_000, 7.5), (1_000_000, 6.0)]
    picture = bench.results.Picture("x", "a < b", "n", "us", {"one": points, "two": points[:1]})
    root = ElementTree.fromstring(bench.page.drawn(picture))
    circles = [each for each in root if each.tag.endswith("circle")]
    assert len(circles) == 4
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    assert all(0 < float(each.attrib["cx"]) < width and 0 < float(each.attrib["cy"]) < height for each in circles)


@pytest.mark.parametrize(
    ("changed", "is_reused"),
    [
        ({"command": "make bench ARGS=--minutes 4"}, True),
        ({"commit": "ba9876543210"}, False),
        ({"processor": "Another"}, False),
        ({"kernel": "plain Python"}, False),
        ({"options": {"quick": True}}, False),
    ],
    ids=["command", "commit", "processor", "kernel", "options"],
)
def test_result_is_reused_in_the_same_setting(
    bench: Bench, tmp_path: Path, changed: dict[str, Any], is_reused: bool
) -> None:
    console = bench.page.PageConsole(file=io.StringIO())
    console.print("measured")
    found = part(bench, console)
    bench.results.Results(tmp_path, setting_of(bench)).put(found)
    kept = bench.results.Results(tmp_path, setting_of(bench, **changed)).get("a part")
    assert kept == (found if is_reused else None)


def test_damaged_result_is_measured_again_and_unknown_code_is_not_kept(bench: Bench, tmp_path: Path) -> None:
    found = part(bench, bench.page.PageConsole(file=io.StringIO()))
    results = bench.results.Results(tmp_path, setting_of(bench))
    results.put(found)
    (file,) = tmp_path.rglob("*.json")
    file.write_bytes(file.read_bytes()[:-9])
    assert results.get("a part") is None
    for other in (
        bench.results.Results(None, setting_of(bench)),
        bench.results.Results(tmp_path, setting_of(bench, commit="unknown")),
    ):
        other.put(found)
        assert other.get("a part") is None


def test_commit_names_what_is_measured(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of the code is another setting; one of the page or of the documents is not."""
    for name in ("streams", "docs", "bench"):
        (tmp_path / name).mkdir()
    files = [tmp_path / name for name in ("streams/a.py", "docs/a.md", "bench/page.py")]
    for file in files:
        file.write_text("one")
    for arguments in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a"],
    ):
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True)
    commit = bench.results.setting("make bench", {}, tmp_path).commit
    for file in files[1:]:
        file.write_text("two")
    assert bench.results.setting("make bench", {}, tmp_path).commit == commit != "unknown"
    files[0].write_text("two")
    assert bench.results.setting("make bench", {}, tmp_path).commit.startswith(f"{commit} and changes ")
    shutil.rmtree(tmp_path / ".git")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert bench.results.setting("make bench", {}, tmp_path).commit == "unknown"


def test_part_is_measured_once(tmp_path: Path) -> None:
    command = [sys.executable, "-P", str(BENCH / "run.py"), "--quick", "--only", "policy", "--folder", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(BENCH)}
    first, second = (
        subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout for _ in range(2)
    )
    assert "Decisions of a policy" in first
    assert "policy: measured" in second
    assert "Decisions of a policy" not in second
