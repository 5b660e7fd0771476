"""Types that are held: every version of theirs names code that this process may not run.

A definition comes as data, and names code. Code is taken from what the operator registered and from nowhere else
(reducers/registered.py), so of a type that names other code nothing can be folded here, and its records are none yet:

1. A worker gives each a verdict with the reason `held`, and folds the others on.
2. Who reads a partition above what is decided stops at such a record, as at any that awaits a verdict.
3. Once the code is registered, `refold deadletters retry --reason held` appends the records again.

A type of which one version can be folded is not held: by a version in effect that cannot be run its worker ends, and
says how to allow it. That can only be the operator's doing. A type without code never comes to name any
(avro/evolution.py), and a new version of one with code is pending until a worker that has its code says so
(streams/log/kafka/activations.py).
"""

from __future__ import annotations

from weakref import WeakSet

from refold.avro.registry import Registry, TypeVersion
from refold.reducers.fold import Fold
from refold.reducers.registered import NotRegistered

_runnable: WeakSet[TypeVersion] = WeakSet()


def held(registry: Registry, type_name: str, below: int | None = None) -> NotRegistered | None:
    """Why no version of a type, or none below an offset of `.schemas`, can be folded here; None where one can."""
    problem = None
    for version in reversed(registry.versions(type_name)):
        if below is None or version.offset < below:
            problem = problem_of(version)
            if problem is None:
                return None
    return problem


def held_types(registry: Registry) -> dict[str, NotRegistered]:
    """The types that are held, by name, each with the reason. One without a version in effect is no type any more."""
    in_effect = (each for each in registry if registry.is_in_effect(each, len(registry)))
    names = sorted({each.definition.name for each in in_effect if each.definition.has_code})
    found = {name: held(registry, name) for name in names}
    return {name: problem for name, problem in found.items() if problem is not None}


def problem_of(version: TypeVersion) -> NotRegistered | None:
    """Why a version cannot be folded by here, where its code is not registered; None where it is."""
    if not version.definition.has_code or version in _runnable:
        return None
    try:
        Fold(version.definition)
    except NotRegistered as error:
        return error
    _runnable.add(version)
    return None
