"""The garbage collector during a fold, and what a program had frozen before."""

from __future__ import annotations

from collections.abc import Callable

from refold_tests.child import Child

RESULT = """
import gc
from refold.streams.runtime import tune_garbage_collector
gc.unfreeze()
{before}
before = gc.get_freeze_count()
with tune_garbage_collector():
    during = gc.get_freeze_count()
print(before > 1000, during > 1000, gc.get_freeze_count() > 1000)
"""


def test_block_freezes_existing_objects(child: Callable[..., Child]) -> None:
    assert child(RESULT.format(before="")).line() == "False True False"


def test_objects_that_the_program_had_frozen_stay_frozen(child: Callable[..., Child]) -> None:
    assert child(RESULT.format(before="gc.freeze()")).line() == "True True True"
