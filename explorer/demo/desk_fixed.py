"""The refund desk with its bug mended: the same work, with cents that are counted and not multiplied.

19.99 is no binary fraction: float("19.99") * 100 is 1998.9999999999998, and int() of that is one cent short.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import refold
from refold.explorer.demo.desk import work


def agent(run: refold.Run) -> dict[str, Any]:
    """The desk as it should be."""
    return work(run, cents_of)


def cents_of(price: str) -> int:
    """The price in cents, exactly."""
    return int(Decimal(price) * 100)
