"""Importers by name, as `refold import --format NAME` finds them, and which of them a file is for.

Another package adds an importer by an entry point of the group `refold.importers`: its name is the format's, its value
an `Importer`. One of your own that no package installs is named as MODULE:NAME. Either is code that the operator
installed or named; nothing in a file names any.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple

from refold.agents.importers.json_lines import Line
from refold.agents.importers.model import Importer
from refold.avro.errors import InputError

GROUP = "refold.importers"
OWN = {
    "chat": "refold.agents.importers.chat",
    "tau-bench": "refold.agents.importers.tau_bench",
    "swe-agent": "refold.agents.importers.swe_agent",
    "claude-code": "refold.agents.importers.claude_code",
    "codex": "refold.agents.importers.codex",
    "otlp": "refold.agents.importers.otlp",
}
"""The module of each importer of refold's own; its IMPORTER is imported when it is asked for."""


class Recognised(NamedTuple):
    """What a file was found to be: the format's name, and the words of its importer."""

    importer: Importer
    what: str


def importer_of(name: str) -> Importer:
    """The importer of a format.

    Args:
        name: A format's name, or MODULE:NAME of an importer of your own.

    Returns:
        The importer; its module is imported now.

    Raises:
        InputError: There is none of that name, or it cannot be imported.
    """
    if name in OWN:
        own: Importer = import_module(OWN[name]).IMPORTER
        return own
    if ":" in name:
        return _loaded(name, name)
    installed = _installed()
    if name in installed:
        return _loaded(name, installed[name])
    raise InputError(f"no format is called {name!r}; there are {', '.join(names())}, and your own as MODULE:NAME")


def names() -> list[str]:
    """The formats that are here.

    Returns:
        The names of refold's own, and then those that other packages add.
    """
    return [*OWN, *sorted(_installed())]


def every() -> list[Importer]:
    """All importers that are here."""
    return [importer_of(name) for name in names()]


def recognised(sample: Sequence[Line], importers: Sequence[Importer]) -> list[Recognised]:
    """What a file may be, by its first values.

    Args:
        sample: The values, of `ImportFile.sample`.
        importers: Those that are asked.

    Returns:
        Each importer that recognises one of the values, and what it said of the first such.
    """
    said = ((each, (each.recognise(line.value) for line in sample)) for each in importers)
    found = ((each, next(filter(None, words), "")) for each, words in said)
    return [Recognised(importer, what) for importer, what in found if what]


def _installed() -> dict[str, str]:
    """MODULE:NAME of the importers that other packages add, by the format's name."""
    from importlib.metadata import entry_points

    found: dict[str, str] = {}
    for each in entry_points(group=GROUP):
        if each.name in OWN or each.name in found:
            raise InputError(
                f"two importers are called {each.name!r}; uninstall the package that adds {each.value} by the entry "
                f"point {GROUP}"
            )
        found[each.name] = each.value.replace(" ", "")
    return found


def _loaded(name: str, value: str) -> Importer:
    module, _, attribute = value.partition(":")
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(
            f"the importer {name} cannot be imported: {error}; its folder has to be on PYTHONPATH"
        ) from error
    if not isinstance(found, Importer):
        raise InputError(f"the importer {name} is not a refold.importer.Importer: {value} is {type(found).__name__}")
    return found
