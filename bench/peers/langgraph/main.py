"""A graph of one node that runs many times; each run adds one item to its state, which SqliteSaver stores.

python main.py FOLDER < items, one a line. Prints {files, blocks, seconds}: bytes once the database is closed. The list
is a channel with a reducer, like LangGraph's own message lists; all settings are the defaults.
"""

from __future__ import annotations

import json
import operator
import sys
import time
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph


class State(TypedDict):
    items: Annotated[list[str], operator.add]


def main() -> None:
    folder, items = Path(sys.argv[1]), sys.stdin.read().splitlines()
    graph: Any = StateGraph(State)
    graph.add_node("grows", lambda state: {"items": [items[len(state["items"])]]})
    graph.add_edge(START, "grows")
    graph.add_conditional_edges("grows", lambda state: END if len(state["items"]) == len(items) else "grows")
    began_s = time.perf_counter()
    with SqliteSaver.from_conn_string(str(folder / "checkpoints.sqlite")) as saver:
        config = {"configurable": {"thread_id": "run"}, "recursion_limit": len(items) + 10}
        found = graph.compile(checkpointer=saver).invoke({"items": []}, config)
    assert found["items"] == items
    seconds = time.perf_counter() - began_s
    kept = [path.stat() for path in folder.iterdir()]
    blocks = sum(each.st_blocks * 512 for each in kept) + folder.stat().st_blocks * 512
    print(json.dumps({"files": sum(each.st_size for each in kept), "blocks": blocks, "seconds": seconds}))


if __name__ == "__main__":
    main()
