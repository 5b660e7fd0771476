"""The repository's folders form one package and shadow nobody else's."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

import refold
from refold_tests.tree import FOLDERS, ROOT


def test_the_package_under_test_is_this_checkout() -> None:
    """A .venv copied along with its checkout still points at the place it came from."""
    assert Path(refold.__file__).resolve() == ROOT / "src" / "refold" / "__init__.py"


@pytest.mark.parametrize("folder", FOLDERS)
def test_folder_is_linked_and_has_no_init(folder: str) -> None:
    link = ROOT / "src" / "refold" / folder
    assert link.resolve() == ROOT / folder, f"{link} is no link: clone with core.symlinks=true"
    assert not (ROOT / folder / "__init__.py").exists()
    assert find_spec(f"refold.{folder}") is not None


# `avro` is missing here: Apache's may be installed, and is welcome to the name.
@pytest.mark.parametrize("folder", sorted({*FOLDERS} - {"avro"}))
def test_folder_is_not_top_level(folder: str) -> None:
    assert find_spec(folder) is None


def test_avro_is_not_ours() -> None:
    spec = find_spec("avro")
    places = [*(spec.submodule_search_locations or ())] if spec else []
    assert (ROOT / "avro") not in {Path(place).resolve() for place in places}
