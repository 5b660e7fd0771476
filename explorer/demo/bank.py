"""The provider's statement: it comes late, and says what really became of a payment nobody heard back from.

python -m refold.explorer.demo.bank file:PATH @crash
"""

from __future__ import annotations

import argparse

import refold
from refold.explorer.demo.names import BANK, PAYING, RUN

BOOKED_AFTER_MICROS = 100
PAYMENT = f"action/{RUN}#{PAYING}."


def unanswered(view: refold.StateView) -> refold.EntityView:
    """The payment that was under way at that point."""
    payments = (view[entity] for entity in view if entity.startswith(PAYMENT))
    return next(payment for payment in payments if payment.fields["status"] == "running")


def report(log: refold.Log, at: str) -> None:
    """Observe now what the provider booked then."""
    payment = unanswered(log.rebuild(at)).fields
    claim = payment["inputs"]["claim"]
    fields = {"status": "paid", "reference": f"acme-statement-{claim}"}
    booked_at = payment["started_at"] + BOOKED_AFTER_MICROS
    log.observe(f"document/refund-{claim}", {"fields": fields}, source=BANK, observed_at=booked_at)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Report what the payment provider booked.")
    parser.add_argument("log", help="URL of the log, such as file:PATH")
    parser.add_argument("at", help="the point whose unanswered payment is meant, such as @crash")
    given = parser.parse_args()
    with refold.open(given.log) as opened:
        report(opened, given.at)
