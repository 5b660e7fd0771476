"""An agent that pays a price within a limit which it reads from the log. Files next to it decide what goes wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from refold.agents.entry import agent_of
from refold.agents.golden.add import golden_of_run
from refold.agents.golden.file import write
from refold.agents.log import AgentLog
from refold.agents.recorder.log_backend import read_again
from refold_tests.child import Child

CODE = '''
import os
import signal
from pathlib import Path

import refold

HERE = Path(__file__).parent


@refold.tool
def price(item):
    if (HERE / "down").exists():
        raise ConnectionError("down")
    return 7


@refold.tool
def status():
    """It is ready when it was asked eight times."""
    with (HERE / "asked").open("a") as file:
        file.write("x")
    return "ready" if (HERE / "asked").stat().st_size > 8 else "wait"


@refold.tool(effect="write")
def pay(*, eur, idempotency_key=""):
    with (HERE / "paid").open("a") as file:
        file.write(f"{idempotency_key.split(':')[0]} {eur}\\n")
    if (HERE / "lost").exists():
        raise TimeoutError("no answer")
    return f"paid {eur}"


def chat(*, model, item):
    if (HERE / "killed").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    usage = {"prompt_tokens": 100, "completion_tokens": 1}
    return {"model": model, "usage": usage, "discount": 3 if model == "large" or (HERE / "sober").exists() else 0}


def agent(run, limit_max=None):
    with run.step("read"):
        run.state["limit"] = run.read("tool_config/acme").fields["rate_limit"]
    with run.step("price"):
        run.state["eur"] = price(item=1)
    with run.step("discount"):
        run.state["eur"] -= run.model(chat, model="small", item=1)["discount"]
    with run.step("pay"):
        if run.state["eur"] > (limit_max or run.state.get("limit", 100)):
            raise ValueError("over the limit")
        return pay(eur=run.state["eur"])


def generous(run):
    return agent(run, limit_max=100)


def polls(run):
    while True:
        with run.step("poll"):
            run.state["status"] = status()
        if run.state["status"] == "ready":
            with run.step("pay"):
                return pay(eur=7)
'''

# Runs the agent in a process of its own, which its file `killed` kills.
_KILLED = """
import sys
from pathlib import Path
import refold
from refold.agents.entry import agent_of

url, entry = sys.argv[1:]
with refold.open(url) as log:
    log.run("payer", id="r", version="1", entry=entry).drive(agent_of(entry, Path(entry).parent))
"""


class Payer:
    """The agent in a folder, and its runs in a log."""

    def __init__(self, log: AgentLog, folder: Path) -> None:
        folder.mkdir()
        (folder / "agent.py").write_text(CODE)
        self.log = log
        self.folder = folder
        self._limit = 0
        self.limits(10)

    def entry(self, function: str = "agent") -> str:
        """Return the name of a function of the agent."""
        return f"{self.folder / 'agent.py'}:{function}"

    def limits(self, eur: int) -> None:
        """Observe the limit, if it is another one."""
        if eur != self._limit:
            self._limit = eur
            self.log.observe("tool_config/acme", {"rate_limit": eur}, source="ann")
            self.log.flush()

    def drive(self, run: str, function: str = "agent") -> object:
        """Run the agent to its end, under policy.toml if it is there."""
        entry, policy = self.entry(function), self.folder / "policy.toml"
        guard = policy if policy.exists() else None
        begun = self.log.run("payer", id=run, version="1", entry=entry, guard=guard)
        return begun.drive(agent_of(entry, self.folder))

    def fails(self, *files: str, limit: int = 10, policy: str = "", function: str = "agent") -> None:
        """Run the agent as `r`, with these files next to it and under a policy. It must fail."""
        self.limits(limit)
        self.has(*files)
        if policy:
            (self.folder / "policy.toml").write_text(f"name = 'desk'\n{policy}\n")
        try:
            self.drive("r", function)
        except Exception:  # the diagnosis finds out which
            return
        raise AssertionError("the run did not fail")

    def is_killed(self, child: Callable[..., Child]) -> None:
        """Run the agent as `r` in a process that dies within its third step."""
        self.has("killed")
        assert child(_KILLED, self.log.port.url, self.entry()).end() == -9
        self.lacks("killed")

    def keeps(self, run: str, name: str) -> None:
        """Write a run as a golden trace into `golden`."""
        golden = golden_of_run(
            self.log.recording(run), lambda entity, answer: read_again(self.log, entity, answer).shown(), name=name,
            entry=self.entry(), expect=["outcome=succeeded"],
        )  # fmt: skip
        write(golden, self.folder / "golden")

    def has(self, *files: str) -> None:
        """Create files next to the agent."""
        for each in files:
            (self.folder / each).touch()

    def lacks(self, *files: str) -> None:
        """Remove files next to the agent."""
        for each in files:
            (self.folder / each).unlink()

    def paid(self, run: str) -> list[int]:
        """Return what a run paid, EUR."""
        file = self.folder / "paid"
        lines = file.read_text().splitlines() if file.exists() else []
        return [int(eur) for of, _, eur in (line.partition(" ") for line in lines) if of == run]
