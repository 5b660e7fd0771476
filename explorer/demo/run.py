"""`refold demo`: an agent is killed during its work, and its log answers what happened.

1. A deployer releases a tool's configuration and marks the point; an agent begins its run, recording itself.
2. The deployer overwrites the configuration silently. Payments are refused, then one is never answered.
3. The agent is killed with SIGKILL while it waits.
4. A reader that never saw the agent opens the log, and answers what happened, what changed, why, and what was known.
5. Everything that was computed twice is compared. Differences are printed, and the exit status is then 1.
6. Another agent, recorded with `log.run`, fails. Its run can be explored (docs/INCIDENT.md).

The processes are real, and the log is the embedded one; nothing is downloaded.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import refold
from refold.explorer.demo import demo_folder
from refold.explorer.demo.answers import AgentReport, document_of, unanswered
from refold.explorer.demo.commands import commands
from refold.explorer.demo.deployer import OBSERVATIONS
from refold.explorer.demo.desk import fail
from refold.explorer.demo.journal import now_micros
from refold.explorer.demo.names import AGENT, CONFIG, CRASH, DEPLOYED, DEPLOYER, PAYING, PIPELINE, STEPS
from refold.explorer.demo.render import BAD, DIM, GOOD, CheckedAnswers, Checks, Page, day, stamp
from refold.explorer.demo.stage import Actor, Stage

SEED = 7
FACTS = ("claims", "checked", "scored", "approved", "paid")


def run(folder: Path | None = None, keep: bool = False) -> int:
    """Run the demo; return 0 if every comparison held, else 1.

    Args:
        folder: Where its log is created and stays; None: `.refold-demo`. The log of an earlier demo is replaced.
        keep: Keep the log of an earlier demo, and create the new one next to it.

    Raises:
        InputError: The folder cannot be used.
    """
    page, checks = Page(), Checks()
    where, replaced = demo_folder.make(folder, keep)
    page.head("An agent is killed at its work, and its log answers for it")
    instead = ", instead of a former demo's" if replaced else ""
    page.line(f"   Its log is {demo_folder.url(where)}{instead}. All times are UTC, {day(now_micros())}.")
    try:
        with Stage() as stage:
            _play(page, checks, stage, demo_folder.url(where))
    except refold.RefoldError as error:
        print(f"the demo could not go on: {error}", file=sys.stderr)
        return 1
    return 1 if checks.differing else 0


def _play(page: Page, checks: Checks, stage: Stage, url: str) -> None:
    last = _happen(page, checks, stage, url)
    crashed_at = now_micros()
    with refold.open(url) as log:
        log.mark(CRASH)
        view = log.rebuild(f"@{CRASH}")
        document, at = document_of(unanswered(view)), stamp(crashed_at)
        telling = CheckedAnswers(page, checks, log, view)
        telling.replay(last)
        telling.changes()
        stage.play("evaluator", url, f"@{CRASH}")
        telling.evaluation(log.rebuild())
        telling.crash(crashed_at, last.kept + OBSERVATIONS)
        stage.play("bank", url, f"@{CRASH}")
        telling.clocks(at, document)
        fail(log)
    _conclude(page, checks, view.root)
    page.head("Ask it yourself")
    for shows, command in commands(url, document, at):
        page.line(f"   # {shows}", DIM)
        page.line(f"   {command}")


def _happen(page: Page, checks: Checks, stage: Stage, url: str) -> AgentReport:
    """Run steps 1 to 3; return the agent's last report."""
    page.head("What happens")
    page.by(DEPLOYER, f"releases {CONFIG}: rate_limit 50, timeout_ms 2000,")
    page.by("", f"and names this point of the log @{DEPLOYED}")
    stage.play("deployer", url, "deploy")
    agent = stage.start("agent", url, "--seed", str(SEED), "--cued")
    overwritten = False
    while (report := agent.listen())["at"] != "waiting":
        _progress(page, agent, report)
        if "paid" in report and not overwritten:
            page.by(DEPLOYER, f"overwrites {CONFIG}, and tells nobody")
            stage.play("deployer", url, "overwrite")
            page.by(AGENT, "works on, and knows nothing of it")
            overwritten = True
        agent.go_on()
    page.by("", "  waits for the answer to a payment; none comes")
    status = agent.kill()
    checks.equal("exit status of the agent", -signal.SIGKILL, status)
    page.by("kill -9", f"process {agent.pid} is gone (exit status {status}), with all it had in memory;")
    page.by("", f"{report['kept']} of its observations, the entries in the log, had been acknowledged")
    page.line()
    page.line("   From here on only the log is asked, by a process that knows nothing else of the agent.")
    return AgentReport(report["version"], report["state_hash"], report["kept"])


def _progress(page: Page, agent: Actor, report: Mapping[str, object]) -> None:
    at = report["at"]
    if at == "start":
        page.by(AGENT, f"process {agent.pid} begins {PIPELINE}, with flaky tools:")
        return
    facts = [f"{report[name]} {name}" for name in FACTS if name in report]
    failed = [f"{report['failed_tries']} failed tries"] if report["failed_tries"] else []
    step = at if at in STEPS else STEPS[PAYING - 1]
    page.by("", f"  {step:<14} {', '.join([*facts, *failed]) or 'done'}")


def _conclude(page: Page, checks: Checks, root: str) -> None:
    page.head("In the end")
    if checks.differing:
        page.line(f"   {len(checks.differing)} of {checks.made} comparisons differ:", BAD)
        for each in checks.differing:
            page.line(f"   {each}")
    else:
        page.line(f"   All {checks.made} comparisons held.", GOOD)
    page.line("   One hash over the state of every entity at the crash, which any replay gives again:")
    page.line(f"   root {root}")
