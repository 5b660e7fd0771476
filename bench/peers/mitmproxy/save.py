"""A typical mitmproxy script that saves traffic: streams are not delayed; each exchange is a line in a file."""

from __future__ import annotations

import json
import os
from pathlib import Path


class KeptExchanges:
    def __init__(self):
        self.file = Path(os.environ["SAVED"]).open("a")  # noqa: SIM115  # for as long as the process runs

    def responseheaders(self, flow):
        pieces = []

        def keep(data):
            pieces.append(data)
            return data

        flow.metadata["pieces"] = pieces
        flow.response.stream = keep

    def response(self, flow):
        body = b"".join(flow.metadata["pieces"])
        kept = {
            "url": flow.request.pretty_url,
            "request": flow.request.text,
            "response": body.decode("utf-8", "replace"),
        }
        self.file.write(json.dumps(kept) + "\n")
        self.file.flush()


addons = [KeptExchanges()]
