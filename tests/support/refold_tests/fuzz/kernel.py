"""Damaged observations and states for the native kernel: it makes of them what Python makes, or leaves them to Python.

python -m refold_tests.fuzz.kernel --count 1000000. Where cargo is, `make fuzz` runs it first.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from refold.avro.blob import Blob, Sealed
from refold.avro.codec import FRAME_BYTES, ObservationCodec
from refold.avro.definition import TypeDefinition, parse
from refold.avro.envelope import ObservationValidator
from refold.avro.errors import UndecodableError
from refold.avro.ids import identify
from refold.avro.kernel import Kernel, TypeFolder, find_kernel
from refold.avro.nodes import Node, branches, id_of
from refold.avro.observation import Link, Observation, Source
from refold.avro.registry import Registry
from refold.avro.shipped import shipped_types
from refold.avro.times import TIME_MAX
from refold.reducers.entity import Entity, pack, unpack
from refold.reducers.fold import Fold, Seen
from refold.reducers.order import order_key
from refold.reducers.state import hash_state
from refold.streams.log.port import Record
from refold.streams.table.folds import TypeFold
from refold_tests.both_folds import switched
from refold_tests.fuzz.mutate import damaged
from refold_tests.histories import EVERYTHING_AVSC, LONGS, TEXTS

SAMPLES = 40
"""How many observations and states of each type are damaged."""
DOUBLES = (0.0, 1.0, -1.5, 0.1, 1e300, 5e-324, 2.0**63)


def drawn(chance: random.Random, node: Node) -> Any:
    """Return a random value that an author may give for a node of a schema."""
    choice = chance.choice(branches(node))
    kind, logical = choice["type"], choice.get("logicalType")
    if kind == "record":
        if id_of(choice) == "refold.Blob":
            return Blob(chance.randbytes(32), chance.randrange(2**40), "text/plain")
        if id_of(choice) == "refold.Sealed":
            return Sealed("key", chance.randbytes(20))
        return {each["name"]: drawn(chance, each["type"]) for each in choice["fields"]}
    if kind == "array":
        return [drawn(chance, choice["items"]) for _ in range(chance.randrange(4))]
    if kind == "map":
        return {chance.choice("abcde") * 3: drawn(chance, choice["values"]) for _ in range(chance.randrange(4))}
    if logical == "refold-json":
        return {"a": [1, None, chance.choice(TEXTS)]}
    if logical is not None:
        return chance.randrange(1000)
    plain: dict[str, Callable[[], Any]] = {
        "null": lambda: None, "boolean": lambda: chance.random() < 0.5, "string": lambda: chance.choice(TEXTS),
        "int": lambda: chance.randrange(-(2**31), 2**31), "long": lambda: chance.choice(LONGS),
        "float": lambda: chance.choice((0.5, 1.0, -3.25)), "double": lambda: chance.choice(DOUBLES),
        "bytes": lambda: chance.randbytes(5), "enum": lambda: chance.choice(choice["symbols"]),
    }  # fmt: skip
    return plain[kind]()


class Sample(NamedTuple):
    """A valid observation, and the state of its entity after it."""

    data: bytes
    packed: bytes


class FuzzedType:
    """One type, read and folded by the kernel and by Python."""

    def __init__(self, kernel: Kernel, definition: TypeDefinition, chance: random.Random) -> None:
        version = Registry().add(definition, 0)
        with switched(on=False):
            self.python, self._validator = ObservationCodec(definition), ObservationValidator(definition)
        self.native = ObservationCodec(definition)
        self.fold = Fold(definition)
        folder = TypeFold(version).native(kernel)
        assert folder is not None
        self.folder: TypeFolder = folder
        self.name = f"{definition.name}/a"
        self._number = 0
        self.samples = [self._sample(chance) for _ in range(SAMPLES)]

    def observation(self, chance: random.Random) -> Observation:
        """Return a valid observation of one of a few sources, almost always later than the previous one."""
        fields = self._validator.definition.fields
        self._number += 1
        given: dict[str, Any] = {"patch": {}}
        for name in chance.sample(sorted(fields), min(len(fields), chance.randrange(1, 5))):
            value = drawn(chance, fields[name].node)
            if value is not None:
                given["patch"][name] = value
        if chance.random() < 0.1:
            given["cleared"] = [chance.choice(sorted(fields))]
        if chance.random() < 0.1 or not (given["patch"] or "cleared" in given):
            given = {"kind": chance.choice(("link", "unlink")), "patch": None, "link": Link("about", "t/x", 1)}
        source = Source(chance.choice("abc"), "run", "", "", self._number)
        moment = self._number * 1000 - (50_000 if chance.random() < 0.05 else 0)
        return self._validator.build(self.name, observed_at=moment, now=TIME_MAX, source=source, blobs={}, **given)

    def _sample(self, chance: random.Random) -> Sample:
        entity = Entity(self.name)
        history: list[Seen] = []
        for _ in range(chance.randrange(1, 12)):
            observation = self.observation(chance)
            seen = Seen(len(history), order_key(observation, identify(observation)), observation)
            entity, _ = self.fold.step(entity, seen, lambda: history)
            history.append(seen)
        entity.state_hash = hash_state(self.fold, entity)
        return Sample(self.python.encode_observation(history[-1].observation), pack(entity))

    def reads(self, data: bytes) -> bool:
        """Check that the kernel reads a message as Python does; return whether it is an observation."""
        found, expected = (_result_text(codec, data) for codec in (self.native, self.python))
        assert found == expected, f"{self.name}: {data.hex()} is read as {found}, by Python as {expected}"
        return not found.startswith("undecodable")

    def folds(self, packed: bytes | None, datas: Sequence[bytes]) -> bool:
        """Check that the kernel folds messages onto a stored state as Python does; return whether the kernel folded
        them.
        """
        seen, records = [], []
        for offset, data in enumerate(datas, 1000):
            try:
                observation = self.python.judged(data)
            except UndecodableError:
                assert self.folder.replay([(self.name, packed, [self._record(offset, bytes(32), data)])]) == [None]
                return False
            if observation.entity != self.name:
                return False
            own = identify(observation)
            seen.append(Seen(offset, order_key(observation, own), observation))
            records.append(self._record(offset, own, data))
        (found,) = self.folder.replay([(self.name, packed, records)])
        if found is None:
            return False
        expected = self._by_python(packed, seen)
        assert found == expected, (
            f"{self.name}: {packed!r} and {datas!r} are folded to {found}, by Python to {expected}"
        )
        return True

    def _record(self, offset: int, own: bytes, data: bytes) -> Record:
        return Record(0, offset, 0, self.name, own, data)

    def _by_python(self, packed: bytes | None, seen: Sequence[Seen]) -> object:
        try:
            entity = Entity(self.name) if packed is None else unpack(self.name, packed)
            before = entity.version
            for each in seen:
                if each.id in entity.dedup_state.last_ids:
                    continue
                if not entity.dedup_state.certainly_new(each.q) or self.fold.directly(entity, each) is None:
                    return "the timeline's"
            if entity.version == before:
                return None, 0
            entity.state_hash = hash_state(self.fold, entity)
            return pack(entity), entity.version - before
        except Exception as error:  # damage may cause any exception
            return repr(error)


def _result_text(codec: ObservationCodec, data: bytes) -> str:
    """Return what a message decodes to, as text: types matter, and so does the order of a patch."""
    try:
        return repr(codec.identified(data))
    except UndecodableError as error:
        return f"undecodable: {error}"


def definitions() -> list[TypeDefinition]:
    """Return every shipped type, and one with every reducer except custom.

    JSON is plain text in them, because Python checks it when records are written.
    """
    every = json.loads(EVERYTHING_AVSC)
    own = {**every, "fields": [each for each in every["fields"] if each["refold.reducer"] != "custom"]}
    return [*map(_without_json, (each.document for each in shipped_types().values())), parse(own)]


def _without_json(given: Any) -> TypeDefinition:
    def plain(schema: Any) -> Any:
        if isinstance(schema, dict):
            return "string" if schema.get("logicalType") == "refold-json" else {k: plain(v) for k, v in schema.items()}
        return [plain(each) for each in schema] if isinstance(schema, (list, tuple)) else schema

    return parse(plain({**given}))


def run(seed: int, count: int) -> Counter[str]:
    """Run `count` damaged inputs; return how many of each kind were valid.

    Raises:
        AssertionError: The kernel and Python differ.
    """
    kernel = find_kernel().kernel
    assert kernel is not None, find_kernel().text
    chance = random.Random(seed)
    types = [FuzzedType(kernel, definition, chance) for definition in definitions()]
    found: Counter[str] = Counter()
    for _ in range(count):
        fuzzed = chance.choice(types)
        data, packed = chance.choice(fuzzed.samples)
        what = chance.random()
        if what < 0.4:
            data = data[:FRAME_BYTES] + damaged(chance, data[FRAME_BYTES:])
            found["read"] += len(data) > FRAME_BYTES and fuzzed.reads(data)
        elif what < 0.7:
            datas = [chance.choice(fuzzed.samples).data for _ in range(chance.randrange(1, 3))]
            found["folded onto a damaged state"] += fuzzed.folds(damaged(chance, packed), datas)
        else:
            datas = [chance.choice(fuzzed.samples).data, data[:FRAME_BYTES] + damaged(chance, data[FRAME_BYTES:])]
            found["damaged ones folded"] += fuzzed.folds(chance.choice((None, packed)), datas[chance.randrange(2) :])
    assert kernel.panics() == 0, f"the kernel panicked {kernel.panics()} times"
    return found


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    parser.add_argument("--count", type=int, default=1_000_000)
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    found = run(given.seed, given.count)
    print(f"{given.count:,} damaged inputs; of them {', '.join(f'{count:,} {what}' for what, count in found.items())}")


if __name__ == "__main__":
    main()
