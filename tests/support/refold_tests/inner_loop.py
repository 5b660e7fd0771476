"""Which tests `make check` runs: all that start no server and kill no process.

`pytest_collection_modifyitems` in conftest.py marks them `inner`. A module whose own marks leave all its tests out is
not imported then (`is_left_out`): such modules import the most. `guarded` fails a test that is marked `inner` and
starts a server anyway. tests/test_inner_loop.py checks that no inner test kills, and that no other test is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from refold.testing.processes import Supervised
from refold_tests import servers

# Fixtures that start a server, or give the test processes that are killed at its end.
FIXTURES = frozenset({
    "chart", "child", "kafka", "kafka_cluster", "own_postgres", "own_registry", "postgres_server", "receiver",
    "rotting", "s3_endpoint", "schema_registry",
})  # fmt: skip
# Markers of tests that start a server, kill a process, or take long.
MARKERS = frozenset({"faults", "fuzz", "kafka", "outside", "postgres", "registry", "s3"})
_MARKED = re.compile(rf"^pytestmark = .*\bpytest\.mark\.(?:{'|'.join(sorted(MARKERS))})\b", re.MULTILINE)


class Collected(NamedTuple):
    """A collected test: its node id without a group, why it is left out, and whether it is marked `inner`."""

    node: str
    reasons: list[str]
    is_inner: bool


COLLECTED = pytest.StashKey[list[Collected]]()


def note(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Remember the collected tests before any is deselected. Modules are complete unless single tests are named."""
    config.stash[COLLECTED] = [
        Collected(each.nodeid.partition("@")[0], sorted(reasons(each)), each.get_closest_marker("inner") is not None)
        for each in items
    ]


def reasons(item: pytest.Item) -> set[str]:
    """Return the fixtures and markers because of which a test is left out; empty for a test of the inner loop."""
    fixtures = {*getattr(item, "fixturenames", ())}
    return (fixtures & FIXTURES) | ({marker.name for marker in item.iter_markers()} & MARKERS)


def is_left_out(module: Path) -> bool:
    """Return whether a module of tests says that none of them is of the inner loop."""
    return _MARKED.search(module.read_text(encoding="utf-8")) is not None


@contextmanager
def guarded() -> Iterator[None]:
    """Fail if a server of refold.testing is started, or one of the run's servers is requested."""

    def refused(*given: object, **named: object) -> None:
        raise AssertionError("this test needs a server: mark it by that (`kafka`, `s3`, ...), or `outside`")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Supervised, "launch", refused)
        patch.setattr(servers, "address_of", refused)
        yield
