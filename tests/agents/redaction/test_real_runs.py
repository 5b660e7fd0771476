"""A hundred recorded conversations of an airline's agent: their e-mail addresses are removed, and nothing else changes.

Flight and order numbers, ids of users, payments and calls, dates, prices and hashes are needed by replay, compare and
readers. Users switch off a redactor that removes them.
"""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

from refold.agents.redaction.redactor import Redactor

# Written independently of the redactor's pattern.
ADDRESS = re.compile(r"\b[a-z]+[._][a-z]+[._]?[0-9]+@(?:example|gmail)\.com\b")


def test_real_runs_lose_their_addresses_and_nothing_else(tau_bench_file: Path) -> None:
    redact = Redactor(b"0123456789abcdef")
    addresses: list[str] = []

    def without_addresses(tree: Any) -> Any:
        if isinstance(tree, dict):
            return {key: without_addresses(value) for key, value in tree.items()}
        if isinstance(tree, list):
            return [without_addresses(each) for each in tree]
        if not isinstance(tree, str):
            return tree
        addresses.extend(ADDRESS.findall(tree))
        return ADDRESS.sub(lambda match: redact(match[0]), tree)

    with gzip.open(tau_bench_file, "rt", encoding="utf-8") as lines:
        for line in lines:
            conversation = json.loads(line)
            assert redact(conversation) == without_addresses(conversation)
            assert redact(line) == without_addresses(line)
    assert (len(addresses), len({*addresses})) == (122, 31)
