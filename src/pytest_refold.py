"""refold's plugin for pytest, as every run of pytest loads it: an option, and nothing more until it is given.

It imports nothing of refold before that, which would cost more than a small test. What it does with the option is in
refold.agents.golden.plugin.
"""

from __future__ import annotations

import pytest

# A failure of the conformance suite then shows both sides.
pytest.register_assert_rewrite("refold.testing.sinks")


def pytest_addoption(parser: pytest.Parser) -> None:
    """--refold-golden, --refold-agent and --refold-confined."""
    group = parser.getgroup("refold", "golden traces of agents")
    group.addoption(
        "--refold-golden",
        action="append",
        default=[],
        metavar="DIR",
        help="run today's agents against the golden traces (*.golden.json) in this folder; may be repeated",
    )
    group.addoption(
        "--refold-agent",
        metavar="MODULE:FUNCTION",
        help="run this agent instead of those that the golden traces name; also as FILE.py:FUNCTION",
    )
    group.addoption(
        "--refold-confined",
        action="store_true",
        help="run agents in processes that the kernel lets open no socket, start no process and write no file (Linux)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Bring in the rest where it is asked for."""
    if config.getoption("--refold-golden"):
        from refold.agents.golden import plugin

        config.pluginmanager.register(plugin, "refold-golden")
