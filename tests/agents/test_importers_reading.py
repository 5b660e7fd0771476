"""Unusable files are refused with file and line, whatever is wrong with them; usable ones yield every line."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from refold.agents.importers.json_lines import json_lines
from refold.avro.errors import InputError
from refold.streams.exchange.limits import FileLimits


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_gzip_is_detected_by_its_bytes(tmp_path: Path) -> None:
    path = written(tmp_path / "runs.jsonl", gzip.compress(b'{"a": 1}\n\n[2.0]'))
    assert [(line.place, line.value) for line in json_lines(path)] == [
        (f"{path}:1", {"a": 1}),
        (f"{path}:3", [2]),
    ]


def test_byte_order_mark_and_any_line_ends_are_skipped(tmp_path: Path) -> None:
    path = written(tmp_path / "runs.jsonl", b"\xef\xbb\xbf1\r\n2\r\n")
    assert [line.value for line in json_lines(path)] == [1, 2]


@pytest.mark.parametrize("zipped", [False, True])
def test_progress_ends_at_the_size_of_the_file(tmp_path: Path, zipped: bool) -> None:
    data = b'"line"\n' * 100
    path = written(tmp_path / "runs.jsonl", gzip.compress(data) if zipped else data)
    seen: list[tuple[int, int]] = []
    assert len(list(json_lines(path, lambda done, size: seen.append((done, size))))) == 100
    size = path.stat().st_size
    assert seen == sorted(seen)
    assert seen[-1] == (size, size)


@pytest.mark.parametrize(
    ("data", "line", "says"),
    [
        (b"1\n{\n", 2, "each line holds one whole JSON value"),
        (b"1\n{'a': 1}\n", 2, "is not JSON"),
        (b"1\n\xff\xfe\n", 2, "is not UTF-8"),
        (b"1\nNaN\n", 2, "NaN is not a JSON number"),
        (b"1\n1e999\n", 2, "NaN and infinity"),
        (b'1\n"\\ud800"\n', 2, "surrogate"),
        (b"1\n" + b"[" * 100_000 + b"]" * 100_000, 2, "deep"),
        (b"1\n" + b"[" * 70 + b"]" * 70, 2, "deeper"),
        (b"1\n" + b"9" * 5_000, 2, "is not JSON"),
    ],
)
def test_bad_line_is_named_after_the_good_ones(tmp_path: Path, data: bytes, line: int, says: str) -> None:
    path = written(tmp_path / "runs.jsonl", data)
    lines = json_lines(path)
    assert next(lines).value == 1
    with pytest.raises(InputError, match=says) as caught:
        list(lines)
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert "\n" not in str(caught.value)


def test_truncated_gzip_file_is_named(tmp_path: Path) -> None:
    whole = gzip.compress(b"".join(b'"%d"\n' % number for number in range(100_000)))
    path = written(tmp_path / "runs.jsonl.gz", whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"runs\.jsonl\.gz:\d+: the gzip stream ends early") as caught:
        list(json_lines(path))
    assert ":1:" not in str(caught.value)


def test_damaged_gzip_file_is_named(tmp_path: Path) -> None:
    whole = bytearray(gzip.compress(b'"text"\n' * 1_000))
    whole[-6] ^= 0xFF
    with pytest.raises(InputError, match=r"the gzip stream is damaged"):
        list(json_lines(written(tmp_path / "runs.gz", bytes(whole))))


def test_gz_suffix_on_plain_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"named \.gz but is not gzip"):
        list(json_lines(written(tmp_path / "runs.jsonl.gz", b"1\n")))


@pytest.mark.parametrize("data", [b"", b"\n \n", gzip.compress(b"", mtime=0)])
def test_empty_file_is_named(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(InputError, match="holds no lines"):
        list(json_lines(written(tmp_path / "runs.jsonl", data)))


def test_unreadable_file_is_named(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(InputError, match=f"{path}: cannot be read"):
            list(json_lines(path))


def test_unterminated_line_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r":1: the line is longer than 10 bytes.*--max-line-bytes"):
        list(json_lines(written(tmp_path / "runs.jsonl", b'"' + b"x" * 20), limits=FileLimits(line_bytes=10)))
