"""A run under a policy that is killed: a recorded denial is not decided again, and earlier calls count."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import refold
from refold.agents.recorder.run import Run
from refold.policy import Policy
from refold_tests.child import Child

CODE = """
import os, signal, sys
import refold
from refold.policy import PolicyDenied

@refold.tool(effect="write")
def pay(eur):
    with open(sys.argv[2], "a") as world:
        world.write(f"{eur}\\n")
    return eur

def agent(run, dies):
    said = []
    for number, eur in enumerate([5, 500, 6, 7, 8]):
        if number == 3 and dies:
            os.kill(os.getpid(), signal.SIGKILL)
        with run.step(f"pay {eur}"):
            try:
                said.append(pay(eur=eur))
            except PolicyDenied as denied:
                said.append(denied.rule)
    return said

if __name__ == "__main__":
    with refold.open(sys.argv[1]) as log:
        log.run("desk", id="r", guard=sys.argv[3]).drive(lambda run: agent(run, True))
"""
DENYING = "name = 'first'\n[[rule]]\nname = 'large'\ntool = 'pay'\nargs.eur.over = 100\n[budget]\ntool_calls = 3"
LENIENT = "name = 'second'\n[budget]\ntool_calls = 3"


def test_killed_run_continues_under_another_policy_and_keeps_its_denials(
    child: Callable[..., Child], tmp_path: Path
) -> None:
    url, world, file = f"file:{tmp_path / 'log'}", tmp_path / "world", tmp_path / "policy.toml"
    file.write_text(DENYING)
    assert child(CODE, url, world, file).end() == -9
    assert world.read_text().split() == ["5", "6"]
    here: dict[str, object] = {"__name__": "agent"}
    exec(CODE.replace("sys.argv[2]", repr(str(world))), here)

    def agent(run: Run) -> object:
        return here["agent"](run, False)  # type: ignore[operator]

    with refold.open(url) as log:
        said = log.run("desk", resume="r", guard=Policy.parse(LENIENT)).drive(agent)
        assert said == [5, "large", 6, 7, "budget.tool_calls"]
        assert world.read_text().split() == ["5", "6", "7"]
        assert log.replay("r", agent).is_same
        assert log.recording("r").tags == ("policy:first",)
    assert world.read_text().split() == ["5", "6", "7"]
