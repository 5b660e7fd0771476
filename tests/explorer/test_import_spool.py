"""The spool of an import, and an import whose spool is given up."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

import refold
from refold.agents.importers.model import Importer
from refold.agents.importers.registry import importer_of
from refold.avro.shipped import shipped_types
from refold.explorer.cli.record.import_ import MixedFiles
from refold.streams.exchange.files import ExchangeFile
from refold.streams.exchange.import_types import TypeCatalog
from refold.streams.exchange.intake import Intake
from refold.streams.exchange.spool import BATCH, BYTES_MAX, ObservationSpool
from refold.streams.writer_types import EncodedObservation
from refold_tests.sample_types import THING

SIZE = 100
"""The size of an observation's data, in bytes."""


def encoded(number: int) -> EncodedObservation:
    definition = THING if number % 3 else shipped_types()["tool_config"]
    blobs = {bytes([number % 256]) * 32: b"content"} if number % 5 == 0 else {}
    data = number.to_bytes(SIZE, "big")
    return EncodedObservation(f"{definition.name}/{number}", number.to_bytes(32, "big"), definition, data, blobs)


def filled(spool: ObservationSpool, count: int) -> list[EncodedObservation]:
    every = [encoded(number) for number in range(count)]
    for each in every:
        spool.put(each)
    return every


def listed(batches: Iterable[list[EncodedObservation]]) -> list[EncodedObservation]:
    return [each for batch in batches for each in batch]


@pytest.mark.parametrize("count", [0, 1, BATCH, 2 * BATCH + 7])
def test_observations_are_read_in_order(count: int) -> None:
    spool = ObservationSpool()
    every = filled(spool, count)
    assert spool.is_whole
    assert spool.count == count
    assert listed(spool.batches()) == every
    assert listed(spool.batches()) == every


def test_spool_is_given_up_at_its_limit() -> None:
    """The batch that would exceed the limit is not written, and the count goes on."""
    spool = ObservationSpool(BATCH * SIZE * 2)
    filled(spool, BATCH)
    assert spool.is_whole
    filled(spool, BATCH)
    assert not spool.is_whole
    filled(spool, 5)
    assert spool.count == 2 * BATCH + 5


WITHOUT_SPACE = """
import resource
from test_import_spool import BATCH, SIZE, ObservationSpool, filled
for bytes_free in (0, BATCH * SIZE // 2, BATCH * SIZE * 2):
    spool = ObservationSpool()
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_free, resource.RLIM_INFINITY))
    filled(spool, 2 * BATCH)
    print(bytes_free, spool.is_whole, spool.count)
"""


def test_spool_is_given_up_without_space() -> None:
    """The first write fails, or is short, or the second is short. Only the child process has the limit."""
    path = [str(Path(__file__).parent), *sys.path]
    ended = subprocess.run(
        [sys.executable, "-c", f"import sys\nsys.path[:0] = {path!r}\n{WITHOUT_SPACE}"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.stderr == ""
    expected = [f"{free} False {2 * BATCH}" for free in (0, BATCH * SIZE // 2, BATCH * SIZE * 2)]
    assert ended.stdout.splitlines() == expected


def imported(url: str, path: Path, importer: Importer | None, spool_bytes_max: int) -> tuple[str, int, int]:
    """Import a file; return the log's root, and how many observations were checked and recorded."""
    with refold.open(url) as log:
        files = MixedFiles(
            [ExchangeFile(path)], [importer], TypeCatalog(log.port.registry, {}, shipped_types()), {}, spool_bytes_max
        )
        checked = files.check(lambda digest: log.port.blobs.get(digest) is not None)
        intake = Intake(log)
        files.record(log, intake)
        assert intake.read == intake.durable == checked
        return log.rebuild().root, checked, intake.new


def observed_lines() -> list[dict[str, object]]:
    source = {"agent": "a", "run": "r", "step": "", "tool": ""}
    return [
        {"kind": "assert", "entity": f"tool_config/{number % 7}", "observed_at": 1_700_000_000_000_000 + number,
         "source": {**source, "seq": number}, "patch": {"rate_limit": number}}
        for number in range(BATCH + 50)
    ]  # fmt: skip


def test_import_reads_the_files_again_without_a_spool(tmp_path: Path) -> None:
    path = tmp_path / "observations.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in observed_lines()))
    spooled = imported(f"file:{tmp_path / 'spooled'}", path, None, BYTES_MAX)
    again = imported(f"file:{tmp_path / 'again'}", path, None, 1)
    assert again == spooled
    assert spooled[1:] == (BATCH + 50, BATCH + 50)


def test_conversations_are_read_again_without_a_spool(tmp_path: Path) -> None:
    messages = [{"role": role, "content": str(number)} for number in range(60) for role in ("user", "assistant")]
    path = tmp_path / "chats.jsonl"
    path.write_text("".join(json.dumps({"messages": messages, "id": f"chat-{number}"}) + "\n" for number in range(6)))
    chat = importer_of("chat")
    spooled = imported(f"file:{tmp_path / 'spooled'}", path, chat, BYTES_MAX)
    again = imported(f"file:{tmp_path / 'again'}", path, chat, 1)
    assert again == spooled
    assert spooled[1] > BATCH
