"""Two equal nested runs at the same time. In the first life one ends; the process is killed after the other has
begun.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import refold

CODE = "from refold_tests.equal_children import main; main()"


def agent_of(world: Path, turns: Sequence[int], *, is_killed: bool = False) -> Callable[[refold.Run], list[str]]:
    """Return the agent.

    Args:
        world: A file that gets a line for each effect.
        turns: The lanes, in the order in which their runs begin.
        is_killed: Whether the process is killed after the last run has begun.
    """
    turn = [threading.Event() for _ in turns]
    turn[turns[0]].set()

    @refold.tool(effect="write")
    def act(what: str, *, idempotency_key: str = "") -> str:
        with world.open("a") as file:
            file.write(f"{what}\n")
        return what

    def agent(run: refold.Run) -> list[str]:
        def lane(number: int) -> str:
            assert turn[number].wait(120)
            child = run.child("inner", input="b")
            if number == turns[-1]:
                if is_killed:
                    os.kill(os.getpid(), signal.SIGKILL)
                return child.drive(lambda inner: inner.step("act", act, "b"))  # type: ignore[no-any-return]
            found = str(child.drive(lambda inner: inner.step("act", act, "b")))
            run._sink.await_written()  # the call is durable
            turn[turns[-1]].set()
            return found

        with run.step("both"), ThreadPoolExecutor(2) as pool:
            return list(pool.map(lane, range(len(turns))))

    return agent


def main() -> None:
    """Run the first life. Arguments: the log's URL and the world."""
    with refold.open(sys.argv[1]) as log:
        log.run("outer", id="r1").drive(agent_of(Path(sys.argv[2]), (0, 1), is_killed=True))
