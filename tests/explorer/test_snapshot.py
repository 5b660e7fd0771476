"""`refold snapshot`: sealing, listing, pinning and collecting, as text and as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from refold.explorer.cli.main import run
from refold_tests.aging import old_log
from refold_tests.opening import open_log, take
from refold_tests.sample_types import A, said

Ask = Callable[..., Any]


@pytest.fixture
def ask(log_path: Path, capsys: pytest.CaptureFixture[str]) -> Ask:
    """Run `refold snapshot` in this process. Return its JSON with --json, else its text, or its error."""

    def run_it(*arguments: object, status: int = 0) -> Any:
        found = run(["snapshot", *map(str, arguments)])
        out, err = capsys.readouterr()
        assert found == status, (out, err)
        if status == 2:
            assert out == ""
            assert err.count("\n") == 1
            return err
        assert err == ""
        return json.loads(out) if "--json" in arguments else out

    return run_it


def test_snapshot_seals_changes_and_reports_the_cost(tmp_path: Path, ask: Ask) -> None:
    with open_log(tmp_path) as log:
        take(log, [said(A, 0), said(f"{A}/b", 1), said(f"{A}a", 2)])
        ends = {partition: end for partition, end in log.port.ends().items() if end}
    found = ask("--json")
    assert {each["partition"]: each["offset"] for each in found["epochs"]} == ends
    assert all(each["kind"] == "base" and each["new"] for each in found["epochs"])
    assert sum(each["entities"] for each in found["epochs"]) == 3
    assert found["records"] == sum(each["records"] for each in found["epochs"]) == len(ends)
    with open_log(tmp_path) as log:
        reader = log.port.snapshots
        stored = sum(len(data) for partition in ends for _, data in reader.records(partition, 0, 1 << 40))
        assert found["bytes"] == sum(each["bytes"] for each in found["epochs"]) == stored > 0
        assert {each["root"] for each in found["epochs"]} == {each.root.hex() for each in log.snapshots()}
        take(log, [said(A, 3)])
        partition = log.port.partition_of(A)
    text = ask()
    assert f"{partition}={ends[partition] + 1}" in text
    assert "1 epoch sealed: 1 record, " in text
    assert "1 partition unchanged since the last epoch" in text
    again = ask("--json")
    assert (again["records"], again["bytes"]) == (0, 0)
    assert all(not each["new"] for each in again["epochs"])


def test_every_epoch_is_listed(tmp_path: Path, ask: Ask) -> None:
    old_log(tmp_path)
    found = ask("--list", "--json")
    assert [each["offset"] for each in found] == [2, 4, 6, 8]
    assert {(each["kind"], each["entities"], each["records"], each["pinned_at"]) for each in found} == {
        ("base", 1, 1, None)
    }
    assert found[0]["recorded_at"] == "2023-11-15T00:13:20.000Z"
    assert [each["observations"] for each in found] == [2, 4, 6, 8]
    text = ask("--list")
    assert re.split(r" +", text.splitlines()[0]) == [
        "epoch", "kind", "entities", "records", "bytes", "recorded", "pinned", "root",
    ]  # fmt: skip
    assert len(text.splitlines()) == 5
    assert found[1]["root"][:12] in text


def test_nothing_to_seal_and_nothing_to_list(tmp_path: Path, ask: Ask) -> None:
    open_log(tmp_path).close()
    assert ask() == "nothing is recorded yet, so there is nothing to seal\n"
    assert ask("--list") == "no epochs yet; seal some with `refold snapshot`\n"
    assert ask("--json") == {"epochs": [], "records": 0, "bytes": 0}
    assert ask("--list", "--json") == []
    assert "0 epochs, 0 snapshot records and 0 bytes removed; 0 stay" in ask("--collect")


def test_pinned_epochs_outlive_the_others(tmp_path: Path, ask: Ask) -> None:
    old_log(tmp_path)
    name = [f"{each['partition']}={each['offset']}" for each in ask("--list", "--json")]
    assert ask("--pin", name[1], "--json")[0]["pinned_at"] > "2026"
    assert "1 epoch pinned" in ask("--pin")  # the newest one, which was sealed before
    ask("--collect")
    assert [each["offset"] for each in ask("--list", "--json")] == [4, 8]
    ask("--unpin", name[1], name[3])
    assert {each["pinned_at"] for each in ask("--list", "--json")} == {None}
    ask("--collect")
    assert [each["offset"] for each in ask("--list", "--json")] == [8]


def test_dry_run_names_slower_rebuilds_and_removes_nothing(tmp_path: Path, ask: Ask) -> None:
    old_log(tmp_path)
    (partition,) = {each["partition"] for each in ask("--list", "--json")}
    before = ask("--list")
    text = ask("--collect", "--dry-run")
    assert ask("--list") == before
    assert text.splitlines() == [
        f"partition {partition}: 3 epochs off, 1 stay",
        "  offsets 2 to 7 are rebuilt from the beginning: at most 6 records more to replay",
        "3 epochs, 0 snapshot records and 0 bytes would be removed; 1 stay",
        "3 snapshot records of removed epochs will be removed later",
    ]
    report = ask("--collect", "--dry-run", "--json")
    assert report["dry_run"] is True
    assert report["partitions"][partition] == {
        "partition": partition,
        "kept": 1,
        "removed": [{"offset": offset, "schemas": 1} for offset in (2, 4, 6)],
        "slower": [{"start": 2, "end": 8, "begins_at": 0, "more_records": 6}],
        "records": 0,
        "bytes": 0,
        "waiting": 3,
        "problems": [],
    }
    assert ask("--collect", "--json") == {**report, "dry_run": False}
    assert len(ask("--list").splitlines()) == 2


def test_damaged_manifest_is_named_and_can_be_abandoned(tmp_path: Path, ask: Ask) -> None:
    old_log(tmp_path)
    with open_log(tmp_path) as log:
        epoch = log.snapshots()[1].epoch
        data = log.port.snapshots.manifest_bytes(epoch)
        assert data is not None
        database = log.port.database  # type: ignore[attr-defined]
        write = database.batch()
        write.put("manifests", epoch.key, data[:9] + bytes([data[9] ^ 1]) + data[10:])
        database.write(write, sync=True)
    listed = ask("--list", "--json")
    assert [each["kind"] for each in listed] == ["base", "damaged", "base", "base"]
    assert str(epoch) in listed[1]["problem"]
    assert "damaged" in ask("--list")
    text = ask("--collect", status=1)
    assert f"the manifest of epoch {epoch} cannot be read" in text
    assert "refold snapshot --collect --damaged" in text
    assert len(ask("--list", "--json")) == 4
    assert "4 epochs" not in ask("--collect", "--damaged")
    assert [each["offset"] for each in ask("--list", "--json")] == [8]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--pin", "--list"], "--pin and --list: give one of them at a time"),
        (["--unpin", "--collect"], "--unpin and --collect"),
        (["0=2"], "'0=2': an EPOCH needs --pin or --unpin"),
        (["--list", "0=2"], "'0=2': an EPOCH needs"),
        (["--unpin"], "--unpin: name the epochs"),
        (["--dry-run"], "--dry-run goes with --collect"),
        (["--damaged", "--list"], "--damaged goes with --collect"),
        (["--pin", "0=99"], "'0=99': there is no such epoch; give PARTITION=OFFSET as refold snapshot --list"),
        (["--unpin", "nonsense"], "'nonsense': there is no such epoch"),
    ],
)
def test_impossible_request_is_refused(tmp_path: Path, ask: Ask, arguments: list[str], says: str) -> None:
    old_log(tmp_path)
    assert says in ask(*arguments, status=2)


def test_missing_log_is_not_created(tmp_path: Path, ask: Ask) -> None:
    for arguments in ([], ["--list"], ["--collect"], ["--pin"]):
        assert "there is no log here" in ask(*arguments, status=2)
    assert not (tmp_path / "log").exists()
