"""A program that talks to a model through a capture, in this process or in one that is killed."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from refold.agents.capture.capture import Capture, CaptureSettings
from refold.agents.capture.resumed import resuming
from refold.agents.log import open_log


class Talk:
    """A program that talks to a model, one turn after another."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._messages: list[dict[str, str]] = []

    def ask(self, text: str) -> str:
        """Say a text and return the answer."""
        self._messages.append({"role": "user", "content": text})
        body = json.dumps({"model": "m", "messages": self._messages}).encode()
        request = urllib.request.Request(
            f"{self._url}/v1/chat/completions", body, {"Content-Type": "application/json"}
        )  # fmt: skip
        with urllib.request.urlopen(request) as response:
            message: dict[str, str] = json.load(response)["choices"][0]["message"]
        self._messages.append(message)
        return message["content"]


def settings_of(folder: Path, spool: Path, **more: Any) -> CaptureSettings:
    """Return the settings of a capture into FOLDER/log."""
    url = f"file:{folder}/log"
    return CaptureSettings(url, lambda: open_log(url), "agent", {}, print, spool=spool, **more)


def main() -> None:
    """Say one text in a capture that resumes `job`, and be killed when its answer is stored."""
    folder, upstream, spool = sys.argv[1:]
    given = settings_of(Path(folder), Path(spool))
    capture = Capture(resuming(given, "job", 60), {"": upstream})
    Talk(capture.url).ask("one")
    with open_log(given.log_url, read_only=True) as log:
        while not log.states(["step/job#1"]):
            time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGKILL)
