"""Reads files that an operator names (settings, secrets, certificates), up to a size limit.

So a wrong name (`/dev/zero`, a disk image, a log) gives an error, and does not fill the memory. Pipes can be read too:
a shell's `<(...)` and systemd's credentials are pipes.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any

from refold.avro.errors import InputError

SETTINGS_BYTES_MAX = 1 << 20
"""Of a file of settings, a position or a secret."""
PEM_BYTES_MAX = 16 << 20
"""Of a file of certificates: a system's whole list of authorities has a quarter of a MiB."""


def read_bounded(path: str | os.PathLike[str], bytes_max: int = SETTINGS_BYTES_MAX) -> bytes:
    """Return a file's bytes.

    Args:
        path: the file, a pipe too.
        bytes_max: the maximum size in bytes.

    Returns:
        All of them.

    Raises:
        OSError: the file cannot be read, or is longer; `strerror` says which.
        ValueError: the path holds a zero byte.
    """
    with Path(path).open("rb") as file:
        data = file.read(bytes_max + 1)
    if len(data) > bytes_max:
        raise OSError(errno.EFBIG, f"it is longer than {bytes_max:,} bytes", str(path))
    return data


def read_toml(path: str | os.PathLike[str], source: str, hint: str = "") -> dict[str, Any]:
    """Return the tree of a TOML file.

    Args:
        path: the file.
        source: its name in errors.
        hint: what the error says besides if the file cannot be read.

    Raises:
        InputError: the file cannot be read, or is no TOML.
    """
    try:
        text = read_bounded(path).decode("utf-8")
    except OSError as error:
        raise InputError(f"{source} cannot be read: {error.strerror or error}{hint}") from None
    except ValueError as error:
        raise InputError(f"{source} cannot be read: {error}") from None
    return parse_toml(text, source)


def parse_toml(text: str, source: str) -> dict[str, Any]:
    """Return the tree of a TOML text.

    Args:
        text: the text.
        source: its name in errors.

    Raises:
        InputError: it is no TOML.
    """
    import tomllib  # imported here, so that runs without such a file start faster

    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number has too many digits; it is nested too deeply
        raise InputError(f"{source} is no TOML: {error}") from None


def require_bounded(path: str | os.PathLike[str], bytes_max: int = PEM_BYTES_MAX) -> None:
    """Check the size of a file that a library such as OpenSSL reads by its path. A folder or a missing file is left to
    the library.

    Raises:
        OSError: it is longer than bytes_max, or a device.
        ValueError: the path holds a zero byte.
    """
    try:
        status = os.stat(path)  # noqa: PTH116  # a zero byte is a ValueError here
    except OSError:
        return
    if stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
        raise OSError(errno.EINVAL, "it is a device, not a file", str(path))
    if stat.S_ISREG(status.st_mode) and status.st_size > bytes_max:
        raise OSError(errno.EFBIG, f"it is longer than {bytes_max:,} bytes", str(path))
