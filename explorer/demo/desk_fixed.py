"""The refund desk with its bug fixed. The work is the same, but cents are computed exactly, without binary floating
point.

19.99 has no exact binary form: float("19.99") * 100 is 1998.9999999999998, and int() of that is one cent short.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import refold
from refold.explorer.demo.desk import work


def agent(run: refold.Run) -> dict[str, Any]:
    """The fixed agent."""
    return work(run, cents_of)


def cents_of(price: str) -> int:
    """Return a price in cents, exactly."""
    return int(Decimal(price) * 100)
