"""A secret that a stream splits in two: nothing of it is stored, and a replay gets the redacted pieces."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import refold
from refold.agents.recorder.run import Run
from refold.agents.redaction.redactor import Redactor
from refold.agents.redaction.streams import pieces_redacted, recut
from refold_tests.secret_strategies import API_KEY, AROUND, JWT, WORD, card

KEY = b"0123456789abcdef"
TOKEN = "[api-key:0123456789abcdef0123]"
ALNUM = string.ascii_letters + string.digits
WINDOW = 6


def cut(text: str, places: list[int]) -> list[str]:
    """Return a text in pieces, cut at positions that are taken modulo its length."""
    ends = sorted(each % (len(text) + 1) for each in places)
    return [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True)]


def as_texts(pieces: list[str]) -> list[Any]:
    return [*pieces]


def as_objects(pieces: list[str]) -> list[Any]:
    return [{"id": "c-1", "choices": [{"index": 0, "delta": {"content": each}}]} for each in pieces]


def as_events(pieces: list[str]) -> list[Any]:
    """Return events as they are sent, cut at other places than the ends of events."""
    text = "".join(f"event: delta\ndata: {json.dumps(each)}\n\n" for each in as_objects(pieces)) + "data: [DONE]\n\n"
    return [text[at : at + 37] for at in range(0, len(text), 37)]


def read(form: Callable[[list[str]], list[Any]], pieces: list[Any]) -> str:
    """Return what a reader of the stream gets."""
    if form is as_events:
        lines = "".join(pieces).split("\n")
        pieces = [json.loads(each[6:]) for each in lines if each.startswith("data: {")]
    return "".join(each if isinstance(each, str) else each["choices"][0]["delta"]["content"] for each in pieces)


FORMS = [as_texts, as_objects, as_events]


def redacted(texts: list[str]) -> list[str]:
    found: list[str] = Redactor(KEY)(texts)
    return found


@given(
    st.sampled_from(FORMS), WORD, AROUND, st.one_of(API_KEY, card(), JWT), AROUND, WORD,
    st.lists(st.integers(0, 10_000), min_size=1, max_size=12),
)  # fmt: skip
def test_secret_is_found_at_any_chunk_boundary(
    form: Callable[[list[str]], list[Any]], before: str, left: str, secret: str, right: str, after: str,
    places: list[int],
) -> None:  # fmt: skip
    text = f"{before}{left}{secret}{right}{after}"
    pieces = form(cut(text, places))
    found = pieces_redacted(pieces, redacted)
    whole = redacted([text])[0]
    assert secret not in whole
    assert read(form, found) == whole
    assert secret not in "".join(map(str, found))
    assert len(found) == len(pieces)
    assert pieces_redacted(found, redacted) == found


@given(st.sampled_from(FORMS), WORD, st.lists(st.integers(0, 100), max_size=6))
def test_chunks_without_secrets_are_unchanged(
    form: Callable[[list[str]], list[Any]], text: str, places: list[int]
) -> None:
    pieces = form(cut(text, places))
    assert pieces_redacted(pieces, redacted) == pieces


@pytest.mark.parametrize(
    ("pieces", "new", "found"),
    [
        (["ab", "cd SEC", "RET e", "f"], f"abcd {TOKEN} ef", ["ab", f"cd {TOKEN}", " e", "f"]),
        (["a S", "EC", "RET", ""], f"a {TOKEN}", [f"a {TOKEN}", "", "", ""]),
        (["S", "ECRET", " x"], f"{TOKEN} x", [TOKEN, "", " x"]),
        (["one\nS", "ECRET\nt", "wo"], f"one\n{TOKEN}\ntwo", [f"one\n{TOKEN}", "\nt", "wo"]),
        (["a SEC\nR", "ET b"], f"a {TOKEN} b", [f"a {TOKEN}", " b"]),
        (["abc d", "ef ghi"], "abc *** ghi", ["abc *", "** ghi"]),
        (["ab", "c"], "", ["", ""]),
    ],
    ids=["in the middle", "at the end", "at the beginning", "in a line", "over lines", "no token", "nothing left"],
)  # fmt: skip
def test_chunk_boundaries_are_kept(pieces: list[str], new: str, found: list[str]) -> None:
    assert "".join(recut(pieces, new)) == new
    assert recut(pieces, new) == found


class Chunks(httpx.BaseTransport):
    """Answers with the given chunks."""

    def __init__(self, chunks: list[bytes]) -> None:
        self._chunks = chunks

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        chunks = self._chunks

        class Body(httpx.SyncByteStream):
            def __iter__(self) -> Iterator[bytes]:
                yield from chunks

        return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=Body())


def secrets_of(rng: random.Random) -> tuple[str, str]:
    """Return a text with a secret in it, and the part of it that nobody can guess.

    It has a digit: letters alone after `password=` are a variable's name in code, and are left (redaction/context.py).
    """
    characters = [*rng.choices(ALNUM, k=rng.randint(19, 39)), rng.choice(string.digits)]
    rng.shuffle(characters)
    unknown = "".join(characters)
    return rng.choice(
        [f"use sk-{unknown} for it", f'{{"key": "ghp_{unknown * 2}"}} ok', f"äö password={unknown};"]
    ), unknown


def test_secret_in_a_stream_is_not_stored_and_a_replay_gets_the_same_chunks(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFOLD_KEYS", "none")
    monkeypatch.setenv("REFOLD_REDACTION_KEY", "0f" * 32)
    rng = random.Random(seed)
    cases = []
    for number in range(24):
        text, unknown = secrets_of(rng)
        pieces = cut(text, rng.choices(range(10_000), k=rng.randint(1, 8)))
        cases.append((FORMS[number % 3](pieces), FORMS[number % 3], unknown))

    def streamed(number: int) -> Iterator[Any]:
        yield from cases[number][0]

    taken: list[list[Any]] = []

    def agent(run: Run) -> None:
        for number, (pieces, form, _) in enumerate(cases):
            with run.step("asks"):
                taken.append([*run.model(streamed, number)])
            if form is as_objects:
                continue
            data = "".join(pieces).encode()
            size = rng.randint(1, 30)  # it may end within a character
            client = run.client(
                httpx.Client(transport=Chunks([data[at : at + size] for at in range(0, len(data), size)]))
            )
            with run.step("streams"), client.stream("POST", "http://model.test/v1", json={"n": number}) as response:
                taken.append([*response.iter_bytes()])

    with refold.open(f"file:{tmp_path / 'log'}") as log:
        run = log.run("agent", redact=Redactor())
        run.drive(agent)
        live, taken = taken, []
        replayed = log.replay(run.id, agent, redact=Redactor())
        assert replayed.is_same, replayed.parting
        assert [len(each) for each in taken if isinstance(each[0], str | dict)] == [
            len(each) for each in live if isinstance(each[0], str | dict)
        ]
        log.flush()
        records = [record.data for p, end in log.port.ends().items() for record in log.port.read(p, 0, end)]
    stored = [*records, *(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())]
    assert len(stored) > len(cases)
    for _, form, unknown in cases:
        windows = {unknown[at : at + WINDOW] for at in range(len(unknown) - WINDOW + 1)}
        left = [each for each in windows if any(each.encode() in data for data in stored)]
        assert left == [], (form.__name__, unknown)
