"""The adapters open no socket but those that a user named, and the log's own, in its folder."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from mcp import Client

from refold_tests.child import Child
from refold_tests.command import COMMAND, environment
from refold_tests.mcp import asked
from refold_tests.sockets import sockets_of

pytestmark = pytest.mark.outside  # it imports the SDKs

# urllib3, which LangGraph's client brings, tries at its import whether the machine has IPv6.
URLLIB3 = ["socket.bind", "('::1', 0)"]
# Uses each adapter with the log at argv[1]; prints every address that was looked up, bound or connected to.
USING = """
import asyncio, json, sys

used = []

def watch(event, arguments):
    if event in ("socket.bind", "socket.connect", "socket.sendto"):
        used.append([event, str(arguments[1])])
    elif event in ("socket.getaddrinfo", "socket.gethostbyname"):
        used.append([event, str(arguments[0])])

sys.addaudithook(watch)
url = sys.argv[1]

import agents
from langgraph.graph import START, MessagesState, StateGraph
from refold.claude_agent_sdk import RefoldHooks, RefoldSessionStore
from refold.langgraph import RefoldSaver, RefoldStore
from refold.openai_agents import RefoldSession, RefoldTracingProcessor
import refold

with RefoldSaver(url) as saver:
    store = RefoldStore(saver.log)
    graph = StateGraph(MessagesState)
    graph.add_node("answer", lambda state: {"messages": [("ai", "yes")]})
    graph.add_edge(START, "answer")
    compiled = graph.compile(checkpointer=saver, store=store)
    compiled.invoke({"messages": [("user", "may I?")]}, {"configurable": {"thread_id": "t"}})
    store.put(("a",), "b", {"c": 1})
    assert store.search(("a",))

processor = RefoldTracingProcessor(url)
agents.set_trace_processors([processor])
with agents.trace("t", trace_id="trace_1"), agents.agent_span("desk"), agents.function_span("look", "{}", output="x"):
    pass
processor.force_flush()
processor.shutdown(60)

async def sessions():
    with refold.open(url) as log:
        await RefoldSession("s", log).add_items([{"role": "user", "content": "hello"}])
        async with RefoldSessionStore(log) as sessions:
            key = {"project_key": "p", "session_id": "s"}
            await sessions.append(key, [{"type": "user", "uuid": "u", "message": {"content": "hello"}}])
            assert await sessions.load(key)
        hook = RefoldHooks(log).hooks()["PreToolUse"][0].hooks[0]
        await hook({"hook_event_name": "PreToolUse", "session_id": "s", "tool_name": "Read", "tool_input": {},
                    "tool_use_id": "c", "cwd": "/", "transcript_path": ""}, "c", {"signal": None})
        assert len(log.runs()) == 2

asyncio.run(sessions())
print(json.dumps(used))
"""


def test_adapters_use_only_the_sockets_of_the_log(tmp_path: Path, child: Callable[..., Child]) -> None:
    # An import may use sockets, too.
    process = child(USING, f"file:{tmp_path / 'log'}", is_new=True)
    used = json.loads(process.line())
    process.end()
    used.remove(URLLIB3)
    assert used, "the owner of the log listens in its folder"
    assert [each for each in used if str(tmp_path / "log") not in each[1]] == []


@contextmanager
def serving(folder: Path, *arguments: str) -> Iterator[tuple[str, int]]:
    """Run a command that prints its URL as the second or third word of a line; yield the URL and the process's id."""
    command = [*map(str, COMMAND), *arguments]
    process = subprocess.Popen(
        command, env=environment(f"file:{folder / 'log'}"), cwd=folder, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield next(word for word in process.stdout.readline().split() if word.startswith("http")), process.pid
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate()


def test_mcp_over_http_uses_only_the_named_ports(tmp_path: Path) -> None:
    """`refold mcp --http`, and a tee in front of it. The tee's loop opens its sockets in C, so the kernel is asked."""
    server_folder, tee_folder = tmp_path / "server", tmp_path / "tee"
    server_folder.mkdir()
    tee_folder.mkdir()

    async def work(client: Client) -> int:
        tools = len((await client.list_tools()).tools)
        assert [sockets_of(pid).listening for pid in (server_pid, tee_pid)] == [{address(server)}, {address(tee)}]
        assert sockets_of(server_pid).outgoing == set()
        assert sockets_of(tee_pid).outgoing == {address(server)}
        return tools

    with (
        serving(server_folder, "mcp", "--http", "--port", "0") as (server, server_pid),
        serving(tee_folder, "mcp-record", "--url", server) as (tee, tee_pid),
    ):
        assert asked(tee, work)


def address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return str(parts.hostname), int(parts.port or 0)
