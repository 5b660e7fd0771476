"""An agent with one long step, whose calls run in order and in threads. It is killed during the step."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import refold

CALLS = 12
LANES = 3
CODE = "from refold_tests.long_steps import main; main()"


def agent_of(calls: Path, dies_behind: int = 0, *, is_barred: bool = True) -> Callable[[refold.Run], Any]:
    """Return the agent.

    Args:
        calls: A file that gets a line when a call ends, once its answer is decided.
        dies_behind: After how many calls it is killed; 0: never.
        is_barred: Whether all ended calls are durable before it is killed.
    """

    def noted(name: str) -> str:
        with calls.open("a") as file:
            file.write(f"{name}\n")
        return f"answer of {name}"

    def ask(name: str) -> str:
        return noted(name)

    @refold.tool(effect="read")
    def look(name: str) -> dict[str, str]:
        return {"found": noted(name)}

    def agent(run: refold.Run) -> Any:
        def count() -> None:
            made = len(calls.read_text().splitlines()) if calls.exists() else 0
            if dies_behind and made >= dies_behind:
                if is_barred:
                    run._sink.await_written()
                else:
                    time.sleep(random.random() * 0.02)  # about as long as it takes until the calls are durable
                os.kill(os.getpid(), signal.SIGKILL)

        def lane(number: int) -> list[str]:
            found = []
            for turn in range(2):
                found.append(look(f"lane {number}.{turn}")["found"])
                count()
            return found

        with run.step("all of it"):
            run._sink.await_written()  # the run exists, so it can be resumed
            answers: list[Any] = []
            for number in range(CALLS):
                answers.append(run.model(ask, f"call {number % 4}") if number % 2 else look(f"look {number}")["found"])
                count()
            with ThreadPoolExecutor(LANES) as pool:
                answers += [each for found in pool.map(lane, range(LANES)) for each in found]
            run.state["answers"] = answers
        return run.state["answers"]

    return agent


def main() -> None:
    """Drive the run. Arguments: the log's URL, the file of calls, the number of calls before the kill, and optionally
    `barred` and `resume`.
    """
    url, calls, dies_behind, how = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
    agent = agent_of(calls, dies_behind, is_barred="barred" in how)
    with refold.open(url) as log:
        (log.run("tests", resume="r1") if "resume" in how else log.run("tests", id="r1")).drive(agent)
        print("done", flush=True)
