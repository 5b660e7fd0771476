"""The URL of a store of contents.

    file:///FOLDER, /FOLDER a folder that every process of the log sees
    s3://BUCKET[/PREFIX]    an S3 bucket, with the extra `s3`; how it is reached: streams/objects/remote.py
    PROTOCOL://...          whatever else fsspec reaches from here

URLs are printed and kept: users, passwords and keys have no place in them.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

from refold.avro.errors import InputError
from refold.streams.blobs.folder import BlobFolder
from refold.streams.blobs.store import ContentStore

NO_STORE = (
    "name one that all its processes reach, with ?blobs= or REFOLD_BLOBS: a folder (/PATH or file:///PATH), or "
    "s3://BUCKET/PREFIX"
)
_URL = re.compile(r"([a-z][a-z0-9+.-]*)://(.*)\Z", re.DOTALL)


def store_url(given: str) -> str:
    """The URL as it is kept; InputError says what to give instead."""
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
    """The store at a URL (`store_url`). Nothing is asked of it yet."""
    if url.startswith("file:"):
        return BlobFolder(Path(unquote(url.removeprefix("file://"))))
    from refold.streams.blobs.objects import BlobObjects
    from refold.streams.objects.remote import RemoteObjects

    return BlobObjects(RemoteObjects(url))


def _shown(given: str) -> str:
    """What was given, without what may be a password in it."""
    return re.sub(r"//[^/@]*@", "//...@", given.partition("?")[0])[:200]
