"""A typical LiteLLM callback that saves traffic: each exchange is a line in a file."""

from __future__ import annotations

import json
import os
from pathlib import Path

from litellm.integrations.custom_logger import CustomLogger


class KeptExchanges(CustomLogger):
    def __init__(self):
        super().__init__()
        self.file = Path(os.environ["SAVED"]).open("a")  # noqa: SIM115  # for as long as the process runs

    async def async_log_success_event(self, kwargs, response_obj, start_time, end_time):
        kept = {"request": kwargs.get("messages"), "response": str(response_obj)}
        self.file.write(json.dumps(kept) + "\n")
        self.file.flush()


saving = KeptExchanges()
