"""`refold effects`: what it lists, settles, undoes and refuses."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.agents.effects.keys import effect_key
from refold.agents.effects.ledger import Ledger
from refold.agents.effects.order import Order, Terms
from refold.explorer.cli.main import run

pytestmark = pytest.mark.usefixtures("log_path")

TOOLS = """
import refold
from pathlib import Path

def cancel(effect):
    with Path("undone").open("a") as file:
        file.write(f"{effect.result['id']} {effect.arguments['kwargs']['order']}\\n")
    return "cancelled"

async def found(key, arguments):
    return refold.Done({"id": arguments["kwargs"]["order"]})

def lost(key, arguments):
    raise refold.NotDone("not there")

def unsure(key, arguments):
    return None
"""


@pytest.fixture(autouse=True)
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with probes and undo functions."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "tools.py").write_text(TOOLS)
    monkeypatch.delitem(sys.modules, "tools", raising=False)  # another test's folder has a module of this name
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, Any]]:
    """Run `refold effects ... --json`; return its exit status and its output."""

    def asked(*words: str) -> tuple[int, Any]:
        status = run(["effects", *words, "--json"])
        out = capsys.readouterr()
        assert status in (0, 1), out.err
        return status, json.loads(out.out)

    return asked


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def said(*words: str) -> str:
        assert run(["effects", *words]) == 2
        return capsys.readouterr().err

    return said


def cancel(effect: Any) -> str:
    return "never called: the command looks for the function where it is started"


@refold.tool(effect="write", undo=cancel)
def refund(order: int) -> dict[str, Any]:
    return {"id": order}


@refold.tool(effect="write", lease_s=3600)
def mail(order: int) -> str:
    raise TimeoutError("no answer")


def unanswered(key: str) -> str:
    raise TimeoutError("no answer")


@contextmanager
def opened(path: Path) -> Iterator[refold.AgentLog]:
    with refold.open(f"file:{path}") as log:
        yield log


def desk(run: refold.Run) -> Any:
    """Refund two orders, and send a mail whose result is unknown."""
    run.step("one", refund, 1)
    run.step("two", refund, 2)
    return run.step("mail", mail, 1)


@pytest.fixture
def keys(log_path: Path) -> dict[str, str]:
    """The keys of the desk's effects, by tool and step."""
    with opened(log_path) as log:
        with pytest.raises(refold.EffectUnknown):
            log.run("desk", id="run-7").drive(desk)
        return {f"{each.tool} {each.step[-1]}": each.key for each in log.effects.list()}


def test_list_shows_effects_and_filters(
    keys: dict[str, str], ask: Callable[..., tuple[int, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    _, every = ask("list")
    assert [each["key"] for each in every] == list(keys.values())
    first, _, last = every
    assert (first["status"], first["run"], first["agent"], first["step"]) == ("done", "run-7", "desk", "run-7#1")
    assert (first["arguments"], first["result"]) == ({"kwargs": {"order": 1}}, {"id": 1})
    assert (first["attempts"], first["times_done"], first["error"], first["unreadable"]) == (1, 1, None, None)
    assert (last["status"], last["error"]["exception"], last["error"]["message"]) == (
        "unknown", "TimeoutError", "no answer",
    )  # fmt: skip
    assert last["settled_at"] is None
    assert ask("list", "--status", "unknown") == (0, [last])
    assert ask("list", "--tool", "refund")[1] == every[:2]
    assert ask("list", "--run", "run-")[1] == every
    assert ask("list", "--tool", "none") == (0, [])
    assert run(["effects", "list"]) == 0
    text = capsys.readouterr().out
    assert "3 effects, 1 to be settled" in text
    assert "TimeoutError: no answer" in text
    assert run(["effects", "list", "--tool", "none"]) == 0
    assert "no effect matches" in capsys.readouterr().out


def test_log_without_effects_says_so(log_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with opened(log_path) as log:
        log.observe("document/d", {"fields": {}})
    assert run(["effects", "list"]) == 0
    assert "no run called a write tool" in capsys.readouterr().out


def test_settle_by_hand_gives_the_run_its_result(
    keys: dict[str, str], ask: Callable[..., tuple[int, Any]], refused: Callable[..., str], log_path: Path
) -> None:
    key = keys["mail 3"]
    status, settled = ask("settle", key[:-3], "--done", '{"sent": 1.0}', "--note", "in the outbox", "--by", "ann")
    assert (status, settled["status"], settled["result"], settled["reconciled_by"]) == (0, "done", {"sent": 1.0}, "ann")
    assert "it is done" in refused("settle", key, "--not-done")
    with opened(log_path) as log:
        assert log.run("desk", resume="run-7").drive(desk) == {"sent": 1.0}


def test_settle_by_a_probe(
    keys: dict[str, str], ask: Callable[..., tuple[int, Any]], refused: Callable[..., str], log_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    key = keys["mail 3"]
    assert ask("settle", key, "--probe", "tools:unsure")[1]["status"] == "unknown"
    assert run(["effects", "settle", key, "--probe", "tools:unsure"]) == 1
    assert "still unknown" in capsys.readouterr().out
    assert "no module nowhere" in refused("settle", key, "--probe", "nowhere:x")
    assert "tools has no function x" in refused("settle", key, "--probe", "tools:x")
    assert "may still be in progress" in refused("settle", key, "--probe", "tools:lost")
    assert ask("settle", key, "--probe", "tools.py:found")[1]["result"] == {"id": 1}
    order = Order("run-8:1:mail:5", "mail", {"kwargs": {"order": 5}}, run="run-8", agent="desk")
    with opened(log_path) as log:
        long_ago = Ledger(log, lambda: 1_700_000_000_000_000, lambda: "token", keeper=log.vault)
        with pytest.raises(refold.EffectUnknown):
            long_ago.perform(order, unanswered, Terms(lease_s=60))
    assert run(["effects", "settle", order.key, "--probe", "tools:lost"]) == 0
    assert "is failed, says" in capsys.readouterr().out


def test_settle_refuses_contradictory_options(keys: dict[str, str], refused: Callable[..., str]) -> None:
    key = keys["mail 3"]
    assert "with one of" in refused("settle", key)
    assert "with one of" in refused("settle", key, "--not-done", "--done", "1")
    assert "3 begin with it" in refused("settle", "run-7", "--not-done")
    assert "there is no effect of this name" in refused("settle", "other", "--not-done")
    assert "there is no effect of this name" in refused("settle", "", "--not-done")
    assert "it is done" in refused("settle", keys["refund 1"], "--not-done")


def test_compensate_undoes_last_first_and_names_what_it_cannot(
    keys: dict[str, str], ask: Callable[..., tuple[int, Any]], refused: Callable[..., str], tools: Path
) -> None:
    undo = ("--undo", "refund=tools:cancel")
    status, planned = ask("compensate", "run-7", "--dry-run", *undo)
    assert status == 1
    assert [(each["key"], each["ended"]) for each in planned] == [
        (keys["mail 3"], "not undone"), (keys["refund 2"], "would be undone"), (keys["refund 1"], "would be undone"),
    ]  # fmt: skip
    assert "it is unknown; settle it" in planned[0]["why"]
    assert not (tools / "undone").exists()
    ask("settle", keys["mail 3"], "--not-done")
    status, undone = ask("compensate", "run-7", *undo)
    assert (status, [each["ended"] for each in undone]) == (0, ["undone"] * 2)
    assert (tools / "undone").read_text() == "2 2\n1 1\n"
    assert [each["ended"] for each in ask("compensate", "run-", *undo)[1]] == ["was undone before"] * 2
    assert (tools / "undone").read_text() == "2 2\n1 1\n"
    assert "no run with effects" in refused("compensate", "other")
    assert "TOOL=MODULE:FUNCTION" in refused("compensate", "run-7", "--undo", "refund")
    assert "tools has no function x" in refused("compensate", "run-7", "--undo", "refund=tools:x")


def test_compensate_uses_the_registered_function_of_a_tool(
    log_path: Path, ask: Callable[..., tuple[int, Any]], tools: Path
) -> None:
    with opened(log_path) as log:
        ledger: Ledger = log.effects
        for number, undo in enumerate(("tools:cancel", "nowhere:cancel")):
            order = order_with(f"tool{number}", undo)
            ledger.perform(order, lambda key: {"id": "r"})
    status, undone = ask("compensate", "run-1")
    assert status == 1
    assert [each["ended"] for each in undone] == ["not undone", "undone"]
    assert "no module nowhere" in undone[0]["why"]
    assert "--undo tool1=MODULE:FUNCTION" in undone[0]["why"]
    assert (tools / "undone").read_text() == "r 3\n"


def order_with(tool: str, undo: str) -> Order:
    arguments = {"kwargs": {"order": 3}}
    return Order(effect_key("t", 1, tool, arguments), tool, arguments, run="run-1", undo=undo)
