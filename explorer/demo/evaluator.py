"""Evaluates a run from its log. It has no contact with the agent, and may run long after it.

python -m refold.explorer.demo.evaluator file:PATH @crash
"""

from __future__ import annotations

import argparse

import refold
from refold.explorer.demo.answers import payments
from refold.explorer.demo.journal import now_micros
from refold.explorer.demo.names import EVALUATION, EVALUATOR, PIPELINE, RUN

THRESHOLD = 0.95


def judge(log: refold.Log, at: str) -> None:
    """Evaluate whether payments stayed within the provider's rate limit. Observe the verdict, and the observations it
    is based on.
    """
    view = log.rebuild(at)
    pipeline, paid = view[PIPELINE], payments(view)
    refused = [each for each in paid if "429" in str(each.fields.get("retries", ""))]
    score = 1 - len(refused) / len(paid)
    evidence = pipeline.observations_of("outputs", "paid")
    for each in refused:
        evidence += each.observations_of("retries")
    verdict = {
        "name": "payments-within-limits",
        "subject": PIPELINE,
        "subject_version": pipeline.version,
        "subject_state_hash": pipeline.state_hash,
        "subject_cut": str(view.cut),
        "score": round(score, 4),
        "score_max": 1.0,
        "threshold": THRESHOLD,
        "passed": score >= THRESHOLD,
        "metrics": {"payments": len(paid), "refused": len(refused)},
        "output": {"refused": [each.entity for each in refused]},
        "rationale": f"{len(refused)} of {len(paid)} payments were refused: Too Many Requests.",
        "evaluator": EVALUATOR,
        "run": RUN,
        "evaluated_at": now_micros(),
    }
    log.observe(EVALUATION, verdict, source=EVALUATOR, causes=evidence)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Judge the payments of a run.")
    parser.add_argument("log", help="URL of the log, such as file:PATH")
    parser.add_argument("at", help="the point to judge, such as @crash")
    given = parser.parse_args()
    with refold.open(given.log) as opened:
        judge(opened, given.at)
