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
def test_a_quota_is_so_many_cores_a_part_counted_as_one(tmp_path: Path, text: str, cores: int | None) -> None:
    assert group(tmp_path, {"pod/box": text}) == cores


def test_the_groups_around_it_hold_too(tmp_path: Path) -> None:
    assert group(tmp_path, {"pod/box": "max 100000", "pod": "300000 100000", "": "800000 100000"}) == 3


def test_in_a_container_the_group_it_sees_is_its_own(tmp_path: Path) -> None:
    assert group(tmp_path, {"": "100000 100000"}, "0::/\n") == 1


@pytest.mark.parametrize("membership", ["", "9:name=systemd:/\n4:cpu,cpuacct:/pod\n"])
def test_without_groups_of_the_second_kind_there_is_none(tmp_path: Path, membership: str) -> None:
    assert group(tmp_path, {"pod": "100000 100000"}, membership) is None


def test_without_the_system_s_files_there_is_none(tmp_path: Path) -> None:
    assert quota_cores(tmp_path / "none", tmp_path / "none") is None
