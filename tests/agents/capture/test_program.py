"""`refold record` and `refold play`: an unchanged program is run and captured, and run again from the recording."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from refold.agents.capture.program import pointing, upstreams_of
from refold.agents.journal.chain import broken
from refold.agents.journal.self_replay import state_at
from refold.agents.log import open_log
from refold_tests.command import COMMAND, started
from refold_tests.confined import confined
from refold_tests.model_server import ModelServer, Reply, model_server

pytestmark = pytest.mark.outside

AGENT = """
import json, os, sys, urllib.request

messages = [{"role": "user", "content": sys.argv[1]}]
while True:
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": "m", "messages": messages}).encode(),
        {"Content-Type": "application/json", "Authorization": "Bearer sk-of-the-agent"},
    )
    with urllib.request.urlopen(request) as response:
        message = json.load(response)["choices"][0]["message"]
    messages.append(message)
    if not message.get("tool_calls"):
        print(message["content"])
        sys.exit(int(sys.argv[2]))
    for call in message["tool_calls"]:
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": "it is " + call["function"]["name"]})
"""


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with model_server() as server:
        server.mind = lambda body: Reply(["done"]) if len(body["messages"]) > 2 else Reply(tools=[("look", {"at": 1})])
        yield server


@pytest.fixture
def env(tmp_path: Path, server: ModelServer) -> dict[str, str]:
    """The environment of commands; their provider is the test server."""
    (tmp_path / "agent.py").write_text(AGENT)
    left_out = ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "OPENAI_API_BASE", "OPENAI_HOST")
    inherited = {name: value for name, value in os.environ.items() if name not in left_out}
    return inherited | {
        "REFOLD_LOG": f"file:{tmp_path / 'log'}", "XDG_STATE_HOME": str(tmp_path / "state"),
        "OPENAI_BASE_URL": f"{server.url}/v1",
    }  # fmt: skip


def refold(env: Mapping[str, str], folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    process = started(*arguments, env=env, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = process.communicate(timeout=120)
    return subprocess.CompletedProcess(arguments, process.wait(), out, err)


def test_program_is_recorded_and_played_back(env: dict[str, str], tmp_path: Path, server: ModelServer) -> None:
    server.requests.clear()
    program = [sys.executable, "agent.py", "what is it?"]
    recorded = refold(env, tmp_path, "record", "--agent", "looker", "--", *program, "7")
    assert (recorded.returncode, recorded.stdout) == (7, "done\n"), recorded.stderr
    assert "refold: 2 exchanges in 1 run, in file:" in recorded.stderr
    assert len(server.requests) == 2
    with open_log(env["REFOLD_LOG"], read_only=True) as log:
        (row,) = log.runs()
        recording = log.recording(row.run)
    assert (row.agent, row.title, row.steps, row.outcome) == ("looker", "what is it?", 2, "succeeded")
    captured = recording.metadata["capture"]
    assert captured["program"] == Path(sys.executable).name
    assert captured["upstreams"]["openai"] == server.url
    assert set(captured["set"]) == {
        "OPENAI_BASE_URL", "OPENAI_API_BASE", "OPENAI_HOST", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_BASE",
        "ANTHROPIC_HOST", "GOOGLE_GEMINI_BASE_URL", "OLLAMA_HOST", "REFOLD_PROXY", "ENABLE_TOOL_SEARCH",
        "_CLAUDE_CODE_ASSUME_FIRST_PARTY_BASE_URL",
    }  # fmt: skip
    assert f"refold run steps {row.run}" in recorded.stderr

    played = refold(env, tmp_path, "play", row.run[:8], "--", *program, "0")
    assert (played.returncode, played.stdout) == (0, "done\n"), played.stderr
    assert f"2 requests answered from run {row.run}, 0 not requested" in played.stderr
    other = refold(env, tmp_path, "play", row.run, "--", sys.executable, "agent.py", "what else?", "0")
    assert other.returncode == 1
    assert "nearest is turn 1 of run" in other.stderr
    assert 'messages[0].content: "what else?" asked, "what is it?" recorded in turn 1, observation ' in other.stderr
    with open_log(env["REFOLD_LOG"], read_only=True) as log:
        (named,) = re.findall(r"recorded in turn 1, observation ([0-9a-f]{64})", other.stderr)
        assert named in [each.observation_id for each in log.state(f"step/{row.run}#1").why("status")]
    assert len(server.requests) == 2, "nobody asked a model again"

    # A turn is opened, and the conversation continues from it.
    assert refold(env, tmp_path, "run", "verify", row.run).returncode == 0
    opened = refold(env, tmp_path, "checkout", recording.steps[1].hash, "--messages")
    body = json.loads(opened.stdout)
    assert [each["role"] for each in body["messages"]] == ["user", "assistant", "tool", "assistant"]
    body["messages"].append({"role": "user", "content": "and now?"})
    data = json.dumps(body).encode()
    request = urllib.request.Request(f"{server.url}/v1/chat/completions", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as response:
        assert json.load(response)["choices"][0]["message"]["content"] == "done"
    none = refold(
        env, tmp_path, "checkout", recording.steps[1].hash, "--messages", "--log", f"file:{tmp_path / 'none'}"
    )
    assert none.returncode == 2


FORKING = """
import json, os, sys, urllib.request

messages = []
for said in sys.argv[1:]:
    messages.append({"role": "user", "content": said})
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": "m", "messages": messages}).encode(),
        {"Content-Type": "application/json", "Authorization": "Bearer sk-of-the-agent"},
    )
    with urllib.request.urlopen(request) as response:
        messages.append(json.load(response)["choices"][0]["message"])
    print(messages[-1]["content"])
"""


def test_requests_after_the_first_difference_form_a_fork(
    env: dict[str, str], tmp_path: Path, server: ModelServer
) -> None:
    (tmp_path / "talk.py").write_text(FORKING)
    program = [sys.executable, "talk.py"]
    mind, server.mind = server.mind, lambda body: Reply(["re: " + body["messages"][-1]["content"]])
    try:
        assert refold(env, tmp_path, "record", "--", *program, "one", "two", "three").returncode == 0
        server.requests.clear()
        done = refold(env, tmp_path, "runs", "--json")
        (parent,) = json.loads(done.stdout)
        forked = refold(env, tmp_path, "play", parent["run"], "--fork", "--", *program, "one", "other", "end")
        assert (forked.returncode, forked.stdout) == (0, "re: one\nre: other\nre: end\n"), forked.stderr
        assert "live from here on: POST /v1/chat/completions is not in the recording; nearest is turn" in forked.stderr
        assert f"1 request answered from run {parent['run']}" in forked.stderr
        assert len(server.requests) == 2
        unlike = refold(env, tmp_path, "play", parent["run"], "--fork", "--", *program, "else")
        assert (unlike.returncode, unlike.stdout) == (0, "re: else\n"), unlike.stderr
    finally:
        server.mind = mind
    with open_log(env["REFOLD_LOG"], read_only=True) as log:
        at_zero, child = (log.recording(row.run) for row in log.runs(parent=parent["run"]))
        before = log.recording(parent["run"])
    assert (child.parent, child.forked_at, child.outcome, child.output) == (before.run, 1, "succeeded", "re: end")
    assert (at_zero.parent, at_zero.forked_at, at_zero.output) == (before.run, 0, "re: else")
    assert at_zero.given == {"messages": [{"role": "user", "content": "else"}]}
    assert child.steps[0] == before.steps[0]
    said = [each["content"] for each in state_at(child, 3)["messages"]]
    assert said == ["one", "re: one", "other", "re: other", "end", "re: end"]
    assert [list(broken(each)) for each in (child, at_zero)] == [[], []]
    played = refold(env, tmp_path, "play", child.run, "--", *program, "one", "other", "end")
    assert (played.returncode, played.stdout) == (0, "re: one\nre: other\nre: end\n"), played.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT], ids=["TERM", "KILL", "INT"])
def test_program_ended_by_a_signal(env: dict[str, str], tmp_path: Path, number: signal.Signals) -> None:
    """The signal is sent to `refold record`; SIGKILL to the program, because no process can pass it on. `refold record`
    ends as its program did."""
    code = (
        "import os, signal, time; signal.signal(signal.SIGINT, signal.SIG_DFL); print(os.getpid(), flush=True); "
        "time.sleep(300)"
    )
    process = subprocess.Popen(
        [*COMMAND, "record", "--", sys.executable, "-c", code], env=env, cwd=tmp_path, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    program = int(process.stdout.readline())
    os.kill(program if number == signal.SIGKILL else process.pid, number)
    _, said = process.communicate(timeout=120)
    assert process.returncode == -number, said
    assert "nothing was captured" in said
    with pytest.raises(ProcessLookupError):
        os.kill(program, 0)


def test_captured_exchanges_of_a_killed_program_are_kept(
    env: dict[str, str], tmp_path: Path, server: ModelServer
) -> None:
    server.hold, server.held = threading.Event(), threading.Event()
    code = (
        "import os, json, urllib.request as u; r = u.urlopen(u.Request(os.environ['OPENAI_BASE_URL'] + "
        "'/chat/completions', json.dumps({'model': 'm', 'stream': True, 'messages': [{'role': 'user', 'content': "
        "'x'}, {'role': 'assistant', 'content': 'y'}, {'role': 'user', 'content': 'go on'}]}).encode(), "
        "{'Content-Type': 'application/json'})); r.readline(); os.kill(os.getpid(), 9)"
    )
    try:
        done = refold(env, tmp_path, "record", "--", sys.executable, "-c", code)
    finally:
        server.hold.set()
        server.hold = None
    assert done.returncode == -signal.SIGKILL
    assert "refold: 1 exchange in 1 run" in done.stderr
    with open_log(env["REFOLD_LOG"], read_only=True) as log:
        (row,) = log.runs()
        assert row.title == "x"
        (step,) = log.recording(row.run).steps
    assert step.calls[0].answer["chunks"]


@pytest.mark.parametrize(
    ("command", "status", "said"),
    [
        (["record", "--", "no-such-program-here"], 2, "no-such-program-here: No such file or directory"),
        (["record"], 2, "Missing argument"),
        (["record", "--upstream", "ftp://h", "--", "true"], 2, "an upstream is http://HOST"),
        (["record", "--", "false"], 1, "nothing was captured: false made no request by OPENAI_BASE_URL"),
        (["record", "--", "true"], 0, "nothing was captured"),
        (["proxy"], 2, "give the provider's address with --upstream"),
        (["proxy", "--upstream", "http://h", "--listen", "0.0.0.0:0"], 2, "only addresses on loopback"),
        (["proxy", "--upstream", "http://h", "--listen", "here"], 2, "write it HOST:PORT"),
        (["play", "no-run", "--", "true"], 2, "no-run"),
        (["play", "no-run", "--upstream", "http://h", "--", "true"], 2, "--upstream is the provider for a --fork"),
        (["proxy", "--fork", "--upstream", "http://h"], 2, "--fork takes a recorded run with --replay"),
    ],
    ids=["no program", "no command", "no upstream", "nothing captured", "nothing captured, 0", "proxy to nowhere",
         "proxy for all", "no address", "no run", "a play to somewhere", "a fork of nothing"],
)  # fmt: skip
def test_error_where_nothing_can_be_captured(
    env: dict[str, str], tmp_path: Path, command: list[str], status: int, said: str
) -> None:
    if command[0] == "play":
        refold(env, tmp_path, "init")
    done = refold(env, tmp_path, *command)
    assert done.returncode == status, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def url_said_by(process: subprocess.Popen[str]) -> str:
    """Return the URL in the first line that a proxy prints."""
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.search(r"http://127\.0\.0\.1:\d+", line)
    assert found is not None, line
    return found[0]


def test_recording_is_served_without_its_own_socket(env: dict[str, str], tmp_path: Path, server: ModelServer) -> None:
    """The kernel enforces it: the server may listen on loopback, and connect to nothing."""
    program = [sys.executable, "agent.py", "what is it?", "0"]
    refold(env, tmp_path, "record", "--", *program)
    with open_log(env["REFOLD_LOG"], read_only=True) as log:
        (row,) = log.runs()
    command = [*COMMAND, "proxy", "--replay", row.run, "--listen", "127.0.0.1:0"]
    with confined(command, [], env, tmp_path) as serving:
        asked = {**env, "OPENAI_BASE_URL": f"{url_said_by(serving.process)}/v1"}
        done = subprocess.run(program, env=asked, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True)
        serving.process.send_signal(signal.SIGTERM)
        status, _, said = serving.end()
    assert done.stdout == "done\n"
    assert (status, serving.denied) == (0, []), said


@pytest.mark.parametrize("is_allowed", [True, False], ids=["to the upstream", "to nothing"])
def test_proxy_opens_no_socket_but_to_its_upstream(
    env: dict[str, str], tmp_path: Path, server: ModelServer, is_allowed: bool
) -> None:
    """The kernel checks everything that the proxy does: it forwards, spools, stores, and ends. If it may connect to
    nothing, the test must notice that."""
    server.reset()
    parts = urlsplit(server.url)
    upstream = (parts.hostname or "", parts.port or 0)
    command = [*COMMAND, "proxy", "--upstream", server.url, "--listen", "127.0.0.1:0"]
    with confined(command, [upstream] if is_allowed else [], env, tmp_path) as proxy:
        program = [sys.executable, "agent.py", "what is it?", "0"]
        asked = {**env, "OPENAI_BASE_URL": f"{url_said_by(proxy.process)}/v1"}
        done = subprocess.run(
            program, env=asked, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
        )
        proxy.process.send_signal(signal.SIGTERM)
        status, _, said = proxy.end()
    assert status == 0, said
    with open_log(env["REFOLD_LOG"], read_only=True) as log:
        assert log.runs(), "it was captured"
    if is_allowed:
        assert (done.stdout, proxy.denied) == ("done\n", []), said
    else:
        assert {each.call for each in proxy.denied} == {"connect"}
        assert not server.requests


def test_base_urls_given_to_programs() -> None:
    given = {"OPENAI_BASE_URL": "http://mine:1/v1/", "HTTP_PROXY": "http://outer:3128", "NO_PROXY": "intern"}
    upstreams = upstreams_of(given, None)
    assert upstreams == {
        "openai": "http://mine:1", "anthropic": "https://api.anthropic.com", "ollama": "http://127.0.0.1:11434",
        "gemini": "https://generativelanguage.googleapis.com",
        "bedrock": "https://bedrock-runtime.us-east-1.amazonaws.com", "codex": "http://mine:1/v1",
    }  # fmt: skip
    pointed = pointing(["claude", "-p", "hi"], "http://127.0.0.1:5", upstreams, given)
    assert pointed.arguments == ["claude", "-p", "hi"]
    assert pointed.variables["OPENAI_BASE_URL"] == "http://127.0.0.1:5/openai/v1"
    assert pointed.variables["OPENAI_HOST"] == "http://127.0.0.1:5/openai"
    assert pointed.variables["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:5/anthropic"
    assert pointed.variables["NO_PROXY"] == "intern,127.0.0.1,localhost"
    assert set(upstreams_of({}, "http://one:2/v1").values()) == {"http://one:2", "http://one:2/v1"}


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("", "http://127.0.0.1:11434"),
        ("0.0.0.0", "http://127.0.0.1:11434"),
        (":8080", "http://127.0.0.1:8080"),
        ("models.intern:80/ollama", "http://models.intern:80/ollama"),
        ("https://models.intern", "https://models.intern"),
    ],
    ids=["not set", "of a server", "a port", "a host and a path", "a URL"],
)
def test_ollama_host_is_resolved_as_its_clients_do(host: str, url: str) -> None:
    assert upstreams_of({"OLLAMA_HOST": host}, None)["ollama"] == url


def test_unsigned_bedrock_clients_use_the_proxy() -> None:
    given = {"AWS_REGION": "eu-west-1", "AWS_BEARER_TOKEN_BEDROCK": "k"}
    upstreams = upstreams_of(given, None)
    assert upstreams["bedrock"] == "https://bedrock-runtime.eu-west-1.amazonaws.com"
    pointed = pointing(["a"], "http://127.0.0.1:5", upstreams, given)
    assert pointed.variables["AWS_ENDPOINT_URL_BEDROCK_RUNTIME"] == "http://127.0.0.1:5/bedrock"
    assert "AWS_ENDPOINT_URL_BEDROCK_RUNTIME" not in pointing(["a"], "http://127.0.0.1:5", upstreams, {}).variables
