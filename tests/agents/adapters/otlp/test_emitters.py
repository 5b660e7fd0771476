"""Real instrumentations with their real SDKs: what refold shows of each run is compared with a snapshot.

To write it anew, and then check every difference, run this file with REFOLD_WRITE_SNAPSHOT=1.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import refold
from refold import AgentLog
from refold.agents.adapters.otlp.intake import OtlpIntake
from refold.agents.adapters.otlp.receiver import OtlpReceiver
from refold.agents.capture.server import LoopbackServer
from refold.agents.log import open_log
from refold_tests.absent import without
from refold_tests.child import Child
from refold_tests.model_server import model_server
from refold_tests.otlp_emitters import ADK_PYTHON, ANSWERED, APART, ASKED, BROKEN, EMITTERS, mind
from refold_tests.tree import ROOT

pytestmark = pytest.mark.outside

MAIN = "from refold_tests.otlp_emitters import main; main()"
WAIT_S = 240
SNAPSHOT = Path(__file__).with_name("emitters.json")
RANDOM = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
LEFT_OUT = {"started_at", "ended_at", "at", "duration_ms", "run", "metadata", "span", "span_origin"}
"""Times, and the spans themselves."""


@pytest.fixture(scope="module")
def received(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentLog]:
    """A log that received what all emitters sent."""
    url = f"file:{tmp_path_factory.mktemp('emitters') / 'log'}"
    intake = OtlpIntake(lambda: open_log(url), {}, print)
    server = LoopbackServer(lambda: OtlpReceiver(intake))
    with model_server() as model:
        model.mind = mind
        child = Child(MAIN, model.url, server.url)
        assert child.process.wait() == 0, child.line()
        child.process.communicate()
        if ADK_PYTHON.exists():
            words = [str(ADK_PYTHON), "-c", MAIN, model.url, server.url, *APART]
            environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests" / "support"), "PYTHONSAFEPATH": "1"}
            subprocess.run(words, env=environment, check=True, timeout=WAIT_S, stderr=subprocess.PIPE)
    server.close()
    intake.close()
    with refold.open(url, read_only=True) as log:
        yield log


def shown(log: AgentLog, run: str) -> dict[str, Any]:
    """Return what is shown of a run, and the entities of its calls, without times."""
    recording, state = log.recording(run), log.state(f"run/{run}").fields
    others = log.states([f"document/trace-{run}"]).values()
    listed = {**state.pop("spans"), **{name: kind for each in others for name, kind in each.fields["fields"].items()}}
    steps = [
        {"number": each.number, "outcome": each.outcome, "result": each.result,
         "calls": [(call.asked.kind, call.asked.name, call.answer) for call in each.calls]}
        for each in recording.steps
    ]  # fmt: skip
    kinds = {"model": "step", "tool": "action"}
    named = {f"{kinds[kind]}/{run}#{span}": kind for span, kind in listed.items() if kind in kinds}
    entities = {name: _without_times(view.fields) for name, view in log.states(sorted(named)).items()}
    return {
        "agent": recording.agent, "title": recording.title, "outcome": recording.outcome, "input": recording.input,
        "output": recording.output, "steps": steps, "run": _without_times(state),
        "kinds": Counter(sorted(each for name, each in listed.items() if not name.startswith("log-"))),
        "entities": {f"{name.partition('/')[0]} {number}": each
                     for number, (name, each) in enumerate(sorted(entities.items()), 1)},
    }  # fmt: skip


def _without_times(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _without_times(each) for key, each in tree.items() if key not in LEFT_OUT}
    return [_without_times(each) for each in tree] if isinstance(tree, list | tuple) else tree


def _shown_value(value: Any) -> str:
    return f"{value.media_type} in a blob"


def test_what_is_shown_of_each_emitters_runs_is_the_snapshot(received: AgentLog) -> None:
    found: dict[str, list[Any]] = {name: [] for name in EMITTERS if name not in APART or ADK_PYTHON.exists()}
    for row in sorted(received.runs(), key=lambda row: row.run):
        found[[*EMITTERS][int(row.run, 16) // 1_000 - 1]].append(shown(received, row.run))
    text = (
        RANDOM.sub("ID", json.dumps(found, indent=1, sort_keys=True, ensure_ascii=False, default=_shown_value)) + "\n"
    )
    if os.environ.get("REFOLD_WRITE_SNAPSHOT"):
        assert found.keys() == EMITTERS.keys(), f"{ADK_PYTHON} is missing: make .venv-adk/.installed"
        SNAPSHOT.write_text(text, encoding="utf-8")
    snapshot = json.loads(SNAPSHOT.read_text(encoding="utf-8"))
    assert json.loads(text) == {name: runs for name, runs in snapshot.items() if name in found}
    assert received.verify().ok


@pytest.mark.parametrize("name", EMITTERS)
def test_each_emitters_run_has_its_question_tool_answer_tokens_and_error(received: AgentLog, name: str) -> None:
    """The snapshot says how; this says what must be in it, so that no wrong snapshot is written."""
    if name in APART and not ADK_PYTHON.exists():
        without(f"{ADK_PYTHON} is missing: make .venv-adk/.installed")
    number = [*EMITTERS].index(name) + 1
    rows = [row for row in received.runs() if int(row.run, 16) // 1_000 == number]
    [good] = [each for each in (shown(received, row.run) for row in rows) if BROKEN not in str(each["input"])]
    [bad] = [each for each in (shown(received, row.run) for row in rows) if BROKEN in str(each["input"])]
    assert ASKED in str(good["input"])
    assert ANSWERED in str(good["output"])
    assert [call[1] for step in good["steps"] for call in step["calls"] if call[0] == "tool"] == ["price"]
    assert "42 EUR" in str(good["steps"][0]["calls"])
    assert (good["run"].get("input_tokens"), good["run"].get("output_tokens")) == (14, 10)
    [failed] = bad["entities"].values()
    assert failed["outcome"] == "failed"
    assert failed["failure"]["message"]
    # Its instrumentation says of the outermost span that it succeeded.
    assert bad["outcome"] == ("succeeded" if name == "openai-agents" else "failed")
