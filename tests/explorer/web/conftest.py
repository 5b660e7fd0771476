"""The explorer's pages over one log, which the tests of a module do not change."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from refold_tests.explored import Explored, explored, incident_in


@pytest.fixture(scope="module")
def incident_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The log of an incident; see write_incident."""
    return incident_in(tmp_path_factory.mktemp("explored"))


@pytest.fixture(scope="module")
def pages(incident_url: str) -> Iterator[Explored]:
    """The pages of that log."""
    with explored(incident_url) as found:
        yield found
