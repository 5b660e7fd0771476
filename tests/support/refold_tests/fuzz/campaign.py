"""The fuzzer as a command: `make fuzz ARGS="--seconds 3600"`, or one case again with --seed and --case."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from refold_tests.fuzz.driver import Driver, Failure
from refold_tests.fuzz.entrances import ENTRANCES
from refold_tests.fuzz.world import made

IN_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Where a log's fsync costs nothing."""


def main() -> int:
    """Run cases until the time is over; 1 where one failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--entrance", action="append", choices=list(ENTRANCES), help="only this one; may be repeated")
    parser.add_argument("--case", help="one case, ENTRANCE/NUMBER")
    parser.add_argument("--keep", type=Path, help="the folder to work in, kept afterwards")
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="refold-fuzz-", dir=IN_MEMORY) as folder:
        world = made(given.keep or Path(folder))
        with Driver(world, given.seed) as driver:
            if given.case:
                entrance, _, number = given.case.partition("/")
                failure = driver.run(entrance, int(number))
                print(failure or "no failure")
                return int(failure is not None)
            return _campaign(driver, given.entrance or list(ENTRANCES), given.seconds)


def _campaign(driver: Driver, entrances: list[str], seconds: float) -> int:
    end, number = time.monotonic() + seconds, 0
    failed: Counter[str] = Counter()
    while time.monotonic() < end:
        for entrance in entrances:
            failure = driver.run(entrance, number)
            if failure is not None:
                failed[_kind(failure)] += 1
                if failed[_kind(failure)] == 1:
                    print(failure, flush=True)
        number += 1
    print(f"{number:,} cases of each of {len(entrances)} entrances, {sum(failed.values()):,} failed")
    for kind, count in failed.most_common():
        print(f"  {count:6,} {kind}")
    return int(bool(failed))


def _kind(failure: Failure) -> str:
    """What failures have in common that are one defect: the entrance, and the last line of a traceback's places."""
    places = [line.strip() for line in failure.said.splitlines() if line.strip().startswith("File ")]
    return f"{failure.name.partition('/')[0]}: {failure.why} {places[-1] if places else ''}"


if __name__ == "__main__":
    sys.exit(main())
