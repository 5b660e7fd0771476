"""The fold of each type under a registry, built once per definition."""

from __future__ import annotations

from refold.avro.kernel import Kernel, TypeFolder
from refold.avro.kernel_layouts import field_layouts
from refold.avro.observation import type_of
from refold.avro.registry import Registry, TypeVersion
from refold.reducers.fold import Fold
from refold.streams.change_codec import ChangeCodec, change_codec_of


class TypeFold:
    """One type version's fold and its change codec."""

    def __init__(self, version: TypeVersion) -> None:
        self.version = version
        self.fold = Fold(version.definition)
        self._changes: ChangeCodec | None = None
        self._native: TypeFolder | None = None

    @property
    def changes(self) -> ChangeCodec:
        """The codec of changes, created at the first use."""
        if self._changes is None:
            self._changes = change_codec_of(self.version)
        return self._changes

    def native(self, kernel: Kernel) -> TypeFolder | None:
        """The kernel's object that folds the type; None if the kernel cannot fold the type. Created at the first
        use.
        """
        if self._native is None:
            version, definition = self.version, self.version.definition
            self._native = kernel.TypeFolder(
                definition.name, version.codec.framed(b""), field_layouts(definition), definition.fingerprint,
                version.changes.framed(b""), version.offset,
            )  # fmt: skip
        return self._native if self._native.fields_folded else None


class Folds:
    """By type name, the fold under its newest definition below an offset of `.schemas`."""

    def __init__(self, registry: Registry, below: int | None = None) -> None:
        self._registry = registry
        self._below = below
        self._known: dict[int, TypeFold] = {}
        self._newest: dict[str, TypeFold] = {}
        self._size = -1

    def of(self, type_name: str) -> TypeFold:
        """The type's fold.

        Raises:
            SchemaError: The type is unknown or a custom reducer changed.
        """
        if len(self._registry) != self._size:
            self._newest.clear()
            self._size = len(self._registry)
        found = self._newest.get(type_name)
        if found is None:
            version = self._registry.newest(type_name, self._below)
            found = self._known.get(version.offset)
            if found is None:
                found = self._known[version.offset] = TypeFold(version)
            self._newest[type_name] = found
        return found

    def of_entity(self, entity: str) -> TypeFold:
        """The fold of `type/id`."""
        return self.of(type_of(entity))
