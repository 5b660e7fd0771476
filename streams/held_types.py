"""Held types: types of which every version names code that is not registered in this process.

A definition is data that names code. Only code that the operator registered is run (reducers/registered.py). So a type
that names other code cannot be folded here, and its records do not count as observations yet:

1. A worker gives each of them a verdict with the reason `held`, and continues with the others.
2. A reader above the decided offset stops at such a record, as at any record that waits for a verdict.
3. Once the code is registered, `refold deadletters retry --reason held` appends the records again.

A type with a version that can be folded is not held: if another version in effect cannot be run, the worker ends, and
says how to register its code. Only the operator can cause that. A type without code never gets code
(avro/evolution.py), and a new version of a type with code is pending until a worker with its code activates it
(streams/log/kafka/activations.py).
"""

from __future__ import annotations

from weakref import WeakSet

from refold.avro.registry import Registry, TypeVersion
from refold.reducers.fold import Fold
from refold.reducers.registered import NotRegistered

_runnable: WeakSet[TypeVersion] = WeakSet()


def held(registry: Registry, type_name: str, below: int | None = None) -> NotRegistered | None:
    """Return why a type cannot be folded in this process.

    Args:
        registry: The log's definitions.
        type_name: The type.
        below: Consider only versions below this offset of `.schemas`; None for all.

    Returns:
        The reason; None if one of its versions can be folded.
    """
    problem = None
    for version in reversed(registry.versions(type_name)):
        if below is None or version.offset < below:
            problem = problem_of(version)
            if problem is None:
                return None
    return problem


def held_types(registry: Registry) -> dict[str, NotRegistered]:
    """The held types by name, each with the reason. A type without a version in effect is left out."""
    in_effect = (each for each in registry if registry.is_in_effect(each, len(registry)))
    names = sorted({each.definition.name for each in in_effect if each.definition.has_code})
    found = {name: held(registry, name) for name in names}
    return {name: problem for name, problem in found.items() if problem is not None}


def problem_of(version: TypeVersion) -> NotRegistered | None:
    """Why a version's code cannot be run here; None if it is registered."""
    if not version.definition.has_code or version in _runnable:
        return None
    try:
        Fold(version.definition)
    except NotRegistered as error:
        return error
    _runnable.add(version)
    return None
