"""The main job on real recorded runs, by the command line. Expected counts come from this file's own JSON reader."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import refold
from refold_tests.command import refold_command

# One import serves all tests of this file, so xdist runs them on one worker.
pytestmark = [pytest.mark.outside, pytest.mark.xdist_group("acceptance")]


@dataclass(frozen=True, slots=True)
class Recorded:
    """One run, as read from the file: its id, its messages, its reward."""

    run: str
    messages: list[dict[str, Any]]
    reward: float

    def said(self) -> list[dict[str, Any]]:
        """Return the assistant's messages."""
        return [message for message in self.messages if message["role"] == "assistant"]

    def calls(self) -> list[tuple[int, int, dict[str, Any]]]:
        """Return each tool call as (step, position in the step, call), both counted from 1."""
        return [
            (step, position, call)
            for step, message in enumerate(self.said(), 1)
            for position, call in enumerate(message.get("tool_calls") or (), 1)
        ]


@pytest.fixture(scope="module")
def recorded(tau_bench_file: Path) -> list[Recorded]:
    with gzip.open(tau_bench_file, "rt", encoding="utf-8") as file:
        given = [json.loads(line) for line in file]
    assert len(given) == 100
    found = []
    for each in given:
        canonical = json.dumps(each["traj"], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        found.append(Recorded(hashlib.sha256(canonical.encode()).hexdigest()[:32], each["traj"], each["reward"]))
    return found


@pytest.fixture(scope="module")
def url(tau_bench_file: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The log that the runs were imported into."""
    url = f"file:{tmp_path_factory.mktemp('acceptance') / 'log'}"
    done = refold_command("import", tau_bench_file, "--format", "tau-bench", "--json", log=url).json
    assert done["read"] == done["new"] > 0
    return url


@pytest.fixture(scope="module")
def rebuilt(url: str) -> dict[str, Any]:
    """The output of `refold rebuild --json` for that log."""
    found: dict[str, Any] = refold_command("rebuild", "--json", log=url).json
    return found


@pytest.fixture(scope="module")
def exported(url: str, tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    path = tmp_path_factory.mktemp("exported") / "runs.jsonl.gz"
    assert refold_command("export", path, log=url).status == 0
    return gzip.decompress(path.read_bytes()).splitlines(keepends=True)


def test_import_verifies(url: str, rebuilt: dict[str, Any]) -> None:
    verdict = refold_command("verify", "--json", log=url).json
    assert verdict["ok"]
    assert verdict["mismatches"] == []
    assert verdict["root"] == rebuilt["root"]


def test_steps_are_messages_and_actions_are_calls(exported: list[bytes], recorded: list[Recorded]) -> None:
    entities = {json.loads(line)["entity"] for line in exported}
    found = Counter((entity.partition("/")[0], entity.partition("/")[2].partition("#")[0]) for entity in entities)
    for each in recorded:
        assert found["run", each.run] == 1
        assert found["step", each.run] == len(each.said())
        assert found["action", each.run] == len(each.calls())
        assert found["evaluation", each.run] == 1
    assert found.total() == len(entities)


def test_why_shows_every_result_byte_for_byte(url: str, recorded: list[Recorded]) -> None:
    with refold.open(url, read_only=True) as log:
        for each in recorded:
            results = iter(message["content"] for message in each.messages if message["role"] == "tool")
            for step, position, call in each.calls():
                action = log.state(f"action/{each.run}#{step}.{position}")
                assert action.fields["call_id"] == call["id"]
                holder = action.why("output")[0]
                assert holder.observation is not None
                assert holder.observation.entity == action.entity
                assert holder.observation.patch["output"] == next(results)
            assert next(results, None) is None


def test_every_document_leads_to_the_result_that_contains_it(url: str, recorded: list[Recorded]) -> None:
    results = {
        (each.run, message["content"]) for each in recorded for message in each.messages if message["role"] == "tool"
    }
    with refold.open(url, read_only=True) as log:
        documents = [name for name in log.rebuild() if name.startswith("document/")]
        assert len(documents) > 100
        for name in documents:
            chain = log.state(name).why("fields")
            by_id = {link.observation_id: link.observation for link in chain}
            for statement in (link.observation for link in chain if link.depth == 0):
                assert statement is not None
                [action] = (by_id[cause.hex()] for cause in statement.causes)
                assert action is not None
                output, fields = action.patch["output"], statement.patch["fields"]
                assert (action.source.run, output) in results
                found = list(parts(json.loads(str(output))))
                assert isinstance(fields, dict)
                assert all(json.loads(str(value)) in found for value in fields.values())
            assert any(each is not None and each.entity.startswith("agent_session/") for each in by_id.values())


def parts(tree: Any) -> Iterator[Any]:
    """Yield a JSON value and every value inside it."""
    yield tree
    for each in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from parts(each)


def test_command_traces_as_the_library_does(url: str, recorded: list[Recorded]) -> None:
    [(step, position, _), *_] = recorded[0].calls()
    [result, *_] = [message["content"] for message in recorded[0].messages if message["role"] == "tool"]
    name = f"action/{recorded[0].run}#{step}.{position}"
    chain = refold_command("why", f"{name}.output", "--json", log=url).json
    assert chain[0]["entity"] == name
    assert chain[0]["patch"]["output"] == result
    assert chain[0]["depth"] == 0
    by_id = {each["observation"]: each for each in chain}
    assert all(cause in by_id for each in chain for cause in each["causes"])
    text = refold_command("why", f"{name}.output", log=url).out
    assert all(each["observation"] in text for each in chain)


def test_every_reward_is_on_its_evaluation(url: str, recorded: list[Recorded]) -> None:
    with refold.open(url, read_only=True) as log:
        view = log.rebuild()
        for each in recorded:
            evaluation = view[f"evaluation/{each.run}"]
            assert evaluation.fields["score"] == each.reward
            assert [link["target"] for link in evaluation.links] == [f"run/{each.run}"]
            assert len(evaluation.why("score")) > 1, "it traces to what it judged"
    shown = refold_command("state", f"evaluation/{recorded[0].run}", "--json", log=url).json
    assert shown["fields"]["score"]["value"] == recorded[0].reward


def test_shuffled_and_duplicated_observations_give_the_same_state(
    rebuilt: dict[str, Any], exported: list[bytes], tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    lines = exported + chance.sample(exported, len(exported) // 3)
    chance.shuffle(lines)
    (tmp_path / "shuffled.jsonl").write_bytes(b"".join(lines))
    other = f"file:{tmp_path / 'other'}"
    done = refold_command("import", tmp_path / "shuffled.jsonl", "--json", log=f"{other}?partitions=32").json
    assert (done["read"], done["new"]) == (len(lines), len(exported))
    assert done["known"] == len(lines) - len(exported)
    again = refold_command("rebuild", "--expect-root", rebuilt["root"], "--json", log=other)
    assert again.status == 0, again
    assert again.json["root"] == rebuilt["root"]
    assert again.json["observations"] == rebuilt["observations"] == len(exported)
    assert again.json["entities"] == rebuilt["entities"]
    assert refold_command("verify", "--json", log=other).json["ok"]


def test_avro_container_carries_the_same(
    url: str, rebuilt: dict[str, Any], exported: list[bytes], tmp_path: Path
) -> None:
    other, path = f"file:{tmp_path / 'other'}", tmp_path / "runs.avro"
    assert refold_command("export", path, log=url).status == 0
    done = refold_command("import", path, "--json", log=f"{other}?partitions=1").json
    assert done["new"] == len(exported)
    assert refold_command("rebuild", "--expect-root", rebuilt["root"], log=other).status == 0


def test_every_run_equals_its_own_replay_in_one_command(url: str, recorded: list[Recorded]) -> None:
    found = refold_command("run", "replay", "--all", "--json", log=url).json
    assert {each["run"]: each["steps"] for each in found} == {each.run: len(each.said()) for each in recorded}
    assert [each["same"] for each in found] == [True] * 100
    assert len({each["hash"] for each in found}) == 100
