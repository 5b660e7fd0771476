"""The plan of an agent that is declared in refold.toml: its table `heal`, with its policy and its golden suite."""

from __future__ import annotations

from pathlib import Path

from refold.agents.heal.plan import HealPlan
from refold.agents.supervise.settings import load_agents
from refold.avro.errors import InputError


def plan_in(path: Path, agent: str, declared: str = "") -> HealPlan:
    """Return the plan by which the runs of an agent are healed.

    Args:
        path: The file of agents.
        agent: The agent's name in its runs. A file with one agent is about that one, whatever its name.
        declared: The agent's name in the file, if it is known.

    Raises:
        InputError: The file is invalid, or declares no such agent, or no remedies for it.
    """
    agents = load_agents(path)
    found = next(iter(agents.values())) if len(agents) == 1 and not declared else agents.get(declared or agent)
    if found is None:
        raise InputError(f"{path}: it declares no agent {declared or agent}, but {', '.join(agents)}")
    if not found.heal:
        raise InputError(f"{path}: agents.{found.name}.heal: it declares no remedies; docs/guides/heal.md shows some")
    given = {"golden": found.golden, "guard": found.policy}
    table = {**{name: value for name, value in given.items() if value}, **found.heal}
    return HealPlan.of_table(table, f"{path}: agents.{found.name}.heal", path.absolute().parent)
