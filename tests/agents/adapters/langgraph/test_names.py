"""A checkpoint may name a class. RefoldSaver loads only listed classes, and reports at once which one is not listed."""

from __future__ import annotations

import enum
import importlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, ChatMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import START, StateGraph
from pydantic import BaseModel

from refold.agents.adapters.langgraph.listed_classes import ListedClassesSerializer
from refold.avro.errors import InputError
from refold.langgraph import RefoldSaver

MODULE = "refold_trap_of_a_checkpoint"
CODE = """
from dataclasses import dataclass

@dataclass
class Value:
    number: int
"""
THREAD: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}


class Colour(enum.Enum):
    """An enum of a state."""

    RED = "red"


class Order(BaseModel):
    """A model of a state."""

    number: int


@dataclass
class Customer:
    """A dataclass of a state."""

    name: str


@dataclass
class State:
    """A graph's state."""

    customer: Customer
    order: Order | None = None
    colour: Colour | None = None


CONSTRUCTOR = b'{"lc":2,"type":"constructor","id":["os","system"],"args":["true"]}'


def put(saver: RefoldSaver, value: Any) -> None:
    """Write a checkpoint with one channel."""
    checkpoint: Any = empty_checkpoint()
    checkpoint |= {"channel_values": {"x": value}, "channel_versions": {"x": 1}}
    saver.put(THREAD, checkpoint, {"source": "input", "step": -1, "parents": {}}, {"x": 1})


def got(saver: RefoldSaver) -> Any:
    """Return the value of the channel in the newest checkpoint."""
    read = saver.get_tuple(THREAD)
    assert read is not None
    return read.checkpoint["channel_values"]["x"]


def test_unlisted_class_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / f"{MODULE}.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    url = f"file:{tmp_path / 'log'}"
    value = importlib.import_module(MODULE).Value
    with RefoldSaver(url, classes=[value]) as saver:
        put(saver, value(1))
    monkeypatch.delitem(sys.modules, MODULE)
    with RefoldSaver(url) as saver, pytest.raises(InputError, match=rf"{MODULE}\.Value.*classes=\[Value\]"):
        got(saver)
    assert MODULE not in sys.modules
    with RefoldSaver(url, classes=[value]) as saver:
        assert type(got(saver)).__name__ == "Value"
    with RefoldSaver(url, serde=JsonPlusSerializer(allowed_msgpack_modules=None)) as saver:
        assert "Value" not in type(got(saver)).__name__


@pytest.mark.parametrize(
    ("kind", "data"),
    [("json", b"\x82"), ("json", b"[" * 9_999), ("msgpack", b""), ("msgpack", b"\x91" * 9_999),
     ("pickle", b"x"), ("other", b"x")],
    ids=["no text", "deep JSON", "empty", "deep msgpack", "pickle", "another kind"],
)  # fmt: skip
def test_unreadable_value_raises_a_refold_error(kind: str, data: bytes) -> None:
    with pytest.raises(InputError, match="a value of a checkpoint cannot be read"):
        ListedClassesSerializer().loads_typed((kind, data))


def test_constructor_in_json_is_not_called() -> None:
    assert ListedClassesSerializer().loads_typed(("json", CONSTRUCTOR)) == json.loads(CONSTRUCTOR)


@pytest.mark.parametrize(
    "value", [Customer("ann"), {"deep": [Order(number=1)]}, Colour.RED], ids=["dataclass", "model", "enum"]
)
def test_value_of_an_unlisted_class_is_refused_at_write(tmp_path: Path, value: Any) -> None:
    with RefoldSaver(f"file:{tmp_path / 'log'}") as saver:
        with pytest.raises(InputError, match="classes="):
            put(saver, value)
        assert saver.get_tuple(THREAD) is None
        with pytest.raises(InputError, match="classes="):
            saver.put_writes({"configurable": {**THREAD["configurable"], "checkpoint_id": "1"}}, [("x", value)], "task")


def test_objects_that_were_written_before_are_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of messages grows by one at each step. A serializer with another list of classes knows none of them."""
    read: list[Any] = []
    loads = JsonPlusSerializer.loads_typed

    def noted(serializer: JsonPlusSerializer, data: tuple[str, bytes]) -> Any:
        read.append(data)
        return loads(serializer, data)

    monkeypatch.setattr(JsonPlusSerializer, "loads_typed", noted)
    serializer, messages = ListedClassesSerializer([Customer]), [AIMessage(f"{number}") for number in range(20)]
    for count in range(1, 21):
        assert loads(serializer, serializer.dumps_typed(messages[:count])) == messages[:count]
    assert len(read) == 20
    serializer.dumps_typed([Customer("ann")])
    with pytest.raises(InputError, match="classes="):
        serializer.dumps_typed([*messages, Customer("ann"), Order(number=1)])
    with pytest.raises(InputError, match="classes="):
        serializer.dumps_typed([*messages, Customer("ann"), Order(number=1)])
    read.clear()
    serializer.with_msgpack_allowlist([Order]).dumps_typed([*messages, Customer("ann"), Order(number=1)])
    assert len(read) == 22
    with pytest.raises(InputError, match="classes="):
        serializer.dumps_typed([Order(number=1)])


class Own(AIMessage):
    """A class of a user, which is not the one that it extends."""


def test_lists_of_messages_are_written_as_langgraph_does() -> None:
    usage: Any = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}
    call = {"name": "look", "args": {"n": 1, "deep": [1.5, None, True]}, "id": "c1"}
    messages: list[Any] = [
        HumanMessage("What?", id="1"), SystemMessage("Be brief."), AIMessage("", tool_calls=[call]),
        AIMessage([{"type": "text", "text": "\u00e9"}], usage_metadata=usage, name="n"),
        ToolMessage("two", tool_call_id="c1", artifact={"x": b"y"}), HumanMessage("more", own="an extra member"),
        ToolMessage("two", tool_call_id="c1", artifact=Customer("ann")), Own(content="own"),
        ChatMessage(content="x", role="y"),
    ]  # fmt: skip
    lists = [[], *([each] for each in messages), messages, messages[:5], messages[:4] * 4, messages[1:2] * 70_000]
    serializer, plain = ListedClassesSerializer([Customer, Own]), JsonPlusSerializer()
    for some in lists:
        for _ in range(2):
            assert serializer.dumps_typed(some) == plain.dumps_typed(some)
    for kwargs in ({"a": 1}, {"a": True}, {"a": 1.0}, {"a": "1"}):  # equal to Python, but for the last
        messages[0].additional_kwargs.update(kwargs)
        assert serializer.dumps_typed(messages[:1]) == plain.dumps_typed(messages[:1])
    with pytest.raises(InputError, match="classes="):
        ListedClassesSerializer().dumps_typed([AIMessage("x"), Own(content="own")])


def test_list_is_continued_only_while_its_messages_are_unchanged() -> None:
    call: Any = {"name": "look", "args": {"n": 1}, "id": "c1"}
    first, second, third = HumanMessage("What?"), AIMessage("", tool_calls=[call]), HumanMessage("And?")
    serializer, plain = ListedClassesSerializer(), JsonPlusSerializer()

    def check(*messages: Any) -> None:
        assert serializer.dumps_typed([*messages]) == plain.dumps_typed([*messages])

    check(first)
    check(first, second)
    check(first, second, third)
    check(first, third)  # another branch
    check(first, third, second)
    second.tool_calls[0]["args"]["n"] = 2
    check(first, third, second)
    first.content = "Who?"
    check(first, third, second)
    third.additional_kwargs["a"] = "b"
    check(first, third, second, third)
    first.__dict__["__own"] = 1
    check(first, third, second, third)
    del first.__dict__["__own"]
    check(first, third, second, third)
    assert first.__pydantic_extra__ is not None
    first.__pydantic_extra__["own"] = "an extra member"
    check(first, third, second, third)


def test_packed_messages_are_bounded() -> None:
    serializer = ListedClassesSerializer(packed_bytes_max=5_000)
    messages = [AIMessage("long " * 100, id=f"{number}") for number in range(20)]
    assert serializer.dumps_typed(messages) == JsonPlusSerializer().dumps_typed(messages)
    assert sum(len(fields) + len(packed) for (_, fields), packed in serializer._packed.items()) <= 5_000


def test_messages_need_no_allow_list(tmp_path: Path) -> None:
    with RefoldSaver(f"file:{tmp_path / 'log'}") as saver:
        put(saver, [AIMessage("yes", id="1")])
        assert got(saver) == [AIMessage("yes", id="1")]


def test_graph_continues_with_the_classes_of_its_state(tmp_path: Path) -> None:
    def look(state: State) -> dict[str, Any]:
        return {"order": Order(number=1 if state.order is None else state.order.number + 1), "colour": Colour.RED}

    builder = StateGraph(State)
    builder.add_node("look", look)
    builder.add_edge(START, "look")
    url, thread = f"file:{tmp_path / 'log'}", {"configurable": {"thread_id": "t"}}
    for number in (1, 2):
        with RefoldSaver(url, classes=[Customer, Order, Colour]) as saver:
            found = builder.compile(checkpointer=saver).invoke({"customer": Customer("ann")}, thread)  # type: ignore[call-overload]
            assert found == {"customer": Customer("ann"), "order": Order(number=number), "colour": Colour.RED}
