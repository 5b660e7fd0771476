"""What an operator adds to the chart's objects: labels, volumes, containers, arguments, places, scaling, monitoring."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from refold_tests.chart_values import VALUES
from refold_tests.charts import ChartRefused, Helm, Object, objects, of_kind, pods
from refold_tests.tree import ROOT


def extras(chart: Helm) -> list[Object]:
    return objects(chart.template(VALUES["extras"]))


def test_common_labels_are_on_every_object_and_pod_but_not_in_selectors(chart: Helm) -> None:
    found = extras(chart)
    for each in found:
        assert each["metadata"]["labels"]["cost-centre"] == "42", each["kind"]
    for owner, pod in pods(found):
        assert pod["metadata"]["labels"]["cost-centre"] == "42", owner["metadata"]["name"]
        assert "cost-centre" not in str(owner["spec"].get("selector", ""))


def test_volumes_containers_and_arguments_are_added_to_every_component(chart: Helm) -> None:
    said = {}
    for owner, pod in pods(extras(chart)):
        name = owner["metadata"]["name"].removeprefix("demo-refold-")
        if name == "test":
            continue
        (container,) = pod["spec"]["containers"]
        assert {"name": "ca", "configMap": {"name": "company-ca"}} in pod["spec"]["volumes"], name
        assert {"name": "ca", "mountPath": "/etc/ssl/company", "readOnly": True} in container["volumeMounts"], name
        assert [each["name"] for each in pod["spec"]["initContainers"]] == ["wait"], name
        said[name] = container["args"][-1]
    assert said == {
        "worker": "--owner-timeout=60", "sink-analytics": "--owner-timeout=60", "topics": "--json",
        "retention": "--json", "garbage": "--apply",
    }  # fmt: skip


def test_jobs_have_their_own_scheduling_and_service_accounts(chart: Helm) -> None:
    found = extras(chart)
    specs = {owner["metadata"]["name"].removeprefix("demo-refold-"): pod["spec"] for owner, pod in pods(found)}
    for name in ("topics", "retention"):
        wanted = VALUES["extras"][name]
        for key in ("nodeSelector", "tolerations", "affinity", "topologySpreadConstraints"):
            assert specs[name][key] == wanted[key], (name, key)
    accounts = {name: spec["serviceAccountName"] for name, spec in specs.items()}
    assert (accounts["topics"], accounts["garbage"], accounts["retention"]) == ("maker", "cleaner", accounts["worker"])
    # What says nothing of its own goes where workers go.
    placed = {owner["metadata"]["name"].rpartition("-")[2]: pod["spec"]
              for owner, pod in pods(objects(chart.template(VALUES["placed"])))}  # fmt: skip
    for name in ("topics", "test"):
        assert placed[name]["nodeSelector"] == {"disk": "nvme"}
        assert "affinity" not in placed[name]


def test_workers_service_has_annotations(chart: Helm) -> None:
    assert of_kind(extras(chart), "Service")["metadata"]["annotations"] == {"note": "a"}


def test_autoscaler_has_at_most_as_many_workers_as_partitions(chart: Helm) -> None:
    found = objects(chart.template(VALUES["autoscaled"]))
    scaler, workers = of_kind(found, "HorizontalPodAutoscaler"), of_kind(found, "StatefulSet")
    assert (scaler["spec"]["minReplicas"], scaler["spec"]["maxReplicas"]) == (2, 8)
    assert scaler["spec"]["scaleTargetRef"]["name"] == workers["metadata"]["name"]
    assert "replicas" not in workers["spec"]
    keda = objects(chart.template(VALUES["keda"]))
    scaled = of_kind(keda, "ScaledObject")["spec"]
    assert (scaled["minReplicaCount"], scaled["maxReplicaCount"]) == (1, 4)
    assert scaled["scaleTargetRef"]["name"] == of_kind(keda, "StatefulSet")["metadata"]["name"]
    assert scaled["triggers"][0]["metadata"]["consumerGroup"] == "refold.agents"
    assert not [each for each in keda if each["kind"] == "HorizontalPodAutoscaler"]
    assert not [each for each in objects(chart.template({})) if each["kind"] == "HorizontalPodAutoscaler"]
    for bad, said in (({"maxReplicas": 9}, "the log has 8 partitions"), ({"minReplicas": 9}, "at most 8 workers")):
        with pytest.raises(ChartRefused, match=said):
            chart.template({"workers": {"autoscaling": {"enabled": True, **bad}}})


@pytest.mark.parametrize("name", ["monitoring", "renamed-monitoring"])
def test_alert_on_up_selects_the_jobs_of_this_release(chart: Helm, name: str) -> None:
    """By the operator's rules: the job is the value of `jobLabel`, on the Service or on the pod."""
    found = objects(chart.template(VALUES[name]))
    alerts = {rule["alert"]: rule for group in of_kind(found, "PrometheusRule")["spec"]["groups"]
              for rule in group["rules"]}  # fmt: skip
    matched = re.search(r'job=~"([^"]*)"', alerts["RefoldDown"]["expr"])
    assert matched
    service, monitor = of_kind(found, "Service"), of_kind(found, "ServiceMonitor")["spec"]
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert re.fullmatch(matched[1], service["metadata"]["labels"][monitor["jobLabel"]])
    (sink,) = (pod for owner, pod in pods(found) if owner["kind"] == "Deployment")
    assert re.fullmatch(matched[1], sink["metadata"]["labels"][of_kind(found, "PodMonitor")["spec"]["jobLabel"]])


def test_runbooks_are_at_the_operators_url(chart: Helm) -> None:
    def urls(name: str) -> set[str]:
        rule: dict[str, Any] = of_kind(objects(chart.template(VALUES[name])), "PrometheusRule")
        return {each["annotations"]["runbook_url"] for group in rule["spec"]["groups"] for each in group["rules"]}

    plain = urls("monitoring")
    file = yaml.safe_load((ROOT / "monitoring" / "alerts.yml").read_text(encoding="utf-8"))
    count = sum(len(group["rules"]) for group in file["groups"])
    assert len(plain) == count
    base = "https://docs.example/OPERATIONS.html"
    assert urls("renamed-monitoring") == {each.replace("docs/OPERATIONS.md", base) for each in plain}
    assert all(each.startswith(f"{base}#refold") for each in urls("renamed-monitoring"))


def test_notes_of_a_scaled_release_say_who_owns_the_replicas(chart: Helm) -> None:
    assert "Workers are scaled between 2 and 8" in chart.notes(VALUES["autoscaled"])
