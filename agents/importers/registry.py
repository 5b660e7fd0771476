"""Importers by name, as `refold import --format NAME` finds them, and the importers that recognise a file.

Another package adds an importer through an entry point of the group `refold.importers`: its name is the format's name,
its value an `Importer`. An importer that no package installs is named MODULE:NAME. Only code that the operator
installed or named is loaded; nothing in a file can name an importer.
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
"""The module of each built-in importer. It is imported only when its format is used."""


class Recognised(NamedTuple):
    """An importer that recognises a file, and its description of the file's values."""

    importer: Importer
    what: str


def importer_of(name: str) -> Importer:
    """Return the importer of a format.

    Args:
        name: A format's name, or MODULE:NAME of an importer of your own.

    Returns:
        The importer; this call imports its module.

    Raises:
        InputError: No importer has that name, or it cannot be imported.
    """
    if name in OWN:
        own: Importer = import_module(OWN[name]).IMPORTER
        return own
    if ":" in name:
        return _load_importer(name, name)
    installed = _installed_importers()
    if name in installed:
        return _load_importer(name, installed[name])
    raise InputError(f"no format is called {name!r}; there are {', '.join(names())}, and your own as MODULE:NAME")


def names() -> list[str]:
    """Return the names of all available formats.

    Returns:
        The built-in names, followed by those that other packages add, sorted.

    Raises:
        InputError: Two packages add a format of the same name.
    """
    return [*OWN, *sorted(_installed_importers())]


def every() -> list[Importer]:
    """Return all available importers.

    Raises:
        InputError: As `importer_of`.
    """
    return [importer_of(name) for name in names()]


def recognised(sample: Sequence[Line], importers: Sequence[Importer]) -> list[Recognised]:
    """Return the formats that a file may have, judged by its first values.

    Args:
        sample: The values, from `ImportFile.sample`.
        importers: The importers to try.

    Returns:
        Each importer that recognises one of the values, with its description of the first such value.
    """
    verdicts = ((each, (each.recognise(line.value) for line in sample)) for each in importers)
    found = ((each, next(filter(None, words), "")) for each, words in verdicts)
    return [Recognised(importer, what) for importer, what in found if what]


def _installed_importers() -> dict[str, str]:
    """Return MODULE:NAME of each importer that other packages add, by the format's name."""
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


def _load_importer(name: str, value: str) -> Importer:
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
