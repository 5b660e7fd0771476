"""`refold rebuild`: its output, what it reports about the rebuild, and on which stream."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import refold
from refold.avro.observation import Source
from refold.explorer.cli.main import run
from refold.explorer.cli.operate.rebuild import EPOCHS_SHOWN
from refold.streams.log.file.log import FileLog

BEGIN = 1_700_000_000_000_000
RUNS = 30


class Ask:
    """Runs `refold rebuild` in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.out = ""
        self.err = ""

    def __call__(self, *arguments: str, status: int = 0) -> str:
        found = run(["rebuild", *arguments])
        self.out, self.err = self._capsys.readouterr()
        assert found == status, (self.out, self.err)
        return self.out


@pytest.fixture
def runs(log_path: Path) -> Path:
    """A log of runs that began one second apart; two of three have ended. An epoch is sealed after two thirds of the
    records.
    """
    with refold.open(f"file:{log_path}?partitions=16") as log:
        for number in range(RUNS):
            ended = {"ended_at": number} if number % 3 else {"model": "m"}
            log.observe(f"run/{number}", ended, source=Source("a", "r", seq=number),
                        observed_at=BEGIN + number * 1_000_000)  # fmt: skip
            if number == RUNS * 2 // 3:
                log.snapshot()
        log.observe("tool_config/x", {"rate_limit": 1}, source=Source("a", "r", seq=RUNS), observed_at=BEGIN)
    return log_path


@pytest.fixture
def ask(runs: Path, capsys: pytest.CaptureFixture[str]) -> Ask:
    return Ask(capsys)


def test_source_of_the_rebuild_is_shown(ask: Ask) -> None:
    tree = json.loads(ask("--json"))
    assert tree.keys() == {"cut", "cut_short", "open", "observations", "entities", "root", "source"}
    source = tree["source"]
    assert source.keys() == {"snapshot_epochs", "replayed", "reopened", "scanned", "apart", "fallbacks"}
    epochs = [f"{partition}={offset}" for partition, offset in source["snapshot_epochs"].items()]
    assert len(epochs) > EPOCHS_SHOWN
    text = ask()
    assert f"root         {tree['root']}\n" in text
    shown, more = ", ".join(epochs[:EPOCHS_SHOWN]), len(epochs) - EPOCHS_SHOWN
    assert f"started from the epochs {shown} and {more} more\n" in text
    assert f"replayed     {source['replayed']} record" in text
    assert "reopened     0 entities\n" in text
    text = ask("--full")
    assert "started from nothing: a full replay\n" in text
    assert f"replayed     {RUNS + 1} records\n" in text
    assert f"root         {tree['root']}\n" in text
    assert ask.err == ""


def test_observed_clock_is_a_full_replay_and_announced_first(ask: Ask) -> None:
    text = ask("--clock", "observed", "--at", "2023-11-14T22:13:29Z")
    assert ask.err == "refold: by the observed clock every record counts: this is a full replay\n"
    assert "entities     11\n" in text
    assert f"reopened     {RUNS + 1} entities, for which " in text
    assert ask("--at", text.split()[1]).splitlines()[1:] == text.splitlines()[2:], "the cut is no longer open"
    assert ask.err != ""


def test_unusable_snapshot_is_a_warning(ask: Ask, runs: Path) -> None:
    root = json.loads(ask("--json"))["root"]
    with refold.open(f"file:{runs}") as log:
        assert isinstance(log.port, FileLog)
        (epoch, *_) = log.port.snapshots.epochs(3)
        write = log.port.database.batch()
        write.put("manifests", epoch.key, b"damaged")
        log.port.database.write(write, sync=True)
    tree = json.loads(ask("--json"))
    assert (tree["root"], len(tree["source"]["fallbacks"])) == (root, 1)
    (line,) = ask.err.splitlines()
    assert line == f"refold: warning: {tree['source']['fallbacks'][0]}"
    assert f"epoch {epoch} was not used" in line


def test_only_the_selection_is_rebuilt(ask: Ask) -> None:
    text = ask("--type", "run", "--since", "2023-11-14T22:13:40Z")  # the runs 0 to 19 are older
    assert "root" not in text
    assert "entities     17\n" in text
    tree = json.loads(ask("--type", "run", "--type", "tool_config", "--since", "2023-11-14T22:13:40Z", "--json"))
    assert (tree["entities"], tree["observations"], tree["root"]) == (18, 18, None)
    tree = json.loads(ask("--entity", "run/3", "--entity", "run/999", "--json"))
    assert (tree["entities"], tree["observations"], tree["root"]) == (1, 1, None)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--type", "runs"], "nothing of the type 'runs' was recorded here; this log has run, tool_config"),
        (["--entity", "run"], "entity: TYPE/ID, such as tool_config/acme; given 'run'"),
        (["--entity", "step/1"], "step/1: nothing of the type 'step' was recorded here"),
        (["--since", "@x"], "since: a time in RFC 3339 form"),
        (["--since", ""], "since: a time in RFC 3339 form"),
        (["--type", "run", "--expect-root", "0" * 64], "a root is over all entities; leave out --type"),
    ],
)
def test_invalid_selection_is_refused_in_one_line(ask: Ask, arguments: list[str], told: str) -> None:
    assert ask(*arguments, status=2) == ""
    assert told in ask.err
    assert ask.err.startswith("refold: ")
    assert ask.err.count("\n") == 1
