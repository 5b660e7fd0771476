"""Shows a run whose content has expired, or is sealed while its key is unavailable: only the fields stored in clear."""

from __future__ import annotations

from typing import Any

from refold.explorer.cli.output.fitting import TableColumn
from refold.explorer.cli.output.screen import Screen

COLUMNS = (
    TableColumn("step", "cyan", is_fixed=True),
    TableColumn("name"),
    TableColumn("status"),
    TableColumn("called"),
    TableColumn("failed"),
    TableColumn("hash", "dim", is_fixed=True),
)


def compare_clear(a: dict[str, Any], b: dict[str, Any], *, is_exact: bool, as_json: bool) -> int:
    """Compare two runs by their hashes, and return the exit status.

    Hashes may differ only because of clock readings, random numbers and generated ids. If so, the runs count as
    different only with --exact.

    Args:
        a: The first run, as clear_json returns it.
        b: The second run, as clear_json returns it.
        is_exact: Whether --exact was given.
        as_json: Whether to print JSON.
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
        screen.say("without the content nobody can tell whether more than clock, randomness and generated ids differs")
    for name, why in sealed.items():
        screen.say(f"{name.upper()} cannot be read: {why}", "yellow")
    return 0 if is_equal else 1


def show_clear(screen: Screen, found: dict[str, Any]) -> None:
    """Print a run that clear_json returns, as text."""
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
