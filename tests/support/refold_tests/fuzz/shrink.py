"""Makes a failing case smaller, as long as it fails in the same way."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from refold_tests.fuzz.case import Case

SECONDS = 60.0
TRIES = 500
Fails = Callable[[Case], bool]


def shrunk(case: Case, fails: Fails, seconds: float = SECONDS, tries: int = TRIES) -> Case:
    """Return the smallest case found within a time and a number of tries; the case itself if nothing can be removed.

    Each round removes what it can: words of the command line, members of JSON trees, then ever shorter pieces of bytes.
    It ends with the first round that removes nothing.
    """
    end = time.monotonic() + seconds
    left = [tries]

    def is_allowed(smaller: Case) -> bool:
        left[0] -= 1
        return left[0] >= 0 and time.monotonic() < end and fails(smaller)

    while left[0] > 0 and time.monotonic() < end:
        found = case
        for reduce in (_fewer_words, _smaller_trees, _fewer_bytes):
            found = reduce(found, is_allowed)
        if found == case:
            return case
        case = found
    return case


def _fewer_words(case: Case, fails: Fails) -> Case:
    at = 1
    while at < len(case.arguments):
        smaller = replace(case, arguments=case.arguments[:at] + case.arguments[at + 1 :])
        if fails(smaller):
            case = smaller
        else:
            at += 1
    return case


def _smaller_trees(case: Case, fails: Fails) -> Case:
    for name in case.files:
        moved = True
        while moved:
            moved = False
            for data in _smaller_texts(case.files[name]):
                smaller = replace(case, files={**case.files, name: data})
                if fails(smaller):
                    case, moved = smaller, True
                    break
    return case


def _smaller_texts(data: bytes) -> Iterator[bytes]:
    """Yield the same JSON without each of its members; nothing if it is not JSON."""
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError):
        return
    for smaller in _without_one(tree):
        yield json.dumps(smaller).encode()


def _without_one(tree: Any) -> Iterator[Any]:
    if isinstance(tree, dict):
        for key in tree:
            yield {name: each for name, each in tree.items() if name != key}
        for key, value in tree.items():
            for each in _without_one(value):
                yield {**tree, key: each}
    elif isinstance(tree, list):
        for at in range(len(tree)):
            yield tree[:at] + tree[at + 1 :]
        for at, value in enumerate(tree):
            for each in _without_one(value):
                yield [*tree[:at], each, *tree[at + 1 :]]


def _fewer_bytes(case: Case, fails: Fails) -> Case:
    for name in case.files:
        size = max(1, len(case.files[name]) // 2)
        while size:
            at = 0
            while at < len(case.files[name]):
                data = case.files[name]
                smaller = replace(case, files={**case.files, name: data[:at] + data[at + size :]})
                if fails(smaller):
                    case = smaller
                else:
                    at += size
            size //= 2
    return case
