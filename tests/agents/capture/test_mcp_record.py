"""`refold mcp-record`: the client notices nothing, and the answers that it got are recorded, whatever is killed."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.shared.exceptions import MCPError

from refold.agents.journal.record import Recording
from refold.agents.log import open_log
from refold_tests.command import COMMAND, environment, refold_command, started
from refold_tests.forked import Forked
from refold_tests.mcp import asked, text_of
from refold_tests.tree import ROOT

pytestmark = pytest.mark.outside

ROUNDS = int(os.environ.get("REFOLD_FAULT_ROUNDS", "6"))
SERVERS = ROOT / "tests" / "support" / "refold_tests"
COUNTER = [sys.executable, "-P", str(SERVERS / "mcp_counter.py")]


def tee(folder: Path, *words: object, keys: str = "", **given: Any) -> Forked:
    """Start `refold mcp-record` as a process. keys: its REFOLD_KEYS."""
    return started(
        "mcp-record", "--spool", folder / "spool", *words,
        env=environment(f"file:{folder / 'log'}", {"REFOLD_KEYS": keys}), stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=False, **given,
    )  # fmt: skip


def transport(folder: Path, *words: object) -> Any:
    command, *rest = map(str, COMMAND)
    arguments = [*rest, "mcp-record", "--spool", str(folder / "spool"), *map(str, words)]
    return stdio_client(StdioServerParameters(
        command=command, args=arguments, env=environment(f"file:{folder / 'log'}")
    ))  # fmt: skip


def recorded(folder: Path) -> list[Recording]:
    """Return the runs, the first begun first."""
    with open_log(f"file:{folder / 'log'}", read_only=True) as log:
        return [log.recording(row.run) for row in reversed(log.runs())]


def calls_of(run: Recording, tool: str) -> list[Any]:
    return [call for step in run.steps for call in step.calls if call.asked.name == tool]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_session_is_recorded_and_replayed_without_its_server(tmp_path: Path, mode: str) -> None:
    bought = tmp_path / "bought.txt"

    async def work(client: Client) -> list[str]:
        said = [",".join(each.name for each in (await client.list_tools()).tools)]
        for tool, given in (("price", {"item": "kettle"}), ("buy", {"item": "cup", "count": 2}),
                            ("price", {"item": "tent"}), ("buy", {"item": "cup", "count": 2})):  # fmt: skip
            result = await client.call_tool(tool, given)
            said.append(f"{result.is_error} {text_of(result)}")
        return said

    said = asked(transport(tmp_path, "--", sys.executable, "-P", SERVERS / "mcp_shop.py", bought), work, mode)
    assert said[:3] == ["price,buy", "False 1999", "False order 2 cup"]
    assert bought.read_text() == "2 cup\n2 cup\n"
    (run,) = recorded(tmp_path)
    assert (run.outcome, run.kind) == ("succeeded", "mcp")
    price, failed = calls_of(run, "price")
    assert (price.asked.request, price.asked.effect) == ({"item": "kettle"}, "read")
    assert failed.failure is not None
    assert [each.asked.effect for each in calls_of(run, "buy")] == ["write", "write"]
    with open_log(f"file:{tmp_path / 'log'}", read_only=True) as log:
        actions = log.rebuild(types=["action"])
        found = {name: actions[name].fields for name in actions}
    assert [found[each]["effect"] for each in sorted(found)] == ["read", "write", "read", "write"]
    assert [found[each]["status"] for each in sorted(found)] == ["succeeded", "succeeded", "failed", "succeeded"]

    async def again(client: Client) -> list[str]:
        replayed = await work(client)
        with pytest.raises(MCPError, match=r"buy is not recorded so in run .*called 2 times"):
            await client.call_tool("buy", {"item": "cup", "count": 2})
        with pytest.raises(MCPError, match="never asked"):
            await client.call_tool("sell", {})
        assert text_of(await client.call_tool("price", {"item": "kettle"})) == "1999"
        return replayed

    assert asked(transport(tmp_path, "--replay", run.run), again, mode) == said
    assert bought.read_text() == "2 cup\n2 cup\n"


@pytest.mark.parametrize("keys", ["", "none"], ids=["sealed", "clear"])
def test_call_is_an_action_with_its_result(tmp_path: Path, keys: str, monkeypatch: pytest.MonkeyPatch) -> None:
    process = tee(tmp_path, "--", *COUNTER, keys=keys)
    said = json.loads(ask(process, 7))["result"]
    process.communicate(timeout=240)
    monkeypatch.setenv("REFOLD_KEYS", keys)
    (run,) = recorded(tmp_path)
    (call,) = calls_of(run, "call")
    assert (call.asked.request, call.answer) == ({"number": 7}, said)
    with open_log(f"file:{tmp_path / 'log'}", read_only=True) as log:
        view = log.rebuild(types=["action"])
        (action,) = view
        shown = log.vault.open(action, "output", view[action].fields["output"])
    assert json.loads(str(shown)) == said


@pytest.mark.parametrize(
    ("script", "status"), [("cat; exit 7", 7), ("cat; kill -TERM $$", -15), ("cat; kill -KILL $$", -9)],
    ids=["status", "terminated", "killed"],
)  # fmt: skip
def test_every_byte_is_forwarded_and_the_exit_status_is_the_servers(tmp_path: Path, script: str, status: int) -> None:
    sent = random.Random(7).randbytes(300_000) + b"\n" + b'{"jsonrpc": "2.0"' * 3 + b"\n[1e999]\n" + b"\xff"
    process = tee(tmp_path, "--", "sh", "-c", script, stderr=subprocess.PIPE)
    said, log = process.communicate(sent, timeout=240)
    assert said == sent
    assert process.returncode == status, log
    assert b"Traceback" not in log


def test_signals_and_partial_messages_are_forwarded_at_once(tmp_path: Path) -> None:
    process = tee(tmp_path, "--", "sh", "-c", "trap 'echo told; exit 5' TERM; exec 3<&0; cat <&3 & wait")
    assert process.stdin is not None
    assert process.stdout is not None
    for piece in (b"a", b"b\n", b"half of a li"):
        process.stdin.write(piece)
        process.stdin.flush()
        assert process.stdout.read1(100) == piece  # type: ignore[attr-defined]
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == b"told\n"
    process.communicate(timeout=240)
    assert process.returncode == 5


def ask(process: Forked, number: int, tool: str = "call") -> bytes:
    """Make one call; return the line that answers it, b"" if the process has ended."""
    message = {"jsonrpc": "2.0", "id": number, "method": "tools/call",
               "params": {"name": tool, "arguments": {"number": number}}}  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(json.dumps(message).encode() + b"\n")
        process.stdin.flush()
    return process.stdout.readline() if tool == "call" else b""


def test_answered_calls_are_recorded_even_if_the_tee_is_killed(tmp_path: Path) -> None:
    chance, answered = random.Random(11), 0
    for _ in range(max(2, ROUNDS // 2)):
        process = tee(tmp_path, "--", *COUNTER)
        for _ in range(chance.randrange(1, 30)):
            assert ask(process, answered)
            answered += 1
        process.kill()
        process.communicate(timeout=240)
    last = tee(tmp_path, "--", *COUNTER)
    assert ask(last, answered)
    last.communicate(timeout=240)
    assert last.returncode == 0
    runs = recorded(tmp_path)
    numbers = [call.asked.request["number"] for run in runs for call in calls_of(run, "call") if call.failure is None]
    assert sorted(numbers) == list(range(answered + 1))
    assert {run.outcome for run in runs} == {"succeeded"}
    with open_log(f"file:{tmp_path / 'log'}", read_only=True) as log:
        actions = log.rebuild(types=["action"])
        assert sum(actions[name].fields["status"] == "succeeded" for name in actions) == answered + 1


def test_call_during_which_the_server_was_killed_is_recorded_as_unanswered(tmp_path: Path) -> None:
    process = tee(tmp_path, "--", "sh", "-c", '"$@" & wait; kill -KILL $$', "sh", "sleep", "0")
    process.communicate(b"", timeout=240)
    assert process.returncode == -signal.SIGKILL
    process = tee(tmp_path, "--", *COUNTER)
    assert ask(process, 1)
    ask(process, 2, "stall")
    assert ask(process, 3)
    process.communicate(timeout=240)
    run = recorded(tmp_path)[-1]
    (stalled,) = calls_of(run, "stall")
    assert stalled.failure is not None
    assert stalled.failure.exception == "ServerEnded"
    assert [call.failure for call in calls_of(run, "call")] == [None, None]


def test_invalid_options_name_the_valid_ones(tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'log'}"
    assert "after --" in refold_command("mcp-record", log=url).err
    assert "leave the server out" in refold_command("mcp-record", "--replay", "x", "--", "cat", log=url).err
    missing = refold_command("mcp-record", "--spool", tmp_path / "spool", "--", "no-such-server", log=url)
    assert missing.status == 2
    assert "no-such-server" in missing.err
