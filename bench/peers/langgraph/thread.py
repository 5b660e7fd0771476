"""Measures each call of a LangGraph checkpointer in a thread of many steps, with one task per step.

Imports nothing from refold: SqliteSaver runs it in a separate environment (saver.py).
"""

from __future__ import annotations

import random
import time
from statistics import median, quantiles
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base.id import uuid6

MESSAGE_BYTES = 400
SEED = 5


def drive(saver: Any, steps: int) -> dict[str, float]:
    """Return medians and 90th percentiles in milliseconds, of put and put_writes and of get_tuple; also of the last
    tenth. put_cpu: processor time of this process, with all its threads, of put."""
    chance = random.Random(SEED)
    config: Any = {"configurable": {"thread_id": "bench", "checkpoint_ns": ""}}
    messages: list[Any] = []
    took: dict[str, list[float]] = {"put": [], "put_cpu": [], "writes": [], "get": []}

    def timed(name: str, call: Any) -> Any:
        began_s = time.perf_counter()
        result = call()
        took[name].append((time.perf_counter() - began_s) * 1000)
        return result

    for step in range(steps):
        text = "".join(chance.choices("abcdefghij klmnopqrstuvwxyz", k=MESSAGE_BYTES))
        messages = [*messages, (HumanMessage if step % 2 else AIMessage)(text, id=f"m{step}")]
        versions = {"messages": step + 1, "turn": step + 1, "prompt": 1}
        values = {"messages": messages, "turn": step, "prompt": "You are of help. " * 20}
        checkpoint: Any = {
            **empty_checkpoint(), "id": str(uuid6(clock_seq=step)), "channel_values": values,
            "channel_versions": versions, "versions_seen": {"agent": {"messages": step}},
        }  # fmt: skip
        new = versions if step == 0 else {name: versions[name] for name in ("messages", "turn")}
        metadata: Any = {"source": "loop", "step": step, "parents": {}}
        cpu_s = time.process_time()
        config = timed("put", lambda c=config, k=checkpoint, m=metadata, n=new: saver.put(c, k, m, n))
        took["put_cpu"].append((time.process_time() - cpu_s) * 1000)
        writes = [("messages", messages[-1:]), ("turn", step)]
        timed("writes", lambda c=config, w=writes, s=step: saver.put_writes(c, w, f"task-{s}"))
        found = timed("get", lambda: saver.get_tuple({"configurable": {"thread_id": "bench"}}))
        assert len(found.checkpoint["channel_values"]["messages"]) == step + 1
    last = max(2, steps // 10)
    return {
        key: value
        for name, each in took.items()
        for key, value in ((name, median(each)), (f"{name}_p90", quantiles(each, n=10)[8]),
                           (f"{name}_last", median(each[-last:])))
    }  # fmt: skip
