"""A container's processor quota: from its control group and the enclosing groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from refold.streams.runtime import quota_cores


def group(tmp_path: Path, quotas: dict[str, str], membership: str = "0::/pod/box\n") -> int | None:
    for name, text in quotas.items():
        (tmp_path / "groups" / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name / "cpu.max").write_text(text)
    (tmp_path / "cgroup").write_text(membership)
    return quota_cores(tmp_path / "cgroup", tmp_path / "groups")


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("200000 100000\n", 2),
        ("150000 100000\n", 2),
        ("20000 100000\n", 1),
        ("max 100000\n", None),
        ("", None),
        ("1 0\n", None),
    ],
)
def test_quota_in_cores_is_rounded_up(tmp_path: Path, text: str, cores: int | None) -> None:
    assert group(tmp_path, {"pod/box": text}) == cores


def test_quotas_of_parent_groups_apply(tmp_path: Path) -> None:
    assert group(tmp_path, {"pod/box": "max 100000", "pod": "300000 100000", "": "800000 100000"}) == 3


def test_group_seen_in_a_container_is_its_own(tmp_path: Path) -> None:
    assert group(tmp_path, {"": "100000 100000"}, "0::/\n") == 1


@pytest.mark.parametrize("membership", ["", "9:name=systemd:/\n4:cpu,cpuacct:/pod\n"])
def test_system_without_cgroups_v2_has_no_quota(tmp_path: Path, membership: str) -> None:
    assert group(tmp_path, {"pod": "100000 100000"}, membership) is None


def test_system_without_proc_files_has_no_quota(tmp_path: Path) -> None:
    assert quota_cores(tmp_path / "none", tmp_path / "none") is None
