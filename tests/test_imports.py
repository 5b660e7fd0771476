"""Imports point one way: avro <- reducers <- streams <- agents <- sinks <- explorer, and never in a circle."""

from __future__ import annotations

from pathlib import Path

import pytest

from refold_tests.imports import cycle, edges, folder_of, misdirected, modules
from refold_tests.tree import FOLDERS, ROOT


def test_imports_point_one_way() -> None:
    assert misdirected(edges(ROOT)) == []


def test_imports_make_no_cycle() -> None:
    assert cycle(edges(ROOT)) == []


def test_questions_and_pages_need_no_command_line() -> None:
    """Commands ask the questions of explorer/queries, as the pages and MCP do; none of these knows a command."""
    asking = tuple(f"refold.explorer.{folder}." for folder in ("queries", "views", "doctor", "web", "mcp", "deck"))
    found = [str(edge) for edge in edges(ROOT)
             if edge.importer.startswith(asking) and edge.target.startswith("refold.explorer.cli")]  # fmt: skip
    assert found == []


def test_every_folder_was_read() -> None:
    holding = {folder for folder in FOLDERS if any((ROOT / folder).rglob("*.py"))}
    assert holding == {folder_of(name) for name in modules(ROOT)} & set(FOLDERS) != set()


def planted(root: Path, files: dict[str, str]) -> Path:
    """A checkout with the given modules: path below the root -> source."""
    package = root / "src" / "refold"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    for folder in FOLDERS:
        (root / folder).mkdir()
        (package / folder).symlink_to(root / folder)
    for name, source in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return root


@pytest.mark.parametrize(
    ("path", "source", "target"),
    [
        ("avro/x.py", "import refold.reducers.y", "refold.reducers.y"),
        ("avro/x.py", "import refold", "refold"),
        ("avro/x.py", "from refold import open", "refold"),
        ("avro/x.py", "from refold import streams", "refold.streams"),
        ("reducers/x.py", "from refold.streams.y import z", "refold.streams.y"),
        ("reducers/deep/x.py", "from ...streams import y", "refold.streams.y"),
        ("streams/x.py", "def f():\n    from refold.agents import y", "refold.agents.y"),
        ("streams/x.py", "if TYPE_CHECKING:\n    from refold.sinks.y import z", "refold.sinks.y"),
        ("streams/x.py", "import importlib as i\ni.import_module('refold.agents.y')", "refold.agents.y"),
        ("streams/x.py", "import refold.testing.laws", "refold.testing"),
        ("agents/x.py", "from refold.sinks.y import z", "refold.sinks.y"),
        ("sinks/x.py", "from refold.explorer.y import z", "refold.explorer.y"),
        ("explorer/x.py", "import streams.y", "streams.y"),
    ],
)
def test_planted_wrong_import_is_found(tmp_path: Path, path: str, source: str, target: str) -> None:
    files = {f"{folder}/y.py": "z = 1" for folder in FOLDERS}
    root = planted(tmp_path, {**files, "src/refold/testing/__init__.py": "", path: source})
    importer = "refold." + path.removesuffix(".py").replace("/", ".")
    line = source.count("\n") + 1
    assert misdirected(edges(root)) == [f"{importer}:{line} imports {target}"]


def test_imports_in_the_table_are_allowed(tmp_path: Path) -> None:
    root = planted(
        tmp_path,
        {
            "avro/y.py": "import json, fastavro",
            "reducers/y.py": "from refold.avro.y import z",
            "streams/log/y.py": "from refold.reducers import y\nfrom ...avro import y as avro",
            "agents/y.py": "from refold.streams.log import y\nimport refold.avro.y",
            "sinks/y.py": "import refold.streams.log.y, refold.agents.y",
            "explorer/y.py": "from refold import open\nimport refold.sinks.y, refold.testing.y",
            "src/refold/testing/y.py": "from refold.streams.log import y",
        },
    )
    assert misdirected(edges(root)) == []
    assert cycle(edges(root)) == []


def test_planted_cycle_is_found(tmp_path: Path) -> None:
    root = planted(
        tmp_path,
        {
            "avro/a.py": "from refold.avro import b",
            "avro/b.py": "def late():\n    from refold.avro.c import thing",
            "avro/c.py": "if TYPE_CHECKING:\n    from .a import thing",
        },
    )
    assert set(cycle(edges(root))) == {"refold.avro.a", "refold.avro.b", "refold.avro.c"}
