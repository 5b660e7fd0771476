"""An agent that mentions a secret in every place where an agent's author can put text."""

from __future__ import annotations

from typing import Any

import refold
from refold.agents.effects.errors import NotDone
from refold.agents.recorder.run import Run

PAD = " and so on, to be too long to stand in a record" * 60
"""Longer than a payload may be before it is stored as a blob."""


class Planted:
    """Creates one secret of each kind for each place, and remembers them."""

    def __init__(self) -> None:
        self.secrets: dict[str, str] = {}

    def text(self, place: str) -> str:
        """Return a text with secrets that are recognized by their form. It is too long for a record."""
        number = len(self.secrets)
        self.secrets[f"{place}: mail"] = mail = f"planted{number}x@{place.replace(' ', '-')}.example"
        self.secrets[f"{place}: key"] = key = f"sk-planted{number:04}{'abcdefgh' * 3}"
        return f"ask {mail} with {key}{PAD}"

    def opaque(self, place: str) -> str:
        """Return a secret that is recognized only by the name of its field."""
        self.secrets[f"{place}: opaque"] = secret = f"Opaque!{len(self.secrets)}-{place.replace(' ', '-')}"
        return secret


def run_leaky(log: Any, planted: Planted, redact: Any) -> str:
    """Record two runs, one that succeeds and one that fails; return the id of the first."""
    text, opaque = planted.text, planted.opaque
    password = opaque("input")

    @refold.tool(effect="read", attempts_max=2, backoff_ms=0)
    def search(query: str, api_key: str) -> Any:
        searched.append(query)
        if len(searched) == 1:
            raise OSError(f"{text('read error')} refused {api_key}")
        return {"found": text("read answer"), "session_token": opaque("read answer"), "echo": f"by {api_key}"}

    @refold.tool(effect="write", attempts_max=2, backoff_ms=0)
    def send(to: str, body: str, secret: str) -> Any:
        sent.append(to)
        if len(sent) == 1:
            raise NotDone(f"{text('write error')} with {secret}")
        return refold.Done(
            {"sent": text("write answer"), "by": f"the secret {secret}"}, text("receipt").replace(PAD, "")
        )

    def tried(run: Run) -> Any:
        tries.append(1)
        if len(tries) == 1:
            raise ValueError(text("attempt error"))
        return {"result": text("step result"), "password": opaque("step result")}

    searched: list[str] = []
    sent: list[str] = []
    tries: list[int] = []
    given: dict[str, Any] = {"ask": text("input"), "password": password, text("key of the input"): 1}
    with log.run(
        "leaky", input=given, state={"note": text("first state")}, title=text("title"), user=text("user"),
        task=text("task").replace(PAD, ""), tags=[text("tag").replace(PAD, "")],
        metadata={"from": text("metadata"), "api_key": opaque("metadata")}, redact=redact,
    ) as run:  # fmt: skip
        with run.step("ask"):
            answer = run.model(
                lambda **asked: {"said": text("model answer"), "token": opaque("model answer")},
                messages=[{"role": "user", "content": f"{text('model request')}: the password is {password}"}],
                headers={"Authorization": f"Bearer {opaque('model header')}"},
            )
            run.decide(text("choice"), why=text("why"), options=[text("option")])
        with run.step("use"):
            run.state["note"] = f"{text('state')} {answer['token']}"
            run.state[text("key of the state")] = {"credentials": {"deep": [opaque("state")]}}
            found = search(query=text("read argument"), api_key=opaque("read argument"))
            run.state["session"] = f"it is {found['session_token']}"
            send(text("write argument"), body=f"{password} {answer['token']}", secret=opaque("write argument"))
            run.observe("document/seen", {"fields": {"text": text("observation"), "password": opaque("observation")}})
        run.step("try", tried, run, attempts_max=2)
        run.output = {"said": text("output"), "secret": opaque("output"), "password again": password}
    try:
        with log.run("leaky", input={"pin": opaque("failed input")}, redact=redact) as failed, failed.step("fail"):
            raise RuntimeError(text("error of a run"))
    except RuntimeError:
        pass
    return str(run.id)
