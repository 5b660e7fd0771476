"""Seal the content of imported runs, as the recorder seals that of its own.

Each value whose type in the schema may be sealed is sealed with the key of its run. A list or an object in which only
some values may be sealed is searched for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from refold.agents.vault import ValueCipher, run_key
from refold.avro.canonical import json_tree
from refold.avro.definition import TypeDefinition
from refold.avro.nodes import Node, allows, value_of
from refold.avro.observation import Kind, Link, Source, type_of
from refold.streams.exchange.intake import Recorder

_OF_A_RUN = frozenset({"run", "agent_session", "step", "action"})


class SealingRecorder:
    """A Recorder that seals the content of each observation before its id is computed."""

    def __init__(
        self, recorder: Recorder, vault: ValueCipher, definition: Callable[[str], TypeDefinition], run: str
    ) -> None:
        """Wrap a recorder.

        Args:
            recorder: It receives the sealed observations.
            vault: Seals values.
            definition: Returns the definition of a type, by its name.
            run: The id of the run whose key seals what belongs to no run, such as documents.
        """
        self._recorder = recorder
        self._vault = vault
        self._definition = definition
        self._run = run

    def observe(
        self, entity: str, patch: Mapping[str, object] | None = None, *, source: Source, observed_at: int,
        causes: Sequence[str] = (), link: Link | None = None, kind: Kind = "assert",
    ) -> str:  # fmt: skip
        """As Recorder.observe."""
        sealed = None if patch is None else self._seal_fields(entity, patch)
        return self._recorder.observe(
            entity, sealed, source=source, observed_at=observed_at, causes=causes, link=link, kind=kind
        )

    def _seal_fields(self, entity: str, patch: Mapping[str, object]) -> dict[str, object]:
        name, _, identity = entity.partition("/")
        key = run_key(identity.partition("#")[0] if name in _OF_A_RUN else self._run)
        fields = self._definition(type_of(entity)).fields
        return {
            each: self._value(fields[each].node, value, key, entity, fields[each].first_name)
            if each in fields else value
            for each, value in patch.items()
        }  # fmt: skip

    def _value(self, node: Node, value: Any, key: str, entity: str, field: str) -> Any:
        content = value_of(node)
        if value is None:
            return None
        if content["type"] == "array" and isinstance(value, list | tuple):
            return [self._value(content["items"], each, key, entity, field) for each in value]
        if content["type"] == "map" and isinstance(value, Mapping):
            return {name: self._value(content["values"], each, key, entity, field) for name, each in value.items()}
        if content["type"] == "record" and isinstance(value, Mapping):
            types = {each["name"]: each["type"] for each in content["fields"]}
            return {
                name: self._value(types[name], each, key, entity, field) if name in types else each
                for name, each in value.items()
            }
        return self._vault.seal(key, entity, field, json_tree(value, field)) if allows(node, "refold.Sealed") else value
