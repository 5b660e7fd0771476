"""MCP tools return exactly what the commands print, at one cut, over every transport and protocol version."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

import refold
from refold.explorer.cli.main import run
from refold.explorer.demo.desk import RUN
from refold.explorer.mcp.bounded import ANSWER_CHARS_MAX, fitted
from refold.explorer.mcp.server import INSTRUCTIONS, HistoryServer
from refold.explorer.mcp.tools import TOOLS
from refold.explorer.queries.log_target import LogTarget
from refold_tests.brokers import SharedKafka
from refold_tests.command import environment, new_command, refold_command, started
from refold_tests.explored import CONFIG, FORK, READER, write_incident
from refold_tests.mcp import MODES, HttpServer, asked, by_stdio, call, http_server, refused

pytestmark = pytest.mark.outside

Given = dict[str, Any]
# What a client of today's protocol sends with each request.
MODERN = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
# A tool's arguments, and the command that asks the same question. Each has an answer in the log of write_incident.
ASKED: dict[str, tuple[Given, Sequence[str]]] = {
    "find": ({"text": "acme"}, ["find", "acme"]),
    "find-type": ({"type": "step", "text": "kettle"}, ["find", "kettle", "--type", "step"]),
    "state": ({"entity": CONFIG, "at": "v1"}, ["state", CONFIG, "--at", "v1"]),
    "state-sealed": ({"entity": f"run/{RUN}"}, ["state", f"run/{RUN}"]),
    "knew": ({"agent": "reader", "run": READER, "every": True}, ["knew", "reader", "--run", READER, "--all"]),
    "why": ({"value": f"{CONFIG}.rate_limit", "depth": 1}, ["why", f"{CONFIG}.rate_limit", "--depth", "1"]),
    "diff": ({"a": "@deploy-1", "b": "now", "entity": CONFIG}, ["diff", "@deploy-1", "now", CONFIG]),
    "runs": ({"outcome": "failed"}, ["runs", "--outcome", "failed"]),
    "show": ({"run": READER}, ["run", "show", READER]),
    "show-step": ({"run": RUN, "step": 2}, ["run", "steps", RUN, "--step", "2"]),
    "compare": ({"a": RUN, "b": FORK}, ["run", "compare", RUN, FORK]),
    "effects": ({"run": RUN}, ["effects", "list", "--run", RUN]),
    "verify": ({}, ["verify"]),
}
WAYS = [(way, mode) for way in ("stdio", "http") for mode in MODES]


def test_every_tool_is_called() -> None:
    assert {each.partition("-")[0] for each in ASKED} == set(TOOLS)


@pytest.mark.parametrize("writes", [False, True], ids=["reads", "writes"])
def test_definitions_are_few_and_small(incident_url: str, writes: bool) -> None:
    history = HistoryServer(LogTarget(incident_url), writes=writes)
    try:
        tools = history.tools()
    finally:
        history.close()
    text = json.dumps([each.model_dump(by_alias=True, exclude_none=True) for each in tools])
    # In such text, a token is about four characters.
    assert (len(text) + len(INSTRUCTIONS)) / 4 < 3_000
    assert len(TOOLS) <= 10
    reading = {each.name for each in tools if each.annotations is not None and each.annotations.read_only_hint}
    assert reading == set(TOOLS)
    assert {each.name for each in tools} - reading == ({"observe"} if writes else set())


@pytest.mark.parametrize("name", ASKED)
def test_tool_answers_what_the_command_prints(
    server: HttpServer, incident_url: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given, command = ASKED[name]
    run([*command, "--log", incident_url, "--json"])
    printed = json.loads(capsys.readouterr().out)

    async def work(client: Client) -> None:
        found = await call(client, name.partition("-")[0], **given)
        # The answer may be shortened: a slow recorder records a call separately from its step, so the provenance
        # is longer.
        assert found == json.loads(fitted({"again": found["again"]}, printed, ANSWER_CHARS_MAX))
        again = await call(client, name.partition("-")[0], **found["again"])
        assert again == found

    asked(server.url, work)


@pytest.mark.parametrize(("way", "mode"), WAYS, ids=["-".join(each) for each in WAYS])
def test_session_over_every_transport_and_protocol(
    server: HttpServer, incident_url: str, way: str, mode: str
) -> None:  # fmt: skip
    async def work(client: Client) -> None:
        assert client.protocol_version == ("2026-07-28" if mode == "auto" else "2025-11-25")
        assert [each.name for each in (await client.list_tools()).tools] == list(TOOLS)
        found = await call(client, "state", entity=CONFIG)
        assert found["answer"]["fields"]["rate_limit"]["value"] == 500
        assert found["again"]["at"].startswith("cut:")
        assert "Next: find" in await refused(client, "state", entity="tool_config/nobody")
        with pytest.raises(MCPError, match="there are find, state"):
            await client.call_tool("forget", {})
        (resource,) = (await client.list_resources()).resources
        assert resource.uri == f"refold://entity/{CONFIG}"
        content = (await client.read_resource(f"{resource.uri}?at=v1")).contents[0]
        assert json.loads(content.text)["answer"]["fields"]["rate_limit"]["value"] == 50  # type: ignore[union-attr]
        with pytest.raises(MCPError, match="refold://entity/"):
            await client.read_resource("file:///etc/passwd")
        (template,) = (await client.list_resource_templates()).resource_templates
        assert "{+entity}" in template.uri_template

    asked(by_stdio(incident_url) if way == "stdio" else server.url, work, mode)


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
def test_every_older_handshake_is_answered(server: HttpServer, version: str) -> None:
    asked_for = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "old", "version": "1"}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": asked_for}
    status, said = server.post(json.dumps(message).encode())
    assert status == 200
    assert json.loads(said)["result"]["protocolVersion"] == version


def test_answer_is_repeatable_after_the_log_has_grown(tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'log'}"
    _observed(url, 1)

    async def work(client: Client) -> None:
        before = await call(client, "state", entity=CONFIG)
        found = await call(client, "find", text="acme")
        _observed(url, 2)
        assert (await call(client, "state", entity=CONFIG))["answer"]["version"] == 2
        assert await call(client, "state", **before["again"]) == before
        assert await call(client, "find", **found["again"]) == found

    with http_server(url) as server:
        asked(server.url, work)


def _observed(url: str, value: int) -> None:
    with refold.open(url) as log:
        log.observe(CONFIG, {"rate_limit": value})


def test_long_answer_is_read_to_its_end_by_cursors(tmp_path: Path) -> None:
    url, note = f"file:{tmp_path / 'log'}", "".join(chr(0x4E00 + each % 5000) for each in range(50_000))
    with refold.open(url) as log:
        for number in range(400):
            log.observe(f"document/d-{number:03}", {"kind": "note"})
        log.observe("document/long", {"fields": {"note": note}})

    async def work(client: Client) -> None:
        found = await call(client, "state", entity="document/long")
        (rest,) = [each for each in found["more"] if each["cursor"].startswith("/fields/fields/value/note@")]
        text = found["answer"]["fields"]["fields"]["value"]["note"].removesuffix("…")
        cursor = rest["cursor"]
        while cursor:
            result = await client.call_tool("state", {**found["again"], "cursor": cursor})
            (said,) = result.content
            assert len(said.text) <= ANSWER_CHARS_MAX  # type: ignore[union-attr]
            part = json.loads(said.text)  # type: ignore[union-attr]
            text += part["answer"].removesuffix("…")
            cursor = part["more"][0]["cursor"] if "more" in part else ""
        assert text == note
        listed = await call(client, "find", type="document")
        names = [each["entity"] for each in listed["answer"]]
        while "more" in listed:
            listed = await call(client, "find", **listed["again"], cursor=listed["more"][0]["cursor"])
            names += [each["entity"] for each in listed["answer"]]
        assert names == [*(f"document/d-{number:03}" for number in range(400)), "document/long"]
        assert "in `again`" in await refused(client, "find", type="document", cursor="@7")
        page = await client.list_resources()
        uris = [each.uri for each in page.resources]
        while page.next_cursor:
            page = await client.list_resources(cursor=page.next_cursor)
            uris += [each.uri for each in page.resources]
        assert uris == [f"refold://entity/{name}" for name in names]

    with http_server(url) as server:
        asked(server.url, work)


WRONG: dict[str, tuple[str, Given, str]] = {
    "unknown": ("state", {"entity": CONFIG, "colour": "red"}, "state takes entity, at, clock, cursor"),
    "missing": ("diff", {"a": "now"}, "diff needs b: WHEN"),
    "kind": ("show", {"run": RUN, "step": "two"}, "step: a whole number"),
    "truth": ("show", {"run": RUN, "step": True}, "step: a whole number"),
    "choice": ("runs", {"outcome": "fine"}, "outcome: one of"),
    "when": ("state", {"entity": CONFIG, "at": "yesterday"}, "not a point in time"),
    "marker": ("state", {"entity": CONFIG, "at": "@nowhere"}, "deploy-1"),
    "run": ("show", {"run": "nobody-1"}, "Next: runs lists the runs there are"),
    "field": ("why", {"value": f"{CONFIG}.colour"}, "rate_limit"),
    "type": ("find", {"type": "colour"}, "it has "),
    "long": ("find", {"text": "x" * 10_000}, "at most 8,000 characters"),
    "cursor": ("runs", {"cursor": "further"}, "from `more` of an answer"),
}


def test_errors_say_what_to_do(server: HttpServer) -> None:
    async def work(client: Client) -> None:
        for tool, given, says in WRONG.values():
            assert says in await refused(client, tool, **given)

    asked(server.url, work)


def test_tools_record_only_when_allowed(tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'log'}"
    _observed(url, 1)
    said = {"entity": CONFIG, "patch": {"rate_limit": 7}, "agent": "operator"}

    async def reading(client: Client) -> None:
        with pytest.raises(MCPError, match="no such tool"):
            await client.call_tool("observe", said)

    async def writing(client: Client) -> None:
        found = await call(client, "observe", **said)
        state = await call(client, "state", entity=CONFIG)
        assert state["answer"]["fields"]["rate_limit"]["observation"] == found["answer"]["id"]
        assert state["answer"]["fields"]["rate_limit"]["source"]["agent"] == "operator"
        assert state["again"]["at"] == found["again"]["at"]
        assert "rate_limit" in await refused(client, "observe", **{**said, "patch": {"rate_limit": "many"}})
        assert "observe needs agent" in await refused(client, "observe", entity=CONFIG, patch={"rate_limit": 1})
        assert "object" in await refused(client, "observe", **{**said, "patch": "rate_limit=7"})
        assert "takes entity" in await refused(client, "observe", **said, colour="red")

    asked(by_stdio(url), reading)
    asked(by_stdio(url, "--write"), writing)


@pytest.mark.faults
def test_killed_server_keeps_what_it_acknowledged(tmp_path: Path, fault_rounds: int, seed: int) -> None:
    """An observation whose id the client got is in the log; one that was not answered is in it whole, or not at all."""
    url, chance, acknowledged, sent = f"file:{tmp_path / 'log'}", random.Random(seed), set[str](), 0
    _observed(url, 1)
    for _ in range(max(1, fault_rounds // 3)):
        process = started(
            "mcp", "--write", env=environment(url), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=False
        )
        assert process.stdin is not None
        assert process.stdout is not None
        answers = chance.randrange(1, 8)
        for _ in range(answers + 20):
            sent += 1
            given = {"entity": f"tool_config/c-{sent}", "patch": {"rate_limit": sent}, "agent": "operator"}
            message = {"jsonrpc": "2.0", "id": sent, "method": "tools/call",
                       "params": {"name": "observe", "arguments": given, "_meta": MODERN}}  # fmt: skip
            process.stdin.write(json.dumps(message).encode() + b"\n")
        process.stdin.flush()
        said = [process.stdout.readline() for _ in range(answers)]
        process.kill()
        rest, _ = process.communicate(timeout=240)
        for line in [*said, *rest.splitlines(keepends=True)]:
            if line.endswith(b"\n"):
                acknowledged.add(json.loads(json.loads(line)["result"]["content"][0]["text"])["answer"]["id"])
    with refold.open(url) as log:
        view = log.rebuild(types=["tool_config"])
        states = {name: view[name] for name in view if name != CONFIG}
        held = {states[name].observations_of("rate_limit")[0].hex() for name in states}
        assert acknowledged <= held
        assert {f"tool_config/c-{states[name].fields['rate_limit']}" for name in states} == {*states}
        assert log.verify().mismatches == []


def test_sealed_content_needs_the_key_as_in_the_commands(incident_url: str) -> None:
    without = {"REFOLD_KEYS": "none"}
    printed = json.loads(refold_command("state", f"run/{RUN}", "--json", log=incident_url, more=without).out)
    assert "$sealed" in json.dumps(printed)

    async def work(client: Client) -> None:
        assert (await call(client, "state", entity=f"run/{RUN}"))["answer"] == printed
        (row,) = (await call(client, "find", type="run", text="no such text of anybody's"))["answer"][:1]
        assert row["unread"]

    asked(by_stdio(incident_url, more=without), work)


def test_missing_log_is_reported_by_the_tools(tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'log'}"

    async def work(client: Client) -> None:
        assert "no log" in await refused(client, "runs")
        assert not (tmp_path / "log").exists()
        _observed(url, 3)
        assert (await call(client, "state", entity=CONFIG))["answer"]["fields"]["rate_limit"]["value"] == 3

    asked(by_stdio(url), work)


def test_log_without_runs_is_reported(tmp_path: Path) -> None:
    with refold.open(f"file:{tmp_path / 'log'}"):
        pass

    async def work(client: Client) -> None:
        for tool in ("runs", "find", "effects"):
            assert (await call(client, tool))["answer"] == []
        assert (await call(client, "verify"))["answer"]["ok"]
        assert (await client.list_resources()).resources == []
        assert "no run is recorded" in await refused(client, "show", run="x")

    with http_server(f"file:{tmp_path / 'log'}") as server:
        asked(server.url, work)


@pytest.mark.timeout(600)
def test_log_on_kafka_answers_the_same(kafka: SharedKafka, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFOLD_MASTER_KEY", "bW1tbW1tbW1tbW1tbW1tbW1tbW1tbW1tbW1tbW1tbW1tbW1tbW1tbW1tbW1tbW1t")
    url = f"kafka://{kafka.bootstrap}/{prefix}"
    write_incident(url)

    async def work(client: Client) -> None:
        for name, (given, _) in ASKED.items():
            found = await call(client, name.partition("-")[0], **given)
            assert found["answer"]
        before = await call(client, "why", value=f"{CONFIG}.rate_limit")
        assert await call(client, "why", **before["again"]) == before

    with http_server(url) as server:
        asked(server.url, work)


def test_invalid_options_are_refused_before_serving() -> None:
    for option, value in (("--tls-cert", "x"), ("--host", "0.0.0.0"), ("--port", "0")):
        done = refold_command("mcp", option, value, log="file:nothing")
        assert (done.status, done.out) == (2, "")
        assert "give --http as well" in done.err
    far = refold_command("mcp", "--http", "--host", "0.0.0.0", "--port", "0", log="file:nothing")
    assert (far.status, far.out) == (2, "")
    assert re.search(r"token.*REFOLD_TOKEN", far.err)
    assert "--port" not in far.err, "another port is no remedy"


def test_missing_extra_is_named(tmp_path: Path) -> None:
    (tmp_path / "mcp.py").write_text("raise ModuleNotFoundError(\"No module named 'mcp'\", name='mcp')\n")
    done = new_command(
        "mcp", log="file:nothing", more={"PYTHONPATH": f"{tmp_path}{os.pathsep}" + os.environ.get("PYTHONPATH", "")}
    )
    assert done.status == 2
    assert "pip install 'refold[mcp]'" in done.err
