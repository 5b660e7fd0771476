"""An error inside of the redactor prevents the write, and reveals nothing of the content."""

from __future__ import annotations

import traceback
from typing import Any

import pytest

import refold
from refold.agents.redaction.redactor import Redactor, for_run
from refold.avro.errors import RedactionFailed

SECRET = "hunter2-and-more"
KEY = b"0123456789abcdef"


def raising(text: str) -> list[tuple[int, int]]:
    """A user's function that quotes its argument in its error."""
    raise ValueError(f"cannot parse {text}")


def endless(text: str) -> list[tuple[int, int]]:
    """A user's function that finds something in every text, even in its own output."""
    return [(0, 1)] if text else []


def deep(levels: int) -> Any:
    tree: Any = SECRET
    for _ in range(levels):
        tree = [tree]
    return tree


@pytest.mark.parametrize(
    ("redact", "tree"),
    [
        (Redactor(KEY, rules={"own": raising}), SECRET),
        (Redactor(KEY, rules={"own": lambda text: [(0, len(text) + 1)]}), SECRET),
        (Redactor(KEY, rules={"own": lambda text: [SECRET]}), SECRET),  # type: ignore[list-item]
        (Redactor(KEY, rules={"own": endless}), SECRET * 3),
        (Redactor(KEY), {"a": SECRET.encode()}),
        (Redactor(KEY), {"a": object(), SECRET: 1}),
        (Redactor(KEY), {1: SECRET, "password": SECRET}),
        (Redactor(KEY), deep(100_000)),
        (Redactor(KEY), {"a": "[" * 100_000 + f'"bob@{SECRET}.com"' + "]" * 100_000}),
        (for_run(raising, lambda: KEY), SECRET),
        (for_run(lambda tree: 1 / 0, lambda: KEY), SECRET),
    ],
)
def test_error_shows_nothing_of_the_secret(redact: Any, tree: Any) -> None:
    with pytest.raises(RedactionFailed) as caught:
        redact(tree)
    error = caught.value
    assert isinstance(error, refold.RefoldError)
    assert error.__cause__ is None
    assert error.__context__ is None
    shown = "".join(traceback.format_exception(error)) + repr(error.args)
    assert SECRET not in shown
    assert "nothing was written" in str(error)


def test_colliding_redacted_keys_are_not_written() -> None:
    token = Redactor(KEY)("bob@example.com")
    with pytest.raises(RedactionFailed, match="two keys"):
        Redactor(KEY)({"bob@example.com": 1, token: 2})


def test_known_non_text_values_are_kept() -> None:
    blob = refold.Blob(hash=bytes(32), size=3, media_type="text/plain")
    assert Redactor(KEY)({"a": blob, "password": "x1"})["a"] is blob


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"key": b"short"}, "16 bytes"),
        ({"rules": {"Bad kind": "x"}}, "not a kind"),
        ({"rules": {"own": "("}}, "own: "),
        ({"without": ["mail"]}, "email, card"),
    ],
)
def test_unusable_redactor_is_refused_at_once(options: dict[str, Any], says: str) -> None:
    with pytest.raises(refold.InputError, match=says):
        Redactor(**options)


def test_repr_of_a_redactor_hides_its_key() -> None:
    assert repr(Redactor(KEY)) == "<Redactor>"
