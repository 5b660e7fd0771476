"""The examples run as they stand, each in a folder of its own, and say what they promise.

docs/examples/golden/ is run by tests/agents/golden/test_plugin.py.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from refold_tests.command import environment
from refold_tests.tree import ROOT

EXAMPLES = ROOT / "docs" / "examples"
SAYS = {
    "agent_graph.py": [
        "path: plan -> search -> write -> search -> write -> publish",
        "why search again: only 1 source",
        "state after the 1st write: {'topic': 'logs', 'sources': ['a'], 'draft': 'on logs, by 1'}",
        "today's graph goes the same way: True",
        "content with 1 source, it would do otherwise in step 4 (publish)",
    ],
    "checkpoints.py": [
        "the first process was killed by signal 9",
        "committed: logs, tables, joins, windows",
        "resumed, it ends with {'topics': 6}",
        "done twice: nothing",
        "behind step 3 it knew of logs, tables, joins",
    ],
    "otel_spans.py": [
        "trace 6becaa392e87f97bd8e2aaf917bc3b4f",
        "invoke_agent refund-desk",
        '    execute_tool search tool.call.arguments={"customer":"c-1"} refold.success=True refold.retry=1 '
        "refold.result_size=13 [exception]",
        "  decide refold.success=True refold.retry=0 [refold.decide]",
        "    chat small request.temperature=0.2 response.finish_reasons=('stop',) usage.input_tokens=31 "
        "usage.output_tokens=2 refold.success=True refold.retry=0 refold.result_size=160",
        '    execute_tool pay_back tool.call.arguments={"order":"o-7"} refold.success=False refold.retry=0 [exception]',
        "exported again, the same spans: True",
    ],
    "sqlite_sink.py": [
        "loaded 1 entity",
        "then 1 change",
        "at the log's end: True",
        "tool_config/acme 3 75",
        "rate_limit 50 -> 75",
    ],
    "time_travel.py": [
        "1 hotel   {'hotel': 'Plain', 'left': 220}",
        "2 train   {'hotel': 'Plain', 'left': 660, 'train': 'fast'}",
        "first divergence at step 2: other arguments",
        "the parent is as it was: True",
    ],
    "tool_recorder.py": [
        "called: find_place, forecast, forecast, model, book",
        "  forecast {'place': 'Bern'} -> rain (failed first: no forecast for Bern yet)",
        "100 replays: 1 hash, 0 calls",
        "  differs   kwargs.nights: 3 asked, 2 recorded",
    ],
}


def test_every_example_is_run() -> None:
    assert {each.name for each in EXAMPLES.glob("*.py")} == set(SAYS)


@pytest.mark.parametrize("name", sorted(SAYS))
def test_example_runs(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-P", str(EXAMPLES / name)]
    more = {"PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(more=more), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line for line in SAYS[name] if line not in lines] == [], done.stdout
