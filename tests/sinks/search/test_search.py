"""The search index over all runs: what is found, at which cut, and that nothing is found whose key is gone."""

from __future__ import annotations

import contextlib
import random
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Event
from typing import Any

import pytest

import refold
from refold.agents.keys.ring import KEY_BYTES, MemoryKeyRing
from refold.agents.log import AgentLog
from refold.agents.usage.prices import PRICES_ENVIRONMENT, Prices
from refold.agents.vault import run_key
from refold.avro.errors import InputError
from refold.explorer.queries.search import SearchAnswer, runs_with, search_conditions, search_index, searched
from refold.sinks.port import SinkRefused
from refold.sinks.registry import open_sink
from refold.sinks.run import keep_up
from refold.sinks.search.database import SearchDatabase
from refold.sinks.search.filters import may_have
from refold.sinks.search.find import SearchConditions, TurnFinder
from refold.sinks.search.sink import SearchSink
from refold.sinks.search.turns import SearchedTurn
from refold.sinks.search.words import blinded, search_key, search_text, words_of
from refold.streams.cut import Cut
from refold_tests.command import Done, refold_command

SEED = 20261126


@pytest.fixture(params=["sealed", "clear"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether what is recorded is sealed."""
    if request.param == "clear":
        monkeypatch.setenv("REFOLD_KEYS", "none")
    return str(request.param)


def run_that_says(
    log: AgentLog, *steps: str, agent: str = "a", tool: str = "", model: str = "", fails: str = ""
) -> str:
    """A run whose steps return these texts; the last one calls the tool and the model, and fails."""

    def asked(model: str) -> dict[str, Any]:
        return {"model": model, "usage": {"input_tokens": 100_000, "output_tokens": 1}}

    run = log.run(agent, title=f"a run of {agent}", state={"said": ""})
    with contextlib.suppress(ValueError), run:
        for number, text in enumerate(steps):
            with run.step("say"):
                run.state["said"] = text
                if number == len(steps) - 1:
                    if tool:
                        refold.tool(name=tool)(lambda: "an answer of the tool")()
                    if model:
                        run.model(asked, model=model)
        if fails:
            raise ValueError(fails)
    return run.id


@contextlib.contextmanager
def found_in(log: AgentLog, path: Path, *, has_sealed: bool | None = True) -> Iterator[Any]:
    with search_index(log, path, has_sealed=has_sealed, updates=True) as index:

        def find(text: str = "", limit: int = 50, **given: Any) -> SearchAnswer:
            return searched(
                index,
                log,
                search_conditions(given.pop("since", None), given.pop("until", None), text=text, **given),
                limit,
            )

        yield find


def places(answer: SearchAnswer) -> list[tuple[str, int]]:
    return [(hit.run, hit.found.step) for hit in answer.hits]


def test_turns_are_found_by_their_words_newest_first(tmp_path: Path, kind: str) -> None:
    with refold.open(f"file:{tmp_path / 'log'}") as log:
        first = run_that_says(log, "the quick brown fox", "jumps over the lazy dog")
        second = run_that_says(log, "A QUICK answer; 42 of them", "ünïcode wörter 東京都")
        with found_in(log, tmp_path / "index") as find:
            assert places(find("quick")) == [(second, 1), (first, 1)]
            assert places(find("quick", limit=1)) == [(second, 1)]
            assert places(find("QUICK fox")) == [(first, 1)]
            assert places(find('"brown fox"')) == [(first, 1)]
            assert places(find('"fox brown"')) == []
            assert places(find("quic")) == [], "whole words"
            assert places(find("42")) == [(second, 1)]
            assert places(find("WÖRTER")) == [(second, 2)]
            assert places(find("京都")) == [(second, 2)]
            assert places(find("fox dog")) == [], "of one turn"
            assert places(find("run", agent="a")) == [(second, 0), (first, 0)], "a title"
            assert places(find("quick", agent="b")) == []
            (hit,) = find("lazy").hits
            assert "jumps over the lazy dog" in hit.snippet


def test_filters_apply_with_and_without_words(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "prices.toml"
    own.write_text('[models]\n"dear" = { input = 10 }\n"cheap" = { input = 1 }\n')
    monkeypatch.setenv(PRICES_ENVIRONMENT, str(own))
    with refold.open(f"file:{tmp_path / 'log'}") as log:
        dear = run_that_says(log, "same words", agent="x", tool="payments.refund", model="dear-20260101")
        cheap = run_that_says(log, "same words", agent="y", tool="mail.send", model="cheap")
        free = run_that_says(log, "same words", agent="y", model="nobody-knows", fails="no such order")
        began = {row.run: row.started.isoformat() for row in log.runs() if row.started}
        with found_in(log, tmp_path / "index") as find:
            for text in ("same", ""):
                assert places(find(text, tool="REFUND")) == [(dear, 1)]
                assert places(find(text, model="dear")) == [(dear, 1)]
                assert places(find(text, model="dear", tool="mail")) == []
                assert places(find(text, min_cost_usd=0.5)) == [(dear, 1)]
                assert places(find(text, max_cost_usd=0.5)) == [(cheap, 1)]
                assert places(find(text, min_cost_usd=0.1, max_cost_usd=1.0)) == [(cheap, 1), (dear, 1)]
                assert places(find(text, min_cost_usd=1.01)) == []
            assert places(find("same", since=began[cheap])) == [(free, 1), (cheap, 1)]
            assert places(find("same", until=began[cheap])) == [(dear, 1)]
            assert places(find(error="valueerror")) == [(free, 0)]
            assert places(find(error="TypeError")) == []
            assert [hit.usage.unpriced for hit in find("same", model="nobody").hits if hit.usage] == [["nobody-knows"]]
            with pytest.raises(InputError, match="say what to search for"):
                find()
            with pytest.raises(InputError, match="no word"):
                find("-- !")
        own.write_text('[models]\n"dear" = { input = 1000 }\n')
        monkeypatch.setenv(PRICES_ENVIRONMENT, f"{tmp_path}/./prices.toml")  # another name, so that it is read again
        with found_in(log, tmp_path / "index") as find:
            assert places(find(min_cost_usd=99)) == [(dear, 1)], "costs follow the table"
            assert places(find("same", max_cost_usd=0.5)) == []


def test_destroyed_key_makes_a_run_unfindable(tmp_path: Path) -> None:
    path = tmp_path / "index"
    with refold.open(f"file:{tmp_path / 'log'}") as log:
        kept, erased = run_that_says(log, "zanzibar lies in the sea"), run_that_says(log, "zanzibar is a secret")
        with found_in(log, path) as find:
            assert places(find("zanzibar")) == [(erased, 1), (kept, 1)]
        stored = b"".join(each.read_bytes() for each in sorted(tmp_path.glob("index*")))
        for word in (b"zanzibar", b"secret"):
            assert word not in stored.lower(), "no word of sealed content is in the file"
        ring = log.vault.ring
        assert ring is not None
        ring.destroy(f"run:{erased}")
        with contextlib.closing(sqlite3.connect(path)) as held:
            assert held.execute("SELECT count(*) FROM sealed").fetchone()[0] > 0, "its hashes are there, and of no use"
        with search_index(log, path, has_sealed=None, updates=False) as index:
            assert places(searched(index, log, search_conditions(None, None, text="zanzibar"), 50)) == [(kept, 1)]
            assert runs_with(index, log, "secret") == set()


def test_removed_unsealed_content_is_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFOLD_KEYS", "none")
    with refold.open(f"file:{tmp_path / 'log'}") as log:
        run = run_that_says(log, "zanzibar " + "and a long text that is a content of its own " * 100)
        with found_in(log, tmp_path / "index") as find:
            assert places(find("zanzibar")) == [(run, 1)]
            journal = log.state(f"step/{run}#1").fields["journal"]
            for blob in journal.values():
                assert log.port.blobs.remove([blob.hash], 2**50).contents == 1
            answer = find("zanzibar")
            assert (places(answer), answer.unread) == ([], [f"step/{run}#1"])


def test_sealed_content_is_indexed_only_on_request(tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'log'}"
    with refold.open(url) as log:
        run = run_that_says(log, "zanzibar", tool="payments.refund")

    def refold_says(*arguments: str) -> Done:
        return refold_command("run", "search", *arguments, "--index", str(tmp_path / "index"), log=url)

    without = refold_says("zanzibar")
    assert (without.status, "no turn is like that" in without.out) == (0, True)
    assert "`refold run search --sealed TEXT` puts it there" in without.err
    assert refold_says("--tool", "refund", "--json").json["hits"][0]["run"] == run, "names stand in clear"
    assert refold_says("zanzibar", "--sealed", "--json").json["hits"][0]["step"] == 1
    assert refold_says("zanzibar", "--json").json["hits"][0]["run"] == run, "that is remembered"
    with refold.open(url) as log:
        second = run_that_says(log, "zanzibar again")
    before = refold_says("zanzibar", "--no-update", "--json").json
    after = refold_says("zanzibar", "--json").json
    assert [len(before["hits"]), len(after["hits"])] == [1, 2]
    assert before["cut"] != after["cut"]
    assert after["hits"][0]["run"] == second
    assert refold_says("zanzibar", "--no-sealed", "--json").json == {**after, "hits": [], "sealed_left_out": 4}
    assert "say what to search for" in refold_says().refused()


def test_runs_are_listed_by_the_index(tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'log'}"
    more = {"XDG_STATE_HOME": str(tmp_path / "state")}
    with refold.open(url) as log:
        first = run_that_says(log, "the zanzibar one", "zanzibar twice")
        run_that_says(log, "zanzibars")
    read = refold_command("runs", "--text", "zanzibar", "--json", log=url, more=more).json
    assert len(read) == 2, "without an index any part of a text is found"
    assert not (tmp_path / "state").exists()
    clear = [refold_command(*each, log=url, more={"XDG_STATE_HOME": str(tmp_path / "clear")}).err
             for each in (("runs", "--text", "zanzibar", "--indexed"), ("run", "search", "zanzibar"))]  # fmt: skip
    assert clear[0] == clear[1]
    assert "turns have sealed content, which is not in the index" in clear[0]
    refold_command("sink", "search", "--to", "sqlite:?sealed=yes", log=url, more=more)
    found = refold_command("runs", "--text", "zanzibar", "--indexed", "--json", log=url, more=more).json
    assert [row["run"] for row in found] == [first]
    assert refold_command("runs", "--text", "nowhere", "--indexed", "--json", log=url, more=more).json == []
    assert "--text" in refold_command("runs", "--indexed", log=url, more=more).refused()


def test_incremental_index_equals_one_built_at_once(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    vocabulary = ["zanzibar", "order", "refund", "payment", "paid", "eur", "42", "late"]
    with refold.open(f"file:{tmp_path / 'log'}") as log:
        for round_ in range(4):
            for _ in range(3):
                texts = [" ".join(rng.choices(vocabulary, k=5)) for _ in range(rng.randint(1, 4))]
                run_that_says(log, *texts, tool=rng.choice(["", "t"]))
            log.flush()
            with contextlib.closing(SearchSink(tmp_path / "following", has_sealed=True)) as sink:
                keep_up(log.port, sink, follow=False, stop=Event(), changes_max=rng.choice([1, 5, 1000]))
            if round_ == 2:
                continue
        with contextlib.closing(SearchSink(tmp_path / "at once", has_sealed=True)) as sink:
            keep_up(log.port, sink, follow=False, stop=Event())
        for word in vocabulary:
            with found_in(log, tmp_path / "following") as following, found_in(log, tmp_path / "at once") as whole:
                one, other = following(word, limit=1000), whole(word, limit=1000)
            assert (one.cut, sorted(places(one))) == (other.cut, sorted(places(other))), (SEED, word)
            assert places(one), word


def test_file_that_is_no_index_is_refused_by_its_path(tmp_path: Path) -> None:
    from refold.agents.usage.prices import prices

    path = tmp_path / "index"
    path.write_bytes(b"this is no database " * 100)
    with pytest.raises(SinkRefused, match=r"remove it, and it is made again"):
        SearchDatabase(path, prices({}))
    for url in ("sqlite://host/path", "sqlite:///p?sealed=perhaps", "sqlite:///p?other=1", "file:///p"):
        with pytest.raises(InputError, match="a search index is"):
            open_sink("search", url)


def test_index_damage_found_while_reading_is_refused_by_its_path(tmp_path: Path) -> None:
    url, path = f"file:{tmp_path / 'log'}", tmp_path / "index"
    with refold.open(url) as log:
        run_that_says(log, "the zanzibar one")
    asking = ("run", "search", "zanzibar", "--index", path, "--no-update")
    refold_command("run", "search", "zanzibar", "--index", path, log=url)
    with contextlib.closing(sqlite3.connect(path)) as index, index:
        index.execute("DELETE FROM said_config")
    assert f"{path} is no search index, or is damaged" in refold_command(*asking, log=url).refused()


@pytest.mark.parametrize(("given", "words", "phrases"), [
    ("Order o-7", ["order", "o", "7"], [("o", "7")]),
    ('"was paid" was', ["was", "paid"], [("was", "paid")]),
    ("a_b c", ["a_b", "c"], []),
    ('"', [], []),
    ("x" * 200, ["x" * 64], []),
], ids=["a word of several", "a phrase", "an underscore", "a quote", "a long word"])  # fmt: skip
def test_typed_query_is_words_and_phrases(given: str, words: Sequence[str], phrases: Sequence[Any]) -> None:
    asked = search_text(given)
    assert (list(asked.words), list(asked.phrases)) == (list(words), list(phrases))
    assert not words or asked.is_in(given)
    assert words_of("") == []


def said_in_turn(run: str, step: int, text: str) -> SearchedTurn:
    return SearchedTurn(f"run/{run}", step, 1_700_000_000_000_000 + step, True, text)


def at(records: int) -> Cut:
    return Cut(bytes(16), {0: records}, 0, bytes(32))


def test_filters_find_every_word_and_spare_the_other_runs(tmp_path: Path) -> None:
    """Filters are made again as runs grow, are written before they take much memory, and follow a rollback."""
    rng = random.Random(SEED)
    ring = MemoryKeyRing(lambda: rng.randbytes(KEY_BYTES))
    keys = {run: search_key(ring.create(run_key(run))) for run in map(str, range(40))}
    with contextlib.closing(SearchDatabase(tmp_path / "index", Prices({}), filters_bytes_max=1000)) as database:
        database.put_meta("sealed", "yes")
        for part in range(3):
            with database.writing(database.cut, at(part)):
                for run, key in keys.items():
                    for step in range(part * 5, part * 5 + 5):
                        text = " ".join(f"w{rng.randrange(10_000)}" for _ in range(20))
                        database.put_turn(said_in_turn(run, step, f"{text} {'rare' * (run == '7')}"), key)
            with contextlib.suppress(KeyError), database.writing(database.cut, at(9)):
                database.put_turn(said_in_turn("8", 99, "unwritten"), keys["8"])
                raise KeyError
        filters = dict(database.connection.execute("SELECT run, bits FROM sealed_filter"))
        rows = database.connection.execute("SELECT run, word FROM sealed").fetchall()
        assert len(rows) > 40 * 250
        assert all(may_have(filters[run], word) for run, word in rows), f"seed {SEED}"
        (owner,) = database.connection.execute("SELECT number FROM sealed_run WHERE owner = 'run/8'").fetchone()
        assert not may_have(filters[owner], *blinded(keys["8"], ["unwritten"]))
        others = [rng.getrandbits(64) - (1 << 63) for _ in range(1000)]
        by_chance = [sum(may_have(bits, each) for each in others) for bits in filters.values()]
        assert max(by_chance) < 50, "less than 5 % of words that a run has not"
        asked: list[str] = []
        database.connection.set_trace_callback(lambda query: asked.append(query) if "FROM sealed s " in query else None)
        found = list(TurnFinder(database, ring).find(SearchConditions("rare")))
        assert [(each.owner, each.step) for each in found] == [("run/7", step) for step in reversed(range(15))]
        assert len(asked) < 5, "of 40 runs"
        ring.destroy(run_key("7"))
        assert list(TurnFinder(database, ring).find(SearchConditions("rare"))) == []
