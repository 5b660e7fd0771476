"""Chat files: every message, call and result is imported once and verbatim; importing again changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from refold.agents.importers import chat
from refold.agents.importers.conversation import import_conversation
from refold.agents.importers.file import ImportFile, run_id
from refold.agents.importers.model import Conversation
from refold.avro.errors import InputError
from refold_tests.recording import Recorder

MILLISECOND = 1_000
START = chat.DEFAULT_START


def call(tool: str, arguments: object = "{}", identifier: str | None = "c1") -> dict[str, Any]:
    given: dict[str, Any] = {"type": "function", "function": {"name": tool, "arguments": arguments}}
    return given if identifier is None else {"id": identifier, **given}


def asks(*calls: dict[str, Any], content: str | None = None) -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def result(content: object, identifier: str | None = "c1", **more: object) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "tool", "content": content, **more}
    return message if identifier is None else {**message, "tool_call_id": identifier}


def read(folder: Path, *lines: object) -> list[Conversation]:
    path = folder / "chat.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return list(chat.conversations(ImportFile(path)))


def imported(folder: Path, *lines: object) -> Recorder:
    recorder = Recorder()
    for conversation in read(folder, *lines):
        import_conversation(conversation, recorder.observe)
    return recorder


def only(recorder: Recorder, kind: str) -> dict[str, Any]:
    [entity] = recorder.entities(kind)
    return recorder.latest(entity)


def messages(recorder: Recorder) -> list[dict[str, Any]]:
    [session] = recorder.entities("agent_session")
    return [each for patch in recorder.patches[session] for each in patch.get("messages", ())]


WEATHER: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "How is Oslo?"},
    asks(
        call("get_weather", '{"city": "Oslo"}', "a"),
        call("get_city", '{"name": "Oslo"}', "b"),
        content="Let me see.",
    ),
    result('{"city_id": 7, "name": "Oslo", "mayor": null}', "b"),
    result("Error: no such city", "a"),
    {"role": "assistant", "content": "Cold."},
]


def test_conversation_becomes_run_session_steps_actions_and_documents(tmp_path: Path) -> None:
    recorder = imported(tmp_path, WEATHER)
    [run] = (entity.partition("/")[2] for entity in recorder.entities("run"))
    assert len(run) == 32
    assert recorder.entities("step") == [f"step/{run}#1", f"step/{run}#2"]
    assert recorder.entities("action") == [f"action/{run}#1.1", f"action/{run}#1.2"]
    assert recorder.links() == {
        (f"run/{run}", "in", f"agent_session/{run}"),
        (f"step/{run}#1", "of", f"run/{run}"),
        (f"step/{run}#2", "of", f"run/{run}"),
        (f"action/{run}#1.1", "of", f"step/{run}#1"),
        (f"action/{run}#1.2", "of", f"step/{run}#1"),
        (f"action/{run}#1.2", "returned", "document/city-7"),
    }
    failed, done = (recorder.latest(entity) for entity in recorder.entities("action"))
    assert (failed["status"], failed["output"]) == ("failed", "Error: no such city")
    assert failed["error"]["message"] == "Error: no such city"
    assert (done["status"], done["inputs"]) == ("succeeded", {"name": "Oslo"})
    assert done["output"] == '{"city_id": 7, "name": "Oslo", "mayor": null}'
    document = recorder.latest("document/city-7")
    assert document == {"kind": "city", "fields": {"city_id": 7, "name": "Oslo", "mayor": None}}
    first, second = (recorder.latest(entity) for entity in recorder.entities("step"))
    assert (first["status"], first["outcome"], first["decision"]) == (
        "committed",
        "failed",
        "call get_weather, get_city",
    )
    assert first["tool_outputs"] == {"1": failed["output"], "2": done["output"]}
    assert (first["failure"]["tool"], first["failure"]["input"]) == ("get_weather", {"city": "Oslo"})
    assert (first["message"], first["position"], first["position_total"]) == ("Let me see.", 1, 2)
    assert (second["status"], second["decision"], second["message"]) == ("committed", "reply", "Cold.")
    end = only(recorder, "run")
    assert (end["status"], end["outcome"], end["step_count"]) == ("ended", "unknown", 2)
    assert (end["input"], end["output"], end["synthetic_time"]) == ("How is Oslo?", "Cold.", True)


def test_each_message_is_one_observation_of_the_session(tmp_path: Path) -> None:
    recorder = imported(tmp_path, WEATHER)
    [session] = recorder.entities("agent_session")
    appended = [patch["messages"] for patch in recorder.patches[session] if "messages" in patch]
    assert [len(each) for each in appended] == [1] * len(WEATHER)
    assert [(each["index"], each["role"], each["content"]) for each in messages(recorder)] == [
        (index, message["role"], message["content"]) for index, message in enumerate(WEATHER)
    ]
    assert messages(recorder)[2]["tool_calls"] == WEATHER[2]["tool_calls"]


def test_sources_and_times_follow_the_conversation(tmp_path: Path) -> None:
    recorder = imported(tmp_path, WEATHER)
    every = list(recorder.observations.values())
    assert [each.source.seq for each in every] == list(range(len(every)))
    assert {(each.source.agent, each.source.run) for each in every} == {
        ("chat", recorder.entities("run")[0].partition("/")[2])
    }
    assert [each.observed_at for each in every] == sorted(each.observed_at for each in every)
    assert {each.observed_at for each in every} == {START + n * MILLISECOND for n in range(len(WEATHER))}
    of_call = [each for each in every if each.source.tool == "get_city"]
    assert {each.source.step for each in of_call} == {"1"}


def test_causes_lead_from_a_document_to_the_first_message(tmp_path: Path) -> None:
    recorder = imported(tmp_path, WEATHER)
    [identifier] = (key for key, each in recorder.observations.items() if each.entity.startswith("document/"))
    seen: list[str] = []
    waiting = [identifier]
    while waiting:
        observation = recorder.observations[waiting.pop()]
        seen.append(observation.entity.partition("/")[0])
        waiting += [cause.hex() for cause in observation.causes]
    assert seen[:2] == ["document", "action"]
    assert set(seen) == {"document", "action", "agent_session", "step"}
    said = [each for each in recorder.observations.values() if "messages" in each.patch]
    reply = said[5].causes
    assert len(reply) == 3, "the last reply answers the two results, and follows the reply before"


def test_repeated_or_continued_import_gives_the_same_ids(tmp_path: Path) -> None:
    line = {"messages": WEATHER, "created": 1_700_000_000}
    whole = list(imported(tmp_path, line).observations)
    assert list(imported(tmp_path, line).observations) == whole

    half = Recorder()

    def broken(*args: Any, **keywords: Any) -> str:
        if len(half.observations) == 7:
            raise ConnectionError
        return half.observe(*args, **keywords)

    [conversation] = read(tmp_path, line)
    with pytest.raises(ConnectionError):
        import_conversation(conversation, broken)
    assert list(half.observations) == whole[:7]
    import_conversation(conversation, half.observe)
    assert list(half.observations) == whole


def test_run_is_identified_by_its_messages_and_its_own_id(tmp_path: Path) -> None:
    [plain] = read(tmp_path, WEATHER)
    [wrapped] = read(tmp_path, {"model": "m", "messages": WEATHER})
    named, other, shorter = read(
        tmp_path, {"id": "x", "messages": WEATHER}, {"id": "y", "messages": WEATHER}, WEATHER[:-1]
    )
    assert plain.run == wrapped.run == run_id(WEATHER)
    assert len({plain.run, named.run, other.run, shorter.run}) == 4
    assert read(tmp_path, {"id": "y", "messages": WEATHER})[0].run == other.run, "in whatever order, or file"


def test_equal_conversations_in_one_file_stay_distinct(tmp_path: Path) -> None:
    one, two, three = read(tmp_path, WEATHER, WEATHER, WEATHER)
    assert len({one.run, two.run, three.run}) == 3
    assert [each.run for each in read(tmp_path, WEATHER, WEATHER)] == [one.run, two.run], "the same in each import"
    recorder = imported(tmp_path, WEATHER, WEATHER)
    assert len(recorder.entities("agent_session")) == 2
    assert len(recorder.entities("action")) == 4


def test_other_members_of_an_object_are_kept(tmp_path: Path) -> None:
    line = {"id": "r1", "model": "m-1", "agent": "desk", "metadata": {"team": 3}, "messages": WEATHER}
    recorder = imported(tmp_path, line)
    run = only(recorder, "run")
    assert (run["model"], run["agent"]) == ("m-1", "desk")
    assert run["metadata"] == {"id": "r1", "metadata": {"team": 3}}
    assert {each.source.agent for each in recorder.observations.values()} == {"desk"}


def test_given_times_are_kept_and_gaps_are_marked(tmp_path: Path) -> None:
    given: list[dict[str, Any]] = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "timestamp": "2024-01-01T00:00:00Z"},
        {"role": "user", "content": "c", "created_at": 1_704_067_260.5},
        {"role": "assistant", "content": "d"},
    ]
    recorder = imported(tmp_path, given)
    at = [each.observed_at for each in recorder.observations.values() if "messages" in each.patch]
    new_year = 1_704_067_200_000_000
    assert at == [new_year - 1_000, new_year, new_year + 60_500_000, new_year + 60_501_000]
    assert only(recorder, "run")["synthetic_time"] is True
    timed = [{**message, "timestamp": 1_704_067_200_000 + n} for n, message in enumerate(given)]
    assert only(imported(tmp_path, timed), "run")["synthetic_time"] is False


def test_start_is_read_from_the_object(tmp_path: Path) -> None:
    starts: list[dict[str, Any]] = [
        {"created": 1_704_067_200},
        {"metadata": {"created_at": "2024-01-01T00:00:00+00:00"}},
    ]
    for line in starts:
        [conversation] = read(tmp_path, {**line, "messages": WEATHER})
        assert conversation.start == 1_704_067_200_000_000


def test_end_is_not_observed_before_its_start(tmp_path: Path) -> None:
    given = [
        {**asks(call("look")), "timestamp": "2024-01-01T00:00:10Z"},
        {**result("seen"), "timestamp": "2024-01-01T00:00:00Z"},
    ]
    recorder = imported(tmp_path, given)
    for kind in ("action", "step", "run"):
        times = [each.observed_at for each in recorder.observations.values() if each.type == kind]
        assert times == sorted(times)


def test_repeated_call_ids_are_matched_in_order(tmp_path: Path) -> None:
    given = [asks(call("a")), result("1"), asks(call("b")), result("2")]
    given += [asks(call("c"), call("d")), result("3", name="d"), result("4")]
    recorder = imported(tmp_path, given)
    outputs = [recorder.latest(entity)["output"] for entity in recorder.entities("action")]
    assert outputs == ["1", "2", "4", "3"]


def test_unanswered_call_does_not_take_a_later_ones_result(tmp_path: Path) -> None:
    recorder = imported(tmp_path, [asks(call("a")), asks(call("a")), result("late")])
    first, second = (recorder.latest(entity) for entity in recorder.entities("action"))
    assert (first["status"], second["output"]) == ("unknown", "late")
    assert "output" not in first
    step = recorder.latest(recorder.entities("step")[0])
    assert (step["status"], step["outcome"]) == ("pending", "unknown")


def test_orphan_results_are_on_the_session_and_make_no_action(tmp_path: Path) -> None:
    given = [result("before"), asks(call("a")), result("1"), result("twice"), result("3", "other")]
    recorder = imported(tmp_path, given)
    assert only(recorder, "action")["output"] == "1"
    assert [each["content"] for each in messages(recorder)] == ["before", None, "1", "twice", "3"]
    [session] = recorder.entities("agent_session")
    errors = [each["message"] for patch in recorder.patches[session] for each in patch.get("errors", ())]
    assert errors == [f"tool result that answers no open call: {name}" for name in ("c1", "c1", "other")]


def test_legacy_function_calls(tmp_path: Path) -> None:
    given: list[dict[str, Any]] = [
        {"role": "assistant", "content": None, "function_call": {"name": "add", "arguments": '{"a": 1}'}},
        {"role": "function", "name": "add", "content": "2"},
    ]
    recorder = imported(tmp_path, given)
    action = only(recorder, "action")
    assert (action["tool"], action["inputs"], action["output"]) == ("add", {"a": 1}, "2")
    assert messages(recorder)[0]["extra"] == {"function_call": given[0]["function_call"]}


@pytest.mark.parametrize(
    ("arguments", "inputs"),
    [
        ('{"b": 1, "a": 2.0}', {"a": 2, "b": 1}),
        ("{}", {}),
        ("", ""),
        ("{broken", "{broken"),
        ("[NaN]", "[NaN]"),
        ({"already": "parsed"}, {"already": "parsed"}),
    ],
)
def test_arguments_are_parsed_or_kept_as_text(tmp_path: Path, arguments: object, inputs: object) -> None:
    assert only(imported(tmp_path, [asks(call("t", arguments))]), "action")["inputs"] == inputs


@pytest.mark.parametrize("text", ["", " \n", '{"a": 1.0}', "é\u2028\0", "x" * 300_000, "null", "Error"])
def test_results_are_verbatim(tmp_path: Path, text: str) -> None:
    recorder = imported(tmp_path, [asks(call("t")), result(text)])
    assert only(recorder, "action")["output"] == text


def test_multipart_content_is_kept_whole(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    picture = [{"type": "image_url", "image_url": {"url": "data:,"}}]
    given = [
        {"role": "user", "content": picture},
        asks(call("t"), call("u", "{}", "c2")),
        result(parts),
        result({"k": 1}, "c2"),
    ]
    recorder = imported(tmp_path, given)
    assert [recorder.latest(each)["output"] for each in recorder.entities("action")] == ["ab", '{"k":1}']
    kept = messages(recorder)
    assert json.loads(kept[0]["content"]) == picture
    assert [each.get("content_type") for each in kept] == ["parts", None, "parts", "json"]


def test_unknown_members_roles_and_unusual_tool_names_are_kept(tmp_path: Path) -> None:
    wild = "run\n" + "x" * 2_000
    given = [{"role": "critic", "content": "hm", "weight": 0}, asks(call(wild)), result("1")]
    recorder = imported(tmp_path, given)
    assert messages(recorder)[0] == {"index": 0, "role": "critic", "content": "hm", "extra": {"weight": 0}}
    assert only(recorder, "action")["tool"] == wild


def test_reasoning_becomes_the_rationale(tmp_path: Path) -> None:
    recorder = imported(tmp_path, [{"role": "assistant", "content": "4", "reasoning_content": "2 + 2"}])
    assert only(recorder, "step")["rationale"] == "2 + 2"


def test_parallel_results_that_together_exceed_the_field_limit(tmp_path: Path) -> None:
    given = [asks(*(call("t", json.dumps({"q": "y" * 900}), f"c{n}") for n in range(3)))]
    recorder = imported(tmp_path, given + [result(str(n) * 900, f"c{n}") for n in range(3)])
    assert only(recorder, "step")["tool_outputs"] == {str(n + 1): str(n) * 900 for n in range(3)}


@pytest.mark.parametrize(
    ("tool", "content", "entities"),
    [
        ("get_user", {"id": 7, "n": 1}, ["user-7"]),
        ("getUser", {"id": "u/1"}, ["user-u/1"]),
        ("get_user_details", {"user_id": "u"}, ["user-u"]),
        ("list_orders", [{"id": 1}, {"id": 2}, 3], ["order-1", "order-2"]),
        ("list_orders", [{"order_id": "A", "user_id": "u"}], ["order-A"]),
        ("fetch", {"object": "invoice", "id": "i"}, ["invoice-i"]),
        ("fetch", {"order_id": "A", "user_id": "u"}, []),
        ("fetch", {"orderId": "A"}, ["order-A"]),
        ("fetch", {"id": None}, []),
        ("fetch", {"id": True}, []),
        ("fetch", {"id": "a\nb"}, []),
        ("fetch", {"id": "x" * 1_100}, []),
        ("fetch", {"name": "none"}, []),
        ("fetch", "text", []),
        ("fetch", None, []),
    ],
)
def test_documents_mentioned_in_results(tmp_path: Path, tool: str, content: object, entities: list[str]) -> None:
    recorder = imported(tmp_path, [asks(call(tool)), result(json.dumps(content))])
    assert recorder.entities("document") == [f"document/{each}" for each in entities]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ({"traj": []}, "no member messages"),
        ("text", "a conversation is a list of messages"),
        ([], "at least one"),
        ([1], "message 0: is not an object"),
        ([{"content": "x"}], "message 0: has no role"),
        ([{"role": 1}], "message 0: role is not a string"),
        ([{"role": "user"}, asks({"id": "x"})], "message 1: tool call 1: names no tool"),
        ([{"role": "assistant", "tool_calls": {}}], "tool_calls is not a list"),
        ([{"role": "assistant", "function_call": "x"}], "function_call: is not an object"),
        ([asks({"id": 5, "function": {"name": "t"}})], "tool call 1: id is not a string"),
    ],
)
def test_wrong_shape_is_named_by_file_and_line(tmp_path: Path, line: object, says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        read(tmp_path, WEATHER, line)
    assert str(caught.value).startswith(f"{tmp_path / 'chat.jsonl'}:2: ")
