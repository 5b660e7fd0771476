"""A worker reports the true cause of its end: a removed folder, a full disk, a table that cannot be closed, a
library that aborts the process."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import time
from functools import partial
from pathlib import Path
from urllib.error import URLError

import pytest

import refold
from refold.avro.errors import StorageError
from refold.streams.log.kafka.log import KafkaLog
from refold.streams.rocks.database import Database
from refold.streams.runtime import close_all
from refold.streams.worker.partition_table import PartitionTable
from refold_tests.brokers import SharedKafka
from refold_tests.devices import fill, small_device
from refold_tests.folding import REFUSED, await_folded, check_changes, history, running, url_of
from refold_tests.load import Feeding
from refold_tests.tree import ROOT
from refold_tests.waiting import await_true
from refold_tests.worker_process import Worker, page, starting

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

ENTITIES = [f"document/d{number}" for number in range(12)]
SEEN_S = 300.0


@pytest.fixture
def url(kafka: SharedKafka, prefix: str) -> str:
    return url_of(kafka.bootstrap, prefix)


def observe(url: str, number: int) -> None:
    with refold.open(url) as log:
        for entity in ENTITIES:
            log.observe(entity, {"fields": {"a": number}}, source="one")


def folded(worker: Worker) -> int:
    return sum(each["offset"] for each in worker.folding.values())


@pytest.mark.parametrize(("of", "is_fed"), [("", True), ("0", False)])
def test_removed_folder_ends_the_worker_and_the_next_remakes_it(
    url: str, tmp_path: Path, of: str, is_fed: bool
) -> None:
    observe(url, 1)
    with starting(url, tmp_path) as start:
        worker = start("one")
        await_true(lambda: worker.is_ready)
        shutil.rmtree(tmp_path / "one" / of)
        if is_fed:
            observe(url, 2)
        status, said = worker.ended()
        assert status == REFUSED, said
        assert f"{tmp_path / 'one' / of}: this folder was removed while the worker ran; start the worker again" in said
        assert len(said.splitlines()) == 1, said
        again = start("one")
        expected = len(ENTITIES) * (1 + is_fed)
        await_true(lambda: again.is_ready and folded(again) == expected)
        assert again.stop() == (0, "")


def documented(folder: Path) -> re.Pattern[str]:
    """The last line of a worker on a full disk, as in docs/OPERATIONS.md, for a partition of this folder."""
    pages = (ROOT / "docs" / "OPERATIONS.md").read_text()
    (line,) = re.findall(r"`(refold: /var/lib/refold/3: no space left [^`]*)`", " ".join(pages.split()))
    pattern = re.escape(line).replace(re.escape("/var/lib/refold/3"), rf"{re.escape(str(folder))}/\d+")
    return re.compile(pattern.replace(re.escape("..."), ".*"))


def test_full_disk_is_shown_before_it_ends_the_worker_as_documented(url: str, tmp_path: Path) -> None:
    observe(url, 1)
    with small_device(tmp_path / "one") as small, starting(url, tmp_path) as start:
        worker = start("one")
        await_true(lambda: worker.is_ready)
        filler = fill(small)

        def says(status: int) -> bool:
            found = [worker.get(each) for each in ("/ready", "/health")]
            return all(code == status and (status == 200 or f"{small}: no space left" in said["why"])
                       for code, said in found)  # fmt: skip

        await_true(lambda: says(503), within_s=SEEN_S)
        filler.unlink()
        await_true(lambda: says(200), within_s=SEEN_S)
        filler = fill(small)
        for number in range(2, 100):
            observe(url, number)
            if worker.process.poll() is not None:
                break
        status, said = worker.ended()
        assert status == REFUSED, said
        assert documented(small).fullmatch(said.strip()), said
        filler.unlink()
        again = start("one")
        await_true(lambda: again.is_ready)
        assert again.stop() == (0, "")


def test_aborting_process_is_named_and_the_next_start_continues(log: KafkaLog, tmp_path: Path, seed: int) -> None:
    """SIGABRT in the middle of transactions, as from an assertion of Kafka's client."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    feeding = Feeding(log.url, history(rng, 150), rng)
    with starting(log.url, tmp_path) as start:
        try:
            both = start("both", "--processes", 2, "--instance", "w")
            urls = [both.url, both.line().rpartition("pages on ")[2]]
            await_true(lambda: all(page(f"{url}/status")[1]["partitions"] for url in urls))
            feeding.await_more()
            time.sleep(rng.random())  # whenever it is
            parent = both.process.pid
            children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
            assert len(children) == 2
            os.kill(int(rng.choice(children)), signal.SIGABRT)
            status, said = both.ended()
            (ended,) = both.events("worker_ended")
            assert 'how="was killed by SIGABRT"' in ended
            assert status == 128 + signal.SIGABRT
            assert "Fatal Python error: Aborted" in said
            assert "most recent call first" in said
            for url in urls:
                with pytest.raises(URLError):
                    page(f"{url}/metrics")
            again = start("both", "--processes", 2, "--instance", "w")
            feeding.await_more()
        finally:
            feeding.stop()
        acknowledged = feeding.finish()
        await_folded(log)
        assert again.line().rpartition("pages on ")[2]
        assert again.stop() == (0, "")
    check_changes(log, acknowledged)


def test_everything_is_closed_despite_failures_and_the_first_is_raised(
    log: KafkaLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Path] = []

    class Unclosable(StorageError):
        pass

    def close(table: PartitionTable, really: object = PartitionTable.close) -> None:
        tried.append(table.database.path)
        if len(tried) == 1:
            raise Unclosable("the first one")
        assert callable(really)
        really(table)

    with running(log.url, tmp_path) as found:
        await_true(lambda: len(found.service.status()) == log.partitions
                   and all(each["state"] == "folding" for each in found.service.status().values()))  # fmt: skip
        monkeypatch.setattr(PartitionTable, "close", close)
        with pytest.raises(Unclosable, match="the first one"):
            found.drain()
    assert len(tried) == log.partitions > 1
    for path in tried[1:]:
        Database.open(path, kind="table").close()  # LockedError if it was not closed


def test_close_all_makes_every_call_and_raises_the_first_failure() -> None:
    made: list[int] = []

    def call(number: int) -> None:
        made.append(number)
        if number in (1, 2):
            raise StorageError(f"{number}")

    with pytest.raises(StorageError, match=r"^1$"):
        close_all(partial(call, number) for number in range(4))
    assert made == [0, 1, 2, 3]
