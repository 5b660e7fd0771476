"""The output of the commands, as text and as JSON. They run in this process, except those that need their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.avro.kernel import find_kernel
from refold.avro.observation import Source
from refold.avro.times import time_text
from refold.explorer.cli.main import run
from refold.explorer.doctor.findings import disk
from refold.streams.cut import parse_cut
from refold.streams.log.port import Marked
from refold.streams.partitioner import placed
from refold_tests.child import Child, children
from refold_tests.command import COMMAND, environment, refold_command
from refold_tests.sample_types import document
from refold_tests.waiting import await_true

CONFIG = "tool_config/acme"
BEGIN = 1_700_000_000_000_000
Ask = Callable[..., Any]


@pytest.fixture
def ids(log_path: Path) -> list[str]:
    """A small log: acme's configuration with its sources, and a document with two fields. Returns the observations'
    ids.
    """
    with refold.open() as log:
        first = log.observe(CONFIG, {"rate_limit": 50, "tags": ["b", "a"], "settings": {"x.y": 1}},
                            source=Source("deployer", "r", "1", "deploy"), observed_at=BEGIN)  # fmt: skip
        log.flush()
        log.mark("deploy-1")
        second = log.observe(
            CONFIG, {"rate_limit": 70}, source=Source("ops", "s"), observed_at=BEGIN + 1, causes=[first]
        )
        third = log.observe("document/a.b", {"fields": {"kind": "x", "n": 1}}, source=Source("ops", "s", seq=1),
                            observed_at=BEGIN + 2, causes=[second, "0" * 64])  # fmt: skip
        fourth = log.link("document/a.b", "about", CONFIG, source=Source("ops", "s", seq=2), observed_at=BEGIN + 3)
    return [first, second, third, fourth]


@pytest.fixture
def ask(log_path: Path, capsys: pytest.CaptureFixture[str]) -> Ask:
    """Run a command in this process. Return its JSON with --json, else its text."""

    def run_it(*arguments: object, status: int = 0) -> Any:
        found = run([str(each) for each in arguments])
        out, err = capsys.readouterr()
        assert found == status, (out, err)
        assert err == ""
        return json.loads(out) if "--json" in arguments else out

    return run_it


def test_state_names_the_source_of_each_value(ids: list[str], ask: Ask) -> None:
    found = ask("state", CONFIG, "--json")
    assert (found["entity"], found["version"]) == (CONFIG, 2)
    with refold.open(read_only=True) as log:
        assert found["state_hash"] == log.state(CONFIG).state_hash
        assert found["cut"] == str(log.point().cut)
        recorded = log.port.find(bytes.fromhex(ids[1]))
        assert recorded is not None
    limit = found["fields"]["rate_limit"]
    assert limit.pop("recorded_at").endswith("Z")
    assert limit == {
        "value": 70,
        "observed_at": "2023-11-14T22:13:20.000001Z",
        "observation": ids[1],
        "source": {"agent": "ops", "run": "s", "step": "", "tool": "", "seq": 0},
    }
    settings = found["fields"]["settings"]
    assert settings["value"] == {"x.y": 1}
    [element] = settings["elements"]
    assert (element["key"], element["value"], element["observation"]) == ("x.y", 1, ids[0])
    assert [each["value"] for each in found["fields"]["tags"]["elements"]] == ["a", "b"]
    assert "key" not in found["fields"]["tags"]["elements"][0]
    assert (found["conflicts"], found["conflicts_count"]) == ([], 0)
    text = ask("state", CONFIG)
    assert f"{CONFIG} matches v2, state hash {found['state_hash']}" in text
    assert found["cut"] in text.splitlines()[0]
    assert all(each in text for each in ("rate_limit", "70", "settings.x.y", "tags[]", ids[0], ids[1], "deployer"))


def test_state_shows_links_and_conflicts(ids: list[str], ask: Ask) -> None:
    links = ask("state", "document/a.b", "--json")["links"]
    assert links == [{"relation": "about", "target": CONFIG, "by": ids[3]}]
    assert "about" in ask("state", "document/a.b")
    ask("observe", CONFIG, "rate_limit=90", "--source", "intruder")
    found = ask("state", CONFIG, "--json")
    assert found["conflicts_count"] == 1
    assert found["conflicts"][0] == {
        "field": "rate_limit",
        "key": None,
        "agent": "ops",
        "observation": ids[1],
        "value": 70,
    }
    assert "1 in conflict" in ask("state", CONFIG)


def test_past_is_selected_by_every_form_of_when(ids: list[str], ask: Ask) -> None:
    cut = ask("state", CONFIG, "--at", "v1", "--json")["cut"]
    with refold.open(read_only=True) as log:
        offsets = ",".join(f"{part}={end}" for part, end in log.point("@deploy-1").cut.offsets.items())
    for when in ("v1", "@deploy-1", cut, f"offset:{offsets}"):
        assert ask("state", CONFIG, "--at", when, "--json")["fields"]["rate_limit"]["value"] == 50
    observed = ("--at", "2023-11-14T22:13:20Z", "--clock", "observed")
    assert ask("state", CONFIG, *observed, "--json")["fields"]["rate_limit"]["value"] == 50
    assert "still open" in ask("state", CONFIG, *observed)
    assert "still open" in ask("rebuild", "--at", "2999-01-01T00:00:00Z")
    assert ask("rebuild", "--at", "2999-01-01T00:00:00Z", "--json")["open"] is True
    assert ask("rebuild", "--json")["open"] is False


def test_history_lists_mutations(ids: list[str], ask: Ask) -> None:
    rows = ask("history", CONFIG, "--json")
    assert sorted(row["field"] for row in rows[:-1]) == ["rate_limit", "settings", "tags", "tags"]
    last = rows[-1]
    partition = last["position"]["partition"]
    assert {**last, "recorded_at": None} == {
        "entity": CONFIG, "field": "rate_limit", "op": "set", "key": None, "old": 50, "new": 70,
        "observation": ids[1], "by": ids[1], "version": 2, "position": {"partition": partition, "offset": 1},
        "observed_at": "2023-11-14T22:13:20.000001Z", "recorded_at": None,
        "source": {"agent": "ops", "run": "s", "step": "", "tool": "", "seq": 0},
    }  # fmt: skip
    assert ask("history", CONFIG, "--since", "@deploy-1", "--json") == [last]
    assert ask("history", CONFIG, "--until", "@deploy-1", "--json") == rows[:-1]
    text = ask("history", CONFIG, "--since", "v1")
    assert text.startswith("since cut:1.")
    assert all(word in text for word in ("\nuntil cut:1.", "rate_limit", "50", "70", "ops", ids[1]))
    assert "nothing changed" in ask("history", CONFIG, "--since", "now")


def test_diff_exit_status_says_whether_something_differs(ids: list[str], ask: Ask) -> None:
    rows = ask("diff", "@deploy-1", "now", "--json", status=1)
    assert {(row["entity"], row["field"]) for row in rows} == {
        (CONFIG, "rate_limit"), ("document/a.b", "fields"), ("document/a.b", "links"),
    }  # fmt: skip
    assert [row["new"] for row in ask("diff", "v1", "v2", CONFIG, "--json", status=1)] == [70]
    assert "4 differences in 2 entities" in ask("diff", "@deploy-1", "now", status=1)
    assert ask("diff", "now", "now", "--json") == []
    assert "no difference" in ask("diff", "now", "now")


def test_why_reaches_the_first_cause(ids: list[str], ask: Ask) -> None:
    chain = ask("why", "document/a.b.fields.n", "--json")
    assert [(each["observation"], each["depth"]) for each in chain] == [
        (ids[2], 0), ("0" * 64, 1), (ids[1], 1), (ids[0], 2),
    ]  # fmt: skip
    assert chain[0]["causes"] == sorted([ids[1], "0" * 64])
    assert chain[0]["patch"] == {"fields": {"kind": "x", "n": 1}}
    assert chain[1]["position"] is None
    assert chain[1]["entity"] is None
    assert (chain[3]["entity"], chain[3]["kind"], chain[3]["source"]["tool"]) == (CONFIG, "assert", "deploy")
    text = ask("why", "document/a.b.fields.n")
    assert all(each["observation"] in text for each in chain)
    assert '  fields = {"kind": "x", "n": 1}\n' in text
    assert "is not in this log" in text
    assert text.rstrip().endswith("4 observations, 2 steps back")


def test_why_takes_the_rightmost_reading_that_exists(ids: list[str], ask: Ask) -> None:
    assert ask("why", "document/a.b.fields.kind", "--json")[0]["observation"] == ids[2]
    assert ask("why", f"{CONFIG}.settings.x.y", "--json")[0]["observation"] == ids[0]
    # document/a.b.fields is now an entity with a field "kind", so its reading splits further right than the other.
    other = json.loads(
        refold_command("observe", "document/a.b.fields", "kind=y", "--json", log=os.environ["REFOLD_LOG"]).out
    )
    assert ask("why", "document/a.b.fields.kind", "--json")[0]["observation"] == other["id"]


def test_rebuild_and_verify_print_the_root(ids: list[str], ask: Ask) -> None:
    found, verdict = ask("rebuild", "--json"), ask("verify", "--json")
    assert found.keys() == {"cut", "cut_short", "open", "observations", "entities", "root", "source"}
    assert (found["observations"], found["entities"]) == (4, 2)
    assert found["source"]["replayed"] == 4
    assert (verdict["ok"], verdict["mismatches"], verdict["root"]) == (True, [], found["root"])
    assert (verdict["observations"], verdict["entities"]) == (4, 2)
    assert "expected" in ask("rebuild", "--expect-root", found["root"].upper())
    assert "another" in ask("rebuild", "--expect-root", "0" * 64, status=1)
    assert ask("rebuild", "--full", "--expect-root", "0" * 64, "--json", status=1)["root"] == found["root"]
    assert found["root"] in ask("verify")


def test_verify_fails_when_stored_bytes_changed(ids: list[str], ask: Ask, log_path: Path) -> None:
    with refold.open() as log:
        write = log.port.database.batch()  # type: ignore[attr-defined]
        write.delete("state", placed(CONFIG))
        log.port.database.write(write, sync=True)  # type: ignore[attr-defined]
    verdict = ask("verify", "--json", status=1)
    assert verdict["ok"] is False
    assert verdict["mismatches"] == [{"place": "state", "problem": "missing", "entity": CONFIG, "field": ""}]
    assert "1 mismatch\n" in ask("verify", status=1)


def test_markers_are_listed_moved_and_resolved(ids: list[str], ask: Ask) -> None:
    cut = ask("rebuild", "--json")["cut"]
    assert ask("mark", "now-1", "--json")["cut"] == cut
    ask("mark", "deploy-1", "--at", "@now-1", "--replace")
    assert {each["name"]: each["cut"] for each in ask("markers", "--json")} == {"deploy-1": cut, "now-1": cut}
    short = ask("markers", "--json")[0]["cut_short"]
    assert short in ask("markers")


def test_markers_of_another_fold_version_are_listed_and_block_nothing(ids: list[str], ask: Ask) -> None:
    """The situation after an upgrade. Asking for such a marker names the reason."""
    cut = parse_cut(ask("mark", "now-1", "--json")["cut"])
    before = replace(cut, fold_version=7)
    with refold.open() as log:
        log.port.mark(Marked("before", str(before), 1), replace=False)
    listed = {each["name"]: (each["cut"], each["fold_version"]) for each in ask("markers", "--json")}
    assert listed == {**listed, "before": (str(before), 7), "now-1": (str(cut), 1)}
    assert before.short in ask("markers")
    assert ask("rebuild", "--at", f"cut:{cut.short}", "--json")["cut"] == str(cut)
    assert ask("verify", "--json")["ok"] is True
    for named in ("@before", f"cut:{before.short}"):
        refused = refold_command("rebuild", "--at", named, log=os.environ["REFOLD_LOG"])
        assert refused.status == 2
        assert "fold version 7, this release folds by version 1" in " ".join(refused.err.split())


def test_observe_accepts_every_part(ids: list[str], ask: Ask) -> None:
    found = ask("observe", CONFIG, "rate_limit=1", "settings.k=[1]", "--at", "2026-01-01T00:00:00Z", "--source", "a/r",
                "--priority", 2, "--cause", ids[0], "--clear", "tags", "--retract", ids[1], "--subject", "p",
                "--json")  # fmt: skip
    assert (found["entity"], found["version"]) == (CONFIG, 3)
    with refold.open(read_only=True) as log:
        record = log.port.find(bytes.fromhex(found["id"]))
        assert record is not None
        assert found["position"] == {"partition": record.partition, "offset": record.offset}
        seen = log.port.registry.decode(record.data)
    assert seen.patch == {"rate_limit": 1, "settings": {"k": "[1]"}}
    assert (seen.source, seen.priority, seen.subject) == (Source("a", "r"), 2, "p")
    assert (seen.cleared, seen.retracts, seen.causes) == (
        ("tags",), (bytes.fromhex(ids[1]),), (bytes.fromhex(ids[0]),),
    )  # fmt: skip
    assert seen.observed_at == 1_767_225_600_000_000
    text = ask("observe", "step/r#1", "--link", "of=run/r=1", "--valid-from", "2026-01-01T00:00:00Z")
    assert text.endswith("step/r#1 v1\n")
    [link] = ask("state", "step/r#1", "--json")["links"]
    assert (link["target"], link["valid_from"]) == ("run/r=1", "2026-01-01T00:00:00.000000Z")
    ask("observe", "step/r#1", "--unlink", "of=run/r=1")
    assert ask("state", "step/r#1", "--json")["links"] == []
    ask("observe", CONFIG, "rate_limit=2", "--at", "2999-01-01T00:00:00Z", "--allow-future")


def test_tail_prints_changes_after_a_point(ids: list[str], ask: Ask) -> None:
    done = refold_command("tail", "--from", "@deploy-1", "--json", log=os.environ["REFOLD_LOG"])
    lines = [json.loads(line) for line in done.out.splitlines()]
    by_entity = {line["entity"]: line for line in lines}
    assert by_entity.keys() == {CONFIG, "document/a.b"}
    config = by_entity[CONFIG]
    assert (config["from_version"], config["to_version"], config["redefined"]) == (1, 2, False)
    assert [(row["field"], row["new"]) for row in config["mutations"]] == [("rate_limit", 70)]
    assert config["hash_after"] == ask("state", CONFIG, "--json")["state_hash"]
    text = ask("tail")
    assert f"{CONFIG} v2 rate_limit: 50 -> 70 by ops" in text


def test_tail_follows_and_exits_cleanly(ids: list[str], log_path: Path) -> None:
    with subprocess.Popen([*COMMAND, "tail", "--follow"], env=environment(f"file:{log_path}"), stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True) as process:  # fmt: skip
        assert process.stdout is not None
        with children() as start:
            writer: Child = start(
                "import refold, sys\nwith refold.open('file:' + sys.argv[1]) as log:\n  print('open', flush=True)\n"
                "  for n in range(10**6):\n"
                "    log.observe('tool_config/acme', {'rate_limit': n}, source='w'); log.flush()\n",
                log_path,
            )
            assert writer.line() == "open"
            assert f"{CONFIG} v" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 130
        assert err == ""


def test_types_are_listed_shown_derived_and_registered(
    ids: list[str], ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = {each["name"]: each for each in ask("types", "--json")}
    assert (listed["tool_config"]["versions"], listed["run"]["versions"]) == (1, 0)
    assert listed["tool_config"]["shipped"]
    assert "rate_limit" in ask("types", "tool_config")
    assert ask("types", "tool_config", "--json")["fields"]
    for kind in ("observation", "state", "change"):
        assert json.loads(ask("types", "run", "--schema", kind))["name"] == f"refold.{kind}.run"
    file = tmp_path / "everything.avsc"
    file.write_text(json.dumps(document()))
    assert "everything: version 1" in ask("types", "--register", file)
    assert "everything" in ask("types")
    ask("observe", "everything/1", "last=5")
    monkeypatch.setenv("REFOLD_LOG", f"file:{tmp_path / 'fresh'}")
    monkeypatch.setenv("REFOLD_TYPES", str(file))
    assert "everything" in ask("types"), "types need no log"
    ask("observe", "everything/1", "last=5")
    assert ask("state", "everything/1", "--json")["fields"]["last"]["value"] == 5


def test_content_is_fetched(ids: list[str], ask: Ask, tmp_path: Path) -> None:
    big = tmp_path / "big.txt"
    big.write_text("x" * 300_000)
    ask("observe", "action/a", f"output=@{big}")
    digest = ask("state", "action/a", "--json")["fields"]["output"]["value"]["$blob"]["hash"]
    assert f"[blob {digest}, 300,000 bytes, text/plain]" in ask("state", "action/a")
    ask("blob", digest, "-o", tmp_path / "out.txt")
    assert (tmp_path / "out.txt").read_bytes() == big.read_bytes()
    assert refold_command("blob", digest, log=os.environ["REFOLD_LOG"]).out == "x" * 300_000


def test_doctor_reports_no_problem_and_then_one(ids: list[str], ask: Ask, log_path: Path, tmp_path: Path) -> None:
    found = ask("doctor", "--json")
    assert found["ok"]
    assert {"format", "owner", "disk", "folder", "clock", "records"} <= {each["subject"] for each in found["findings"]}
    assert "PROBLEM" not in ask("doctor")
    _, full = disk(log_path, needed_bytes=2**80)
    assert not full.ok
    assert full.remedy.startswith("free at least")
    (log_path / "FORMAT").write_text("refold-file 9\n")
    done = refold_command("doctor", "--json", log=f"file:{log_path}")
    assert done.status == 1
    [problem] = [each for each in done.json["findings"] if not each["ok"]]
    assert "file format 9" in problem["finding"]
    assert problem["remedy"]
    assert f"{problem['subject']}: {problem['remedy']}" in ask("doctor", status=1)
    assert refold_command("doctor", log=f"file:{tmp_path / 'absent'}").status == 0


def test_options_are_accepted_before_and_after_the_command(
    ids: list[str], ask: Ask, log_path: Path, tmp_path: Path
) -> None:
    other = f"file:{tmp_path / 'other'}"
    ask("observe", CONFIG, "rate_limit=1", "--log", other)
    assert ask("--log", other, "rebuild", "--json")["observations"] == 1
    assert ask("--log", f"file:{log_path}", "rebuild", "--log", other, "--json")["observations"] == 1
    assert ask("rebuild", "--json")["observations"] == 4


def test_help_and_version(ask: Ask) -> None:
    assert ask() == ask("--help")
    assert ask("--version") == f"refold {refold.__version__} ({find_kernel().text})\n"
    assert "WHEN is one of" in ask("state", "-h")


# Exit statuses


def test_closed_pipe_is_no_error(ids: list[str], log_path: Path) -> None:
    with refold.open() as log:
        for number in range(3_000):
            log.observe("document/d", {"fields": {"n": number}}, source="a")
    script = f"{' '.join(COMMAND)} export - | head -1 >/dev/null; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], env=environment(f"file:{log_path}"), capture_output=True, text=True,
                          check=True)  # fmt: skip
    assert (done.stdout, done.stderr) == ("141\n", "")


def test_defect_is_one_line_and_a_traceback_on_request(
    ids: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("oops\nand more")

    monkeypatch.setattr("refold.streams.client.Log.state", broken)
    assert run(["state", CONFIG]) == 70
    _, err = capsys.readouterr()
    assert err.count("\n") == 1
    assert "ZeroDivisionError: oops and more" in err
    assert "REFOLD_DEBUG=1" in err
    monkeypatch.setenv("REFOLD_DEBUG", "1")
    assert run(["state", CONFIG]) == 70
    assert "Traceback" in capsys.readouterr().err


# On a terminal


@pytest.fixture
def terminal(log_path: Path) -> Callable[..., str]:
    """Run a command on a terminal of 100 columns; return what it shows."""

    def run_it(*arguments: str, **more: str) -> str:
        ours, theirs = os.openpty()
        given = {**environment(f"file:{log_path}"), "TERM": "xterm", "COLUMNS": "100", **more}
        with subprocess.Popen([*COMMAND, *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env=given) as process:
            os.close(theirs)
            shown = b""
            while True:
                try:
                    part = os.read(ours, 65536)
                except OSError:
                    break
                if not part:
                    break
                shown += part
            assert process.wait() == 0
        os.close(ours)
        return shown.decode()

    return run_it


def test_terminal_gets_colour_and_a_pipe_does_not(ids: list[str], terminal: Callable[..., str], ask: Ask) -> None:
    assert "\x1b[36m" in terminal("state", CONFIG)
    assert "\x1b[36m" not in terminal("state", CONFIG, NO_COLOR="1")
    assert "\x1b" not in ask("state", CONFIG)


def test_ids_are_short_on_a_terminal_and_whole_in_a_pipe(
    ids: list[str], terminal: Callable[..., str], ask: Ask
) -> None:
    assert ids[1] not in terminal("history", CONFIG)
    assert ids[1][:12] in terminal("history", CONFIG)
    assert ids[1] in ask("history", CONFIG)


def test_recorded_text_cannot_control_a_terminal(ids: list[str], terminal: Callable[..., str], ask: Ask) -> None:
    ask("observe", "runbook/r", "title=\x1b[2J[bold]evil[/bold]\r\n\u202e")
    for arguments in (("state", "runbook/r"), ("history", "runbook/r"), ("why", "runbook/r.title"), ("tail",)):
        shown = terminal(*arguments, NO_COLOR="1")
        assert "\x1b[2J" not in shown
        assert "\u202e" not in shown
        assert "[bold]evil" in shown.replace("\r\n", "")
        assert "\\x1b[2J" in shown.replace("\r\n", "")


def test_terminal_shows_progress(ids: list[str], terminal: Callable[..., str], tmp_path: Path) -> None:
    target = tmp_path / "x.jsonl"
    assert "Exporting" in terminal("export", str(target))
    assert "Importing" in terminal("import", str(target))


def test_future_time_is_reported(ids: list[str], ask: Ask) -> None:
    for command in ("state", CONFIG), ("rebuild",):
        assert "this time lies in the future" in ask(*command, "--at", "2126-01-01T00:00:00Z")
    await_true(lambda: "not yet 5 s old" in ask("state", CONFIG, "--at", time_text(int(time.time() * 1_000_000))))
    assert ask("state", CONFIG, "--at", "2126-01-01T00:00:00Z", "--json")["open"] is True
