"""The progress of long commands if standard error is not a terminal. The test controls the clock."""

from __future__ import annotations

import pytest

from refold.explorer.cli.main import run
from refold.explorer.cli.output import progress
from refold.explorer.cli.output.progress import LINE_EVERY_S, reading


class Clock:
    """A clock that advances by a fixed step on each reading."""

    def __init__(self, step_s: float) -> None:
        self.now_s, self.step_s = 0.0, step_s

    def monotonic(self) -> float:
        self.now_s += self.step_s
        return self.now_s


def test_progress_line_is_printed_every_few_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "time", Clock(LINE_EVERY_S / 2))
    with reading("Verifying", "records", lines=True) as reached:
        for _ in range(4):
            reached(1000, 9000)
    said = ["refold: Verifying: 2,000 of 9,000 records", "refold: Verifying: 4,000 of 9,000 records"]
    assert capsys.readouterr().err.splitlines() == said
    with reading("Verifying", "records") as reached:
        reached(1000, 9000)
    assert capsys.readouterr().err == ""


def test_verify_prints_progress_in_a_pipe_but_not_with_json(
    log_path: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(3):
        assert run(["observe", "tool_config/acme", f"rate_limit={number}"]) == 0
    capsys.readouterr()
    monkeypatch.setattr(progress, "time", Clock(LINE_EVERY_S))
    assert run(["verify"]) == 0
    assert capsys.readouterr().err.splitlines()[-1] == "refold: Verifying: 3 of 3 records"
    assert run(["verify", "--json"]) == 0
    assert capsys.readouterr().err == ""
