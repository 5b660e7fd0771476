"""The URL of a store of contents.

    file:///FOLDER, /FOLDER a folder that every process of the log can access
    s3://BUCKET[/PREFIX]    an S3 bucket, with the extra `s3`; connection settings: streams/objects/remote.py
    PROTOCOL://...          any other protocol that fsspec supports on this machine

URLs are printed and stored, so they must not contain users, passwords or keys.

The contents of a `file:` log are in its folder blobs/, or in the store whose URL is in PATH/BLOBS. That URL is given
with ?blobs= when the log is created, or while it has no contents yet. It is stored, so nobody has to
give it again, and forgetting it does not make contents appear missing. To move contents: copy them (`refold blobs
--copy-to`), then edit PATH/BLOBS (without this file: the folder).
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

from refold.avro.errors import InputError, StorageError
from refold.avro.files import read_bounded
from refold.streams.blobs.folder import BlobFolder
from refold.streams.blobs.store import ContentStore
from refold.streams.durable import replace_file

NO_STORE = (
    "name one that all its processes reach, with ?blobs= or REFOLD_BLOBS: a folder (/PATH or file:///PATH), or "
    "s3://BUCKET/PREFIX"
)
_URL = re.compile(r"([a-z][a-z0-9+.-]*)://(.*)\Z", re.DOTALL)


def store_url(given: str) -> str:
    """Normalise a URL to its stored form.

    Raises:
        InputError: the URL is invalid; the message says what to give instead.
    """
    if given.startswith("/"):
        return Path(given).as_uri()
    found = _URL.match(given)
    if found is None or (found[1] == "file" and not found[2].startswith("/")):
        raise InputError(f"blobs={_shown(given)}: {NO_STORE}")
    if "%00" in given or "\0" in given:
        raise InputError(f"blobs={_shown(given)}: it holds a zero byte, which is not allowed in a name")
    if found[1] == "file":
        return Path(unquote(found[2])).as_uri()
    place = found[2].strip("/")
    if not place or "::" in given or any(mark in place for mark in "?#"):
        raise InputError(
            f"blobs={_shown(given)}: give PROTOCOL://PLACE/PREFIX, such as s3://BUCKET/PREFIX, and no more"
        )
    if "@" in place.partition("/")[0]:
        raise InputError(
            f"blobs={found[1]}://...: a store's URL takes no user, password or key, because it is printed and stored; "
            "S3's are in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or in AWS_PROFILE"
        )
    return f"{found[1]}://{place}"


def open_store(url: str) -> ContentStore:
    """Return the store at a URL (`store_url`). Sends no request yet."""
    if url.startswith("file:"):
        return BlobFolder(Path(unquote(url.removeprefix("file://"))))
    from refold.streams.blobs.objects import BlobObjects
    from refold.streams.objects.remote import RemoteObjects

    return BlobObjects(RemoteObjects(url))


def _shown(given: str) -> str:
    """Return a given URL for a message, without a part that may be a password."""
    return re.sub(r"//[^/@]*@", "//...@", given.partition("?")[0])[:200]


STORE_FOLDER, URL_FILE = "blobs", "BLOBS"


def store_of_log(path: Path, asked: str | None, *, make: bool) -> ContentStore:
    """Return the store of the contents of the log at a path.

    Args:
        path: the log's folder.
        asked: the URL that was given, if any.
        make: store the URL if none is stored yet.

    Raises:
        InputError: the log's contents are in another store.
    """
    asked = None if asked is None else store_url(asked)
    try:
        kept: str | None = read_bounded(path / URL_FILE).decode().strip()
    except FileNotFoundError:
        kept = None
    except (OSError, UnicodeDecodeError) as error:
        raise StorageError(f"{path / URL_FILE}: the URL of the log's contents cannot be read: {error}") from error
    if kept is not None and asked in (None, store_url(kept)):
        return open_store(store_url(kept))
    if asked is None:
        return BlobFolder(path / STORE_FOLDER)
    if kept is not None or next((path / STORE_FOLDER).glob("*/*"), None) is not None:
        where = kept or str(path / STORE_FOLDER)
        raise InputError(
            f"{path}: this log's contents are in {where}; leave out ?blobs=, or copy them (refold blobs --copy-to) and "
            f"write the new URL into {path / URL_FILE}"
        )
    if make:
        _keep(path, asked)
    return open_store(asked)


def _keep(path: Path, url: str) -> None:
    try:
        replace_file(path / URL_FILE, f"{url}\n")
    except OSError as error:
        raise StorageError(f"{path / URL_FILE}: cannot be written: {error.strerror}") from error
