"""An agent as a graph: each node is a step, each edge a decision, and both stand in the log. No framework is needed.

    python docs/examples/agent_graph.py

A node is a function that takes the run and names the node that comes next. What it changed in the state is kept with
its step, so a path through the graph can be read, replayed and forked at any node. This graph goes back to `search`
until the draft is good enough, and prints

    path: plan -> search -> write -> search -> write -> publish
    why search again: only 1 source
    state after the 1st write: {'topic': 'logs', 'sources': ['a'], 'draft': 'on logs, by 1'}
    today's graph goes the same way: True
    content with 1 source, it would do otherwise in step 4 (publish)
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping

import refold
from refold.compare import state_at
from refold.errors import Unrecorded

Node = Callable[[refold.Run], str]
"""Does its work, and names the next node; "" ends the run."""


@refold.tool(effect="read")
def look_up(topic: str, known: list[str]) -> str:
    """One more source; simulates a search."""
    return "abc"[len(known)]


@refold.tool(effect="write")
def publish_page(text: str) -> dict[str, str]:
    """What must not take place twice."""
    return {"published": text}


def plan(run: refold.Run) -> str:
    """Begins."""
    run.state.update(topic=run.input["topic"], sources=[])
    return "search"


def search(run: refold.Run) -> str:
    """Finds one more source."""
    run.state["sources"].append(look_up(run.state["topic"], known=list(run.state["sources"])))
    return "write"


def write(run: refold.Run, enough: int = 2) -> str:
    """Drafts, and decides whether that will do."""
    found = len(run.state["sources"])
    run.state["draft"] = f"on {run.state['topic']}, by {found}"
    chosen = "publish" if found >= enough else "search"
    run.decide(chosen, why=f"only {found} source" if chosen == "search" else "", options=["search", "publish"])
    return chosen


def publish(run: refold.Run) -> str:
    """Ends."""
    run.output = publish_page(run.state["draft"])
    return ""


GRAPH: Mapping[str, Node] = {"plan": plan, "search": search, "write": write, "publish": publish}
STEPS_MAX = 20


def agent(run: refold.Run, graph: Mapping[str, Node] = GRAPH) -> None:
    """Goes through the graph, a step a node; a recorded step is not run again in a resume."""
    node = "plan"
    for _ in range(STEPS_MAX):
        node = run.step(node, graph[node], run)
        if not node:
            return
    raise RuntimeError(f"no end after {STEPS_MAX} nodes")


def main() -> None:
    """Record, read, replay, and replay with another graph."""
    with tempfile.TemporaryDirectory() as folder, refold.open(f"file:{folder}/log") as log:
        run = log.run("writer", input={"topic": "logs"})
        run.drive(agent)
        recording = log.recording(run.id)
        print("path:", " -> ".join(step.name for step in recording.steps))
        decided = [call.asked.request for call in recording.steps[2].calls if call.asked.kind == "decide"]
        print("why search again:", decided[0]["why"])
        print("state after the 1st write:", state_at(recording, 3))
        print("today's graph goes the same way:", log.replay(run.id, agent).is_same)

        content = {**GRAPH, "write": lambda run: write(run, enough=1)}
        try:
            log.replay(run.id, lambda run: agent(run, content))
        except Unrecorded as error:  # it says what was asked, and the nearest that is recorded
            print("content with 1 source, it would do otherwise in", str(error).partition(" asked")[0])


if __name__ == "__main__":
    main()
