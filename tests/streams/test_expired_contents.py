"""Expired contents stay marked as expired: in exports, in archives, and in logs created from these."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import refold
from refold.avro.blob import Blob
from refold.avro.errors import InputError, NotAnswerable
from refold.explorer.cli.main import run

LARGE = {"kept": "k" * 300_000, "gone": "g" * 300_000}


@pytest.fixture
def origin(tmp_path: Path) -> tuple[str, dict[str, Blob], str]:
    """A log with an expired content: its URL, its blobs, its root."""
    url = f"file:{tmp_path}/origin"
    with refold.open(url) as log:
        for name, text in LARGE.items():
            log.observe(f"document/{name}", {"fields": {"text": text}})
        log.flush()
        blobs = {name: log.state(f"document/{name}").fields["fields"]["text"] for name in LARGE}
        log.port.blobs.remove([blobs["gone"].hash], time.time_ns() // 1_000_000 + 60_000)
        return url, blobs, log.rebuild().root


@pytest.mark.parametrize("form", ["x.jsonl", "x.avro", "x.jsonl.gz", "x.archive"])
def test_expired_content_is_distinguished_from_a_missing_one(
    form: str, origin: tuple[str, dict[str, Blob], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url, blobs, root = origin
    made = f"file:{tmp_path}/made"
    archive = ["--archive"] if form == "x.archive" else []
    assert run(["export", f"{tmp_path}/{form}", *archive, "--log", url]) == 0, capsys.readouterr().err
    more = ["--format", "archive"] if archive else []
    assert run(["import", f"{tmp_path}/{form}", *more, "--log", made]) == 0, capsys.readouterr().err
    with refold.open(made, read_only=True) as log:
        assert log.rebuild().root == root
        assert log.blob(blobs["kept"])
        with pytest.raises(NotAnswerable, match="the content has expired"):
            log.blob(blobs["gone"])
        with pytest.raises(InputError, match="no such content"):
            log.blob("00" * 32)
        assert log.verify().ok
    [path] = (tmp_path / "made" / "blobs").glob("??/*")
    path.unlink()
    with refold.open(made, read_only=True) as log:
        assert [(each.place, each.problem) for each in log.verify().mismatches] == [
            (f"blobs {blobs['kept'].hash.hex()}", "missing")
        ]
    assert run(["export", f"{tmp_path}/again-{form}", *archive, "--log", made]) == 2
    assert "is not in the store" in capsys.readouterr().err


def test_expired_content_is_restored_by_importing_it(origin: tuple[str, dict[str, Blob], str], tmp_path: Path) -> None:
    url, blobs, _ = origin
    with refold.open(url) as log:
        log.observe("document/other", {"fields": {"text": LARGE["gone"]}})
        log.flush()
        assert log.blob(blobs["gone"])
        assert log.verify().ok
