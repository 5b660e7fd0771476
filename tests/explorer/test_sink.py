"""`refold sink`, used as users do."""

from __future__ import annotations

import contextlib
import re
import signal
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import psycopg
import pytest

import refold
from refold.sinks.postgres.sink import PostgresSink
from refold.testing.kafka.settings import certificates
from refold_tests.command import Done, environment, new_command, refold_command, started
from refold_tests.postgres import Database
from refold_tests.tree import ROOT
from refold_tests.waiting import await_true

WAIT_S = 60.0
TOKEN = "0123456789abcdef-secret"
SECRET = "s3cret-Pass:w"


def observed(path: Path, *limits: int) -> None:
    with refold.open(f"file:{path}") as log:
        for limit in limits:
            log.observe("tool_config/acme", {"rate_limit": limit}, source="deployer")
        log.flush()


def limits_in(database: Database) -> list[Any]:
    with psycopg.connect(database.url) as connection:
        return connection.execute("SELECT _entity, _version, rate_limit FROM refold.tool_config").fetchall()


def sink(path: Path, *arguments: object, **more: Any) -> Done:
    return refold_command("sink", *arguments, log=f"file:{path}", **more)


def test_once_catches_up_and_prints_the_cut(postgres_database: Database, tmp_path: Path) -> None:
    observed(tmp_path / "log", 100, 50)
    done = sink(tmp_path / "log", "postgres", "--to", postgres_database.url)
    assert done.status == 0, done.err
    with refold.open(f"file:{tmp_path / 'log'}", read_only=True) as log:
        assert str(log.point().cut) in done.out
    assert limits_in(postgres_database) == [("tool_config/acme", 2, 50)]
    observed(tmp_path / "log", 75)
    done = sink(tmp_path / "log", "postgres", more={"REFOLD_SINK_TO": postgres_database.url})
    assert "1 changes in 1 batches, 0 loads" in done.out
    assert limits_in(postgres_database) == [("tool_config/acme", 3, 75)]


def test_follow_runs_until_sigterm(postgres_database: Database, tmp_path: Path) -> None:
    observed(tmp_path / "log", 100)
    process = started(
        "sink", "postgres", "--to", postgres_database.url, "--follow", "--metrics-port", "0",
        env=environment(f"file:{tmp_path / 'log'}"), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        found = re.fullmatch(r"metrics on (http://127\.0\.0\.1:\d+/metrics)\n", process.stderr.readline())
        assert found
        assert process.stderr.readline() == "postgres: caught up\n"
        observed(tmp_path / "log", 50)
        deadline = time.monotonic() + WAIT_S
        while limits_in(postgres_database) != [("tool_config/acme", 2, 50)]:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        with urllib.request.urlopen(found[1]) as page:
            said = page.read().decode()
        assert 'refold_sink_changes_total{log="log",sink="postgres"} 1.0' in said
        assert 'refold_sink_busy{log="log",sink="postgres"} 0.0' in said
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=WAIT_S)
        assert process.returncode == 0
        assert "cut:1." in out
    finally:
        process.kill()
        process.communicate()


@pytest.mark.outside
def test_metrics_are_served_as_every_page_is(tmp_path: Path) -> None:
    """Off loopback they need the token; they use TLS and answer only known hosts. /health answers probes without the
    token.
    """
    observed(tmp_path / "log", 1)
    place = ["parquet", "--to", (tmp_path / "lake").as_uri()]
    refused = sink(tmp_path / "log", *place, "--host", "0.0.0.0", "--metrics-port", "0").refused()
    assert "REFOLD_TOKEN" in refused
    made = certificates(tmp_path / "own")
    pages = ["--metrics-port", "0", "--tls-cert", made.server, "--tls-key", made.server]
    secret = environment(f"file:{tmp_path / 'log'}") | {"REFOLD_TOKEN": TOKEN}
    process = started("sink", *place, "--follow", *pages, env=secret, stderr=subprocess.PIPE)
    try:
        assert process.stderr is not None
        url = re.fullmatch(r"metrics on (https://127\.0\.0\.1:\d+)/metrics\n", process.stderr.readline())
        assert url
        trusting = ssl.create_default_context(cafile=str(made.authority))

        def status(path: str, **headers: str) -> int:
            asked = urllib.request.Request(f"{url[1]}{path}", headers=headers)
            try:
                with urllib.request.urlopen(asked, context=trusting) as page:
                    return int(page.status)
            except urllib.error.HTTPError as error:
                return error.code

        assert status("/metrics", Authorization=f"Bearer {TOKEN}") == 200
        assert (status("/metrics"), status("/health"), status("/else")) == (401, 200, 401)
        assert status("/else", Authorization=f"Bearer {TOKEN}") == 404
        assert status("/metrics", Authorization=f"Bearer {TOKEN}", Host="evil.example") in (400, 403, 421)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.outside
def test_parquet_sinks_page_shows_the_stores_lag(tmp_path: Path) -> None:
    """The sink commits every hour. Records after the first commit are lag, and its age grows."""
    observed(tmp_path / "log", 1)
    place = ["parquet", "--to", (tmp_path / "lake").as_uri(), "--follow", "--every", "3600", "--metrics-port", "0"]
    process = started("sink", *place, env=environment(f"file:{tmp_path / 'log'}"), stderr=subprocess.PIPE)
    try:
        assert process.stderr is not None
        url = re.fullmatch(r"metrics on (http://127\.0\.0\.1:\d+/metrics)\n", process.stderr.readline())
        assert url

        def values() -> dict[str, float]:
            with urllib.request.urlopen(url[1]) as page:
                found = re.findall(r"^refold_sink_(\w+)\{[^}]*\} (\S+)$", page.read().decode(), re.MULTILINE)
            return {name: float(value) for name, value in found}

        await_true(lambda: values().get("lag_changes") == 0.0 and values()["batches_total"] == 1.0)
        assert values()["lag_seconds"] == 0.0
        recorded_at = time.time()
        observed(tmp_path / "log", 2)
        observed(tmp_path / "log", 3)
        await_true(lambda: values()["lag_changes"] == 2.0)
        first = values()["lag_seconds"]
        assert 0.0 < first <= time.time() - recorded_at
        await_true(lambda: values()["lag_seconds"] > first)
        assert values()["batches_total"] == 1.0
    finally:
        process.kill()
        process.communicate()


def test_unusable_options_are_refused_in_one_line(tmp_path: Path) -> None:
    observed(tmp_path / "log", 1)
    for name, url, said in (
        ("nowhere", "x", "no sink is called 'nowhere'"),
        ("postgres", "mysql://x/y", "postgresql://USER@HOST"),
        ("postgres", f"postgresql://u:{SECRET}@h@x/y", "%40"),
        ("postgres", f"postgresql://u:{SECRET}@h:99999999/y", "host and port"),
        ("postgres", f"postgresql://u:{SECRET}@h/y?schema=pg_x", "schema="),
        ("postgres", f"postgresql://u:{SECRET}@h/y?history=maybe", "yes or no"),
    ):
        refused = sink(tmp_path / "log", name, "--to", url).refused()
        assert said in refused
        assert SECRET not in refused


def test_password_is_shown_nowhere(postgres_database: Database, tmp_path: Path, capfd: Any) -> None:
    observed(tmp_path / "log", 1)
    place = postgres_database.url.partition("@")[2].partition("/")[0]
    url = f"postgresql://nobody_there:{SECRET.replace(':', '%3A')}@{place}/{postgres_database.name}"
    with contextlib.closing(PostgresSink(url)) as opened:
        for shown in (repr(opened), str(vars(opened)), opened.name):
            assert SECRET not in shown
            assert SECRET.replace(":", "%3A") not in shown
    refused = sink(tmp_path / "log", "postgres", "--to", url, more={"PGPASSWORD": SECRET, "REFOLD_DEBUG": "1"})
    assert refused.status == 2
    assert "nobody_there" in refused.err
    assert SECRET not in refused.err


@pytest.mark.outside
def test_unavailable_store_is_awaited(tmp_path: Path) -> None:
    observed(tmp_path / "log", 1)
    process = started(
        "sink", "postgres", "--to", f"postgresql://u:{SECRET}@127.0.0.1:1/x", "--follow",
        env=environment(f"file:{tmp_path / 'log'}"), stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        said = process.stderr.readline()
        assert said.startswith("postgres: waiting, because the store refuses: PostgreSQL at 127.0.0.1:1/x")
        assert SECRET not in said
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=WAIT_S)
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("missing", ["psycopg"])
def test_missing_extra_is_named(tmp_path: Path, missing: str) -> None:
    observed(tmp_path / "log", 1)
    (tmp_path / "hidden").mkdir()
    text = f'raise ModuleNotFoundError("No module named {missing!r}", name={missing!r})'
    (tmp_path / "hidden" / f"{missing}.py").write_text(text)
    path = f"{tmp_path / 'hidden'}:{ROOT / 'src'}"
    log, more = f"file:{tmp_path / 'log'}", {"PYTHONPATH": path}
    refused = new_command("sink", "postgres", "--to", "postgresql://x/y", log=log, more=more).refused()
    assert "pip install 'refold[postgres]'" in refused
