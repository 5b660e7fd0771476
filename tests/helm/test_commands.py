"""What containers run, as the command line and the readers of settings take it: what is misspelt is found here."""

from __future__ import annotations

import re

import click
import pytest

from refold.agents.keys.choose import KEYS_ENVIRONMENT
from refold.agents.keys.master import MASTER_ENVIRONMENT
from refold.explorer.cli.main import cli
from refold.explorer.cli.operate.sink import sink
from refold.explorer.queries.log_target import TYPES_ENVIRONMENT
from refold.sinks.postgres.sink import parse_address
from refold.streams.log.kafka.settings import CONFIG_ENVIRONMENT, VARIABLES, read_settings
from refold.streams.log.kafka.url import BLOBS_ENVIRONMENT, parse_url
from refold.streams.open import ENVIRONMENT as LOG_ENVIRONMENT
from refold.streams.registry import settings as registry
from refold.streams.web.guard import TOKEN_ENVIRONMENT
from refold_tests.chart_values import VALUES
from refold_tests.charts import Helm, Object, Values, arguments, objects, of_kind, pods, variables

SETS = pytest.mark.parametrize("values", VALUES.values(), ids=VALUES.keys())
KNOWN = {
    LOG_ENVIRONMENT, CONFIG_ENVIRONMENT, BLOBS_ENVIRONMENT, TYPES_ENVIRONMENT, KEYS_ENVIRONMENT, MASTER_ENVIRONMENT,
    registry.ENVIRONMENT, TOKEN_ENVIRONMENT, registry.USER_INFO_ENVIRONMENT,
    *(each.envvar for each in sink.params if isinstance(each.envvar, str)),
}  # fmt: skip


def _parsed(words: list[str]) -> click.Context:
    """The arguments as `refold` takes them, nothing run. UsageError where it does not."""
    outer = cli.make_context("refold", list(words))
    name, command, rest = cli.resolve_command(outer, [*outer._protected_args, *outer.args])
    assert command is not None
    assert name is not None
    found = command.make_context(name, rest, parent=outer)
    assert not found.args
    return found


def _environment(pod: Object) -> dict[str, str]:
    """A pod's variables, with a stand-in for each secret; what is mounted as a file is not read."""
    return {name: value if isinstance(value, str) else "user:secret" for name, value in variables(pod).items()}


@SETS
def test_arguments_are_accepted_by_the_command_line(
    chart: Helm, values: Values, monkeypatch: pytest.MonkeyPatch
) -> None:
    for owner, pod in pods(objects(chart.template(values))):
        for name, value in _environment(pod).items():
            if name in KNOWN:
                monkeypatch.setenv(name, value)
        found = _parsed(arguments(pod))
        assert found.command.name == {"StatefulSet": "worker", "Deployment": "sink", "Job": "init",
                                      "CronJob": "blobs" if owner["metadata"]["name"].endswith("garbage") else "retain",
                                      "Pod": "doctor"}[owner["kind"]]  # fmt: skip


def test_misspelt_argument_would_be_found(chart: Helm) -> None:
    (pod,) = (pod for owner, pod in pods(objects(chart.template({}))) if owner["kind"] == "StatefulSet")
    with pytest.raises(click.UsageError, match="--instances"):
        _parsed([*arguments(pod), "--instances=1"])


def test_worker_gets_its_identity_and_address(chart: Helm) -> None:
    found = objects(chart.template(VALUES["many-workers"]))
    pod = of_kind(found, "StatefulSet")["spec"]["template"]
    given = _parsed(arguments(pod)).params
    assert (given["instance"], given["host"]) == ("demo-refold-worker-0", "10.1.2.3")
    (container,) = pod["spec"]["containers"]
    assert container["ports"] == [{"name": "pages", "containerPort": given["port"], "protocol": "TCP"}]
    assert str(given["data"]) in {each["mountPath"] for each in container["volumeMounts"]}
    assert given["standby"] is True
    assert given["commit_ms"] == 100


def test_sink_follows_and_gets_its_store_by_the_environment(chart: Helm, monkeypatch: pytest.MonkeyPatch) -> None:
    found = objects(chart.template(VALUES["postgres"]))
    pod = of_kind(found, "Deployment")["spec"]["template"]
    monkeypatch.setenv("REFOLD_SINK_TO", _environment(pod)["REFOLD_SINK_TO"])
    given = _parsed(arguments(pod)).params
    assert (given["name"], given["once"], given["host"]) == ("postgres", False, "10.1.2.3")
    assert given["metrics_port"] == pod["spec"]["containers"][0]["ports"][0]["containerPort"]
    assert given["to"] not in " ".join(arguments(pod))
    assert "db.example:5432/analytics" in parse_address(given["to"]).place


@SETS
def test_variables_are_read_by_the_code(chart: Helm, values: Values, monkeypatch: pytest.MonkeyPatch) -> None:
    for _, pod in pods(objects(chart.template(values))):
        given = _environment(pod)
        ours = {name for name in given if name.startswith("REFOLD_")}
        kafka = {name for name in ours if name.startswith(VARIABLES)} - KNOWN
        registrys = {name for name in ours if name.startswith(f"{registry.ENVIRONMENT}_")} - KNOWN
        assert ours - kafka - registrys <= KNOWN
        monkeypatch.delenv(BLOBS_ENVIRONMENT, raising=False)
        if BLOBS_ENVIRONMENT in given:
            monkeypatch.setenv(BLOBS_ENVIRONMENT, given[BLOBS_ENVIRONMENT])
        address = parse_url(given[LOG_ENVIRONMENT])
        assert address.partitions is not None
        # What stands in a mounted file is the user's own.
        kept = {name: value for name, value in given.items() if name != CONFIG_ENVIRONMENT}
        settings = read_settings(kept)
        wanted = {name.removeprefix(VARIABLES).lower().replace("_", ".") for name in kafka}
        assert wanted == set(settings)
        found = registry.registry_settings(kept)
        assert (found is not None) == (registry.ENVIRONMENT in given)
        if found is not None:
            assert found.user_info == given.get(registry.USER_INFO_ENVIRONMENT)
            assert len(found.tls) == len(registrys)


@SETS
def test_no_secret_is_an_argument_or_a_value(chart: Helm, values: Values) -> None:
    """Arguments are seen in the list of processes, values by whoever may read the object."""
    for _, pod in pods(objects(chart.template(values))):
        for name, value in variables(pod).items():
            if re.search(r"PASSWORD|SECRET|TOKEN|USER_INFO|ACCESS_KEY|JAAS|PGPASS", name):
                assert "secretKeyRef" in value, name
        text = " ".join(arguments(pod))
        assert "$(" not in text
        assert not re.search(r"password|secret|token", text, re.IGNORECASE)
