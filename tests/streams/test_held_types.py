"""Which types are held: only versions in effect decide."""

from __future__ import annotations

from refold.avro.registry import Registry
from refold.streams.held_types import held_types
from refold_tests.strange_types import naming


def test_type_whose_only_version_is_set_aside_is_not_held() -> None:
    registry = Registry()
    assert held_types(registry) == {}
    registry.add(naming("stranger", "strange:folded"))
    version = registry.newest("stranger")
    assert list(held_types(registry)) == ["stranger"]
    registry.set_aside(version)
    assert held_types(registry) == {}
    registry.restore(version)
    assert list(held_types(registry)) == ["stranger"]
