"""A checkpoint may name a class. What that loads is up to LangGraph's serializer, which takes a list of what it may."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from refold.langgraph import RefoldSaver

MODULE = "refold_trap_of_a_checkpoint"
CODE = """
from dataclasses import dataclass

@dataclass
class Value:
    number: int
"""


def test_a_class_that_is_not_listed_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / f"{MODULE}.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    url = f"file:{tmp_path / 'log'}"
    thread: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    checkpoint: Any = empty_checkpoint()
    checkpoint |= {"channel_values": {"x": importlib.import_module(MODULE).Value(1)}, "channel_versions": {"x": 1}}
    with RefoldSaver(url) as saver:
        saver.put(thread, checkpoint, {"source": "input", "step": -1, "parents": {}}, {"x": 1})

    def found(serializer: JsonPlusSerializer) -> Any:
        monkeypatch.delitem(sys.modules, MODULE, raising=False)
        with RefoldSaver(url, serde=serializer) as saver:
            read = saver.get_tuple(thread)
        assert read is not None
        return read.checkpoint["channel_values"]["x"]

    assert "Value" not in type(found(JsonPlusSerializer(allowed_msgpack_modules=None))).__name__
    assert MODULE not in sys.modules
    assert type(found(JsonPlusSerializer(allowed_msgpack_modules=[(MODULE, "Value")]))).__name__ == "Value"
