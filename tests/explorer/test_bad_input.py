"""Unusable input: exit status 2, one line that names the position and the remedy, and an unchanged log."""

from __future__ import annotations

import base64
import gzip
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import refold
from refold_tests.child import Child, children
from refold_tests.command import Done, held, refold_command
from refold_tests.devices import small_device

CONFIG = "tool_config/acme"
LINE: dict[str, Any] = {"entity": CONFIG, "observed_at": "2026-01-01T00:00:00Z", "patch": {"rate_limit": 1}}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A log with two observations of one entity and a marker."""
    path = tmp_path / "log"
    with refold.open(f"file:{path}") as log:
        log.observe(CONFIG, {"rate_limit": 50, "settings": {"a": 1}}, source="deployer")
        log.flush()
        log.mark("deploy-1")
        log.observe(CONFIG, {"rate_limit": 70}, source="other")
    return path


@pytest.fixture
def refused(path: Path) -> Callable[..., str]:
    """Run a command on the log; check that it is refused and the log is unchanged; return the line it prints."""

    def run(*arguments: object, **more: Any) -> str:
        before = held(path)
        said = refold_command(*arguments, log=f"file:{path}", folder=path.parent, **more).refused()
        assert held(path) == before
        return said

    return run


OBSERVED: dict[str, tuple[list[Any], list[str]]] = {
    "unknown type": (["nope/x", "a=1"], ["unknown type 'nope'", "tool_config", "--types"]),
    "unknown field": ([CONFIG, "speed=1"], ["speed", "tool_config has the fields", "rate_limit"]),
    "unknown cleared field": ([CONFIG, "--clear", "speed"], ["cleared", "tool_config has the fields"]),
    "wrong type": ([CONFIG, "rate_limit=fast"], ["rate_limit", "an integer", "'fast'"]),
    "wrong boolean": ([CONFIG, "enabled=yes"], ["enabled", "true or false", "'yes'"]),
    "wrong symbol": ([CONFIG, "effect=maybe"], ["effect", "one of read, write", "'maybe'"]),
    "not json": ([CONFIG, "tags=a"], ["tags", "JSON", '["a", "b"]']),
    "bare word as json": ([CONFIG, "settings.mode=fast"], ["settings.mode", "double quotes", "'fast'"]),
    "key of no map": ([CONFIG, "tool.name=x"], ["tool.name", "not a map"]),
    "field given twice": ([CONFIG, "tool=a", "tool=b"], ["tool", "given twice"]),
    "no assignment": ([CONFIG, "rate_limit"], ["'rate_limit'", "FIELD=VALUE"]),
    "unreadable file": ([CONFIG, "tool=@absent"], ["tool", "'absent'", "cannot be read", "@@"]),
    "nan": (["evaluation/e", "score=nan"], ["score", "NaN and infinity"]),
    "infinity": (["evaluation/e", "score=-inf"], ["score", "NaN and infinity"]),
    "nan in json": ([CONFIG, "settings.x=[NaN]"], ["settings.x", "JSON"]),
    "integer past its type": ([CONFIG, f"rate_limit={2**63}"], ["rate_limit", "(long)", str(2**63)]),
    "fraction in an integer": ([CONFIG, "rate_limit=1.5"], ["rate_limit", "an integer", "1.5"]),
    "double past its type": (["evaluation/e", "score=1e999"], ["score", "NaN and infinity"]),
    "empty id": (["tool_config/", "rate_limit=1"], ["TYPE/ID"]),
    "no slash": (["acme", "rate_limit=1"], ["acme"]),
    "long id": (
        ["tool_config/" + "x" * 100_000, "rate_limit=1"],
        ["entity", "at most 1024 bytes", "(100012 bytes)"],
    ),
    "control character": (["tool_config/a\nb", "rate_limit=1"], ["entity", "no control characters"]),
    "unparsable time": (
        [CONFIG, "rate_limit=1", "--at", "yesterday"],
        ["--at", "RFC 3339", "such as 2026-11-21"],
    ),
    "time without zone": ([CONFIG, "rate_limit=1", "--at", "2026-01-01T00:00:00"], ["--at", "zone"]),
    "impossible time": ([CONFIG, "rate_limit=1", "--at", "2026-02-30T00:00:00Z"], ["--at", "RFC 3339"]),
    "future time": (
        [CONFIG, "rate_limit=1", "--at", "2999-01-01T00:00:00Z"],
        ["at most 5 minutes ahead", "--allow-future"],
    ),
    "nothing said": ([CONFIG], ["patch", "fields, cleared or retracts"]),
    "bad cause": ([CONFIG, "rate_limit=1", "--cause", "abc"], ["causes", "64 hexadecimal digits"]),
    "bad link": ([CONFIG, "--link", "of"], ["--link", "RELATION=TARGET"]),
    "link and fields": ([CONFIG, "rate_limit=1", "--link", "of=run/1"], ["link", "no patch"]),
    "priority past its type": ([CONFIG, "rate_limit=1", "--priority", 2**31], ["priority", "an integer in"]),
}


@pytest.mark.parametrize("case", OBSERVED)
def test_observe_refuses(case: str, refused: Callable[..., str], tmp_path: Path) -> None:
    arguments, words = OBSERVED[case]
    said = refused("observe", *arguments)
    assert all(word in said for word in words), said


def test_refused_observation_makes_no_log(tmp_path: Path) -> None:
    for arguments, words in list(OBSERVED.values())[:4]:
        said = refold_command("observe", *arguments, log=f"file:{tmp_path / 'new'}").refused()
        assert all(word in said for word in words), said
        assert not (tmp_path / "new").exists()


POINTS = {
    "no form": ("last tuesday", ["'last tuesday'", "@marker", "cut:TEXT", "run:ID#STEP"]),
    "unknown marker": ("@deploy-2", ["@deploy-2", "no such marker", "@deploy-1"]),
    "past the end": ("offset:0=999", ["offset 999", "past the end", "next offset"]),
    "no such partition": ("offset:99=1", ["offset:99=1", "partitions 0 to 7"]),
    "bad offsets": ("offset:zero", ["offset:0=41,1=17"]),
    "before the log begins": ("2001-01-01T00:00:00Z", ["the log begins at", "earliest"]),
    "time without zone": ("2026-01-01T00:00:00", ["zone"]),
    "damaged cut": ("cut:1.AAAA", ["damaged cut"]),
    "unknown short cut": ("cut:0123456789ab", ["no marker is", "whole text"]),
    "version without entity": ("v3", ["v3", "TYPE/ID"]),
    "no such step": ("run:r#1", ["step/r#1", "refold state run/r"]),
}


@pytest.mark.parametrize("case", POINTS)
def test_rebuild_refuses_a_point(case: str, refused: Callable[..., str]) -> None:
    when, words = POINTS[case]
    said = refused("rebuild", "--at", when)
    assert all(word in said for word in words), said


def test_another_logs_cut_is_refused_by_name(refused: Callable[..., str], tmp_path: Path) -> None:
    with refold.open(f"file:{tmp_path / 'other'}") as other:
        cut, log_id = str(other.point().cut), other.port.log_id.hex()
    assert log_id in refused("rebuild", "--at", cut)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["state", "tool_config/nobody"], ["tool_config/nobody", "refold tail"]),
        (["state", CONFIG, "--at", "v9"], ["v9 does not exist", "v1 to v2"]),
        (
            ["state", CONFIG, "--at", "2001-01-01T00:00:00Z", "--clock", "observed"],
            ["no observation of it was made"],
        ),
        (["history", "tool_config/nobody"], ["tool_config/nobody"]),
        (["history", "run/nobody"], ["run"]),
        (["diff", "@deploy-1", "now", "tool_config/nobody"], ["tool_config/nobody"]),
        (["why", "tool_config/nobody.rate_limit"], ["tool_config/nobody"]),
        (["why", CONFIG + ".speed"], ["names no field", "rate_limit"]),
        (["why", CONFIG + ".tool"], ["the field has no value"]),
        (["why", CONFIG + ".settings.zzz"], ["no such key"]),
        (["why", "nope/x.y"], ["unknown type", "refold types"]),
        (["mark", "deploy-1"], ["'deploy-1' exists", "--replace"]),
        (["mark", "@x"], ["without @"]),
        (["mark", "new", "--at", "@absent"], ["no such marker"]),
        (["tail", "--from", "@absent"], ["no such marker"]),
        (["rebuild", "--expect-root", "abc"], ["--expect-root", "64"]),
        (["blob", "xyz"], ["64 hexadecimal digits"]),
        (["blob", "0" * 64], ["no such content"]),
        (["types", "nope"], ["unknown type 'nope'"]),
        (["types", "--register", "absent.avsc"], ["absent.avsc", "cannot be read"]),
        (["export", "."], ["folder"]),
        (["import", "absent.jsonl"], ["absent.jsonl", "cannot be read"]),
        (["import", "."], ["cannot be read"]),
        (["state"], ["Missing argument", "refold state --help"]),
        (["nonsense"], ["No such command 'nonsense'; see refold --help"]),
        (["verfy"], ["No such command 'verfy', did you mean verify?; see refold --help"]),
        (["run", "stepz"], ["No such command 'stepz', did you mean steps?; see refold run --help"]),
        (["state", CONFIG, "--clock", "cuckoo"], ["--clock", "recorded", "observed"]),
        (["state", CONFIG, "--owner-timeout", "0"], ["--owner-timeout"]),
        (["--log", "kafka://host", "rebuild"], ["names no log", "kafka://127.0.0.1:9092/agents"]),
        (["--log", "kafka://127.0.0.1:1/x", "--owner-timeout", "1", "rebuild"], ["no answer from 127.0.0.1:1"]),
        (["--log", "kafka://host/x", "import", "log.avro", "--format", "archive"], ["file:PATH"]),
        (["--log", "nothing", "rebuild"], ["'nothing'", "file:PATH"]),
        (["--log", "file:log?partitions=3", "observe", CONFIG, "rate_limit=1"], ["power of two"]),
        (
            ["--log", "file:log?partitions=32", "observe", CONFIG, "rate_limit=1"],
            ["8 partitions", "partitions=32"],
        ),
        (["--types", "absent", "observe", CONFIG, "rate_limit=1"], ["absent", "cannot be read"]),
    ],
    ids=lambda value: " ".join(map(str, value))[:40],
)
def test_command_refuses(arguments: list[str], words: list[str], refused: Callable[..., str]) -> None:
    said = refused(*arguments)
    assert all(word in said for word in words), said


# Files


def lines(*given: object) -> bytes:
    return b"".join(each if isinstance(each, bytes) else json.dumps(each).encode() + b"\n" for each in given)


def exported(path: Path) -> list[dict[str, Any]]:
    done = refold_command("export", "-", log=f"file:{path}")
    assert done.status == 0, done.err
    return [json.loads(line) for line in done.out.splitlines()]


FILES: dict[str, tuple[str, bytes, list[str]]] = {
    "not json": ("x.jsonl", lines(LINE, b"{'entity'}\n"), ["x.jsonl:2", "is not JSON"]),
    "a whole json document": ("x.jsonl", b"[\n1\n]\n", ["x.jsonl:1", "each line holds one whole JSON value"]),
    "not utf-8": ("x.jsonl", lines(LINE, b"\xff\n"), ["x.jsonl:2", "UTF-8"]),
    "no object": ("x.jsonl", lines(LINE, 7), ["x.jsonl:2", "JSON object"]),
    "unknown key": ("x.jsonl", lines({**LINE, "when": 1}), ["x.jsonl:1", "unknown key 'when'"]),
    "missing key": ("x.jsonl", lines({"entity": CONFIG}), ["x.jsonl:1", "observed_at"]),
    "nan": ("x.jsonl", lines(LINE, b'{"entity": NaN}\n'), ["x.jsonl:2", "NaN"]),
    "infinite number": ("x.jsonl", lines(b'{"entity":"evaluation/e","observed_at":0,"patch":{"score":1e999}}\n'),
                        ["x.jsonl:1", "NaN and infinity"]),
    "very deep": ("x.jsonl", b'{"entity":' + b"[" * 100_000 + b"\n", ["x.jsonl:1", "deep"]),
    "unknown type": ("x.jsonl", lines({**LINE, "entity": "nope/x"}), ["x.jsonl:1", "unknown type 'nope'", "--types"]),
    "unknown field": ("x.jsonl", lines({**LINE, "patch": {"speed": 1}}), ["x.jsonl:1", "speed"]),
    "wrong type": ("x.jsonl", lines({**LINE, "patch": {"rate_limit": "x"}}), ["x.jsonl:1", "rate_limit", "'x'"]),
    "far ahead": ("x.jsonl", lines({**LINE, "observed_at": "2999-01-01T00:00:00Z"}), ["x.jsonl:1", "5 minutes ahead"]),
    "odd cause": ("x.jsonl", lines({**LINE, "causes": [99999999999]}), ["x.jsonl:1", "causes"]),
    "odd cleared": ("x.jsonl", lines({**LINE, "cleared": [[1]]}), ["x.jsonl:1", "cleared"]),
    "odd source": ("x.jsonl", lines({**LINE, "source": {"agent": 1}}), ["x.jsonl:1", "source.agent"]),
    "odd link": ("x.jsonl", lines({**LINE, "link": [1]}), ["x.jsonl:1", "link"]),
    "odd id": ("x.jsonl", lines({**LINE, "id": "0" * 64}), ["x.jsonl:1", "is not the id of this content"]),
    "odd definition": ("x.jsonl", lines({"definition": {"type": "record"}}), ["x.jsonl:1", "name"]),
    "odd offset": ("x.jsonl", lines({"definition": {}, "offset": -1}), ["x.jsonl:1", "offset"]),
    "empty": ("x.jsonl", b"", ["x.jsonl", "holds no lines"]),
    "truncated gzip": ("x.jsonl.gz", gzip.compress(lines(LINE) * 500, mtime=0)[:-20], ["x.jsonl.gz", "truncated"]),
    "damaged gzip": ("x.gz", gzip.compress(lines(LINE), mtime=0)[:-8] + b"\0" * 8, ["x.gz", "damaged"]),
    "no gzip": ("x.jsonl.gz", lines(LINE), ["x.jsonl.gz", "not gzip"]),
    "no avro": ("x.avro", lines(LINE), ["x.avro", "not an Avro container"]),
    "foreign content": ("x.jsonl", lines({**LINE, "entity": "document/d", "patch": {"fields": {"a": {"$blob": {
        "hash": "1" * 64, "size": 9, "media_type": "application/json"}}}}}), ["x.jsonl:1", "1111", "neither"]),
    "false content": ("x.jsonl", lines({**LINE, "entity": "document/d", "patch": {"fields": {"a": {"$blob": {
        "hash": "1" * 64, "size": 9, "media_type": "application/json"}}}},
        "blobs": {"1" * 64: base64.b64encode(b"other").decode()}}), ["x.jsonl:1", "1111", "SHA-256"]),
}  # fmt: skip


@pytest.mark.parametrize("case", FILES)
def test_import_refuses(case: str, refused: Callable[..., str], tmp_path: Path) -> None:
    name, data, words = FILES[case]
    (tmp_path / name).write_bytes(data)
    said = refused("import", name)
    assert all(word in said for word in words), said


def test_good_file_given_with_a_bad_one_is_not_imported(refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "good.jsonl").write_bytes(lines(LINE) * 3)
    (tmp_path / "bad.jsonl").write_bytes(lines(LINE, b"no\n"))
    assert "bad.jsonl:2" in refused("import", "good.jsonl", "bad.jsonl")
    assert "standard input:2" in refused("import", "-", given=lines(LINE, b"no\n"))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (gzip.compress(b"[" * (70 << 20), 1), ["standard input:1", "--max-line-bytes"]),
        (b"[" * 1_000, ["standard input:1", "--max-depth"]),
        (b"Obj\x01" + b"\xff" * 100, ["standard input", "container"]),
    ],
    ids=["a line that is long once unpacked", "a line that is deep", "no container"],
)
def test_standard_input_has_the_bounds_of_a_file_and_its_copy_is_removed(
    given: bytes, words: list[str], refused: Callable[..., str], tmp_path: Path
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    said = refused("import", "-", given=given, more={"TMPDIR": str(temporary)})
    assert all(word in said for word in words), said
    assert [*temporary.iterdir()] == []
    assert "name it once" in refused("import", "-", "-", given=lines(LINE))


def test_refused_import_makes_no_log(tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_bytes(lines(LINE, b"no\n"))
    (tmp_path / "chat.jsonl").write_bytes(lines([{"role": "user", "content": "hi"}], {"no": "messages"}))
    for arguments in (
        ["bad.jsonl"],
        ["chat.jsonl", "--format", "chat"],
        ["chat.jsonl", "--format", "tau-bench"],
    ):
        said = refold_command("import", *arguments, log=f"file:{tmp_path / 'new'}", folder=tmp_path).refused()
        assert f"{arguments[0]}:" in said
        assert not (tmp_path / "new").exists()


def test_altered_export_line_is_refused(path: Path, refused: Callable[..., str], tmp_path: Path) -> None:
    first, second = exported(path)
    second["patch"]["rate_limit"] = 71
    (tmp_path / "changed.jsonl").write_bytes(lines(first, second))
    said = refused("import", "changed.jsonl")
    assert "changed.jsonl:2" in said
    assert second["id"] in said
    assert "is not the id of this content" in said


def test_truncated_avro_container_is_refused(path: Path, refused: Callable[..., str], tmp_path: Path) -> None:
    whole = tmp_path / "whole.avro"
    assert refold_command("export", whole, log=f"file:{path}").status == 0
    (tmp_path / "cut.avro").write_bytes(whole.read_bytes()[:-30])
    said = refused("import", "cut.avro")
    assert "cut.avro" in said
    assert "damaged or truncated" in said


def test_export_overwrites_only_on_request(refused: Callable[..., str], path: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    target.write_text("precious")
    assert "--force" in refused("export", "out.jsonl")
    assert target.read_text() == "precious"
    assert refold_command("export", target, "--force", log=f"file:{path}").status == 0
    assert len(target.read_text().splitlines()) == 2


# Paths without a log


def test_path_that_is_no_log_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name in ("folder", "file"):
        for arguments in (["rebuild"], ["observe", CONFIG, "rate_limit=1"], ["mark", "x"], ["verify"]):
            said = refold_command(*arguments, log=f"file:{tmp_path / name}").refused()
            assert f"{tmp_path / name}: not a refold log" in said
    assert [each.name for each in (tmp_path / "folder").iterdir()] == ["notes.txt"]


def test_reading_makes_no_log(tmp_path: Path) -> None:
    for arguments in (
        ["rebuild"],
        ["state", CONFIG],
        ["mark", "x"],
        ["verify"],
        ["tail"],
        ["markers"],
        ["export", "-"],
    ):
        said = refold_command(*arguments, folder=tmp_path).refused()
        assert "there is no log here" in said
        assert "--log" in said
    assert list(tmp_path.iterdir()) == []


def test_newer_format_is_refused(path: Path) -> None:
    (path / "FORMAT").write_text("refold-file 7\n")
    for arguments in (["rebuild"], ["observe", CONFIG, "rate_limit=1"]):
        said = refold_command(*arguments, log=f"file:{path}").refused()
        assert "file format 7" in said
        assert "newer refold" in said


def test_unresponsive_owner_is_named(path: Path) -> None:
    code = "import refold, sys\nlog = refold.open('file:' + sys.argv[1])\nprint('open', flush=True)\nsys.stdin.read()"
    before = held(path)
    with children() as start:
        owner: Child = start(code, path)
        assert owner.line() == "open"
        owner.signal(signal.SIGSTOP)
        observe = ("observe", CONFIG, "rate_limit=1", "--owner-timeout", "0.5")
        said = refold_command(*observe, log=f"file:{path}").refused()
        assert "did not answer in 0.5 s" in said
        assert refold_command("state", CONFIG, log=f"file:{path}").status == 0, "reading needs no owner"
        doctor = refold_command("doctor", "--json", "--owner-timeout", "0.5", log=f"file:{path}")
        assert doctor.status == 1
        assert [each["subject"] for each in doctor.json["findings"] if not each["ok"]] == ["owner"]
        assert held(path) == before
        owner.signal(signal.SIGCONT)
        assert refold_command(*observe, log=f"file:{path}").status == 0


# Full disks


def written(path: Path, count: int) -> Path:
    """Write a file of many observations, each with its own incompressible value."""
    body = [
        {**LINE, "entity": f"tool_config/{number % 100}", "source": {"agent": "a", "run": "r", "seq": number},
         "patch": {"settings": {"x": os.urandom(600).hex()}}}
        for number in range(count)
    ]  # fmt: skip
    path.write_bytes(lines(*body))
    return path


LIMIT_FILE_SIZE = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1_500_000, resource.RLIM_INFINITY))"


def test_import_onto_a_full_disk_is_completed_by_a_second_import(tmp_path: Path) -> None:
    source, url = written(tmp_path / "x.jsonl", 3_000), f"file:{tmp_path / 'log'}"
    said = refold_command("import", source, log=url, before=LIMIT_FILE_SIZE).refused()
    assert "the import stopped" in said
    assert "of 3,000 observations are recorded" in said
    assert "import the same again" in said
    again = refold_command("import", source, "--json", log=url).json
    assert again["read"] == 3_000
    assert again["new"] + again["known"] == 3_000
    assert refold_command("verify", "--json", log=url).json["observations"] == 3_000


def test_export_onto_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'log'}"
    assert refold_command("import", written(tmp_path / "x.jsonl", 3_000), log=url).status == 0
    (tmp_path / "out").mkdir()
    target = tmp_path / "out" / "x.jsonl"
    assert "File too large" in refold_command("export", target, log=url, before=LIMIT_FILE_SIZE).refused()
    assert list((tmp_path / "out").iterdir()) == []


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    with small_device(tmp_path / "small") as folder:
        yield folder


def test_standard_input_too_large_for_the_temporary_folder_is_refused(small: Path, refused: Callable[..., str]) -> None:
    free = os.statvfs(small)
    given = bytes(free.f_bavail * free.f_frsize + 1)
    said = refused("import", "-", given=given, more={"TMPDIR": str(small)})
    assert "-: cannot be copied to" in said
    assert "No space left on device; name another place in TMPDIR" in said
    assert [each for each in small.iterdir() if each.name.startswith("refold-import-")] == []


def test_full_device_is_reported_in_one_line(small: Path, tmp_path: Path) -> None:
    url = f"file:{small / 'log'}"
    assert refold_command("observe", CONFIG, "rate_limit=1", log=url).status == 0
    free = os.statvfs(small)
    (small / "filler").write_bytes(bytes(free.f_bavail * free.f_frsize))
    full: Done = refold_command("import", written(tmp_path / "x.jsonl", 3_000), log=url)
    assert "space left" in full.refused()
    also = refold_command("observe", CONFIG, "rate_limit=2", log=url)
    assert also.status == 2
    assert "space left" in also.err
    # There may be enough space to write the record, but not enough to close the log.
    assert ("done, and durable" in also.err) == bool(also.out)
    (small / "filler").unlink()
    assert refold_command("observe", CONFIG, "rate_limit=2", log=url).status == 0
    assert refold_command("verify", "--json", log=url).json["ok"]
