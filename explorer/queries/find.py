"""The entities that contain a text: the answer of `refold find`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from refold.agents.log import AgentLog
from refold.agents.recordings.fields import Fields
from refold.agents.recordings.find import words
from refold.agents.recordings.load import rebuilt
from refold.avro.errors import CorruptionError, Expired, InputError, NotAnswerable
from refold.explorer.queries.query import arguments_of
from refold.streams.cut import Cut
from refold.streams.view import EntityView

OF_RUNS = frozenset({"run", "step", "action", "agent_session", "effect"})
"""The types that record runs. `refold runs` searches them; here they are searched only if `type` names one of them."""


@dataclass(frozen=True, slots=True)
class FindQuery:
    """Entities whose id or values contain a text, ignoring case.

    Args:
        text: The text to search for; empty: every entity is listed.
        type: The type to search; empty: all types except those that record runs.
        at: The point to answer for, as WHEN; None: now.
    """

    text: str = ""
    type: str = ""
    at: str | None = None

    @property
    def arguments(self) -> list[str]:
        """The arguments of `refold find`."""
        return arguments_of(["find"], {"type": self.type, "at": self.at}, *filter(None, [self.text]))

    def names(self, log: AgentLog, cut: Cut) -> dict[str, EntityView]:
        """Return the entities to search, by name.

        Raises:
            InputError: The log has no such type.
        """
        known = {version.definition.name for version in log.port.registry}
        if self.type and self.type not in known:
            raise InputError(f"{self.type:.80}: this log has no such type; it has {', '.join(sorted(known)) or 'none'}")
        view = rebuilt(log, [self.type] if self.type else sorted(known - OF_RUNS), cut)
        return {} if view is None else {name: view[name] for name in sorted(view)}

    def answer(self, log: AgentLog) -> list[dict[str, Any]]:
        """Return one object for each entity found, ordered by name: its version, the fields that contain the text, and
        the fields that could not be read.
        """
        cut = log.point(self.at).cut
        found = []
        for name, view in self.names(log, cut).items():
            places, unread = self._places(log, name, view) if self.text else ([], [])
            if places or unread or not self.text:
                more = {"unread": unread} if unread else {}
                found.append({"entity": name, "version": view.version, "found_in": places, **more})
        return found

    def _places(self, log: AgentLog, name: str, view: EntityView) -> tuple[list[str], list[str]]:
        """Search one entity.

        Returns:
            `id` and the fields that contain the text; and the fields that cannot be read, for example because their key
            is unavailable.
        """
        wanted = self.text.casefold()
        places = ["id"] if wanted in name.partition("/")[2].casefold() else []
        unread = []
        payloads = set(Fields(view, log.vault).payloads)
        for field, value in view.fields.items():
            try:
                texts = words(_content_of(log, name, field, value) if field in payloads else view.shown()[field])
                if any(wanted in each.casefold() for each in texts):
                    places.append(field)
            except (NotAnswerable, CorruptionError):
                unread.append(field)
        return places, unread


def _content_of(log: AgentLog, entity: str, field: str, value: Any) -> Any:
    """Return a field's content. Expired content is replaced by None, so it never matches."""
    if isinstance(value, dict):
        return {key: _content_of(log, entity, field, each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_content_of(log, entity, field, each) for each in value]
    try:
        return log.vault.open(entity, field, value)
    except Expired:
        return None
