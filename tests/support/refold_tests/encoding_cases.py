"""Bodies in every encoding, including the shared test cases of encodings."""

from __future__ import annotations

import base64
import gzip
import zlib
from collections.abc import Callable
from typing import Any

import brotli
import zstandard

ENCODED: dict[str, Callable[[bytes], bytes]] = {
    "gzip": lambda data: gzip.compress(data, 1),
    "deflate": zlib.compress,
    "raw deflate": lambda data: zlib.compress(data, wbits=-15),
    "br": lambda data: brotli.compress(data, quality=1),
    "zstd": zstandard.ZstdCompressor().compress,
}


def body_of(given: Any) -> tuple[bytes, bytes]:
    """Return the text and the encoded body of a case."""
    if "bytes_b64" in given:
        return b"", base64.b64decode(given["bytes_b64"])
    build = given["build"]
    text = build["plaintext"]
    if "utf8" in text:
        plain = text["utf8"].encode()
    elif "repeat_byte" in text:
        plain = bytes([text["repeat_byte"]["byte"]]) * text["repeat_byte"]["count"]
    else:
        plain = text["repeat_utf8"]["text"].encode() * text["repeat_utf8"]["count"]
    half = len(plain) // 2
    parts = [plain[:half], plain[half:]] if build.get("members") == 2 else [plain]
    for layer in build["layers"]:
        parts = [ENCODED[layer](each) for each in parts]
    body = b"".join(parts)
    cut = build.get("truncate", {})
    if "keep_head_ratio" in cut:
        above, below = cut["keep_head_ratio"]
        body = body[: len(body) * above // below]
    body = body[: cut.get("keep_head_bytes", len(body))]
    return plain, body[: len(body) - cut.get("drop_tail_bytes", 0)]
