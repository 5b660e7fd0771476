"""The explorer's actions: each writes what its command writes, and they exist only with --write."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

import refold
from refold.agents.effects.errors import EffectUnknown
from refold.agents.supervise.entries import AgentEntries, OwnedEntries
from refold.agents.supervise.lease import ObservedState
from refold.agents.supervise.settings import AgentSettings
from refold.policy import ApprovalNeeded, Policy
from refold_tests.explored import Explored, Page, explored

TOKEN = "0123456789abcdef-secret"
ASKING = """
name = "desk"
[[rule]]
name = "large refunds"
tool = "desk.refund"
args.eur.over = 100
action = "ask"
"""


@refold.tool(effect="write", name="desk.refund")
def refund(eur: int) -> dict[str, int]:
    """Refund an amount, with an unknown result."""
    raise TimeoutError(f"no answer about {eur} EUR")


def agent(run: refold.Run) -> None:
    """An agent whose refund gets no answer, or needs a person's approval."""
    with run.step("pay"):
        refund(run.input["eur"])


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A log with an effect of unknown status, and two calls that wait for a person."""
    found = f"file:{tmp_path_factory.mktemp('acted') / 'log'}"
    with refold.open(found) as log:
        with pytest.raises(EffectUnknown):
            log.run("desk", id="unknown-1", input={"eur": 5}).drive(agent)
        for name in ("asked-1", "asked-2"):
            with pytest.raises(ApprovalNeeded):
                log.run("desk", id=name, input={"eur": 500}, guard=Policy.parse(ASKING)).drive(agent)
    return found


@pytest.fixture(scope="module")
def writable(url: str) -> Iterator[Explored]:
    """The pages of that log, with actions."""
    with explored(url, can_write=True) as found:
        yield found


def posted(pages: Explored, name: str, headers: dict[str, str] | None = None, /, **fields: str) -> Page:
    """Post a form; return the response."""
    return pages.ask(f"/do/{name}", "POST", headers, urlencode(fields).encode())


def test_an_agent_is_shown_and_told_what_to_do(writable: Explored, url: str) -> None:
    assert "no agent was supervised in this log" in writable.get("/agents").text
    assert posted(writable, "agent", agent="desk", desired="paused", back="/agents").status == 400
    with refold.open(url) as log:
        entries = AgentEntries(log, lambda: time.time_ns() // 1000)
        mine = OwnedEntries(log, lambda: time.time_ns() // 1000, "desk", "token", "ann@host/7", 3_600_000)
        mine.claim(entries.read("desk"))
        mine.granted(entries.read("desk"), AgentSettings(command=("x",)))
        mine.status(
            entries.read("desk"), ObservedState("running", "its process runs", "unknown-1", 1, pid=99, host="h")
        )
    text = writable.get("/agents").text
    for shown in ("desk", "● running", "its process runs", "99 on h", "ann@host/7", "unknown-1"):
        assert shown in text, shown
    assert posted(writable, "agent", agent="desk", desired="gone", back="/agents").status == 400
    done = posted(writable, "agent", agent="desk", desired="paused", reason="prices change", back="/agents")
    assert (done.status, done.headers["Location"]) == (303, "/agents")
    with refold.open(url, read_only=True) as log:
        fields = log.state("agent/desk").fields
        assert (fields["desired"], fields["desired_why"], fields["status"]) == ("paused", "prices change", "running")


def test_point_in_time_is_marked(writable: Explored, url: str) -> None:
    done = posted(writable, "mark", name="deploy-2", back="/operate")
    assert (done.status, done.headers["Location"]) == (303, "/operate")
    assert "@deploy-2" in writable.get("/operate").text
    with refold.open(url, read_only=True) as log:
        assert log.point("@deploy-2").cut.records > 0
    again = posted(writable, "mark", name="deploy-2")
    assert again.status == 400
    assert "deploy-2" in again.text


def test_run_is_flagged_pinned_and_released(writable: Explored, url: str) -> None:
    page = writable.get("/run/unknown-1")
    done = posted(writable, "flag", run="unknown-1", reason="paid twice", back=page.url)
    assert (done.status, done.headers["Location"]) == (303, "/run/unknown-1")
    posted(writable, "pin", run="unknown-1")
    text = writable.get("/run/unknown-1").text
    assert "⚑ flagged" in text
    assert "pinned" in text
    with refold.open(url, read_only=True) as log:
        fields = log.state("run/unknown-1").fields
        assert (fields["flagged"], fields["pinned"]) == (True, True)
        assert log.vault.open("run/unknown-1", "flag_reason", fields["flag_reason"]) == "paid twice"
    posted(writable, "flag", run="unknown-1", take_back="1")
    posted(writable, "pin", run="unknown-1", take_back="1")
    with refold.open(url, read_only=True) as log:
        fields = log.state("run/unknown-1").fields
        assert (fields["flagged"], fields["pinned"]) == (False, False)


def test_unknown_effect_is_settled_once(writable: Explored, url: str) -> None:
    with refold.open(url, read_only=True) as log:
        [effect] = log.effects.list(status="unknown")
    given = {"effect": effect.key, "fate": "done", "result": '{"eur": 5}', "note": "in the bank's list"}
    assert posted(writable, "settle", **{**given, "fate": "perhaps"}).status == 400
    assert posted(writable, "settle", **{**given, "result": ""}).status == 400
    assert posted(writable, "settle", **given, back="/operate").status == 303
    with refold.open(url, read_only=True) as log:
        assert log.effects.effect(effect.key).status == "done"
    assert posted(writable, "settle", **given).status == 400
    assert "of every write that was sent it is known" in writable.get("/operate").text


def test_approval_request_is_answered(writable: Explored, url: str) -> None:
    with refold.open(url, read_only=True) as log:
        first, second = (each.id for each in log.questions())
    assert "Waiting for a person Call" in writable.get("/operate").text
    assert posted(writable, "approve", question=first).status == 303
    assert posted(writable, "deny", question=second, reason="the parcel is lost").status == 303
    assert posted(writable, "deny", question=first).status == 400
    with refold.open(url, read_only=True) as log:
        answers = {each.id: each.approval for each in log.questions(all_too=True)}
        assert log.questions() == []
    assert (answers[first].decision, answers[second].decision) == ("approved", "rejected")
    assert answers[second].reason == "the parcel is lost"


def test_invalid_action_form_is_refused_and_writes_nothing(writable: Explored, url: str) -> None:
    with refold.open(url, read_only=True) as log:
        before = log.point(None).cut
    assert posted(writable, "erase").status == 400
    assert posted(writable, "flag", run="nobody").status == 404
    assert posted(writable, "mark").status == 400
    assert posted(writable, "mark", name="x" * 70_000).status == 400
    for back in ("https://evil.example/", "//evil.example/", "/\\evil.example/", "javascript:alert(1)"):
        assert posted(writable, "mark", name="away", back=back).status == 400
    assert writable.ask("/do/mark").status == 405
    foreign = {"Origin": "https://evil.example"}
    assert posted(writable, "mark", foreign, name="foreign").status == 403
    assert posted(writable, "mark", {"Origin": "null"}, name="foreign").status == 403
    with refold.open(url, read_only=True) as log:
        assert log.point(None).cut == before


def test_read_only_explorer_has_no_actions(url: str) -> None:
    with explored(url) as pages:
        refused = posted(pages, "mark", name="nothing")
        assert refused.status == 405
        assert "--write" in refused.body
        for target in ("/operate", "/run/unknown-1"):
            assert "/do/" not in pages.get(target).body


def test_unauthenticated_user_writes_nothing(url: str) -> None:
    with explored(url, TOKEN, can_write=True) as pages:
        assert posted(pages, "mark", name="nothing").status == 401
        assert posted(pages, "mark", {"Authorization": f"Bearer {TOKEN}"}, name="by-token").status == 303


def test_action_is_appended_through_the_owner_in_another_process(tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'log'}"
    with refold.open(url) as owner:
        owner.observe("document/one", {"kind": "text"})
        owner.flush()
        with explored(url, can_write=True) as pages:
            assert posted(pages, "mark", name="beside").status == 303
        assert owner.point("@beside").cut.records == 1
