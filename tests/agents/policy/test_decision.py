"""What a policy file may contain, and how it decides."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from refold.agents.journal.record import Call, Failure, RecordedRequest
from refold.agents.policy.decision import decide
from refold.agents.policy.facts import RunFacts
from refold.agents.policy.registered import rule
from refold.agents.policy.rules import Policy
from refold.avro.errors import InputError

RULES = """
name = "desk"

[[rule]]
name = "small refunds"
tool = "refund"
args.eur.under = 10
action = "allow"

[[rule]]
name = "large refunds"
tool = "refund"
args.eur.over = 100
why = "A person decides on more than 100 EUR."

[[rule]]
name = "other shops"
tool = "ref*"
args.order.shop.none_of = ["here", "there"]

[[rule]]
name = "dear models"
model = "POST api.openai.com/*"
args.model.like = "gpt-9*"
"""


def tool(name: str = "refund", effect: Any = "write", **kwargs: Any) -> RecordedRequest:
    return RecordedRequest(kind="tool", name=name, request={"kwargs": kwargs}, effect=effect)


def denied_by(text: str, asked: RecordedRequest, facts: RunFacts | None = None) -> str | None:
    policy = Policy.parse(text)
    decision = decide(policy, facts or RunFacts(policy), asked)
    return decision.rule if decision is not None and decision.action == "deny" else None


@pytest.mark.parametrize(("asked", "rule"), [
    pytest.param(tool(eur=5), None, id="under"),
    pytest.param(tool(eur=50), None, id="between"),
    pytest.param(tool(eur=101), "large refunds", id="over"),
    pytest.param(tool(eur="101"), "large refunds", id="number as text"),
    pytest.param(tool(eur=[101]), "large refunds", id="incomparable counts against a deny"),
    pytest.param(tool(), None, id="no such argument"),
    pytest.param(tool(eur=5, order={"shop": "else"}), None, id="the first rule that matches decides"),
    pytest.param(tool(eur=50, order={"shop": "else"}), "other shops", id="within an argument"),
    pytest.param(tool(eur=50, order={"shop": "here"}), None, id="one of those"),
    pytest.param(tool("look", eur=500), None, id="another tool"),
    pytest.param(tool("refund", "write", eur=True), "large refunds", id="a boolean is no number"),
])  # fmt: skip
def test_rules_match_tools_by_name_and_arguments(asked: RecordedRequest, rule: str | None) -> None:
    assert denied_by(RULES, asked) == rule


def test_rules_match_the_json_of_an_exchange() -> None:
    def asked(model: str) -> RecordedRequest:
        request = {"exchange": 1, "method": "POST", "url": "https://api.openai.com/v1/responses",
                   "type": "application/json", "body": f'{{"model": "{model}"}}'}  # fmt: skip
        return RecordedRequest(kind="model", name="POST api.openai.com/v1/responses", request=request)

    assert denied_by(RULES, asked("gpt-9-large")) == "dear models"
    assert denied_by(RULES, asked("gpt-4")) is None


def test_reason_names_the_condition_but_no_value_of_the_call() -> None:
    policy = Policy.parse(RULES)
    other = decide(policy, RunFacts(policy), tool(eur=50, order={"shop": "secret-shop"}))
    large = decide(policy, RunFacts(policy), tool(eur=54321))
    assert other is not None
    assert other.why == "order.shop is none of ['here', 'there']"
    assert large is not None
    assert large.why == "A person decides on more than 100 EUR."


@pytest.mark.parametrize("text", [
    pytest.param("name =", id="no TOML"),
    pytest.param("name = " + "[" * 100_000, id="nested too deeply"),
    pytest.param("[budget]\ntokens = 5", id="no name"),
    pytest.param("name = 'a'\ntokens = 5", id="unknown key"),
    pytest.param("name = 'a'\n[budget]\ntoken = 5", id="unknown budget"),
    pytest.param("name = 'a'\n[budget]\ntokens = -5", id="negative budget"),
    pytest.param("name = 'a'\n[loop]\nrepeats = 1", id="a loop of one"),
    pytest.param("name = 'a'\n[loop]\nperiod_max = 0", id="no period"),
    pytest.param("name = 'a'\n[[rule]]\nname = 'r'", id="a rule about nothing"),
    pytest.param("name = 'a'\n[[rule]]\nname = 'r'\ntool = 'x'\nmodel = 'y'", id="a rule about two"),
    pytest.param("name = 'a'\n[[rule]]\nname = 'r'\ntool = 'x'\naction = 'maybe'", id="unknown action"),
    pytest.param("name = 'a'\n[[rule]]\nname = 'r'\ntool = 'x'\naction = 'ask'\nexpires_s = 0", id="no time to answer"),
    pytest.param("name = 'a'\n[[rule]]\nname = 'r'\ntool = 'x'\nargs.a.over = 'b'", id="a limit that is no number"),
    pytest.param("name = 'a'\n[[rule]]\nname = 'r'\ntool = 'x'\n[[rule]]\nname = 'r'\ntool = 'x'", id="one name twice"),
])  # fmt: skip
def test_invalid_policy_file_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"my\.toml"):
        Policy.parse(text, "my.toml")


@pytest.mark.parametrize("content", [
    pytest.param(b"name = 'a'\n" + b"#" * (1 << 20), id="too long"), pytest.param(b"name = '\xff'", id="no text"),
])  # fmt: skip
def test_unreadable_file_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "my.toml"
    path.write_bytes(content)
    for each in (path, tmp_path / "none.toml", "\0"):
        with pytest.raises(InputError, match=r"the policy .* cannot be read"):
            Policy.load(each)


def test_budgets_are_reached_but_not_exceeded() -> None:
    text = "name = 'b'\n[budget]\ntool_calls = 2\nwrite_calls = 1\ntokens = 10\ntime_s = 2.0"
    policy = Policy.parse(text)
    facts = RunFacts(policy, started_at=1_000_000)
    model = RecordedRequest(kind="model", name="chat", request={"kwargs": {}})
    assert denied_by(text, tool(), facts) is None
    facts.begin(tool(), "r#1")
    assert denied_by(text, tool(), facts) == "budget.write_calls"
    assert denied_by(text, tool(effect="read"), facts) is None
    facts.begin(tool(effect="read"), "r#1")
    assert denied_by(text, tool(effect="read"), facts) == "budget.tool_calls"
    assert denied_by(text, model, facts) is None
    said = Call(asked=model, answer={"usage": {"input_tokens": 8, "output_tokens": 2}}, started_at=1_500_000)
    facts.end(said, "r#2")
    assert denied_by(text, model, facts) == "budget.tokens"
    assert denied_by("name = 'b'\n[budget]\ntime_s = 2.0", tool(), facts) is None
    facts.end(Call(asked=tool(), started_at=2_900_000, duration_ms=100), "r#2")
    assert denied_by("name = 'b'\n[budget]\ntime_s = 2.0", tool(), facts) == "budget.time_s"


def test_money_budget_counts_models_with_a_price() -> None:
    text = "name = 'b'\n[budget]\ncost_usd = 0.001"
    facts = RunFacts(Policy.parse(text))
    model = RecordedRequest(kind="model", name="chat", request={"kwargs": {}})

    def answered(name: str, tokens: int) -> None:
        usage = {"model": name, "usage": {"prompt_tokens": tokens, "completion_tokens": 0}}
        facts.end(Call(asked=model, answer=usage), "r#1")

    assert denied_by(text, model, facts) is None
    answered("gpt-4o-mini", 1_000)
    assert 0 < facts.cost_usd < 0.001
    assert denied_by(text, model, facts) is None
    answered("gpt-4o-mini", 100_000)
    assert denied_by(text, model, facts) == "budget.cost_usd"
    assert denied_by(text, tool(), facts) is None


def test_model_without_a_price_exhausts_a_money_budget() -> None:
    text = "name = 'b'\n[budget]\ncost_usd = 100.0"
    policy = Policy.parse(text)
    facts = RunFacts(policy)
    model = RecordedRequest(kind="model", name="chat", request={"kwargs": {}})
    usage = {"prompt_tokens": 1, "completion_tokens": 0}
    facts.end(Call(asked=model, answer={"model": "nobody-knows", "usage": usage}), "r#1")
    decision = decide(policy, facts, model)
    assert decision is not None
    assert "the model nobody-knows has no price" in decision.why


def ended(facts: RunFacts, names: str, results: str = "") -> None:
    for place, name in enumerate(names):
        answer = results[place] if results else "same"
        facts.end(Call(asked=tool(name), answer=answer), f"r#{place + 1}")


LOOP = "name = 'l'\n[loop]\nrepeats = 3\nexcept = ['wait*']"


@pytest.mark.parametrize(("calls", "results", "next_call", "is_denied"), [
    pytest.param("AAA", "", "A", True, id="A A A"),
    pytest.param("AA", "", "A", False, id="two are none"),
    pytest.param("AAA", "xyz", "A", False, id="polling that makes progress"),
    pytest.param("AAAA", "xxxy", "A", False, id="a new result ends it"),
    pytest.param("AAA", "", "B", False, id="another call"),
    pytest.param("ABABAB", "", "A", True, id="A B A B"),
    pytest.param("ABABAB", "", "B", False, id="A B A B, and not the next"),
    pytest.param("ABABA", "", "B", False, id="not three times"),
    pytest.param("XABCABCABC", "", "A", True, id="A B C, after something else"),
    pytest.param("ABCABCABCD", "", "A", False, id="something new ends it"),
    pytest.param("ABABAB", "121314", "A", False, id="one of the circle makes progress"),
])  # fmt: skip
def test_breaker_also_compares_results(calls: str, results: str, next_call: str, is_denied: bool) -> None:
    facts = RunFacts(Policy.parse(LOOP))
    ended(facts, calls, results)
    assert (denied_by(LOOP, tool(next_call), facts) == "loop") is is_denied


def test_equal_failures_are_a_loop_and_excepted_tools_are_not() -> None:
    facts = RunFacts(Policy.parse(LOOP))
    for name in ("A", "wait_a"):
        for _ in range(3):
            facts.end(Call(asked=tool(name), failure=Failure(exception="builtins.OSError", message="gone")), "r#7")
        assert (denied_by(LOOP, tool(name), facts) == "loop") is (name == "A")


def test_denial_of_the_breaker_names_the_steps_of_the_loop() -> None:
    policy = Policy.parse(LOOP)
    facts = RunFacts(policy)
    ended(facts, "XABABAB")
    decision = decide(policy, facts, tool("A"))
    assert decision is not None
    assert decision.evidence == tuple(f"r#{number}" for number in range(2, 8))


def test_long_run_finds_its_loops_in_bounded_memory() -> None:
    facts = RunFacts(Policy.parse(LOOP))
    ended(facts, "AB" * 5000, "".join(chr(place) for place in range(0x4E00, 0x4E00 + 10_000)))
    assert denied_by(LOOP, tool("A"), facts) is None
    ended(facts, "ABABAB")
    assert denied_by(LOOP, tool("A"), facts) == "loop"


def test_function_rule_must_be_registered() -> None:
    text = "name = 'f'\n[[rule]]\nname = 'late'\nfunction = 'test: late writes'"
    with pytest.raises(InputError, match="no rule is registered"):
        denied_by(text, tool())

    @rule("test: late writes")
    def late(facts: RunFacts, asked: RecordedRequest) -> str | None:
        return "late" if asked.effect == "write" and facts.calls >= 1 else None

    facts = RunFacts(Policy.parse(text))
    assert denied_by(text, tool(), facts) is None
    facts.begin(tool(), "r#1")
    assert denied_by(text, tool(), facts) == "late"
    assert denied_by(text, tool(effect="read"), facts) is None
    with pytest.raises(InputError, match="two rules"):
        rule("test: late writes")(lambda facts, asked: None)


BUSY = """
name = "busy"
[[rule]]
name = "large"
tool = "tool-*"
args.eur.over = 1_000_000
[budget]
calls = 1_000_000
[loop]
repeats = 3
period_max = 8
"""


def test_decision_takes_less_than_a_millisecond_at_p99_in_a_run_of_10_000_steps() -> None:
    policy = Policy.parse(BUSY)
    facts = RunFacts(policy, 1)
    took = []
    for number in range(10_000):
        arguments = {"kwargs": {"eur": number}}
        asked = RecordedRequest(kind="tool", name=f"tool-{number % 5}", request=arguments)
        began = time.thread_time_ns()
        assert decide(policy, facts, asked) is None
        facts.begin(asked, f"r#{number}")
        took.append(time.thread_time_ns() - began)
        facts.end(Call(asked=asked, answer=number // 3, started_at=number + 1), f"r#{number}")
    assert sorted(took)[9_900] < 1_000_000, "nanoseconds of the thread's CPU"
