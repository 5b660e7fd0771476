"""The folders form one package and shadow no other; modules are short, and each class name is used once."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

import refold
from refold_tests.tree import FOLDERS, ROOT

LINES_MAX = 500
FOREIGN = ("agents", "avro")


def test_package_under_test_is_this_checkout() -> None:
    """A .venv copied along with its checkout still points at the place it came from."""
    assert Path(refold.__file__).resolve() == ROOT / "src" / "refold" / "__init__.py"


@pytest.mark.parametrize("folder", FOLDERS)
def test_folder_is_linked_and_has_no_init(folder: str) -> None:
    link = ROOT / "src" / "refold" / folder
    assert link.resolve() == ROOT / folder, f"{link} is no link: clone with core.symlinks=true"
    assert not (ROOT / folder / "__init__.py").exists()
    assert find_spec(f"refold.{folder}") is not None


# Two are missing here: Apache's `avro` and OpenAI's `agents` may be installed, and are welcome to the names.
@pytest.mark.parametrize("folder", sorted({*FOLDERS} - {*FOREIGN}))
def test_folder_is_not_top_level(folder: str) -> None:
    assert find_spec(folder) is None


@pytest.mark.parametrize("folder", FOREIGN)
def test_foreign_package_name_is_not_ours(folder: str) -> None:
    spec = find_spec(folder)
    places = [*(spec.submodule_search_locations or ())] if spec else []
    assert (ROOT / folder) not in {Path(place).resolve() for place in places}


def modules() -> Iterator[tuple[Path, str]]:
    """Each Python file of the package, its tests and its benchmarks, by its path from the root, with its text."""
    for folder in (*FOLDERS, "src/refold/testing", "tests", "bench"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path.relative_to(ROOT), path.read_text(encoding="utf-8")


def test_no_module_exceeds_the_line_limit() -> None:
    lengths = {str(path): text.count("\n") for path, text in modules()}
    assert len(lengths) > 500
    assert {path: length for path, length in lengths.items() if length > LINES_MAX} == {}


def test_each_class_name_of_the_package_is_unique() -> None:
    homes: dict[str, list[str]] = {}
    for path, text in modules():
        if path.parts[0] in {"tests", "bench"}:
            continue
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(str(path))
    assert len(homes) > 500
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}
