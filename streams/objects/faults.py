"""What is said when an object store fails: never its keys, and never the words of libraries that may repeat them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from refold.avro.errors import RefoldError, StoreRefused, StoreUnavailable

# What a store says that waiting does not mend, and what to do about it.
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
    "NoSuchBucket": "there is no such bucket; create it, or give the URL of one that is there",
}


@contextmanager
def asking(url: str, doing: str) -> Iterator[None]:
    """Say what went wrong at a store, whatever library noticed. FileNotFoundError goes through: it is an answer."""
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
        raise StoreUnavailable(f"{url}: {doing}: the store gave no answer ({shown}); repeat when it does") from None


def code_of(error: BaseException) -> str:
    """The code that an S3 store gave, or empty."""
    response = getattr(error, "response", None)
    found = response.get("Error", {}).get("Code", "") if isinstance(response, dict) else ""
    return str(found)


def _names(error: BaseException) -> Iterator[str]:
    """What the error is called, by class and by the store's own code, it and what it came of."""
    each: BaseException | None = error
    while each is not None:
        yield type(each).__name__
        if code_of(each):
            yield code_of(each)
        each = each.__cause__
