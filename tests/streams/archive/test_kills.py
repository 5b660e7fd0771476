"""An import killed at any moment leaves no log, or the complete one."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from refold.avro.errors import InputError
from refold.streams.rocks.layout import is_log
from refold_tests.archives import LATER, TYPES, archived, contents_of
from refold_tests.child import Child
from refold_tests.histories import Regime, random_history
from refold_tests.opening import open_log, take

# One archive serves all tests of this file, so xdist gives them to one worker.
pytestmark = pytest.mark.xdist_group("archive-kills")

RECORDS = 500
IMPORTER = """
import sys
from pathlib import Path
from refold.streams.exchange.archive_import import Archive
from refold.streams.exchange.files import ExchangeFile
print("ready", flush=True)
archive = Archive(ExchangeFile(Path(sys.argv[1])))
print("checked", flush=True)
archive.restore(Path(sys.argv[2]), b"a fork's own id." if sys.argv[3] == "fork" else None, batch_records=20)
print("done", flush=True)
"""


class Archived(NamedTuple):
    """What was archived, and the file."""

    file: Path
    ends: Mapping[int, int]
    root: str
    contents: dict[str, bytes]


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory, seed: int) -> Archived:
    """A log of a few hundred records, many batches of the importer, and of contents that stand beside them."""
    path = tmp_path_factory.mktemp("archived")
    calm = Regime(4, 4, 0.9, 0.02, 0.05, 3, 0.1, 0.02, 0.02, 0.1, 0.1, 0.05)
    with open_log(path, types=TYPES) as log:
        take(log, random_history(seed, RECORDS, calm))
        log.mark("end")
        log.register(LATER[1])
        for number in range(5):
            log.observe("document/d", {"fields": {"text": str(number) * 300_000}}, source="documents")
        file = archived(log, path / "x.avro")
        return Archived(file, log.port.ends(), log.rebuild().root, contents_of(path))


@pytest.mark.faults
@pytest.mark.parametrize("form", ["archive", "fork"])
def test_import_killed_at_any_moment_leaves_no_log_or_the_whole(
    archive: Archived, tmp_path: Path, child: Callable[..., Child], seed: int, fault_rounds: int, form: str
) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    file, path = archive.file, tmp_path / "copied" / "log"

    def assert_whole() -> None:
        with open_log(path.parent, read_only=True, types=TYPES) as copy:
            assert (copy.port.archived_at is None) == (form == "fork")
            assert (copy.port.ends(), copy.rebuild().root) == (archive.ends, archive.root)
            assert copy.point("@end").cut.log_id == copy.port.log_id
            assert copy.verify().mismatches == []
            assert contents_of(path.parent) == archive.contents

    path.parent.mkdir()
    begun = child(IMPORTER, file, path, form)
    assert begun.line() == "ready"
    started = time.monotonic()
    assert [begun.line(), begun.line()] == ["checked", "done"]
    takes_s = time.monotonic() - started
    assert_whole()
    shutil.rmtree(path)
    cut_short = 0
    for _ in range(fault_rounds):
        importer = child(IMPORTER, file, path, form)
        assert importer.line() == "ready"
        time.sleep(rng.uniform(0, takes_s * 1.05))
        importer.kill()
        if is_log(path):
            assert_whole()
            shutil.rmtree(path)
        elif path.exists():
            cut_short += 1
            with pytest.raises(InputError, match="there is no log here"):
                open_log(path.parent, read_only=True)
    importer = child(IMPORTER, file, path, form)
    assert [importer.line() for _ in range(3)] == ["ready", "checked", "done"]
    assert importer.end() == 0
    assert_whole()
    assert cut_short or fault_rounds < 20
