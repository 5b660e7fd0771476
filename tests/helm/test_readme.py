"""The chart's README, as far as it can be followed without a cluster."""

from __future__ import annotations

import re
import textwrap
from typing import Any

import pytest
import yaml

from refold_tests.charts import CHART, RELEASE, Helm, objects
from refold_tests.kubernetes_tools import KUBERNETES_VERSIONS, conform
from refold_tests.tree import ROOT

_TEXT = (CHART / "README.md").read_text(encoding="utf-8")
_BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


def _blocks(language: str) -> list[str]:
    return [textwrap.dedent(body) for _, found, body in _BLOCK.findall(_TEXT) if found == language]


def test_every_shown_set_of_values_renders_validly(chart: Helm) -> None:
    shown = [yaml.safe_load(each) for each in _blocks("yaml")]
    assert len(shown) >= 8
    found = [each for values in shown for each in objects(chart.template(values))]
    assert (
        conform(
            [each for each in found if not each["apiVersion"].startswith(("monitoring.coreos.com/", "keda.sh/"))],
            KUBERNETES_VERSIONS[-1],
        )
        == []
    )


def test_names_in_its_commands_exist(chart: Helm) -> None:
    commands = [line for block in _blocks("shell") for line in block.replace("\\\n", " ").splitlines()]
    assert [line for line in commands if line.startswith("helm ")]
    (values, *_) = (yaml.safe_load(each) for each in _blocks("yaml"))
    names = {f"{each['kind'].lower()}/{each['metadata']['name']}" for each in objects(chart.template(values))}
    told = " ".join(commands) + _TEXT
    for kind, name in re.findall(r"\b(statefulset|job)/([\w-]+)", told):
        assert f"{kind}/{name.replace('agents', RELEASE)}" in names
    for line in commands:
        if line.startswith("helm") and "test" not in line:
            assert "helm/refold" in line
            assert (ROOT / "helm" / "refold" / "Chart.yaml").is_file()
            assert "--values my-values.yaml" in line
    assert "`my-values.yaml`" in _TEXT


@pytest.mark.parametrize("link", re.findall(r"\]\(([^)#:]+)\)", _TEXT))
def test_links_resolve(link: str) -> None:
    assert (CHART / link).exists()


def test_each_value_is_documented() -> None:
    rows: list[Any] = re.findall(r"^\| `[^`]+` \|.*?\| *(.*?) *\|$", _TEXT, re.MULTILINE)
    assert all(rows)
