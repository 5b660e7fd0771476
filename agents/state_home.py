"""Folders of the user in which refold keeps what belongs to a log but is not in it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

_STATE_HOME = "XDG_STATE_HOME"


def state_folder(kind: str, log_url: str, environment: Mapping[str, str]) -> Path:
    """Return a folder of the user's, named after what it holds and after the log's URL. It may not exist.

    Args:
        kind: What it holds.
        log_url: The log's URL, from `whole_url`.
        environment: The environment variables.
    """
    home = environment.get(_STATE_HOME)
    state = Path(home) if home and Path(home).is_absolute() else Path.home() / ".local" / "state"
    return state / "refold" / kind / hashlib.sha256(log_url.encode()).hexdigest()[:16]


def whole_url(url: str) -> str:
    """Return a log's URL in a form that means the same from every folder."""
    scheme, colon, rest = url.partition(":")
    if scheme != "file" or not colon:
        return url
    path, question, options = rest.partition("?")
    return f"file:{Path(path).absolute()}{question}{options}"
