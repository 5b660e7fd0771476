"""The format of each file of an import: the named one, or with `auto` the detected one."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from refold.agents.importers.file import ImportFile
from refold.agents.importers.model import Importer
from refold.agents.importers.registry import every, importer_of, names, recognised
from refold.avro.errors import InputError
from refold.avro.observation import Value
from refold.explorer.cli.record.archive import ARCHIVE
from refold.streams.exchange import archive_form
from refold.streams.exchange.blocks import Blocks
from refold.streams.exchange.container import is_container, schema_of
from refold.streams.exchange.files import ExchangeFile, is_definition

AUTO = "auto"
NO_JSON = "is not JSON"
OBSERVATIONS = "observations"


class FoundFormat(NamedTuple):
    """A file's format.

    Attributes:
        importer: The importer; None for observations and archives.
        what: A description; empty if the user named the format.
    """

    name: str
    importer: Importer | None
    what: str = ""


def formats_of(form: str, files: Sequence[ExchangeFile], keys: Mapping[str, str]) -> list[FoundFormat]:
    """Determine the format of each file.

    Args:
        form: The value of --format.
        files: The files; with `auto` their first values are read.
        keys: The keys of --map.

    Returns:
        One format for each file.

    Raises:
        InputError: The format does not exist, a file matches none or several, or --map names a key that its format does
            not have.
    """
    if form in (OBSERVATIONS, ARCHIVE):
        found = [FoundFormat(form, None)] * len(files)
    elif form == AUTO:
        importers = every()
        found = [_format_of(file, keys, importers) for file in files]
    else:
        if ":" not in form and form not in names():
            known = ", ".join((OBSERVATIONS, ARCHIVE, AUTO, *names()))
            raise InputError(f"no format is called {form!r:.80}; there are {known}, and your own as MODULE:NAME")
        named = importer_of(form)
        found = [FoundFormat(named.name, named)] * len(files)
    for each in found:
        _check_keys(each, keys)
    return found


def parsed_keys(given: Sequence[str]) -> dict[str, str]:
    """Parse each --map KEY=THEIRS, and return THEIRS by KEY.

    Raises:
        InputError: A text has another form, or repeats a name.
    """
    keys: dict[str, str] = {}
    for each in given:
        key, sign, theirs = each.partition("=")
        if not (key and sign and theirs):
            raise InputError(f"--map {each}: give KEY=THEIRS, such as role=from")
        if key in keys or theirs in keys.values():
            raise InputError(f"--map {each}: {key if key in keys else theirs} is named twice")
        keys[key] = theirs
    return keys


def _check_keys(found: FoundFormat, keys: Mapping[str, str]) -> None:
    known = frozenset() if found.importer is None else found.importer.keys
    for key in keys:
        if key not in known:
            some = f"its keys are {', '.join(sorted(known))}" if known else "none of its keys can have another name"
            raise InputError(f"--map {key}={keys[key]}: the format {found.name} has no key {key} to name: {some}")


def _format_of(file: ExchangeFile, keys: Mapping[str, str], importers: Sequence[Importer]) -> FoundFormat:
    if is_container(file.path):
        return _container_format(file)
    tried = ", ".join((OBSERVATIONS, ARCHIVE, *(each.name for each in importers)))
    given = ImportFile(file.path, file.shown, file.limits, keys=keys)
    try:
        sample = given.sample()
    except InputError as error:
        if NO_JSON not in str(error):
            raise
        raise InputError(f"{error}; tried {tried}: name the format with --format") from error
    found = [FoundFormat(each.importer.name, each.importer, each.what) for each in recognised(sample, importers)]
    if any(_is_observation(each.value) for each in sample):
        found.insert(0, FoundFormat(OBSERVATIONS, None, "what `refold export` writes"))
    if len(found) == 1:
        return found[0]
    if not found:
        raise InputError(
            f"{sample[0].place}: no format is recognised here; tried {tried}: name the format with --format, or its "
            "keys with --map"
        )
    several = " or ".join(f"{each.name} ({each.what})" for each in found)
    raise InputError(f"{file.shown}: may be {several}: name the format with --format {shlex.quote(found[0].name)}")


def _container_format(file: ExchangeFile) -> FoundFormat:
    try:
        with file.path.open("rb") as stream:
            blocks = Blocks(stream, file.shown, file.limits)
            name = schema_of(blocks, file.shown, file.limits).get("name")
    except OSError as error:
        raise InputError(f"{file.shown}: cannot be read: {error.strerror or error}") from error
    if name == archive_form.NAME:
        return FoundFormat(ARCHIVE, None, "the archive of a log")
    return FoundFormat(OBSERVATIONS, None, "what `refold export` writes, as an Avro container")


def _is_observation(value: Value) -> bool:
    if not isinstance(value, dict):
        return False
    return is_definition(value) or (isinstance(value.get("entity"), str) and "observed_at" in value)
