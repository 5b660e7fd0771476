"""The systems in the comparison: each peer's command, and how to build it.

Every peer takes the same arguments and folds until SIGTERM, committing its group's offsets:
KIND (same or plain) BOOTSTRAP TOPIC CHANGES GROUP FOLDER SCHEMA COMMIT_MS
"""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from ctypes.util import find_library
from dataclasses import dataclass
from pathlib import Path

from peers.building import built_java, built_python

from refold.avro.kernel import SWITCH, find_kernel
from refold.testing.kafka.jars import find_java
from refold.testing.processes import ServerMissing

HERE = Path(__file__).parent
COMMIT_MS = 100
# A bare loop with decoding, as measured before refold was written, over 266-byte records: 12.2 us each.
EARLIER_BARE = 81_803
# The sum of a loop's parts, measured separately: 1.8 us to consume and 16 to 19 us to decode, of which the middle.
EARLIER_PARTS = 1e6 / (1.8 + 17.5)


@dataclass(frozen=True)
class Run:
    """One run of a peer: its name on the broker, its folder, and the topic it reads."""

    name: str
    folder: Path
    bootstrap: str
    prefix: str
    topic: str
    schema: Path
    is_plain: bool
    partitions: int
    threads: int

    @property
    def changes(self) -> str:
        """The topic to which a peer writes its changes."""
        return f"{self.name}-changes"

    def words(self) -> list[str]:
        """Return the arguments of every peer."""
        kind = "plain" if self.is_plain else "same"
        return [kind, self.bootstrap, self.topic, self.changes, self.name, str(self.folder), str(self.schema),
                str(COMMIT_MS)]  # fmt: skip


class Contender(ABC):
    """One row of the comparison. earlier_rate: records a second in the earlier measurement on the plain fold;
    earlier_has_start: whether that included start-up. takes_threads: whether it is also run on more than one thread.
    commits_offsets: whether its group's offsets show its progress; if not, the number of its changes does.
    folds_plain: whether it is calibrated on the plain fold."""

    key: str
    name: str
    earlier_rate: float | None = None
    earlier_has_start = True
    takes_threads = False
    commits_offsets = True
    folds_plain = True

    def prepare(self) -> None:  # noqa: B027 - most need nothing
        """Build it, once per version of its sources. ServerMissing says what this machine lacks."""

    def group(self, run: Run) -> str:
        """Return the consumer group whose commits show its progress."""
        return run.name

    @abstractmethod
    def command(self, run: Run) -> list[str]:
        """Return its command line."""


class Bare(Contender):
    """The limit: a consumer that decodes and does nothing else."""

    key, name, earlier_rate = "bare", "bare confluent-kafka loop with decode", EARLIER_BARE
    earlier_has_start = False

    def command(self, run: Run) -> list[str]:
        return [sys.executable, str(HERE / "bare.py"), *run.words()]


class Parts(Contender):
    """The limit of a worker: its calls of confluent-kafka and rocksdict, without refold."""

    key, name = "parts", "the worker's confluent-kafka and rocksdict alone"
    folds_plain = False

    def command(self, run: Run) -> list[str]:
        return [sys.executable, str(HERE / "parts.py"), *run.words()]


class Refold(Contender):
    """`refold worker`, as users start it."""

    takes_threads = True
    folds_plain = False

    def __init__(self, *, uses_kernel: bool, uses_jemalloc: bool = False) -> None:
        self.uses_kernel, self.uses_jemalloc = uses_kernel, uses_jemalloc
        self.key = f"refold{'-kernel' * uses_kernel}{'-jemalloc' * uses_jemalloc}"
        self.name = f"refold worker, {'native kernel' if uses_kernel else 'plain Python'}{', jemalloc' * uses_jemalloc}"

    def prepare(self) -> None:
        if self.uses_jemalloc and find_library("jemalloc") is None:
            raise ServerMissing("jemalloc is not installed (Debian: libjemalloc2)")
        if self.uses_kernel and find_kernel().kernel is None:
            raise ServerMissing(f"{find_kernel().text}; make kernel, then make bench again")

    def group(self, run: Run) -> str:
        return f"refold.{run.prefix}"

    def command(self, run: Run) -> list[str]:
        url = f"kafka://{run.bootstrap}/{run.prefix}"
        preloaded = [f"LD_PRELOAD={find_library('jemalloc')}"] if self.uses_jemalloc else []
        return ["env", *preloaded, f"{SWITCH}={int(self.uses_kernel)}",
                sys.executable, "-m", "refold.explorer.cli.main", "worker", "--log", url, "--data", str(run.folder),
                "--port", "0", "--commit-interval-ms", str(COMMIT_MS), "--processes", str(run.threads)]  # fmt: skip


class JavaPeer(Contender):
    """A peer in Java, built by Maven."""

    takes_threads = True
    folder: str
    options: tuple[str, ...] = ()

    def prepare(self) -> None:
        find_java()
        built_java(HERE / self.folder)

    def command(self, run: Run) -> list[str]:
        built = built_java(HERE / self.folder)
        path = os.pathsep.join([str(built / "classes"), *map(str, sorted((built / "libs").glob("*.jar")))])
        options = ["-Xmx1g", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", *self.options]
        return [find_java().command, *options, "-cp", path, "refold.bench.Main", *run.words(), str(run.threads)]


class KafkaStreams(JavaPeer):
    """Kafka Streams with exactly_once_v2, Avro, and RocksDB stores with their changelogs."""

    key, name, folder = "kafka-streams", "Kafka Streams 4.1.1, exactly_once_v2", "kafka-streams"
    earlier_rate = 31_800


class Flink(JavaPeer):
    """Flink's DataStream API in an embedded cluster: state in RocksDB, checkpoints, a transactional sink."""

    key, name, folder = "flink", "Apache Flink 2.2.1, exactly-once", "flink"
    # Its serializers look into classes of the JDK.
    options = tuple(f"--add-opens=java.base/java.{each}=ALL-UNNAMED" for each in ("lang", "util", "time", "nio"))


class PythonPeer(Contender):
    """A peer in Python, with its own virtual environment."""

    folder: str

    def prepare(self) -> None:
        built_python(HERE / self.folder)

    def command(self, run: Run) -> list[str]:
        # It can import only bench/ of this repository, for peers.pyfold.
        python = built_python(HERE / self.folder)
        return ["env", f"PYTHONPATH={HERE.parent}", str(python), str(HERE / self.folder / "main.py"), *run.words()]


class QuixStreams(PythonPeer):
    """Quix Streams with exactly-once, and RocksDB state with its changelog."""

    key, name, folder, earlier_rate = "quix-streams", "Quix Streams 3.28, exactly-once", "quix-streams", 8_900


class Pathway(PythonPeer):
    """Pathway's stateful reducer: Python on a Rust engine, states in memory, at least once."""

    key, name, folder = "pathway", "Pathway 0.33, states in memory, at least once", "pathway"
    takes_threads = True
    commits_offsets = folds_plain = False

    def command(self, run: Run) -> list[str]:
        return [*super().command(run), str(run.threads)]


class FaustTable(PythonPeer):
    """Faust's tables on RocksDB, at least once."""

    key, name, folder, earlier_rate = "faust", "Faust table 0.15, RocksDB", "faust-table", 800


ALL: list[Contender] = [
    Bare(), Parts(), Refold(uses_kernel=False), Refold(uses_kernel=True), Refold(uses_kernel=True, uses_jemalloc=True),
    KafkaStreams(), Flink(), QuixStreams(), Pathway(), FaustTable(),
]  # fmt: skip
