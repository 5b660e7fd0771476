"""The cost of tokens, from an editable table: prices.toml, overridden by the file that REFOLD_PRICES names."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from refold.agents.usage.tokens import TokenUsage
from refold.avro.errors import InputError
from refold.avro.files import read_toml

PRICES_ENVIRONMENT = "REFOLD_PRICES"
SHIPPED = Path(__file__).with_name("prices.toml")
_MILLION = 1_000_000
_NUMBER_MAX = 1e12
_KINDS = frozenset({"input", "output", "cached", "written", "written_hour"})
_LONG = frozenset({*_KINDS, "above"})
# us.anthropic.NAME is Bedrock's form, models/NAME is Gemini's, openai/NAME is that of gateways.
_PREFIX = re.compile(
    r"^(?:.*/)?(?:(?:us|eu|apac|jp|au|global)\.)?(?:(?:anthropic|amazon|meta|mistral|cohere|openai)\.)?"
)
_SUFFIX = re.compile(r"(?:-latest|-v\d+(?::\d+)?|[-@]\d{8}|-\d{4}-\d{2}-\d{2}|-preview-\d{2}-\d{2}(?:-\d{4})?)$")


class Prices:
    """A price table.

    Attributes:
        models: The prices of each model.
        source: Where the shipped prices come from.
        checked: The day on which they were checked.
    """

    def __init__(self, models: Mapping[str, Mapping[str, Any]], source: str = "", checked: str = "") -> None:
        self.models = models
        self.source = source
        self.checked = checked

    def cost(self, model: str, usage: TokenUsage) -> float | None:
        """Return the cost of one call in US dollars; None if the model is not in the table."""
        price = self._price(model)
        if price is None:
            return None
        long = price.get("long", {})
        if long and usage.read > long["above"]:
            price = {**price, **long}
        anew = price.get("input", 0)
        written = price.get("written", anew)
        return float(
            usage.input * anew
            + usage.cached * price.get("cached", anew)
            + (usage.written - usage.written_hour) * written
            + usage.written_hour * price.get("written_hour", written)
            + usage.output * price.get("output", 0)
        ) / _MILLION  # fmt: skip

    def _price(self, model: str) -> Mapping[str, Any] | None:
        name = _PREFIX.sub("", model.strip().lower(), count=1)
        while name not in self.models:
            shorter = _SUFFIX.sub("", name)
            if shorter == name:
                return None
            name = shorter
        return self.models[name]


def prices(environment: Mapping[str, str] | None = None) -> Prices:
    """Return the price table in force.

    Args:
        environment: The environment variables; by default those of this process.

    Raises:
        InputError: The file that REFOLD_PRICES names is not a price table.
    """
    return _prices((os.environ if environment is None else environment).get(PRICES_ENVIRONMENT, ""))


@cache
def _prices(own: str) -> Prices:
    shipped = read_toml(SHIPPED, str(SHIPPED))
    models = _models(shipped, SHIPPED)
    if own:
        path = Path(own).expanduser()
        models = {**models, **_models(read_toml(path, f"{PRICES_ENVIRONMENT}: {path}"), path)}
    return Prices(models, str(shipped["source"]), str(shipped["checked"]))


def _models(table: Mapping[str, Any], path: Path) -> dict[str, dict[str, Any]]:
    models = table.get("models", {})
    for name, price in models.items() if isinstance(models, dict) else [("models", models)]:
        long = price.get("long", {"above": 0}) if isinstance(price, dict) else None
        is_right = (
            isinstance(price, dict) and isinstance(long, dict) and "above" in long
            and _are_prices(price, _KINDS | {"long"}) and _are_prices(long, _LONG)
        )  # fmt: skip
        if not is_right:
            raise InputError(
                f"{PRICES_ENVIRONMENT}: {path}: {name}: give dollars for 1,000,000 tokens as "
                f"{', '.join(sorted(_KINDS))}, and `long` with `above`"
            )
    return {str(name).lower(): price for name, price in models.items()}


def _are_prices(given: Mapping[str, Any], names: frozenset[str]) -> bool:
    return given.keys() <= names and all(
        name == "long" or (isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _NUMBER_MAX)
        for name, value in given.items()
    )
