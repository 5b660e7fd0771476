"""The chart helm/refold, rendered by Helm itself and read object by object."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from refold_tests.kubernetes_tools import KUBERNETES_VERSIONS, helm_library
from refold_tests.tree import ROOT

CHART = ROOT / "helm" / "refold"
NAMESPACE = "tests"
RELEASE = "demo"
# The C loader is ten times as fast, but not always available.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
Object = dict[str, Any]
Values = Mapping[str, Any]
_POD_AT = {"Pod": (), "Job": ("spec", "template"), "StatefulSet": ("spec", "template"),
           "Deployment": ("spec", "template"), "CronJob": ("spec", "jobTemplate", "spec", "template")}  # fmt: skip


class Helm:
    """Helm in its own process.

    Its library does not return hooks, so the chart is rendered from a copy in which they are ordinary objects:
    `helm.sh/hook` is renamed to `was/hook`.
    """

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self._process = process
        self._folder = folder
        self._chart = folder / "refold"
        self._rendered: dict[str, str] = {}
        shutil.copytree(CHART, self._chart)
        for path in self._chart.glob("templates/**/*.yaml"):
            path.write_text(path.read_text(encoding="utf-8").replace("helm.sh/hook:", "was/hook:"), encoding="utf-8")

    def template(self, values: Values, kube: str = KUBERNETES_VERSIONS[-1]) -> str:
        """Return what `helm template` prints, including hooks.

        Raises:
            ChartRefused: Helm refuses the values; the message is Helm's.
        """
        key = json.dumps([values, kube])
        if key not in self._rendered:
            self._rendered[key] = self._ask("template", values, kube)
        return self._rendered[key]

    def notes(self, values: Values) -> str:
        """Return the notes that `helm install --dry-run` prints for a release."""
        return self._ask("notes", values, KUBERNETES_VERSIONS[-1], chart=CHART)

    def lint(self) -> str:
        """Return what `helm lint --strict` prints."""
        return self._answer({"do": "lint", "chart": str(CHART)})

    def _ask(self, what: str, values: Values, kube: str, chart: Path | None = None) -> str:
        given = self._folder / "values.json"
        given.write_text(json.dumps(values), encoding="utf-8")
        return self._answer({"do": what, "chart": str(chart or self._chart), "values": [str(given)], "kube": kube,
                           "namespace": NAMESPACE, "name": RELEASE})  # fmt: skip

    def _answer(self, asked: Mapping[str, Any]) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        if answer["error"]:
            raise ChartRefused(answer["error"])
        return str(answer["said"] or "")


class ChartRefused(Exception):
    """Helm refuses values, with this message."""


@contextmanager
def helm(folder: Path) -> Iterator[Helm]:
    """Run Helm until the end of the block. folder: a place for its files."""
    command = [sys.executable, "-P", "-m", "refold_tests.helm_child", str(helm_library())]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests" / "support"), "HOME": str(folder)}
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    )
    with process:
        yield Helm(process, folder)
        assert process.stdin is not None
        process.stdin.close()


def objects(manifests: str) -> list[Object]:
    """Return the objects in YAML documents."""
    return [each for each in yaml.load_all(manifests, Loader=_LOADER) if each]


def of_kind(found: Sequence[Object], kind: str, name: str = "") -> Object:
    """Return the only object of a kind whose name ends with `name`."""
    (one,) = (each for each in found if each["kind"] == kind and each["metadata"]["name"].endswith(name))
    return one


def pods(found: Sequence[Object]) -> Iterator[tuple[Object, Object]]:
    """Yield each object that creates pods, with its pod template (metadata and spec)."""
    for each in found:
        if each["kind"] in _POD_AT:
            pod = each
            for step in _POD_AT[each["kind"]]:
                pod = pod[step]
            yield each, pod


def variables(pod: Object) -> dict[str, Any]:
    """Return a pod's environment variables by name: the value, or its source."""
    (container,) = pod["spec"]["containers"]
    names = [each["name"] for each in container.get("env", [])]
    assert len(names) == len(set(names)), names
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container.get("env", [])}


def arguments(pod: Object) -> list[str]:
    """Return a pod's arguments as its container sees them, with placeholders for what Kubernetes inserts."""
    (container,) = pod["spec"]["containers"]
    stand_ins = {"POD_NAME": "demo-refold-worker-0", "POD_IP": "10.1.2.3"}
    known = variables(pod)

    def put(found: re.Match[str]) -> str:
        assert found[1] in known, f"$({found[1]}) is no variable of {container['name']}"
        return stand_ins.get(found[1]) or str(known[found[1]])

    return [re.sub(r"\$\((\w+)\)", put, each) for each in container["args"]]
