"""The deck over one log, which the tests of a module do not change."""

from __future__ import annotations

import pytest

from refold_tests.explored import incident_in


@pytest.fixture(scope="session")
def incident_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The log of an incident; see write_incident."""
    return incident_in(tmp_path_factory.mktemp("decked"))
