"""Calls keep their types through a run: mypy --strict and pyright accept correct calls and report wrong ones.

`PYRIGHT_PYTHON_*`: the PyPI package `pyright` contains pyright and runs it with the `node` on PATH. Without node it
would download one, which no test should.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from refold_tests.absent import without
from refold_tests.tree import ROOT

pytestmark = pytest.mark.outside

AGENT = """\
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, assert_type

import refold
from refold.agents.recorder.run import Run


@dataclass
class Order:
    id: str
    amount: int


@refold.tool
def find_order(order_id: str) -> Order:
    return Order(order_id, 50)


@refold.tool(effect="write")
def refund(order: str, amount: int, *, idempotency_key: str = "") -> int:
    return amount


@refold.tool(effect="read", attempts_max=2)
async def search(query: str, limit: int = 10) -> list[str]:
    return [query] * limit


@refold.tool(ignore=["at"])
def get(order: str, at: int) -> bytes:
    return order.encode()


def chat(*, messages: list[dict[str, str]]) -> str:
    return messages[0]["content"]


async def chat_async(prompt: str) -> bytes:
    return prompt.encode()


def plan(run: Run, hints: list[str]) -> int:
    return len(hints)


async def look(topic: str) -> float:
    return float(len(topic))


"""

RIGHT = """\
def agent(run: Run) -> None:
    assert_type(find_order("o-7"), Order)
    assert_type(refund("o-7", 50), int)
    assert_type(refund("o-7", amount=50, idempotency_key="k"), int)
    assert_type(run.step("plan", plan, run, ["a"]), int)
    assert_type(run.step("plan", plan, run, hints=["a"]), int)
    assert_type(run.step("plan", plan, run, ["a"], attempts_max=3, backoff_ms=20, retry_on=(OSError,)), int)
    assert_type(run.step("find", find_order, "o-7"), Order)
    assert_type(run.step("find", find_order, "o-7", returns=Order), Order)
    assert_type(run.step("refund", refund, "o-7", 50), int)
    assert_type(run.model(chat, messages=[{"role": "user", "content": "?"}]), str)
    assert_type(run.model(chat, messages=[], returns=str), str)
    assert_type(run.model(chat, messages=[], ignore=["messages[*].id"]), str)
    assert_type(run.model(chat, messages=[], key=len), str)
    assert_type(get("o-7", at=5), bytes)
    assert_type(refold.tool(chat, ignore=["messages"])(messages=[]), str)
    with run.step("decide"):
        assert_type(run.decide("refund", why="paid", options=["refund", "refuse"]), str)
        assert_type(run.decide(7), int)
    assert_type(run.read("document/a").fields["fields"], Any)


async def agent_async(run: Run) -> None:
    assert_type(await search("query", limit=3), list[str])
    assert_type(await run.step("look", look, "topic"), float)
    assert_type(await run.step("look", look, topic="topic", attempts_max=2), float)
    assert_type(await run.step("search", search, "query"), list[str])
    assert_type(await run.model(chat_async, "prompt"), bytes)
    async with run.step("decide"):
        assert_type(run.decide(None), None)


def main() -> None:
    with refold.open("file:.refold") as log:
        log.run("agent").drive(agent)
        with log.run("agent") as run:
            agent(run)
"""

WRONG = """\
def agent(run: Run) -> None:
    find_order(7)  # wrong
    get(7, at=5)  # wrong
    refold.tool(chat, ignore=5)  # wrong
    refund("o-7")  # wrong
    refund("o-7", 50, idempotency="k")  # wrong
    run.step("plan", plan, run)  # wrong
    run.step("plan", plan, run, [1])  # wrong
    run.step("refund", refund, 50, "o-7")  # wrong
    run.step("refund", refund, "o-7", amout=50)  # wrong
    run.step(7)  # wrong
    run.step("plan", "plan")  # wrong
    run.model(chat, message=[])  # wrong
    run.model(chat, messages="hello")  # wrong
    number: int = run.model(chat, messages=[])  # wrong
    text: str = run.step("plan", plan, run, ["a"])  # wrong
    choice: str = run.decide(7)  # wrong
    print(number, text, choice)


async def agent_async(run: Run) -> None:
    await search(7)  # wrong
    hits: str = await run.step("search", search, "query")  # wrong
    await run.step("look", look, 7)  # wrong
    answer: str = await run.model(chat_async, "prompt")  # wrong
    await run.model(chat_async)  # wrong
    print(hits, answer)
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("typed")
    (folder / "right.py").write_text(AGENT + RIGHT)
    (folder / "wrong.py").write_text(AGENT + WRONG)
    return folder


def lines_of_wrong(written: Path) -> set[int]:
    lines = (written / "wrong.py").read_text().splitlines()
    return {number for number, line in enumerate(lines, 1) if line.endswith("# wrong")}


def test_mypy_strict_accepts_correct_and_reports_wrong_code(written: Path) -> None:
    found = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file", os.devnull, "--no-error-summary",
         "--follow-imports", "silent", "--cache-dir", str(written / "cache"), "right.py", "wrong.py"],
        cwd=written, capture_output=True, text=True, check=False,
        env={**os.environ, "MYPYPATH": str(ROOT / "src")},
    )  # fmt: skip
    errors = re.findall(r"^(\w+\.py):(\d+): error: .*$", found.stdout, re.MULTILINE)
    assert errors, found.stdout + found.stderr
    assert {int(line) for name, line in errors if name == "wrong.py"} == lines_of_wrong(written), found.stdout
    assert not [each for each in errors if each[0] == "right.py"], found.stdout


def test_pyright_strict_accepts_correct_and_reports_wrong_code(written: Path) -> None:
    if shutil.which("node") is None:
        without("pyright runs on Node, and there is no node on PATH")
    settings = {
        "include": ["right.py", "wrong.py"], "extraPaths": [str(ROOT / "src")], "typeCheckingMode": "strict",
        "pythonVersion": "3.11", "reportUnusedImport": False,
    }  # fmt: skip
    (written / "pyrightconfig.json").write_text(json.dumps(settings))
    found = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable],
        cwd=written, capture_output=True, text=True, check=False,
        env={**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1", "PYRIGHT_PYTHON_GLOBAL_NODE": "1",
             "PYRIGHT_PYTHON_USE_BUNDLED_PYRIGHT": "1"},
    )  # fmt: skip
    told = json.loads(found.stdout)["generalDiagnostics"]
    errors = [(Path(each["file"]).name, each["range"]["start"]["line"] + 1) for each in told
              if each["severity"] == "error"]  # fmt: skip
    assert {line for name, line in errors if name == "wrong.py"} == lines_of_wrong(written), found.stdout
    assert not [each for each in errors if each[0] == "right.py"], found.stdout
