"""An agent that records itself. It works through tonight's refund claims, and records what it sees and does.

    python -m refold.explorer.demo.deployer file:PATH deploy
    python -m refold.explorer.demo.agent file:PATH

Every entry names the entries it follows from, so any value can be traced. Before a payment is sent, the log durably
holds the intention. Whenever the pipeline has moved on, the agent reads it back and records the version and hash.

Tool calls are recorded with the request, each failed attempt and the wait after it, and the answer.

The demo and an agent take turns: the agent prints its position as a line of JSON, the demo sends a line to continue.

Without the demo (`cued` is False) an agent prints nothing and never waits. If the demo ends, the agent ends.
"""

from __future__ import annotations

import argparse
import json
import select
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import refold
from refold.explorer.demo.journal import Journal, now_micros
from refold.explorer.demo.names import AGENT, CONFIG, PIPELINE, RUN, SESSION, STEPS
from refold.explorer.demo.tools import CLAIMS, PAGE, Inputs, Result, ToolFailure, Tools


class DemoChannel:
    """The agent's connection to the demo, over standard output and standard input."""

    def __init__(self, cued: bool) -> None:
        self._cued = cued

    def say(self, where: Mapping[str, object], **facts: object) -> None:
        """Report the agent's position to the demo."""
        if self._cued:
            print(json.dumps({**where, **facts}), flush=True)

    def wait(self) -> None:
        """Wait until the demo sends a line to continue."""
        if self._cued and not sys.stdin.readline():
            raise SystemExit(1)

    def sleep(self, seconds: float) -> None:
        """Sleep, but end at once if the demo ends."""
        if not self._cued:
            time.sleep(seconds)
        elif select.select([sys.stdin], [], [], seconds)[0]:
            raise SystemExit(1)


TRIES_MAX = 4
BACKOFF_MS = 4


class Calls:
    """An agent's tool calls. Each is recorded as an `action` entity of the step it belongs to."""

    def __init__(self, journal: Journal, tools: Tools) -> None:
        self._journal = journal
        self._tools = tools
        self._position = 0
        self.failed_tries = 0

    def begin_step(self) -> None:
        """Restart the numbering of calls and the count of failed attempts."""
        self._position = self.failed_tries = 0

    def call(self, tool: str, inputs: Inputs, causes: Iterable[str], effect: str = "read") -> tuple[Result, str]:
        """Call a tool. Failed attempts are repeated, at most TRIES_MAX in all.

        Args:
            tool: The name of the tool.
            inputs: Its arguments.
            causes: The ids of the observations that the call follows from.
            effect: "read" or "write". The request of a write is durable before the call.

        Returns:
            The tool's answer, and the id of the observation of it.

        Raises:
            ToolFailure: The last attempt failed.
        """
        action, last = self._begin_action(tool, inputs, causes, effect)
        if effect == "write":
            # If this process dies during the call, the log shows that the call may have happened.
            self._journal.flush()
        attempt = 1
        while True:
            began = time.perf_counter()
            try:
                output = self._tools.call(tool, inputs)
            except ToolFailure as failure:
                last = self._record_failure(action, tool, attempt, failure, last)
                attempt += 1
                continue
            return output, self._record_answer(action, tool, attempt, output, time.perf_counter() - began, last)

    def _begin_action(self, tool: str, inputs: Inputs, causes: Iterable[str], effect: str) -> tuple[str, str]:
        self._position += 1
        run, step = self._journal.run, f"{self._journal.run}#{self._journal.step}"
        action = f"action/{step}.{self._position}"
        who = {
            "tool": tool,
            "agent": self._journal.agent,
            "run": run,
            "step": step,
            "position": self._position,
        }
        what = {"inputs": inputs, "effect": effect, "status": "running", "started_at": now_micros()}
        observation = self._journal.note(action, who | what, causes, tool)
        self._journal.tie(action, "of", f"step/{step}", observation)
        return action, observation

    def _record_failure(self, action: str, tool: str, attempt: int, failure: ToolFailure, last: str) -> str:
        self.failed_tries += 1
        at, given_up = now_micros(), attempt == TRIES_MAX
        backoff_ms = 0 if given_up else BACKOFF_MS * 2 ** (attempt - 1)
        retry = {"attempt": attempt, "at": at, "backoff_ms": backoff_ms, "error": str(failure)}
        patch: dict[str, Any] = {"attempts": attempt, "retries": [retry]}
        if given_up:
            error = {"at": at, "exception": failure.code, "message": failure.text, "retryable": True}
            patch |= {"status": "failed", "error": error, "ended_at": at}
        noted = self._journal.note(action, patch, [last], tool)
        if given_up:
            raise failure
        time.sleep(backoff_ms / 1000)
        return noted

    def _record_answer(self, action: str, tool: str, attempt: int, output: Result, seconds: float, last: str) -> str:
        patch = {"status": "succeeded", "attempts": attempt, "duration_ms": seconds * 1000}
        patch |= {"output": json.dumps(output), "output_type": "application/json", "ended_at": now_micros()}
        return self._journal.note(action, patch, [last], tool)


RISK_MAX = 0.6
BATCH = 10
LIMITS = ("rate_limit", "timeout_ms")

Output = dict[str, Any]


class RefundAgent:
    """One night's run of the refund agent."""

    def __init__(self, log: refold.Log, seed: int, cue: DemoChannel) -> None:
        self._log = log
        self._seed = seed
        self._cue = cue
        self._journal = Journal(log, AGENT, RUN)
        self._calls = Calls(self._journal, Tools(seed, self._limits, self._wait_in_vain))
        self._claims: dict[str, dict[str, Any]] = {}
        self._known: dict[str, str] = {}  # claim -> the observation of its current state
        self._seen: dict[str, Any] = {}
        self._last = ""

    def work(self) -> None:
        """Run all steps in order."""
        self._begin()
        tasks = (self._load_config, self._fetch_claims, self._check_orders, self._score_risk, self._approve,
                 self._pay, self._notify)  # fmt: skip
        for number, (name, task) in enumerate(zip(STEPS, tasks, strict=True), start=1):
            self._step(number, name, task)
        self._end()

    def _begin(self) -> None:
        note, facts = self._journal.note, {"position_total": len(STEPS), "started_at": now_micros()}
        run = {"agent": AGENT, "kind": "pipeline", "session": RUN, "status": "running", "seed": self._seed}
        begun = note(f"run/{RUN}", run | facts)
        goal = {"agent": AGENT, "goal": "Pay tonight's refund claims.", "status": "active", "runs": [RUN]}
        note(SESSION, goal | facts, [begun])
        self._journal.tie(f"run/{RUN}", "in", SESSION, begun)
        steps = {name: {"status": "pending", "position": n} for n, name in enumerate(STEPS, start=1)}
        pipeline = {"name": "Nightly refunds", "status": "running", "runs": [RUN], "steps": steps}
        self._last = note(PIPELINE, pipeline | facts, [begun])
        self._remember("start")

    def _step(self, number: int, name: str, task: Callable[[str], Output]) -> None:
        """Run one step: record the decision and the start, do the work, record the commit."""
        step, note, at = f"step/{RUN}#{number}", self._journal.note, now_micros()
        self._journal.step = str(number)
        self._calls.begin_step()
        facts = {"run": RUN, "agent": AGENT, "position": number, "started_at": at}
        decided = note(step, facts | {"decision": name, "status": "pending"}, [self._last])
        self._journal.tie(step, "of", f"run/{RUN}", decided)
        note(f"run/{RUN}", {"position": number}, [decided])
        begun = {"current_step": name, "position": number, "steps": {name: facts | {"status": "running"}}}
        self._last = note(PIPELINE, begun, [decided])
        output = task(decided)
        ended = {"status": "committed", "output": output, "ended_at": now_micros()}
        done = note(step, ended | {"outcome": "succeeded"}, [self._last])
        self._last = note(PIPELINE, {"steps": {name: facts | ended}, "outputs": output}, [done])
        self._remember(name, **output)

    def _load_config(self, decided: str) -> Output:
        """Read the shared configuration. Record exactly which version was read, because the plan depends on it."""
        config, ids = self._log.state(CONFIG), self._limit_observations()
        read = {"entity": CONFIG, "observations": ids, "version": config.version}
        read |= {"state_hash": config.state_hash, "cut": str(config.cut), "read_at": now_micros()}
        step = f"step/{RUN}#{self._journal.step}"
        self._last = self._journal.note(step, {"reads": [read]}, [decided, *ids])
        return {"planned_rate": config.fields["rate_limit"]}

    def _fetch_claims(self, decided: str) -> Output:
        for page in range(1, CLAIMS // PAGE + 1):
            answer, observation = self._calls.call("crm.claims", {"page": page}, [decided])
            for claim in answer["claims"]:
                self._claims[claim["claim"]] = claim
                self._now(claim["claim"], {**claim, "status": "claimed"}, [observation])
        return {"claims": len(self._claims)}

    def _check_orders(self, _: str) -> Output:
        for name, claim in self._claims.items():
            answer, observation = self._calls.call("orders.lookup", {"order": claim["order"]}, [self._known[name]])
            self._now(name, {"delivered": answer["delivered"], "status": "checked"}, [observation])
        return {"checked": len(self._claims)}

    def _score_risk(self, _: str) -> Output:
        for name, claim in self._claims.items():
            answer, observation = self._calls.call("risk.score", {"claim": name}, [self._known[name]])
            claim["risk"] = answer["risk"]
            self._now(name, {"risk": answer["risk"], "status": "scored"}, [observation])
        return {"scored": len(self._claims)}

    def _approve(self, decided: str) -> Output:
        for name, claim in self._claims.items():
            claim["status"] = "approved" if claim["risk"] <= RISK_MAX else "declined"
            self._now(name, {"status": claim["status"]}, [decided, self._known[name]])
        return {"approved": len(self._approved_claims())}

    def _pay(self, _: str) -> Output:
        for number, name in enumerate(self._approved_claims(), start=1):
            pay = {"claim": name, "amount_cents": self._claims[name]["amount_cents"]}
            causes = [self._known[name], *self._limit_observations()]
            answer, observation = self._calls.call("acme.refund", pay, causes, effect="write")
            self._now(name, {"status": "paid", "reference": answer["reference"]}, [observation])
            if number % BATCH == 0:
                self._last = self._journal.note(PIPELINE, {"outputs": {"paid": number}}, [observation])
                self._remember(f"{number} paid", paid=number)
        return {"paid": len(self._approved_claims())}

    def _notify(self, _: str) -> Output:
        for name in self._claims:
            self._calls.call("mail.send", {"claim": name}, [self._known[name]])
        return {"notified": len(self._claims)}

    def _end(self) -> None:
        note, ended = self._journal.note, {"ended_at": now_micros()}
        done = note(PIPELINE, ended | {"status": "succeeded"}, [self._last])
        note(f"run/{RUN}", ended | {"status": "ended", "outcome": "succeeded"}, [done])
        note(SESSION, ended | {"status": "completed"}, [done])

    def _approved_claims(self) -> list[str]:
        return [name for name, claim in self._claims.items() if claim["status"] == "approved"]

    def _now(self, claim: str, fields: Output, causes: list[str]) -> None:
        refund = {"kind": "refund", "fields": fields}
        self._known[claim] = self._journal.note(f"document/refund-{claim}", refund, causes)

    def _limits(self) -> dict[str, int]:
        fields = self._log.state(CONFIG).fields
        return {name: fields[name] for name in LIMITS}

    def _limit_observations(self) -> list[str]:
        """Return the ids of the observations that hold the current limits."""
        config = self._log.state(CONFIG)
        return list(dict.fromkeys(each.hex() for name in LIMITS for each in config.observations_of(name)))

    def _remember(self, at: str, **facts: object) -> None:
        """Read the pipeline back, record the version and hash that were seen, and flush the log."""
        state = self._log.state(PIPELINE)
        self._seen = {"at": at, "version": state.version, "state_hash": state.state_hash}
        noted = {"variables": {"pipeline_seen": self._seen}, "last_active_at": now_micros()}
        self._journal.note(SESSION, noted)
        self._journal.flush()
        self._cue.say(self._seen, kept=self._journal.kept, failed_tries=self._calls.failed_tries, **facts)
        self._cue.wait()

    def _wait_in_vain(self, seconds: float) -> None:
        """Called when no answer comes: tell the demo that the agent waits, and sleep."""
        self._journal.flush()
        self._cue.say(self._seen | {"at": "waiting"}, kept=self._journal.kept)
        self._cue.sleep(seconds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Pay tonight's refunds, on the record.")
    parser.add_argument("log", help="URL of the log, such as file:PATH")
    parser.add_argument("--seed", type=int, default=7, help="where the tools fail")
    parser.add_argument("--cued", action="store_true", help="take turns with the demo that started this")
    given = parser.parse_args()
    with refold.open(given.log) as opened:
        RefundAgent(opened, given.seed, DemoChannel(given.cued)).work()
