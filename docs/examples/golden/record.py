"""How the golden trace was made: a run of the old agent, recorded.

    python record.py
    refold golden add r-17 --out . --name paid-four-times --entry new_agent:answer \\
        --describe "A customer paid four times: three payments go back." \\
        --known-bad "it refunded the first payment too" \\
        --expect outcome=succeeded --expect "tools=lookup_order,...,send_mail" --expect "search_docs<=3" \\
        --expect "state[1].case.status=open" --expect output.refund=150
"""

from __future__ import annotations

import old_agent

import refold

if __name__ == "__main__":
    with refold.open("file:.refold") as log:
        order = {"order": "7", "customer": "c-1", "text": "I paid four times!"}
        log.run("refund-desk", version="1.4", input=order, seed=7, id="r-17").drive(old_agent.answer)
