"""The key of a log's tokens: the same in every process, or deliberately another one."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

import refold
from refold.agents.keys.files import FileKeyRing
from refold.agents.redaction.redactor import Redactor
from refold.agents.redaction.tokens import ENVIRONMENT, fresh_key, kept_key


def test_key_of_a_ring_is_created_once_and_private_to_its_user(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    key = kept_key(FileKeyRing(folder), {})
    assert kept_key(FileKeyRing(folder), {}) == key
    files = [each for each in folder.iterdir() if each.is_file()]
    assert [stat.S_IMODE(each.stat().st_mode) for each in files] == [0o600]
    assert kept_key(FileKeyRing(tmp_path / "others"), {}) != key


def test_environment_variable_takes_precedence_and_creates_no_file(tmp_path: Path) -> None:
    assert kept_key(FileKeyRing(tmp_path / "keys"), {ENVIRONMENT: "0f" * 32}) == b"\x0f" * 32
    assert not (tmp_path / "keys").exists()


@pytest.mark.parametrize("text", ["0f" * 15, "not hex at all, and long enough"])
def test_invalid_key_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(refold.InputError, match="openssl rand -hex 32"):
        kept_key(FileKeyRing(tmp_path / "keys"), {ENVIRONMENT: text})


def test_tokens_reveal_equality_only_under_one_key() -> None:
    key = fresh_key()
    assert Redactor(key)("a@example.com") == Redactor(key)("a@example.com") != Redactor(key)("b@example.com")
    assert Redactor()("a@example.com") != Redactor()("a@example.com")


def test_token_values_are_pinned() -> None:
    """Recorded runs contain such tokens. If they changed, no recorded request with one would be found."""
    assert Redactor(bytes(range(32)))("a@example.com") == "[email:a263d9d7cc945f540554]"
