"""Sealed content in state, history, why and compare: opened if the key is available, otherwise reported as sealed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import refold
from refold_tests.command import refold_command

SECRET, LONG = "order 4711 of Mia", "a long answer to Mia " * 100
NONE = {"REFOLD_KEYS": "none"}


def chat_of(answer: str) -> Callable[[str], str]:
    def chat(prompt: str) -> str:
        return answer

    return chat


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A log with three runs: two with different answers, and one that repeats the first."""
    found = f"file:{tmp_path_factory.mktemp('sealed') / 'log'}"
    with refold.open(found) as log:
        for name, answer in (("first-run", LONG), ("second-run", LONG.upper()), ("third-run", LONG)):
            with log.run("desk", id=name, input={"said": SECRET, "amount": 50.0}, title=SECRET) as run:
                run.model(chat_of(answer), SECRET)
                run.output = answer[:10]
    return found


def command_output(*words: str, url: str, more: dict[str, str] | None = None, status: int = 0) -> str:
    done = refold_command(*words, log=url, more=more)
    assert done.status == status, done.err
    return done.out


READING = (("state", "run/first-run"), ("history", "run/first-run"), ("why", "run/first-run.input"))


@pytest.mark.parametrize("words", READING)
def test_content_is_shown_with_the_key(url: str, words: tuple[str, ...]) -> None:
    text, found = command_output(*words, url=url), command_output(*words, "--json", url=url)
    for shown in (text, found):
        assert SECRET in shown
        assert "$sealed" not in shown
        assert "sealed under" not in shown
    assert '{"said": "order 4711 of Mia", "amount": 50.0}' in text
    assert '"sealed": true' in found


@pytest.mark.parametrize("words", READING)
@pytest.mark.parametrize("ring", ["none", "another"])
def test_content_without_the_key_is_reported_as_sealed(
    url: str, words: tuple[str, ...], ring: str, tmp_path: Path
) -> None:  # fmt: skip
    more = NONE if ring == "none" else {"REFOLD_KEYS": f"file:{tmp_path / 'keys'}"}
    text, found = command_output(*words, url=url, more=more), command_output(*words, "--json", url=url, more=more)
    for shown in (text, found):
        assert SECRET not in shown
        assert LONG[:40] not in shown
    assert "sealed under key run:first-run" in text
    assert '"$sealed"' in found
    assert '"why": "run/first-run' in found


def test_sealed_fields_and_blobs_over_the_limit_are_marked(url: str) -> None:
    state = json.loads(command_output("state", "run/first-run", "--json", url=url))
    given = state["fields"]["input"]
    assert (given["value"], given["sealed"]) == ({"said": SECRET, "amount": 50.0}, True)
    assert type(given["value"]["amount"]) is float
    assert "sealed" not in state["fields"]["agent"]
    step = json.loads(command_output("state", "step/first-run#1", "--json", url=url))["fields"]["journal"]
    assert step["sealed"]
    assert step["value"]["1"]["attempt"]["calls"][0]["answer"] == LONG
    assert step["elements"][0]["value"]["attempt"]["calls"][0]["answer"] == LONG
    assert step["elements"][0]["sealed"]
    for words in (("state", "step/first-run#1"), ("history", "step/first-run#1"), ("why", "step/first-run#1.journal")):
        assert LONG in command_output(*words, url=url)
        without = command_output(*words, url=url, more=NONE)
        assert "sealed under key run:first-run" in without
        assert LONG[:40] not in without
    rows = json.loads(command_output("history", "step/first-run#1", "--json", url=url))
    assert {row["field"] for row in rows if row.get("sealed")} == {"journal"}
    (chain,) = [
        each for each in json.loads(command_output("why", "run/first-run.input", "--json", url=url)) if each["patch"]
    ]
    assert (chain["patch"]["input"]["said"], chain["sealed"]) == (SECRET, True)


def test_runs_are_compared_by_content_or_by_their_hashes(url: str) -> None:
    def compared(a: str, b: str, *words: str, **more: Any) -> Any:
        return json.loads(command_output("run", "compare", a, b, "--json", *words, url=url, **more))

    found = compared("first-run", "second-run", status=1)
    assert found["divergence"]["what"] == "answer"
    chain = found["provenance"][0]["chain"][0]
    assert (chain["patch"]["journal"]["1"]["attempt"]["calls"][0]["answer"], chain["sealed"]) == (LONG, True)
    assert compared("first-run", "third-run")["equal"]

    away = compared("first-run", "second-run", status=1, more=NONE)
    assert (away["equal"], away["divergence"]) == (None, {"step": 1})
    assert set(away["unreadable"]) == {"a", "b"}
    assert "no key ring is open here" in away["unreadable"]["a"]
    assert compared("first-run", "second-run", "--exact", status=1, more=NONE)["equal"] is False
    equal = compared("first-run", "third-run", more=NONE)
    assert (equal["equal"], equal["divergence"]) == (True, None)
    text = command_output("run", "compare", "first-run", "second-run", url=url, more=NONE, status=1)
    assert text.splitlines()[0] == "their hashes differ from step 1 on"
    assert "without the content nobody can tell" in text
    assert "A cannot be read: " in text
    assert "no difference" in command_output("run", "compare", "first-run", "third-run", url=url, more=NONE)


def test_content_after_retention_is_reported_as_expired(tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'log'}"
    with refold.open(url) as log:
        for name in ("first-run", "third-run"):
            with log.run("desk", id=name, input={"said": SECRET}) as run:
                run.model(lambda prompt: LONG, prompt=SECRET)
    assert SECRET in command_output("state", "run/first-run", url=url)
    command_output("retain", "--class", "success=0", "--apply", url=url)
    for words in (*READING, ("state", "step/first-run#1"), ("history", "step/first-run#1")):
        text, found = command_output(*words, url=url), command_output(*words, "--json", url=url)
        assert "expired" in text
        assert '"expired": true' in found
        for shown in (text, found):
            assert SECRET not in shown
            assert LONG[:40] not in shown
    found = json.loads(command_output("run", "compare", "first-run", "third-run", "--json", url=url))
    assert (found["equal"], set(found["unreadable"])) == (True, {"a", "b"})
    assert "expired" in found["unreadable"]["a"]


def test_damaged_content_is_reported(tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'log'}"
    with refold.open(url) as log:
        with log.run("desk", id="r", input={"said": SECRET}):
            pass
        log.flush()
        moved = log.state("run/r").fields["input"]  # a value that was sealed for another entity
        log.observe("run/other", {"input": moved})
    assert "[damaged, was sealed under key run:r]" in command_output("state", "run/other", url=url)
    found = json.loads(command_output("state", "run/other", "--json", url=url))["fields"]["input"]["value"]["$sealed"]
    assert found["damaged"]
    assert "run/other input" in found["why"]
