"""Sealed values: round trips, what they are bound to, and the errors if their key or content is gone."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.agents.keys.ring import MemoryKeyRing
from refold.agents.vault import DEFLATED_BYTES_MIN, SEALED_CONTENT, ClearVault, ValueCipher, Vault, key_of, run_key
from refold.avro.blob import Blob, Sealed
from refold.avro.canonical import json_tree
from refold.avro.errors import CorruptionError, Expired, NotAnswerable
from refold.avro.shipped import shipped_types
from refold.streams.client import Log
from refold_tests.opening import open_log

STEP, KEY = "step/r-1#1", run_key("r-1")
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=30)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip
LARGE = st.text(min_size=1, max_size=20).map(lambda part: part * 600)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Log]:
    with open_log(tmp_path_factory.mktemp("vault"), types=[*shipped_types().values()]) as opened:
        yield opened


@pytest.fixture
def vault(log: Log) -> Vault:
    return Vault(log, MemoryKeyRing())


@pytest.fixture(scope="module")
def shared(log: Log) -> Vault:
    return Vault(log, MemoryKeyRing())


@given(tree=JSON | LARGE | LARGE.map(lambda text: {"a": [text, 0.5]}), field=st.sampled_from(["journal", "decision"]))
def test_sealed_value_opens_unchanged_and_seals_deterministically(shared: Vault, tree: Any, field: str) -> None:
    tree = json_tree(tree)
    stored = shared.seal(KEY, STEP, field, tree)
    assert stored == shared.seal(KEY, STEP, field, tree)
    assert shared.open(STEP, field, stored) == tree
    assert repr(shared.open(STEP, field, stored)) == repr(tree) or isinstance(tree, (dict, list))
    assert shared.open(STEP, field, {"k": [stored, 1]}) == {"k": [tree, 1]}


@given(number=st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_keep_their_type(shared: Vault, number: float) -> None:
    number = json_tree(number)  # type: ignore[assignment]
    opened = shared.open(STEP, "journal", shared.seal(KEY, STEP, "journal", [number]))[0]
    assert (json_tree(opened), type(json_tree(opened))) == (number, type(number))


def test_field_limit_of_the_plaintext_decides_what_becomes_a_blob(vault: Vault, log: Log) -> None:
    # A text of up to 65,535 bytes has 3 bytes before it in CBOR, and `decision` holds 1,024 inline.
    assert isinstance(vault.seal(KEY, STEP, "decision", "x" * 1021), Sealed)
    blob = vault.seal(KEY, STEP, "decision", "x" * 1022)
    assert isinstance(blob, Blob)
    assert blob.media_type == SEALED_CONTENT
    content = log.blob(blob)
    assert (hashlib.sha256(content).digest(), len(content)) == (blob.hash, blob.size)
    assert key_of(content) == KEY
    assert key_of(b"else") is key_of(b"") is key_of(content[:-1]) is None
    assert b"xxxx" not in content
    assert isinstance(vault.seal(KEY, "run/r-1", "title", "x" * 200_000), Sealed)


def test_long_texts_are_compressed(vault: Vault) -> None:
    blob = vault.seal(KEY, STEP, "decision", "word " * DEFLATED_BYTES_MIN)
    assert blob.size < DEFLATED_BYTES_MIN
    assert vault.open(STEP, "decision", blob) == "word " * DEFLATED_BYTES_MIN


@pytest.mark.parametrize("tree", ["short", "long" * 2000])
def test_altered_or_moved_value_is_refused_by_name(vault: Vault, log: Log, tree: str) -> None:
    stored = vault.seal(KEY, STEP, "decision", tree)
    with pytest.raises(CorruptionError, match=r"step/r-1#2 decision.*moved from another entity or field"):
        vault.open("step/r-1#2", "decision", stored)
    with pytest.raises(CorruptionError, match=f"{STEP} rationale"):
        vault.open(STEP, "rationale", stored)
    for other in _flipped(log, stored):
        with pytest.raises(CorruptionError, match=f"{STEP} decision"):
            vault.open(STEP, "decision", other)
    other_run = vault.seal(run_key("r-2"), STEP, "decision", tree)
    assert other_run != stored
    if isinstance(stored, Sealed):
        with pytest.raises(CorruptionError, match="under the key run:r-2"):
            vault.open(STEP, "decision", Sealed(other_run.key_id, stored.ciphertext))


def _flipped(log: Log, stored: Sealed | Blob) -> Iterator[Sealed | Blob]:
    """Yield the value with a bit changed, anywhere in it, or without its end."""
    if isinstance(stored, Sealed):
        data = stored.ciphertext
        for place in range(len(data)):
            yield Sealed(stored.key_id, _with_flipped_bit(data, place))
        yield from (Sealed(stored.key_id, data[:length]) for length in (0, 1, 15, len(data) - 1))
        return
    content = log.blob(stored)
    # Bits of the key id are not changed: that would name another key.
    for place in range(len(content) - 1, content.index(b"ciphertext") + 12, -max(1, len(content) // 50)):
        yield log.put_blob(_with_flipped_bit(content, place), SEALED_CONTENT)
    yield log.put_blob(content[:-1], SEALED_CONTENT)
    yield log.put_blob(b"", SEALED_CONTENT)


def _with_flipped_bit(data: bytes, place: int) -> bytes:
    return data[:place] + bytes((data[place] ^ 1 << place % 8,)) + data[place + 1 :]


def test_destroyed_key_and_missing_blob_are_expired(vault: Vault, log: Log) -> None:
    short, long = vault.seal(KEY, STEP, "decision", "short"), vault.seal(KEY, STEP, "decision", "long" * 1000)
    gone = Blob(bytes(32), long.size, SEALED_CONTENT)
    with pytest.raises(Expired, match=f"{STEP} decision: expired: the content 0000"):
        vault.open(STEP, "decision", gone)
    vault.ring.destroy(KEY)
    for stored in (short, long):
        with pytest.raises(Expired, match=f"{STEP} decision: expired: there is no key {KEY} in this process"):
            vault.open(STEP, "decision", stored)


def test_run_resumed_while_its_key_is_destroyed_gets_no_second_key(vault: Vault) -> None:
    stored = vault.seal(KEY, STEP, "decision", "before")
    resumed = Vault(vault._log, vault.ring)
    assert resumed.open(STEP, "decision", stored) == "before"
    vault.ring.destroy(KEY)
    after = resumed.seal(KEY, STEP, "decision", "after")
    for each in (stored, after):
        with pytest.raises(Expired):
            resumed.open(STEP, "decision", each)
    assert [*vault.ring.ids()] == []


def test_sealed_value_without_keys_says_that_it_is_sealed(vault: Vault, log: Log) -> None:
    for tree in ("short", "long" * 1000):
        with pytest.raises(NotAnswerable, match="REFOLD_KEYS") as caught:
            ClearVault(log).open(STEP, "decision", vault.seal(KEY, STEP, "decision", tree))
        assert not isinstance(caught.value, Expired)


ERROR = {"message": "m" * 600, "input": {"a": [1, "i" * 300]}, "traceback": "t" * 3000, "exception": "x.Y"}
RETRY = {"attempt": 1, "backoff_ms": 5, "error": "e" * 1000}


@pytest.mark.parametrize("kind", ["sealed", "clear"])
def test_value_shown_by_a_log_opens_at_any_depth(kind: str, log: Log, vault: Vault) -> None:
    """Test elements of collections, parts of records, and records that are themselves over the limit."""
    keeper: ValueCipher = vault if kind == "sealed" else ClearVault(log)
    run, step = f"run/{kind}", f"step/{kind}#1"
    journal = {str(each): {"attempt": [each, "x" * size]} for each, size in enumerate((3, 900, 5000))}
    error = {name: keeper.seal(KEY, run, "error", each) if name != "exception" else each
             for name, each in ERROR.items()}  # fmt: skip
    retries = [{**RETRY, "error": keeper.seal(KEY, step, "retries", RETRY["error"])}] * 2
    given = {key: keeper.seal(KEY, step, "journal", each) for key, each in journal.items()}
    log.observe(run, {"error": error, "input": keeper.seal(KEY, run, "input", {"q": "?"}), "seed": 1})
    log.observe(step, {"journal": given, "retries": retries})
    log.flush()
    seen = log.state(run).fields
    assert keeper.open(run, "error", seen["error"]) == ERROR
    assert keeper.open(run, "input", seen["input"]) == {"q": "?"}
    found = log.state(step).fields
    assert keeper.open(step, "journal", found["journal"]) == journal
    assert keeper.open(step, "retries", found["retries"]) == [RETRY] * 2
    assert vault.open(step, "journal", found["journal"]) == journal, "a vault reads what was recorded in the clear too"
    assert log.verify().ok
