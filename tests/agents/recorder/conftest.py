"""One embedded log for each module of tests here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import refold
from refold.agents.log import AgentLog


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentLog]:
    with refold.open(f"file:{tmp_path_factory.mktemp('recorder') / 'log'}") as log:
        yield log
