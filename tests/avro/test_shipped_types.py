"""The shipped types: each file is a valid definition, and docs/TYPES.md says all of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refold.avro.codec import ObservationCodec
from refold.avro.definition import TypeDefinition, parse
from refold.avro.derive import change_node, observation_node, schema_text, state_node
from refold.avro.envelope import ObservationValidator
from refold.avro.errors import ValidationError
from refold.avro.ids import identify
from refold.avro.json_line import LineReader, to_line
from refold.avro.nodes import walk
from refold.avro.observation import Source
from refold_tests.recording import Recorder
from refold_tests.specimens import patches
from refold_tests.tree import ROOT

FILES = sorted((ROOT / "avro" / "types").glob("*.avsc"))
NAMES = (
    *("action", "agent", "agent_session", "audit_event", "claude_project", "claude_session", "document", "effect"),
    "entity_graph",
    *(
        "evaluation",
        "healing",
        "healing_lease",
        "langgraph_checkpoint",
        "langgraph_content",
        "langgraph_directory",
        "langgraph_item",
    ),
    *("langgraph_store", "langgraph_thread"),
    *("openai_session", "pipeline", "run", "runbook", "step", "tool_config", "turn"),
)


def document(path: Path) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return parsed


def definition(path: Path) -> TypeDefinition:
    return parse(document(path), place=path.name)


def test_shipped_types_are_pinned() -> None:
    assert [path.stem for path in FILES] == list(NAMES)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_file_defines_the_type_it_is_named_after(path: Path) -> None:
    found = definition(path)
    assert found.name == path.stem
    for node in (observation_node(found), state_node(found), change_node(found)):
        fastavro.parse_schema(json.loads(schema_text(node)))


def test_tool_config_accepts_the_readmes_example() -> None:
    recorder = Recorder()
    recorder.observe("tool_config/acme", {"rate_limit": 50}, source=Source("docs"), observed_at=0)
    with pytest.raises(ValidationError, match=r"patch\.rate_limit: an integer"):
        recorder.observe("tool_config/acme", {"rate_limit": "50"}, source=Source("docs"), observed_at=0)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_record_and_field_has_a_doc(path: Path) -> None:
    def missing(tree: Any, place: str) -> list[str]:
        if isinstance(tree, list):
            return [gap for each in tree for gap in missing(each, place)]
        if not isinstance(tree, dict):
            return []
        name = f"{place}.{tree.get('name', '')}"
        named = "name" in tree and tree.get("type") != "fixed"
        gaps = [name] if named and not tree.get("doc", "").strip() else []
        return gaps + [gap for each in tree.values() for gap in missing(each, name)]

    assert missing(document(path), path.stem) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_docs_have_a_row_for_every_field(path: Path) -> None:
    text = (ROOT / "docs" / "TYPES.md").read_text(encoding="utf-8")
    section = text.partition(f"\n## {path.stem}\n")[2].partition("\n## ")[0]
    rows = [line.replace("\\<", "<") for line in section.splitlines() if line.startswith("| ")]
    found = definition(path)
    for each in found.fields.values():
        reducer = f"{each.reducer}, last {each.limit:,}" if each.limit else each.reducer
        ending = f" | {reducer} | {each.doc} |"
        assert any(row.startswith(f"| {each.name} | ") and row.endswith(ending) for row in rows), each.name
        for node in walk(each.node):
            if node["type"] == "record" and node["name"].startswith("refold.types."):
                for inner in node["fields"]:
                    ending = f" | {inner['doc']} |"
                    assert any(row.startswith(f"| {inner['name']} | ") and row.endswith(ending) for row in rows)
            assert ", ".join(node.get("symbols", ())) in section
    assert (f"Closed by `{found.closed_by}`" in section) == bool(found.closed_by)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
@given(data=st.data())
@settings(max_examples=20)
def test_any_valid_observation_round_trips_through_log_and_line(path: Path, data: st.DataObject) -> None:
    found = definition(path)
    blobs: dict[bytes, bytes] = {}
    patch = data.draw(patches(found))
    observation = ObservationValidator(found).build(
        f"{found.name}/1", patch, observed_at=0, now=0, source=Source("docs"), blobs=blobs
    )
    codec = ObservationCodec(found)
    assert codec.decode_observation(codec.encode_observation(observation)) == observation
    line = json.loads(json.dumps(to_line(observation, identify(observation), found)))
    assert LineReader([found]).read(line, {})[0] == observation
