"""A real Schema Registry for tests and demos: Apicurio, whose interface is compatible with Confluent's.

from refold.testing.registry import start_registry

with start_registry() as registry:
    os.environ["REFOLD_SCHEMA_REGISTRY"] = registry.url
"""

from __future__ import annotations

from refold.testing.registry.files import APICURIO_VERSION, missing
from refold.testing.registry.server import SchemaRegistry, start_registry

__all__ = ["APICURIO_VERSION", "SchemaRegistry", "missing", "start_registry"]
