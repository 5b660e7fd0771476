"""The MCP server over one log, which the tests of a module do not change."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from refold_tests.explored import incident_in
from refold_tests.mcp import HttpServer, http_server


@pytest.fixture(scope="module")
def incident_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The log of an incident; see write_incident."""
    return incident_in(tmp_path_factory.mktemp("asked"))


@pytest.fixture(scope="module")
def server(incident_url: str) -> Iterator[HttpServer]:
    """The log's MCP server, over HTTP."""
    with http_server(incident_url) as found:
        yield found
