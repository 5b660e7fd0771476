"""A second agent. It works on the configuration that the first one relies on: it deploys, marks the point, and
overwrites it later.

python -m refold.explorer.demo.deployer file:PATH deploy
python -m refold.explorer.demo.deployer file:PATH overwrite
"""

from __future__ import annotations

import argparse

import refold
from refold.explorer.demo.names import CONFIG, DEPLOYED, DEPLOYER, PLATFORM

CREATED = {"tool": "acme.refund", "version": "2026.10", "rate_limit": 20, "timeout_ms": 5000}
RELEASED = {"version": "2026.11", "rate_limit": 50, "timeout_ms": 2000}
OVERWRITTEN = {"rate_limit": 500, "timeout_ms": 30000}
OBSERVATIONS = 3


def deploy(log: refold.Log) -> None:
    """Record the configuration that is known to all, and mark this point."""
    log.observe(CONFIG, CREATED, source=PLATFORM)
    log.observe(CONFIG, RELEASED, source=DEPLOYER)
    log.mark(DEPLOYED)


def overwrite(log: refold.Log) -> None:
    """Overwrite the configuration without telling anyone."""
    log.observe(CONFIG, OVERWRITTEN, source=DEPLOYER)
    log.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Deploy a tool's configuration; later, overwrite it.")
    parser.add_argument("log", help="URL of the log, such as file:PATH")
    parser.add_argument("act", choices=["deploy", "overwrite"])
    given = parser.parse_args()
    with refold.open(given.log) as opened:
        {"deploy": deploy, "overwrite": overwrite}[given.act](opened)
