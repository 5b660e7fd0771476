"""A recorded run is replayed over a git history: the first commit that differs is named, and nothing is changed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import refold
from refold.agents.bisect.bisect import TIMEOUT_S, bisect
from refold.agents.bisect.repository import Repository
from refold.agents.entry import agent_of
from refold.agents.golden.add import portable
from refold.agents.golden.file import Golden, write
from refold.agents.journal.record import Recording
from refold.agents.log import open_log
from refold.agents.recorder.log_backend import read_again
from refold.agents.recordings.values import with_values
from refold_tests.code_histories import History
from refold_tests.command import environment, refold_command
from refold_tests.refusing import REFUSING

pytestmark = pytest.mark.outside

ENTRY = "refunds:agent"
AGENT = """
from prices import fee

def ask(**question):
    return {"late": True}

def agent(run):
    with run.step("look"):
        order = run.read("document/order-7").fields["fields"]
        found = run.model(ask, order=order["id"])
    with run.step("refund"):
        run.decide("refund" if found["late"] else "keep", why="it is late")
        run.state["amount"] = order["total"] - fee(order)
        run.model(ask, amount=run.state["amount"])
    return run.state["amount"]
"""
HIDING = """
from refold.agents.redaction.redactor import Redactor

standard = Redactor()

def hide(tree):
    if isinstance(tree, dict):
        return {key: hide(value) for key, value in tree.items()}
    return [hide(each) for each in tree] if isinstance(tree, list) else "hidden" if tree == 49.5 else tree
"""
PRICES = "def fee(order):\n    return 1\n"
WRONG = "def fee(order):\n    return 2\n"


class Scene:
    """A history of twelve commits, and a run recorded with the first. `log` holds it; `golden` is a file of it."""

    def __init__(self, folder: Path) -> None:
        self.history = build_history(folder / "code")
        self.folder = self.history.folder / "support"
        self.log = f"file:{folder / 'log'}"
        self.history.git("checkout", "--quiet", self.history.ids["first"])
        with open_log(self.log) as log:
            log.observe("document/order-7", {"fields": {"id": "of mia@example.org", "total": 50.5}})
            agent = agent_of("refunds.py:agent", self.folder)
            with log.run("refunder", id="run-7", entry=ENTRY) as run:
                run.output = agent(run)
            log.flush()
            recording = log.recording("run-7")
            self.alone: Recording = with_values(
                recording, lambda entity, answer: read_again(log, entity, answer).shown()
            )
        self.golden = write(Golden(name="refund", entry=ENTRY, run=portable(self.alone)), folder)
        self.history.git("checkout", "--quiet", "main")

    def __getitem__(self, subject: str) -> str:
        return self.history.ids[subject]


def build_history(folder: Path) -> History:
    history = History(folder)
    history.commit("first", {"support/refunds.py": AGENT, "support/prices.py": PRICES, "README": "1"})
    history.commit("readme", {"README": "2"})
    history.commit("a comment", {"support/refunds.py": f"# refunds\n{AGENT}"})
    history.commit("half done", {"support/prices.py": "def fee(order:\n"})
    history.commit("done", {"support/prices.py": PRICES + "# done\n"})
    history.git("checkout", "--quiet", "-b", "side")
    history.commit("aside", {"NOTES": "1"})
    history.commit("fees are two", {"support/prices.py": WRONG})
    history.git("checkout", "--quiet", "main")
    history.commit("on main", {"README": "3"})
    history.merge("merge side", "side")
    history.commit("lost", {"support/prices.py": "import nowhere_to_be_found\n"})
    history.commit("found again", {"support/prices.py": WRONG + "# again\n"})
    history.commit("head", {"README": "4"})
    return history


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return Scene(tmp_path_factory.mktemp("bisect"))


def test_first_commit_that_diverges_is_named(scene: Scene) -> None:
    (scene.folder / "prices.py").write_text("this is no code, and not committed")
    (scene.folder / "new.py").write_text("nor added")
    before = scene.history.standing()
    done = refold_command(
        "bisect", "run-7", "--good", scene["first"][:10], "--bad", "main", "--repo", scene.folder, "--json",
        log=scene.log,
    )  # fmt: skip
    assert scene.history.standing() == before
    found = done.json
    scene.history.git("checkout", "--quiet", "--", ".")
    (scene.folder / "new.py").unlink()
    assert done.status == 0
    assert found["first_bad"] == {"commit": scene["fees are two"], "subject": "fees are two"}
    assert (found["step"], found["divergence"]["what"]) == (2, "arguments")
    assert found["divergence"]["differences"] == [{"path": "kwargs.amount", "op": "set", "a": 49.5, "b": 48.5}]
    statuses = {each["subject"]: each["status"] for each in found["tested"]}
    assert statuses["head"] == "parted"
    assert statuses["first"] == "same"
    assert found["divergence"]["also"] == []
    assert len(found["tested"]) < 9  # it halves, and does not test one by one


def test_golden_trace_is_bisected_without_its_log(scene: Scene) -> None:
    done = refold_command(
        "bisect", scene.golden, "--good", scene["aside"], "--bad", scene["merge side"], "--repo", scene.folder
    )
    assert done.status == 0, done.err
    assert f"first bad commit: {scene['fees are two']}  fees are two" in done.out
    assert "first divergence at step 2: other arguments" in done.out
    assert f"{scene['merge side'][:12]}  differs at step 2" in done.out


REACHING = """
import ctypes

def fee(order):
    ctypes.CDLL(None).socket(2, 1, 0)
    return 1
"""
WRITING = """
import contextlib, pathlib

def fee(order):
    with contextlib.suppress(BaseException):
        pathlib.Path(__file__).with_name("made").write_text("x")
    return 1
"""


def test_commit_that_opens_a_connection_diverges_when_confined(scene: Scene) -> None:
    history = scene.history
    history.git("checkout", "--quiet", "-b", "reaching", scene["readme"])
    history.commit("as before", {"README": "5"})
    history.commit("reaches", {"support/prices.py": REACHING})
    history.commit("still reaches", {"README": "6"})
    history.git("checkout", "--quiet", "-b", "writing", scene["as before"])
    history.commit("writes", {"support/prices.py": WRITING})
    history.git("checkout", "--quiet", "main")
    words = ["bisect", "run-7", "--good", scene["first"], "--bad", "reaching", "--repo", scene.folder, "--json"]
    found = refold_command(*words, "--confined", log=scene.log)
    assert found.status == 0, found.err
    assert found.json["first_bad"]["subject"] == "reaches"
    assert "past Python" in found.json["lines"][0]
    assert "prices.py:5 in fee" in found.json["lines"][0]
    assert {each["status"] for each in found.json["tested"]} == {"same", "parted"}
    words[words.index("reaching")] = "writing"
    found = refold_command(*words, "--confined", log=scene.log)
    assert found.status == 0, found.err
    assert found.json["first_bad"]["subject"] == "writes"
    assert "tried to change the file" in found.json["lines"][0]
    plain = refold_command(
        "bisect", "run-7", "--good", scene["first"], "--bad", "main", "--repo", scene.folder, "--json", "--confined",
        log=scene.log,
    )  # fmt: skip
    assert plain.json["first_bad"]["subject"] == "fees are two"


def test_nothing_runs_where_the_kernel_cannot_confine(scene: Scene) -> None:
    words = ["bisect", "run-7", "--good", scene["first"], "--bad", "main", "--repo", str(scene.folder), "--confined"]
    done = subprocess.run(
        [sys.executable, "-P", "-c", REFUSING, *words, "--log", scene.log],
        env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, ""), done.stdout + done.stderr
    assert "cannot be confined here: seccomp failed" in done.stderr


def test_commits_that_cannot_be_replayed_are_skipped(scene: Scene) -> None:
    history = scene.history
    history.git("checkout", "--quiet", "-b", "broken", scene["readme"])
    history.commit("broken one", {"support/prices.py": "def fee(order:\n"})
    history.commit("broken two", {"support/prices.py": "raise RuntimeError('half done')\n"})
    history.commit("wrong now", {"support/prices.py": WRONG})
    history.git("checkout", "--quiet", "main")
    told: list[tuple[str, str]] = []
    found = bisect(
        scene.alone, ENTRY, Repository(scene.folder), scene["readme"], "broken",
        tested=lambda commit, finding: told.append((commit.subject, finding.status)),
    )  # fmt: skip
    assert found.first_bad is None
    assert found.suspects[0].subject == "wrong now"
    assert {each.subject for each in found.suspects} == {"broken one", "broken two", "wrong now"}
    assert found.finding.step == 2
    assert dict(told) == {
        "wrong now": "parted", "readme": "same", "broken one": "unusable", "broken two": "unusable"}  # fmt: skip
    reasons = {commit.subject: each.lines[0] for commit, each in found.tested if each.status == "unusable"}
    assert reasons["broken one"].startswith("SyntaxError")
    assert reasons["broken two"] == "RuntimeError: half done"


def test_endpoints_that_are_not_good_and_bad_are_refused(scene: Scene, tmp_path: Path) -> None:
    def refused(good: str, bad: str, timeout_s: float = TIMEOUT_S) -> str:
        with pytest.raises(refold.InputError) as error:
            bisect(scene.alone, ENTRY, Repository(scene.folder), good, bad, timeout_s=timeout_s)
        return str(error.value)

    assert "is not an ancestor of" in refused("main", scene["first"])
    assert "parts from the recording already" in refused(scene["merge side"], "main")
    assert "does what was recorded" in refused(scene["first"], scene["readme"])
    assert "cannot be replayed: SyntaxError" in refused(scene["first"], scene["half done"])
    assert "not done after 0.01 s (--timeout)" in refused(scene["first"], "main", timeout_s=0.01)
    assert "no such commit" in refused("nowhere", "main")
    said = refold_command("bisect", scene.golden, "--good", "a", "--bad", "b", "--repo", tmp_path).refused()
    assert "not a git repository" in said


def test_commit_that_exits_its_process_is_skipped(scene: Scene) -> None:
    history = scene.history
    history.git("checkout", "--quiet", "-b", "ending", scene["first"])
    ending = AGENT.replace("def agent(run):", "def agent(run):\n    import os\n    os._exit(3)")
    history.commit("ends", {"support/refunds.py": ending})
    history.commit("wrong", {"support/refunds.py": AGENT, "support/prices.py": WRONG})
    history.git("checkout", "--quiet", "main")
    found = bisect(scene.alone, ENTRY, Repository(scene.folder), scene["first"], "ending")
    assert {each.subject for each in found.suspects} == {"ends", "wrong"}
    ended = next(finding for commit, finding in found.tested if commit.subject == "ends")
    assert (ended.status, ended.lines[0]) == ("unusable", "its process ended with 3")


def test_redacted_run_is_replayed_through_the_redactor(scene: Scene) -> None:
    history = scene.history
    history.git("checkout", "--quiet", "-b", "redacted", scene["first"])
    base = history.commit("hides", {"support/hiding.py": HIDING})
    hide = agent_of("hiding.py:hide", scene.folder, "redactor")
    with open_log(scene.log) as log:
        with log.run("refunder", id="run-8", entry=ENTRY, redact=hide) as run:
            run.output = agent_of("refunds.py:agent", scene.folder)(run)
        standard = agent_of("hiding.py:standard", scene.folder, "redactor")
        with log.run("refunder", id="run-9", entry=ENTRY, redact=standard) as run:
            run.output = agent_of("refunds.py:agent", scene.folder)(run)
        assert "mia@example.org" not in str(log.recording("run-9"))
    history.commit("wrong again", {"support/prices.py": WRONG})
    history.git("checkout", "--quiet", "main")
    given = ["bisect", "run-8", "--good", base, "--bad", "redacted", "--repo", scene.folder]
    assert "parts from the recording already" in refold_command(*given, "--json", log=scene.log).refused()
    found = refold_command(*given, "--redact", "hiding:hide", "--json", log=scene.log).json
    assert found["first_bad"]["subject"] == "wrong again"
    assert found["divergence"]["differences"] == [{"path": "kwargs.amount", "op": "set", "a": "hidden", "b": 48.5}]
    keyed = ["bisect", "run-9", *given[2:], "--redact", "hiding:standard", "--json"]
    assert refold_command(*keyed, log=scene.log).json["first_bad"]["subject"] == "wrong again"


def test_run_without_code_is_refused(scene: Scene) -> None:
    with open_log(scene.log) as log:
        log.observe("run/told", {"agent": "a", "imported_from": "chat", "step_count": 0, "session": "told"})
        log.observe("agent_session/told", {"agent": "a"})
    said = refold_command("bisect", "told", "--good", "a", "--bad", "b", "--agent", ENTRY, log=scene.log).refused()
    assert "there is no code to run against it" in said
    with pytest.raises(refold.InputError, match="no such commit"):
        Repository(scene.folder).commit("nowhere")


DELEGATING = """
from prices import fee

def ask(**question):
    return {"late": True}

def clerk(run):
    with run.step("look"):
        order = run.read("document/order-7").fields["fields"]
    with run.step("refund"):
        run.state["amount"] = order["total"] - fee(order)
        run.model(ask, amount=run.state["amount"])
    return run.state["amount"]

def agent(run):
    with run.step("delegate"):
        run.child("clerk", input=run.input).drive(clerk)
"""


def test_commit_where_a_nested_run_diverges_is_named(tmp_path: Path) -> None:
    """One commit requests what is not recorded, the other gets another result. Both are found in the nested run."""
    history = History(tmp_path / "code")
    history.commit("first", {"refunds.py": DELEGATING, "prices.py": PRICES})
    history.commit("readme", {"README": "1"})
    with open_log(f"file:{tmp_path / 'log'}") as log:
        log.observe("document/order-7", {"fields": {"id": "7", "total": 50.5}})
        agent = agent_of("refunds.py:agent", history.folder)
        with log.run("refunder", id="run-8", input=7, entry=ENTRY) as run:
            agent(run)
        log.flush()
        alone = with_values(log.recording("run-8"), lambda entity, answer: read_again(log, entity, answer).shown())
    changed = DELEGATING.replace('return run.state["amount"]', "return 0")
    parted = {"asks": ({"prices.py": WRONG}, "arguments", 2), "ends": ({"refunds.py": changed}, "output", None)}
    for name, (files, what, step) in parted.items():
        history.git("checkout", "--quiet", "-b", name, history.ids["readme"])
        history.commit(name, files)
        history.commit(f"after {name}", {"README": "2"})
        found = bisect(alone, ENTRY, Repository(history.folder), history.ids["first"], name)
        assert found.first_bad is not None
        assert (found.first_bad.subject, found.finding.step) == (name, 1)
        divergence = found.finding.divergence
        assert (divergence["what"], divergence["also"]) == ("run", [])
        assert (divergence["within"]["what"], divergence["within"]["step"]) == (what, step)
        assert divergence["why"] == divergence["within"]["why"] != "answered"
        assert "in a run within:" in found.finding.lines
