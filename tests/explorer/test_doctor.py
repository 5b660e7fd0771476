"""`refold doctor` on Kafka: each possible problem is created, and must be found together with its remedy."""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import refold
from refold.avro.registry import WireIds
from refold.explorer.cli.main import run
from refold.explorer.doctor.examine import examine
from refold.explorer.doctor.findings import CheckSettings, Finding
from refold.explorer.queries.log_target import LogTarget
from refold.streams.log.kafka.log import KafkaLog
from refold.streams.log.kafka.url import parse_url
from refold_tests.brokers import SharedKafka
from refold_tests.command import refold_command
from refold_tests.devices import small_device
from refold_tests.folding import running
from refold_tests.http_server import serving
from refold_tests.kafka_topics import Broker
from refold_tests.sample_types import THING
from refold_tests.waiting import answered_within, await_true
from refold_tests.worker_pages import worker_with_pages

Ask = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def log(kafka: SharedKafka, prefix: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a new log, which commands use by default."""
    url = f"kafka://{kafka.bootstrap}/{prefix}"
    with refold.open(f"{url}?partitions=1") as made:
        made.observe("document/d", {"fields": {"a": 1}})
    monkeypatch.setenv("REFOLD_LOG", url)
    return url


@pytest.fixture
def problems(capsys: pytest.CaptureFixture[str]) -> Ask:
    """Return the findings that are not ok. The exit status must match."""

    def asked(*words: object) -> list[dict[str, Any]]:
        status = run(["doctor", "--json", *map(str, words)])
        found = json.loads(capsys.readouterr().out)
        wrong = [each for each in found["findings"] if not each["ok"]]
        assert (status, found["ok"]) == ((1, False) if wrong else (0, True))
        assert all(each["remedy"] for each in wrong)
        return wrong

    return asked


def test_healthy_log(log: str, problems: Ask, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert problems("--data", tmp_path) == []
    assert run(["doctor"]) == 0
    said = capsys.readouterr().out
    for subject in ("broker", "topics", "records", "clock", "confluent-kafka", "faust-streaming", "librdkafka"):
        assert f"ok  {subject} " in said, said
    assert problems("--log", f"{log}.none") == []


def test_every_wrong_setting_is_named_with_its_command(log: str, problems: Ask, broker: Broker) -> None:
    observations, manifests = f"{broker.prefix}.observations", f"{broker.prefix}.manifests"
    broker.alter(observations, "retention.ms", "1000000000")
    broker.alter(observations, "message.timestamp.type", "CreateTime")
    broker.alter(manifests, "cleanup.policy", "delete")
    found = {(each["subject"], each["finding"]): each["remedy"] for each in problems()}
    assert [*found] == [
        (f"topic {manifests}", "has cleanup.policy=delete, and a log needs compact"),
        (f"topic {observations}", "has retention.ms=1000000000, and a log needs -1"),
        (f"topic {observations}", "has message.timestamp.type=CreateTime, and a log needs LogAppendTime"),
    ]
    for remedy in found.values():  # the printed commands, word by word, except for the tool
        words = [each for each in remedy.removeprefix("set it: kafka-configs.sh ").split() if each != "--alter"]
        named = dict(zip(words[::2], words[1::2], strict=True))
        assert named["--bootstrap-server"] == broker.bootstrap
        key, _, value = named["--add-config"].partition("=")
        broker.alter(named["--entity-name"], key, value)
    assert problems() == []


def finding(log: str, subject: str, *words: str) -> str:
    """Return what the command finds about one subject."""
    done = refold_command("doctor", "--json", *words, log=log)
    [found] = [each for each in done.json["findings"] if each["subject"] == subject]
    assert found["ok"] is done.json["ok"] is True
    return str(found["finding"])


@pytest.mark.parametrize("role", [[], ["--role", "worker"]], ids=["plain", "role"])
def test_workers_and_their_group_lag(log: str, prefix: str, tmp_path: Path, role: list[str]) -> None:
    said = finding(log, "workers", *role)
    assert said.startswith(f"none in the group refold.{prefix}: no worker folds, and reading works without")
    assert f"refold worker --log {log} --data" in said
    behind = f"recorded and not yet committed by the group refold.{prefix}"
    assert finding(log, "lag", *role) == f"1 {behind} (partition 0: 1)"
    with worker_with_pages(log, tmp_path) as (_, url):
        assert finding(log, "workers", *role) == f"1 alive: {url} with partition 0"
        await_true(lambda: finding(log, "lag", *role) == f"0 {behind}")


def test_worker_without_pages_is_known_by_its_client_id(kafka: SharedKafka, prefix: str, tmp_path: Path) -> None:
    url = f"kafka://{kafka.bootstrap}/{prefix}"
    with refold.open(f"{url}?partitions=4"):
        pass
    with running(url, tmp_path, client_id="stranger"):
        await_true(lambda: finding(url, "workers") == "1 alive: stranger with partitions 0, 1, 2, 3")
    await_true(lambda: finding(url, "workers").startswith("none in the group"))


@pytest.mark.parametrize("role", [[], ["--role", "worker"]], ids=["plain", "role"])
def test_unreachable_broker(problems: Ask, role: list[str]) -> None:
    [found] = answered_within(15, lambda: problems("--log", "kafka://127.0.0.1:1/x", *role))
    assert found["subject"] == "broker"
    assert "no answer from 127.0.0.1:1" in found["finding"]
    assert "start the brokers" in found["remedy"]


def test_log_with_deleted_observations(log: str, problems: Ask, prefix: str, broker: Broker) -> None:
    broker.delete(f"{prefix}.manifests")
    [found] = problems()
    assert found["subject"] == f"topic {prefix}.manifests"
    broker.delete(f"{prefix}.observations")
    [found] = problems()
    assert found["subject"] == "log"
    assert f"{prefix}.observations is missing" in found["finding"]
    assert f"{prefix}.changes" in found["finding"]
    assert "restore the brokers' data" in found["remedy"]


def test_unusable_and_world_readable_settings(
    log: str, problems: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "client.properties"
    monkeypatch.setenv("REFOLD_KAFKA_CONFIG", str(file))
    file.write_text("ssl.truststore.location=/x.jks\n")
    [found] = problems()
    assert (found["subject"], "of the type JKS" in found["finding"]) == ("settings", True)
    file.write_text("sasl.password=hunter2\n")
    file.chmod(0o644)
    [found] = problems()
    assert (found["subject"], found["remedy"]) == ("settings", f"chmod 600 {file}")
    assert "hunter2" not in str(found)
    file.chmod(0o600)
    assert problems() == []


def test_unreachable_registry(log: str, problems: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFOLD_SCHEMA_REGISTRY", "http://me:hunter2@127.0.0.1:1")
    found = problems()
    # A log whose ids are its own cannot be opened with a registry.
    assert [each["subject"] for each in found] == ["registry", "log"]
    assert "at http://127.0.0.1:1 gives no answer" in found[0]["finding"]
    assert "hunter2" not in str(found)


class _Emptied(BaseHTTPRequestHandler):
    """A registry that responds, but has no schemas."""

    def do_GET(self) -> None:  # the name is the library's
        is_known = self.path.startswith("/config")
        said = {"compatibilityLevel": "NONE"} if is_known else {"error_code": 40403, "message": "not found"}
        self.send_response(200 if is_known else 404)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(said).encode())

    def log_message(self, format: str, *args: object) -> None:  # the name is the library's
        """Log nothing."""


def test_emptied_registry(kafka: SharedKafka, prefix: str, problems: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"kafka://{kafka.bootstrap}/{prefix}"
    ids: Any = SimpleNamespace(register=lambda prefix, definition: WireIds(71, 72, 73), close=lambda: None)
    port = KafkaLog(parse_url(f"{url}?partitions=1"), schema_ids=ids)
    port.register(THING)
    port.close()
    [found] = problems("--log", url)
    assert (found["subject"], "none is named here" in found["finding"]) == ("registry", True)
    with serving(_Emptied) as registry:
        monkeypatch.setenv("REFOLD_SCHEMA_REGISTRY", registry)
        [found] = problems("--log", url)
    assert (found["subject"], found["finding"]) == ("registered", f"the registry lacks {THING.name} (71)")
    assert "restore the registry's data" in found["remedy"]


def wrong(found: list[Finding]) -> list[str]:
    return [each.subject for each in found if not each.ok]


def test_slow_clock(log: str) -> None:
    an_hour_ago_ms = time.time_ns() // 1_000_000 - 3_600_000
    assert wrong(examine(LogTarget(log), CheckSettings(now_ms=lambda: an_hour_ago_ms))) == ["clock"]
    assert wrong(examine(LogTarget(log), CheckSettings())) == []


def test_small_disk_for_tables(log: str, problems: Ask, tmp_path: Path) -> None:
    with small_device(tmp_path / "small") as device:
        [found] = problems("--data", device / "worker")
        assert (found["subject"], found["finding"]) == ("disk", f"{device}: 16 MiB free")
        assert "free at least 512 MiB" in found["remedy"]


def test_outdated_library(log: str, problems: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = tmp_path / "faust_streaming-0.11.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: faust-streaming\nVersion: 0.11.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    [found] = problems()
    assert found["subject"] == "faust-streaming"
    assert found["finding"].startswith("0.11.0, and refold was not tested with less than 0.15")
    assert "pip install" in found["remedy"]
