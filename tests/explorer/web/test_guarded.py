"""Who may request the explorer's pages, and recorded values that try to harm their reader."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import refold
from refold.explorer.cli.main import run as command
from refold.explorer.views.recorded_text import clipped, visible
from refold.explorer.web import runs_page
from refold.explorer.web.site import POLICY, SITE
from refold_tests.explored import Explored, Page, explored

pytestmark = pytest.mark.outside

TOKEN = "0123456789abcdef-secret"
SCRIPT = "\"><script>alert(1)</script><img src=x onerror=alert(1)>'{{7*7}}"
REVERSED = "\u202egpj.exe\u202c"
BROKEN = "half \ud83d of a pair"
ANSI = "\x1b[31mred\x07"
LONG = "long " * 1_000_000
HARMFUL = re.compile(
    r"<script(?! type=\"module\" src=\"/static/)|<img|onerror=(?!alert\(1\)&gt;)|\u202e|\x1b", re.IGNORECASE
)


def check(page: Page) -> None:
    """Check that no recorded value is markup or a control character, and that the policy forbids scripts within the
    page.
    """
    assert page.headers["Content-Security-Policy"] == POLICY
    # A form repeats the reader's input unchanged, so the values of its fields are checked only for markup.
    assert HARMFUL.findall(re.sub(r'value="[^"]*"', "", page.body)) == []
    assert not re.search(r'value="[^"]*<', page.body)
    assert not re.search(r"\son[a-z]+=", page.body.replace("onerror=alert", ""))
    assert 'style="' not in page.body
    assert "49" not in re.findall(r"onerror=alert\(1\)&gt;&#39;(..)", page.body)


def test_hostile_content_changes_nothing(tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'log'}"
    name = SCRIPT.replace("/", "_")

    @refold.tool(effect="read", name="tool.hostile")
    def tool(given: str) -> dict[str, str]:
        return {SCRIPT: REVERSED, "ansi": ANSI}

    def model(messages: list[dict[str, str]]) -> dict[str, object]:
        return {"choices": [{"message": {"role": "assistant", "content": SCRIPT + REVERSED}}]}

    def agent(run: refold.Run) -> str:
        with run.step(SCRIPT):
            tool(SCRIPT + ANSI)
            run.model(model, messages=[{"role": SCRIPT, "content": REVERSED}])
            run.decide(SCRIPT, why=REVERSED, options=[ANSI])
            run.state["long"] = LONG
            run.state["many"] = {f"key {number} {SCRIPT}": number for number in range(10_000)}
            run.state["run"] = run.id
        with run.step("fails"):
            raise ValueError(SCRIPT + REVERSED + ANSI)

    with refold.open(url) as log:
        log.observe(f"document/{name}", {"kind": SCRIPT + REVERSED, "fields": {SCRIPT: ANSI}}, source=SCRIPT)
        for run_id in ("hostile-1", "hostile-2"):
            with pytest.raises(ValueError, match="script"):
                log.run(SCRIPT, id=run_id, title=SCRIPT + REVERSED, user=SCRIPT, tags=[SCRIPT],
                        input={SCRIPT: ANSI}).drive(agent)  # fmt: skip
    run = "/run/hostile-1"
    with explored(url) as pages:
        for target in ("/", run, f"{run}?step=1", f"{run}?step=1&raw=1", "/story/hostile-1", "/entities?type=document",
                       "/entity/run/hostile-1", "/changes", "/diff?a=offset:0=0&b=now",
                       "/compare?a=hostile-1&b=hostile-2", "/compare?a=hostile-1"):  # fmt: skip
            page = pages.get(target)
            assert page.status == 200, page.text[:2000]
            check(page)
            assert "&lt;script&gt;" in page.body
            assert len(page.body) < 1_000_000
        first = pages.get("/run/hostile-1?step=1")
        assert "4,988,000 more characters" in first.text
        assert "\\u202e" in first.text
        (entity,) = re.findall(r'data-row href="([^"]+)"', pages.get("/entities?type=document").body)
        page = pages.get(entity.replace("&amp;", "&"))
        assert page.status == 200
        check(page)
        assert pages.ask("/api/steps/hostile-1?step=1").json[0]["calls"][0]["answer"]["ansi"] == ANSI


def test_invisible_characters_are_shown_as_escapes(pages: Explored) -> None:
    assert visible(BROKEN) == "half \\ud83d of a pair"
    assert visible(REVERSED + ANSI) == "\\u202egpj.exe\\u202c\\x1b[31mred\\x07"
    assert visible("naïve 日本 👩\u200d🔧\n\t") == "naïve 日本 👩\u200d🔧\n\t"
    assert clipped({"half": BROKEN}).text == '{\n  "half": "half \\ud83d of a pair"\n}'
    for target in ("/?text=%ED%A0%BD", "/run/%ED%A0%BD", "/entity/document/%ED%A0%BD%00", "/?text=%E2%80%AEx"):
        check(pages.get(target))


def test_broken_utf16_in_a_recorded_text_is_shown_as_an_escape(tmp_path: Path) -> None:
    """A log refuses half of a surrogate pair. A recorded text may contain JSON that has one, which pages parse."""
    url = f"file:{tmp_path / 'log'}"
    half = json.dumps({"text": BROKEN, BROKEN: 1})
    function = {"name": "look", "arguments": half}
    answer = {"choices": [{"message": {"role": "assistant", "tool_calls": [{"function": function}]}}]}
    asked = [{"role": "user", "content": half}, {"role": "tool", "name": "look", "content": half}]

    def agent(run: refold.Run) -> None:
        with run.step("one"):
            run.model(lambda messages: answer, messages=asked)
            run.state["messages"] = [*asked, answer["choices"][0]["message"]]
        with run.step("two"):
            raise ValueError(half)

    with refold.open(url) as log:
        with pytest.raises(refold.ValidationError, match="surrogate"):
            log.observe("document/a", {"kind": BROKEN}, source="a")
        for name in ("half-1", "half-2"):
            with pytest.raises(ValueError, match="half"):
                log.run("agent", id=name, input={"text": half}).drive(agent)
    shown = "half \\ud83d of a pair"
    with explored(url) as pages:
        for target in ("/", "/run/half-1", "/run/half-1?step=1", "/run/half-1?step=1&raw=1", "/story/half-1",
                       "/compare?a=half-1&b=half-2", "/entity/run/half-1", "/entity/step/half-1%231", "/changes",
                       "/?text=%5Cud83d", "/run/half-1?find=%ED%A0%BD"):  # fmt: skip
            page = pages.get(target)
            assert page.status == 200, page.text[:2000]
            check(page)
            assert "step=1" not in target or shown in page.text
        [step] = pages.ask("/api/steps/half-1?step=1").json
        assert step["calls"][0]["request"]["kwargs"]["messages"] == asked
    file = tmp_path / "run.html"
    assert command(["run", "export", "half-1", "--html", str(file), "--log", url, "--redact"]) == 0
    assert shown in file.read_text(encoding="utf-8")


def test_browser_gets_errors_as_pages_and_a_program_as_json(pages: Explored, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> bytes:
        raise ZeroDivisionError

    runs = pages.get("/").url
    monkeypatch.setattr(runs_page, "as_tree", broken)
    port = pages.url.rpartition(":")[2]
    browser = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    for method, target, headers, status, said in (
        ("GET", runs, {}, 500, "which is a defect"),
        ("POST", "/run/x", {}, 405, "pages only read"),
        ("GET", "/", {"Host": f"evil.example:{port}"}, 403, "not known as evil.example"),
        ("GET", "/", {"Origin": "https://evil.example"}, 403, "not for web sites"),
        ("GET", "/?" + "&".join(f"a{number}=1" for number in range(40)), {}, 400, "at most 32 fields"),
    ):
        shown = pages.ask(target, method, {**browser, **headers})
        assert (shown.status, shown.headers["Content-Type"]) == (status, "text/html; charset=utf-8")
        check(shown)
        assert said in shown.text
        assert "All runs" in shown.text
        # Another web site may read it.
        assert "file:" not in shown.body
        told = pages.ask(target, method, headers)
        assert (told.status, told.headers["Content-Type"]) == (status, "application/json")
        assert said in told.json["error"]
    for target in ("/api/nothing", "/live?" + "&".join(f"a{number}=1" for number in range(40))):
        assert pages.ask(target, headers=browser).json["error"]


def test_only_known_hosts_and_same_origin_pages_are_served(pages: Explored) -> None:
    port = pages.url.rpartition(":")[2]
    for target in ("/", "/api/runs", "/live", "/static/explorer.js"):
        assert pages.ask(target, headers={"Host": f"evil.example:{port}"}).status == 403
        assert pages.ask(target, headers={"Origin": "https://evil.example"}).status == 403
    assert pages.ask("/sign-in", "POST", {"Origin": "https://evil.example"}, b"token=x").status == 403


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_nothing_is_written(pages: Explored, method: str) -> None:
    for name in SITE:
        assert pages.ask(f"/{name}", method, content=b"x=1").status == 405
    assert pages.ask("/api/runs", method, content=b"{}").status == 405


def test_every_response_has_the_policy_and_loads_nothing_external(pages: Explored) -> None:
    for target in ("/", "/nothing", "/static/explorer.css", "/static/explorer.js", "/api/openapi.json"):
        page = pages.get(target)
        assert page.headers["Content-Security-Policy"] == POLICY
        assert page.headers["X-Content-Type-Options"] == "nosniff"
        assert re.findall(r"(?:src|href|action)=\"(?:https?:)?//|url\(|@import", page.body) == []
    assert "'unsafe" not in POLICY


def test_token_is_requested_once(incident_url: str) -> None:
    with explored(incident_url, TOKEN) as pages:
        for target in ("/", "/run/incident-1", "/operate", "/nothing"):
            page = pages.get(target)
            assert page.status == 401
            assert "needs the server&#39;s token" in page.body or "need the server's token" in page.text
            assert "kettle" not in page.body
        assert pages.ask("/api/runs").status == 401
        assert pages.ask("/live").status == 401
        assert pages.ask("/static/explorer.css").status == 200
        assert pages.get("/", {"Authorization": f"Bearer {TOKEN}"}).status == 200
        wrong = pages.ask("/sign-in", "POST", content=b"token=0123456789abcdef-wrong")
        assert wrong.status == 401
        assert "Set-Cookie" not in wrong.headers
        found = pages.ask("/sign-in", "POST", content=f"token={TOKEN}".encode())
        assert found.status == 303
        cookie = found.headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert TOKEN not in cookie
        known = {"Cookie": cookie.partition(";")[0]}
        assert "A leaking kettle" in pages.get("/", known).text
        assert pages.ask("/api/runs", headers=known).status == 200
        assert pages.get("/", {"Cookie": "refold_session=" + "x" * 43}).status == 401
