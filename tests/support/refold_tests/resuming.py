"""An agent of nine steps, which alternate between functions and blocks. Its process kills itself in one of them."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import refold

STEPS = 9
PLACES = ("before the call", "behind the call", "behind the step")
CODE = "from refold_tests.resuming import main; main()"


def agent_of(calls: Path, step: int = 0, place: str = "") -> Callable[[refold.Run], Any]:
    """Return the agent. calls: a file that gets a line for each call. It dies in this step at this place; 0: never."""

    def chat(run: str, number: int) -> dict[str, Any]:
        with calls.open("a") as file:
            file.write(f"{run} {number}\n")
        return {"content": f"answer {number}"}

    def die(run: refold.Run, number: int, here: str) -> None:
        if (number, here) == (step, place):
            run._sink.await_written()  # now the test knows the run's position
            os.kill(os.getpid(), signal.SIGKILL)

    def work(run: refold.Run, number: int) -> int:
        die(run, number, PLACES[0])
        answer = run.model(chat, run=run.id, number=number)
        die(run, number, PLACES[1])
        run.state.setdefault("answers", []).append(answer["content"])
        return number

    def agent(run: refold.Run) -> Any:
        for number in range(1, STEPS + 1):
            if number % 2:
                assert run.step(f"work {number}", work, run, number, attempts_max=3) == number
            else:
                with run.step(f"work {number}"):
                    work(run, number)
            die(run, number, PLACES[2])
        return run.state["answers"]

    return agent


def main() -> None:
    """Begin a run for each step, each in its own process, which is killed in that step."""
    url, calls = sys.argv[1], Path(sys.argv[2])
    for step in range(1, STEPS + 1):
        child = os.fork()
        if not child:
            with refold.open(url) as log:
                log.run("tests", id=f"run-{step}").drive(agent_of(calls, step, PLACES[step % 3]))
            os._exit(1)  # it should have died
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), step
        print(step, flush=True)
