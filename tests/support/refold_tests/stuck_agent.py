"""An agent that looks at the same page for ever, unless its instructions tell it to stop: then it pays, once."""

from __future__ import annotations

from pathlib import Path

from refold.agents.entry import agent_of
from refold.agents.heal.apply import HealSetting
from refold.agents.log import AgentLog
from refold.agents.recorder.run import Run
from refold.policy import PolicyDenied

CODE = """
import os
import signal
from pathlib import Path

import refold

WORLD = Path(__file__).with_name("world")


def reach(moment):
    if os.environ.get("DIES_AT") == moment:
        os.kill(os.getpid(), signal.SIGKILL)


@refold.tool
def look(page):
    return {"next": page}


def chat(*, system, page):
    if WORLD.with_name("down").exists():
        raise ConnectionError("down")
    usage = {"prompt_tokens": 1000, "completion_tokens": 10}
    return {"model": "gpt-4o-mini", "usage": usage, "call": "pay" if "stop" in system else "look"}


def paid():
    return WORLD.read_text().splitlines() if WORLD.exists() else []


def find(key, arguments):
    if key in paid():
        return refold.Done(key)
    raise refold.NotDone("no such payment")


# A tool that was killed in the call has its lease; half of it must be enough for a loaded machine.
@refold.tool(effect="write", probe=find, lease_s=float(os.environ.get("PAY_LEASE_S", "60")))
def pay(*, idempotency_key=""):
    reach("before the write")
    with WORLD.open("a") as world:
        world.write(idempotency_key + "\\n")
    reach("after the write")
    return idempotency_key


def agent(run):
    while True:
        with run.step("decide"):
            run.state["call"] = run.model(chat, system=run.input or "look", page=1)["call"]
        with run.step("act"):
            if run.state["call"] == "pay":
                receipt = pay()
                if WORLD.with_name("broke").exists() and receipt != "paid":  # the payment of a copy is
                    raise OSError("no receipt")
                return receipt
            look(page=1)
"""
POLICY = "name = 'night'\n[loop]\nrepeats = 3\n[budget]\ntool_calls = 50\n"
PLAN = """
guard = "policy.toml"
expect = ["outcome=succeeded", "pay=1"]

[[remedy]]
name = "look again"
do = "retry"

[[remedy]]
name = "tell it to stop"
on = ["loop"]
do = "change"
arguments.model.system = "look, and stop if nothing is new"
answers.pay = "paid"
"""


def placed(folder: Path, plan: str = PLAN) -> str:
    """Write the agent, its policy and a plan into a folder. Returns the agent's entry."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "agent.py").write_text(CODE)
    (folder / "policy.toml").write_text(POLICY)
    (folder / "heal.toml").write_text(plan)
    return f"{folder / 'agent.py'}:agent"


def stuck(log: AgentLog, folder: Path, run: str) -> None:
    """Run the agent until the loop breaker stops it: eight steps, of which the last one failed."""
    try:
        entry = f"{folder / 'agent.py'}:agent"
        log.run("payer", id=run, entry=entry, guard=folder / "policy.toml").drive(agent_of(entry, folder))
    except PolicyDenied:
        return
    raise AssertionError("the loop breaker did not stop the agent")


def failed(log: AgentLog, folder: Path, run: str) -> None:
    """Run the agent while its model is down: its first step fails. Without that it would pay at once."""
    entry = f"{folder / 'agent.py'}:agent"
    (folder / "down").touch()
    try:
        log.run("payer", id=run, entry=entry, input="stop").drive(agent_of(entry, folder))
    except ConnectionError:
        return
    raise AssertionError("the model was not down")


def paid(folder: Path) -> list[str]:
    """Return the keys of the payments that were made."""
    world = folder / "world"
    return world.read_text().splitlines() if world.exists() else []


def drive(run: Run, agent: object) -> Exception | None:
    """Run an agent's code to its end."""
    try:
        run.drive(agent)  # type: ignore[arg-type]
    except Exception as error:  # the agent may raise anything
        return error
    return None


def setting(folder: Path) -> HealSetting:
    """Return how the agent in a folder is run."""
    return HealSetting(drive, f"{folder / 'agent.py'}:agent", base=folder)
