"""Bodies are decoded as their headers say, whole or cut off; what cannot be decoded is reported as an error."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest

from refold.agents.capture.encodings import OUTPUT_BYTES_MAX, Decoder, Undecodable
from refold_tests.corpora import members
from refold_tests.encoding_cases import ENCODED, body_of

pytestmark = pytest.mark.outside

TEXT = b'{"model": "m", "messages": []}' * 2000


def read(header: str | None, body: bytes, piece: int) -> tuple[bytes, bool]:
    decoder = Decoder(header)
    found = b"".join(decoder.feed(body[at : at + piece]) for at in range(0, len(body), piece))
    return found, decoder.finish()


@pytest.mark.parametrize("piece", [1, 7, 100_000])
@pytest.mark.parametrize("name", ENCODED)
def test_body_is_decoded_in_chunks_of_any_size(name: str, piece: int) -> None:
    assert read(name.removeprefix("raw "), ENCODED[name](TEXT), piece) == (TEXT, True)


@pytest.mark.parametrize("name", ENCODED)
def test_truncated_body_is_decoded_as_far_as_possible(name: str) -> None:
    whole = os.urandom(300_000).hex().encode() + TEXT
    body = ENCODED[name](whole)
    found, is_whole = read(name.removeprefix("raw "), body[: len(body) * 3 // 4], 5000)
    assert not is_whole
    assert found
    assert whole.startswith(found)


def test_stacked_encodings_are_removed_in_order() -> None:
    assert read("gzip, br , ZSTD", ENCODED["zstd"](ENCODED["br"](ENCODED["gzip"](TEXT))), 11) == (TEXT, True)


def test_decompression_bomb_is_refused() -> None:
    for name in ("gzip", "br", "zstd"):
        with pytest.raises(Undecodable, match="has more than") as refused:
            read(name, ENCODED[name](bytes(OUTPUT_BYTES_MAX + 1)), 1 << 16)
        assert refused.value.kind == "oversize"


def test_vectors_of_another_project_decode_as_specified(turns_file: Path) -> None:
    """papercomputeco/tapes, MIT. It does not support br, so its case for br holds a body that is not br."""
    cases = members(turns_file, "content-encoding")
    assert len(cases) == 27
    for name, data in cases.items():
        judge(name, json.loads(data))


def judge(name: str, case: Any) -> None:
    plain, body = body_of(case["body"])
    expected = case["expect"]
    if expected["outcome"] == "error":
        with pytest.raises(Undecodable) as refused:
            read(case["encoding"], body, 1 << 16)
        wanted = expected["error"]
        assert refused.value.kind == ("undecodable" if case["encoding"] == "br" else wanted["class"]), name
        for part in wanted.get("message_contains", ()):
            assert part in str(refused.value), name
        return
    found, is_whole = read(case["encoding"], body, 1 << 16)
    assert expected["outcome"] == ("decoded" if is_whole else "salvaged"), name
    decoded = expected["decoded"]
    if "bytes_b64" in decoded:
        assert found == base64.b64decode(decoded["bytes_b64"]), name
    elif decoded.get("equals_plaintext"):
        assert found == plain, name
    else:
        assert found, name
        assert plain.startswith(found), name
