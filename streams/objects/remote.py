"""An object store through fsspec: S3 with the extra `s3`, memory://, and every other installed protocol.

S3 is reached as the standard environment says: AWS_ENDPOINT_URL (or AWS_ENDPOINT_URL_S3), AWS_ACCESS_KEY_ID,
AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION, AWS_PROFILE, the files of the AWS tools, or the machine's role.

A missing name proves nothing, because the bucket itself may be missing: HEAD does not distinguish the two. So a store
has a marker object, which the first writer creates, and an object counts as absent only if the marker exists. The
marker is checked only when an object was not found.

Error messages contain neither keys nor texts of libraries, which may contain keys.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from refold.avro.errors import InputError, RefoldError, StoreRefused, StoreUnavailable
from refold.streams.objects.port import ObjectInfo, Objects
from refold.streams.temporary import TemporaryFolder

# Errors that waiting does not fix, and what to do.
_REFUSED = {
    "NoCredentialsError": "there are no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
    "PartialCredentialsError": "the credentials are incomplete; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "ProfileNotFound": "AWS_PROFILE names no profile that is configured here",
    "InvalidAccessKeyId": "the access key is not known there; set AWS_ACCESS_KEY_ID to one that is",
    "SignatureDoesNotMatch": "the secret key is not the access key's; set AWS_SECRET_ACCESS_KEY",
    "AccessDenied": "these credentials may not do that; the policy they need is in docs/SINKS.md",
    "403": "these credentials may not do that; the policy they need is in docs/SINKS.md",
    "PermissionError": "these credentials may not do that; the policy they need is in docs/SINKS.md",
    "AllAccessDisabled": "access to it is disabled",
    "InvalidBucketName": "there can be no bucket of that name",
    "NoSuchBucket": "there is no such bucket; create it, or give the URL of one that exists",
}


@contextmanager
def translated_errors(url: str, doing: str) -> Iterator[None]:
    """Translate errors of a store. FileNotFoundError is passed on, because it is an answer.

    Args:
        url: The store's URL, for the error.
        doing: What is being done, for the error.

    Raises:
        StoreRefused: The store denied the request: a retry would not help.
        StoreUnavailable: The store gave no answer.
    """
    try:
        yield
    except (FileNotFoundError, FileExistsError, RefoldError):
        raise
    except Exception as error:  # each implementation of fsspec has errors of its own
        names = [*_names(error)]
        for name in names:
            if name in _REFUSED:
                raise StoreRefused(f"{url}: {doing}: {_REFUSED[name]}") from None
        shown = names[-1] if names else type(error).__name__
        raise StoreUnavailable(f"{url}: {doing}: the store gave no answer ({shown}); repeat when it answers") from None


def code_of(error: BaseException) -> str:
    """The error code of an S3 store, or ""."""
    response = getattr(error, "response", None)
    found = response.get("Error", {}).get("Code", "") if isinstance(response, dict) else ""
    return str(found)


def _names(error: BaseException) -> Iterator[str]:
    """The names of an error and its causes: classes, and the store's codes."""
    each: BaseException | None = error
    while each is not None:
        yield type(each).__name__
        if code_of(each):
            yield code_of(each)
        each = each.__cause__


MARK = "REFOLD"
CONNECT_TIMEOUT_S, READ_TIMEOUT_S = 5, 20
# The longest time of one request, with the client's own retries.
REQUEST_S_MAX = 60
_EXTRAS = {"s3": "s3", "s3a": "s3"}
_PUT_AT = ("LastModified", "last_modified", "mtime", "updated", "created")
_S3 = {
    "config_kwargs": {
        "connect_timeout": CONNECT_TIMEOUT_S,
        "read_timeout": READ_TIMEOUT_S,
        "retries": {"max_attempts": 2, "mode": "standard"},
    }
}


class RemoteObjects(Objects):
    """A store by its URL, protocol://place/prefix. Thread-safe."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._protocol = url.partition("://")[0]
        self._root = url.partition("://")[2].strip("/")
        self._is_marked = False

    def __repr__(self) -> str:
        return f"<objects {self.url}>"

    @cached_property
    def _files(self) -> Any:
        """fsspec's file system, created at the first use, because its libraries take a second to import."""
        try:
            import fsspec
        except ModuleNotFoundError:
            raise self._not_installed() from None
        options: dict[str, Any] = {}
        if self._protocol in _EXTRAS:
            # Also the cache key of fsspec's clients, because creating one takes half a second.
            endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
            options = {**_S3, "endpoint_url": endpoint or None}
        if self._protocol == "memory":
            return fsspec.filesystem("memory")
        try:
            kind = fsspec.get_filesystem_class(self._protocol)
        except (ImportError, ValueError):
            raise self._not_installed() from None
        with translated_errors(self.url, "opening"):
            files = kind(**options, use_listings_cache=False)
        if hasattr(files, "retries"):
            files.retries = 1  # its client repeats by itself
        return files

    def _not_installed(self) -> InputError:
        extra = _EXTRAS.get(self._protocol)
        what = f"pip install 'refold[{extra}]'" if extra else f"install what fsspec needs for {self._protocol}://"
        return InputError(f"{self.url}: what reaches it is not installed here; {what}")

    def prepare(self) -> None:
        if not self._is_marked:
            if self._info(MARK) is None:
                self._create(MARK, b"1\n")
            self._is_marked = True

    def get(self, name: str) -> bytes | None:
        try:
            with translated_errors(self.url, f"reading {name}"):
                return bytes(self._files.cat_file(self._path(name)))
        except FileNotFoundError:
            self._require_store()
            return None

    def stat(self, name: str) -> ObjectInfo | None:
        found = self._info(name)
        if found is None:
            self._require_store()
        return found

    def names(self, folder: str) -> Iterator[ObjectInfo]:
        for each in self._listed(folder):
            if each["type"] == "file" and (name := _last(each)):
                yield self._info_of(f"{folder}/{name}" if folder else name, each)

    def folders(self, folder: str) -> Iterator[str]:
        for each in self._listed(folder):
            if each["type"] == "directory":
                yield _last(each)

    def put(self, name: str, data: bytes) -> None:
        self.prepare()
        with self._writing(name):
            self._files.pipe_file(self._path(name), data)

    def put_file(self, name: str, path: Path) -> None:
        self.prepare()
        with self._writing(name):
            self._files.put_file(str(path), self._path(name))

    def create(self, name: str, data: bytes) -> bool:
        self.prepare()
        return self._create(name, data)

    def copy(self, name: str, to: str) -> None:
        with self._writing(to):
            self._files.cp_file(self._path(name), self._path(to))

    def delete(self, name: str) -> None:
        try:
            with translated_errors(self.url, f"removing {name}"):
                self._files.rm_file(self._path(name))
        except FileNotFoundError:
            self._require_store()

    def remove(self, folder: str) -> None:
        for name in [*self.folders(folder)]:
            self.remove(f"{folder}/{name}")
        for each in [*self.names(folder)]:
            self.delete(each.name)

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        with TemporaryFolder("refold-scratch-") as folder:
            yield folder

    def _create(self, name: str, data: bytes) -> bool:
        try:
            with self._writing(name):
                self._files.pipe_file(self._path(name), data, mode="create")
        except FileExistsError:
            return False
        except StoreUnavailable:
            # The write may have succeeded and the response been lost: the stored bytes tell.
            try:
                with translated_errors(self.url, f"reading {name}"):
                    return bytes(self._files.cat_file(self._path(name))) == data
            except FileNotFoundError:
                pass
            raise
        return True

    def _require_store(self) -> None:
        """Raise StoreRefused unless the store exists: otherwise a missing object is not known to be absent."""
        if self._info(MARK) is None:
            raise StoreRefused(
                f"{self.url}: there is no store of refold here ({MARK} is missing): nothing was written to it yet, "
                "its bucket is gone, or this is not the URL it was written with"
            ) from None

    def _info(self, name: str) -> ObjectInfo | None:
        try:
            with translated_errors(self.url, f"looking for {name}"):
                found = self._files.info(self._path(name))
        except FileNotFoundError:
            return None
        return None if found["type"] == "directory" else self._info_of(name, found)

    def _listed(self, folder: str) -> Iterator[Mapping[str, Any]]:
        try:
            with translated_errors(self.url, f"listing {folder or 'it'}"):
                found = self._files.ls(self._path(folder), detail=True)
        except FileNotFoundError as error:
            # A missing bucket has its own error code here; an empty folder gives no error.
            if error.__cause__ is not None or not self._is_marked:
                self._require_store()
            return
        yield from found

    @contextmanager
    def _writing(self, name: str) -> Iterator[None]:
        try:
            with translated_errors(self.url, f"writing {name}"):
                yield
        except FileNotFoundError:
            raise StoreRefused(
                f"{self.url}: writing {name}: there is no such bucket; create it, or give the URL of one that exists"
            ) from None

    def _info_of(self, name: str, info: Mapping[str, Any]) -> ObjectInfo:
        at = next((info[key] for key in _PUT_AT if info.get(key) is not None), None)
        if isinstance(at, str):
            at = datetime.fromisoformat(at)
        if isinstance(at, datetime):
            at = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
        if at is None:
            raise StoreRefused(f"{self.url}: this store does not report when {name} was written, which refold needs")
        return ObjectInfo(name, int(info["size"]), int(at * 1000))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}".rstrip("/")


def _last(info: Mapping[str, Any]) -> str:
    return str(info["name"]).rstrip("/").rpartition("/")[2]
