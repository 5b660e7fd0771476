"""Which store a `file:` log's contents are in: the folder blobs/ in it, or the one whose URL stands in PATH/BLOBS.

The URL is given with ?blobs= when the log is made, or while it has no contents yet, and is kept, so that nobody has to
give it again, and who forgets it finds nothing missing. To move contents: copy them (`refold blobs --copy-to`), then
edit PATH/BLOBS (without it: the folder).
"""

from __future__ import annotations

from pathlib import Path

from refold.avro.errors import InputError, StorageError
from refold.avro.files import read_bounded
from refold.streams.blobs.folder import BlobFolder
from refold.streams.blobs.store import ContentStore
from refold.streams.blobs.url import open_store, store_url
from refold.streams.durable import replace_file

BESIDE, KEPT = "blobs", "BLOBS"


def store_beside(path: Path, asked: str | None, *, make: bool) -> ContentStore:
    """The store of the log at a path. asked: the URL that was given, if one was; make: keep it where none is kept yet.

    InputError where the log's contents are in another store.
    """
    asked = None if asked is None else store_url(asked)
    try:
        kept: str | None = read_bounded(path / KEPT).decode().strip()
    except FileNotFoundError:
        kept = None
    except (OSError, UnicodeDecodeError) as error:
        raise StorageError(f"{path / KEPT}: the URL of the log's contents cannot be read: {error}") from error
    if kept is not None and asked in (None, store_url(kept)):
        return open_store(store_url(kept))
    if asked is None:
        return BlobFolder(path / BESIDE)
    if kept is not None or next((path / BESIDE).glob("*/*"), None) is not None:
        where = kept or str(path / BESIDE)
        raise InputError(
            f"{path}: this log's contents are in {where}; leave out ?blobs=, or copy them (refold blobs --copy-to) and "
            f"write the new URL into {path / KEPT}"
        )
    if make:
        _keep(path, asked)
    return open_store(asked)


def _keep(path: Path, url: str) -> None:
    try:
        replace_file(path / KEPT, f"{url}\n")
    except OSError as error:
        raise StorageError(f"{path / KEPT}: cannot be written: {error.strerror}") from error
