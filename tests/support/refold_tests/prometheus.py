"""Real Prometheus, as its own programs: a test's own server on loopback, and promtool.

Nothing is installed and no service is started. Two programs on PATH are enough, such as those of Debian's package.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import yaml

from refold.agents.adapters.otlp import metrics as of_receivers
from refold.agents.supervise import metrics as of_supervisors
from refold.sinks import metrics as of_sinks
from refold.streams.worker.host import metrics as of_workers
from refold.testing.processes import free_ports
from refold_tests.absent import without
from refold_tests.tree import ROOT
from refold_tests.waiting import await_true

NEEDS = "needs Prometheus: "
ALERTS = ROOT / "monitoring" / "alerts.yml"
DASHBOARD = ROOT / "monitoring" / "dashboard.json"
_TYPES = {
    "gauge": (
        of_workers.WORKER_GAUGES,
        of_workers.TOPIC_GAUGES,
        of_workers.GAUGES,
        of_workers.STANDBY_GAUGES,
        of_sinks.GAUGES,
        of_supervisors.GAUGES,
        of_receivers.GAUGES,
    ),
    "counter": (
        of_workers.WORKER_COUNTERS,
        of_workers.COUNTERS,
        of_sinks.COUNTERS,
        of_supervisors.COUNTERS,
        of_receivers.COUNTERS,
    ),
}
METRICS = {name: kind for kind, tables in _TYPES.items() for table in tables for name, _ in table.values()}
"""The type of each metric, from the tables that collectors are created from."""
_WORDS = frozenset({"and", "or", "unless", "offset", "bool", "atan2", "inf", "nan"})
_LISTED = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)")
_NAMED = re.compile(r"""__name__\s*=~?\s*("[^"]*"|'[^']*')""")


def program(name: str) -> str:
    """Return the path of `promtool` or `prometheus`. Without it the test is skipped; in CI it fails."""
    found = shutil.which(name)
    if found is None:
        without(f"{NEEDS}there is no {name}; on Debian and Ubuntu: apt-get download prometheus, unpack it by "
                "`dpkg -x prometheus_*.deb DIR`, and put DIR/usr/bin on PATH")  # fmt: skip
    return found


def promtool(*arguments: object, given: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run promtool; return its result, unchecked."""
    command = [program("promtool"), *map(str, arguments)]
    return subprocess.run(command, input=given, capture_output=True, text=True, timeout=120, check=False)


def alert_rules() -> list[dict[str, Any]]:
    """Return the rules of monitoring/alerts.yml."""
    groups = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def dashboard_queries() -> list[str]:
    """Return every query of the dashboard, as Grafana sends it with everything selected."""
    board = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    asked = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    return [each.replace("$__rate_interval", "1m").replace("$log", ".*").replace("$instance", ".*") for each in asked]


def metrics_in(query: str) -> set[str]:
    """Return the names of the metrics in a PromQL query."""
    named = {name for each in _NAMED.findall(query) for name in each[1:-1].split("|")}
    bare = re.sub(r"\"[^\"]*\"|'[^']*'", "", query)
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]", " ", bare)
    bare = _LISTED.sub(" ", bare)
    names = re.findall(r"(?<![\w:.])([a-zA-Z_:][\w:]*)(?!\s*\(|[\w:])", bare)
    return named | {name for name in names if name.lower() not in _WORDS}


class Server:
    """A running Prometheus."""

    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str, **query: str) -> Any:
        """Return `data` of the API's answer.

        Raises:
            AssertionError: The API refuses; the message says why.
        """
        try:
            with urlopen(f"{self.url}/api/v1/{path}?{urlencode(query)}", timeout=20) as found:
                return json.loads(found.read())["data"]
        except HTTPError as error:
            with error:
                raise AssertionError(f"{path} {query}: {error.read().decode()}") from None

    def query(self, query: str) -> list[dict[str, Any]]:
        """Return the vector of an instant query: {metric, value: [time, text]} each."""
        found: list[dict[str, Any]] = self.get("query", query=query)["result"]
        return found

    @property
    def is_ready(self) -> bool:
        try:
            with urlopen(f"{self.url}/-/ready", timeout=5):
                return True
        except (URLError, OSError):
            return False


@contextmanager
def serving(folder: Path, targets: Sequence[str]) -> Iterator[Server]:
    """Run Prometheus with refold's alert rules. It scrapes these HOST:PORT twice a second as the job `refold`."""
    command = program("prometheus")
    config = {
        "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "1s"},
        "rule_files": [str(ALERTS)],
        "scrape_configs": [{"job_name": "refold", "static_configs": [{"targets": list(targets)}]}],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    address = f"127.0.0.1:{free_ports(1)[0]}"
    options = [f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'tsdb'}"]
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen([command, *options, f"--web.listen-address={address}"], stdout=log, stderr=log)
    try:
        server = Server(f"http://{address}")
        await_true(lambda: server.is_ready or process.poll() is not None)
        assert process.poll() is None, (folder / "prometheus.log").read_text()
        yield server
    finally:
        process.kill()
        process.wait()
