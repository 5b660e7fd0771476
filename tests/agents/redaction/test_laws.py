"""Laws for every tree: no planted secret remains, nothing else changes, equal secrets get equal tokens."""

from __future__ import annotations

import copy
import json
import random
import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from refold.agents.redaction.redactor import Redactor
from refold.agents.redaction.tokens import between_tokens
from refold_tests.secret_strategies import (
    API_KEY,
    EMAIL,
    HARMLESS_LEAF,
    OPAQUE,
    SECRET_NAMES,
    SHAPED,
    card,
    in_a_text,
    trees,
    wrapped,
)

KEY = b"0123456789abcdef"
TOKEN = re.compile(r"\[[a-z-]+:[0-9a-f]{20}\]")


def texts_in(tree: Any) -> str:
    """Return all texts of a tree, including keys, without encoding: JSON would write some characters differently."""
    if isinstance(tree, dict):
        return "\0".join(each for pair in tree.items() for each in map(texts_in, pair))
    return "\0".join(map(texts_in, tree)) if isinstance(tree, list) else str(tree)


def unescaped(tree: Any) -> str:
    """Return the texts of a tree, with every JSON text within them decoded, at any depth."""
    if isinstance(tree, dict):
        return "\0".join(each for pair in tree.items() for each in map(unescaped, pair))
    if isinstance(tree, list):
        return "\0".join(map(unescaped, tree))
    try:
        inner = json.loads(tree) if isinstance(tree, str) else tree
    except ValueError:
        return str(tree)
    return unescaped(inner) if isinstance(inner, (dict, list)) else str(tree)


@given(trees(HARMLESS_LEAF))
def test_value_without_secrets_is_returned_unchanged(tree: Any) -> None:
    assert Redactor(KEY)(tree) is tree


@given(trees(HARMLESS_LEAF))
def test_json_text_without_secrets_keeps_its_bytes(tree: Any) -> None:
    text = json.dumps(tree, indent=1)
    assert Redactor(KEY)({"a": text})["a"] == text


@given(st.data(), SHAPED)
def test_secrets_with_a_pattern_are_removed_everywhere(data: st.DataObject, secret: str) -> None:
    tree = wrapped(data.draw, in_a_text(secret, data.draw))
    before = copy.deepcopy(tree)
    found = Redactor(KEY)(tree)
    assert secret not in unescaped(found)
    assert tree == before


@given(st.data(), st.one_of(EMAIL, API_KEY, card()))
def test_secrets_in_keys_are_removed(data: st.DataObject, secret: str) -> None:
    tree = wrapped(data.draw, {in_a_text(secret, data.draw): 1, "other": [2]})
    assert secret not in unescaped(Redactor(KEY)(tree))


@given(st.data(), SECRET_NAMES, st.one_of(OPAQUE, st.integers(10**13, 10**14), SHAPED))
def test_values_below_a_secret_name_are_removed(data: st.DataObject, name: str, secret: Any) -> None:
    inner = data.draw(st.sampled_from([secret, [secret], {"deep": [secret]}, f"Bearer {secret}"]))
    tree = wrapped(data.draw, {name: inner, "other": 1})
    assert str(secret) not in unescaped(Redactor(KEY)(tree))


@given(st.data(), SECRET_NAMES, OPAQUE)
def test_secret_named_once_is_removed_from_the_whole_tree(data: st.DataObject, name: str, secret: str) -> None:
    note = in_a_text(secret, data.draw)
    tree = dict(data.draw(st.permutations([("note", note), (name, secret)])))
    assert secret not in unescaped(Redactor(KEY)(wrapped(data.draw, tree)))


@given(st.data(), SECRET_NAMES, OPAQUE)
def test_secret_passed_to_shown_is_removed_from_all_later_values(data: st.DataObject, name: str, secret: str) -> None:
    redact = Redactor(KEY)
    later = wrapped(data.draw, f"it said x{secret}x")
    redact({name: secret})
    assert redact(later) == later
    redact.shown({name: secret})
    assert secret not in unescaped(redact(later))


@given(st.data(), SHAPED, OPAQUE, SECRET_NAMES)
def test_redaction_is_idempotent_and_deterministic(data: st.DataObject, shaped: str, opaque: str, name: str) -> None:
    leaf = {"text": in_a_text(shaped, data.draw), name: opaque, "again": f"{opaque} {shaped}", shaped: 1}
    tree = wrapped(data.draw, leaf)
    redact = Redactor(KEY)
    once = redact(tree)
    assert redact(once) == once
    assert Redactor(KEY)(once) == once
    assert Redactor(KEY)(tree) == once
    assert Redactor(b"another key of a log")(tree) != once


@given(st.text(), st.lists(SHAPED, max_size=3), st.randoms(use_true_random=False))
def test_redaction_of_any_text_is_idempotent(text: str, secrets: list[str], order: random.Random) -> None:
    pieces = [*text, *secrets]
    order.shuffle(pieces)
    once = Redactor(KEY)("".join(pieces))
    assert Redactor(KEY)(once) == once


@given(st.text("=:\"'\\ \n[]{},?&@/.-pasword0123", max_size=60))
def test_redaction_of_any_special_characters_is_idempotent(text: str) -> None:
    for each in (text, f"password{text}", f"token={text}", f'{{"api_key": "{text}"}}', f"://{text}@x.org"):
        once = Redactor(KEY)(each)
        assert Redactor(KEY)(once) == once


@given(st.data(), SHAPED)
def test_only_the_secret_changes(data: st.DataObject, secret: str) -> None:
    text = in_a_text(secret, data.draw)
    tree = {"a": [text, data.draw(trees(HARMLESS_LEAF))], "z": data.draw(trees(HARMLESS_LEAF))}
    found = Redactor(KEY)(tree)
    assert [*found] == [*tree]
    assert (found["a"][1], found["z"]) == (tree["a"][1], tree["z"])
    before, _, after = text.partition(secret)
    assert found["a"][0].startswith(before)
    assert found["a"][0].endswith(after)
    token = found["a"][0][len(before) : len(found["a"][0]) - len(after)]
    assert TOKEN.fullmatch(token), token


@given(st.data(), SHAPED, SECRET_NAMES)
def test_secret_has_one_token_however_it_is_found(data: st.DataObject, secret: str, name: str) -> None:
    redact = Redactor(KEY)
    token = redact(secret)
    assert TOKEN.fullmatch(token)
    assert redact({name: secret}) == {name: token}
    assert redact({name: f"Bearer {secret}"}) == {name: f"Bearer {token}"}
    assert redact(json.dumps({"x": [secret]})) == json.dumps({"x": [token]})


@given(st.data(), OPAQUE, SECRET_NAMES)
def test_redacting_tokens_in_a_replay_gives_the_recorded_text(data: st.DataObject, secret: str, name: str) -> None:
    """The live agent has the secret, the replayed one its token: both make the same recorded request."""

    def agent(secret: str) -> list[Any]:
        return [{"headers": {"Authorization": f"Bearer {secret}"}}, f"log in as bob with {secret}", {name: secret},
                json.dumps({"password": secret}), f"https://bob:{secret}@db.example.org/x"]  # fmt: skip

    live, replayed = Redactor(KEY), Redactor(KEY)
    recorded_input = live.shown({"password": secret})
    recorded = [live(each) for each in agent(secret)]
    replayed.shown(recorded_input)
    assert [replayed(each) for each in agent(recorded_input["password"])] == recorded


@given(st.text(), st.text())
def test_text_between_tokens_is_redacted_separately(before: str, after: str) -> None:
    token = "[email:0123456789abcdef0123]"
    assert between_tokens(f"{before}{token}{after}", lambda text: text.replace("e", "x")) == (
        before.replace("e", "x") + token + after.replace("e", "x")
    )
