"""Nothing can block erasure: damage of one run's key is reported, and all other runs are processed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from refold.agents.log import AgentLog, open_log
from refold.agents.recorder.run import Run
from refold.agents.redaction.redactor import Redactor
from refold.agents.retention.classes import DAY_MICROS, days_of
from refold.agents.retention.marks import flag
from refold.agents.retention.sweep import SweepResult, sweep
from refold.avro.errors import Expired, KeyUnreadable
from refold.explorer.cli.main import run

DAMAGE = ["", "{}", '{"key": "00", "key_id": "run:b"}', "\0\0\0", "[" * 9_999,
          '{"key": "00", "key_id": "\\udfff"}', "a folder"]  # fmt: skip
DAMAGE_IDS = ["empty", "no members", "another run's", "zeros", "deep", "half a character", "a folder"]


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Return the URL of a log of the runs a, b and c, each of which has a distinct word in its content."""
    url = f"file:{tmp_path}/log"
    with open_log(url) as log:
        for name in "abc":
            record(log, name)
    return url


def record(log: AgentLog, name: str, **given: Any) -> None:
    with log.run("agent", id=name, title=f"title of {name}", input={"of": f"word-{name}"}, **given) as begun:
        agent(begun)


def agent(run: Run) -> Any:
    with run.step("only"):
        run.state["said"] = run.input["of"]


def key_file(tmp_path: Path, name: str) -> Path:
    return tmp_path / "log" / "keys" / hashlib.sha256(f"run:{name}".encode()).hexdigest()


def damage(path: Path, how: str) -> None:
    if how == "a folder":
        path.unlink()
        path.mkdir()
    else:
        path.write_text(how)


def swept(log: AgentLog, days: float) -> SweepResult:
    now = log.state("run/a").fields["ended_at"] + round(days * DAY_MICROS) + 10**9
    return sweep(log, log.vault.ring, days_of([]), now)


@pytest.mark.parametrize("how", DAMAGE, ids=DAMAGE_IDS)
def test_damaged_key_of_a_kept_run_is_named_and_others_are_swept(
    url: str, how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_log(url) as log:
        log.observe("run/b", {"pinned": True})
    path = key_file(tmp_path, "b")
    whole = path.read_bytes()
    damage(path, how)

    def refold(*arguments: str) -> tuple[int, str, str]:
        status = run([*arguments, "--log", url])
        said = capsys.readouterr()
        return status, said.out, said.err

    def is_named(err: str) -> bool:
        return f"run b: {path}" in err and "restore it from a copy" in err and err.count("\n") == 1

    for arguments in (["runs"], ["runs", "--text", "word"], ["runs", "--text", "word", "--json"]):
        status, out, err = refold(*arguments)
        assert (status, is_named(err)) == (1, True), (arguments, err)
        words = ('"run": "a"', '"run": "c"') if "--json" in arguments else ("title of a", "title of c")
        assert all(each in out for each in words), out
    status, out, err = refold("run", "replay", "--all", "--json")
    replayed = {each["run"]: each for each in json.loads(out)}
    assert status == 1
    assert (replayed["a"]["same"], replayed["b"]["same"], replayed["c"]["same"]) == (True, None, True)
    assert str(path) in replayed["b"]["error"]
    status, out, err = refold("retain", "--class", "success=0")
    assert (status, is_named(err)) == (1, True), err
    assert "2 runs would expire: 2 keys" in out
    status, out, err = refold("retain", "--class", "success=0", "--apply")
    assert (status, is_named(err)) == (1, True), err
    assert "2 runs expired: 2 keys" in out
    assert not key_file(tmp_path, "a").exists()
    assert not key_file(tmp_path, "c").exists()
    if how != "a folder":
        path.write_bytes(whole)
        with open_log(url) as log:
            assert log.recording("b").input == {"of": "word-b"}
        assert refold("retain", "--class", "success=0", "--apply")[0] == 0


@pytest.mark.parametrize("how", DAMAGE[:-1], ids=DAMAGE_IDS[:-1])
def test_damaged_key_of_an_expired_run_is_destroyed_with_it(url: str, how: str, tmp_path: Path) -> None:
    damage(key_file(tmp_path, "b"), how)
    with open_log(url) as log:
        done = swept(log, 8)
        assert (done.runs, done.keys, done.failed) == (["a", "b", "c"], 3, {})
        assert [each.key_id for each in done.plan.damaged] == ["run:b"]
        with pytest.raises(Expired):
            log.recording("b")
        assert swept(log, 8).plan.damaged == []
        assert log.verify().ok
    assert [*(tmp_path / "log" / "keys").iterdir()] == []


def test_indestructible_key_leaves_its_run_whole_and_others_expire(url: str, tmp_path: Path) -> None:
    damage(key_file(tmp_path, "b"), "a folder")
    with open_log(url) as log:
        done = swept(log, 8)
        assert (done.runs, [*done.failed]) == (["a", "c"], ["b"])
        assert str(tmp_path) in done.failed["b"]
        with pytest.raises(KeyUnreadable):
            log.recording("b")
        for each in "ac":
            with pytest.raises(Expired):
                log.recording(each)


def test_file_that_is_not_a_runs_key_is_named_and_kept(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = tmp_path / "log" / "keys" / "notes"
    odd.write_text("mine")
    assert run(["retain", "--class", "success=0", "--apply", "--log", url]) == 1
    said = capsys.readouterr()
    assert "3 runs expired" in said.out
    assert str(odd) in said.err
    assert odd.read_text() == "mine"


def test_flag_reason_is_redacted(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    def reason(name: str) -> Any:
        with open_log(url) as log:
            return log.vault.open(f"run/{name}", "flag_reason", log.state(f"run/{name}").fields["flag_reason"])

    assert run(["run", "flag", "a", "--reason", "bob@example.com said password='x'", "--log", url]) == 0
    first = reason("a")
    assert "bob@" not in first
    assert "'x'" not in first
    with open_log(url) as log:
        flag(log, log.vault, "b", "bob@example.com said password='x'")
        flag(log, log.vault, "c", "Mia Li", Redactor(rules={"person": "Mia Li"}))
        # The tokens are the same as in the other runs of this log.
        record(log, "d", redact=Redactor())
        with log.run("agent", id="e", input="bob@example.com", redact=Redactor()):
            pass
        token = log.recording("e").input
    assert reason("b") == first == first.replace("bob@example.com", token)
    assert first.startswith(f"{token} said")
    assert reason("c").startswith("[person:")
    capsys.readouterr()


NAMES = {"diagnosis of Mia Li": "flu", "b": {"c": 1.0}, "a": ["x" * 3000]}


@pytest.mark.parametrize("metadata", [NAMES, {"*": {"Mia Li": 1}}, {"*": "Mia Li"}, {"Mia Li": None}])
def test_names_in_metadata_are_sealed_with_it(metadata: dict[str, Any], tmp_path: Path) -> None:
    url = f"file:{tmp_path}/log"
    with open_log(url) as log:
        record(log, "a", metadata=metadata)
        assert log.recording("a").metadata == metadata
        assert [*log.recording("a").metadata] == [*metadata]
        assert [*log.state("run/a").fields["metadata"]] == ["*"]
        root = log.rebuild().root
        swept(log, 8)
        assert log.rebuild().root == root
        assert log.verify().ok
    whole = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"Mia Li" not in whole


def test_metadata_of_older_and_unsealed_runs_stays_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_log(f"file:{tmp_path}/log") as log:
        record(log, "a")
        seal = log.vault.seal
        for name, metadata in (("a", {"x": 1, "*": {"y": 2}}), ("b", {"*": "z"})):
            old = {key: seal(f"run:{name}", f"run/{name}", "metadata", each) for key, each in metadata.items()}
            if name == "b":
                record(log, name)
            log.observe(f"run/{name}", {"metadata": old})
            assert log.recording(name).metadata == metadata
    monkeypatch.setenv("REFOLD_KEYS", "none")
    with open_log(f"file:{tmp_path}/clear") as log:
        record(log, "a", metadata=NAMES)
        assert log.recording("a").metadata == NAMES
        assert {*log.state("run/a").fields["metadata"]} == {*NAMES}
