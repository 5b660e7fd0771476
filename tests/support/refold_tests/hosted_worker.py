"""A worker's process without a fold, for tests of what hosts it.

    python -c 'from refold_tests.hosted_worker import main; main()' BOOTSTRAP PREFIX FOLDER MODULE INSTANCE

It follows `<prefix>.changes` with the agents of MODULE, which get a `file:` log in FOLDER, until SIGTERM.
REFOLD_TEST_OUT_OF_GROUP_S: how long their consumer may be out of its group; a line on standard input changes it.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

from refold.agents.log import open_log
from refold.avro.errors import RefoldError
from refold.avro.quarantine import Rulings
from refold.avro.registry import Registry
from refold.avro.shipped import shipped_types
from refold.streams.change_codec import ChangeCodec
from refold.streams.changes import Change
from refold.streams.log.kafka.clients import Clients
from refold.streams.log.kafka.damaged import UnreadableBatches
from refold.streams.log.kafka.range_reader import RawRecord
from refold.streams.log.kafka.topics import Topics
from refold.streams.worker.agents import load_agents
from refold.streams.worker.host.agents_app import AgentsApp, AgentThread
from refold.streams.worker.host.change_consumer import (
    OUT_OF_GROUP_S,
    REBALANCE_MS,
    ChangeConsumer,
    ChangesSource,
    Deliver,
)
from refold.streams.worker.host.process import run_process
from refold.streams.worker.membership import GroupMember

TYPE = "document"


def change_codec() -> ChangeCodec:
    """Return the codec of the one type that these tests use."""
    return ChangeCodec(Registry().add(shipped_types()[TYPE]))


def change(entity: str, version: int) -> Change:
    """Return a change that brings an entity to a version."""
    return Change(
        entity=f"{TYPE}/{entity}", definition=bytes(32), from_version=version - 1, to_version=version, hash_before=None,
        hash_after=bytes(32), through=version, redefined=False, steps=(),
    )  # fmt: skip


class Idle:
    """A fold without work."""

    def __init__(self) -> None:
        self._drained = threading.Event()

    def run(self) -> None:
        self._drained.wait()
        print("drained", flush=True)

    def drain(self) -> None:
        self._drained.set()


class Codec:
    """Decodes every record as a change."""

    def __init__(self) -> None:
        self._codec = change_codec()

    def decode(self, raw: RawRecord, partition: int) -> Change | None:
        return self._codec.decode(raw.value or b"")

    def is_set_aside(self, partition: int, offset: int) -> bool:
        return False


def _hear(consumer: ChangeConsumer) -> None:
    while line := os.read(0, 100):
        consumer.out_of_group_s = float(line)


def main() -> None:
    """Run until a signal. A failure prints one line and exits with status 2."""
    bootstrap, prefix, folder, agents, instance = sys.argv[1:]
    thread = AgentThread(load_agents(agents), lambda: open_log(f"file:{folder}/log"))
    topics = Topics(prefix)
    member = GroupMember(f"{prefix}.agents", topics.changes, instance, is_static=True, rebalance_ms=REBALANCE_MS)
    source = ChangesSource(
        Clients({"bootstrap.servers": bootstrap}, prefix), member, UnreadableBatches(topics, Rulings()), Codec()
    )

    def consumer(deliver: Deliver) -> ChangeConsumer:
        found = ChangeConsumer(source, deliver)
        found.out_of_group_s = float(os.environ.get("REFOLD_TEST_OUT_OF_GROUP_S", OUT_OF_GROUP_S))
        threading.Thread(target=_hear, args=(found,), daemon=True).start()
        return found

    try:
        run_process(Idle(), lambda: AgentsApp(member.group, Path(folder) / "faust", thread, consumer))
    except (RefoldError, OSError) as error:
        print(f"failed: {error}", flush=True)
        sys.exit(2)
    finally:
        thread.close()
