"""Builds peers into the user's cache, once per version of their sources."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from refold.testing.fetching import fetched, find_maven, run_fetch, run_maven
from refold.testing.processes import ServerMissing, cache_folder

_COLLECTOR_BUILDER = "go.opentelemetry.io/collector/cmd/builder"
_COLLECTOR_RELEASE = "v0.165.0"  # as in otel-collector/builder.yaml


@cache
def built_java(project: Path) -> Path:
    """Return the classes and libraries of a Maven project, built with the shared fold of `jvm-fold`.

    Raises:
        ServerMissing: There is no JDK or no Maven.
    """
    what = f"bench/peers/{project.name}"
    shared = project.parent / "jvm-fold"
    folder = cache_folder() / f"bench-{project.name}-{_digest([project, shared], '.xml', '.java')}"
    if not folder.is_dir():
        find_maven(what)
        home = os.environ.get("JAVA_HOME")
        if shutil.which("javac", path=str(Path(home) / "bin") if home else None) is None:
            raise ServerMissing(f"{what} needs a JDK; on Debian and Ubuntu: apt install default-jdk-headless")

    def build(whole: Path) -> None:
        copy = shutil.copytree(project, whole.with_name("project"), ignore=shutil.ignore_patterns("target"))
        shutil.copytree(shared, copy / "src" / "main" / "java", dirs_exist_ok=True)
        options = ("-DincludeScope=runtime", "-DoutputDirectory=target/libs", "compile")
        run_maven(what, "copy-dependencies", *options, folder=copy)
        (copy / "target").rename(whole)

    return fetched(folder, build)


@cache
def built_python(project: Path) -> Path:
    """Return the Python of a virtual environment with a project's requirements. Raises ServerMissing if pip fails."""
    what = f"bench/peers/{project.name}"
    release = f"{sys.version_info.major}.{sys.version_info.minor}"
    folder = cache_folder() / f"bench-{project.name}-py{release}-{_digest([project], '.txt')}"

    def build(whole: Path) -> None:
        # The folder is renamed afterwards: only its `python` is used, which does not depend on its path.
        run_fetch(what, [sys.executable, "-m", "venv", str(whole)], whole.parent)
        pip = [str(whole / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        run_fetch(what, [*pip, "--requirement", str(project / "requirements.txt")], whole.parent)

    return fetched(folder, build) / "bin" / "python"


@cache
def built_collector() -> Path:
    """Return the program of the OpenTelemetry Collector, built by its own builder from Go's module proxy.

    Raises:
        ServerMissing: There is no Go, or it cannot be built in ten minutes.
    """
    project = Path(__file__).parent / "otel-collector"
    what = f"bench/peers/{project.name}"
    folder = cache_folder() / f"bench-{project.name}-{_digest([project], '.yaml')}"
    if not folder.is_dir() and shutil.which("go") is None:
        raise ServerMissing(f"{what} needs Go; on Debian and Ubuntu: apt install golang-go")

    def build(whole: Path) -> None:
        # The builder's own `go mod tidy` also asks for what the modules' tests import, which may not be there.
        config, sources = project / "builder.yaml", whole.with_name("sources")
        modules = re.findall(r"gomod: (\S+) (v\S+)", config.read_text())
        given = ["--config", str(config), f"--output-path={sources}", "--skip-get-modules", "--skip-compilation"]
        run_fetch(what, ["go", "run", f"{_COLLECTOR_BUILDER}@{_COLLECTOR_RELEASE}", *given], whole.parent)
        run_fetch(what, ["go", "mod", "init", "collector"], sources)
        run_fetch(what, ["go", "get", *(f"{module}@{release}" for module, release in modules)], sources)
        run_fetch(what, ["go", "build", "-mod=mod", "-o", str(whole / "collector"), "."], sources)

    return fetched(folder, build) / "collector"


def _digest(projects: Sequence[Path], *suffixes: str) -> str:
    sources = sorted(path for project in projects for path in project.rglob("*") if path.suffix in suffixes)
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
