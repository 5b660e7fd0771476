"""The fuzzer as a command: `make fuzz ARGS="--seconds 3600"`, or one case again with --seed and --case, or --again."""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from refold_tests.fuzz.case import Case
from refold_tests.fuzz.driver import Driver, Failure
from refold_tests.fuzz.entrances import ENTRANCES
from refold_tests.fuzz.world import made
from refold_tests.reducers import REDUCERS

IN_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""A file system on which a log's fsync is free."""
SLICE_S = 2.0
"""How long one entry point is fuzzed before the next one's turn, so that slow ones do not starve the others."""


def main() -> int:
    """Run cases until the time is over; return 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--entrance", action="append", choices=list(ENTRANCES), help="only this one; may be repeated")
    parser.add_argument("--case", help="one case, ENTRANCE/NUMBER")
    parser.add_argument("--again", type=Path, help="a case that was kept in a folder")
    parser.add_argument("--failures", type=Path, help="where failing cases are kept, made smaller [a new folder]")
    parser.add_argument("--kafka", action="store_true", help="instead: a log on a broker of its own, and a worker")
    parser.add_argument("--keep", type=Path, help="the folder to work in, kept afterwards")
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="refold-fuzz-", dir=IN_MEMORY) as folder:
        world = made(given.keep or Path(folder))
        if given.kafka:
            os.environ["REFOLD_REDUCERS"] = REDUCERS
            from refold_tests.fuzz.kafka import run_rounds

            return run_rounds(given.seed, world, given.seconds)
        with Driver(world, given.seed) as driver:
            if given.case or given.again:
                entrance, _, number = (given.case or "").partition("/")
                failure = (
                    driver.run_case(given.again.name, kept(given.again)) if given.again
                    else driver.run(entrance, int(number))
                )  # fmt: skip
                print(failure or "no failure")
                return int(failure is not None)
            return campaign(driver, given.entrance or list(ENTRANCES), given.seconds, given.failures)


def campaign(driver: Driver, entrances: list[str], seconds: float, failures: Path | None) -> int:
    """Fuzz each entry point in turns; return 1 if a case failed. Each kind of failure is made smaller and stored
    once.
    """
    end = time.monotonic() + seconds
    ran: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    while time.monotonic() < end:
        for entrance in entrances:
            turn = min(end, time.monotonic() + SLICE_S)
            while time.monotonic() < turn:
                failure = driver.run(entrance, ran[entrance])
                ran[entrance] += 1
                if failure is not None:
                    failed[failure.kind] += 1
                    if failed[failure.kind] == 1:
                        failures = failures or Path(tempfile.mkdtemp(prefix="refold-fuzz-failures-"))
                        print(failure, flush=True)
                        print(f"  smaller: {keep(driver.smaller(failure), failures, failure)}", flush=True)
    for entrance in entrances:
        print(f"  {ran[entrance]:9,} {entrance}")
    print(f"{ran.total():,} cases of {len(entrances)} entrances, {failed.total():,} failed")
    for kind, count in failed.most_common():
        print(f"  {count:6,} {kind}")
    return int(bool(failed))


def keep(case: Case, folder: Path, failure: Failure) -> str:
    """Store a case in its own folder; return the command that runs it again."""
    own = folder / failure.name.replace("/", "-")
    own.mkdir(parents=True, exist_ok=True)
    for name, data in case.files.items():
        (own / name).write_bytes(data)
    said = {"arguments": case.arguments, "log": case.log, "files": list(case.files), "why": failure.why}
    (own / "case.json").write_text(json.dumps(said, indent=1))
    return f"make fuzz ARGS='--again {own}'"


def kept(folder: Path) -> Case:
    """Read a stored case."""
    said = json.loads((folder / "case.json").read_text())
    return Case(said["arguments"], {name: (folder / name).read_bytes() for name in said["files"]}, said["log"])


if __name__ == "__main__":
    sys.exit(main())
