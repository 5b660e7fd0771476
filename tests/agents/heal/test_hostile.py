"""Plans and attempts of others: they import nothing, and lead to no run and no answer but the attempt's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import refold
from refold.agents.heal.apply import Healer
from refold.agents.heal.healings import healings
from refold.agents.heal.plan import HealPlan
from refold.agents.log import AgentLog
from refold.avro.errors import InputError
from refold.avro.shipped import shipped_types
from refold_tests.stuck_agent import PLAN, paid, placed, setting, stuck


@pytest.fixture
def log(tmp_path: Path) -> Iterator[AgentLog]:
    with refold.open(f"file:{tmp_path / 'log'}") as log:
        placed(tmp_path / "agent")
        stuck(log, tmp_path / "agent", "r")
        yield log


def healer(folder: Path, log: AgentLog, plan: str) -> Healer:
    (folder / "heal.toml").write_text(plan)
    return Healer(log, HealPlan.load(folder / "heal.toml"), setting(folder))


@pytest.mark.parametrize(("remedy", "said"), [
    ('do = "change"\nentry = "this:d"', "no module this is found from"),
    ('do = "change"\nentry = "../evil.py:run"', "no file ../evil.py is found from"),
    ('do = "function"\nfunction = "evil:run"', "no remedy is registered as 'evil:run'"),
])  # fmt: skip
def test_plan_names_no_code_of_others(remedy: str, said: str, log: AgentLog, tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'hacked')!r}, 'w')\n\ndef run(*_):\n    return None\n")
    runs = {row.run for row in log.runs()}
    healing = healer(tmp_path / "agent", log, f'guard = "policy.toml"\n[[remedy]]\nname = "a"\n{remedy}\n')
    with pytest.raises(InputError, match=said):
        healing.apply("r")
    assert not (tmp_path / "hacked").exists()
    assert ({row.run for row in log.runs()}, healings(log)) == (runs, [])


@pytest.mark.parametrize(("healing", "more"), [
    ("r.1", {"status": "resuming", "healed_by": "other"}), ("r.1", {"status": "proved", "proof": "other"}),
    ("r.1", {"status": "waiting", "question": "other#1.ab.1"}), ("r.9", {"status": "proved"}),
    ("r.1", {"status": "proved", "remedy": "delete everything"}),
])  # fmt: skip
def test_attempt_of_another_program_is_refused(
    healing: str, more: dict[str, str], log: AgentLog, tmp_path: Path
) -> None:
    """It names a run to resume or to read, a question that somebody answered, or a remedy that nobody declared."""
    folder = tmp_path / "agent"
    stuck(log, folder, "other")
    log.register(shipped_types()["healing"])
    forged = {"run": "r", "agent": "payer", "attempt": 1, "run_attempts": 1, "failure": "loop look",
              "remedy": "tell it to stop", "at_step": 2, "started_at": 1, **more}  # fmt: skip
    log.observe(f"healing/{healing}", forged)
    before = {row.run: (row.outcome, row.version) for row in log.runs()}
    with pytest.raises(InputError, match=r"refold did not record it|the plan no longer has"):
        healer(folder, log, PLAN).apply("r")
    assert {row.run: (row.outcome, row.version) for row in log.runs()} == before
    assert paid(folder) == []
