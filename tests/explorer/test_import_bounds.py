"""A hostile file uses no more memory than the limits allow: exit status 2, and one line with the option that raises the
limit.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import pytest

import refold
from refold.streams.exchange.archive_form import SCHEMA as ARCHIVE_SCHEMA
from refold.streams.exchange.container import SCHEMA
from refold_tests.command import COMMAND, environment, held, refold_command
from refold_tests.fuzz.containers import varint

pytestmark = pytest.mark.outside

MIB = 1 << 20
# A process with an open log uses 90 MiB. Before there were limits, these files used 6 to 11 GB.
PEAK_MAX_BYTES = 1500 * MIB
LINE: dict[str, Any] = {"entity": "tool_config/a", "observed_at": "2026-01-01T00:00:00Z", "patch": {"rate_limit": 1}}
SYNC = bytes(range(16))


# Starts a command and says how it ended. The kernel counts what a process had before it became another program: a
# command that is started by this one, and not by a worker of pytest with all its memory, is measured by itself.
MEASURING = """
import os, subprocess, sys
process = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
_, status, usage = os.wait4(process.pid, 0)
print(os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024)
"""


def measured(*arguments: object, folder: Path) -> tuple[int, str, int]:
    """Run a command; return its exit status, its standard error, and its peak resident memory in bytes."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", MEASURING, *COMMAND, *map(str, arguments)],
        env=environment(f"file:{folder / 'log'}"), capture_output=True, text=True, check=True,
    )  # fmt: skip
    status, peak = map(int, done.stdout.split())
    return status, done.stderr, peak


def container(schema: object, count: int, data: bytes, codec: str = "null", claimed: int | None = None) -> bytes:
    """Return a container with one block. claimed: the size that the block declares."""
    metadata = {"avro.schema": json.dumps(schema).encode(), "avro.codec": codec.encode()}
    header = b"Obj\x01" + varint(len(metadata))
    for key, value in metadata.items():
        header += varint(len(key)) + key.encode() + varint(len(value)) + value
    size = len(data) if claimed is None else claimed
    return header + varint(0) + SYNC + varint(count) + varint(size) + data + SYNC


def deflated(megabytes: int, window: int = -15, text: bytes = bytes(MIB)) -> bytes:
    """Return a deflate stream of `text`, repeated `megabytes` times. Data after a full flush can simply be repeated."""
    stream = zlib.compressobj(9, zlib.DEFLATED, window)
    head = stream.compress(text) + stream.flush(zlib.Z_FULL_FLUSH)
    again = stream.compress(text) + stream.flush(zlib.Z_FULL_FLUSH)
    return head + again * (megabytes - 1) + stream.flush()


def changed(field: str, kind: object) -> dict[str, Any]:
    """Return the schema of an export in which one field has another type."""
    fields = [{**each, "type": kind} if each["name"] == field else each for each in SCHEMA["fields"]]
    return {**SCHEMA, "fields": fields}


NULLS = changed("causes", {"type": "array", "items": "null"})


def nulls() -> bytes:
    """Return a record whose causes declare 2^33 items of zero bytes each."""
    head = bytes(32) + varint(3) + b"a/b" + varint(0) + varint(0) + varint(0)
    source = b"".join(varint(0) for _ in range(5))
    return container(NULLS, 1, head + source + varint(2**33) + varint(0))


HOSTILE: dict[str, tuple[str, Callable[[], bytes], list[str]]] = {
    "array of null": ("x.avro", nulls, ["x.avro", "other fields"]),
    "deflate block": (
        "x.avro",
        lambda: container(SCHEMA, 1, deflated(4000), "deflate"),
        ["block 1", "--max-block-bytes"],
    ),
    "bzip2 block": (
        "x.avro",
        lambda: container(SCHEMA, 1, bz2.compress(bytes(80 * MIB)), "bzip2"),
        ["block 1", "--max-block-bytes"],
    ),
    "xz block": (
        "x.avro",
        lambda: container(SCHEMA, 1, lzma.compress(bytes(80 * MIB), preset=1), "xz"),
        ["block 1", "--max-block-bytes"],
    ),
    "snappy block": (
        "x.avro",
        lambda: container(SCHEMA, 1, b"\xff\xff\xff\xff\x0f" + bytes(64), "snappy"),
        ["block 1", "--max-block-bytes"],
    ),
    "claimed block": ("x.avro", lambda: container(SCHEMA, 1, b"", claimed=2**40), ["block 1", "--max-block-bytes"]),
    "claimed records": ("x.avro", lambda: container(SCHEMA, 2**50, b""), ["block 1", "more records than it holds"]),
    "claimed text": ("x.avro", lambda: container(SCHEMA, 1, bytes(32) + varint(2**40)), ["x.avro:1", "damaged"]),
    "cleared without end": (
        "x.avro",
        lambda: container(
            SCHEMA, 1,
            bytes(32) + varint(3) + b"a/b" + bytes(3) + bytes(5) + bytes(1) + varint(2) + b"{}" + varint(2 * MIB)
            + bytes(2 * MIB) + varint(0) * 6,
        ),
        ["x.avro:1", "cleared", "--max-items"],
    ),
    "header": (
        "x.avro",
        lambda: b"Obj\x01" + varint(2) + varint(11) + b"avro.schema" + varint(2**40),
        ["header", "--max-block-bytes"],
    ),
    "gzip line": ("x.jsonl.gz", lambda: deflated(4000, 31, b"[" * MIB), ["x.jsonl.gz:1", "--max-line-bytes"]),
    "gzip of blank lines": ("x.jsonl.gz", lambda: gzip.compress(b"\n" * (70 * MIB)), ["x.jsonl.gz", "--max-expansion"]),
    "many values": ("x.jsonl", lambda: b"[" + b"{}," * (12 * MIB) + b"{}]", ["x.jsonl:1", "--max-items"]),
    "many keys": (
        "x.jsonl",
        lambda: b"{" + b",".join(b'"%x":[]' % n for n in range(2_000_000)) + b"}",
        ["x.jsonl:1", "--max-items"],
    ),
    "deep": ("x.jsonl", lambda: b"[" * 100_000 + b"]" * 100_000, ["x.jsonl:1", "nested deeper", "--max-depth"]),
    "archive block": (
        "archive.avro",
        lambda: container(ARCHIVE_SCHEMA, 1, deflated(4000), "deflate"),
        ["block 1", "--max-block-bytes"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_file_is_refused_within_its_memory(case: str, tmp_path: Path) -> None:
    name, made, words = HOSTILE[case]
    (tmp_path / name).write_bytes(made())
    more = ["--format", "archive"] if name == "archive.avro" else []
    status, said, peak = measured("import", tmp_path / name, *more, folder=tmp_path)
    assert status == 2, said
    assert said.count("\n") == 1, said
    assert all(word in said for word in words), said
    assert peak < PEAK_MAX_BYTES, f"{peak / MIB:.0f} MiB"
    assert not (tmp_path / "log" / "FORMAT").exists()


def test_values_inside_texts_are_not_counted(tmp_path: Path) -> None:
    line = {**LINE, "patch": {"tool": "a,[{" * 1000}}
    (tmp_path / "x.jsonl").write_text(json.dumps(line))
    done = refold_command("import", tmp_path / "x.jsonl", "--max-items", 8, log=f"file:{tmp_path / 'log'}")
    assert done.status == 0, done.err


def test_each_bound_is_raised_by_its_option(tmp_path: Path) -> None:
    log = f"file:{tmp_path / 'log'}"
    deep: Any = 1
    for _ in range(20):
        deep = [deep]
    line = json.dumps({**LINE, "patch": {"settings": {"deep": deep, "text": "x" * 1000}}})
    (tmp_path / "x.jsonl").write_text(line)
    with refold.open(log) as opened:
        opened.observe("tool_config/b", {"rate_limit": 1}, source="a")
    refold_command("export", tmp_path / "x.avro", log=log)
    for name, option, small, large in (
        ("x.jsonl", "--max-line-bytes", 1000, 10_000),
        ("x.jsonl", "--max-depth", 20, 30),
        ("x.jsonl", "--max-items", 20, 30),
        ("x.avro", "--max-block-bytes", 1000, 10_000),
    ):
        before = held(tmp_path / "log")
        assert option in refold_command("import", tmp_path / name, option, small, log=log).refused()
        assert held(tmp_path / "log") == before
        assert refold_command("import", tmp_path / name, option, large, log=log).status == 0


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz", "snappy"])
def test_container_is_read_in_every_codec(codec: str, tmp_path: Path) -> None:
    with refold.open(f"file:{tmp_path / 'one'}") as log:
        for number in range(100):
            log.observe(f"tool_config/{number}", {"rate_limit": number}, source="a")
    refold_command("export", tmp_path / "x.avro", log=f"file:{tmp_path / 'one'}")
    if codec == "snappy":
        pytest.importorskip("cramjam")
    with (tmp_path / "x.avro").open("rb") as file:
        reader: Any = fastavro.reader(file)
        written = io.BytesIO()
        fastavro.writer(written, reader.writer_schema, list(reader), codec=codec, sync_interval=2000)
    (tmp_path / "y.avro").write_bytes(written.getvalue())
    done = refold_command("import", tmp_path / "y.avro", "--json", log=f"file:{tmp_path / 'other'}")
    assert done.json["new"] == 100


FORMS: dict[str, tuple[str, object]] = {
    "id of text": ("id", "string"),
    "id of another size": ("id", {"type": "fixed", "name": "refold.Id", "size": 16}),
    "entity of bytes": ("entity", "bytes"),
    "kind of text": ("kind", "string"),
    "observed_at of millis": ("observed_at", {"type": "long", "logicalType": "timestamp-millis"}),
    "observed_at of text": ("observed_at", "string"),
    "observed_at of double": ("observed_at", "double"),
    "priority of null": ("priority", "null"),
    "source of text": ("source", "string"),
    "causes of null": ("causes", {"type": "array", "items": "null"}),
    "causes of text": ("causes", "string"),
    "patch of a map": ("patch", {"type": "map", "values": "string"}),
    "patch of null": ("patch", "null"),
    "cleared of long": ("cleared", {"type": "array", "items": "long"}),
    "link of text": ("link", "string"),
    "subject of long": ("subject", "long"),
    "origin of text": ("origin", "string"),
    "blobs of a list": ("blobs", {"type": "array", "items": "bytes"}),
    "blobs of text": ("blobs", {"type": "map", "values": "string"}),
    "no such type": ("blobs", "nope"),
    "a number": ("blobs", 5),
}


@pytest.mark.parametrize("form", FORMS)
def test_container_with_our_name_and_other_fields_is_refused(form: str, tmp_path: Path) -> None:
    schema = changed(*FORMS[form])
    (tmp_path / "x.avro").write_bytes(container(schema, 1, struct.pack("<q", 0) * 20))
    said = refold_command("import", tmp_path / "x.avro", log=f"file:{tmp_path / 'log'}").refused()
    assert "x.avro" in said
    assert ("other fields" in said) == (form != "observed_at of millis")  # a logical type changes no bytes


def logical(tree: Any, of: dict[str, str]) -> Any:
    """Return a schema in which all primitive types have logical types."""
    if isinstance(tree, str) and tree in of:
        return {"type": tree, "logicalType": of[tree]}
    if isinstance(tree, list):
        return [logical(each, of) for each in tree]
    if isinstance(tree, dict) and isinstance(tree.get("type"), str) and tree["type"] in of:
        return {**tree, "logicalType": of[tree["type"]]}
    if isinstance(tree, dict):
        return {key: each if key == "name" else logical(each, of) for key, each in tree.items()}
    return tree


@pytest.mark.parametrize("form", ["observations", "archive"])
def test_logical_types_of_a_containers_schema_change_nothing(form: str, tmp_path: Path) -> None:
    log = f"file:{tmp_path / 'one'}"
    with refold.open(log) as opened:
        opened.observe("tool_config/a", {"rate_limit": 1}, source="a")
    refold_command("export", tmp_path / "x.avro", *(["--archive"] if form == "archive" else []), log=log)
    data = (tmp_path / "x.avro").read_bytes()
    with (tmp_path / "x.avro").open("rb") as file:
        plain: Any = fastavro.reader(file)
        schema = json.loads(plain.metadata["avro.schema"])
    other = logical(schema, {"long": "timestamp-millis", "int": "date", "string": "uuid", "bytes": "decimal"})
    before, after = plain.metadata["avro.schema"].encode(), json.dumps(other).encode()
    at = data.index(before)
    (tmp_path / "y.avro").write_bytes(
        data[: at - len(varint(len(before)))] + varint(len(after)) + after + data[at + len(before) :]
    )
    done = refold_command("import", tmp_path / "y.avro", "--format", form, log=f"file:{tmp_path / 'other'}")
    assert done.status == 0, done.err
    root = [
        refold_command("rebuild", "--json", log=f"file:{tmp_path / name}").json["root"] for name in ("one", "other")
    ]
    assert root[0] == root[1]
