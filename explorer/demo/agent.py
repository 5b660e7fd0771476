"""An agent that records itself: it works through tonight's refund claims, and writes down all that it sees and does.

    python -m refold.explorer.demo.agent file:PATH      (once refold.explorer.demo.deployer has deployed there)

It knows refold by `import refold` alone. Every entry names those it follows from, so that any value can be traced;
before money moves, the log has the intention; whenever the pipeline has moved on, the agent reads it back and notes
the version and hash it saw.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import refold
from refold.explorer.demo.calls import Calls
from refold.explorer.demo.cue import Cue
from refold.explorer.demo.journal import Journal, now_micros
from refold.explorer.demo.names import AGENT, CONFIG, PIPELINE, RUN, SESSION, STEPS
from refold.explorer.demo.tools import CLAIMS, PAGE, Tools

RISK_MAX = 0.6
BATCH = 10
LIMITS = ("rate_limit", "timeout_ms")


class RefundAgent:
    """One night's run."""

    def __init__(self, log: refold.Log, seed: int, cue: Cue) -> None:
        self._log = log
        self._seed = seed
        self._cue = cue
        self._journal = Journal(log, AGENT, RUN)
        self._calls = Calls(self._journal, Tools(seed, self._limits, self._hang))
        self._claims: dict[str, dict[str, Any]] = {}
        self._known: dict[str, str] = {}  # claim -> the observation that says where it stands
        self._last = ""
        self._seen: dict[str, Any] = {}

    def work(self) -> None:
        """All steps, in order."""
        self._begin()
        tasks: tuple[Callable[[str], dict[str, Any]], ...] = (
            self._load_config, self._fetch_claims, self._check_orders, self._score_risk, self._approve, self._pay,
            self._notify,
        )  # fmt: skip
        for number, (name, task) in enumerate(zip(STEPS, tasks, strict=True), start=1):
            self._step(number, name, task)
        self._end()

    def _begin(self) -> None:
        at, note = now_micros(), self._journal.note
        begun = note(f"run/{RUN}", {"agent": AGENT, "kind": "pipeline", "session": RUN, "status": "running",
                                    "seed": self._seed, "position_total": len(STEPS), "started_at": at})  # fmt: skip
        note(SESSION, {"agent": AGENT, "status": "active", "channel": "cron", "goal": "Pay tonight's refund claims.",
                       "runs": [RUN], "position_total": len(STEPS), "started_at": at}, [begun])  # fmt: skip
        self._journal.tie(f"run/{RUN}", "in", SESSION, begun)
        waiting = {name: {"status": "pending", "position": n} for n, name in enumerate(STEPS, start=1)}
        self._last = note(PIPELINE, {"name": "Nightly refunds", "status": "running", "trigger": "schedule",
                                     "runs": [RUN], "position_total": len(STEPS), "steps": waiting,
                                     "started_at": at}, [begun])  # fmt: skip
        self._remember("start")

    def _step(self, number: int, name: str, task: Callable[[str], dict[str, Any]]) -> None:
        journal, step, at = self._journal, f"step/{RUN}#{number}", now_micros()
        journal.step, self._calls.failed_tries = str(number), 0
        decided = journal.note(step, {"run": RUN, "session": RUN, "agent": AGENT, "position": number,
                                      "status": "pending", "decision": name, "started_at": at}, [self._last])  # fmt: skip
        journal.tie(step, "of", f"run/{RUN}", decided)
        journal.note(f"run/{RUN}", {"position": number}, [decided])
        state = {"position": number, "agent": AGENT, "run": RUN, "started_at": at}
        moved = {"current_step": name, "position": number, "steps": {name: state | {"status": "running"}}}
        self._last = journal.note(PIPELINE, moved, [decided])
        output = task(decided)
        ended = {"ended_at": now_micros(), "output": output}
        done = journal.note(step, ended | {"status": "committed", "outcome": "succeeded"}, [self._last])
        steps = {name: state | ended | {"status": "committed"}}
        self._last = journal.note(PIPELINE, {"steps": steps, "outputs": output}, [done])
        self._remember(name, **output)

    def _load_config(self, decided: str) -> dict[str, Any]:
        """Read the shared configuration, and put down exactly what was read: this plan rests on it."""
        config = self._log.state(CONFIG)
        read = {"entity": CONFIG, "observations": [each.hex() for each in held(config)], "version": config.version,
                "state_hash": config.state_hash, "read_at": now_micros()}  # fmt: skip
        step = f"step/{RUN}#{self._journal.step}"
        self._last = self._journal.note(step, {"reads": [read]}, [decided, *read["observations"]])
        return {"planned_rate": config.fields["rate_limit"]}

    def _fetch_claims(self, decided: str) -> dict[str, Any]:
        for page in range(1, CLAIMS // PAGE + 1):
            answer, told = self._calls.call("crm.claims", {"page": page}, [decided])
            for claim in answer["claims"]:
                self._claims[claim["claim"]] = claim
                self._now(claim["claim"], {**claim, "status": "claimed"}, [told])
        return {"claims": len(self._claims)}

    def _check_orders(self, _: str) -> dict[str, Any]:
        for name, claim in self._claims.items():
            answer, told = self._calls.call("orders.lookup", {"order": claim["order"]}, [self._known[name]])
            self._now(name, {"delivered": answer["delivered"], "status": "checked"}, [told])
        return {"checked": len(self._claims)}

    def _score_risk(self, _: str) -> dict[str, Any]:
        for name, claim in self._claims.items():
            answer, told = self._calls.call("risk.score", {"claim": name}, [self._known[name]])
            claim["risk"] = answer["risk"]
            self._now(name, {"risk": answer["risk"], "status": "scored"}, [told])
        return {"scored": len(self._claims)}

    def _approve(self, decided: str) -> dict[str, Any]:
        for name, claim in self._claims.items():
            claim["status"] = "approved" if claim["risk"] <= RISK_MAX else "declined"
            self._now(name, {"status": claim["status"]}, [decided, self._known[name]])
        return {"approved": sum(claim["status"] == "approved" for claim in self._claims.values())}

    def _pay(self, _: str) -> dict[str, Any]:
        approved = [name for name, claim in self._claims.items() if claim["status"] == "approved"]
        for number, name in enumerate(approved, start=1):
            limits = [each.hex() for each in held(self._log.state(CONFIG))]
            pay = {"claim": name, "amount_cents": self._claims[name]["amount_cents"]}
            answer, told = self._calls.call("acme.refund", pay, [self._known[name], *limits], effect="write")
            self._now(name, {"status": "paid", "reference": answer["reference"]}, [told])
            if number % BATCH == 0:
                self._last = self._journal.note(PIPELINE, {"outputs": {"paid": number}}, [told])
                self._remember(f"{number} paid", paid=number)
        return {"paid": len(approved)}

    def _notify(self, _: str) -> dict[str, Any]:
        for name in self._claims:
            self._calls.call("mail.send", {"claim": name}, [self._known[name]])
        return {"notified": len(self._claims)}

    def _now(self, claim: str, fields: dict[str, Any], causes: list[str]) -> None:
        self._known[claim] = self._journal.note(
            f"document/refund-{claim}", {"kind": "refund", "fields": fields}, causes
        )

    def _remember(self, at: str, **facts: object) -> None:
        """Read the pipeline back, note the version and hash it is at, and make all durable."""
        state = self._log.state(PIPELINE)
        self._seen = {"at": at, "version": state.version, "state_hash": state.state_hash}
        self._journal.note(
            SESSION, {"variables": {"pipeline_seen": self._seen}, "last_active_at": now_micros()}
        )
        self._journal.flush()
        self._cue.say(**self._seen, kept=self._journal.kept, failed_tries=self._calls.failed_tries, **facts)
        self._cue.wait()

    def _limits(self) -> dict[str, int]:
        fields = self._log.state(CONFIG).fields
        return {name: fields[name] for name in LIMITS}

    def _hang(self, seconds: float) -> None:
        """No answer comes. Whoever wants to know how this agent does will hear that it waits."""
        self._journal.flush()
        self._cue.say(**{**self._seen, "at": "waiting"}, kept=self._journal.kept)
        self._cue.sleep(seconds)

    def _end(self) -> None:
        ended = {"ended_at": now_micros()}
        done = self._journal.note(PIPELINE, ended | {"status": "succeeded"}, [self._last])
        self._journal.note(f"run/{RUN}", ended | {"status": "ended", "outcome": "succeeded"}, [done])
        self._journal.note(SESSION, ended | {"status": "completed"}, [done])


def held(config: refold.EntityView) -> list[bytes]:
    """The ids of the observations behind the limits of a tool's configuration."""
    return list(dict.fromkeys(each for name in LIMITS for each in config.held_by(name)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Pay tonight's refunds, on the record.")
    parser.add_argument("log", help="URL of the log, such as file:PATH")
    parser.add_argument("--seed", type=int, default=7, help="where the tools fail")
    parser.add_argument("--cued", action="store_true", help="take turns with the demo that started this")
    given = parser.parse_args()
    with refold.open(given.log) as opened:
        RefundAgent(opened, given.seed, Cue(given.cued)).work()
