"""`make record-faults`: writes what a worker says of each fault to tests/monitoring/recorded/, a file a fault."""

from __future__ import annotations

import argparse
import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from refold.testing.kafka import Kafka, start_kafka
from refold_tests.reducers import REDUCERS
from refold_tests.scraped_metrics import RECORDED


def main() -> int:
    """Record faults at once, each into its file."""
    # Read where the types are made that the faults are about: at their import.
    os.environ["REFOLD_REDUCERS"] = REDUCERS
    from refold_tests.recorded_faults import FAULTS

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=FAULTS, action="append", help="this fault; may be repeated")
    names = parser.parse_args().only or list(FAULTS)
    with start_kafka() as shared, ThreadPoolExecutor(len(names)) as pool:
        for said in pool.map(partial(_write, shared), names):
            print(said, flush=True)
    return 0


def _write(shared: Kafka, name: str) -> str:
    from refold_tests.recorded_faults import FAULTS, record

    recording = record(name, FAULTS[name](), shared)
    path = RECORDED / f"{name}.yml"
    recording.write(path)
    return f"{path}: {len(recording.values)} series; the fault from {recording.begun_s} s to {recording.over_s} s"


if __name__ == "__main__":
    raise SystemExit(main())
