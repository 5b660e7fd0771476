"""Builds peers into the user's cache, once per version of their sources."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from refold.testing.fetching import fetched, find_maven, run_fetch, run_maven
from refold.testing.processes import ServerMissing, cache_folder


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


def _digest(projects: Sequence[Path], *suffixes: str) -> str:
    sources = sorted(path for project in projects for path in project.rglob("*") if path.suffix in suffixes)
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
