"""Every finding with a remedy for it, from the failed run to the healed one. See limited_agent.py for the agent.

Each case names what the diagnosis finds first for the remedy, where the run continues, and what was paid in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import refold
from refold.agents.heal.apply import Healer, HealSetting
from refold.agents.heal.healings import Healing, healings
from refold.agents.heal.plan import HealPlan
from refold.avro.errors import InputError
from refold.heal import Diagnosis, Recording, RemedyChange, remedy
from refold_tests.child import Child
from refold_tests.limited_agent import Payer
from refold_tests.stuck_agent import drive

GUARD = 'guard = "policy.toml"'


class RemedyCase(NamedTuple):
    """fails: makes the run `r` fail. remedy: keys of the remedy. finding: the kind and the name that it is for. at: the
    step after which the run continues. mends: what changes before it is healed. is_resumed: whether the run itself goes
    on, and no continuation of it. paid: EUR. plan: keys of the plan. version: of the run that continues.
    function: of the agent. asked: how often models were asked for the proof and by the run that continues."""

    fails: Callable[[Payer], None]
    remedy: str
    finding: str
    at: int
    mends: Callable[[Payer], None] = lambda payer: None
    is_resumed: bool = False
    paid: int = 7
    plan: str = ""
    version: str = "1"
    function: str = "agent"
    asked: int = 0


@remedy("halve the price")
def halve(recording: Recording, diagnosis: Diagnosis) -> RemedyChange | None:
    return RemedyChange(state={"eur": 3}, at=2) if diagnosis.findings[0].kind == "error" else None


def departs(payer: Payer) -> None:
    """The model answers otherwise than in the golden trace."""
    payer.limits(5)
    payer.has("sober")
    payer.drive("good")
    payer.keeps("good", "good")
    payer.lacks("sober")
    payer.fails(limit=5)


CASES = {
    "an error: patch the state": RemedyCase(
        lambda payer: payer.fails(limit=5), 'do = "change"\nstate.limit = 10', "error builtins.ValueError", 3,
    ),
    "an error: drop a part of the state": RemedyCase(
        lambda payer: payer.fails(limit=5), 'do = "change"\ndrop = ["limit"]', "error builtins.ValueError", 3,
    ),
    "an error: a function of one's own": RemedyCase(
        lambda payer: payer.fails(limit=5), 'do = "function"\nfunction = "halve the price"',
        "error builtins.ValueError", 2, paid=3, asked=1,
    ),
    "an error: another function of the agent": RemedyCase(
        lambda payer: payer.fails(limit=5), 'do = "change"\nentry = "ENTRY:generous"', "error builtins.ValueError", 3,
        function="generous",
    ),
    "a tool: retry once it is up again": RemedyCase(
        lambda payer: payer.fails("down"), 'do = "retry"\non = ["tool"]\nmatch = "price"', "tool price", 1,
        is_resumed=True, asked=2, mends=lambda payer: payer.lacks("down"),
    ),
    "a tool: hand it to a person": RemedyCase(
        lambda payer: payer.fails("down"), 'do = "ask"\non = ["tool"]', "tool price", 1, is_resumed=True,
        asked=1, mends=lambda payer: payer.lacks("down"),
    ),
    "a loop: raise its limit": RemedyCase(
        lambda payer: payer.fails(policy="[loop]\nrepeats = 3", function="polls"), 'do = "limit"\nloop.repeats = 9',
        "loop status", 1, plan=GUARD, function="polls",
    ),
    "a budget: raise it": RemedyCase(
        lambda payer: payer.fails(policy="[budget]\ntool_calls = 1"), 'do = "limit"\nbudget.tool_calls = 5\n'
        'on = ["budget"]', "budget tool_calls", 3, is_resumed=True, plan=GUARD,
    ),
    "a denied call: other arguments": RemedyCase(
        lambda payer: payer.fails(policy='[[rule]]\nname = "large"\ntool = "pay"\nargs.eur.over = 5'),
        'do = "change"\nstate.eur = 5\non = ["denied"]\nmatch = "large"', "denied large", 3, paid=5,
        plan=GUARD,
    ),
    "a stale read: read it again": RemedyCase(
        lambda payer: payer.fails(limit=5), 'do = "refresh"', "stale_read tool_config/acme", 0, asked=1,
        mends=lambda payer: payer.limits(10),
    ),
    "a divergence from a golden trace: another model and version": RemedyCase(
        departs, 'do = "change"\non = ["divergence"]\narguments.model.model = "large"\nversion = "2"',
        "divergence good", 2, paid=4, asked=1, version="2", plan='golden = "golden"',
    ),
}  # fmt: skip


@pytest.fixture
def payer(tmp_path: Path) -> Iterator[Payer]:
    with refold.open(f"file:{tmp_path / 'log'}") as log:
        yield Payer(log, tmp_path / "agent")


def heal(payer: Payer, plan: str) -> list[Healing]:
    (payer.folder / "heal.toml").write_text(plan)
    return Healer(payer.log, HealPlan.load(payer.folder / "heal.toml"), HealSetting(drive, base=payer.folder)).apply(
        "r"
    )


def planned(case: RemedyCase, payer: Payer) -> str:
    keys = case.remedy.replace("ENTRY", str(payer.folder / "agent.py"))
    return f"""
{case.plan}
expect = ["outcome=succeeded", "pay=1"]
[[remedy]]
name = "x"
{keys}
answers.pay = "paid"
"""


def is_healed(payer: Payer, made: list[Healing], case: RemedyCase) -> None:
    assert [(each.status, each.failure, each.at_step) for each in made] == [("healed", case.finding, case.at)]
    [healed] = made
    assert healed.healed_by == ("r" if case.is_resumed else "r.1.continued")
    assert payer.paid("r") == [case.paid]
    for finding in healed.findings:
        assert finding["observations"]
        assert all(payer.log.port.find(bytes.fromhex(each)) for each in finding["observations"])
    run = payer.log.recording(healed.healed_by)
    assert (run.outcome, run.version) == ("succeeded", case.version)
    assert healed.input_tokens == 100 * case.asked
    entry = payer.log.state(f"run/{run.run}").fields["entry"]
    assert entry == payer.entry(case.function)
    assert payer.log.replay(run.run, entry).is_same


@pytest.mark.parametrize("name", CASES)
def test_remedy_heals_the_run(name: str, payer: Payer) -> None:
    case = CASES[name]
    case.fails(payer)
    assert payer.paid("r") == []
    case.mends(payer)
    made = heal(payer, planned(case, payer))
    if made[-1].status == "waiting":
        assert (made[-1].does, made[-1].proof, payer.paid("r")) == ("ask", "", [])
        payer.log.answer(made[-1].question, is_approved=True, by="ann")
        made = heal(payer, planned(case, payer))
    is_healed(payer, made, case)


def test_run_whose_process_was_killed_is_resumed(payer: Payer, child: Callable[..., Child]) -> None:
    payer.is_killed(child)
    kept = sum(step.is_committed for step in payer.log.recording("r").steps)
    case = RemedyCase(Payer.fails, 'do = "retry"\non = ["unfinished"]', "unfinished", kept, is_resumed=True, asked=2)
    is_healed(payer, heal(payer, planned(case, payer)), case)


def test_unknown_write_is_settled_by_a_person_first(payer: Payer) -> None:
    payer.fails("lost")
    [effect] = payer.log.effects.list(status="unknown")
    case = RemedyCase(Payer.fails, 'do = "retry"', "error x", 3)
    with pytest.raises(InputError, match=f"cannot be healed yet: .* refold effects settle {effect.key}"):
        heal(payer, planned(case, payer))
    assert (healings(payer.log), payer.paid("r")) == ([], [7])
    payer.log.effects.settle(effect.key, refold.Done("paid 7"), by="ann")
    [healed] = heal(payer, planned(case, payer))
    assert (healed.status, healed.healed_by, payer.paid("r")) == ("healed", "r", [7])
    assert payer.log.recording("r").output == "paid 7"


@pytest.mark.parametrize("is_approved", [True, False])
def test_open_question_of_a_policy_is_answered_first(is_approved: bool, payer: Payer) -> None:
    payer.fails(policy='[[rule]]\nname = "asks"\ntool = "pay"\naction = "ask"')
    [question] = payer.log.questions()
    case = RemedyCase(Payer.fails, 'do = "retry"', "error x", 3, plan=GUARD)
    with pytest.raises(InputError, match=f"cannot be healed yet: .* refold approve {question.id}"):
        heal(payer, planned(case, payer))
    assert (healings(payer.log), payer.paid("r")) == ([], [])
    payer.log.answer(question.id, is_approved=is_approved, by="ann")
    [made] = heal(payer, planned(case, payer))
    assert payer.log.questions() == []
    if is_approved:
        assert (made.status, made.healed_by, payer.paid("r")) == ("healed", "r", [7])
        return
    assert (made.status, payer.paid("r")) == ("failed", [])
    denied = case._replace(remedy='do = "change"\non = ["denied"]\nstate.eur = 0')
    [waits] = heal(payer, planned(denied, payer))
    assert (waits.failure, waits.status) == ("denied asks", "failed")
    [question] = payer.log.questions()  # the run that continues asks about its own call
    assert (question.run, question.arguments) == ("r.2.continued", {"eur": 0})
