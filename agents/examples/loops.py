"""An example of agents over changes: detect a run that calls the same tool with the same arguments again and again.

    refold worker --agents refold.agents.examples.loops

The calls of one run are in many partitions, and so with many workers: no worker sees them all. So the log counts:
1. `count` records for each call, `action/ID`, that it is one of its kind: an observation of one `document` for each
   run, tool and arguments. A document's version is the number of its distinct observations, so it is the number of
   calls.
2. `tell` sees that version reach REPEATS, and records an `audit_event` that names run and tool.
Neither keeps anything in memory. A change that is delivered twice gives the same observations under the same ids, which
count once. So the result does not depend on restarts, nor on the number of workers.
"""

from __future__ import annotations

import hashlib

from refold.avro.observation import Source
from refold.streams.changes import Change
from refold.streams.client import Log
from refold.streams.worker.agents import changes_agent

REPEATS = 5
AGENT = "refold.loops"
KIND = "loop-"


@changes_agent("action")
def count(change: Change, log: Log) -> None:
    """Count a call as one of its run, tool and arguments, once all of these are observed."""
    for step in change.steps:
        values = {each.field: each.new for each in step.mutations}
        if {"run", "tool", "inputs_hash"} <= values.keys():
            kind = "\0".join(str(values[name]) for name in ("run", "tool", "inputs_hash"))
            log.observe(
                f"document/{KIND}{hashlib.sha256(kind.encode()).hexdigest()}",
                {"fields": {"run": values["run"], "tool": values["tool"]}},
                # The source depends only on the call, so a repeated observation has the same id.
                source=Source(agent=AGENT, run=change.entity, seq=0),
                observed_at=step.observed_at,
                causes=[step.observation],
            )


@changes_agent("document")
def tell(change: Change, log: Log) -> None:
    """Record that a run is in a loop, when it has made a call for the REPEATS-th time."""
    name = change.entity.removeprefix("document/")
    if not name.startswith(KIND) or not change.from_version < REPEATS <= change.to_version:
        return
    step = next(each for each in change.steps if each.version == REPEATS)
    log.observe(
        f"audit_event/{name}",
        {"actor": AGENT, "actor_kind": "service", "verb": "loop", "object": change.entity,
         "reason": f"the same call for the {REPEATS}th time in a run", "occurred_at": step.observed_at},
        source=Source(agent=AGENT, run=change.entity, seq=0),
        observed_at=step.observed_at,
        causes=[step.observation],
    )  # fmt: skip
