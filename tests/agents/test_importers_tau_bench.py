"""tau-bench files: the rewards, the precise documents, each count and byte of recorded conversations."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from refold.agents.importers import tau_bench
from refold.agents.importers.conversation import import_conversation
from refold.agents.importers.file import ImportFile
from refold.avro.errors import InputError
from refold_tests.recording import Recorder

FLIGHT = {"flight_number": "HAT1", "status": "available"}


def ask(tool: str, **inputs: object) -> dict[str, Any]:
    function = {"name": tool, "arguments": json.dumps(inputs)}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c", "type": "function", "function": function}],
    }


def result_message(content: object) -> dict[str, Any]:
    text = content if isinstance(content, str) else json.dumps(content)
    return {"role": "tool", "tool_call_id": "c", "content": text}


TRAJ: list[dict[str, Any]] = [
    {"role": "system", "content": "policy"},
    {"role": "user", "content": "change my seat"},
    ask("get_user_details", user_id="mia_1"),
    result_message({"name": {"first_name": "Mia"}, "reservations": ["R1"]}),
    ask("search_direct_flight", origin="JFK", destination="SEA", date="2024-05-20"),
    result_message([FLIGHT]),
    ask("search_onestop_flight", origin="JFK", destination="SEA", date="2024-05-20"),
    result_message([[{**FLIGHT, "date": "2024-05-21"}, {"flight_number": "HAT2", "date": "2024-05-22"}]]),
    ask("book_reservation", user_id="mia_1"),
    result_message("Error: not enough seats"),
    ask("cancel_reservation", reservation_id="R1"),
    result_message({"reservation_id": "R1", "user_id": "mia_1", "status": "cancelled"}),
    {"role": "assistant", "content": "Done, 12 dollars."},
    {"role": "user", "content": "###STOP###"},
]
ACTIONS = [{"name": "cancel_reservation", "kwargs": {"reservation_id": "R1"}}]


def line(**more: Any) -> dict[str, Any]:
    task = {"user_id": "mia_1", "instruction": "You are Mia.", "actions": ACTIONS, "outputs": []}
    info = {"task": task, "source": "user", "reward_info": None}
    return {"task_id": 4, "reward": 1.0, "info": info, "traj": TRAJ, "trial": 2} | more


def imported(folder: Path, *lines: object) -> Recorder:
    path = folder / "tau.jsonl"
    path.write_text("".join(f"{json.dumps(each)}\n" for each in lines), encoding="utf-8")
    recorder = Recorder()
    for conversation in tau_bench.conversations(ImportFile(path)):
        import_conversation(conversation, recorder.observe)
    return recorder


def test_documents_are_named_precisely(tmp_path: Path) -> None:
    recorder = imported(tmp_path, line())
    assert recorder.entities("document") == [
        "document/user-mia_1",
        "document/flight-HAT1-2024-05-20",
        "document/flight-HAT1-2024-05-21",
        "document/flight-HAT2-2024-05-22",
        "document/reservation-R1",
    ]
    assert recorder.latest("document/reservation-R1")["fields"]["status"] == "cancelled"
    actions = recorder.entities("action")
    relations = {(entity, relation) for entity, relation, target in recorder.links() if target.startswith("document/")}
    assert relations == {
        (actions[0], "read"),
        (actions[1], "read"),
        (actions[2], "read"),
        (actions[4], "wrote"),
    }


def test_document_is_caused_by_the_result_that_contains_it(tmp_path: Path) -> None:
    recorder = imported(tmp_path, line())
    for each in recorder.observations.values():
        if each.type == "document":
            [cause] = (recorder.observations[cause.hex()] for cause in each.causes)
            assert cause.type == "action"
            assert "output" in cause.patch


def test_reward_is_an_evaluation_of_the_run(tmp_path: Path) -> None:
    recorder = imported(tmp_path, line())
    [entity] = recorder.entities("evaluation")
    run = entity.partition("/")[2]
    found = recorder.latest(entity)
    assert (found["name"], found["score"], found["passed"]) == ("reward", 1.0, True)
    assert (found["subject"], found["case"], found["trial"]) == (f"run/{run}", "4", 2)
    assert found["expected"] == ACTIONS == found["output"], "the failed booking did nothing"
    assert (entity, "of", f"run/{run}") in recorder.links()
    [judged] = (each for each in recorder.observations.values() if each.entity == entity and not each.link)
    causes = [recorder.observations[cause.hex()] for cause in judged.causes]
    assert Counter(each.type for each in causes) == {"action": 1, "agent_session": 1}
    assert recorder.latest(f"run/{run}")["outcome"] == "succeeded"


def test_text_is_a_cause_when_outputs_were_required(tmp_path: Path) -> None:
    given = line(reward=0)
    given["info"]["task"]["outputs"] = ["12"]
    recorder = imported(tmp_path, given)
    [judged] = (each for each in recorder.observations.values() if each.type == "evaluation" and not each.link)
    replies = sum(message["role"] == "assistant" for message in TRAJ)
    assert len(judged.causes) == replies + 2
    assert recorder.latest(recorder.entities("run")[0])["outcome"] == "failed"


def test_times_start_at_the_policys_now(tmp_path: Path) -> None:
    recorder = imported(tmp_path, line())
    first = next(iter(recorder.observations.values()))
    assert first.observed_at == 1_715_803_200_000_000
    assert recorder.latest(first.entity)["synthetic_time"] is True


def test_line_without_info_is_enough(tmp_path: Path) -> None:
    recorder = imported(tmp_path, {"task_id": "t", "reward": 0, "traj": TRAJ, "info": None})
    assert recorder.latest(recorder.entities("evaluation")[0])["passed"] is False


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([], "an object with task_id, reward and traj"),
        ({"traj": []}, "an object with task_id, reward and traj"),
        (line(reward="high"), "reward is not a number"),
        (line(reward=True), "reward is not a number"),
        (line(trial="x"), "trial is not a whole number"),
        (line(task_id=None), "task_id"),
        (line(traj={}), "a conversation is a list of messages"),
    ],
)
def test_wrong_shape_is_named_by_file_and_line(tmp_path: Path, given: object, says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        imported(tmp_path, line(), given)
    assert str(caught.value).startswith(f"{tmp_path / 'tau.jsonl'}:2: ")


def test_recorded_conversations_are_imported_whole(tau_bench_file: Path) -> None:
    recorder = Recorder()
    for conversation in tau_bench.conversations(ImportFile(tau_bench_file)):
        import_conversation(conversation, recorder.observe)
    by_run = {entity.partition("/")[2]: recorder.latest(entity) for entity in recorder.entities("evaluation")}
    steps = Counter(entity.partition("/")[2].partition("#")[0] for entity in recorder.entities("step"))
    actions = Counter(entity.partition("/")[2].partition("#")[0] for entity in recorder.entities("action"))
    outputs = {entity: recorder.latest(entity)["output"] for entity in recorder.entities("action")}
    runs = list(by_run)
    with gzip.open(tau_bench_file, "rt", encoding="utf-8") as lines:
        recorded = [json.loads(each) for each in lines]
    assert len(runs) == len(recorded) == 100
    for run, given in zip(runs, recorded, strict=True):
        assert by_run[run]["score"] == given["reward"]
        said = [message for message in given["traj"] if message["role"] == "assistant"]
        assert steps[run] == len(said)
        assert actions[run] == sum(len(message.get("tool_calls") or ()) for message in said)
        results = [message["content"] for message in given["traj"] if message["role"] == "tool"]
        assert [output for entity, output in outputs.items() if f"/{run}#" in entity] == results
        [start] = (patch for patch in recorder.patches[f"run/{run}"] if "input" in patch)
        assert start["metadata"] == {"task_id": given["task_id"], "trial": given["trial"]}
