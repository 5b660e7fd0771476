"""The child process that verifies a share of a log's partitions for its parent (processes.py), by the protocol of
streams/job_process.py.
"""

from __future__ import annotations

from refold.avro.errors import StorageError
from refold.streams.cut import parse_cut
from refold.streams.job_process import NextRequest, Send, Tree, serve
from refold.streams.open import open_port
from refold.streams.runtime import tune_garbage_collector
from refold.streams.verify.share import VerifyLimits, check_share, foldable


def main() -> None:
    """Serve until the input ends."""
    serve(_verify)


def _verify(setup: Tree, next_request: NextRequest, send: Send) -> None:
    cut = parse_cut(setup["cut"])
    port = open_port(setup["url"], read_only=True, config=setup["config"])
    with port.frozen(is_verified=True) as log, tune_garbage_collector():
        if (log.log_id, log.ends(), len(log.registry)) != (cut.log_id, dict(cut.offsets), cut.schemas):
            raise StorageError(f"{log.url} does not end at the cut {cut.short} for another process")
        if foldable(log.registry) != setup["foldable"]:
            raise StorageError("another process does not find the same custom reducers")
        limits = VerifyLimits(**setup["limits"])
        report = check_share(log, cut, setup["partitions"], limits, lambda records: send({"read": records}))
    send({"report": report.to_json()})


if __name__ == "__main__":
    main()
