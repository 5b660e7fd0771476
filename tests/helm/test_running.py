"""What the chart runs, run: with the arguments and variables of its pods, on a real broker."""

from __future__ import annotations

import signal
import subprocess
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from refold.streams.web.guard import TOKEN_ENVIRONMENT
from refold.testing.processes import HOST, free_ports
from refold_tests.brokers import SharedKafka
from refold_tests.charts import Helm, Object, arguments, objects, of_kind, variables
from refold_tests.command import COMMAND, environment
from refold_tests.waiting import await_true

TOKEN = "of-the-secret-in-the-chart"


def _words(pod: Object, folder: Path) -> list[str]:
    put = {"--data=/data": f"--data={folder}", "--host=10.1.2.3": f"--host={HOST}"}
    return [put.get(each, each) for each in arguments(pod)]


def _around(pod: Object, folder: Path) -> dict[str, str]:
    given = {name: value for name, value in variables(pod).items() if isinstance(value, str)}
    found = environment(more={**given, TOKEN_ENVIRONMENT: TOKEN, "HOME": str(folder)})
    del found["REFOLD_REDUCERS"]  # of the tests' own, which no image has
    return found


def _run(pod: Object, folder: Path) -> str:
    done = subprocess.run(
        [*COMMAND, *_words(pod, folder)], env=_around(pod, folder), cwd=folder, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _answers(url: str, *, with_token: bool = False) -> bool:
    asked = Request(url, headers={"Authorization": f"Bearer {TOKEN}"} if with_token else {})
    with suppress(URLError, HTTPError, TimeoutError, ConnectionError), urlopen(asked, timeout=5) as page:
        return bool(page.status == 200)
    return False


def test_topics_are_created_and_a_worker_starts_drains_and_passes_the_helm_test(
    chart: Helm, kafka: SharedKafka, prefix: str, tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    values: dict[str, Any] = {"log": {"brokers": [kafka.bootstrap], "prefix": prefix, "partitions": 2},
                              "workers": {"port": port, "replicas": 1}}  # fmt: skip
    found = objects(chart.template(values))
    job, test = (of_kind(found, kind) for kind in ("Job", "Pod"))
    assert "created; 2 partitions" in _run(job["spec"]["template"], tmp_path)
    pod = of_kind(found, "StatefulSet")["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    worker = subprocess.Popen([*COMMAND, *_words(pod, tmp_path)], env=_around(pod, tmp_path), cwd=tmp_path,
                              stderr=subprocess.DEVNULL)  # fmt: skip
    try:
        for name in ("startupProbe", "livenessProbe", "readinessProbe"):
            page = f"http://{HOST}:{port}{container[name]['httpGet']['path']}"
            await_true(partial(_answers, page))
        assert _answers(f"http://{HOST}:{port}/metrics", with_token=True)
        assert not _answers(f"http://{HOST}:{port}/metrics")
        _run(test, tmp_path)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(pod["spec"]["terminationGracePeriodSeconds"]) == 0
    finally:
        worker.kill()
        worker.wait()
