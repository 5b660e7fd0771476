"""The chart by Helm's own lint, and what it renders by Kubernetes' own schemas."""

from __future__ import annotations

import json

import pytest
import yaml

from refold_tests.chart_values import VALUES
from refold_tests.charts import CHART, Helm, Object, objects
from refold_tests.kubernetes_tools import KUBERNETES_VERSIONS, conform
from refold_tests.tree import ROOT

_OPERATORS = ("monitoring.coreos.com/", "keda.sh/")


def test_lint_finds_nothing(chart: Helm) -> None:
    assert "Failed: false" in chart.lint()


@pytest.mark.parametrize("kube", KUBERNETES_VERSIONS)
def test_rendered_objects_are_valid(chart: Helm, kube: str) -> None:
    """Each different object that any set of values gives, in one run of kubeconform, called by the set for its
    messages; the chart asks nothing of the version, so that it need not be rendered again for each."""
    seen: dict[str, Object] = {}
    for name, values in VALUES.items():
        for each in objects(chart.template(values)):
            if not each["apiVersion"].startswith(_OPERATORS):
                found = seen.setdefault(json.dumps(each), each)
                found["metadata"].setdefault("annotations", {}).setdefault("set", name)
    assert len(seen) > 2 * len(VALUES)
    assert conform([*seen.values()], kube) == []


def test_field_unknown_to_kubernetes_would_be_found(chart: Helm) -> None:
    """Deep in an object, where only strict schemas look."""
    found = objects(chart.template({}))
    (worker,) = (each for each in found if each["kind"] == "StatefulSet")
    worker["spec"]["template"]["spec"]["containers"][0]["livenessProbe"]["httpGet"]["prot"] = "pages"
    (wrong,) = conform(found, KUBERNETES_VERSIONS[-1])
    assert wrong["kind"] == "StatefulSet"
    assert "prot" in wrong["msg"]


def test_output_does_not_depend_on_the_clusters_version() -> None:
    """Else what is rendered would have to be looked at for each."""
    for path in CHART.glob("templates/**/*"):
        assert path.is_dir() or ".Capabilities" not in path.read_text(encoding="utf-8")


def test_chart_versions_match_the_project() -> None:
    """The image that it asks for where values name none is of this release."""
    import refold

    told = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert told["appVersion"] == refold.__version__
    first = told["kubeVersion"].removeprefix(">=").removesuffix("-0")
    assert first == KUBERNETES_VERSIONS[0]


def test_alerts_and_dashboard_match_the_project() -> None:
    for name in ("alerts.yml", "dashboard.json"):
        assert (CHART / "files" / name).resolve() == ROOT / "monitoring" / name


def test_notes_name_what_to_know(chart: Helm) -> None:
    said = chart.notes({})
    assert "statefulset/demo-refold-worker" in said
    assert "plain text" in said
    secured = chart.notes({**VALUES["sasl"], **VALUES["ephemeral"], **VALUES["network-policy"]})
    assert "plain text" not in secured.replace(said, "")
    assert "emptyDirs" in secured
