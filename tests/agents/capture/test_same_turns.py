"""One session that was recorded several times is one run, in whatever order its records arrive."""

from __future__ import annotations

import json
import random
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from refold.agents.capture.sessions import Sessions
from refold.agents.capture.spool import SpooledExchange
from refold.agents.capture.step_header import is_for_proxy
from refold.agents.importers.file import run_id
from refold.agents.log import AgentLog, open_log
from refold.explorer.queries.search import search_index, searched
from refold.sinks.search.find import SearchConditions
from refold_tests.child import Child
from refold_tests.command import refold_command
from refold_tests.model_server import ModelServer, Reply, model_server
from refold_tests.transcripts import (
    call,
    captured_turn,
    real_turns,
    result,
    sample_session,
    text,
    transcript,
    user,
    written,
)

pytestmark = pytest.mark.outside

SESSION = "0a6e36c1-0000-4000-8000-00000000000c"
TRANSCRIPT = run_id({"claude-code": SESSION})


def capture(log: str, turns: Sequence[SpooledExchange]) -> list[str]:
    """Store a capture in a log, and return the ids of its runs."""
    with open_log(log) as opened:
        sessions = Sessions(opened, opened.capturing(None), "coder", ["s"], {})
        for each in turns:
            sessions.store(each, "s")
        return sessions.end().runs


def imported(log: str, path: Path) -> dict[str, Any]:
    done: dict[str, Any] = refold_command("import", path, "--format", "claude-code", "--json", log=log).json
    return done


def listed(log: str, *, further: bool = False) -> list[str]:
    with open_log(log, read_only=True) as opened:
        return [row.run for row in opened.runs(further=further)]


def targets(log: AgentLog, entity: str, relation: str = "same") -> list[str]:
    return [each["target"] for each in log.state(entity).links if each["relation"] == relation]


@pytest.mark.parametrize("first", ["capture", "transcript"])
def test_real_session_from_wire_and_transcript_is_one_run(tmp_path: Path, turns_file: Path, first: str) -> None:
    """Eight turns as they crossed the wire, and the transcript of the same session; it is imported twice."""
    log = f"file:{tmp_path / 'log'}"
    turns = real_turns(turns_file)[1:]
    path = written(tmp_path / f"{SESSION}.jsonl", transcript(SESSION, turns))
    if first == "capture":
        (run,) = capture(log, turns)
        imported(log, path)
    else:
        imported(log, path)
        assert listed(log) == [TRANSCRIPT]
        (run,) = capture(log, turns)
    with open_log(log, read_only=True) as opened:
        before = opened.point().cut
    assert imported(log, path)["new"] == 0
    with open_log(log, read_only=True) as opened:
        assert opened.point().cut == before, "nothing was recorded again"
    assert listed(log) == [run]
    assert sorted(listed(log, further=True)) == sorted([run, TRANSCRIPT])
    with open_log(log, read_only=True) as opened:
        steps = [targets(opened, f"step/{TRANSCRIPT}#{number}") for number in range(1, 9)]
        assert steps == [[f"step/{run}#{number}"] for number in range(1, 9)]
        assert targets(opened, f"run/{TRANSCRIPT}") == [f"run/{run}"]
        assert targets(opened, f"run/{run}", "also") == [f"run/{TRANSCRIPT}"]
        assert len(opened.recording(TRANSCRIPT).steps) == len(opened.recording(run).steps) == 8
    shown = refold_command("run", "show", run, log=log).out
    assert f"recorded as run {TRANSCRIPT}" in shown
    assert f"same as   run {run}" in refold_command("run", "show", TRANSCRIPT, log=log).out


@pytest.mark.parametrize("first", ["capture", "transcript"])
def test_no_turn_is_searched_or_counted_twice(tmp_path: Path, first: str) -> None:
    """The transcript has a turn that no proxy saw. It is found, and counted, once, as every other turn is."""
    log = f"file:{tmp_path / 'log'}"
    turns = sample_session(["one", "two", "three", "four"])
    path = written(tmp_path / f"{SESSION}.jsonl", transcript(SESSION, turns))
    if first == "capture":
        (run,) = capture(log, turns[1:])
        imported(log, path)
    else:
        imported(log, path)
        (run,) = capture(log, turns[1:])
    assert sorted(listed(log)) == sorted([run, TRANSCRIPT])
    index = tmp_path / "index.sqlite"
    with open_log(log) as opened, search_index(opened, index, has_sealed=True, updates=True) as database:
        usage = {row.run: row.usage for row in opened.runs(usage=True)}
        counted = usage[run]
        assert (None if counted is None else counted.tokens.output, usage[TRANSCRIPT]) == (6, None)
        # The first captured request has the turn before it, as a part of the conversation.
        places = {"one": [(run, 1), (TRANSCRIPT, 1)], "three": [(run, 2)], "four": [(run, 3)]}
        for word, expected in places.items():
            answer = searched(database, opened, SearchConditions(f'"I say {word}"'), 10)
            assert sorted((hit.run, hit.found.step) for hit in answer.hits if hit.found.step) == sorted(expected)


CODEX_SESSION = "0a6e36c1-0000-4000-8000-0000000000cd"
CODEX_RUN = run_id({"codex": CODEX_SESSION})
ASKED = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "what is in the log?"}]}


def codex_item(number: int) -> dict[str, Any]:
    """Return the reply of a turn: two call a tool, the third and the fourth are texts."""
    if number <= 2:
        return {"type": "function_call", "name": "shell", "arguments": "{}", "call_id": f"call_{number}"}
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": f"I say {number}"}]}


def codex_follow_up(number: int) -> dict[str, Any]:
    """Return what Codex sends after a turn."""
    if number <= 2:
        return {"type": "function_call_output", "call_id": f"call_{number}", "output": f"result {number}"}
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": f"and after {number}?"}]}


@pytest.mark.parametrize("first", ["capture", "transcript"])
def test_codex_session_from_wire_and_transcript_is_one_run(tmp_path: Path, first: str) -> None:
    """The session is made by hand: no rollout with a licence is public. Its replies have ids on the wire alone."""
    log = f"file:{tmp_path / 'log'}"
    items, turns = [ASKED], []
    for number in range(1, 5):
        body = json.dumps({"model": "m", "input": items})
        answer = {
            "id": f"resp_{number}",
            "output": [codex_item(number)],
            "usage": {"input_tokens": 1, "output_tokens": 2},
        }
        request = {"exchange": 1, "method": "POST", "url": "https://api.openai.com/v1/responses",
                   "type": "application/json", "body": body}  # fmt: skip
        answered = {"sent": [], "http": "HTTP/1.1", "status": 200, "headers": [["content-type", "application/json"]],
                    "chunks": [[0, json.dumps(answer)]], "end": "whole"}  # fmt: skip
        at = 1_785_000_000_000_000 + number * 1_000_000
        turns.append(SpooledExchange(tmp_path, at, "POST api.openai.com/v1/responses", request, answered, None, 1.0))
        items = [*items, codex_item(number), codex_follow_up(number)]
    lines = [{"type": "session_meta", "payload": {"id": CODEX_SESSION}}]
    lines += [{"type": "response_item", "payload": each} for each in items[:-1]]
    stamped = [{"timestamp": f"2026-07-25T17:20:{number:02}Z", **each} for number, each in enumerate(lines)]
    path = written(tmp_path / f"rollout-{CODEX_SESSION}.jsonl", stamped)
    run = ""
    for each in ("capture", "transcript") if first == "capture" else ("transcript", "capture"):
        if each == "capture":
            (run,) = capture(log, turns)
        else:
            refold_command("import", path, "--format", "codex", log=log)
    assert listed(log) == [run]
    assert sorted(listed(log, further=True)) == sorted([run, CODEX_RUN])
    with open_log(log, read_only=True) as opened:
        steps = [targets(opened, f"step/{CODEX_RUN}#{number}") for number in range(1, 5)]
        assert steps == [[f"step/{run}#{number}"] for number in range(1, 5)]
        usage = {row.run: row.usage for row in opened.runs(usage=True, further=True)}
        counted = usage[run]
        assert counted is not None
        assert counted.tokens.output == 8


def test_transcript_continued_without_the_proxy_is_listed_again(tmp_path: Path) -> None:
    log = f"file:{tmp_path / 'log'}"
    turns = sample_session(["one", "two", "three"])
    path = tmp_path / f"{SESSION}.jsonl"
    (run,) = capture(log, turns[:2])
    imported(log, written(path, transcript(SESSION, turns[:2])))
    assert listed(log) == [run]
    imported(log, written(path, transcript(SESSION, turns)))
    assert sorted(listed(log)) == sorted([run, TRANSCRIPT])
    capture(log, turns[2:])
    assert TRANSCRIPT not in listed(log)


def test_only_the_transcript_knows_which_call_began_the_sub_agent(tmp_path: Path) -> None:
    """The capture cannot: the task is too short to be recognised."""
    log = f"file:{tmp_path / 'log'}"
    asked, task = user("look around"), call("toolu_task", "Task", prompt="look")
    own = [captured_turn(1, [asked], [call("toolu_read"), task])]
    child = [captured_turn(2, [user("look")], [text("It is quiet.")])]
    after = [asked, {"role": "assistant", "content": [call("toolu_read"), task]}, result("toolu_task", "It is quiet.")]
    own.append(captured_turn(3, after, [text("All is quiet.")]))
    parent, nested = capture(log, [own[0], child[0], own[1]])
    path = written(tmp_path / f"{SESSION}.jsonl", transcript(SESSION, own))
    below = tmp_path / SESSION / "subagents"
    written(below / "agent-a1.jsonl", transcript(SESSION, child, "a1"))
    (below / "agent-a1.meta.json").write_text('{"toolUseId": "toolu_task"}')
    for _ in range(2):
        imported(log, path)
        assert sorted(listed(log)) == sorted([parent, nested])
        with open_log(log, read_only=True) as opened:
            recording = opened.recording(parent)
            assert list(recording.children) == [nested]
            assert (recording.children[nested].caller, recording.children[nested].caller_step) == (parent, 1)
            assert targets(opened, f"action/{parent}#1.2", "began") == [f"run/{nested}"]


def test_repeated_model_ids_merge_no_turns(tmp_path: Path) -> None:
    """Two captured sessions have equal ids and texts, so nobody can tell which of them the transcript is of."""
    log = f"file:{tmp_path / 'log'}"
    turns = sample_session(["one", "two"])
    again = sample_session(["one", "two"], "another question")
    both = capture(log, [*turns, *again])
    imported(log, written(tmp_path / f"{SESSION}.jsonl", transcript(SESSION, turns)))
    assert sorted(listed(log)) == sorted([*both, TRANSCRIPT])


@pytest.mark.faults
@pytest.mark.parametrize("dying", ["import", "capture"])
def test_one_that_is_killed_between_two_links_is_completed_by_the_next(
    tmp_path: Path, dying: str, child: Callable[..., Child], fault_rounds: int, seed: int
) -> None:
    """The import is repeated; the capture is taken over by the next one."""
    turns = sample_session(["one", "two", "three"])
    path = written(tmp_path / f"{SESSION}.jsonl", transcript(SESSION, turns))
    appends = {"import": 12, "capture": 6}[dying]
    for count in random.Random(seed).sample(range(1, appends + 1), max(1, fault_rounds // 3)):
        log = f"file:{tmp_path / f'log{count}'}"
        if dying == "import":
            capture(log, turns)
        else:
            imported(log, path)
        process = child(DYING[dying], str(path), log, count)
        assert process.process.wait(120) == -signal.SIGKILL
        if dying == "import":
            imported(log, path)
        else:
            capture(log, [])
        with open_log(log, read_only=True) as opened:
            (row,) = opened.runs()
            assert (row.agent, row.steps, row.outcome) == ("coder", 3, "succeeded"), f"seed {seed}, killed at {count}"
            for step in (1, 2, 3):
                assert targets(opened, f"step/{TRANSCRIPT}#{step}") == [f"step/{row.run}#{step}"]
                assert len(targets(opened, f"step/{TRANSCRIPT}#{step}", "turn")) == 1
            assert targets(opened, f"run/{row.run}", "also") == [f"run/{TRANSCRIPT}"]


DYING = {
    "import": """
import sys
from pathlib import Path
from refold.agents.importers import claude_code
from refold.agents.importers.conversation import import_conversation
from refold.agents.importers.file import ImportFile
from refold.agents.log import open_log
from refold.agents.recordings.same_turns import unite_transcripts
from refold_tests.dying_log import die_at

with open_log(sys.argv[2]) as log:
    transcripts = []
    for each in claude_code.IMPORTER.read(ImportFile(Path(sys.argv[1]))):
        import_conversation(each, log.observe, transcripts.append)
    log.flush()
    die_at(log.port, int(sys.argv[3]))
    unite_transcripts(log, transcripts, log.vault)
""",
    "capture": """
import sys
from refold.agents.capture.sessions import Sessions
from refold.agents.log import open_log
from refold_tests.dying_log import die_at
from refold_tests.transcripts import sample_session

with open_log(sys.argv[2]) as log:
    sessions = Sessions(log, log.capturing(None), "coder", ["s"], {})
    for each in sample_session(["one", "two", "three"]):
        sessions.store(each, "s")
    die_at(log.port, int(sys.argv[3]))
    sessions.end()
""",
}

AGENT = """
import os, sys
import openai, refold

with refold.open(sys.argv[1], owner_timeout_s=60) as log, log.run("shop", title="by its code") as run:
    client = run.client(openai.OpenAI(api_key="sk-of-the-agent", max_retries=0))
    messages = [{"role": "user", "content": "what is it?"}]
    for number in range(2):
        with run.step("ask"):
            answer = client.chat.completions.create(model="m", messages=messages)
        messages.append({"role": "assistant", "content": answer.choices[0].message.content})
        messages.append({"role": "user", "content": "and?"})
    print(run.id)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with model_server() as server:
        yield server


def recorded_program(server: ModelServer, folder: Path, code: str) -> tuple[str, str]:
    """Run an agent under `refold record`. Return the log, and the run that the agent's code recorded."""
    server.reset()
    server.mind = lambda body: Reply([f"answer {len(body['messages'])}"])
    log = f"file:{folder / 'log'}"
    (folder / "agent.py").write_text(code)
    more = {"OPENAI_BASE_URL": f"{server.url}/v1", "XDG_STATE_HOME": str(folder / "state")}
    command = ("record", "--", sys.executable, "agent.py", log)
    done = refold_command(*command, log=log, folder=folder, more=more)
    assert done.status == 0, done.err
    own = done.out.strip()
    return log, own


def test_session_recorded_by_code_and_wire_is_the_codes_run(server: ModelServer, tmp_path: Path) -> None:
    """The code says which step a request is, to the proxy alone. Both write one log, so one waits for the other."""
    log, own = recorded_program(server, tmp_path, AGENT)
    assert listed(log) == [own]
    with open_log(log, read_only=True) as opened:
        rows = {row.run: row for row in opened.runs(further=True)}
        (wire,) = rows.keys() - {own}
        assert rows[wire].agent == Path(sys.executable).name
        steps = [targets(opened, f"step/{wire}#{number}") for number in (1, 2)]
        assert steps == [[f"step/{own}#1"], [f"step/{own}#2"]]
        by_code, by_wire = opened.recording(own), opened.recording(wire)
        for step, captured in zip(by_code.steps, by_wire.steps, strict=True):
            (one,), (other,) = step.calls, captured.calls
            assert one.asked.request["body"] == other.asked.request["body"]
            assert [body for _, body in one.answer["chunks"]] == [body for _, body in other.answer["chunks"]]
    sent = [name for _, headers, _ in server.requests for name in headers]
    assert len(server.requests) == 2
    assert not any(name.lower().startswith("refold") for name in sent)


AGENT_BY_MODEL = """
import asyncio, json, os, sys, urllib.request
import openai, refold
from openai.types.chat import ChatCompletion

KEY = "sk-of-the-agent"
client, async_client = openai.OpenAI(api_key=KEY), openai.AsyncOpenAI(api_key=KEY)

def by_urllib(messages):
    body = json.dumps({"model": "m", "messages": messages}).encode()
    head = {"Content-Type": "application/json", "Authorization": "Bearer " + KEY}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    with urllib.request.urlopen(urllib.request.Request(url, body, head)) as response:
        return json.load(response)

def streamed(messages):
    for piece in client.chat.completions.create(model="m", messages=messages, stream=True):
        if piece.choices:
            yield piece.choices[0].delta.content or ""

@refold.tool
def ask_another(text: str) -> str:
    "Ask a model, whose answer is a tool's."
    return client.chat.completions.create(model="m", messages=asked(text)).choices[0].message.content

def asked(text):
    return [{"role": "user", "content": text}]

async def main():
    messages = asked("what is it?")

    def went_on(text):
        messages.extend([{"role": "assistant", "content": text}, *asked("and?")])

    with refold.open(sys.argv[1], owner_timeout_s=60) as log, log.run("shop", title="by its code") as run:
        async with run.step("a method of an SDK"):
            answer = run.model(
                client.chat.completions.create, model="m", messages=messages, returns=ChatCompletion
            )
            went_on(answer.choices[0].message.content)
        async with run.step("a function of its own"):
            went_on(run.model(by_urllib, messages)["choices"][0]["message"]["content"])
        async with run.step("a stream"):
            went_on("".join(run.model(streamed, messages)))
        async with run.step("an async method"):
            create = async_client.chat.completions.create
            answer = await run.model(create, model="m", messages=messages, returns=ChatCompletion)
            went_on(answer.choices[0].message.content)
        async with run.step("a tool"):
            ask_another("what do you say?")
        print(run.id)
    await async_client.close()

asyncio.run(main())
"""


def test_calls_by_model_name_their_step_as_well(server: ModelServer, tmp_path: Path) -> None:
    """Whatever client they use. What a tool sends is no call of a model, so only its own turn is listed and counted."""
    log, own = recorded_program(server, tmp_path, AGENT_BY_MODEL)
    with open_log(log, read_only=True) as opened:
        rows = {row.run: row for row in opened.runs(usage=True, further=True)}
        of_tool, of_session = sorted(rows.keys() - {own}, key=lambda run: rows[run].steps or 0)
        assert [rows[run].title for run in (of_tool, of_session)] == ["what do you say?", "what is it?"]
        steps = [targets(opened, f"step/{of_session}#{number}") for number in range(1, 5)]
        assert steps == [[f"step/{own}#{number}"] for number in range(1, 5)]
        assert targets(opened, f"step/{of_tool}#1") == []
        assert sorted(listed(log)) == sorted([own, of_tool])
        assert targets(opened, f"run/{own}", "also") == [f"run/{of_session}"]
        recorded = [step.calls[0].answer for step in opened.recording(of_session).steps]
        assert len(opened.recording(own).steps) == 5
    said = ["answer 1", "answer 3", "answer 5", "answer 7"]
    assert [text in str(answer) for text, answer in zip(said, recorded, strict=True)] == [True] * 4
    headers = [name.lower() for _, sent, _ in server.requests for name in sent]
    assert len(server.requests) == 5
    assert "authorization" in headers
    assert not any(name.startswith("refold") for name in headers)


@pytest.mark.parametrize(
    ("proxy", "url", "is_for"),
    [
        ("http://127.0.0.1:5", "http://127.0.0.1:5/openai/v1/x", True),
        ("http://127.0.0.1:5/", "http://127.0.0.1:5/x", True),
        ("http://127.0.0.1:5", "http://127.0.0.1:55/x", False),
        ("http://127.0.0.1:5", "https://api.openai.com/v1/x", False),
        ("", "https://api.openai.com/v1/x", False),
    ],
    ids=["the proxy", "with a slash", "another port", "the provider", "no proxy"],
)
def test_no_one_but_the_proxy_learns_of_the_step(proxy: str, url: str, is_for: bool) -> None:
    assert is_for_proxy(url, {"REFOLD_PROXY": proxy}) is is_for
