"""OpenAI's JavaScript SDK with the proxy: it gets the same bytes without it, with it, and from the recording."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from refold.agents.capture.playback import RecordedUpstream
from refold.agents.capture.server import LoopbackServer
from refold_tests.absent import without
from refold_tests.captures import capturing, log_of
from refold_tests.model_server import TEXT, WORDS, model_server
from refold_tests.npm import OPENAI, package_folder
from refold_tests.tree import ROOT

pytestmark = pytest.mark.outside

PROGRAM = ROOT / "tests" / "node" / "openai_ways.mjs"
REQUESTS = 4
TIMEOUT_S = 300


def node() -> str:
    """Return the path of node. Without node the test is skipped, and in CI it fails."""
    found = shutil.which("node")
    if found is None:
        without("node is missing, which runs OpenAI's JavaScript SDK")
    return found


def said_by_javascript(url: str) -> Any:
    """Return what the SDK returned, and a hash of the bytes of each answer."""
    done = subprocess.run(
        [node(), str(PROGRAM), str(package_folder(OPENAI)), f"{url}/v1"], capture_output=True, timeout=TIMEOUT_S,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def test_javascript_sdk_gets_the_same_recorded_and_replayed(tmp_path: Path) -> None:
    with model_server() as server:
        plain = said_by_javascript(server.url)
        assert plain["whole"]["choices"][0]["message"]["content"] == TEXT
        assert "".join(each["choices"][0]["delta"].get("content") or "" for each in plain["streamed"]) == TEXT
        assert len(plain["streamed"]) >= len(WORDS)
        sent = list(server.raw)
        server.reset()
        with capturing(tmp_path, server.url) as captured:
            assert said_by_javascript(captured.url) == plain
        assert server.raw == sent, "the provider is sent what it is sent without the proxy"
        assert captured.said == []
        with log_of(tmp_path) as log:
            recordings = [log.recording(row.run) for row in log.runs()]
        assert sorted(len(each.steps) for each in recordings) == [1] * REQUESTS
        assert "sk-a-key-that-nobody-may-see" not in str(recordings)
        server.reset()
        replaying = RecordedUpstream(recordings)
        serving = LoopbackServer(lambda: replaying)
        try:
            assert said_by_javascript(serving.url) == plain
        finally:
            serving.close()
        assert (replaying.served, replaying.unrecorded, server.requests) == (REQUESTS, 0, [])
