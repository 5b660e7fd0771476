"""The folder of the demo's log. Only a folder that holds the log of an earlier demo may be replaced."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import refold

DEFAULT = Path(".refold-demo")
SIGN = "DEMO"
SIGN_TEXT = "Made by `refold demo`, which replaces this folder when it is run again.\n"
CONTENTS = frozenset({SIGN, "FORMAT", "FORMAT.creating", "SYNCED", "db", "blobs", "keys", "owner.sock"})


def make(folder: Path | None, keep: bool) -> tuple[Path, bool]:
    """Create a folder with an empty log in it.

    Args:
        folder: The folder; None: `.refold-demo`.
        keep: Keep the log of an earlier demo, and create the new one next to it.

    Returns:
        The folder, and whether the log of an earlier demo was replaced.

    Raises:
        InputError: The folder holds something else.
    """
    target = _free(folder or DEFAULT) if keep else folder or DEFAULT
    replaced = _is_demo(target)
    if replaced:
        shutil.rmtree(target)
    elif _exists(target) and not _is_empty(target):
        raise refold.InputError(
            f"{target}: this folder holds something else than a demo's log; name another folder, or remove it"
        )
    with refold.open(url(target)):
        pass
    # Not earlier: a log can only be created in an empty folder.
    (target / SIGN).write_text(SIGN_TEXT, encoding="utf-8")
    return target, replaced


def url(target: Path) -> str:
    """Return the URL of the log in a folder."""
    return "file:" + str(target).replace("%", "%25").replace("?", "%3F")


def _free(target: Path) -> Path:
    beside, number = target, 1
    while _exists(beside) and not _is_empty(beside):
        number += 1
        beside = target.with_name(f"{target.name}-{number}")
    return beside


def _exists(target: Path) -> bool:
    return target.exists() or target.is_symlink()


def _is_empty(target: Path) -> bool:
    return target.is_dir() and not any(target.iterdir())


def _is_demo(target: Path) -> bool:
    """Return whether this is a folder of this user with the demo's marker file in it, and nothing that a demo does
    not create.
    """
    sign = target / SIGN
    if target.is_symlink() or not sign.is_file() or target.stat().st_uid != os.getuid():
        return False
    names = {each.name for each in target.iterdir()}
    return names <= CONTENTS and sign.read_text(encoding="utf-8", errors="replace") == SIGN_TEXT
