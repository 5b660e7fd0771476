"""JSON and CBOR from strangers, read within bounds."""

from __future__ import annotations

import json
import re

import cbor2

from refold.avro.errors import InputError

DEPTH_MAX = 64
# A text, ended or not, so that no bracket in one counts and no part is read twice; or a bracket.
_MARKS = re.compile(rb'"(?:[^"\\]|\\.)*+\\?(?:"|\Z)|[\[{]|[\]}]', re.DOTALL)


def json_object(content: bytes) -> dict[str, object]:
    """The JSON object in a content, {} where that is empty. InputError for anything else, or one nested too deeply."""
    _check_depth(content)
    try:
        found = json.loads(content or b"{}", parse_constant=_refuse)
    except ValueError as error:  # also a number of more digits than Python reads
        raise InputError(f"what was posted is no JSON: {str(error)[:200]}") from error
    if not isinstance(found, dict):
        raise InputError("what was posted is no JSON object")
    return found


def cbor_list(content: bytes) -> list[object]:
    """The CBOR list in a content. InputError for anything else, or one nested too deeply."""
    try:
        found = cbor2.loads(content, max_depth=DEPTH_MAX)
    except (cbor2.CBORDecodeError, ValueError, TypeError) as error:
        raise InputError(f"what was posted is no CBOR: {str(error)[:200]}") from error
    if not isinstance(found, list):
        raise InputError("what was posted is no list in CBOR")
    return found


def _check_depth(content: bytes) -> None:
    depth = 0
    for mark in _MARKS.finditer(content):
        if mark[0] in b"[{":
            depth += 1
            if depth > DEPTH_MAX:
                raise InputError(f"what was posted is nested more than {DEPTH_MAX} levels deep")
        elif mark[0] in b"]}":
            depth -= 1


def _refuse(literal: str) -> object:
    raise ValueError(f"{literal} is no JSON")
