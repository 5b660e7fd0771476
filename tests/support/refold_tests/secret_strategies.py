"""Random secrets, each of a recognizable form, to hide in trees and texts, and trees to hide them in."""

from __future__ import annotations

import json
import string
from collections.abc import Callable
from typing import Any, TypeAlias

from hypothesis import strategies as st

Draw: TypeAlias = Callable[[st.SearchStrategy[Any]], Any]

ALNUM = string.ascii_letters + string.digits
WORD = st.text(string.ascii_letters + " äöß東\n", max_size=12)
# Never letters or digits, which would form another word with the secret. Nor a single quote, as in O'Neill.
AROUND = st.sampled_from([" ", ", ", "\n", "(", ") ", ": ", "; ", "<", "> ", '"', "\t", "|", "/ "])


def luhn(digits: str) -> str:
    """Return the digits with the check digit that makes them valid."""
    total = sum(n if at % 2 else (n * 2 - 9 if n > 4 else n * 2) for at, n in enumerate(map(int, reversed(digits))))
    return digits + str(-total % 10)


@st.composite
def card(draw: st.DrawFn) -> str:
    """Draw a card number, in one piece or in groups as on the card."""
    start, length = draw(st.sampled_from([("4", 16), ("51", 16), ("2221", 16), ("34", 15), ("6011", 16), ("4", 13)]))
    rest = draw(st.text(string.digits, min_size=length - len(start) - 1, max_size=length - len(start) - 1))
    digits = luhn(start + rest)
    if length == 16 and draw(st.booleans()):
        return draw(st.sampled_from(" -.")).join(digits[at : at + 4] for at in range(0, 16, 4))
    return digits


def _some(alphabet: str, least: int, most: int) -> st.SearchStrategy[str]:
    return st.text(alphabet, min_size=least, max_size=most)


EMAIL = st.builds(
    lambda user, host, end: f"{user}@{host}.{end}",
    st.from_regex(r"[a-z][a-z0-9]{0,8}([.+-][a-z0-9]{1,8})?", fullmatch=True),
    _some(string.ascii_lowercase, 1, 10), st.sampled_from(["com", "co.uk", "de", "museum"]),
)  # fmt: skip
API_KEY = st.one_of(
    st.builds("sk-{}".format, _some(ALNUM, 20, 48)),
    st.builds("sk-ant-api03-{}".format, _some(ALNUM + "-_", 40, 95)),
    st.builds("sk_live_{}".format, _some(ALNUM, 24, 24)),
    st.builds("ghp_{}".format, _some(ALNUM, 36, 36)),
    st.builds("xoxb-{}".format, _some(string.digits, 12, 24)),
    st.builds("AKIA{}".format, _some(string.ascii_uppercase + string.digits, 16, 16)),
    st.builds("AIza{}".format, _some(ALNUM + "-_", 35, 35)),
)
JWT = st.builds(
    "eyJhbGciOiJIUzI1NiJ9.{}.{}".format, _some(ALNUM + "-_", 10, 40), _some(ALNUM + "-_", 20, 43)
)  # fmt: skip
PRIVATE_KEY = st.builds(
    "-----BEGIN {0}PRIVATE KEY-----\n{1}\n-----END {0}PRIVATE KEY-----".format,
    st.sampled_from(["", "RSA ", "EC ", "OPENSSH "]), _some(ALNUM + "+/=\n", 20, 90),
)  # fmt: skip
SHAPED = st.one_of(EMAIL, card(), API_KEY, JWT, PRIVATE_KEY)
"""Secrets that are recognized by their form."""

SECRET_NAMES = st.sampled_from([
    "api_key", "apiKey", "API-KEY", "OPENAI_API_KEY", "x-api-key", "password", "Password", "db_password", "passwd",
    "PASSPHRASE", "authorization", "Proxy-Authorization", "token", "accessToken", "refresh_token", "secret",
    "client.secret", "AWS_SECRET_ACCESS_KEY", "private key", "credentials", "Set-Cookie", "pin", "cvv",
])  # fmt: skip
# Nothing in it shows that it is a secret. It is not only digits, so that it does not occur by accident.
OPAQUE = st.from_regex(r"[G-Zg-z!$^]{6,10}[0-9][g-z]{2,8}", fullmatch=True)

_HEX = "0123456789abcdef"
HARMLESS_TEXT = st.one_of(
    WORD,
    st.uuids().map(str),
    st.uuids().map(lambda each: each.hex),
    _some(_HEX, 40, 40), _some(_HEX, 64, 64),
    st.builds("{}:{}:send_mail:{}".format, st.uuids(), st.integers(1, 99), _some(_HEX, 64, 64)),
    st.datetimes().map(lambda each: each.isoformat()),
    st.builds("order #W{}, total {} of {}".format, st.integers(0, 9_999_999), st.integers(0, 10**6), st.dates()),
    st.builds("step/{}#{}".format, st.uuids(), st.integers(1, 99)),
    st.builds("call_{}".format, _some(ALNUM, 24, 24)),
    st.builds("user_{}_{}".format, _some(string.ascii_lowercase, 3, 6), st.integers(1000, 9999)),
)  # fmt: skip
HARMLESS_NAME = st.one_of(
    st.sampled_from(["id", "key", "idempotency_key", "max_tokens", "input_tokens", "next_page_token", "passengers",
                     "hash", "order_id", "author", "tokenizer", "pins", "keyboard", "secretary"]),
    st.text(string.ascii_lowercase, min_size=1, max_size=3).map("n{}".format),
)  # fmt: skip
HARMLESS_LEAF = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**12), 10**12), st.integers(1_500_000_000_000_000, 1_999_999_999_999_999),
    st.floats(-1e12, 1e12), HARMLESS_TEXT,
)  # fmt: skip


def trees(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return a strategy for JSON trees of these leaves, under meaningless names."""
    return st.recursive(
        leaves,
        lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(HARMLESS_NAME, inner, max_size=4)),
        max_leaves=12,
    )


def in_a_text(secret: str, draw: Draw) -> str:
    """Return a text that contains the secret."""
    return str(draw(WORD) + draw(AROUND) + secret + draw(AROUND) + draw(WORD))


def wrapped(draw: Draw, leaf: Any) -> Any:
    """Return the leaf at some depth in a tree, in lists, objects and JSON texts."""
    for kind in draw(st.lists(st.sampled_from(["list", "object", "json", "indented", "escaped"]), max_size=5)):
        if kind == "list":
            leaf = [*draw(st.lists(HARMLESS_LEAF, max_size=2)), leaf, *draw(st.lists(HARMLESS_LEAF, max_size=2))]
        elif kind == "object":
            leaf = {**draw(st.dictionaries(HARMLESS_NAME, HARMLESS_LEAF, max_size=2)), "at": leaf}
        else:
            options: dict[str, Any] = {"indent": 2} if kind == "indented" else {"ensure_ascii": kind == "escaped"}
            leaf = json.dumps([leaf] if isinstance(leaf, str) else leaf, **options)
    return leaf
