"""Reads type files: those that ship with refold in avro/types, and the user's."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from refold.avro import strict_json
from refold.avro.definition import CodeOf, TypeDefinition, parse
from refold.avro.errors import SchemaError

BYTES_MAX = 4 << 20
FOLDER = Path(__file__).parent / "types"


@cache
def shipped_types() -> dict[str, TypeDefinition]:
    """The shipped definitions by type name."""
    return load_types([FOLDER])


def load_types(paths: Iterable[Path], code_of: CodeOf | None = None) -> dict[str, TypeDefinition]:
    """Return the definitions in .avsc files and in folders of them, by type name.

    Args:
        paths: Files and folders.
        code_of: As in `load_type`.

    Raises:
        SchemaError: A folder has no .avsc file, a type is defined twice, or as `load_type`.
    """
    found: dict[str, TypeDefinition] = {}
    for path in paths:
        files = sorted(path.glob("*.avsc")) if path.is_dir() else [path]
        if not files:
            raise SchemaError(f"{path}: no .avsc file in this folder")
        for file in files:
            definition = load_type(file, code_of)
            if definition.name in found:
                raise SchemaError(f"{file}: the type {definition.name} is defined in two files")
            found[definition.name] = definition
    return found


def load_type(file: Path, code_of: CodeOf | None = None) -> TypeDefinition:
    """The definition in one .avsc file.

    Args:
        file: The file.
        code_of: Identifies custom reducers; None leaves them without an identity.

    Raises:
        SchemaError: It cannot be read, or is no definition; the message names the file.
    """
    try:
        with file.open("rb") as stream:
            data = stream.read(BYTES_MAX + 1)
        if len(data) > BYTES_MAX:
            raise SchemaError(f"{file}: is longer than {BYTES_MAX:,} bytes, which is too long for a type")
        document = strict_json.loads(data.decode(), pairs_hook=_each_once)
    except OSError as error:
        raise SchemaError(f"{file}: cannot be read: {error.strerror}") from None
    except SchemaError:
        raise
    except ValueError as error:
        raise SchemaError(f"{file}: not JSON: {error}") from None
    return parse(document, code_of, str(file))


def _each_once(members: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(members)
    if len(found) != len(members):
        names = [name for name, _ in members]
        raise ValueError(f"the key {max(names, key=names.count)!r} is twice in one object")
    return found
