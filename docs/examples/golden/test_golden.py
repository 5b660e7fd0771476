"""cd docs/examples/golden && pytest --refold-golden .

The golden trace is a test by itself. This one asks for more than its expectations say. What is asserted holds of the
mended agent, and not of the one that was recorded: --refold-agent old_agent:answer fails both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def test_the_first_payment_is_kept(golden: Mapping[str, Any], replay: Callable[..., Any]) -> None:
    did = replay(golden["paid-four-times"])
    assert did.outcome == "succeeded"
    assert did.tools == ["lookup_order", "search_docs", "refund", "refund", "refund", "send_mail"]
    assert did.count("search_docs") <= 3
    assert [call.asked.request["kwargs"]["payment"] for call in did.calls("refund")] == ["p-2", "p-3", "p-4"]
    assert did.state_at(1)["case"] == {"payments": 4, "status": "open"}
    assert did.output == {"refund": 150}
