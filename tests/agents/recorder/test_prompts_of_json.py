"""An agent that puts the JSON of its input into a prompt makes the same request in a replay as in the recording."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import refold
from refold.agents.recorder.run import Run


@refold.tool(effect="read")
def look() -> Any:
    return {"price": 50.0, "id": 7, "parts": [{"z": 1, "a": 2}]}


@refold.tool(effect="write")
def book(order: Any) -> Any:
    return {"ok": True, "id": 3, "for": order}


def client(messages: list[str]) -> Any:
    return {"said": len(messages), "by": "m"}


def agent(run: Run) -> str:
    with run.step("ask"):
        found = look()
        run.state.update(zebra=found, ask=run.input)
        said = run.model(client, [json.dumps(found), json.dumps(run.input), json.dumps(run.state)])
    with run.step("book"):
        booked = book({"who": "bob", "as": said})
        run.decide("book", why=json.dumps(booked), options=[json.dumps(run.state)])
    return json.dumps([said, booked])


def test_key_order_is_preserved(tmp_path: Path) -> None:
    with refold.open(f"file:{tmp_path / 'log'}") as log:
        run = log.run("asker", input={"question": "?", "about": {"y": 1, "x": 2.0}}, state={"one": 1, "b": {}})
        run.drive(agent)
        recorded = log.recording(run.id)
        assert recorded.output == run.output
        assert log.replay(run.id, agent).is_same
