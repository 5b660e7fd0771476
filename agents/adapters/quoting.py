"""Names that others gave, as parts of ids of entities."""

from __future__ import annotations

import re


def quoted(name: str) -> str:
    """Quote a name for use in an entity's id.

    #, % and control characters become %XX of their UTF-8 bytes. An empty name becomes %.
    """
    return (
        re.sub("[%#\x00-\x1f\x7f-\x9f]", lambda found: "".join(f"%{each:02X}" for each in found[0].encode()), name)
        or "%"
    )
