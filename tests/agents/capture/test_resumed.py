"""A capture that continues from the log: answered requests are not made again, and the rest becomes forks."""

from __future__ import annotations

import signal
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import pytest

import refold
from refold.agents.capture.capture import Capture
from refold.agents.capture.resumed import resuming
from refold.agents.capture.sessions import RESUMED_TAG
from refold.agents.journal.record import Recording
from refold.agents.policy.rules import NO_BUDGET, Policy, RunBudget
from refold_tests.captured_program import Talk, settings_of
from refold_tests.child import children
from refold_tests.model_server import ModelServer, Reply, model_server

pytestmark = pytest.mark.outside


@pytest.fixture(scope="module")
def provider() -> Iterator[ModelServer]:
    with model_server() as server:
        yield server


@pytest.fixture
def server(provider: ModelServer) -> ModelServer:
    provider.reset()
    provider.mind = lambda body: Reply([f"answer {len(provider.requests)}"])
    return provider


def captured(folder: Path, server: ModelServer, *texts: str, budget: RunBudget = NO_BUDGET) -> list[str]:
    """Capture one life of a program that says these texts, under the id `job`; return the answers."""
    given = settings_of(folder, folder / "spool", policy=Policy("budget", budget=budget))
    capture = Capture(resuming(given, "job", 60), {"": server.url})
    try:
        talk = Talk(capture.url)
        return [talk.ask(each) for each in texts]
    finally:
        capture.close(60)


def recordings(folder: Path) -> list[Recording]:
    """Return the runs of the log, oldest first."""
    with refold.open(f"file:{folder}/log") as log:
        return [log.recording(row.run) for row in reversed(log.runs())]


def test_second_life_pays_only_what_is_new_in_a_fork(tmp_path: Path, server: ModelServer) -> None:
    assert captured(tmp_path, server, "one", "two") == ["answer 1", "answer 2"]
    assert captured(tmp_path, server, "one", "two", "three") == ["answer 1", "answer 2", "answer 3"]
    assert captured(tmp_path, server, "one", "two", "three", "four")[3] == "answer 4"
    first, second, third = recordings(tmp_path)
    assert (first.run, first.parent, len(first.steps)) == ("job", "", 2)
    assert (second.parent, second.forked_at, len(second.steps)) == ("job", 2, 3)
    assert (third.parent, third.forked_at, len(third.steps)) == (second.run, 3, 4)
    assert {each.tags for each in (first, second, third)} == {(f"{RESUMED_TAG}job",)}
    resumed = second.metadata["capture"]["resumed"]
    assert (resumed["run"], resumed["answered"]) == ("job", 2)
    assert "is not in the recording" in resumed["forwarded"]


def test_program_with_a_state_of_its_own_differs_at_once(tmp_path: Path, server: ModelServer) -> None:
    captured(tmp_path, server, "one")
    assert captured(tmp_path, server, "uno") == ["answer 2"]
    first, second = recordings(tmp_path)
    assert (second.parent, second.forked_at) == (first.run, 0)
    assert second.metadata["capture"]["resumed"]["answered"] == 0


def test_failed_answer_is_asked_for_again_and_what_follows_is_still_answered(
    tmp_path: Path, server: ModelServer
) -> None:  # fmt: skip
    server.failing = 1
    with pytest.raises(urllib.error.HTTPError):
        captured(tmp_path, server, "one")
    captured(tmp_path, server, "other")
    assert captured(tmp_path, server, "one") == ["answer 3"]
    assert captured(tmp_path, server, "other") == ["answer 2"]
    assert len(server.requests) == 3


def test_budget_counts_what_earlier_lives_used(tmp_path: Path, server: ModelServer) -> None:
    bound = RunBudget(model_calls=2)
    captured(tmp_path, server, "one", budget=bound)
    captured(tmp_path, server, "one", "two", budget=bound)
    with pytest.raises(urllib.error.HTTPError, match="403"):
        captured(tmp_path, server, "one", "two", "three", budget=bound)
    assert len(server.requests) == 2


def killed_capture(folder: Path, server: ModelServer, spool: str) -> None:
    """Capture a life whose process is killed after its first answer."""
    with children() as start:
        child = start("from refold_tests.captured_program import main; main()", folder, server.url, folder / spool)
        assert child.end() == -signal.SIGKILL


@pytest.mark.parametrize("spool", ["spool", "spool of another machine"])
def test_killed_capture_is_resumed_on_any_machine(tmp_path: Path, server: ModelServer, spool: str) -> None:
    killed_capture(tmp_path, server, spool)
    assert captured(tmp_path, server, "one", "two") == ["answer 1", "answer 2"]
    first, second = recordings(tmp_path)
    assert (first.run, first.outcome) == ("job", "succeeded"), "it has an end"
    assert (second.parent, second.forked_at) == ("job", 1)
