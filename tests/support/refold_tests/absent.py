"""Skip a test whose requirements this machine does not meet; in CI it fails instead."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def without(reason: str) -> NoReturn:
    """End the running test: it is skipped for this reason, and in CI it fails."""
    if os.environ.get("CI", "").lower() in ("", "0", "false"):
        pytest.skip(reason)
    pytest.fail(f"{reason} (CI is set, so this test may not be skipped)", pytrace=False)
