"""The Java programs in tests/java. They are built once for each state of their sources, and use only public formats."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

from refold.testing.fetching import fetched, find_maven, run_maven
from refold.testing.processes import ServerMissing, cache_folder
from refold_tests.absent import without
from refold_tests.tree import ROOT

NEEDS = "needs a JDK and Maven: "
_PROJECT = ROOT / "tests" / "java"
_WHAT = "what tests/java is made of"
_RUN_S = 120


def run_java(main: str, *arguments: str, given: str = "") -> str:
    """Run a main class of tests/java with a text as input; return its output. Without JDK and Maven the test is
    skipped.
    """
    built = _built()
    path = os.pathsep.join([str(built / "classes"), *map(str, sorted((built / "libs").glob("*.jar")))])
    command = [_find("java"), "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", path, main, *arguments]
    done = subprocess.run(
        command, input=given, capture_output=True, text=True, encoding="utf-8", timeout=_RUN_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@cache
def _built() -> Path:
    sources = sorted(path for path in _PROJECT.rglob("*") if path.suffix in (".xml", ".java"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    folder = cache_folder() / f"tests-java-{digest}"
    if not folder.is_dir():
        _find("javac")
        try:
            find_maven(_WHAT)
        except ServerMissing as error:
            without(f"{NEEDS}{error}")
    return fetched(folder, _build)


def _build(folder: Path) -> None:
    copy = shutil.copytree(_PROJECT, folder.with_name("java"), ignore=shutil.ignore_patterns("target"))
    options = ("-DincludeScope=runtime", "-DoutputDirectory=target/libs", "compile")
    run_maven(_WHAT, "copy-dependencies", *options, folder=copy)
    (copy / "target").rename(folder)


def _find(name: str) -> str:
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(name, path=str(Path(home) / "bin")) if home else shutil.which(name)
    if found is None:
        without(f"{NEEDS}there is no {name}; on Debian and Ubuntu: apt install default-jdk-headless")
    return found
