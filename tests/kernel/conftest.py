"""What the tests of the kernel share: it is on in all of them, and they cannot run without it."""

from __future__ import annotations

import pytest

from refold.avro.kernel import SWITCH, find_kernel
from refold_tests.absent import without


@pytest.fixture(autouse=True)
def _kernel_is_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the run that the test is part of uses."""
    monkeypatch.delenv(SWITCH, raising=False)
    status = find_kernel()
    if status.kernel is None:
        without(f"no kernel to compare with ({status.text}): make kernel")
