"""The refund agent's tools. They are simulated and as unreliable as real ones. The same seed fails in the same
places.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

CLAIMS = 60
PAGE = 12
FLAKY = 0.06
PROVIDER_LIMIT = 50
"""The highest number of calls per second that the payment provider accepts."""
REFUSES_EACH, HANGS_AT = 6, 20
"""Among calls above that rate: every how many are refused, and which one is never answered."""

Inputs = Mapping[str, Any]
Result = dict[str, Any]


@dataclass
class ToolFailure(Exception):
    """A failed call: the error's class or code, and its text. A retry may succeed."""

    code: str
    text: str

    def __str__(self) -> str:
        return f"{self.code}: {self.text}"


class Tools:
    """The tools, by name.

    Args:
        config: Returns the current limits of the payment tool.
        hang: Called with the seconds for which no answer comes.
    """

    def __init__(self, seed: int, config: Callable[[], Mapping[str, int]], hang: Callable[[float], None]) -> None:
        self._random = random.Random(seed)
        self._config = config
        self._hang = hang
        self._too_fast = 0
        self._tools: dict[str, Callable[[Inputs], Result]] = {
            "crm.claims": self._claims,
            "orders.lookup": self._lookup,
            "risk.score": self._score,
            "acme.refund": self._refund,
            "mail.send": lambda inputs: {"sent": inputs["claim"]},
        }

    def call(self, tool: str, inputs: Inputs) -> Result:
        """Call a tool and return its answer.

        Raises:
            ToolFailure: The call failed.
        """
        if self._random.random() < FLAKY:
            failures = (
                ToolFailure("TimeoutError", f"{tool} did not answer in time"),
                ToolFailure("ConnectionResetError", f"{tool} hung up"),
                ToolFailure("HTTP 503", "Service Unavailable"),
            )
            raise self._random.choice(failures)
        return self._tools[tool](inputs)

    def _claims(self, inputs: Inputs) -> Result:
        first = (inputs["page"] - 1) * PAGE + 1
        return {"claims": [self._claim(number) for number in range(first, first + PAGE)]}

    def _claim(self, number: int) -> Result:
        draw = self._random.randrange
        customer, order, amount = draw(1000, 10000), draw(10000, 100000), draw(500, 20000)
        return {
            "claim": f"{number:04}",
            "customer": f"c-{customer}",
            "order": f"o-{order}",
            "amount_cents": amount,
        }

    def _lookup(self, inputs: Inputs) -> Result:
        return {"order": inputs["order"], "delivered": self._random.random() < 0.95}

    def _score(self, inputs: Inputs) -> Result:
        return {"claim": inputs["claim"], "risk": round(self._random.random() ** 3, 3)}

    def _refund(self, inputs: Inputs) -> Result:
        """Pay at the configured rate, which is read for every call. The provider refuses calls above its limit."""
        config = self._config()
        time.sleep(1 / config["rate_limit"])
        if config["rate_limit"] > PROVIDER_LIMIT:
            self._too_fast += 1
            if self._too_fast == HANGS_AT:
                self._hang(config["timeout_ms"] / 1000)
                raise ToolFailure("TimeoutError", f"acme.refund did not answer in {config['timeout_ms']} ms")
            if self._too_fast % REFUSES_EACH == 0:
                raise ToolFailure("HTTP 429", "Too Many Requests")
        return {"claim": inputs["claim"], "reference": f"acme-{self._random.randrange(16**6):06x}"}
