"""Readers of records, called as logs call them with bytes. They refuse with a RefoldError; anything else is a
defect.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import shutil
import sys
from collections.abc import Callable
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Any

import cbor2
import msgspec

from refold.agents.capture.spool import read_exchange
from refold.agents.keys.files import FileKeyRing
from refold.agents.keys.kafka import KafkaKeyRing
from refold.agents.keys.master import read_masters
from refold.avro.codec import framed_id
from refold.avro.errors import InputError, KeyUnreadable, RefoldError, SchemaError, UndecodableError
from refold.avro.registry import Registry
from refold.avro.shipped import shipped_types
from refold.streams.change_codec import ChangeCodec
from refold.streams.cut import parse_cut
from refold.streams.deadletters import read_verdict
from refold.streams.log.file.framing import result_of
from refold.streams.log.kafka.deadletters import is_verdict
from refold.streams.log.kafka.lookups import (
    parse_arrivals,
    parse_lookup,
    parse_pairs,
    parse_places,
    parse_records,
    parse_totals,
    read_answer,
)
from refold.streams.log.kafka.manifests import is_entry
from refold.streams.log.kafka.records import NoObservation, checked_observation
from refold.streams.log.kafka.schemas import readable_definition
from refold.streams.log.kafka.settings import CONFIG_ENVIRONMENT, read_settings
from refold.streams.registry.settings import registry_settings
from refold.streams.snapshots.manifest import PREFIX, epoch_of, read_manifest
from refold_tests.fuzz.trees import unpacked

SHOWN = 1_000


@cache
def registry() -> Registry:
    """Return the shipped types, in the order of their names."""
    found = Registry()
    for _, each in sorted(shipped_types().items()):
        found.add(each)
    return found


@cache
def _change_codecs() -> dict[int, ChangeCodec]:
    return {version.changes.wire_id: ChangeCodec(version) for version in registry()}


def observation(data: bytes) -> None:
    """Read a record of `.observations`. If it is not an observation, it gets a verdict."""
    try:
        checked_observation(registry(), 0, 1, unpacked(data))
    except NoObservation as error:
        str(error).encode()


def definition(data: bytes) -> None:
    """Read a record of `.schemas`."""
    try:
        _, found, ids = readable_definition(unpacked(data))
        registry().check(found, ids)
    except SchemaError as error:
        str(error).encode()


def deadletter(data: bytes) -> None:
    """Read a record of `.deadletters`, as lists show it."""
    from refold.explorer.cli.operate.deadletters import show_letter, whole_json
    from refold.explorer.cli.output.screen import Screen
    from refold.explorer.queries.deadletters import letter_json
    from refold.streams.deadletters import describe_dead_letter

    raw = unpacked(data)
    if is_verdict(raw):
        letter = describe_dead_letter(registry(), 5, read_verdict(0, raw.value or b""))
        letter_json(letter)
        whole_json(letter, registry())
        show_letter(Screen(), letter, registry())


def manifest(data: bytes) -> None:
    """Read a record of `.manifests`."""
    raw = unpacked(data)
    key = raw.key or b""
    if is_entry(0, key, raw.value) and key.startswith(PREFIX) and raw.value is not None:
        found = read_manifest(raw.value, epoch_of(key))
        assert found.entities >= 0
        assert sum(each.end + each.start for each in found.spans) >= 0
        assert [bytes(each) for each in (*found.slots, found.root, found.log_id, found.previous, found.digest)]


def change(data: bytes) -> None:
    """Read a record of `.changes`."""
    codec = _change_codecs().get(framed_id(data))
    if codec is None:
        raise UndecodableError("undecodable", "a schema that nobody has")
    codec.encode(codec.decode(data))


def key(data: bytes) -> None:
    """Read a record of `.keys`. Records that no key ring wrote are skipped."""
    ring: Any = KafkaKeyRing.__new__(KafkaKeyRing)
    ring._records = {}
    ring._take(cbor2.dumps(["run/r-1"]), 0, b"x")
    raw = unpacked(data)
    ring._take(raw.key or b"", 1, raw.value)
    "".join(ring._records).encode()


def lookup(data: bytes) -> None:
    """Read a request to a worker."""
    parse_lookup(data)


def look_up_answer(data: bytes) -> None:
    """Read a worker's answer, as the answer to each possible request."""
    tree = read_answer(data, "http://worker")
    refused = []
    reads = (parse_arrivals, parse_records, parse_places, parse_pairs, parse_totals)
    for read in reads:
        try:
            read(tree)
        except RefoldError as error:
            refused.append(error)
    if len(refused) == len(reads):
        raise refused[0]


def cut(data: bytes) -> None:
    """Read the text of a cut."""
    parse_cut(data.decode())


def answer(data: bytes) -> None:
    """Read an answer of a log's owner."""
    try:
        said = cbor2.loads(data, max_depth=200)
    except (cbor2.CBORDecodeError, ValueError, TypeError) as error:  # as in `receive`
        raise InputError(str(error)) from error
    result_of(said)


def explorer(data: bytes) -> None:
    """Have a conversation with the explorer's pages."""
    from refold_tests.fuzz import served

    served.explorer(data)


def log_files(data: bytes) -> int:
    """Run a command on a log in which one file was changed."""
    from refold.explorer.cli.main import run

    name, changed, command = cbor2.loads(data)
    shutil.rmtree("damaged", ignore_errors=True)
    shutil.copytree("kept", "damaged")
    Path("damaged", name).write_bytes(changed)
    return run([*command, "--log", "file:damaged"])


def owner(data: bytes) -> None:
    """Have a conversation with a log's owner."""
    from refold_tests.fuzz import served

    served.owner(data)


def pages(data: bytes) -> None:
    """Have a conversation with a worker's pages."""
    from refold_tests.fuzz import served

    served.pages(data)


def policy_file(data: bytes) -> None:
    """Read a policy, and decide on a call by it."""
    from refold.agents.journal.record import RecordedRequest
    from refold.agents.policy.decision import decide
    from refold.agents.policy.facts import RunFacts
    from refold.agents.policy.rules import Policy

    asked = RecordedRequest(kind="tool", name="look", request={"kwargs": {"order": 7, "to": [1]}}, effect="write")
    policy = Policy.load("record")
    decide(policy, RunFacts(policy), asked)


def plan(data: bytes) -> None:
    """Read a plan, choose its remedies for a diagnosis, and raise the limits that they raise. It imports nothing."""
    from refold.agents.heal.diagnosis import KINDS, Diagnosis, RunFinding
    from refold.agents.heal.plan import HealPlan
    from refold.agents.heal.registered import remedy_named

    found = HealPlan.load("record")
    diagnosis = Diagnosis("r", "a", "failed", tuple(RunFinding(kind, "look", "", 0) for kind in KINDS))
    Path("policy.toml").write_text("name = 'p'\n[budget]\ntokens = 5\n")
    for each in found.remedy:
        each.finding(diagnosis)
        with contextlib.suppress(InputError):
            msgspec.structs.replace(found, guard="policy.toml").policy(each)
        with contextlib.suppress(InputError):
            remedy_named(each.function)
    assert "this" not in sys.modules, "a function that the file names"


def agents_file(data: bytes) -> None:
    """Read a file of agents, and the variables that it gives them."""
    from refold.agents.supervise.settings import load_agents

    for each in load_agents(Path("record")).values():
        with contextlib.suppress(InputError):
            each.environment({"HOME": "/"})
        assert 0 <= each.backoff_after(9) <= 86_400


def prices(data: bytes) -> None:
    """Read a table of prices."""
    from refold.agents.usage import prices as reading
    from refold.agents.usage.tokens import TokenUsage

    reading._prices.cache_clear()
    found = reading.prices({reading.PRICES_ENVIRONMENT: "record"})
    usage = TokenUsage(input=300_000, output=7, cached=3, written=2, written_hour=1)
    for name in found.models:
        cost = found.cost(name, usage)
        assert cost is None or (cost >= 0 and isfinite(cost)), (name, cost)


def kafka_settings(data: bytes) -> None:
    """Read a file of settings for Kafka's clients and the Schema Registry. No message may show a secret from it."""
    environment = {CONFIG_ENVIRONMENT: "record"}
    try:
        repr(read_settings(environment))
        repr(registry_settings(environment))
    except InputError as error:
        if "secret" in str(error):
            raise AssertionError(error) from error
        raise


def key_file(data: bytes) -> None:
    """Read a file of a key ring. An unreadable file is named, and does not prevent anything else."""
    folder = Path("ring")
    shutil.rmtree(folder, ignore_errors=True)
    ring = FileKeyRing(folder)
    ring.create("run/r-2")
    (folder / hashlib.sha256(b"run/r-1").hexdigest()).write_bytes(data)
    assert "run/r-2" in ring.ids()
    try:
        ring.get("run/r-1")
    except KeyUnreadable:
        assert [each.key_id for each in ring.damaged(["run/r-1"])] == ["run/r-1"]
        raise


def master_key(data: bytes) -> None:
    """Read a file with master keys."""
    read_masters("file:record")


def spool(data: bytes) -> None:
    """Read a file of a spool."""
    read_exchange(Path("record"))


def checkpoint(data: bytes) -> None:
    """Read a checkpoint of LangGraph's. Nothing that it names may be imported or called."""
    from refold.agents.adapters.langgraph.listed_classes import ListedClassesSerializer

    logging.getLogger("langgraph").addHandler(logging.NullHandler())
    kind, packed = cbor2.loads(data)
    before = set(sys.modules)
    try:
        ListedClassesSerializer().loads_typed((kind, packed))
    finally:
        assert not Path("hacked").exists()
        assert "refold_tests.fuzz.hostile" not in set(sys.modules) - before


READERS: dict[str, Callable[[bytes], int | None]] = {
    each.__name__: each
    for each in (
        observation, definition, deadletter, manifest, change, key, lookup, look_up_answer, cut, answer, owner, pages,
        log_files, policy_file, plan, agents_file, prices, kafka_settings, key_file, master_key, spool, checkpoint,
        explorer,
    )
}  # fmt: skip


def call(name: str, file: str) -> int:
    """Read a file's bytes with a reader; return 0 if they are valid, 2 if they are refused, or what the reader
    returns.
    """
    try:
        return READERS[name](Path(file).read_bytes()) or 0
    except RefoldError as error:
        print("refold:", " ".join(str(error).split())[:SHOWN], file=sys.stderr)
        return 2
