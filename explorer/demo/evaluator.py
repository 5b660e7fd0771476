"""Judges a run from its log: it never met the agent, and may come long after.

python -m refold.explorer.demo.evaluator file:PATH @crash
"""

from __future__ import annotations

import argparse

import refold
from refold.explorer.demo.journal import now_micros
from refold.explorer.demo.names import AGENT, EVALUATION, EVALUATOR, PAYING, PIPELINE, RUN

THRESHOLD = 0.95
PAYMENT = f"action/{RUN}#{PAYING}."


def judge(log: refold.Log, at: str) -> str:
    """Were payments made at a rate the provider accepts? Observes the verdict and what it rests on; its id."""
    view = log.rebuild(at)
    pipeline = view[PIPELINE]
    payments = [view[entity] for entity in view if entity.startswith(PAYMENT)]
    refused = [payment for payment in payments if "429" in str(payment.fields.get("retries", ""))]
    score = 1 - len(refused) / len(payments)
    evidence = [
        *pipeline.held_by("outputs", "paid"),
        *(held for each in refused for held in each.held_by("retries")),
    ]
    patch = {
        "name": "payments-within-limits",
        "subject": PIPELINE,
        "subject_version": pipeline.version,
        "subject_state_hash": pipeline.state_hash,
        "subject_cut": str(view.cut),
        "score": round(score, 4),
        "score_max": 1.0,
        "threshold": THRESHOLD,
        "passed": score >= THRESHOLD,
        "metrics": {"payments": len(payments), "refused": len(refused)},
        "rationale": f"{len(refused)} of {len(payments)} payments were refused: Too Many Requests.",
        "output": {"refused": [each.entity for each in refused], "agent": AGENT},
        "evaluator": EVALUATOR,
        "run": RUN,
        "evaluated_at": now_micros(),
    }
    return log.observe(EVALUATION, patch, source=EVALUATOR, causes=evidence)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Judge the payments of a run.")
    parser.add_argument("log", help="URL of the log, such as file:PATH")
    parser.add_argument("at", help="the point to judge, such as @crash")
    given = parser.parse_args()
    with refold.open(given.log) as opened:
        judge(opened, given.at)
