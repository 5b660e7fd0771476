"""Saying of a sealed value, or of a content, that it has expired: where values are shown as they stand in the log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from refold.agents.log import AgentLog
from refold.agents.vault import SEALED_CONTENT, key_of
from refold.avro.jsonform import BLOB, SEALED, WRAPPED

Mark = Callable[[Any], Any]


def marker(log: AgentLog) -> Mark:
    """Gives a value's JSON form with "expired": true in each $sealed and $blob that cannot be read any more."""

    def mark(tree: Any) -> Any:
        if isinstance(tree, list):
            return [mark(each) for each in tree]
        if not isinstance(tree, dict):
            return tree
        if len(tree) == 1 and isinstance(inner := next(iter(tree.values())), dict):
            if WRAPPED in tree:
                return tree
            if (SEALED in tree and _is_sealed_for_good(log, inner.get("key_id"))) or (
                BLOB in tree and _is_gone(log, inner)
            ):
                return {next(iter(tree)): {**inner, "expired": True}}
        return {key: mark(each) for key, each in tree.items()}

    return mark


def _is_sealed_for_good(log: AgentLog, key_id: str | None) -> bool:
    """Whether the key is gone. Without a ring nothing is known of it; nor is it opened where nothing is sealed."""
    if key_id is None:
        return False
    ring = log.vault.ring
    return ring is not None and ring.get(key_id) is None


def _is_gone(log: AgentLog, blob: dict[str, Any]) -> bool:
    try:
        digest = bytes.fromhex(blob.get("hash", ""))
    except (ValueError, TypeError):
        return False
    if not log.port.has_store:
        return False
    if log.port.blob_size(digest) is None:
        return log.port.has_expired(digest)
    return blob.get("media_type") == SEALED_CONTENT and _is_sealed_for_good(log, key_of(log.port.blob(digest) or b""))
