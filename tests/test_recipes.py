"""Each recipe of docs/guides does what it says, against a stand-in for the model's provider that counts requests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from refold_tests.model_server import ModelServer, model_server
from refold_tests.recipes import RECIPES, follow, is_as_shown


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with model_server() as server:
        yield server


@pytest.mark.outside
@pytest.mark.parametrize("page", RECIPES, ids=lambda page: page.name)
def test_recipe_works(page: Path, server: ModelServer, tmp_path: Path) -> None:
    asked = follow(page, tmp_path, server)
    for needed in ("run show", "run replay", "run fork", "run resume", "golden add", "pytest --refold-golden"):
        assert any(needed in line for line in asked), f"{page.name} shows no `{needed}`"
    for line, requests in asked.items():
        if "run resume" in line:
            assert requests == 1, "only what was lost is asked again"
        elif line.startswith("python agent.py"):
            assert requests > 0
        elif "run fork" not in line and not line.startswith("python "):
            assert requests == 0, f"{line} asked a model"
    assert any(line.endswith("# killed") for line in asked)
    assert (tmp_path / "bank.txt").read_text().splitlines() == ["o-7: 42 EUR", "o-8: 42 EUR"]


def test_values_on_a_page_are_compared() -> None:
    printed = "took 458 ms\n  asked POST 127.0.0.1/v1 hash abc\nthe end"
    assert is_as_shown("took 1 ms\nasked  POST api.openai.com/v1 hash ...", printed, "http://127.0.0.1:1") is False
    assert is_as_shown("took 1 ms\nasked  POST api.openai.com/v1 hash ...\nthe end", printed, "http://127.0.0.1:1")
    assert is_as_shown("took 1 ms\n...\nthe end", printed, "http://127.0.0.1:1")
    assert is_as_shown("took 1 ms\nasked  POST api.openai.com/v2\n...", printed, "http://127.0.0.1:1") is False
