"""Custom remedies: functions that the operator registered. A remedy file only names them.

    from refold.heal import RemedyChange, remedy

    @remedy("forget the last page")
    def forget(recording, diagnosis):
        return RemedyChange(state={"page": 1})

A function gets the run's recording and its diagnosis, and returns the RemedyChange with which the run continues, or
None if it has no remedy. Nothing is imported because a file names it: a function is registered when the operator's own
code is imported, or by an entry point of the group `refold.remedies`, whose name is the remedy's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from refold.agents.registered_functions import RegisteredFunctions

if TYPE_CHECKING:
    from refold.agents.heal.diagnosis import Diagnosis
    from refold.agents.journal.record import Recording

GROUP = "refold.remedies"


class RemedyChange(NamedTuple):
    """Changes with which a run continues: of its state by path, and arguments of its calls by name, as in a fork.

    Attributes:
        at: The step after which it continues; None for the last good step.
    """

    state: Mapping[str, Any] = {}
    drop: Sequence[str] = ()
    arguments: Mapping[str, Mapping[str, Any]] = {}
    at: int | None = None


RemedyFunction: TypeAlias = "Callable[[Recording, Diagnosis], RemedyChange | None]"

_registered: RegisteredFunctions[RemedyFunction] = RegisteredFunctions(
    "remedy", "remedies", "refold.heal.remedy", GROUP
)


def remedy(name: str) -> Callable[[RemedyFunction], RemedyFunction]:
    """Register the decorated function as the remedy of that name.

    Raises:
        InputError: Another function is registered under the name.
    """
    return _registered.register(name)


def remedy_named(name: str) -> RemedyFunction:
    """Return the registered function of a name, also one that an entry point provides.

    Raises:
        InputError: No function has that name.
    """
    return _registered.named(name)
