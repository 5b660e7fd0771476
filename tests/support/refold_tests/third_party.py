"""An external service that write tools call: its own process, which counts what it carried out, and is unreliable.

It has no idempotency keys: a repeated call is carried out again, and its counts show this. `python -m
refold_tests.third_party SEED FAULTS SLOW_S` prints its port. FAULTS: the share of calls that fail, each in one of the
ways in FATES. A slow call is carried out after SLOW_S, even if its caller is gone by then. A query for what was carried
out waits for all earlier calls, so a probe's "not done" is true even on a loaded machine.
"""

from __future__ import annotations

import itertools
import json
import random
import socket
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Condition, Lock
from typing import Any, ClassVar

from refold.agents.effects.errors import NotDone
from refold.agents.effects.order import Done
from refold_tests.child import Child

FATES = ("dropped before", "dropped after", "503", "slow", "slow and dropped")
CODE = "from refold_tests.third_party import main; main()"
TIMEOUT_S = 30


class Service:
    """The orders that it carried out: how often for each key, and in which order."""

    def __init__(self, seed: int, faults: float, slow_s: float) -> None:
        self._rng = random.Random(seed)
        self._faults = faults
        self._slow_s = slow_s
        self._lock = Lock()
        self.counts: Counter[str] = Counter()
        self.order: list[str] = []

    def carry_out(self, key: str) -> tuple[bool, bool]:
        """Return whether the call was carried out, and whether the caller gets an answer."""
        with self._lock:
            fate = self._rng.choice(FATES) if self._rng.random() < self._faults else ""
        if fate.startswith("slow"):
            time.sleep(self._slow_s)
        is_done = fate not in ("dropped before", "503")
        if is_done:
            with self._lock:
                self.counts[key] += 1
                self.order.append(key)
        return is_done, "dropped" not in fate


def main() -> None:
    """Serve until standard input ends."""
    service = Service(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]))

    class Server(ThreadingHTTPServer):
        """Numbers its connections in the order of arrival."""

        daemon_threads = True
        numbers = itertools.count()
        under_way: ClassVar[dict[object, int]] = {}
        ended = Condition()

        def process_request(self, request: Any, client_address: Any) -> None:
            with self.ended:
                self.under_way[request] = next(self.numbers)
            super().process_request(request, client_address)

        def process_request_thread(self, request: Any, client_address: Any) -> None:
            try:
                super().process_request_thread(request, client_address)
            finally:
                with self.ended:
                    del self.under_way[request]
                    self.ended.notify_all()

        def await_before(self, request: Any) -> None:
            with self.ended:
                number = self.under_way[request]
                self.ended.wait_for(lambda: min(self.under_way.values()) == number)

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            """Log nothing."""

        def do_POST(self) -> None:
            key = self.headers["Idempotency-Key"]
            is_done, is_answered = service.carry_out(key)
            if is_answered:
                self._answer({"receipt": key[-8:]} if is_done else {}, 200 if is_done else 503)
            else:
                self.connection.shutdown(socket.SHUT_RDWR)
                self.close_connection = True

        def do_GET(self) -> None:
            server.await_before(self.request)
            with service._lock:
                self._answer({"counts": service.counts, "order": service.order})

        def _answer(self, tree: Any, status: int = 200) -> None:
            body = json.dumps(tree).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = Server(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()


class ThirdParty:
    """The service as its callers use it, in any process."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._url = f"http://127.0.0.1:{port}"

    def call(self, key: str) -> Any:
        """Call the service; this is the write tool. A 503 means that nothing happened; other failures are ambiguous."""
        asked = urllib.request.Request(self._url, b"{}", {"Idempotency-Key": key}, method="POST")
        try:
            with urllib.request.urlopen(asked, timeout=TIMEOUT_S) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            error.close()
            raise NotDone(f"HTTP {error.code}") from error

    def seen(self) -> dict[str, Any]:
        """Return {"counts": how often for each key, "order": the keys in order of arrival}."""
        with urllib.request.urlopen(self._url, timeout=TIMEOUT_S) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def probe(self, key: str, arguments: object) -> Done:
        """Return whether the call has been carried out by now."""
        if key in self.seen()["counts"]:
            return Done({"receipt": key[-8:]})
        raise NotDone("it is not there")


@contextmanager
def third_party(
    child: Callable[..., Child], seed: int, *, faults: float = 0.0, slow_s: float = 0.0
) -> Iterator[ThirdParty]:
    """Run the service until the end of the block."""
    process = child(CODE, seed, faults, slow_s)
    yield ThirdParty(int(process.line()))
    process.kill()
