"""A small log, and valid files of every format made from it, as a basis for cases."""

from __future__ import annotations

import gzip
import json
import os
import runpy
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import refold
from refold.avro.shipped import FOLDER
from refold_tests.command import refold_command
from refold_tests.fuzz.containers import Container, parsed
from refold_tests.tree import ROOT

GOLDEN = ROOT / "docs" / "examples" / "golden"
CHATS: list[Any] = [
    {
        "id": "c1", "model": "m", "created": 1760000000, "metadata": {"deep": {"a": [1, {"b": 2}]}},
        "messages": [
            {"role": "user", "content": "pay me back", "timestamp": "2026-01-01T00:00:00Z"},
            {"role": "assistant", "content": None, "tool_calls": [
                {"id": "t1", "type": "function", "function": {"name": "get_order", "arguments": '{"order_id": "7"}'}},
                {"id": "t2", "type": "function", "function": {"name": "refund", "arguments": "{}"}},
            ]},
            {"role": "tool", "tool_call_id": "t1", "content": '{"order_id": "7", "state": "paid", "items": [1, 2]}'},
            {"role": "tool", "tool_call_id": "t2", "content": [{"type": "text", "text": "done"}]},
            {"role": "assistant", "content": "done", "reasoning": "why not"},
        ],
    },
    [{"role": "user", "content": "hello"}, {"role": "assistant", "content": [{"type": "text", "text": "hi"}]}],
]  # fmt: skip
CONTENT = b"y" * 300_000
"""The content of document/9, which is too large for a record."""
TAU: list[Any] = [
    {
        "task_id": 3, "reward": 1.0, "trial": 0, "traj": CHATS[0]["messages"],
        "info": {"task": {"user_id": "mia", "instruction": "buy", "actions": [{"name": "x"}], "outputs": ["5"]}},
    }
]  # fmt: skip
DESK = """
import refold


@refold.tool
def look(order, to=None):
    return {"order": order, "state": "paid"}


def answer(run):
    with run.step("one"):
        run.state["seen"] = [1, {"a": 2}]
        run.decide("pay", why="asked")
    with run.step("two"):
        look(order="7", to={"lines": [{"a": [1]}]})
        run.observe("document/8", {"fields": {"n": 1}})
    return "done"
"""
"""An agent, as a file that commands can name."""
WHENS = ("now", "@deploy", "offset:0=1,1=2", "v1", "v2", "run:r-1#1", "2026-01-01T00:00:00Z", "2031-01-01T00:00:00Z")


@dataclass(frozen=True, slots=True)
class World:
    """The basis of cases.

    folder: where they run, together with the golden example's agents. records: entity, id and bytes of the log's
    observations. changes: the bytes of its changes. log_files: the log's files, relative to its folder. search_index:
    the file of an index of its runs. sessions: real runs and their format, if REFOLD_SHARED_DATA names the folder with
    them.
    """

    folder: Path
    lines: tuple[Any, ...]
    export: Container
    archive: Container
    golden: dict[str, Any]
    types: tuple[Any, ...]
    whens: tuple[str, ...]
    ids: tuple[str, ...]
    records: tuple[tuple[str, bytes, bytes], ...]
    changes: tuple[bytes, ...]
    log_files: tuple[str, ...]
    search_index: bytes
    sessions: tuple[tuple[str, Any], ...]

    @property
    def log(self) -> Path:
        """Return the log that cases use."""
        return self.folder / "log"

    def renewed(self) -> None:
        """Restore the log as it was created."""
        shutil.rmtree(self.log, ignore_errors=True)
        shutil.copytree(self.folder / "kept", self.log)


def made(folder: Path) -> World:
    """Create a world in an empty folder."""
    folder.mkdir(parents=True, exist_ok=True)
    stored = folder / "kept"
    kept = f"file:{stored}"
    at = "2026-01-01T00:00:00Z"
    with refold.open(f"{kept}?partitions=2") as log:
        for number in range(3):
            log.observe(
                "tool_config/acme", {"rate_limit": number, "settings": {"a": [number]}}, source="a", observed_at=at
            )
        first = log.observe("document/7", {"fields": {"text": "x", "n": 1}}, source="shop", observed_at=at)
        log.observe("document/7", {"fields": {"n": 2}}, causes=[first], source="shop", observed_at=at)
        log.link("tool_config/acme", "of", "document/7", source="a", observed_at=at)
        log.retract("document/7", first, source="a", observed_at=at)
        (folder / "desk.py").write_text(DESK)
        run = log.run("desk", id="r-1", input={"order": "7"}, seed=7)
        run.drive(runpy.run_path(str(folder / "desk.py"))["answer"])
        log.flush()
        log.mark("deploy")
        log.observe("document/9", {"fields": {"text": CONTENT.decode()}}, source="a", observed_at=at)
        cut = str(log.point().cut)
        port = log.port
        records = tuple(
            (each.entity, each.id, each.data) for part, end in port.ends().items() for each in port.read(part, 0, end)
        )
        changes = tuple(each.data for part in port.ends() for each in port.read_changes(part, 0))
    for name, more in (("x.jsonl", ()), ("x.avro", ()), ("archive.avro", ("--archive",))):
        done = refold_command("export", folder / name, *more, log=kept)
        assert done.status == 0, done.err
    done = refold_command("run", "search", "--index", folder / "search.db", "order", log=kept)
    assert done.status == 0, done.err
    for each in GOLDEN.glob("*agent.py"):
        shutil.copy(each, folder)
    shutil.copy(GOLDEN / "shop.py", folder)
    lines = tuple(json.loads(line) for line in (folder / "x.jsonl").read_text().splitlines())
    world = World(
        folder, lines, parsed((folder / "x.avro").read_bytes()), parsed((folder / "archive.avro").read_bytes()),
        json.loads((GOLDEN / "paid-four-times.golden.json").read_text()),
        tuple(json.loads(each.read_text()) for each in sorted(FOLDER.glob("*.avsc"))), (*WHENS, cut, cut),
        tuple(line["id"] for line in lines if "id" in line), records, changes,
        tuple(sorted(str(each.relative_to(stored)) for each in stored.rglob("*") if each.is_file())),
        (folder / "search.db").read_bytes(), tuple(_sessions()),
    )  # fmt: skip
    world.renewed()
    return world


def _sessions() -> Iterator[tuple[str, Any]]:
    shared = Path(os.environ.get("REFOLD_SHARED_DATA", "absent"))
    for file in sorted((shared / "sessions").glob("*.traj.gz")):
        yield "chat", json.loads(gzip.decompress(file.read_bytes()))["history"][:12]
    runs = shared / "tau_bench_airline_gpt4o.jsonl.gz"
    if runs.exists():
        with gzip.open(runs) as lines:
            yield from (("tau-bench", json.loads(line)) for line in islice(lines, 3))
