"""Export and import preserve the set: ids, states and root, with JSON lines and with Avro containers."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import refold
from refold.avro.blob import Sealed
from refold.avro.derive import observation_node
from refold.avro.errors import CorruptionError, InputError
from refold.avro.ids import ENVELOPE, identify
from refold.avro.json_line import OUTSIDE_ID, to_line
from refold.avro.observation import Link, Observation, Source
from refold.avro.shipped import shipped_types
from refold.streams.client import Log
from refold.streams.exchange.atomic_file import whole_file, write_json_lines
from refold.streams.exchange.container import SCHEMA, write_container
from refold.streams.exchange.export import RunningExport
from refold.streams.exchange.files import ExchangeFile
from refold.streams.exchange.import_files import IncomingFiles
from refold.streams.exchange.import_types import TypeCatalog
from refold.streams.exchange.intake import WINDOW, Intake
from refold_tests.histories import histories, with_offsets
from refold_tests.reference import reference_hash, reference_root, reference_states
from refold_tests.sample_types import THING, defined, document, reference_definition

pytestmark = pytest.mark.outside

BEGIN = 1_700_000_000_000_000
CONFIG = "tool_config/acme"


def written(log: Log, path: Path, at: str | None = None) -> int:
    """Export to a file, in the format of its ending; returns the number of observations."""
    outgoing = RunningExport(log.port, log.point(at).cut)
    with path.open("wb") as file:
        if path.suffix == ".avro":
            write_container(file, outgoing.lines(), outgoing.definitions())
        else:
            write_json_lines(file, [*outgoing.definitions(), *outgoing.lines()], zipped=path.suffix == ".gz")
    return outgoing.exported


def import_files(url: str, *paths: Path, types: tuple[Path, ...] = (), window: int = WINDOW) -> Intake:
    """Import files into a log."""
    with refold.open(url, types=types) as log:
        mine = {name: log.types[name] for name in log.types if name not in shipped_types()} if types else {}
        incoming = IncomingFiles(
            [ExchangeFile(path) for path in paths], TypeCatalog(log.port.registry, mine, shipped_types())
        )
        count = incoming.check(lambda digest: log.port.blobs.get(digest) is not None)
        found = Intake(log, window=window)
        incoming.record(log, found)
        assert found.read == found.durable == count
        return found


def ids(url: str) -> set[bytes]:
    with refold.open(url, read_only=True) as log:
        return {record.id for part, end in log.port.ends().items() for record in log.port.read(part, 0, end)}


def rooted(url: str) -> tuple[str, int, int]:
    with refold.open(url, read_only=True) as log:
        view = log.rebuild()
        return view.root, view.observations, len(view)


def filled(log: Log) -> None:
    """Observations that use every part of the envelope, and every form a value can have."""
    first = log.observe(CONFIG, {"rate_limit": 50, "tags": ["b", "a"], "enabled": True}, source="deployer")
    second = log.observe(CONFIG, {"rate_limit": 70}, source=Source("ops", "r", "s", "t", 2**40), priority=-3)
    log.observe(CONFIG, {"rate_limit": 60}, causes=[first, second], retracts=[second], subject="p-1")
    log.observe(CONFIG, cleared=["enabled", "tags"])
    log.observe("evaluation/e", {"score": 0.1}, observed_at="2999-01-01T00:00:00.000001Z", allow_future=True)
    log.link("step/r#1", "of", "run/r", valid_from="2026-01-01T00:00:00Z")
    log.unlink("step/r#1", "of", "run/r")
    texts = {"$blob": "x"}, {"$json": {"$sealed": 1}}, [1.5, None, True, {"a": "\u2028\U0001f600"}], -0.0, "", 2**63
    log.observe("document/\u00e9 \U0001f600", {"fields": {str(n): text for n, text in enumerate(texts)}})
    log.observe("document/big", {"fields": {"text": "x" * 300_000, "gone": None}})
    log.observe(
        "agent_session/s",
        {"goal": Sealed("key-1", b"\0\xff"), "messages": [{"index": 0, "role": "user", "content": "hi"}]},
    )
    log.observe("run/r", {"input": "y" * 5_000, "started_at": BEGIN})
    log.flush()


@pytest.fixture
def full(tmp_path: Path) -> str:
    url = f"file:{tmp_path / 'full'}"
    with refold.open(url) as log:
        filled(log)
    return url


@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz", "x.avro"])
def test_every_form_of_observation_round_trips(full: str, tmp_path: Path, name: str) -> None:
    with refold.open(full, read_only=True) as log:
        assert written(log, tmp_path / name) == 11
    other = f"file:{tmp_path / 'other'}?partitions=2"
    found = import_files(other, tmp_path / name)
    assert (found.new, found.known, len(found.entities)) == (11, 0, 7)
    assert ids(other) == ids(full)
    assert rooted(other) == rooted(full)
    with refold.open(other) as log:
        assert log.verify().ok
        assert written(log, tmp_path / f"again-{name}") == 11
    assert import_files(full, tmp_path / f"again-{name}").new == 0


def test_lines_have_their_position_and_every_part(full: str, tmp_path: Path) -> None:
    with refold.open(full, read_only=True) as log:
        written(log, tmp_path / "x.jsonl")
        log_id = log.port.log_id.hex()
    lines = [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()]
    places = [(line["origin"]["partition"], line["origin"]["offset"]) for line in lines]
    assert places == sorted(places)
    for line in lines:
        assert line.keys() - {"blobs"} == {*ENVELOPE, "id", "origin"}
        assert line["origin"]["log"] == log_id
        assert line["source"].keys() == {"agent", "run", "step", "tool", "seq"}
    assert sum("blobs" in line for line in lines) == 2


def test_wire_id_line_and_container_have_the_same_parts() -> None:
    statement = Observation(CONFIG, 0, source=Source("a"), patch={"rate_limit": 1})
    definition = shipped_types()["tool_config"]
    wire = {field["name"] for field in observation_node(definition)["fields"]}
    line = to_line(statement, identify(statement), definition).keys()
    assert wire == set(ENVELOPE) == line - {"id"}
    assert {field["name"] for field in SCHEMA["fields"]} == wire | OUTSIDE_ID


def test_equal_exports_are_equal_bytes(full: str, tmp_path: Path) -> None:
    with refold.open(full, read_only=True) as log:
        for name in ("a.gz", "b.gz"):
            written(log, tmp_path / name)
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()


def test_repeat_is_exported_once(tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'log'}"
    with refold.open(url) as log:
        for _ in range(3):
            log.observe(CONFIG, {"rate_limit": 1}, source=Source("a", "r"), observed_at=BEGIN)
            log.observe("document/d", {"fields": {"a": 1}}, source=Source("a", "r", seq=1), observed_at=BEGIN)
        log.flush()
        assert sum(log.port.ends().values()) == 6
        assert written(log, tmp_path / "x.jsonl") == 2


def test_export_up_to_a_point(full: str, tmp_path: Path) -> None:
    with refold.open(full) as log:
        log.mark("then")
        before = ids(full)
        log.observe(CONFIG, {"rate_limit": 99})
        log.flush()
        written(log, tmp_path / "x.jsonl", "@then")
        with pytest.raises(InputError, match="without an observed time"):
            RunningExport(log.port, log.point("2026-01-01T00:00:00Z", None, "observed").cut)
    other = f"file:{tmp_path / 'other'}"
    import_files(other, tmp_path / "x.jsonl")
    assert ids(other) == before


@settings(max_examples=12)
@given(history=histories(), chance=st.randoms(use_true_random=False), name=st.sampled_from(["x.jsonl", "x.avro"]))
def test_any_history_in_any_order_is_the_same_state(
    history: list[Observation], chance: random.Random, name: str
) -> None:
    with TemporaryDirectory() as folder:
        path, one, other = Path(folder) / name, f"file:{folder}/one", f"file:{folder}/other"
        with refold.open(f"{one}?partitions=4") as log:
            for each in history:
                log.append(each, identify(each), THING, {})
            log.flush()
            written(log, path)
        if name == "x.jsonl":
            lines = path.read_bytes().splitlines(keepends=True) * 2
            chance.shuffle(lines)
            path.write_bytes(b"".join(lines))
        distinct = {identify(each): each for each in history}
        found = import_files(f"{other}?partitions=16", path)
        assert found.new == len(distinct)
        states = reference_states(reference_definition(THING), with_offsets(list(distinct.values())))
        root = reference_root({entity: reference_hash(state) for entity, state in states.items()}).hex()
        assert rooted(one) == rooted(other) == (root, len(distinct), len(states))


# Exported definitions


def v2() -> dict[str, Any]:
    return document(extra={"type": "string", "refold.reducer": "latest"})


@pytest.fixture
def evolved(tmp_path: Path) -> str:
    """A log whose type has two versions, with observations under each."""
    url = f"file:{tmp_path / 'evolved'}"
    with refold.open(url) as log:
        log.register(THING)
        log.observe("everything/1", {"last": 1}, source="a")
        log.register(defined(v2()))
        log.observe("everything/1", {"extra": "x"}, source="a")
        log.observe(CONFIG, {"rate_limit": 1})
    return url


@pytest.mark.parametrize("name", ["x.jsonl", "x.avro"])
def test_export_carries_the_types_it_needs(evolved: str, tmp_path: Path, name: str) -> None:
    with refold.open(evolved, read_only=True) as log:
        written(log, tmp_path / name)
        carried = [version.definition.fingerprint for version in log.port.registry.versions("everything")]
    if name == "x.jsonl":
        lines = (tmp_path / name).read_bytes().splitlines(keepends=True)
        assert [list(json.loads(line)) for line in lines[:2]] == [["definition", "offset"]] * 2
        # The definitions are last, twice, the newer one first.
        (tmp_path / name).write_bytes(b"".join([*lines[2:], *reversed(lines[:2]), *lines[:2]]))
    other = f"file:{tmp_path / 'other'}"
    import_files(other, tmp_path / name)
    assert rooted(other) == rooted(evolved)
    with refold.open(other, read_only=True) as log:
        assert [each.definition.fingerprint for each in log.port.registry.versions("everything")] == carried


def test_log_keeps_its_own_newest_version_of_a_type(evolved: str, tmp_path: Path) -> None:
    with refold.open(evolved, read_only=True) as log:
        written(log, tmp_path / "x.jsonl")
    newer = defined(document(extra=v2()["fields"][-1], third={"type": "long", "refold.reducer": "max"}))
    other = f"file:{tmp_path / 'other'}"
    with refold.open(other) as log:
        log.register(newer)
    import_files(other, tmp_path / "x.jsonl")
    with refold.open(other, read_only=True) as log:
        assert [each.definition for each in log.port.registry.versions("everything")] == [newer]
        assert log.state("everything/1").fields == {"last": 1, "extra": "x"}


def test_log_with_the_first_version_gets_the_second(evolved: str, tmp_path: Path) -> None:
    with refold.open(evolved, read_only=True) as log:
        written(log, tmp_path / "x.jsonl")
    other = f"file:{tmp_path / 'other'}"
    with refold.open(other) as log:
        log.register(THING)
    import_files(other, tmp_path / "x.jsonl")
    assert rooted(other) == rooted(evolved)


def test_unregistrable_type_is_refused_before_anything_is_written(evolved: str, tmp_path: Path) -> None:
    with refold.open(evolved, read_only=True) as log:
        written(log, tmp_path / "x.jsonl")
    whole = (tmp_path / "x.jsonl").read_text()
    other = f"file:{tmp_path / 'other'}"
    (tmp_path / "gone.jsonl").write_text(whole.replace("refold_tests.histories:folded", "refold_tests.absent:folded"))
    with pytest.raises(InputError, match=r"gone\.jsonl:3: the custom reducer .* is not registered here"):
        import_files(other, tmp_path / "gone.jsonl")
    clash = defined(document(extra={"type": "long", "refold.reducer": "latest"}))
    with refold.open(other) as log:
        log.register(THING)
        log.register(clash)
    with pytest.raises(InputError, match="extra"):
        import_files(other, tmp_path / "x.jsonl")
    assert ids(other) == set()


# Contents


def test_missing_content_refuses_the_export(full: str, tmp_path: Path) -> None:
    [*_, content] = [path for path in (tmp_path / "full" / "blobs").rglob("*") if path.is_file()]
    content.unlink()
    with refold.open(full, read_only=True) as log, pytest.raises(CorruptionError, match=content.name):
        written(log, tmp_path / "x.jsonl")


def test_only_referenced_contents_are_stored(full: str, tmp_path: Path) -> None:
    with refold.open(full, read_only=True) as log:
        written(log, tmp_path / "x.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()]
    for line in lines:
        line["blobs"] = {**line.get("blobs", {}), hashlib.sha256(b"hi").hexdigest(): "aGk="}
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    import_files(f"file:{tmp_path / 'other'}", tmp_path / "x.jsonl")
    names = [{path.name for path in (tmp_path / name / "blobs").rglob("*")} for name in ("full", "other")]
    assert names[0] == names[1]


# The intake, and whole files


def test_repeats_are_found_within_and_across_windows(full: str, tmp_path: Path) -> None:
    with refold.open(full, read_only=True) as log:
        written(log, tmp_path / "x.jsonl")
    found = import_files(f"file:{tmp_path / 'other'}", *[tmp_path / "x.jsonl"] * 3, window=4)
    assert (found.read, found.new, found.known) == (33, 11, 22)
    with refold.open(f"file:{tmp_path / 'other'}", read_only=True) as log:
        assert sum(log.port.ends().values()) == 11, "a repeat takes no place in the log"


def test_lines_without_an_id_are_new_observations(tmp_path: Path) -> None:
    line = {"entity": CONFIG, "observed_at": "2026-01-01T00:00:00Z", "patch": {"rate_limit": 5}}
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(json.dumps(line).encode()))
    assert import_files(f"file:{tmp_path / 'log'}", tmp_path / "x.jsonl.gz").new == 1


def test_users_own_type_is_used_to_read(tmp_path: Path) -> None:
    (tmp_path / "everything.avsc").write_text(json.dumps(document()))
    line = {"entity": "everything/1", "observed_at": 0, "patch": {"last": 5}}
    (tmp_path / "x.jsonl").write_text(json.dumps(line))
    url = f"file:{tmp_path / 'log'}"
    with pytest.raises(InputError, match="unknown type 'everything'"):
        import_files(url, tmp_path / "x.jsonl")
    assert import_files(url, tmp_path / "x.jsonl", types=(tmp_path / "everything.avsc",)).new == 1


def lines_then_failure() -> Iterator[Mapping[str, Any]]:
    yield {"a": 1}
    raise OSError(28, "No space left on device")


def test_file_exists_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    with pytest.raises(OSError, match="No space"), whole_file(path) as file:
        write_json_lines(file, lines_then_failure(), zipped=False)
    assert list(tmp_path.iterdir()) == []
    with whole_file(path) as file:
        write_json_lines(file, [{"a": 1}], zipped=False)
    with pytest.raises(InputError, match="--force"), whole_file(path):
        pass
    with whole_file(path, replace=True) as file:
        file.write(b"new")
    assert path.read_bytes() == b"new"
    assert [each.name for each in tmp_path.iterdir()] == ["x.jsonl"]


def test_compressed_lines_are_read() -> None:
    file = io.BytesIO()
    write_json_lines(file, [{"a": "\u00e9"}, {"b": 1}], zipped=True)
    assert gzip.decompress(file.getvalue()).decode() == '{"a":"\u00e9"}\n{"b":1}\n'


def test_link_round_trips_whole(tmp_path: Path) -> None:
    url, other = f"file:{tmp_path / 'log'}", f"file:{tmp_path / 'other'}"
    link = Link("of", "run/r", 1, 2)
    with refold.open(url) as log:
        log.observe("step/s", kind="link", link=link)
        log.flush()
        written(log, tmp_path / "x.avro")
    import_files(other, tmp_path / "x.avro")
    with refold.open(other, read_only=True) as log:
        [found] = log.state("step/s").links
        assert (found["relation"], found["target"], found["valid_from"], found["valid_to"]) == ("of", "run/r", 1, 2)
