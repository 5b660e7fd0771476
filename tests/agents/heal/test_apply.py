"""Healing: a remedy is proved on a copy, and only then the run continues with it. See stuck_agent.py for the agent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import refold
from refold.agents.golden.add import golden_of_run
from refold.agents.golden.file import write
from refold.agents.heal.apply import Healer
from refold.agents.heal.healings import Healing, healings
from refold.agents.heal.plan import HealPlan
from refold.agents.log import AgentLog
from refold.agents.recorder.log_backend import read_again
from refold.avro.errors import InputError
from refold.heal import Diagnosis, Recording, RemedyChange, remedy
from refold_tests.brokers import SharedKafka
from refold_tests.stuck_agent import PLAN, paid, placed, setting, stuck


@pytest.fixture
def log(tmp_path: Path) -> Iterator[AgentLog]:
    with refold.open(f"file:{tmp_path / 'log'}") as log:
        yield log


@pytest.fixture
def folder(log: AgentLog, tmp_path: Path) -> Path:
    """The agent's folder; the log has its run `r`, which its loop breaker stopped."""
    placed(tmp_path / "agent")
    stuck(log, tmp_path / "agent", "r")
    return tmp_path / "agent"


def heal(log: AgentLog, folder: Path, run: str = "r", plan: str = "") -> list[Healing]:
    if plan:
        (folder / "heal.toml").write_text(plan)
    return Healer(log, HealPlan.load(folder / "heal.toml"), setting(folder)).apply(run)


def is_healed_once(log: AgentLog, folder: Path, made: list[Healing]) -> None:
    assert [(each.remedy, each.status, each.at_step) for each in made] == [
        ("look again", "refuted", 2), ("tell it to stop", "healed", 2),
    ]  # fmt: skip
    healed = log.recording(made[-1].healed_by)
    assert (healed.outcome, healed.parent, healed.forked_at, healed.task) == ("succeeded", "r", 2, "r")
    assert [key.split(":")[0] for key in paid(folder)] == ["r"]
    [effect] = log.effects.list()
    assert (effect.status, effect.times_done, effect.run) == ("done", 1, healed.run)


def test_looping_agent_is_healed_and_pays_once(log: AgentLog, folder: Path) -> None:
    before = log.recording("r")
    diagnosis = Healer(log, HealPlan.load(folder / "heal.toml"), setting(folder)).diagnosis("r")
    first = diagnosis.findings[0]
    assert (diagnosis.failure, first.at, first.steps) == ("loop look", 2, ("r#2", "r#4", "r#6"))
    made = heal(log, folder)
    is_healed_once(log, folder, made)
    refuted, healed = made
    assert "outcome=succeeded" in refuted.reason
    assert {each["check"]: each["satisfied"] for each in healed.checks} == {"outcome=succeeded": True, "pay=1": True}
    assert (healed.input_tokens, healed.output_tokens) == (1000, 10)  # the run continues with the answer of the proof
    assert healed.cost_usd
    assert log.recording("r") == before
    [link] = log.state("run/r").links
    assert (link["relation"], link["target"]) == ("healed_by", f"run/{healed.healed_by}")


def test_healed_run_replays_without_the_plan(log: AgentLog, folder: Path) -> None:
    made = heal(log, folder)
    replayed = log.replay(made[-1].healed_by, setting(folder).entry)
    assert replayed.is_same
    assert len(paid(folder)) == 1


def test_second_apply_changes_nothing(log: AgentLog, folder: Path) -> None:
    made = heal(log, folder)
    with pytest.raises(InputError, match=f"was healed by .*: run {made[-1].healed_by} succeeded"):
        heal(log, folder)
    assert len(healings(log)) == 2
    assert len(paid(folder)) == 1


def test_causes_lead_from_every_action_to_the_failed_steps(log: AgentLog, folder: Path) -> None:
    healed = heal(log, folder)[-1]
    chain = log.state(f"healing/{healed.id}").why("status")
    said = [link.observation.patch["status"] for link in chain
            if link.observation is not None and link.observation.entity == f"healing/{healed.id}"]  # fmt: skip
    assert said == ["healed", "resuming", "proved", "begun"]
    entities = {link.observation.entity for link in chain if link.observation is not None}
    denial = next(each for each in entities if each.startswith("audit_event/r#8."))
    assert {f"run/{healed.proof}", f"run/{healed.healed_by}", "step/r#2", "step/r#4", "step/r#6", denial} <= entities


def test_remedy_that_fails_its_golden_trace_changes_only_the_fork(log: AgentLog, folder: Path) -> None:
    entry = setting(folder).entry
    # A golden trace that today's agent does not pass: it pays at once.
    good = log.recording(heal(log, folder)[-1].healed_by)
    golden = golden_of_run(
        good, lambda entity, answer: read_again(log, entity, answer).shown(), name="pays", entry=entry,
        expect=["outcome=succeeded"], must_fail="no code of today",
    )  # fmt: skip
    write(golden, folder / "golden")
    stuck(log, folder, "r2")
    before = everything(log, folder)
    plan = PLAN.replace('do = "retry"', 'do = "retry"\non = ["budget"]')
    (folder / "heal.toml").write_text('golden = "golden"\n' + plan)
    before["heal.toml"] = everything(log, folder)["heal.toml"]
    [refuted, stopped] = heal(log, folder, "r2")
    assert (refuted.status, refuted.healed_by, stopped.status) == ("refuted", "", "stopped")
    assert {each["check"]: each["satisfied"] for each in refuted.checks} == {
        "outcome=succeeded": True, "pay=1": True, "golden pays.golden.json": False,
    }  # fmt: skip
    after = everything(log, folder)
    assert {name: after.get(name) for name in before} == before
    new = {name for name in after if name not in before}
    assert f"run/{refuted.proof}" in new
    assert {name for name in new if not name.startswith((f"run/{refuted.proof}", f"step/{refuted.proof}#"))} == {
        "healing/r2.1", "healing/r2.2",
    }  # fmt: skip


def everything(log: AgentLog, folder: Path) -> dict[str, object]:
    """Return the hash of each entity of the log, and the bytes of each file of the agent."""
    view = log.rebuild()
    states = {entity: view[entity].state_hash for entity in view}
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return {**states, **{name: data for name, data in files.items() if "__pycache__" not in name}}


def test_attempts_are_limited_and_the_limit_is_reported_once(log: AgentLog, folder: Path) -> None:
    plan = "guard = 'policy.toml'\nattempts = 2\n" + "".join(
        f"[[remedy]]\nname = '{name}'\ndo = 'retry'\n" for name in "abc"
    )
    made = heal(log, folder, plan=plan)
    assert [(each.remedy, each.status) for each in made] == [("a", "refuted"), ("b", "refuted"), ("", "stopped")]
    assert made[-1].reason == "2 of 2 attempts for a run are used up"
    assert [each.status for each in heal(log, folder)] == ["stopped"]
    assert len(healings(log)) == 3


def test_attempts_of_an_agent_are_limited_per_hour(log: AgentLog, folder: Path) -> None:
    stuck(log, folder, "r2")
    plan = "guard = 'policy.toml'\nattempts_per_hour = 1\n[[remedy]]\nname = 'a'\ndo = 'retry'\n"
    assert [each.status for each in heal(log, folder, "r", plan)] == ["refuted", "stopped"]
    [stopped] = heal(log, folder, "r2")
    assert (stopped.status, stopped.run) == ("stopped", "r2")
    assert stopped.reason == "1 of 1 attempts within an hour are used up for payer"


def test_run_continues_only_after_approval(log: AgentLog, folder: Path) -> None:
    plan = PLAN.replace("answers.pay", "approve = true\nanswers.pay")
    waiting = heal(log, folder, plan=plan)[-1]
    assert (waiting.status, waiting.healed_by, paid(folder)) == ("waiting", "", [])
    [question] = log.questions()
    assert (question.id, question.tool, question.run) == (waiting.question, "heal", "r")
    assert [each.status for each in heal(log, folder)] == ["waiting"]
    log.answer(question.id, is_approved=True, by="ann")
    [healed] = heal(log, folder)
    assert (healed.id, healed.status, len(paid(folder))) == (waiting.id, "healed", 1)


def test_rejected_remedy_is_not_applied(log: AgentLog, folder: Path) -> None:
    plan = PLAN.replace("answers.pay", "approve = true\nanswers.pay")
    waiting = heal(log, folder, plan=plan)[-1]
    log.answer(waiting.question, is_approved=False, by="ann", reason="not at night")
    assert [each.status for each in heal(log, folder)] == ["rejected"]
    assert [(each.status, each.reason) for each in heal(log, folder)] == [
        ("stopped", "no remedy of the plan is left for what was found")
    ]
    assert paid(folder) == []


def test_unchanged_run_is_resumed_without_a_fork(log: AgentLog, tmp_path: Path) -> None:
    """A tool that is out of order for a while: the run is resumed after the step that it failed in."""
    folder = tmp_path / "agent"
    placed(folder)
    (folder / "agent.py").write_text("""
from pathlib import Path
import refold

@refold.tool
def look():
    if not Path(__file__).with_name("up").exists():
        raise ConnectionError("down")
    return 7

def agent(run):
    run.step("first", lambda: 1)
    return run.step("look", look)
""")
    entry = f"{folder / 'agent.py'}:agent"
    from refold.agents.entry import agent_of

    with pytest.raises(ConnectionError):
        log.run("looker", id="r", entry=entry).drive(agent_of(entry, folder))
    plan = "[[remedy]]\nname = 'later'\ndo = 'retry'\non = ['tool']\nmatch = 'look'\n"
    assert [each.status for each in heal(log, folder, plan=plan)] == ["refuted", "stopped"]
    (folder / "up").touch()
    (folder / "heal.toml").write_text(plan.replace("'later'", "'much later'"))
    [healed] = heal(log, folder)
    assert (healed.status, healed.healed_by, healed.at_step) == ("healed", "r", 1)
    assert log.recording("r").output == 7
    with pytest.raises(InputError, match="succeeded"):
        heal(log, folder)


def test_registered_function_is_a_remedy(log: AgentLog, folder: Path) -> None:
    seen = []

    @remedy("our own words")
    def ours(recording: Recording, diagnosis: Diagnosis) -> RemedyChange:
        seen.append((recording.run, diagnosis.failure))
        return RemedyChange(arguments={"chat": {"system": "stop"}})

    plan = (
        "guard = 'policy.toml'\n[[remedy]]\nname = 'a'\ndo = 'function'\nfunction = 'our own words'\nanswers.pay = 'x'"
    )
    [healed] = heal(log, folder, plan=plan)
    assert (healed.status, len(paid(folder))) == ("healed", 1)
    assert ("r", "loop look") in seen
    stuck(log, folder, "r2")
    with pytest.raises(InputError, match="no remedy is registered as 'no such'"):
        heal(log, folder, "r2", plan.replace("our own words", "no such"))


@pytest.mark.parametrize(("change", "said"), [
    pytest.param("", "was begun under the policy night: name its file", id="without its policy"),
])  # fmt: skip
def test_unhealable_run_reports_the_reason(log: AgentLog, folder: Path, change: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        heal(log, folder, plan=PLAN.replace('guard = "policy.toml"', change))
    with pytest.raises(InputError, match="is a fork"):
        heal(log, folder, heal(log, folder, plan=PLAN)[0].proof)


@pytest.mark.outside
def test_looping_agent_is_healed_on_kafka(kafka: SharedKafka, prefix: str, tmp_path: Path) -> None:
    placed(tmp_path)
    with refold.open(f"kafka://{kafka.bootstrap}/{prefix}") as log:
        stuck(log, tmp_path, "r")
        is_healed_once(log, tmp_path, heal(log, tmp_path))
