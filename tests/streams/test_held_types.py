"""Which types are held: by their versions that are in effect, and by no others."""

from __future__ import annotations

from refold.avro.definition import TypeDefinition, parse
from refold.avro.registry import Registry
from refold.streams.held import held_types


def naming(function: str) -> TypeDefinition:
    """A definition that names code which nobody registered."""
    code = {"name": function, "version": 1, "source": "00" * 32}
    field = {"name": "last", "type": "string", "refold.reducer": "custom", "refold.function": function,
             "refold.code": code}  # fmt: skip
    return parse({"type": "record", "name": "stranger", "fields": [field], "refold.closed_by": "last"})


def test_a_type_whose_only_version_is_set_aside_is_not_held() -> None:
    registry = Registry()
    assert held_types(registry) == {}
    registry.add(naming("strange:folded"))
    version = registry.newest("stranger")
    assert list(held_types(registry)) == ["stranger"]
    registry.set_aside(version)
    assert held_types(registry) == {}
    registry.restore(version)
    assert list(held_types(registry)) == ["stranger"]
