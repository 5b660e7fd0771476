"""Tagged JSON: how the published vectors write values so that any language can read them exactly.

    integer {"$int": "18446744073709551615"}    float  {"$float": "0.1"}
    bytes   {"$bytes": "00ff"}                  Blob   {"$blob": {hash, size, media_type}}
    decimal {"$decimal": "12.50"}               Sealed {"$sealed": {key_id, ciphertext}}

Text, true, false, null, lists and objects are written unchanged; hash and ciphertext are hex.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from refold.avro.blob import Blob, Sealed


def tag(value: Any) -> Any:
    """Return the tagged JSON of a value."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return {"$int": str(value)}
    if isinstance(value, float):
        return {"$float": repr(value)}
    if isinstance(value, bytes):
        return {"$bytes": value.hex()}
    if isinstance(value, Decimal):
        return {"$decimal": str(value)}
    if isinstance(value, Blob):
        return {"$blob": {"hash": value.hash.hex(), "size": tag(value.size), "media_type": value.media_type}}
    if isinstance(value, Sealed):
        return {"$sealed": {"key_id": value.key_id, "ciphertext": value.ciphertext.hex()}}
    if isinstance(value, Mapping):
        return {key: tag(each) for key, each in value.items()}
    return [tag(each) for each in value]


def untag(tree: Any) -> Any:
    """Return the value of tagged JSON."""
    if isinstance(tree, list):
        return [untag(each) for each in tree]
    if not isinstance(tree, dict):
        return tree
    if len(tree) == 1:
        ((mark, inner),) = tree.items()
        if mark == "$int":
            return int(inner)
        if mark == "$float":
            return float(inner)
        if mark == "$bytes":
            return bytes.fromhex(inner)
        if mark == "$decimal":
            return Decimal(inner)
        if mark == "$blob":
            return Blob(bytes.fromhex(inner["hash"]), untag(inner["size"]), inner["media_type"])
        if mark == "$sealed":
            return Sealed(inner["key_id"], bytes.fromhex(inner["ciphertext"]))
    return {key: untag(each) for key, each in tree.items()}
