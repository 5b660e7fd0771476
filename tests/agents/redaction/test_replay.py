"""A redacted run replays: the code gets tokens instead of the secrets, in another process as well."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.agents.recorder.run import Run
from refold.agents.redaction.redactor import unredacted
from refold.agents.replay.unrecorded import Unrecorded

INPUT = {"from": "bob@example.com", "password": "swordfish-1", "card": "4111 1111 1111 1111"}


@refold.tool(effect="read")
def log_in(user: str, password: str) -> Any:
    return {"session_token": "opaque-7f3a", "for": f"{user} with {password}"}


@refold.tool(effect="write")
def pay(card: str, note: str, headers: Any) -> Any:
    return {"paid": card, "headers": headers}


def client(**asked: Any) -> Any:
    return {"said": f"as asked: {asked['messages'][0]['content']}"}


def agent(run: Run) -> Any:
    """Pass secrets on by name, in texts, in JSON, in headers and in the state."""
    given = run.input
    with run.step("log in"):
        session = log_in(given["from"], password=given["password"])
        run.state["session"] = {"is": f"session {session['session_token']} of {given['from']}"}
    with run.step("ask"):
        said = run.model(client, messages=[{"role": "user", "content": f"I am {given['from']}, {given['password']}"}])
        run.decide("pay", why=said["said"], options=[json.dumps({"token": session["session_token"]})])
    with run.step("pay"):
        run.state["seen"] = [said["said"], json.dumps(given, sort_keys=True)]
        headers = {"Authorization": f"Bearer {session['session_token']}"}
        run.state["paid"] = pay(given["card"], note=f"by {session['for']}", headers=headers)
    return run.state["paid"]


def record(url: str) -> str:
    with refold.open(url) as log:
        run = log.run("payer", input=INPUT, redact=refold.Redactor())
        run.drive(agent)
        return str(run.id)


def test_hundred_replays_have_the_recorded_hash(tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'log'}"
    run = record(url)
    with refold.open(url) as log:
        found = [log.replay(run, agent, redact=refold.Redactor()) for _ in range(100)]
        assert {each.hash for each in found} == {log.recording(run).hash}
        assert all(each.is_same for each in found)


def test_changed_agent_is_detected_through_its_tokens(tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'log'}"
    run = record(url)

    def other(run: Run) -> Any:
        run.input["from"] = "eve@example.com"
        return agent(run)

    with refold.open(url) as log, pytest.raises(Unrecorded) as caught:
        log.replay(run, other, redact=refold.Redactor())
    assert "eve@" not in str(caught.value)


def test_fork_redacts_its_changes(tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'log'}"
    run = record(url)
    with refold.open(url) as log:
        child = log.fork(
            run, at=1, state={"session": {"password": "changed-secret-1"}, "note": "to eve@example.com"},
            allow=["pay"], redact=refold.Redactor(),
        )  # fmt: skip
        child.drive(agent)
        recording = log.recording(child.id)
    assert "changed-secret-1" not in str(recording)
    assert "eve@example.com" not in str(recording)
    assert recording.steps[-1].state_after


def test_redacted_run_resumes_through_a_redactor(tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'log'}"
    with refold.open(url) as log:
        with pytest.raises(ZeroDivisionError), log.run("payer", input=INPUT, redact=refold.Redactor()) as failed:
            raise ZeroDivisionError
        with pytest.raises(refold.InputError, match="in clear"):
            log.run("payer", resume=failed.id)
        with pytest.raises(refold.InputError, match="in clear"):
            log.fork(failed.id, at=0)
        child = log.fork(failed.id, at=0, redact=refold.Redactor())
        child.drive(lambda run: None)
        assert log.recording(child.id).redacted
        with pytest.raises(refold.InputError, match="in clear"):
            log.fork(child.id, at=0)
        plain = log.fork(child.id, at=0, redact=unredacted)
        plain.drive(lambda run: None)
        assert not log.recording(plain.id).redacted
