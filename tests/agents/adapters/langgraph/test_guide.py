"""The guide is followed word by word, and its advice on a wrong put."""

from __future__ import annotations

from pathlib import Path

import pytest

import refold
from refold.langgraph import RefoldStore
from refold_tests.model_server import model_server
from refold_tests.recipes import follow
from refold_tests.tree import ROOT

pytestmark = pytest.mark.outside

ITEM = "langgraph_item/users#ann#drink"


def test_guide_commands_work(tmp_path: Path) -> None:
    with model_server() as server:
        follow(ROOT / "docs" / "guides" / "langgraph-threads.md", tmp_path, server)
    with refold.open(f"file:{tmp_path / '.refold'}") as log:
        log.retract(ITEM, log.state(ITEM).why("value")[0].observation_id)
        with RefoldStore(log) as store:
            item = store.get(("users", "ann"), "drink")
    assert item is not None
    assert item.value["text"] == "green tea"
