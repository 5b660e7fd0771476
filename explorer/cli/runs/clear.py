"""What can be shown of a run whose content has expired, or is sealed with no key here: all that stands in clear."""

from __future__ import annotations

from typing import Any

from refold.agents.log import AgentLog
from refold.agents.recordings.fields import Fields
from refold.agents.recordings.load import own_steps, step_count
from refold.avro.errors import NotAnswerable
from refold.avro.times import time_text
from refold.explorer.cli.output.fitting import TableColumn
from refold.explorer.cli.output.screen import Screen
from refold.streams.cut import Cut

COLUMNS = (
    TableColumn("step", "cyan", is_fixed=True),
    TableColumn("name"),
    TableColumn("stands"),
    TableColumn("called"),
    TableColumn("failed"),
    TableColumn("hash", "dim", is_fixed=True),
)
TIMES = {"started": "started_at", "ended": "ended_at"}
TEXTS = {
    "agent": "agent", "version": "agent_version", "outcome": "outcome", "user": "user", "task": "task",
    "parent": "parent_run", "hash": "hash", "retention_class": "retention_class",
}  # fmt: skip


def clear_json(log: AgentLog, run: str, cut: Cut, why: NotAnswerable | None) -> dict[str, Any]:
    """A run and its own steps without their content. content: why there is none, null where there is."""
    fields = Fields(log.state(f"run/{run}", cut), log.vault)
    before = fields.plain("forked_at_step", 0)
    steps = own_steps(lambda names: log.states(names, cut), [(run, before, step_count(fields))])[run]
    times = {name: fields.plain(field) for name, field in TIMES.items()}
    return {
        "run": run,
        **{name: fields.plain(field) for name, field in TEXTS.items()},
        **{name: None if micros is None else time_text(micros) for name, micros in times.items()},
        "steps": before + len(steps),
        "error": _exception(fields.plain("error")),
        "content": None if why is None else str(why),
        "layers": [
            _step_json(number, Fields(view, log.vault)) for number, view in enumerate(steps, before + 1)
        ],
    }  # fmt: skip


def compare_clear(a: dict[str, Any], b: dict[str, Any], *, is_exact: bool, as_json: bool) -> int:
    """Compare two runs, as clear_json gives them, by their hashes; the exit status.

    Hashes that differ may do so by clock, randomness and fresh ids alone, which count only where it is to be exact.
    """
    screen = Screen()
    is_equal = a["hash"] is not None and a["hash"] == b["hash"]
    layers_b = {each["step"]: each for each in b["layers"]}
    parted = [each for each in a["layers"] if each["hash"] != layers_b.get(each["step"], {}).get("hash")]
    step = None if is_equal else parted[0]["step"] if parted else min(a["steps"], b["steps"]) + 1
    sealed = {name: run["content"] for name, run in (("a", a), ("b", b)) if run["content"]}
    if as_json:
        sides = {
            name: {"run": run["run"], "hash": run["hash"], "steps": run["steps"]} for name, run in (("a", a), ("b", b))
        }
        equal = True if is_equal else False if is_exact else None
        found = None if is_equal else {"step": step}
        screen.json({"equal": equal, **sides, "divergence": found, "provenance": [], "unreadable": sealed})
        return 0 if is_equal else 1
    answer = "no difference: their hashes are equal" if is_equal else f"their hashes differ from step {step} on"
    screen.say(answer, "bold")
    if not is_equal and not is_exact:
        screen.say("whether by more than clock, randomness and fresh ids cannot be told without the content")
    for name, why in sealed.items():
        screen.say(f"{name.upper()} cannot be read: {why}", "yellow")
    return 0 if is_equal else 1


def show_clear(screen: Screen, found: dict[str, Any]) -> None:
    """The same as text."""
    version = f" {found['version']}" if found["version"] else ""
    screen.say(f"run {found['run']} of {found['agent'] or 'an agent'}{version}: its content cannot be read", "bold")
    screen.say(f"  content   {found['content']}", "yellow")
    outcome = f"{found['outcome'] or 'running'}{': ' + found['error'] if found['error'] else ''}"
    screen.say(f"  outcome   {outcome}")
    for name in ("started", "ended", "user", "task", "parent", "hash"):
        if found[name]:
            screen.say(f"  {name:<10}{found[name]}")
    screen.say()
    rows = [
        [str(each["step"]), each["name"] or "-", each["outcome"] or each["status"], ", ".join(each["calls"]) or "-",
         each["failure"] or "-", screen.id(each["hash"] or "") or "-"]
        for each in found["layers"]
    ]  # fmt: skip
    screen.table(COLUMNS, rows)


def _exception(record: Any) -> str | None:
    """The class of an error whose record stands in clear."""
    return record.get("exception") if isinstance(record, dict) else None


def _step_json(number: int, step: Fields) -> dict[str, Any]:
    plain = step.plain
    calls = plain("calls")
    return {
        "step": number,
        "name": plain("name", ""),
        "status": plain("status"),
        "outcome": plain("outcome"),
        "calls": [each["tool"] for each in calls] if isinstance(calls, list) else [],
        "failure": _exception(plain("failure")),
        "state_after": plain("state_after"),
        "hash": plain("turn_hash"),
    }
