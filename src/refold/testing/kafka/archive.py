"""An archive of Kafka's loaded classes (AppCDS), which about halves the start of each later JVM.

It holds for one Java and one class path, and is made once for each: one broker is started and ended for it. A JVM that
does not like the archive runs without it, so what goes wrong here is passed over.
"""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

from refold.testing.kafka.jars import class_path, fetch_jars, find_java
from refold.testing.kafka.node import Node, new_cluster_id
from refold.testing.kafka.ports import free_ports
from refold.testing.kafka.settings import node_settings
from refold.testing.processes import ServerFailed, locked


def classes_option() -> list[str]:
    """The JVM's option that reads the archive, made now if this Java has none yet; nothing if it cannot be made."""
    jars = fetch_jars()
    made_for = hashlib.sha256(f"{find_java().version}\n{class_path(jars)}".encode()).hexdigest()[:16]
    archive = jars / f"classes-{made_for}.jsa"
    if not archive.exists():
        with locked(archive.with_suffix(".lock")):
            if not archive.exists():
                _make(archive)
    # An empty one stands for "it cannot be made here".
    return [f"-XX:SharedArchiveFile={archive}"] if archive.stat().st_size else []


def _make(archive: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=".classes-", dir=archive.parent) as work:
        part = Path(work) / "classes.jsa"
        ports = free_ports(1)
        node = Node(1, Path(work), ports[0], options=[f"-XX:ArchiveClassesAtExit={part}"])
        node.write_settings(node_settings(1, ports, node.data))
        try:
            node.format(new_cluster_id())
            node.launch()
            node.await_ready()
        except ServerFailed:
            part.touch()
        finally:
            node.stop()
        part.touch()
        part.rename(archive)
