"""The subjects of a type's schemas: TopicRecordNameStrategy, so a topic may hold many types.

<prefix>.observations-refold.observation.<type>
<prefix>.changes-refold.change.<type>
<prefix>.states-refold.state.<type>       the log has no such topic: it is for whoever publishes states
"""

from __future__ import annotations

from refold.avro.definition import TypeDefinition
from refold.avro.derive import Schemas


def subjects_of(prefix: str, definition: TypeDefinition) -> Schemas:
    """The subject of each of the type's schemas, in the log whose topics begin with `prefix`."""
    name = definition.name
    return Schemas(
        observation=f"{prefix}.observations-refold.observation.{name}",
        change=f"{prefix}.changes-refold.change.{name}",
        state=f"{prefix}.states-refold.state.{name}",
    )
