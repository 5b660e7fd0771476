"""Runs one measurement in a new process: it has its own peak memory, and no thread of the console's spinner."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


def in_new_process(measure: Callable[..., Result], *arguments: object) -> Result:
    """Return the result of a call in a new process. What goes there and back is pickled."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measure, arguments)
