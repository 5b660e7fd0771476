"""The published vectors: recomputed here, and again in Node by a script that shares no code with refold."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import cbor2
import pytest

from refold.avro.codec import ObservationCodec
from refold.avro.definition import REDUCERS, parse
from refold.avro.derive import change_node
from refold.avro.ids import ENVELOPE, identify
from refold.avro.json_line import LineReader
from refold.streams.cut import parse_cut
from refold.streams.log.kafka.fold_position import TAKEN, THROUGH
from refold_tests import vectors
from refold_tests.absent import without
from refold_tests.reference import encode, murmur2, reference_root, reference_slot
from refold_tests.sample_types import THING
from refold_tests.tree import ROOT

SCRIPT = ROOT / "tests" / "node" / "vectors.mjs"
IDENTITY = vectors.published("identity.json")
ROOTS = vectors.published("root.json")
# Computing the vectors takes a second, and every process of a run collects this module.
PUBLISHED = sorted(each.name for each in vectors.FOLDER.glob("*.json"))

# From the tests of Kafka's own client, org.apache.kafka.common.utils.UtilsTest.
KAFKA_MURMUR2 = {
    "21": -973932308,
    "foobar": -790332482,
    "a-little-bit-long-string": -985981536,
    "a-little-bit-longer-string": -1486304829,
    "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    "abc": 479470107,
}


def named(case: Any) -> str:
    """A case's name, for pytest's own list."""
    return str(case["name"])


def test_every_vector_file_is_published() -> None:
    assert sorted(vectors.files()) == PUBLISHED


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_vectors_are_reproduced(name: str) -> None:
    """These bytes are in somebody's log: a change here is a broken promise, whatever made it."""
    published, computed = vectors.published(name), vectors.files()[name]
    for part in ("cases", "keys"):
        cases = computed.get(part, [])
        assert [each["name"] for each in cases] == [each["name"] for each in published.get(part, [])]
        for now, then in zip(cases, published.get(part, []), strict=True):
            assert json.loads(json.dumps(now)) == then
    assert computed == published


@pytest.mark.parametrize("case", IDENTITY["cases"], ids=named)
def test_hashed_bytes_are_deterministic_cbor(case: dict[str, Any]) -> None:
    tree = cbor2.loads(bytes.fromhex(case["cbor"]))
    assert encode(tree).hex() == case["cbor"]


def test_cases_share_an_id_only_where_they_say_so() -> None:
    firsts: dict[str, str] = {}
    for case in IDENTITY["cases"]:
        same_as = case.get("same_as")
        if same_as is None:
            assert firsts.setdefault(case["id"], case["name"]) == case["name"]
    for case in IDENTITY["cases"]:
        same_as = case.get("same_as", case["name"])
        assert {each["id"] for each in IDENTITY["cases"] if each["name"] in (case["name"], same_as)} == {case["id"]}


@pytest.mark.parametrize("case", IDENTITY["cases"], ids=named)
def test_published_line_is_read_under_its_id(case: dict[str, Any]) -> None:
    definition = parse(IDENTITY["definition"])
    observation, found, _ = LineReader([definition]).read(case["line"], {})
    assert found.hex() == case["id"]
    assert identify(observation).hex() == case["id"]


def test_published_messages_are_read_under_their_ids() -> None:
    wire = vectors.published("wire.json")
    codec = ObservationCodec(parse(wire["definition"]))
    assert (codec.text, codec.wire_id) == (wire["schema"], wire["schema_id"])
    for case in wire["cases"]:
        message = bytes.fromhex(case["message"])
        observation = codec.decode_observation(message)
        assert identify(observation).hex() == case["id"]
        assert codec.encode_observation(observation) == message


def test_murmur2_matches_kafkas_client() -> None:
    published = {each["name"]: each["murmur2"] for each in ROOTS["keys"]}
    assert {key: published[key] for key in KAFKA_MURMUR2} == KAFKA_MURMUR2
    for each in ROOTS["keys"]:
        assert (murmur2(each["name"].encode()) - each["murmur2"]) % 2**32 == 0
        assert reference_slot(each["name"]) == each["slot"]
        assert each["slot"] % 8 == each["partition_of_8"]


@pytest.mark.parametrize("case", ROOTS["cases"], ids=named)
def test_roots_match_the_naive_form(case: dict[str, Any]) -> None:
    table = {entity: bytes.fromhex(state_hash) for entity, state_hash in case["entities"].items()}
    assert reference_root(table).hex() == case["root"]


@pytest.mark.parametrize("case", vectors.published("cut.json")["cases"], ids=named)
def test_published_cut_is_read_whole(case: dict[str, Any]) -> None:
    cut = parse_cut(case["text"])
    assert str(cut) == case["text"]
    assert vectors.cut_vector((case["name"], cut)) == case


def test_order_keys_ascend() -> None:
    keys = [case["key"] for case in vectors.published("order.json")["cases"]]
    assert keys == sorted(keys)
    assert len(set(keys)) == len(keys)


def test_regenerated_vectors_are_unchanged(tmp_path: Path) -> None:
    said: list[str] = []
    assert vectors.main(said.append, tmp_path) == 0
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        name: (ROOT / "avro" / "vectors" / name).read_bytes() for name in vectors.files()
    }
    changed = tmp_path / "identity.json"
    changed.write_text(
        changed.read_text(encoding="ascii").replace(IDENTITY["cases"][3]["id"], "00" * 32), encoding="ascii"
    )
    before = changed.read_bytes()
    said.clear()
    assert vectors.main(said.append, tmp_path) == 1
    assert said == [f"identity.json: {IDENTITY['cases'][3]['name']}: published already, and would change"]
    assert changed.read_bytes() == before


def test_format_page_names_every_file_and_every_part() -> None:
    page = (ROOT / "docs" / "FORMAT.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    assert {f"`{path.name}`" for path in vectors.FOLDER.iterdir()} <= {row[0] for row in rows}
    assert set(REDUCERS) == {name for row in rows for name in row[0].split(", ") if name in REDUCERS}
    identity = page.partition("\n## Identity\n")[2].partition("\n## ")[0]
    for name, key in ENVELOPE.items():
        assert f"| `{key}` | {name}" in identity


def test_format_page_names_every_part_of_a_change_and_every_header() -> None:
    page = " ".join((ROOT / "docs" / "FORMAT.md").read_text(encoding="utf-8").split())
    change = change_node(THING)
    said = page.partition("`refold.change.<type>`: ")[2].partition(" and steps: one for each observation, with ")
    (steps,) = (each for each in change["fields"] if each["name"] == "steps")

    def names(fields: list[dict[str, Any]]) -> list[str]:
        return [each["name"] for each in fields]

    def listed(text: str) -> list[str]:
        return [re.sub(r" \(.*?\)", "", each) for each in text.split(", ")]

    assert [*listed(said[0]), "steps"] == names(change["fields"])
    whole = said[2].replace("its mutations in each of `fields`, and `links`", "fields, links").partition(". ")[0]
    assert listed(whole) == names(steps["type"]["items"]["fields"])
    for header in (THROUGH, TAKEN):
        assert f"`{header}`" in page.partition("| `.changes` | the entity's | ")[2].partition("| `.deadletters` |")[0]


def node() -> str:
    """The program, or a skip; in CI a failure, for there the vectors must have a second reader."""
    return shutil.which("node") or without("no node on PATH: the vectors go unchecked in JavaScript")


def checked_in_node(folder: Path) -> subprocess.CompletedProcess[str]:
    """What the script says of a folder of vectors."""
    return subprocess.run([node(), str(SCRIPT), str(folder)], capture_output=True, text=True, check=False)


def test_node_computes_the_same_bytes() -> None:
    done = checked_in_node(ROOT / "avro" / "vectors")
    assert (done.returncode, done.stderr) == (0, "")
    count, _, rest = done.stdout.partition(" ")
    assert rest == "values checked, 0 differ\n"
    assert int(count) > 2 * len(IDENTITY["cases"])


@pytest.mark.parametrize("name", PUBLISHED)
def test_node_names_the_differing_case(tmp_path: Path, name: str) -> None:
    """A check that cannot fail checks nothing: one digit of one case of each file is changed."""
    shutil.copytree(ROOT / "avro" / "vectors", tmp_path / "vectors")
    path = tmp_path / "vectors" / name
    content = json.loads(path.read_text(encoding="ascii"))
    case = content["cases"][1]
    part = next(key for key in ("cbor", "message", "text", "key", "root") if key in case)
    flipped = {"0": "1"}.get(case[part][-1], "0")
    case[part] = case[part][:-1] + flipped
    if name == "wire.json":
        case[part] = "01" + case[part][2:]
    path.write_text(json.dumps(content), encoding="ascii")
    done = checked_in_node(tmp_path / "vectors")
    assert done.returncode == 1
    assert f"{name}: {case['name']}: " in done.stderr
