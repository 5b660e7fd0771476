"""The explorer's pages: their content, their addresses, and the commands below them."""

from __future__ import annotations

import html
import json
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.agents.log import AgentLog
from refold.agents.retention import classes
from refold.explorer.cli.main import run
from refold.explorer.demo.desk import RUN
from refold.explorer.web.limits import PageLimits
from refold_tests.command import COMMAND
from refold_tests.explored import CONFIG, FORK, READER, Explored, explored
from refold_tests.waiting import await_true

pytestmark = pytest.mark.outside

ADDRESSES = {
    "runs": "/",
    "runs-found": "/?outcome=failed&text=kettle",
    "run": f"/run/{RUN}",
    "step": f"/run/{RUN}?step=2&scale=time",
    "raw": f"/run/{RUN}?step=2&raw=1",
    "reader": f"/run/{READER}?step=2",
    "story": f"/story/{RUN}",
    "entities": "/entities?type=tool_config",
    "entity": f"/entity/{CONFIG}",
    "entity-then": f"/entity/{CONFIG}?at=v1&field=rate_limit",
    "entity-true": f"/entity/{CONFIG}?clock=true",
    "entity-read": f"/entity/{CONFIG}?clock=read",
    "compare": f"/compare?a={RUN}&b={FORK}",
    "diff": f"/diff?a=@deploy-1&b=now&entity={CONFIG}",
    "operate": "/operate?verify=1&plan=1",
    "healings": "/healings",
    "diff-all": "/diff?a=@deploy-1&b=now",
    "changes": "/changes",
    "agents": "/agents",
}


def printed(command: list[str], out: str) -> Any:
    """Return the answer that a command printed. `tail` prints one change per line, because it can follow the log."""
    return [json.loads(line) for line in out.splitlines()] if command[0] == "tail" else json.loads(out)


def texts(tree: Any) -> Iterator[str]:
    """Yield each text and number of an answer as a page shows it. Times and long values are left out: pages reformat
    them.
    """
    if isinstance(tree, dict):
        for each in tree.values():
            yield from texts(each)
    elif isinstance(tree, list):
        for each in tree:
            yield from texts(each)
    elif isinstance(tree, bool) or tree is None:
        return
    elif isinstance(tree, int):
        yield str(tree)
    elif isinstance(tree, str) and 0 < len(tree) <= 60 and "\n" not in tree:
        yield " ".join(tree.split())


@pytest.mark.parametrize("name", ADDRESSES)
def test_address_opens_the_same_page_again(pages: Explored, name: str) -> None:
    page = pages.get(ADDRESSES[name])
    assert page.status == 200, page.text
    again = pages.get(page.url)
    assert again.url == page.url
    if name == "healings":  # it has no cut
        assert again.body == page.body
    elif name not in ("operate", "agents"):  # these show the present: a clock, the free disk space, leases
        assert "cut%3A1." in page.url
        assert again.body == page.body


@pytest.mark.parametrize("name", ADDRESSES)
def test_each_command_shown_on_a_page_works(pages: Explored, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    page = pages.get(ADDRESSES[name])
    assert page.commands
    for command in page.commands:
        status = run([*command, "--json"])
        out, err = capsys.readouterr()
        assert status in (0, 1), err
        assert printed(command, out) is not None


# What a page shows of its first command's answer: for each page, the position in the answer.
SHOWN: dict[str, Any] = {
    "runs": lambda rows: [[each["run"], each["agent"], each["version"], each["steps"]] for each in rows],
    "runs-found": lambda rows: [[each["run"], each["title"]] for each in rows],
    "run": lambda found: [found[each] for each in ("run", "agent", "user", "title")] + [found["failure"]["message"]],
    "reader": lambda found: [found["run"], found["steps"], found["children"][0]["run"]],
    "story": lambda found: [found["agent"], found["failure"]["message"]],
    "entities": lambda found: [found["entities"]],
    "entity": lambda found: [found["version"], found["state_hash"],
                             *([name, each["value"]] for name, each in found["fields"].items())],
    "entity-then": lambda found: [found["state_hash"], *(each["value"] for each in found["fields"].values())],
    "compare": lambda found: [found["a"]["run"], found["b"]["run"],
                              [[each["path"], each["a"], each["b"]] for each in found["divergence"]["differences"]]],
    "diff": lambda rows: [[each["field"], each["old"], each["new"]] for each in rows],
    "operate": lambda found: [each["subject"] for each in found["findings"]],
    "changes": lambda found: [[row["entity"], row["field"], row["source"]["agent"]]
                              for each in found for row in each["mutations"]],
}  # fmt: skip


@pytest.mark.parametrize("name", SHOWN)
def test_page_shows_the_values_of_its_command(pages: Explored, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    page = pages.get(ADDRESSES[name])
    run([*page.commands[0], "--json"])
    answer = printed(page.commands[0], capsys.readouterr().out)
    expected = list(texts(SHOWN[name](answer)))
    assert expected
    assert [each for each in expected if each not in page.text] == []


def test_step_shows_the_output_of_its_command(pages: Explored, capsys: pytest.CaptureFixture[str]) -> None:
    for number in (1, 2, 3, 4):
        page = pages.get(f"/run/{RUN}?step={number}")
        run([*page.commands[1], "--json"])
        (step,) = json.loads(capsys.readouterr().out)
        shown = [step["name"], step["decision"], step["rationale"], step["hash"]]
        for call in step["calls"]:
            shown += [call["name"], call["request"], call["answer"], (call["failure"] or {}).get("message")]
        expected = list(texts(shown))
        assert [each for each in expected if each not in page.text] == []
        assert (page.text.count("failed") > 0) is True


def test_run_opens_at_its_failure(pages: Explored) -> None:
    page = pages.get(f"/run/{RUN}")
    assert "Step 4 pay" in page.text
    assert 'aria-current="step" class="failed"' in page.body
    assert "Step 1 look-up" in pages.get(f"/run/{FORK}").text


def test_agents_read_is_stale_after_the_overwrite(pages: Explored) -> None:
    before, after = (pages.get(f"/run/{READER}?step={number}").text for number in (1, 2))
    assert CONFIG in before
    assert "⚠ stale" not in before
    assert "⚠ stale" in after
    assert "rate_limit : it knew 50 , the log had 500" in after


def test_forks_and_child_runs_are_a_tree(pages: Explored) -> None:
    page = pages.get("/")
    places = [page.body.index(f"/run/{each}?") for each in (RUN, FORK, READER, "helper-1")]
    assert places[0] < places[1]
    assert places[2] < places[3]
    assert page.body.count('class="depth-1"') == 2
    assert f"within {READER}, step 2" in page.text


def test_filters_are_those_of_the_command(pages: Explored) -> None:
    assert "1 run " in pages.get("/?tool=mail.send").text
    assert "1 run " in pages.get(f"/?parent={RUN}").text
    assert "No run matches" in pages.get("/?agent=nobody").text
    assert "since" in pages.get("/?since=yesterday").text
    assert pages.get("/?since=yesterday").status == 400


def test_slider_has_a_stop_for_each_version_and_the_deploy_between(pages: Explored) -> None:
    page = pages.get(f"/entity/{CONFIG}?at=v1")
    assert page.body.count('class="moment') == 2
    assert "@deploy-1" in page.text
    assert "v1" in page.text
    found = re.search(r'rel="next"[^>]*href="([^"]+)"', page.body)
    assert found is not None
    following = pages.get(found[1].replace("&amp;", "&"))
    assert "rate_limit" in following.text
    assert "500" in following.text.split("History")[0]


def test_reads_of_an_entity_are_stops(pages: Explored) -> None:
    page = pages.get(f"/entity/{CONFIG}?clock=read")
    assert f"v1, read by reader in step 1 of {READER}" in page.body


def test_reads_are_looked_for_in_the_newest_records_first(pages: Explored, incident_url: str) -> None:
    whole = pages.get(f"/entity/{CONFIG}?clock=read")
    assert "earlier ones were not searched" not in whole.text
    limits = PageLimits(records_searched=1, partition_records_min=1)
    with explored(incident_url, limits=limits) as short:
        page = short.get(f"/entity/{CONFIG}?clock=read")
        assert "No agent recorded in the newest 8 records that it read this entity." in page.text
        for _ in range(5):
            [more] = re.findall(r'href="([^"]*)">Search 4 times as many', page.body) or [""]
            if not more:
                break
            page = short.get(html.unescape(more))
            assert short.get(page.url).body == page.body
        assert f"v1, read by reader in step 1 of {READER}" in page.body
        assert "not searched" not in page.text


def test_search_of_runs_reads_some_steps_and_says_so(incident_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with explored(incident_url, limits=PageLimits(steps_searched=1)) as pages:
        page = pages.get("/?text=kettle")
        assert "No run that was searched matches" in page.text
        found = []
        for _ in range(4):
            assert run([*page.commands[0], "--json"]) == 0
            answer = json.loads(capsys.readouterr().out)
            assert [each["run"] for each in answer if each["run"] not in page.text] == []
            found.append(len(answer))
            [more] = re.findall(r'href="([^"]*)">search 4 times as many', page.body) or [""]
            if not more:
                break
            page = pages.get(html.unescape(more))
        assert (found[0], found[-1]) == (0, 2)
        assert "not searched" not in page.text


def test_long_list_of_runs_continues(incident_url: str) -> None:
    with explored(incident_url, limits=PageLimits(runs_listed=1, runs_more=2)) as pages:
        page = pages.get("/")
        assert "1 run , the newest; 3 older ones are not shown" in " ".join(page.text.split()).replace("run,", "run ,")
        [more] = re.findall(r'href="([^"]*)">show 2 more', page.body)
        assert "3 runs" in pages.get(html.unescape(more)).text


def test_page_shows_newer_records_only_after_a_reload(tmp_path: Any) -> None:
    url = f"file:{tmp_path / 'log'}"
    with refold.open(url) as log:
        log.observe("document/a", {"fields": {"title": "one"}}, source="writer")
        log.flush()
        with explored(url) as pages:
            first = pages.get("/entity/document/a")
            log.observe("document/a", {"fields": {"title": "two"}}, source="writer")
            log.flush()
            assert pages.get(first.url).body == first.body
            newest = pages.get("/entity/document/a")
    assert "two" not in first.text
    assert "two" in newest.text


@pytest.mark.parametrize(
    ("target", "status", "says"),
    [
        ("/run/nobody", 404, "no run nobody"),
        ("/entity/document/nobody", 404, "document/nobody"),
        ("/entity/document", 400, "TYPE/ID"),
        ("/nothing", 404, "no such page"),
        (f"/run/{RUN}?step=99", 400, "no step 99"),
        (f"/run/{RUN}?step=x", 400, "whole number"),
        (f"/run/{RUN}?at=@nowhere", 400, "nowhere"),
        (f"/run/{RUN}?at=cut:1.zzz", 400, "cut"),
        ("/entity/document/a?clock=x", 400, "clock"),
        (f"/compare?a={RUN}&b=nobody", 404, "nobody"),
    ],
    ids=["run", "entity", "half", "page", "step", "number", "marker", "cut", "clock", "compare"],
)
def test_unavailable_content_is_reported(pages: Explored, target: str, status: int, says: str) -> None:
    page = pages.get(target)
    assert says in page.text
    assert page.status == status
    assert "All runs" in page.text


def test_operators_see_snapshots_and_what_has_expired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"file:{tmp_path / 'log'}"
    with refold.open(url) as log:
        with log.run("desk", id="old", input={"order": 7}):
            pass
        log.snapshot()
    with explored(url) as pages:
        text = pages.get("/operate").text
        assert re.search(r"\d+ sealed epochs?, with [\d,]+ bytes", text)
        assert "It reads every run." in text
        assert "No content has expired." in pages.get("/operate?plan=1").text
        monkeypatch.setattr(classes, "DAYS", {**classes.DAYS, "success": 0})
        planned = pages.get("/operate?plan=1").text
    assert "The content of 1 run has expired" in planned
    assert "old success" in planned


def test_command_serves_until_interrupted(incident_url: str) -> None:
    command = [*COMMAND, "explore", "--log", incident_url, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said, _, url = process.stdout.readline().strip().partition(" ")
        assert said == "explore"
        assert "A leaking kettle" in Explored(url.rstrip("/")).get("/").text
        process.send_signal(signal.SIGINT)
    assert process.returncode == 130


def test_command_needs_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explore", "--log", f"file:{tmp_path / 'none'}", "--port", "0"]) == 2
    assert "there is no log here" in capsys.readouterr().err


def test_long_run_is_read_in_parts(
    pages: Explored, incident_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = pages.get(f"/run/{RUN}?step=3")
    with explored(incident_url, limits=PageLimits(steps_loaded=3, steps_around=1)) as parts:
        monkeypatch.setattr(AgentLog, "recording", None)
        assert "Step 4 pay" in parts.get(f"/run/{RUN}").text  # it opens at the failure
        page = parts.get(f"/run/{RUN}?step=3")
        assert "4 steps: these are 2 to 4." in page.text
        assert "cents" in page.text
        assert "1998" in page.text
        assert "The whole state" in whole.text
        assert "The whole state" not in page.text
        assert parts.get(page.url).body == page.body
        rows = parts.get(f"/run/{RUN}?step=2&part=steps")
        assert "part=steps" not in rows.body
        assert [int(each) for each in re.findall(r'class="number">(\d+)<', rows.body)] == [1, 2, 3]
        assert parts.get(f"/run/{RUN}?step=5").status == 400
        answers = []
        for command in page.commands[1:]:
            assert run([*command, "--json"]) == 0
            answers.append(json.loads(capsys.readouterr().out))
        assert [each["step"] for each in answers[0]] == [3]
        assert answers[1]["reads"] == []
        monkeypatch.undo()
        assert "The whole state" in parts.get(f"/run/{RUN}?step=3&whole=1").text


MODEL_ANSWER = {
    "model": "gpt-4o-2024-08-06",
    "choices": [{"finish_reason": "tool_calls", "message": {"role": "assistant", "content": "so"}}],
    "usage": {"prompt_tokens": 1203, "completion_tokens": 44},
}


def test_active_run_opens_at_its_last_step_with_the_models_context(tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'log'}"
    said = [{"role": "user", "content": f"message {number}"} for number in range(4)]
    deep = {"role": "tool", "name": "search", "content": "[" * 5000 + "]" * 5000}
    found = {"role": "tool", "name": "look", "content": '{"price": "19.99"}'}
    with refold.open(url) as log, explored(url) as pages:
        with log.run("asks", id="asks-1") as going:
            with going.step("first"):
                going.model(lambda messages: MODEL_ANSWER, messages=said)
            with going.step("second"):
                going.model(lambda messages: MODEL_ANSWER, messages=[*said, deep, found])
            await_true(lambda: "Step 2 second" in pages.get("/run/asks-1").text)
            page = pages.get("/run/asks-1")
        first = pages.get("/run/asks-1?step=1")
    assert "4 messages before that" in page.text
    assert page.text.index("message 3") < page.text.index("result of search") < page.text.index("result of look")
    assert '"price": "19.99"' in page.text
    assert "gpt-4o" in page.text
    assert "1,203 tokens in · 44 out · tool calls" in page.text
    assert "before that" not in first.text


def test_step_without_a_recorder_shows_its_observations(tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'log'}"
    with refold.open(url) as log:
        log.observe("run/seen-1", {"agent": "a"}, source="a")
        log.observe("step/seen-1#1", {"run": "seen-1", "position": 1, "decision": "load the plan",
                                      "output": {"planned": 50}}, source="a")  # fmt: skip
        log.observe("action/seen-1#1.1", {"tool": "fetch"}, source="a")
        log.observe("action/other#1.1", {"tool": "fetch"}, source="a")
        log.link("run/seen-1", "has_step", "step/seen-1#1", source="a")
        log.link("run/seen-1", "of", "document/plan", valid_from=1_700_000_000_000_000, source="a")
        log.flush()
    with explored(url) as pages:
        page = pages.get("/run/seen-1")
        [actions_at] = re.findall(r'href="([^"]*)">its actions in this step<', page.body)
        actions = pages.get(html.unescape(actions_at))
        as_entity = pages.get("/entity/run/seen-1")
    assert page.text.count("load the plan") == 2
    assert '"planned": 50' in page.text
    assert "seen-1#1.1" in actions.text
    assert "other#1.1" not in actions.text
    assert "has_step step/seen-1#1" in as_entity.text
    assert "of document/plan from 2023-11-14" in as_entity.text
