"""What is found, and what is not, case by case."""

from __future__ import annotations

import re
from typing import Any

import pytest

from refold.agents.redaction.redactor import Redactor
from refold.agents.redaction.tokens import fresh_key

KEY = b"0123456789abcdef"
TOKEN = re.compile(r"\[([a-z-]+):[0-9a-f]{20}\]")


def seen(tree: Any, **options: Any) -> Any:
    """Return the redacted tree, with only the kinds of the tokens."""
    found = Redactor(KEY, **options)(tree)
    return TOKEN.sub(r"[\1]", found) if isinstance(found, str) else found


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("write to Bob.O'Neill+x@mail.example.co.uk.", "write to [email]."),
        ("b'bob@example.com', 'bob@example.com', d'angelo@example.com", "b'[email]', '[email]', [email]"),
        ("müller@bücher.example, 'a_b@x.org'", "[email], '[email]'"),
        ("?to=bob%40example.com&x=1", "?to=[email]&x=1"),
        ("4111 1111 1111 1111, 5555-5555-5555-4444", "[card], [card]"),
        ("378282246310005/3782 822463 10005", "[card]/[card]"),
        ("card4111111111111111", "card[card]"),
        ("1234 4111 1111 1111 1111", "1234 [card]"),
        ("key sk-proj-abcdefghijklmnopqrst-1", "key [api-key]"),
        ("AKIAIOSFODNN7EXAMPLE ghp_0123456789abcdefABCDEF0123456789abcd", "[api-key] [api-key]"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl", "[jwt]"),
        ("x\n-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----\ny", "x\n[private-key]\ny"),
        ("cut: -----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBg", "cut: [private-key]"),
        ("Authorization: Bearer abc123def456", "Authorization: Bearer [secret]"),
        ("-H 'Authorization: Basic Ym9iOnB3'", "-H 'Authorization: Basic [secret]'"),
        ("Cookie: sid=abc; theme=dark\nHost: x", "Cookie: [secret]\nHost: x"),
        ("postgres://bob:hunter2@db.example.org/x", "postgres://bob:[secret]@db.example.org/x"),
        ("GET /v1?api_key=abcdef&page=2", "GET /v1?api_key=[secret]&page=2"),
        ("OPENAI_API_KEY=swordfish python x.py", "OPENAI_API_KEY=[secret] python x.py"),
        ("login(user='bob', password='swordfish')", "login(user='bob', password='[secret]')"),
        ("{'token': 'swordfish', 'n': 1}", "{'token': '[secret]', 'n': 1}"),
        ('"password": "sword\\"fish", "n": 1', '"password": "[secret]", "n": 1'),
        ('{"password": "swordf', '{"password": "[secret]'),
        ("my password: hunter2!", "my password: [secret]"),
    ],
)
def test_secrets_in_a_text(text: str, left: str) -> None:
    assert seen(text) == left


@pytest.mark.parametrize(
    "text",
    [
        "git clone git@github.com:refold/refold.git",
        "alice@host/4711 and @decorator and pkg@1.2.3",
        "4111 1111 1111 1112",
        "order 4111111111111112, at 1763763647000000",
        "9f4111111111111111ab",
        "550e8400-e29b-41d4-a716-411111111111",
        "0.4111111111111111",
        "41111111111111110000000000000000",
        "token=get_token(), password=os.environ['X'], api_key=self.key, secret=None",
        "max_tokens=512, next_page_token='abc', 12 tokens: 5",
        "Password: required. Bearer certificates in Basic economy; the secret: patience",
        "risk-adjusted-return-of-the-desk-and-so-on",
        "password=$PASSWORD",
        "postgres://db.example.org:5432/x",
        '{"tokens": [1, 2], "key": "abc"}',
        "password=[secret:0123456789abcdef0123]",
        "passwd: ********",
        "",
    ],
)
def test_texts_without_secrets(text: str) -> None:
    assert Redactor(KEY)({"a": text})["a"] == text


@pytest.mark.parametrize(
    ("tree", "left"),
    [
        ({"password": ""}, {"password": ""}),
        ({"password": None, "secret": True}, {"password": None, "secret": True}),
        ({"password": "****"}, {"password": "****"}),
        ({"token": "Hello", "logprob": -0.1}, {"token": "Hello", "logprob": -0.1}),
        ({"n": 4111111111111112, "x": 0.5}, {"n": 4111111111111112, "x": 0.5}),
    ],
)
def test_values_without_secrets(tree: Any, left: Any) -> None:
    assert Redactor(KEY)(tree) == left


def test_numbers_and_subtrees_below_a_secret_name() -> None:
    redact = Redactor(KEY)
    card = redact("4111111111111111")
    assert redact([4111111111111111, 4111111111111111.0]) == [card, card]
    found = redact({"credentials": {"user": "bob", "keys": [1, "two", {"x": "three"}], "on": True}})
    assert TOKEN.sub("t", str(found)) == "{'credentials': {'user': 't', 'keys': ['t', 't', {'x': 't'}], 'on': True}}"


def test_user_patterns_are_added_and_removed() -> None:
    def people(text: str) -> list[tuple[int, int]]:
        return [match.span() for match in re.finditer("Mia Li", text)]

    rules = {"staff": r"\bE\d{6}\b", "badge": re.compile(r"badge (\w+)"), "person": people}
    text = "Mia Li, E123456, badge x7"
    assert seen(text, rules=rules) == "[person], [staff], badge [badge]"
    assert seen(f'{{"a": ["{text}"]}}', rules=rules) == '{"a": ["[person], [staff], badge [badge]"]}'
    assert TOKEN.search(seen({"Employee-Id": "x"}, names=["employee_id"])["Employee-Id"])
    assert seen({"page_cookie": "x"}, left=["pageCookie"]) == {"page_cookie": "x"}
    assert seen("bob@example.com 4111111111111111", without=["email"]) == "bob@example.com [card]"


def test_json_layout_in_a_text_is_kept() -> None:
    text = '{ "b" : 1.0,\n\t"api_key":"k\\u0065y one",  "a\\/b": ["caf\\u00e9", "bob\\u0040x.org"], "a": {"pin":12} }'
    assert seen(text) == (
        '{ "b" : 1.0,\n\t"api_key":"[secret]",  "a\\/b": ["caf\\u00e9", "[email]"], "a": {"pin":"[secret]"} }'
    )


def test_duplicate_names_in_a_json_text_are_both_redacted() -> None:
    assert seen('{"pin": "1234", "pin": "5678"}') == '{"pin": "[secret]", "pin": "[secret]"}'


def test_runs_share_no_learned_secrets() -> None:
    redact = Redactor(KEY)
    first, second = redact.for_run(fresh_key), redact.for_run(fresh_key)
    assert first.shown({"password": "correct-horse-9"}) == second({"password": "correct-horse-9"})
    assert "horse" not in first("it is correct-horse-9")
    assert second("it is correct-horse-9") == redact("it is correct-horse-9") == "it is correct-horse-9"


def test_run_uses_the_logs_key_when_its_redactor_has_none() -> None:
    other = b"fedcba9876543210"
    text = "bob@example.com"
    assert Redactor().for_run(lambda: KEY)(text) == Redactor(KEY)(text) == Redactor(KEY).for_run(lambda: other)(text)


def test_short_secret_does_not_affect_other_texts() -> None:
    assert seen({"secret": "production", "note": "in production"})["note"] == "in production"


def test_literal_secrets_are_found_in_any_text() -> None:
    assert seen('{"x": "a swordfish!"}', secrets=["swordfish", ""]) == '{"x": "a [secret]!"}'
    assert seen("a swordfish!", secrets=["sword", "swordfish"]) == "a [secret]!"
