"""A copy has no credentials, wherever they were, and has everything else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.agents.capture.credentials import known_secrets, without_credentials

SECRET = 'pl"an\\ted-s3cret'
NAMES = st.sampled_from(
    ["api_key", "apiKey", "OPENAI_API_KEY", "password", "client_secret", "x-api-key", "access_token"]
)
HARMLESS = st.sampled_from(["model", "max_tokens", "text", "a", "token_count", "key_points"])
TEXTS = st.text(max_size=20)


@st.composite
def planted(draw: st.DrawFn) -> Any:
    """A tree with a secret somewhere under a secret's name, possibly in JSON inside a JSON text."""
    tree: Any = {draw(HARMLESS): draw(TEXTS), draw(NAMES): SECRET, "more": [draw(TEXTS)]}
    for _ in range(draw(st.integers(0, 3))):
        tree = {draw(HARMLESS): json.dumps(tree)} if draw(st.booleans()) else {draw(HARMLESS): [1, tree, draw(TEXTS)]}
    return tree


def unfolded(value: Any) -> Any:
    """Return a tree in which texts that are JSON are replaced by their trees."""
    if isinstance(value, str):
        try:
            return unfolded(json.loads(value)) if value[:1] == "{" else value
        except ValueError:
            return value
    if isinstance(value, dict):
        return {key: unfolded(each) for key, each in value.items()}
    return [unfolded(each) for each in value] if isinstance(value, list) else value


def hidden(value: Any) -> Any:
    """Return the tree that is expected to remain."""
    if isinstance(value, dict):
        return {key: hidden(each) for key, each in value.items()}
    return [hidden(each) for each in value] if isinstance(value, list) else "HIDDEN" if value == SECRET else value


@given(planted(), st.sampled_from([None, (",", ":")]))
def test_secret_is_removed_at_any_depth_and_nothing_else_changes(tree: Any, separators: Any) -> None:
    found = without_credentials(json.dumps(tree, separators=separators).encode())
    assert unfolded(json.loads(found)) == hidden(unfolded(tree))


@given(
    st.recursive(TEXTS | st.integers() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(HARMLESS, inner))
)
def test_text_without_secrets_keeps_its_bytes(tree: Any) -> None:
    data = json.dumps(tree).encode()
    assert without_credentials(data) == data


@given(st.binary(max_size=200))
def test_any_bytes_are_accepted(data: bytes) -> None:
    without_credentials(data, (b"12345678",))
    without_credentials(data, (), "application/x-www-form-urlencoded")


@pytest.mark.parametrize(
    ("data", "content_type", "left"),
    [
        (b'{"logprobs": [{"token": " the", "logprob": -1}]}', "", b'{"logprobs": [{"token": " the", "logprob": -1}]}'),
        (b'{"properties": {"password": {"type": "string"}}}', "", b'{"properties": {"password": {"type": "string"}}}'),
        (
            b'{"type": "thinking", "signature": "abc", "key": "b"}',
            "",
            b'{"type": "thinking", "signature": "abc", "key": "b"}',
        ),
        (b'{"api_key": "cut o', "", b'{"api_key": "HIDDEN'),
        (rb'"password\": \"a\"', "", rb'"password\": \"a\"'),
        (rb'\\"a\": \"b", "password": "c"', "", rb'\\"a\": \"b", "password": "HIDDEN"'),
        (b"a=1&client_secret=abc&b=2", "application/x-www-form-urlencoded", b"a=1&client_secret=HIDDEN&b=2"),
        (b"said sk-1234567890 again", "", b"said HIDDEN again"),
    ],
    ids=[
        "a model's token",
        "a schema",
        "a signed thought",
        "cut off",
        "quotes of two texts",
        "a name after a text",
        "a form",
        "known from a header",
    ],
)
def test_cases(data: bytes, content_type: str, left: bytes) -> None:
    known = known_secrets([("Authorization", "Bearer sk-1234567890"), ("Accept", "application/json")], "http://h/")
    assert without_credentials(data, known, content_type) == left


def test_secrets_found_in_a_request() -> None:
    headers = [
        ("x-api-key", "abcdefgh1"),
        ("Cookie", "session=1234567"),
        ("X-Short", "abc"),
        ("Authorization", "Basic QWxhZGRpbg=="),
    ]
    found = known_secrets(headers, "https://me:pass-word-1@host/p?key=query-key-1&q=visible")
    assert set(found) == {
        b"abcdefgh1", b"session=1234567", b"session%3D1234567", b"QWxhZGRpbg==", b"QWxhZGRpbg%3D%3D", b"query-key-1",
        b"pass-word-1",
    }  # fmt: skip
