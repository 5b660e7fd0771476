"""What recorded calls are found by, if that is not their whole request (journal/volatile.py), for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from refold.agents.journal.record import Plain, RecordedRequest, Recording


def matchings(asked: Iterable[RecordedRequest]) -> list[str]:
    """`tool find: matched without request_id`, each once."""
    return list(dict.fromkeys(f"{each.kind} {each.name}: {each.matching}" for each in asked if not each.is_whole))


def asked_of(*runs: Recording) -> Iterator[RecordedRequest]:
    """The calls of the attempts that count."""
    return (call.asked for run in runs for step in run.steps for call in step.calls)


def asked_in(tree: Plain) -> Iterator[RecordedRequest]:
    """Yield the calls in a step's stored journal that are not found by their whole request."""
    if isinstance(tree, list):
        for each in tree:
            yield from asked_in(each)
    if isinstance(tree, dict):
        if "kind" in tree and ("ignored" in tree or "found_by" in tree):
            try:
                yield msgspec.convert(tree, RecordedRequest)
            except msgspec.ValidationError:  # an argument of the agent that looks like one
                pass
            else:
                return
        for each in tree.values():
            yield from asked_in(each)
