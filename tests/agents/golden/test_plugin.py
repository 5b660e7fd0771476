"""The pytest plugin, in separate runs of pytest; the shipped example, with the code it was recorded from and the fixed
code."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from refold.agents.golden.file import read, replace, signed
from refold_tests.command import environment
from refold_tests.tree import ROOT

pytestmark = pytest.mark.outside

EXAMPLE = ROOT / "docs" / "examples" / "golden"
TRACE = "paid-four-times.golden.json"

Pytest = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def example(tmp_path: Path) -> Path:
    """A copy of the example."""
    folder = tmp_path / "example"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture
def run_pytest(tmp_path: Path) -> Pytest:
    """Return a function that runs pytest in a separate process."""

    def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
        # Half of pytest's start-up time is the import of a plugin that LangGraph installs.
        left_out = ("-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:langsmith_plugin")
        command = [sys.executable, "-P", "-m", "pytest", *left_out, *arguments]
        more = {"PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "140"}
        return subprocess.run(
            command, cwd=folder, env=environment(more=more), capture_output=True, text=True, timeout=120, check=False
        )

    return run


def test_example_passes_on_the_fixed_agent(example: Path, run_pytest: Pytest) -> None:
    done = run_pytest("--refold-golden", ".", "-v", folder=example)
    assert done.returncode == 0, done.stdout
    assert f"{TRACE}::paid-four-times PASSED" in done.stdout
    assert "test_golden.py::test_the_first_payment_is_kept PASSED" in done.stdout
    assert "2 passed" in done.stdout


def test_example_fails_on_the_recorded_agent(example: Path, run_pytest: Pytest) -> None:
    done = run_pytest("--refold-golden", ".", "--refold-agent", "old_agent:answer", folder=example)
    assert done.returncode == 1, done.stdout
    assert "2 failed" in done.stdout
    for line in (
        "paid-four-times: old_agent:answer does not do what is expected",
        "  A customer paid four times: three payments go back.",
        "  expected  search_docs<=3",
        "  found     made 4 calls of search_docs",
        "  expected  output.refund=150",
        "  found     output.refund is 200",
    ):
        assert line in done.stdout.splitlines(), done.stdout
    assert "exercise.py" not in done.stdout, "no traceback through refold"


def test_recorded_run_is_of_the_old_agent(example: Path, run_pytest: Pytest) -> None:
    """Compared with what that agent did, to the last call: the example is a real recording."""
    text = (example / TRACE).read_text()
    start, end = text.index('"expect": ['), text.index("],") + 1
    exact = text[:start] + '"expect": ["exact"]' + text[end:]
    replace(example / TRACE, signed(exact, TRACE))
    done = run_pytest(
        "--refold-golden", ".", "-m", "refold_golden", "--refold-agent", "old_agent:answer", folder=example
    )
    assert done.returncode == 0, done.stdout
    changed = run_pytest("--refold-golden", ".", "-m", "refold_golden", folder=example)
    assert changed.returncode == 1
    assert "parts from the recording at step 1 (look up)" in changed.stdout


def test_unrecorded_call_is_shown_with_the_nearest_recorded_one(example: Path, run_pytest: Pytest) -> None:
    agent = example / "new_agent.py"
    agent.write_text(
        agent.read_text().replace('refund(payment, order["price"])', 'refund(payment, order["price"] + 1)')
    )
    done = run_pytest("--refold-golden", ".", folder=example)
    assert done.returncode == 1
    assert 'asked     tool refund(payment="p-2", amount=51)' in done.stdout, done.stdout
    assert "amount: 51 asked, 50 recorded" in done.stdout
    assert "--answer refund=JSON" in done.stdout
    assert "until then it called lookup_order, search_docs" in done.stdout


def test_plugin_is_inert_without_its_option(tmp_path: Path, run_pytest: Pytest) -> None:
    (tmp_path / "x.golden.json").write_text("no golden trace at all")
    (tmp_path / "test_x.py").write_text(
        "import sys\nimport pytest\n\ndef test_x():\n"
        "    assert not [each for each in sys.modules if each.startswith('refold')]\n\n"
        "def test_y(request):\n    for name in ('golden', 'replay'):\n"
        "        with pytest.raises(pytest.FixtureLookupError):\n            request.getfixturevalue(name)\n"
    )
    done = run_pytest("--strict-markers", "-W", "error", folder=tmp_path)
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout
    assert "refold:" not in done.stdout


def test_golden_traces_run_in_addition_to_selected_tests(example: Path, run_pytest: Pytest) -> None:
    (example / "tests").mkdir()
    (example / "tests" / "test_other.py").write_text("def test_other(): pass\n")
    (example / "traces").mkdir()
    (example / TRACE).rename(example / "traces" / TRACE)
    done = run_pytest("tests", "--refold-golden", "traces", "--strict-markers", "-W", "error", folder=example)
    assert "2 passed" in done.stdout, done.stdout
    only = run_pytest("--refold-golden", "traces", "-m", "refold_golden", "-n", "1", folder=example)
    assert "1 passed" in only.stdout, only.stdout


def test_option_confined_runs_agents_under_the_kernel(example: Path, run_pytest: Pytest) -> None:
    done = run_pytest("--refold-golden", ".", "--refold-confined", folder=example)
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout
    assert "refold: golden traces in " in done.stdout
    assert "; confined" in done.stdout
    agent = example / "new_agent.py"
    agent.write_text(f"{agent.read_text()}\nimport ctypes\nctypes.CDLL(None).socket(2, 1, 0)\n")
    held = run_pytest("--refold-golden", ".", "--refold-confined", folder=example)
    assert held.returncode == 1, held.stdout
    assert "2 failed" in held.stdout
    assert "tried to open a socket, start a process or reach into one, past Python, at" in held.stdout
    assert run_pytest("--refold-golden", ".", folder=example).returncode == 0
    (example / "test_golden.py").write_text(
        "from new_agent import answer\n\ndef test_x(golden, replay):\n    replay(golden['paid-four-times'], answer)\n"
        "\ndef test_y(golden, replay):\n    replay(golden['paid-four-times'], lambda run: None)\n"
    )
    agent.write_text(agent.read_text().replace("ctypes.CDLL", "# ctypes.CDLL"))
    named = run_pytest("--refold-golden", ".", "--refold-confined", folder=example)
    assert "1 failed, 2 passed" in named.stdout
    assert "at the top of a module or of a file" in named.stdout


def test_unusable_options_are_reported(example: Path, run_pytest: Pytest) -> None:
    absent = run_pytest("--refold-golden", "nowhere", folder=example)
    assert absent.returncode == pytest.ExitCode.USAGE_ERROR
    assert "no such folder" in absent.stderr
    path = example / TRACE
    path.write_text(path.read_text().replace('"price": 50', '"price": 49'))
    done = run_pytest("--refold-golden", ".", TRACE, folder=example)
    assert done.returncode == 1
    assert "refold golden sign" in done.stdout
    assert "Traceback" not in done.stdout


def test_example_is_signed_and_known_bad() -> None:
    golden = read(EXAMPLE / TRACE)
    assert golden.known_bad
    assert golden.entry == "new_agent:answer"
