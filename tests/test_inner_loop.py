"""`make check` runs every test that starts no server and kills no process, and no other (refold_tests/inner_loop.py).

At run time `guarded` ends an inner test that starts a server. Kills are found here, in the text of the test and of what
it names in its module: refold itself ends processes that it started by SIGKILL, so a signal at run time says nothing.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Set
from functools import cache
from pathlib import Path

import pytest

from refold.testing.processes import Supervised
from refold_tests import inner_loop
from refold_tests.inner_loop import Collected
from refold_tests.tree import ROOT

# Modules and tests that start no server and kill nothing, but work for too long to be waited for: each with why.
LONG = {
    "tests/agents/adapters/langgraph/test_conformance.py": "runs LangGraph's own suite for checkpointers",
    "tests/agents/adapters/langgraph/test_saver.py": "runs graphs of LangGraph, each with a log of its own",
    "tests/agents/adapters/langgraph/test_store.py": "runs graphs of LangGraph, and a log for each test",
    "tests/agents/adapters/langgraph/test_store_contract.py": "puts some hundreds of items, each durable on its return",
    "tests/agents/adapters/langgraph/test_store_law.py": "runs some hundreds of batches, each durable on its return",
    "tests/agents/adapters/otlp/test_emitters.py": "runs agents of six SDKs, in processes of their own",
    "tests/agents/adapters/otlp/test_grpc.py": "runs gRPC's server, in this process and in others",
    "tests/agents/adapters/otlp/test_malformed.py": "sends hundreds of damaged requests, over HTTP and gRPC",
    "tests/agents/adapters/otlp/test_receive.py": "receives spans, in processes of their own",
    "tests/agents/adapters/otlp/test_sockets.py": "receives spans in a process whose sockets are watched",
    "tests/agents/adapters/claude_agent_sdk/test_guide.py": "follows a guide, command by command",
    "tests/agents/adapters/claude_agent_sdk/test_hooks.py": "runs sessions of the Claude Agent SDK in other processes",
    "tests/agents/adapters/claude_agent_sdk/test_store.py": "runs sessions of the Claude Agent SDK in other processes",
    "tests/agents/adapters/openai_agents/test_drift.py": "imports the OpenAI Agents SDK",
    "tests/agents/adapters/openai_agents/test_faults.py": "imports the OpenAI Agents SDK, also in other processes",
    "tests/agents/adapters/langgraph/test_guide.py": "follows a guide, command by command",
    "tests/agents/adapters/openai_agents/test_guide.py": "follows a guide, command by command",
    "tests/agents/adapters/openai_agents/test_processor.py": "runs agents of the OpenAI Agents SDK",
    "tests/agents/adapters/openai_agents/test_session.py": "runs agents of the OpenAI Agents SDK",
    "tests/agents/adapters/test_drift.py": "imports the SDKs of the adapters",
    "tests/agents/adapters/test_sockets.py": "imports the SDKs of the adapters, in another process",
    "tests/agents/adapters/test_workflow_engines.py": "follows a guide, command by command, and kills its program",
    "tests/agents/bisect/test_bisect.py": "replays many commits, each in a process of its own",
    "tests/agents/capture/test_agent_settings.py": "runs programs below a proxy, in processes of their own",
    "tests/agents/capture/test_clients.py": "imports the SDKs of model providers, and records each use of them",
    "tests/agents/capture/test_mcp_http.py": "runs a server of the MCP SDK, and records what its clients ask",
    "tests/agents/capture/test_encodings.py": "reads large bodies in every encoding, in pieces of every size",
    "tests/agents/capture/test_faults.py": "captures through proxies that fail, each with a provider of its own",
    "tests/agents/capture/test_javascript.py": "runs a program in Node.js, with OpenAI's SDK of npm",
    "tests/agents/capture/test_malformed.py": "sends hundreds of malformed requests by a proxy",
    "tests/agents/capture/test_mcp_record.py": "runs MCP servers below a tee, in processes of their own",
    "tests/agents/capture/test_program.py": "runs programs below a proxy, in processes of their own",
    "tests/agents/capture/test_providers.py": "imports the SDKs of further providers, and sends each use by a proxy",
    "tests/agents/capture/test_proxy_policy.py": "sends requests by a proxy that holds them to a policy",
    "tests/agents/capture/test_proxy.py": "imports the SDKs of model providers, and sends each use of them by a proxy",
    "tests/agents/capture/test_resumed.py": "captures a program by several proxies, one of which is killed",
    "tests/agents/capture/test_same_turns.py": "captures and imports one session in each order, by commands",
    "tests/agents/capture/test_shared_cases.py": "sends each of the shared cases by a proxy",
    "tests/agents/capture/test_websockets.py": "connects WebSockets by a proxy",
    "tests/agents/capture/test_wire.py": "sends each case of a provider's wire by a proxy",
    "tests/agents/confined/test_escapes.py": "tries each way out of a confined process, in a process of its own",
    "tests/agents/confined/test_shared_memory.py": "confines processes, and runs commands",
    "tests/agents/golden/test_plugin.py": "runs pytest in a process for each case",
    "tests/agents/recorder/test_children.py": "starts processes in each way that Python has",
    "tests/agents/recordings/test_imported.py": "imports recorded conversations of each format",
    "tests/agents/redaction/test_linear.py": "redacts texts of megabytes, to compare how the time grows",
    "tests/agents/heal/test_supervised.py::test_supervisor_heals_asks_and_gives_up": "runs a supervisor and its agents",
    "tests/agents/supervise/test_awaited.py": "runs agents that ask, in processes of their own",
    "tests/agents/supervise/test_captured.py": "runs supervisors and captured agents, in processes of their own",
    "tests/agents/supervise/test_supervisor.py": "runs supervisors and agents, in processes of their own",
    "tests/agents/supervise/test_transitions.py": "kills supervisors, keepers and agents at each transition",
    "tests/agents/supervise/test_up.py": "runs supervisors and agents, in processes of their own",
    "tests/agents/test_importers_contract.py": "imports the samples of every format, by every importer",
    "tests/agents/test_typed.py": "runs mypy and pyright on an example agent",
    "tests/explorer/deck/test_deck.py": "opens the deck for each test, and presses its keys one by one",
    "tests/explorer/deck/test_hostile.py": "shows values of megabytes in the deck",
    "tests/explorer/mcp/test_hostile.py": "sends damaged messages to MCP servers, in processes of their own",
    "tests/explorer/mcp/test_tools.py": "serves MCP, and runs a command for each of its answers",
    "tests/explorer/test_acceptance.py": "imports all recorded conversations",
    "tests/explorer/test_demo.py": "runs the demo, with its processes",
    "tests/explorer/test_heal.py::test_demo_heals": "runs a supervisor, its agent and its healing",
    "tests/explorer/test_import_bounds.py": "imports files as large as each bound",
    "tests/explorer/test_import_faults.py": "imports while processes and disks fail",
    "tests/explorer/test_snapshots_acceptance.py": "folds all recorded conversations again at many cuts",
    "tests/explorer/web/test_api.py": "serves the explorer, and runs a command for each of its answers",
    "tests/explorer/web/test_browser.py": "drives a browser",
    "tests/explorer/web/test_looks.py": "drives a browser",
    "tests/explorer/web/test_causes_graph.py": "serves the explorer, over a chain of 5,000 observations",
    "tests/explorer/web/test_export.py": "records an incident, and exports it",
    "tests/explorer/web/test_open_runs.py": "serves the explorer, and drives the deck",
    "tests/explorer/web/test_value_links.py": "serves the explorer",
    "tests/explorer/web/test_guarded.py": "serves the explorer, with large values",
    "tests/explorer/web/test_pages.py": "serves the explorer, and runs each command that its pages show",
    "tests/explorer/web/test_scripts.py": "runs the compiler of TypeScript",
    "tests/explorer/web/test_real_runs.py": "serves the explorer, and opens each step of recorded conversations",
    "tests/helm/test_image.py::test_copied_files_build_the_whole_wheel_and_its_command_runs": "builds wheels",
    "tests/kernel/test_wrong_build.py": "builds a kernel",
    "tests/monitoring/test_alerts.py::test_each_alert_fires_when_it_should_and_only_then": "evaluates hours of series",
    "tests/monitoring/test_alerts.py::test_alerts_that_never_fire_fail_the_tests_by_name": "evaluates hours of series",
    "tests/monitoring/test_recorded_alerts.py": "evaluates every alert on each recorded fault, of an hour or so",
    "tests/streams/test_asof.py": "folds long histories at many cuts",
    "tests/streams/test_cold_growth.py": "seals a month of spans, many times",
    "tests/streams/test_exchange.py": "exports and imports logs of every type",
    "tests/streams/test_held_code.py": "rebuilds and seals in processes of their own",
    "tests/streams/test_rebuild_parallel.py": "rebuilds in several processes",
    "tests/streams/test_snapshots.py": "seals and rebuilds long histories in many batches",
    "tests/streams/test_verify.py": "folds whole logs again for each kind of damage",
    "tests/streams/test_verify_damage.py": "folds whole logs again for each kind of damage",
    "tests/streams/test_verify_snapshots.py": "folds whole logs again for each kind of damage",
    "tests/test_documents.py::test_examples_on_a_page_run": "runs the examples of every page of the documents",
    "tests/test_inner_loop.py::test_no_other_test_is_left_out": "imports every module of tests",
    "tests/test_order.py": "runs pytest on two workers, one of which dies",
    "tests/test_recipes.py::test_recipe_works": "runs each recipe, in processes of its own",
    "tests/test_site.py::test_site_builds_with_every_page": "builds the site",
    "tests/test_wheel.py": "builds and installs a wheel",
}
KILLS = re.compile(r"\bSIGKILL\b|\.kill\(")
COLLECT = """
import json, sys
import pytest

class Collected:
    def pytest_collection_finish(self, session):
        from refold_tests import inner_loop

        print("\\n" + json.dumps(session.config.stash[inner_loop.COLLECTED]), file=sys.stderr)

sys.exit(pytest.main(["--collect-only", "-qq", "-p", "no:cacheprovider", *sys.argv[1:]], plugins=[Collected()]))
"""


MODULES = {str(each.relative_to(ROOT)): inner_loop.is_left_out(each) for each in (ROOT / "tests").rglob("test_*.py")}


def _collected(config: pytest.Config, modules: Set[str]) -> list[Collected]:
    """The tests of modules. What this run collected whole is known; the others are collected in another process."""
    found = [] if any("::" in each for each in config.args) else [*config.stash[inner_loop.COLLECTED]]
    known = {each.node.partition("::")[0] for each in found}
    if left := sorted(modules - known):
        done = subprocess.run(
            [sys.executable, "-P", "-c", COLLECT, *left], cwd=ROOT, capture_output=True, text=True, timeout=800,
            check=False,
            env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
            | {"PYTHONPATH": str(ROOT / "tests" / "support")},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        found += [Collected(*each) for each in json.loads(done.stderr.splitlines()[-1])]
    assert modules <= {each.node.partition("::")[0] for each in found}
    return found


@cache
def _parts(path: Path) -> dict[str, tuple[str, frozenset[str]]]:
    """Of a module's functions, classes and variables: their text, and the names in it."""
    text = path.read_text(encoding="utf-8")
    lines, found = text.splitlines(), {}
    for node in ast.parse(text).body:
        targets = node.targets if isinstance(node, ast.Assign) else [node]
        names = [getattr(each, "name", None) or getattr(each, "id", None) for each in targets]
        words = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
        words |= {each.arg for each in ast.walk(node) if isinstance(each, ast.arg)}
        for name in filter(None, names):
            found[name] = ("\n".join(lines[node.lineno - 1 : node.end_lineno]), frozenset(words))
    return found


def _text(path: Path, name: str) -> str:
    """What a test and all that it names in its module say."""
    parts = _parts(path)
    seen, ahead = set[str](), [name]
    while ahead:
        if (each := ahead.pop()) in parts and each not in seen:
            seen.add(each)
            ahead.extend(parts[each][1])
    return "\n".join(parts[each][0] for each in sorted(seen))


@pytest.mark.timeout(900)
def test_inner_test_kills_nothing(request: pytest.FixtureRequest) -> None:
    collected = _collected(request.config, {name for name, is_left_out in MODULES.items() if not is_left_out})
    assert len(collected) > 3_000
    killing = set()
    for node, why, is_inner in collected:
        assert is_inner == (not why), node
        path, _, name = node.partition("::")
        if is_inner and KILLS.search(_text(ROOT / path, re.split(r"::|\[", name)[0])):
            killing.add(node.partition("[")[0])
    assert killing == set()


@pytest.mark.outside
@pytest.mark.timeout(900)
def test_no_other_test_is_left_out(request: pytest.FixtureRequest) -> None:
    """A test is left out for a server, for a kill that its text shows, or because it is named in LONG."""
    collected = _collected(request.config, MODULES.keys())
    assert [node for node, why, _ in collected if MODULES[node.partition("::")[0]] and not why] == []
    without_reason = set()
    for node, why, _ in collected:
        path, _, name = node.partition("::")
        is_long = path in LONG or node.partition("[")[0] in LONG
        if why == ["outside"] and not is_long and not KILLS.search(_text(ROOT / path, re.split(r"::|\[", name)[0])):
            without_reason.add(node.partition("[")[0])
    assert without_reason == set()
    nodes = {node.partition("[")[0] for node, *_ in collected}
    assert {each for each in LONG if not any(node.startswith(each) for node in nodes)} == set()


def test_guard_ends_a_test_that_starts_a_server(tmp_path: Path) -> None:
    with inner_loop.guarded(), pytest.raises(AssertionError, match="needs a server"):
        Supervised("x", tmp_path / "log", remove=None).launch(["true"])
