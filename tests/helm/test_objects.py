"""What the rendered objects are to each other, and to the code that runs in them."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from refold.streams.web.guard import TOKEN_ENVIRONMENT
from refold.streams.worker import config, emission
from refold_tests.chart_values import VALUES
from refold_tests.charts import Helm, Object, Values, objects, of_kind, pods, variables
from refold_tests.tree import ROOT

SETS = pytest.mark.parametrize("values", VALUES.values(), ids=VALUES.keys())
PROBES = ("startupProbe", "livenessProbe", "readinessProbe")


def _matches(selector: Object, labels: Object) -> bool:
    return bool(selector) and selector.items() <= labels.items()


@SETS
def test_selectors_match_exactly_their_own_pods(chart: Helm, values: Values) -> None:
    found = objects(chart.template(values))
    every = [(owner, pod) for owner, pod in pods(found)]
    for each in found:
        spec = each.get("spec", {})
        selector = spec.get("selector") or spec.get("podSelector") or {}
        wanted = selector.get("matchLabels", selector)
        if not wanted or "kubernetes" in each["apiVersion"]:
            continue
        hit = [owner["metadata"]["name"] for owner, pod in every if _matches(wanted, pod["metadata"]["labels"])]
        if each["kind"] in ("StatefulSet", "Deployment"):
            assert hit == [each["metadata"]["name"]]
        else:
            assert hit, f"{each['kind']} {each['metadata']['name']} finds no pod"


@SETS
def test_every_pod_is_locked_down(chart: Helm, values: Values) -> None:
    count = 0
    for owner, pod in pods(objects(chart.template(values))):
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False, owner["kind"]
        assert spec["enableServiceLinks"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["securityContext"].get("runAsUser", 1) != 0
        (container,) = spec["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
        }  # fmt: skip
        assert container["resources"]["requests"].keys() == {"cpu", "memory"}
        assert "memory" in container["resources"]["limits"]
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        count += 1
    assert count


@SETS
def test_mounts_exist_and_written_paths_are_volumes(chart: Helm, values: Values) -> None:
    for owner, pod in pods(objects(chart.template(values))):
        (container,) = pod["spec"]["containers"]
        claims = [each["metadata"]["name"] for each in owner["spec"].get("volumeClaimTemplates", [])]
        volumes = [each["name"] for each in pod["spec"]["volumes"]] + claims
        mounts = {each["name"]: each for each in container["volumeMounts"]}
        assert sorted(volumes) == sorted(mounts)
        assert mounts["tmp"]["mountPath"] == variables(pod)["HOME"] == "/tmp"
        for name, mount in mounts.items():
            is_secret = any(each["name"] == name and ("secret" in each or "configMap" in each)
                            for each in pod["spec"]["volumes"])  # fmt: skip
            assert mount.get("readOnly", False) is is_secret


@SETS
def test_probes_use_existing_ports(chart: Helm, values: Values) -> None:
    for owner, pod in pods(objects(chart.template(values))):
        (container,) = pod["spec"]["containers"]
        ports = {each["name"]: each["containerPort"] for each in container.get("ports", [])}
        probes = {name: container[name] for name in PROBES if name in container}
        if owner["kind"] in ("StatefulSet", "Deployment"):
            assert {"startupProbe", "livenessProbe"} <= probes.keys()
        for probe in probes.values():
            assert (probe.get("httpGet") or probe["tcpSocket"])["port"] in ports
        if ports:
            (port,) = ports.values()
            assert [each for each in container["args"] if each.endswith(f"port={port}")]


def test_workers_probes_use_its_pages(chart: Helm) -> None:
    worker = of_kind(objects(chart.template({})), "StatefulSet")["spec"]["template"]["spec"]["containers"][0]
    source = (ROOT / "streams" / "worker" / "host" / "pages.py").read_text(encoding="utf-8")
    pages = set(re.findall(r'"(\w+)"', source.split("OWN_PAGES = ")[1].splitlines()[0]))
    asked = {name: worker[name]["httpGet"]["path"] for name in PROBES}
    assert asked == {"startupProbe": "/health", "livenessProbe": "/health", "readinessProbe": "/ready"}
    assert {path.strip("/") for path in asked.values()} | {"metrics"} <= pages


@pytest.mark.parametrize(("name", "secret"), [("", "demo-refold-worker-token"), ("ours", "ours")])
def test_clients_of_workers_have_their_token(chart: Helm, name: str, secret: str) -> None:
    found = objects(chart.template({**VALUES["postgres"], "workers": {"token": {"existingSecret": name}}}))
    for owner, pod in pods(found):
        given = variables(pod).get(TOKEN_ENVIRONMENT)
        # The hook asks no worker.
        is_hook = owner["metadata"]["name"].endswith("-topics")
        assert given == (None if is_hook else {"secretKeyRef": {"name": secret, "key": "token"}}), owner["kind"]


def test_tls_workers_are_probed_scraped_and_queried_by_their_certificates_names(chart: Helm) -> None:
    given: Object = {**VALUES["postgres"], "workers": {"tls": {"existingSecret": "pages"}},
                     "monitoring": {"serviceMonitor": {"enabled": True}}}  # fmt: skip
    found = objects(chart.template(given))
    pod = of_kind(found, "StatefulSet")["spec"]["template"]
    worker = pod["spec"]["containers"][0]
    assert all(worker[name]["httpGet"]["scheme"] == "HTTPS" for name in PROBES)
    assert "--tls-cert=/etc/refold/pages/tls.crt" in worker["args"]
    assert "--tls-key=/etc/refold/pages/tls.key" in worker["args"]
    (url,) = [each.partition("=")[2] for each in worker["args"] if each.startswith("--advertise=")]
    host = url.removeprefix("https://").partition(":")[0]
    assert f"--allow-host={host}" in worker["args"]
    assert host == f"$(POD_NAME).{of_kind(found, 'StatefulSet')['spec']['serviceName']}.tests.svc"
    for owner, each in pods(found):
        name = owner["metadata"]["name"]
        volumes = {volume["name"]: volume for volume in each["spec"]["volumes"]}
        if name.endswith("-topics"):
            assert "pages" not in volumes
            continue
        assert variables(each)["REFOLD_TLS_CA"] == "/etc/refold/pages/ca.crt"
        assert ("items" in volumes["pages"]["secret"]) == (not name.endswith("-worker")), name
    (endpoint,) = of_kind(found, "ServiceMonitor")["spec"]["endpoints"]
    assert endpoint["scheme"] == "https"
    assert endpoint["tlsConfig"]["serverName"] == host.removeprefix("$(POD_NAME).")


def test_tls_sinks_are_probed_and_scraped_by_their_certificates_name(chart: Helm) -> None:
    given: Object = {**VALUES["postgres"], "sinkDefaults": {"tls": {"existingSecret": "sink-tls"}},
                     "monitoring": {"serviceMonitor": {"enabled": True}}}  # fmt: skip
    found = objects(chart.template(given))
    pod = of_kind(found, "Deployment")["spec"]["template"]["spec"]
    sink = pod["containers"][0]
    assert sink["livenessProbe"]["httpGet"]["scheme"] == "HTTPS"
    (mount,) = [each for each in sink["volumeMounts"] if each["name"] == "sink-pages"]
    assert {f"--tls-cert={mount['mountPath']}/tls.crt", f"--tls-key={mount['mountPath']}/tls.key"} <= {*sink["args"]}
    (volume,) = [each["secret"] for each in pod["volumes"] if each["name"] == "sink-pages"]
    assert volume["secretName"] == "sink-tls"
    assert {each["key"] for each in volume["items"]} == {"tls.crt", "tls.key"}
    monitor = of_kind(found, "PodMonitor")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["scheme"] == "https"
    assert endpoint["tlsConfig"] == {
        "ca": {"secret": {"name": "sink-tls", "key": "ca.crt"}},
        "serverName": f"{monitor['metadata']['name']}.tests.svc",
    }
    worker = of_kind(found, "StatefulSet")["spec"]["template"]["spec"]["containers"][0]
    assert not [each for each in worker["args"] if each.startswith("--tls")], "it is of sinks alone"


def test_sinks_without_tls_serve_http(chart: Helm) -> None:
    found = objects(chart.template({**VALUES["postgres"], "monitoring": {"serviceMonitor": {"enabled": True}}}))
    pod = of_kind(found, "Deployment")["spec"]["template"]["spec"]
    assert "scheme" not in pod["containers"][0]["livenessProbe"]["httpGet"]
    assert "sink-pages" not in {each["name"] for each in pod["volumes"]}
    assert "scheme" not in of_kind(found, "PodMonitor")["spec"]["podMetricsEndpoints"][0]


def test_worker_is_addressed_by_its_services_names(chart: Helm) -> None:
    found = objects(chart.template({}))
    words = of_kind(found, "StatefulSet")["spec"]["template"]["spec"]["containers"][0]["args"]
    service = of_kind(found, "Service")["metadata"]["name"]
    names = {each.partition("=")[2] for each in words if each.startswith("--allow-host=")}
    assert {service, f"$(POD_NAME).{service}"} <= names
    assert len(names) == 6


@SETS
def test_grace_period_covers_a_drain(chart: Helm, values: Values) -> None:
    """A transaction under way at SIGTERM takes its whole time at worst, its abort comes on top, then the session of
    whoever waits for the group."""
    drain_s = config.TRANSACTION_MS / 1000 + emission._ABORT_S + config.SESSION_MS / 1000
    for owner, pod in pods(objects(chart.template(values))):
        if owner["kind"] in ("StatefulSet", "Deployment"):
            assert pod["spec"]["terminationGracePeriodSeconds"] >= drain_s


@SETS
def test_workers_have_a_service_and_a_disruption_budget(chart: Helm, values: Values) -> None:
    found = objects(chart.template(values))
    worker, service = of_kind(found, "StatefulSet"), of_kind(found, "Service")
    assert worker["spec"]["serviceName"] == service["metadata"]["name"]
    assert service["spec"]["clusterIP"] == "None"
    budgets = [each for each in found if each["kind"] == "PodDisruptionBudget"]
    enabled = values.get("workers", {}).get("podDisruptionBudget", {}).get("enabled", True)
    assert len(budgets) == enabled
    for each in budgets:
        assert each["spec"]["selector"] == worker["spec"]["selector"]


def test_tables_are_on_volumes_or_in_the_pod(chart: Helm) -> None:
    kept = of_kind(objects(chart.template({})), "StatefulSet")["spec"]
    assert kept["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"] == "20Gi"
    gone = of_kind(objects(chart.template(VALUES["ephemeral"])), "StatefulSet")["spec"]
    assert "volumeClaimTemplates" not in gone
    assert {"name": "data", "emptyDir": {"sizeLimit": "40Gi"}} in gone["template"]["spec"]["volumes"]


def test_topics_job_runs_first_and_needs_nothing_of_the_release(chart: Helm) -> None:
    """A hook before an installation is there alone: an account or a policy of the release would not be."""
    found = objects(chart.template(VALUES["network-policy"]))
    job = of_kind(found, "Job")
    assert job["metadata"]["annotations"]["was/hook"] == "pre-install,pre-upgrade"
    assert job["spec"]["template"]["spec"]["serviceAccountName"] == "default"
    policy = of_kind(found, "NetworkPolicy", "-topics")
    assert policy["metadata"]["annotations"]["was/hook"] == "pre-install,pre-upgrade"
    weights = [int(each["metadata"]["annotations"]["helm.sh/hook-weight"]) for each in (policy, job)]
    assert weights == sorted(weights)
    assert weights[0] < weights[1]


def test_components_connect_as_configured(chart: Helm) -> None:
    found = objects(chart.template(VALUES["sasl"]))
    by = {owner["kind"]: variables(pod) for owner, pod in pods(found)}
    assert by["StatefulSet"]["REFOLD_KAFKA_SASL_USERNAME"] == "fold"
    assert by["StatefulSet"]["REFOLD_KAFKA_SASL_PASSWORD"] == {
        "secretKeyRef": {"name": "kafka-user", "key": "password"}
    }
    assert by["Job"]["REFOLD_KAFKA_CONFIG"] == "/etc/refold/kafka/client.properties"
    assert not [name for name in by["Job"] if name.startswith("REFOLD_KAFKA_SASL")]


def test_keys_are_mounted_only_where_needed(chart: Helm) -> None:
    found = objects(chart.template({**VALUES["retention"], "sinks": VALUES["otlp"]["sinks"] + [
        {**VALUES["postgres"]["sinks"][0]}]}))  # fmt: skip
    having = {owner["metadata"]["name"] for owner, pod in pods(found) if "REFOLD_MASTER_KEY" in variables(pod)}
    assert having == {"demo-refold-retention", "demo-refold-sink-traces"}


def test_each_sink_has_one_replica(chart: Helm) -> None:
    for each in objects(chart.template(VALUES["parquet"])):
        if each["kind"] == "Deployment":
            assert each["spec"]["replicas"] == 1
            assert each["spec"]["strategy"] == {"type": "Recreate"}


def test_sink_has_a_volume_when_configured(chart: Helm) -> None:
    found = objects(chart.template(VALUES["otlp"]))
    claim = of_kind(found, "PersistentVolumeClaim")
    assert claim["spec"]["resources"]["requests"]["storage"] == "1Gi"
    volumes = {each["name"]: each for each in of_kind(found, "Deployment")["spec"]["template"]["spec"]["volumes"]}
    assert volumes["data"] == {"name": "data", "persistentVolumeClaim": {"claimName": claim["metadata"]["name"]}}
    given = of_kind(objects(chart.template(VALUES["parquet"])), "Deployment", "lake-2")["spec"]["template"]["spec"]
    assert {"name": "data", "persistentVolumeClaim": {"claimName": "lake"}} in given["volumes"]


def test_network_policy_allows_only_named_egress(chart: Helm) -> None:
    found = objects(chart.template(VALUES["network-policy"]))
    policies = {each["metadata"]["name"]: each["spec"] for each in found if each["kind"] == "NetworkPolicy"}
    every = {pod["metadata"]["name"] if "name" in pod["metadata"] else owner["metadata"]["name"]
             for owner, pod in pods(found)}  # fmt: skip
    assert policies.keys() == every
    for name, spec in policies.items():
        assert spec["policyTypes"] == ["Ingress", "Egress"]
        assert all(rule.get("to") and rule.get("ports") for rule in spec["egress"]), name
        ports = {port["port"] for rule in spec["egress"] for port in rule["ports"]}
        wanted = {53, 9093, 8081} | ({6066} if name != "demo-refold-topics" else set())
        assert ports == wanted | ({5432} if name == "demo-refold-sink-analytics" else set())
        if name not in ("demo-refold-worker", "demo-refold-sink-analytics", "demo-refold-sink-traces"):
            assert spec["ingress"] == []


def test_monitors_and_rules(chart: Helm) -> None:
    found = objects(chart.template(VALUES["monitoring"]))
    monitor = of_kind(found, "ServiceMonitor")
    service = of_kind(found, "Service")
    assert _matches(monitor["spec"]["selector"]["matchLabels"], service["metadata"]["labels"])
    (endpoint,) = monitor["spec"]["endpoints"]
    bearer = {"type": "Bearer", "credentials": {"name": "demo-refold-worker-token", "key": "token"}}
    assert endpoint.pop("authorization") == bearer
    assert endpoint == {"port": "pages", "path": "/metrics", "interval": "15s"}
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    rules = of_kind(found, "PrometheusRule")["spec"]
    assert rules == yaml.safe_load((ROOT / "monitoring" / "alerts.yml").read_text(encoding="utf-8"))
    board = of_kind(found, "ConfigMap")["data"]["refold.json"]
    assert json.loads(board) == json.loads((ROOT / "monitoring" / "dashboard.json").read_text(encoding="utf-8"))
    sinks = of_kind(found, "PodMonitor")["spec"]
    (of_sinks,) = sinks["podMetricsEndpoints"]
    assert of_sinks == {"port": "metrics", "path": "/metrics", "interval": "15s", "authorization": bearer}


def test_names_of_long_releases_fit(chart: Helm) -> None:
    long: Object = {"nameOverride": "n" * 40, "sinks": VALUES["postgres"]["sinks"], "retention": {"enabled": True}}
    for each in objects(chart.template(long)):
        limit = 52 if each["kind"] in ("CronJob", "StatefulSet") else 63
        assert len(each["metadata"]["name"]) <= limit
        assert all(len(value) <= 63 for value in each["metadata"]["labels"].values())
