"""The Dockerfile, without Docker: read step by step, linted, and its build stage carried out as far as it is ours."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import refold
from refold.sinks.registry import SINKS
from refold_tests.charts import CHART, Helm, objects, of_kind, pods
from refold_tests.kubernetes_tools import hadolint
from refold_tests.tree import FOLDERS, ROOT, shipped_files

_TEXT = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def _steps() -> list[list[tuple[str, str]]]:
    """Each stage's instructions: what, and with what."""
    lines = "\n".join(line for line in _TEXT.splitlines() if line.strip() and not line.startswith("#"))
    stages: list[list[tuple[str, str]]] = []
    for line in lines.replace("\\\n", " ").splitlines():
        what, _, given = line.partition(" ")
        if what == "FROM":
            stages.append([])
        stages[-1].append((what, " ".join(given.split())))
    return stages


_, BUILD, FINAL = _steps()


def instructions(stage: list[tuple[str, str]], what: str) -> list[str]:
    return [given for each, given in stage if each == what]


def _copied() -> set[str]:
    """What the build stage takes from the sources."""
    return {path for given in instructions(BUILD, "COPY") if "--from=" not in given for path in given.split()[:-1]}


def test_linter_finds_nothing() -> None:
    done = subprocess.run([str(hadolint()), str(ROOT / "Dockerfile")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_image_runs_as_nobody_without_a_shell(chart: Helm) -> None:
    assert instructions(FINAL, "ENTRYPOINT") == ['["refold"]']
    assert instructions(FINAL, "CMD") == ['["--help"]']
    (user,) = instructions(FINAL, "USER")
    uid, gid = user.split(":")
    last = [what for what, _ in FINAL].index("USER")
    assert "RUN" not in [what for what, _ in FINAL[last:]]
    made = instructions(FINAL, "RUN")[-1]
    assert f"--gid {gid} refold" in made
    assert f"--uid {uid} --gid {gid}" in made
    assert f"--owner {uid} --group {gid} /data" in made
    ids = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))["podSecurity"]
    assert ids == {"runAsUser": int(uid), "runAsGroup": int(gid), "fsGroup": int(gid)}
    worker = of_kind(objects(chart.template({})), "StatefulSet")["spec"]["template"]["spec"]["containers"][0]
    assert f"--data={instructions(FINAL, 'WORKDIR')[0]}" in worker["args"]
    for _, pod in pods(objects(chart.template({}))):
        assert "command" not in pod["spec"]["containers"][0]


def test_image_has_the_allocator_that_it_preloads() -> None:
    preloaded = next(given for given in instructions(FINAL, "ENV") if "LD_PRELOAD" in given)
    assert preloaded == "LD_PRELOAD=libjemalloc.so.2"
    assert any("install --yes --no-install-recommends libjemalloc2" in given for given in instructions(FINAL, "RUN"))


def test_image_is_of_this_release_on_a_supported_python() -> None:
    assert f"VERSION={refold.__version__}" in instructions(FINAL, "ARG")
    assert f"docker build -t refold:{refold.__version__} ." in _TEXT
    (base,) = {given.split()[0] for given in instructions(BUILD, "FROM") + instructions(FINAL, "FROM")}
    found = re.fullmatch(r"python:3\.(\d+)-slim-bookworm", base)
    assert found
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f"Programming Language :: Python :: 3.{found[1]}" in project["classifiers"]
    extras = next(given for given in instructions(BUILD, "ARG")).removeprefix("EXTRAS=").split(",")
    assert {"kafka", "registry", "s3", *SINKS} & project["optional-dependencies"].keys() <= set(extras)


def test_build_context_has_only_the_sources() -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
               if line.startswith("!")}  # fmt: skip
    assert _copied() == allowed
    assert {*FOLDERS, "src", "kernel"} <= allowed
    assert "\n*\n" in (ROOT / ".dockerignore").read_text(encoding="utf-8")


@pytest.mark.outside
@pytest.mark.xdist_group("wheel")
def test_copied_files_build_the_whole_wheel_and_its_command_runs(tmp_path: Path) -> None:
    """The build stage's COPY and `pip wheel`, in a folder for /build, with the hatchling at hand."""
    build, wheels, site = tmp_path / "build", tmp_path / "wheels", tmp_path / "site"
    build.mkdir()
    for source in _copied():
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, build / source, symlinks=True,
                            ignore=shutil.ignore_patterns("__pycache__", "target"))  # fmt: skip
        else:
            shutil.copy(ROOT / source, build / source)
    (step,) = (given for given in instructions(BUILD, "RUN") if given.startswith("pip wheel") and given.endswith(" ."))
    words = step.replace("/wheels", str(wheels)).split()
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONSAFEPATH": "1"}
    _run([sys.executable, "-m", *words, "--no-build-isolation", "--quiet"], build, environment)
    (wheel,) = wheels.glob("refold-*.whl")
    _run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(wheel)],
         build, environment)  # fmt: skip
    assert {each for each in shipped_files() if not (site / each).is_file()} == set()
    said = _run([str(site / "bin" / "refold"), "--version"], tmp_path, {**environment, "PYTHONPATH": str(site)})
    assert said.startswith(f"refold {refold.__version__} (")


def _run(command: list[str], folder: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
