"""`refold policy`: test a policy file on recorded runs."""

from __future__ import annotations

from typing import Any

import click

from refold.agents.policy.check import PolicyCheck, check
from refold.agents.policy.rules import Policy
from refold.explorer.cli.options import as_json, on_log
from refold.explorer.cli.output.screen import Screen
from refold.explorer.queries.log_target import LogTarget
from refold.explorer.queries.run_names import known_run


@click.group()
def policy() -> None:
    """Test policies on the calls of recorded runs."""


@policy.command("test")
@click.argument("file", type=click.Path())
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@as_json
@on_log
def test_(target: LogTarget, file: str, runs: tuple[str, ...], as_json: bool) -> int:
    """Show which calls of recorded runs a policy would have denied.

    Nothing is run again and nothing is recorded. Calls are decided in the order in which they began. A call that would
    be denied counts as made, because the recording continues after it. A call that a person would be asked about is
    named, and is no denial.

    Exits with 1 if a call that was made would be denied.

    \b
    Examples
      refold policy test policy.toml 8f2c
      refold policy test policy.toml 8f2c 91aa --json
    """
    rules = Policy.load(file)
    screen = Screen()
    found: dict[str, list[PolicyCheck]] = {}
    with target.read() as log:
        cut = log.point().cut
        for given in runs:
            run = known_run(log, given, cut)
            found[run] = check(rules, log.recording(run))
    stopped = {
        run: [each for each in checks if each.is_denied and not each.was_denied] for run, checks in found.items()
    }
    if as_json:
        screen.json([_tree(rules, run, checks) for run, checks in found.items()])
    else:
        for run, checks in found.items():
            _show(screen, rules, run, checks, len(stopped[run]))
    return 1 if any(stopped.values()) else 0


def _show(screen: Screen, rules: Policy, run: str, checks: list[PolicyCheck], stopped: int) -> None:
    denied = sum(each.was_denied for each in checks)
    screen.say(
        f"run {run}: {len(checks)} tool and model calls; policy {rules.name} would deny {stopped} that were made"
        + (f"; {denied} {'was' if denied == 1 else 'were'} denied when it ran" if denied else "")
    )
    for each in checks:
        if each.decision is not None and each.is_denied:
            then = " (denied when it ran)" if each.was_denied else ""
            screen.say(f"  step {each.step.rpartition('#')[2]}  {each.call}  rule {each.decision.rule}: "
                       f"{each.decision.why}{then}")  # fmt: skip
        elif each.decision is not None and each.decision.action == "ask":
            screen.say(f"  step {each.step.rpartition('#')[2]}  {each.call}  rule {each.decision.rule} asks a person: "
                       f"{each.decision.why}")  # fmt: skip
        elif each.was_denied:
            screen.say(f"  step {each.step.rpartition('#')[2]}  {each.call}  allowed now (denied when it ran)")


def _tree(rules: Policy, run: str, checks: list[PolicyCheck]) -> dict[str, Any]:
    return {
        "run": run, "policy": rules.name, "calls": len(checks),
        "decisions": [
            {
                "step": each.step, "call": each.call, "was_denied": each.was_denied,
                **({} if each.decision is None else each.decision._asdict()),
            }
            for each in checks if each.decision is not None or each.was_denied
        ],
    }  # fmt: skip
