"""What belongs to a run is a link away, and so is what an id within a value names; the list of runs has their cost."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from html import unescape

import pytest

import refold
from refold.avro.shipped import shipped_types
from refold.explorer.web.limits import PageLimits
from refold.explorer.web.value_links import LOOKED_UP_MAX, ValueLinks
from refold_tests.explored import Explored, explored

pytestmark = pytest.mark.outside

JUDGED, OTHER = "judged-1", "other-1"
ANSWER = {"model": "gpt-4o", "choices": [{"message": {"role": "assistant", "content": "so"}}],
          "usage": {"prompt_tokens": 1_000_000, "completion_tokens": 0}}  # fmt: skip


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A log with a run whose state names entities and runs, its evaluations and an attempt to heal it."""
    url = f"file:{tmp_path_factory.mktemp('linked') / 'log'}"
    with refold.open(url) as log:
        log.register(shipped_types()["healing"])
        log.observe("document/plan-7", {"kind": "plan"}, source="a")

        def work(run: refold.Run) -> None:
            with run.step("only"):
                run.state["names"] = {"doc": "see document/plan-7, document/none", "run": OTHER, OTHER: "no/type"}
                run.model(lambda messages: ANSWER, messages=[])

        for name in (OTHER, JUDGED):
            log.run("agent", id=name).drive(work)
        verdict = {"name": "within-limits", "subject": f"run/{JUDGED}", "score": 0.75, "score_max": 1.0,
                   "threshold": 0.95, "passed": False, "evaluator": "judge"}  # fmt: skip
        log.observe("evaluation/one", verdict, source="judge")
        log.observe("evaluation/two", {"run": JUDGED, "name": "polite", "passed": True}, source="judge")
        log.observe("evaluation/of-another", {"run": OTHER, "name": "polite", "passed": True}, source="judge")
        log.observe("healing/x.1", {"run": JUDGED, "attempt": 1, "status": "healed", "healed_by": OTHER}, source="heal")
        log.observe("healing/y.1", {"run": "elsewhere", "attempt": 7, "status": "failed"}, source="heal")
        log.observe(f"run/{JUDGED}", {"golden": "kettle"}, source="a")
        log.flush()
    return url


@pytest.fixture(scope="module")
def pages(url: str) -> Iterator[Explored]:
    """The pages of that log."""
    with explored(url) as found:
        yield found


def linked(body: str, word: str) -> list[str]:
    """Return the paths of the links with a text."""
    return [unescape(each).partition("?")[0] for each in re.findall(rf'<a href="([^"]*)">{re.escape(word)}</a>', body)]


def test_run_leads_to_what_belongs_to_it(pages: Explored) -> None:
    body = pages.get(f"/run/{JUDGED}").body
    assert linked(body, "within-limits: failed, 0.75 of 1, at least 0.95 was needed") == ["/entity/evaluation/one"]
    assert linked(body, "polite: passed") == ["/entity/evaluation/two"]
    assert linked(body, "healed") == ["/healings"]
    assert "attempt 1 to heal it" in body
    assert "attempt 7" not in body
    assert "the golden trace kettle was made of it" in body
    other = pages.get(f"/run/{OTHER}").text
    assert f"made by attempt 1 to heal {JUDGED}" in other
    assert "within-limits" not in other
    result = pages.get("/entity/evaluation/one")
    assert "within-limits: failed, 0.75 of 1" in result.text
    assert set(linked(result.body, f"run/{JUDGED}")) == {f"/run/{JUDGED}"}


def test_ids_in_values_are_links_if_they_name_something(pages: Explored) -> None:
    page = pages.get(f"/run/{JUDGED}")
    assert set(linked(page.body, "document/plan-7")) == {"/entity/document/plan-7"}
    assert set(linked(page.body, OTHER)) == {f"/run/{OTHER}"}
    assert linked(page.body, "document/none") == linked(page.body, "no/type") == []
    assert "see document/plan-7 , document/none" in page.text
    assert "\0" not in page.body
    assert pages.get("/entity/document/plan-7?" + page.url.partition("?")[2]).status == 200


def test_few_ids_are_looked_up_and_words_stay_as_they_are() -> None:
    asked: list[list[str]] = []

    def known(names: list[str]) -> Iterable[str]:
        asked.append(names)
        return names

    links = ValueLinks(["document"], known, "cut:x")
    given = [
        'document/<b>"',
        "document/a.",
        'x "document" run',
        '{"key": "my-run"}',
        "two words",
        "my-run",
        "\0:0;",
        "document/a&lt;b",
    ]
    given += [f"document/{number}" for number in range(LOOKED_UP_MAX)]
    text = links.filled("\n".join(map(links.marked, given)))
    assert unescape(re.sub("<a [^>]*>|</a>", "", text)) == "\n".join(given)
    assert '<a href="/entity/document/a?at=cut%3Ax">document/a</a>.' in text
    assert text.count('<a href="/run/my-run?at=cut%3Ax">my-run</a>') == 2
    assert (len(asked), len(asked[0])) == (1, LOOKED_UP_MAX)
    assert "<b>" not in text


def test_list_of_runs_has_their_cost_within_a_bound(pages: Explored, url: str) -> None:
    page = pages.get("/")
    assert page.text.count("$2.50") == 2
    assert "cost was not read" not in page.text
    with explored(url, limits=PageLimits(steps_costed=1)) as short:
        part = short.get("/")
        assert part.text.count("$2.50") == 1
        assert "What 1 run cost was not read: at most 1 steps were" in part.text
        [more] = re.findall(r'href="([^"]*)">read 4 times as many', part.body)
        assert short.get(unescape(more)).text.count("$2.50") == 2
