"""Who may use each entry point of docs/SECURITY.md. Anyone else is refused, and changes nothing.

If root runs the tests, a child process gives up the right to override permissions, and files go to another user.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import refold
from refold_tests.command import Done, held, refold_command
from refold_tests.permissions import WITHOUT_OVERRIDE
from refold_tests.tree import ROOT

OTHER_USER = 12345
TESTS = ROOT / "tests"


class World(NamedTuple):
    """Files of another user. log: a log whose folder this user may read; `secret`: a folder that this user may not
    enter.
    """

    folder: Path
    log: Path
    secret: Path

    def tried(
        self, *words: object, log: Path | None = None, given: bytes = b"", more: dict[str, str] | None = None
    ) -> Done:
        """Run a command as a user who may not write there."""
        url = f"file:{log or self.log}"
        return refold_command(*words, log=url, folder=self.folder, given=given, more=more, before=WITHOUT_OVERRIDE)

    def closed(self, name: str, data: bytes) -> Path:
        """Create a file that this user may not read."""
        path = self.folder / name
        path.write_bytes(data)
        give_away(path, 0o600)
        return path


def give_away(path: Path, mode: int) -> None:
    path.chmod(mode)
    if os.geteuid() == 0:
        os.chown(path, OTHER_USER, OTHER_USER)


@pytest.fixture
def world(tmp_path: Path) -> World:
    log, secret = tmp_path / "log", tmp_path / "secret"
    with refold.open(f"file:{log}") as made:
        made.observe("tool_config/acme", {"rate_limit": 50})
    (log / "owner.sock").unlink(missing_ok=True)
    shutil.copytree(log, secret)
    for each in (log, *log.rglob("*")):
        give_away(each, 0o755 if each.is_dir() else 0o644)
    for each in [*secret.rglob("*"), secret]:
        give_away(each, 0o700 if each.is_dir() else 0o600)
    return World(tmp_path, log, secret)


LINE = {"entity": "tool_config/acme", "observed_at": "2026-01-01T00:00:00Z", "patch": {"rate_limit": 7},
        "source": {"agent": "a"}}  # fmt: skip
CHAT = {"id": "c", "messages": [{"role": "user", "content": "hello"}]}


def _exported(world: World, name: str, *more: str) -> Path:
    """Export a file from a log of this user."""
    path, source = world.folder / name, f"file:{world.folder / 'own'}"
    with refold.open(source) as log:
        log.observe("tool_config/acme", {"rate_limit": 9})
    assert refold_command("export", path, *more, log=source).status == 0
    return path


def import_lines(world: World) -> list[Done]:
    lines, chat = world.folder / "lines.jsonl", world.folder / "chat.jsonl"
    lines.write_text(json.dumps(LINE))
    chat.write_text(json.dumps(CHAT))
    return [world.tried("import", lines), world.tried("import", chat, "--format", "chat"),
            world.tried("import", world.closed("theirs.jsonl", b"{}"), log=world.folder / "mine")]  # fmt: skip


def import_stdin(world: World) -> list[Done]:
    return [world.tried("import", "-", given=json.dumps(LINE).encode())]


def import_avro(world: World) -> list[Done]:
    return [world.tried("import", _exported(world, "export.avro")),
            world.tried("import", _exported(world, "log.avro", "--archive"), "--format", "archive")]  # fmt: skip


def log_files(world: World) -> list[Done]:
    reads = [world.tried(*words, log=world.secret) for words in (["state", "tool_config/acme"], ["verify"], ["runs"])]
    return [*reads, world.tried("observe", "tool_config/acme", "rate_limit=1"), world.tried("mark", "mine")]


def type_files(world: World) -> list[Done]:
    path = world.closed("theirs.avsc", b'{"type": "record", "name": "x", "fields": []}')
    return [world.tried("--types", path, "state", "tool_config/acme"), world.tried("types", "--register", path)]


def named_files(world: World) -> list[Done]:
    path = world.closed("theirs", b"x" * 32)
    return [world.tried("state", "tool_config/acme", "--log", "kafka://127.0.0.1:9/a",
                        more={"REFOLD_KAFKA_CONFIG": str(path)}),
            world.tried("observe", "tool_config/acme", f"rate_limit=@{path}", log=world.folder / "mine")]  # fmt: skip


def golden_files(world: World) -> list[Done]:
    path = world.closed("theirs.golden.json", b"{}")
    return [world.tried("golden", word, path) for word in ("sign", "list")]


def agents_files(world: World) -> list[Done]:
    path = world.closed("refold.toml", b"[agents.a]\ncommand = ['true']\n")
    return [world.tried("up", "--file", path, log=world.folder / "mine")]


def remedies(world: World) -> list[Done]:
    path = world.closed("heal.toml", b"")
    return [world.tried("heal", "r", option, path) for option in ("--remedies", "--file")]


def sinks_store(world: World) -> list[Done]:
    store = world.folder / "store"
    store.mkdir()
    give_away(store, 0o755)
    return [world.tried("sink", "parquet", "--once", "--to", f"file://{store}")]


def definitions(world: World) -> list[Done]:
    document = {"type": "record", "name": "mine", "fields": [
        {"name": "x", "type": "string", "refold.reducer": "custom", "refold.function": "os:system"}]}  # fmt: skip
    (world.folder / "mine.avsc").write_text(json.dumps(document))
    return [world.tried("types", "--register", world.folder / "mine.avsc", log=world.folder / "mine")]


def search_index(world: World) -> list[Done]:
    path = world.closed("theirs.sqlite", b"")
    return [world.tried("run", "search", "kettle", "--index", path)]


Tries = Callable[[World], list[Done]]
# For each entry point, by the beginning of its row: the attempts made here, or the tests that try it on their own
# server.
REFUSED: dict[str, Tries | list[str]] = {
    "`refold import`: JSON lines": import_lines,
    "`refold import -`": import_stdin,
    "`refold import`: Avro": import_avro,
    "a log's `.observations` on Kafka": [
        "explorer/test_secured.py::test_no_role_writes_outside_its_topics",
        "explorer/test_secured.py::test_denied_access_names_the_entry_and_the_command",
    ],
    "a log's topics on Kafka, except": ["explorer/test_secured.py::test_no_role_writes_outside_its_topics"],
    "a log's topic `.contents`": ["explorer/test_secured.py::test_no_role_writes_outside_its_topics"],
    "`refold quarantine`": ["explorer/test_secured.py::test_poisoned_schemas_topic_is_repaired_as_documented"],
    "redaction": [],  # for everyone who communicates with an agent
    "a worker's pages over HTTP": [
        "streams/web/test_server.py::test_unknown_host_is_refused",
        "streams/web/test_server.py::test_pages_of_other_origins_are_refused",
        "streams/web/test_server.py::test_token_is_required_and_open_pages_reveal_less",
        "streams/web/test_server.py::test_server_off_loopback_needs_a_token",
        "explorer/test_worker.py::test_pages_that_cannot_be_served_are_one_clear_line",
        "explorer/test_worker.py::test_workers_and_commands_query_workers_with_a_token_and_tls",
    ],
    "a policy's file": ["explorer/test_secured.py::test_no_role_writes_outside_its_topics"],  # an answer is a record
    "`refold.toml`": agents_files,
    "remedies": remedies,
    "`refold proxy`": ["agents/capture/test_wire.py::test_requests_that_are_not_forwarded"],
    "the explorer's pages": [
        "explorer/web/test_guarded.py::test_only_known_hosts_and_same_origin_pages_are_served",
        "explorer/web/test_guarded.py::test_token_is_requested_once",
        "explorer/web/test_guarded.py::test_nothing_is_written",
    ],
    "the deck": [],  # for the user who started it
    "the search index": search_index,
    "a table of prices": [],  # for everyone who runs a command
    "`refold plan`": [],  # for everyone who runs a command: it reads nothing
    "the spool of a proxy": [],  # for the user who captures
    "a program in Node.js": [],  # for the user who started it
    "the changes of a fork": ["explorer/test_run_code.py::test_impossible_fork_is_refused"],
    "names of an import's keys": [],  # for everyone who runs a command
    "an agent's questions by MCP": [
        "explorer/mcp/test_hostile.py::test_only_known_hosts_and_no_web_origin_are_served",
        "explorer/mcp/test_hostile.py::test_requests_without_the_token_are_refused",
        "explorer/mcp/test_tools.py::test_tools_record_only_when_allowed",
        "explorer/mcp/test_tools.py::test_invalid_options_are_refused_before_serving",
    ],
    "spans and logs over OTLP": [
        "agents/adapters/otlp/test_receive.py::test_unsupported_requests_get_the_status_that_otlp_specifies",
        "agents/adapters/otlp/test_receive.py::test_unusable_options_are_refused_at_start",
    ],
    "messages between a client and an MCP server over HTTP": [
        "agents/capture/test_mcp_http.py::test_pages_of_web_sites_are_refused"
    ],
    "messages between a client and an MCP server that it starts": [],  # for the user who started it
    "a worker's URL": ["explorer/test_secured.py::test_denied_access_names_the_entry_and_the_command"],
    "checkpoints of LangGraph": [
        "explorer/test_secured.py::test_no_role_writes_outside_its_topics"
    ],  # they are records
    "an agent's code under replay": ["agents/test_entry.py::test_recorded_name_loads_nothing_outside_of_the_folder"],
    "the files of a key ring": ["agents/keys/test_rings.py::test_only_their_user_can_read_key_files"],
    "`refold sink`": sinks_store,
    "the files of an embedded log": log_files,
    "WHEN": [],  # for everyone who runs a command
    "Type files": type_files,
    "files that the environment names": named_files,
    "The command line": [],  # for everyone who runs a command
    "Golden traces": golden_files,
    "the owner's socket": [
        "streams/test_file_socket.py::test_another_user_is_rejected_even_with_a_world_writable_socket",
        "streams/test_file_socket.py::test_short_folder_writable_by_others_is_refused",
    ],
    "a type definition": definitions,
    "a value that a registered": [],  # for everyone who may observe
}


def entrances() -> list[str]:
    """Return the first cells of the table of entry points."""
    page = (ROOT / "docs" / "SECURITY.md").read_text(encoding="utf-8")
    (section,) = re.findall(r"^## Entrances\n(.*?)^## ", page, re.MULTILINE | re.DOTALL)
    rows = [line.split("|")[1].strip() for line in section.splitlines() if line.startswith("|")]
    return rows[2:]


def test_every_entry_point_has_a_refusal_test() -> None:
    assert len(entrances()) == len(REFUSED)
    for row in entrances():
        assert len([begin for begin in REFUSED if row.startswith(begin)]) == 1, row


def test_named_tests_exist() -> None:
    for name in {each for tried in REFUSED.values() if isinstance(tried, list) for each in tried}:
        file, _, function = name.partition("::")
        tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
        assert function in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, name


@pytest.mark.parametrize("entrance", [begin for begin, tried in REFUSED.items() if not isinstance(tried, list)])
def test_other_user_is_refused_and_nothing_changes(entrance: str, world: World) -> None:
    tries = REFUSED[entrance]
    assert not isinstance(tries, list)
    before = held(world.log)
    for done in tries(world):
        done.refused()
    assert held(world.log) == before


def test_permitted_user_is_not_refused(world: World) -> None:
    """The others are refused only because they lack the right."""
    _given_back(world.log)
    assert world.tried("import", "-", given=json.dumps(LINE).encode()).status == 0
    assert world.tried("sink", "parquet", "--once", "--to", f"file://{world.folder / 'store'}").status == 0


def _given_back(folder: Path) -> None:
    for each in (folder, *folder.rglob("*")):
        if os.geteuid() == 0:
            os.chown(each, 0, 0)
