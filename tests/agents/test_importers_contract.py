"""Every importer obeys the rules of refold.testing.importers, with hand-made samples and with real ones."""

from __future__ import annotations

import base64
import gzip
import json
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.agents.importers.registry import OWN, importer_of
from refold.avro.blob import Blob
from refold.testing.importers import Imports, check_importer, imports_of
from refold_tests.tree import ROOT

pytestmark = pytest.mark.outside

SAMPLES = ROOT / "tests" / "agents" / "samples"
OF = {
    "chat.jsonl": "chat",
    "anthropic.jsonl": "chat",
    "sharegpt.jsonl": "chat",
    "pairs.jsonl": "chat",
    "array.json": "chat",
    "tau_bench.jsonl": "tau-bench",
    "function_calling.traj": "swe-agent",
    "claude.jsonl": "claude-code",
    "claude_sidechain.jsonl": "claude-code",
    "codex.jsonl": "codex",
    "codex_old.jsonl": "codex",
    "otlp_gen_ai.jsonl": "otlp",
    "otlp_openinference.jsonl": "otlp",
    "otlp_traceloop.json": "otlp",
}
COUNTS = {
    "chat.jsonl": (4, 8, 8), "anthropic.jsonl": (1, 2, 2), "sharegpt.jsonl": (1, 2, 1), "pairs.jsonl": (3, 4, 3),
    "array.json": (3, 6, 6), "tau_bench.jsonl": (2, 4, 4), "function_calling.traj": (1, 2, 2),
    "claude.jsonl": (2, 5, 4), "claude_sidechain.jsonl": (2, 3, 1), "codex.jsonl": (1, 2, 2),
    "codex_old.jsonl": (1, 2, 1), "otlp_gen_ai.jsonl": (2, 2, 1), "otlp_openinference.jsonl": (1, 3, 3),
    "otlp_traceloop.json": (1, 2, 2),
}  # fmt: skip
"""The expected numbers of conversations, steps and actions."""
KEPT = {
    "claude.jsonl": {"line of type file-history-snapshot": 1, "line of type queue-operation": 1},
    "codex.jsonl": {"item of type ghost_snapshot": 1, "line of type world_state": 1},
    "codex_old.jsonl": {"line without a type": 1},
    "otlp_gen_ai.jsonl": {"span without a known kind": 2},
    "otlp_openinference.jsonl": {"span of kind GUARDRAIL": 1},
}
LEFT_OUT = {
    "otlp_gen_ai.jsonl": {"line of resourceMetrics": 1},
    "otlp_openinference.jsonl": {"span that was there before": 1},
}


def counts(found: Imports) -> tuple[int, int, int]:
    kinds = Counter(each.partition("/")[0] for each in found.entities)
    return kinds["run"], kinds["step"], kinds["action"]


def latest(found: Imports, entity: str) -> dict[str, Any]:
    patches = (each.patch for each in found.by_id.values() if each.entity == entity)
    return {name: whole(found, value) for patch in patches for name, value in patch.items()}


def whole(found: Imports, value: Any) -> Any:
    """Return a value, or the content that it refers to; for JSON its text."""
    return found.blobs[value.hash].decode() if isinstance(value, Blob) else value


@pytest.mark.parametrize("name", OF)
def test_each_importer_keeps_the_rules(name: str) -> None:
    found = check_importer(importer_of(OF[name]), SAMPLES / name)
    assert counts(found) == COUNTS[name]
    assert found.unknown == KEPT.get(name, {})
    assert found.left_out == LEFT_OUT.get(name, {})


def test_each_shipped_importer_has_a_sample() -> None:
    assert set(OF.values()) == set(OWN)
    assert {path.name for path in SAMPLES.iterdir() if path.is_file()} == {*OF, "README.md"}


def test_each_real_trajectory_keeps_the_rules(sessions_folder: Path) -> None:
    files = sorted(sessions_folder.glob("*.traj.gz"))
    assert len(files) >= 3
    for path in files:
        found = check_importer(importer_of("swe-agent"), path)
        with gzip.open(path) as file:
            written = json.load(file)
        [run] = (each for each in found.entities if each.startswith("run/"))
        steps = written["trajectory"]
        assert counts(found) == (1, len(steps), len(steps))
        for number, step in enumerate(steps, 1):
            action = latest(found, f"action/{run.partition('/')[2]}#{number}.1")
            assert action["tool"] == step["action"].split()[0]
            assert action["output"] == step["observation"]
            assert json.loads(action["inputs"]) == {"action": step["action"]}
        assert latest(found, run)["output"] == json.dumps(written["info"]["submission"])
        assert found.without_time == 1


def test_real_tau_bench_runs_keep_the_rules(tau_bench_file: Path) -> None:
    assert check_importer(importer_of("tau-bench"), tau_bench_file).conversations == 100


def test_turns_of_a_real_session_keep_the_rules(turns_file: Path, tmp_path: Path) -> None:
    """Requests as they were sent, each with an empty answer, because their responses are compressed streams."""
    lines = []
    with tarfile.open(turns_file) as archive:
        for member in archive:
            if member.name.endswith("/request.json") and (file := archive.extractfile(member)) is not None:
                request = json.loads(base64.b64decode(json.load(file)["body_b64"]))
                lines.append({"request": request, "response": {"type": "message", "content": []}})
    assert len(lines) == 9
    path = tmp_path / "turns.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    found = check_importer(importer_of("chat"), path)
    uses = [block for line in lines for block in blocks(line["request"]["messages"]) if block["type"] == "tool_use"]
    actions = [latest(found, each) for each in found.entities if each.startswith("action/")]
    assert Counter(each["tool"] for each in actions) == Counter(each["name"] for each in uses)
    results = [
        block for line in lines for block in blocks(line["request"]["messages"]) if block["type"] == "tool_result"
    ]
    assert sum("output" in each for each in actions) == len(results) > 0


def blocks(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [block for each in messages if isinstance(each["content"], list) for block in each["content"]]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
BLOCKS = st.one_of(
    st.builds(lambda text: {"type": "text", "text": text}, st.text(max_size=8)),
    st.builds(lambda text: {"type": "thinking", "thinking": text}, st.text(max_size=8)),
    st.builds(lambda i, args: {"type": "tool_use", "id": i, "name": "t", "input": args}, st.sampled_from("abc"), JSON),
    st.builds(
        lambda i, text: {"type": "tool_result", "tool_use_id": i, "content": text}, st.sampled_from("abc"), st.text()
    ),
    st.builds(lambda value: {"type": "image", "source": value}, JSON),
)
MESSAGES = st.builds(
    lambda role, content, more: {"role": role, "content": content, **more},
    st.sampled_from(["system", "user", "assistant", "tool"]),
    st.none() | st.text(max_size=20) | st.lists(BLOCKS, max_size=4),
    st.dictionaries(st.sampled_from(["x", "y", "timestamp"]), st.integers(0, 2**33), max_size=2),
)
CONVERSATIONS = st.lists(MESSAGES, min_size=1, max_size=6)


@given(
    lines=st.lists(CONVERSATIONS | st.builds(lambda each: {"messages": each}, CONVERSATIONS), min_size=1, max_size=4)
)
def test_repeated_import_adds_nothing_and_equal_lines_stay_distinct(
    lines: list[Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("chat") / "x.jsonl"
    lines = [*lines, lines[0]]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    found, again = (imports_of(importer_of("chat"), path) for _ in range(2))
    assert found.ids == again.ids
    assert len(set(found.ids)) == len(found.ids)
    assert counts(found)[0] == found.conversations == len(lines)
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines[:-1]))
    before = imports_of(importer_of("chat"), path)
    assert found.ids[: len(before.ids)] == before.ids, "a line more in the file changes nothing of those before"
