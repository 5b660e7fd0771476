"""`refold demo`: an agent is killed at its work, and its log answers for it.

1. A deployer releases a tool's configuration and marks the point; an agent begins its run, recording itself.
2. The deployer overwrites the configuration without a word. The agent's payments are refused, then one hangs.
3. The agent is killed with SIGKILL while it waits.
4. A reader that never saw it opens the log, and answers what happened, what changed, why, and what was known when.
5. Everything that was computed twice is compared; what differs is said, and the exit status is 1.

The processes are real, and the log is the embedded one; nothing is downloaded.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import refold
from refold.explorer.demo import place, telling
from refold.explorer.demo.answers import LastWord, unanswered
from refold.explorer.demo.checks import Checks
from refold.explorer.demo.commands import commands
from refold.explorer.demo.deployer import OBSERVATIONS
from refold.explorer.demo.journal import now_micros
from refold.explorer.demo.names import AGENT, CONFIG, CRASH, DEPLOYED, DEPLOYER, PAYING, PIPELINE, STEPS
from refold.explorer.demo.page import BAD, DIM, GOOD, Page, day, stamp
from refold.explorer.demo.stage import Actor, DemoFailed, Stage

SEED = 7
FACTS = ("claims", "checked", "scored", "approved", "paid")


def run(folder: Path | None = None, keep: bool = False) -> int:
    """Play the demo; 0 if every check held, else 1.

    folder: where its log goes, `.refold-demo` without one. A former demo's log there is replaced, unless keep, which
    goes beside it. InputError if anything else is there.
    """
    page, checks = Page(), Checks()
    where, replaced = place.make(folder, keep)
    page.head("An agent is killed at its work, and its log answers for it")
    instead = ", instead of a former demo's" if replaced else ""
    page.line(f"   Its log is {place.url(where)}{instead}. All times are UTC, {day(now_micros())}.")
    try:
        with Stage() as stage:
            _play(page, checks, stage, place.url(where))
    except DemoFailed as failed:
        print(f"the demo could not go on: {failed}", file=sys.stderr)
        return 1
    return 1 if checks.differing else 0


def _play(page: Page, checks: Checks, stage: Stage, url: str) -> None:
    last = _happen(page, checks, stage, url)
    crashed_at = now_micros()
    with refold.open(url) as log:
        log.mark(CRASH)
        view = log.rebuild(f"@{CRASH}")
        telling.tell_replay(page, checks, log, view, last)
        telling.tell_changes(page, checks, log, view)
        stage.play("evaluator", url, f"@{CRASH}")
        telling.tell_evaluation(page, checks, log.rebuild(), last.state_hash)
        telling.tell_crash(page, checks, log, view, crashed_at, last.kept + OBSERVATIONS)
        stage.play("bank", url, f"@{CRASH}")
        payment = unanswered(view)
        document = "" if payment is None else f"document/refund-{payment.fields['inputs']['claim']}"
        at = stamp(crashed_at)
        telling.tell_clocks(page, checks, log, view, at, document)
    _conclude(page, checks, view.root)
    page.head("Ask it yourself")
    for shows, command in commands(url, document, at):
        page.line(f"   # {shows}", DIM)
        page.line(f"   {command}")


def _happen(page: Page, checks: Checks, stage: Stage, url: str) -> LastWord:
    """Steps 1 to 3; what the agent last said."""
    page.head("What happens")
    page.by(DEPLOYER, f"releases {CONFIG}: rate_limit 50, timeout_ms 2000,")
    page.by("", f"and names this point of the log @{DEPLOYED}")
    stage.play("deployer", url, "deploy")
    agent = stage.start("agent", url, "--seed", str(SEED), "--cued")
    overwritten = False
    while (told := agent.listen())["at"] != "waiting":
        _progress(page, agent, told)
        if "paid" in told and not overwritten:
            page.by(DEPLOYER, f"overwrites {CONFIG}, and tells nobody")
            stage.play("deployer", url, "overwrite")
            overwritten = True
        agent.go_on()
    page.by(AGENT, "waits for an answer to a payment; none comes")
    status = agent.kill()
    page.by("kill -9", f"process {agent.pid} is gone, and all it had in memory (exit status {status});")
    page.by("", f"of its observations, the log had acknowledged {told['kept']}")
    page.line()
    page.line("   From here on only the log is asked, by a process that knows nothing else of the agent.")
    checks.equal("exit status of the agent", -signal.SIGKILL, status)
    return LastWord(told["version"], told["state_hash"], told["kept"])


def _progress(page: Page, agent: Actor, told: dict[str, object]) -> None:
    at = told["at"]
    if at == "start":
        page.by(AGENT, f"process {agent.pid} begins {PIPELINE}, {len(STEPS)} steps, with flaky tools:")
        return
    facts = [f"{told[name]} {name}" for name in FACTS if name in told]
    failed = [f"{told['failed_tries']} failed tries"] if told["failed_tries"] else []
    page.by("", f"  {at if at in STEPS else STEPS[PAYING - 1]:<14} {', '.join([*facts, *failed]) or 'done'}")


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
