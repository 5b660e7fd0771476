"""How much of a machine's processors a container or a service may use: the quota of its control group (Linux, v2).

A group's `cpu.max` says "QUOTA PERIOD" in microseconds, or "max PERIOD" without one; its parents' hold for it too.
"""

from __future__ import annotations

import math
from pathlib import Path

_MEMBERSHIP = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")
_V2 = "0::/"


def quota_cores(membership: Path = _MEMBERSHIP, groups: Path = _GROUPS) -> int | None:
    """How many cores at once the quota is, a part counted as one; None without one, or where nothing tells."""
    own = [line.removeprefix(_V2) for line in _text(membership).splitlines() if line.startswith(_V2)]
    if not own:
        return None
    group = groups / own[0]
    quotas = [_quota(each / "cpu.max") for each in (group, *group.parents) if each.is_relative_to(groups)]
    return min((quota for quota in quotas if quota is not None), default=None)


def _quota(file: Path) -> int | None:
    try:
        quota, period = map(int, _text(file).split())
        return max(1, math.ceil(quota / period))
    except (ValueError, ZeroDivisionError):  # "max", or no such file
        return None


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError:
        return ""
