"""The styles and scripts of the pages: files of this folder, read once."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import MappingProxyType

MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
}  # fmt: skip


@cache
def assets() -> MappingProxyType[str, tuple[bytes, str]]:
    """Content and media type by name."""
    found = sorted((Path(__file__).parent / "static").iterdir())
    return MappingProxyType(
        {each.name: (each.read_bytes(), MEDIA_TYPES[each.suffix]) for each in found if each.suffix in MEDIA_TYPES}
    )
