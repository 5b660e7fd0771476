"""Sealed values and contents in answers: they are opened if the key is available.

In JSON, an opened value replaces the sealed one, as if it had been recorded in clear. "sealed": true marks the field,
the mutation or the observation's patch. A value that cannot be opened keeps its $sealed or $blob and gets "why". It
also gets "expired" if the key or the content is gone, or "damaged".
"""

from __future__ import annotations

import base64
from typing import Any

from refold.agents.journal import json_fidelity
from refold.agents.log import AgentLog
from refold.agents.vault import SEALED_CONTENT, key_of
from refold.avro.blob import Blob, Sealed
from refold.avro.errors import CorruptionError, Expired, NotAnswerable, StorageError
from refold.avro.jsonform import BLOB, MARKS, SEALED, WRAPPED


class Opener:
    """Opens sealed values in the JSON of one log. `field` is always the field's first name: values are sealed under
    it.
    """

    def __init__(self, log: AgentLog) -> None:
        self._log = log

    def value(self, entity: str, field: str, tree: Any) -> Any:
        """Return a field's value, or a part of it. Each sealed value in it is opened, or marked as unreadable."""
        if isinstance(tree, list):
            return [self.value(entity, field, each) for each in tree]
        if not isinstance(tree, dict):
            return tree
        if len(tree) == 1:
            mark, inner = next(iter(tree.items()))
            if mark == WRAPPED:
                return tree
            if mark in (SEALED, BLOB) and isinstance(inner, dict):
                return self._option(entity, field, mark, inner)
        return {key: self.value(entity, field, each) for key, each in tree.items()}

    def state(self, tree: dict[str, Any]) -> dict[str, Any]:
        """Open the sealed values in what shapes.state_json returns."""
        entity = tree["entity"]
        return {
            **tree,
            "fields": {name: self._field(entity, name, each) for name, each in tree["fields"].items()},
            "conflicts": [self._member(entity, each["field"], each, "value") for each in tree["conflicts"]],
        }

    def row(self, tree: dict[str, Any]) -> dict[str, Any]:
        """Open the sealed values in what shapes.row_json returns."""
        return self._member(tree["entity"], tree["field"], tree, "old", "new")

    def link(self, tree: dict[str, Any]) -> dict[str, Any]:
        """Open the sealed values in what shapes.why_json returns."""
        patch = tree["patch"]
        if not patch:
            return tree
        opened = {name: self.value(tree["entity"], name, given) for name, given in patch.items()}
        return {**tree, "patch": opened, **({"sealed": True} if _is_sealed(patch) else {})}

    def _field(self, entity: str, name: str, tree: dict[str, Any]) -> dict[str, Any]:
        found = self._member(entity, name, tree, "value")
        if "elements" in tree:
            found["elements"] = [self._member(entity, name, each, "value") for each in tree["elements"]]
        return found

    def _member(self, entity: str, field: str, tree: dict[str, Any], *names: str) -> dict[str, Any]:
        """Open an object in which each of the given keys has a value of the field."""
        opened = {name: self.value(entity, field, tree[name]) for name in names}
        sealed = {"sealed": True} if any(_is_sealed(tree[name]) for name in names) else {}
        return {**tree, **opened, **sealed}

    def _option(self, entity: str, field: str, mark: str, inner: dict[str, Any]) -> Any:
        """Open one $sealed or $blob. Content in clear stays a $blob, because it may be large."""
        try:
            if mark == SEALED:
                return self._decrypt(entity, field, Sealed(inner["key_id"], base64.b64decode(inner["ciphertext"])))
            digest = bytes.fromhex(inner["hash"])
        except (NotAnswerable, CorruptionError, StorageError) as error:
            return {mark: {**inner, **_problem_json(error)}}
        except (KeyError, ValueError, TypeError):  # it has the form of a sealed value, but is not one
            return {mark: inner}
        return {mark: inner} if not self._log.port.has_store else self._content(entity, field, digest, inner)

    def _content(self, entity: str, field: str, digest: bytes, inner: dict[str, Any]) -> Any:
        port = self._log.port
        is_sealed = inner.get("media_type") == SEALED_CONTENT
        if port.blobs.size(digest) is None:
            gone = port.blobs.has_expired(digest)
            return {BLOB: {**inner, "expired": True, "why": "expired"} if gone else inner}
        if not is_sealed:
            return {BLOB: inner}
        try:
            return self._decrypt(entity, field, Blob(digest, inner["size"], SEALED_CONTENT))
        except (NotAnswerable, CorruptionError, StorageError) as error:
            return {BLOB: {**inner, "key_id": key_of(port.blobs.get(digest) or b""), **_problem_json(error)}}

    def _decrypt(self, entity: str, field: str, stored: Blob | Sealed) -> Any:
        found = json_fidelity.read(self._log.vault.open(entity, field, stored))
        return {WRAPPED: found} if isinstance(found, dict) and len(found) == 1 and MARKS & found.keys() else found


def _problem_json(error: Exception) -> dict[str, Any]:
    kind = "expired" if isinstance(error, Expired) else "damaged" if isinstance(error, CorruptionError) else ""
    return {**({kind: True} if kind else {}), "why": str(error)}


def _is_sealed(tree: Any) -> bool:
    """Whether any part of a value is sealed."""
    if isinstance(tree, list):
        return any(map(_is_sealed, tree))
    if not isinstance(tree, dict):
        return False
    if len(tree) == 1:
        mark, inner = next(iter(tree.items()))
        if mark == WRAPPED:
            return False
        if isinstance(inner, dict) and (mark == SEALED or (mark == BLOB and inner.get("media_type") == SEALED_CONTENT)):
            return True
    return any(map(_is_sealed, tree.values()))
