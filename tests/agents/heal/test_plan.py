"""What a plan may contain."""

from __future__ import annotations

from pathlib import Path

import pytest

from refold.agents.heal.diagnosis import Diagnosis, RunFinding
from refold.agents.heal.plan import DEFAULT, DeclaredRemedy, HealPlan
from refold.avro.errors import InputError


def parsed(text: str, folder: Path) -> HealPlan:
    (folder / "heal.toml").write_text(text)
    return HealPlan.load(folder / "heal.toml")


@pytest.mark.parametrize(("text", "said"), [
    pytest.param("attempts = 0", "attempts and attempts_per_hour are 1 or more", id="attempts"),
    pytest.param("remedies = []", "unknown field", id="a misspelled key"),
    pytest.param("[[remedy]]\nname = 'a'\ndo = 'pray'", "Invalid enum value", id="an unknown remedy"),
    pytest.param("[[remedy]]\nname = 'a'\ndo = 'change'", "which needs one of: state, drop", id="a change of nothing"),
    pytest.param("[[remedy]]\nname = 'a'\ndo = 'retry'\nstate.x = 1", "state belongs to do = 'change'", id="stray"),
    pytest.param("[[remedy]]\nname = 'a'\ndo = 'retry'\non = ['hunger']", "on is a list of", id="an unknown finding"),
    pytest.param("[[remedy]]\nname = 'a'\ndo = 'retry'\non = ['question']", "on is a list of", id="a question"),
    pytest.param("[[remedy]]\nname = 'a'\ndo = 'retry'\n[[remedy]]\nname = 'a'\ndo = 'ask'", "two remedies", id="name"),
    pytest.param("expect = ['exact']", "expect anything but exact", id="exact"),
    pytest.param("expect = ['outcome']", "no comparison", id="no expectation"),
    pytest.param("attempts = ", "is no TOML", id="no TOML"),
])  # fmt: skip
def test_invalid_plan_file_is_refused(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said):
        parsed(text, tmp_path)


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    plan = parsed("golden = 'golden'\nguard = 'policy.toml'", tmp_path)
    assert (plan.golden, plan.guard) == (str(tmp_path / "golden"), str(tmp_path / "policy.toml"))


def test_raised_limit_must_be_in_the_policy(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text("name = 'p'\n[budget]\ntool_calls = 5\ntokens = 9\n[loop]\nrepeats = 3")
    plan = parsed("guard = 'policy.toml'\n[[remedy]]\nname = 'more'\ndo = 'limit'\nbudget.tool_calls = 50", tmp_path)
    policy = plan.policy(plan.remedy[0])
    assert policy is not None
    assert (policy.budget.tool_calls, policy.budget.tokens, policy.loop and policy.loop.repeats) == (50, 9, 3)
    with pytest.raises(InputError, match="name the policy's file with guard"):
        HealPlan().policy(DeclaredRemedy("more", "limit", budget={"tool_calls": 50}))


def test_remedy_applies_to_its_findings_only() -> None:
    def finding(kind: str, name: str) -> RunFinding:
        return RunFinding(kind, name, "", 0)  # type: ignore[arg-type]

    found = Diagnosis("r", "a", "failed", (finding("question", "q"), finding("loop", "fetch"), finding("error", "E")))
    assert DeclaredRemedy("a", "retry", ["error"]).finding(found) == found.findings[2]
    assert DeclaredRemedy("a", "retry", ["loop"], "fetch*").finding(found) == found.findings[1]
    assert DeclaredRemedy("a", "retry", ["loop"], "read*").finding(found) is None
    assert DeclaredRemedy("a", "retry").finding(found) == found.findings[1]
    assert DeclaredRemedy("a", "refresh").finding(found) is None
    assert [each.name for each in DEFAULT.remedy if each.finding(found)] == ["retry", "hand it to a person"]
