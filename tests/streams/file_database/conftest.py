"""Separate processes for tests of the embedded database."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from refold_tests.child import Child, children

CHILD = "import os, signal, sys\nfrom refold.streams.rocks.database import Database\npath = sys.argv[1]\n"


@pytest.fixture
def child() -> Iterator[Callable[..., Child]]:
    """Starts Python code with the log's path as `path`."""
    with children() as start:
        yield lambda code, *arguments: start(CHILD + code, *arguments)
