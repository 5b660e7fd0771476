"""The provider's statement. It arrives late, and shows what became of a payment that was never answered.

python -m refold.explorer.demo.bank file:PATH @crash
"""

from __future__ import annotations

import argparse

import refold
from refold.explorer.demo.answers import document_of, unanswered
from refold.explorer.demo.names import BANK

BOOKED_AFTER_MICROS = 100


def report(log: refold.Log, at: str) -> None:
    """Observe now that the provider booked the unanswered payment at its time."""
    payment = unanswered(log.rebuild(at))
    booked_at = payment.fields["started_at"] + BOOKED_AFTER_MICROS
    fields = {"status": "paid", "reference": f"acme-{payment.fields['inputs']['claim']}"}
    log.observe(document_of(payment), {"fields": fields}, source=BANK, observed_at=booked_at)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Report what the payment provider booked.")
    parser.add_argument("log", help="URL of the log, such as file:PATH")
    parser.add_argument("at", help="the point whose unanswered payment is meant, such as @crash")
    given = parser.parse_args()
    with refold.open(given.log) as opened:
        report(opened, given.at)
