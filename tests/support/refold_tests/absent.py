"""What to do about a test whose needs this machine does not meet: skip it, but never in CI."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def without(reason: str) -> NoReturn:
    """End the running test: skipped, for this reason; in CI failed."""
    if os.environ.get("CI", "").lower() in ("", "0", "false"):
        pytest.skip(reason)
    pytest.fail(f"{reason} (CI is set, so this test may not be skipped)", pytrace=False)
