"""Apache Kafka as plain jars from Maven Central, and the Java to run them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import NamedTuple

from refold.testing.fetching import fetched, find_maven, run_maven
from refold.testing.processes import ServerMissing, cache_folder

KAFKA_VERSION = "4.1.1"
JAVA_MIN = 17

_DEPENDENCIES = (("org.apache.kafka", "kafka_2.13", KAFKA_VERSION), ("org.slf4j", "slf4j-simple", "1.7.36"))
_KAFKA = f"Kafka {KAFKA_VERSION}"
_INSTALL = "on Debian and Ubuntu: apt install default-jre-headless maven; on macOS: brew install openjdk maven"


class Java(NamedTuple):
    """A Java runtime: its command, its major version, and all that it says of its version."""

    command: str
    major: int
    version: str


def missing() -> str | None:
    """Return what this machine lacks to run Kafka, and how to install it; None if nothing is missing."""
    try:
        find_java()
        if not _folder().is_dir():
            find_maven(_KAFKA)
    except ServerMissing as error:
        return str(error)
    return None


@cache
def find_java() -> Java:
    """Return the Java of JAVA_HOME, else of PATH.

    Raises:
        ServerMissing: There is none, or it is too old.
    """
    home = os.environ.get("JAVA_HOME")
    command = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    if command is None:
        where = f"in JAVA_HOME ({home})" if home else "on PATH"
        raise ServerMissing(f"Kafka needs Java {JAVA_MIN} or newer, and there is no java {where}; {_INSTALL}")
    done = subprocess.run([command, "-version"], capture_output=True, text=True, check=False)
    version = done.stderr.strip()
    found = re.search(r'version "(\d+)', version)
    if found is None or int(found[1]) < JAVA_MIN:
        first = (version or done.stdout.strip() or "nothing").splitlines()[0]
        raise ServerMissing(f"Kafka needs Java {JAVA_MIN} or newer, and {command} says: {first}; {_INSTALL}")
    return Java(command, int(found[1]), version)


def fetch_jars() -> Path:
    """Return the folder of Kafka's jars; downloads it if necessary.

    Raises:
        ServerMissing: That fails.
    """
    return fetched(_folder(), _fetch)


def class_path(jars: Path) -> str:
    """Return all jars, in the order that the archive of classes is made for."""
    return os.pathsep.join(str(path) for path in sorted(jars.glob("*.jar")))


def _folder() -> Path:
    return cache_folder() / f"kafka-{KAFKA_VERSION}"


def _fetch(folder: Path) -> None:
    (folder.parent / "pom.xml").write_text(_pom(), encoding="utf-8")
    run_maven(
        _KAFKA, "copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={folder}", folder=folder.parent
    )


def _pom() -> str:
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version></dependency>"
        for group, name, version in _DEPENDENCIES
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>refold</groupId><artifactId>kafka</artifactId><version>1</version><packaging>pom</packaging>"
        f"<dependencies>{dependencies}</dependencies></project>"
    )
