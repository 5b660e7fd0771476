"""A worker in this process that is used through its pages."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from refold.explorer.cli.kafka.worker import pages_of
from refold.explorer.queries.log_target import LogTarget
from refold.streams.log.kafka.lookups import client_id
from refold.streams.web.server import WebServer
from refold_tests.folding import PATIENCE_S, Running, running


@contextmanager
def worker_with_pages(url: str, folder: Path, **settings: Any) -> Iterator[tuple[Running, str]]:
    """Run a worker; yield it with the URL of its pages once it folds every partition."""
    with ExitStack() as ending:
        server = WebServer("127.0.0.1", 0)
        ending.callback(server.close)
        worker = ending.enter_context(running(url, folder, client_id=client_id(server.url), **settings))
        server.serve(pages_of(worker.service, worker.config, LogTarget(url), server.url, ending))
        deadline = time.monotonic() + PATIENCE_S
        while not all(worker.service.table(each) is not None for each in range(worker.service.log.partitions)):
            assert time.monotonic() < deadline, worker.service.status()
            time.sleep(0.01)
        yield worker, server.url
