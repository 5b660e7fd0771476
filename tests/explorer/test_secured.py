"""A secured broker: the main job by users with only the rights they need, whose secrets appear nowhere.

One broker and one log serve the module. Each test can also run by itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

import refold
from refold.avro.errors import Denied
from refold.explorer.cli.main import run
from refold.streams.log.kafka.clients import Clients
from refold.streams.log.kafka.log import KafkaLog
from refold.streams.log.kafka.offsets import KafkaPartition
from refold.streams.log.kafka.producer import LogProducer, OutgoingRecord
from refold.streams.log.kafka.schemas import schema_record
from refold.streams.log.kafka.url import merged, parse_url
from refold.streams.registry.settings import registry_settings
from refold.streams.worker.config import FoldConfig
from refold_tests.brokers import SharedKafka, started
from refold_tests.junk import unreadable_definitions
from refold_tests.sample_types import defined
from refold_tests.secured import PREFIX, USERS, Secured, Watched, started_command
from refold_tests.tree import ROOT
from refold_tests.waiting import answered_within, await_true
from refold_tests.worker_process import LOGGED

pytestmark = [pytest.mark.kafka, pytest.mark.xdist_group("secured")]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """The broker, users with the rights of their roles, and a log that the manager created."""
    with started(secure=True) as kafka:
        found = Secured(kafka, tmp_path_factory.mktemp("secured"))
        for user, roles in USERS.items():
            found.ask("admin", "acl", "apply", *_wanted(user), *(["--keys"] if "producer" in roles else []))
        made = found.ask("manager", "init", "--log", f"{found.url}?partitions=2", "--json")
        assert (made["made"], made["partitions"], made["activations"]) == (True, 2, True)
        found.ask("manager", "observe", "tool_config/acme", "rate_limit=50")
        found.ask("manager", "observe", "document/d", "fields={}")
        yield found


def _wanted(user: str) -> list[str]:
    roles = [word for role in USERS[user] for word in ("--role", role)]
    return [*roles, "--principal", f"User:{user}", *(["--group", "billing"] if user == "manager" else [])]


def test_applied_entries_remain_and_missing_ones_are_named(secured: Secured) -> None:
    wanted = _wanted("reader")
    assert secured.ask("admin", "acl", "apply", *wanted, "--json")["added"] == []
    assert secured.ask("admin", "acl", "check", *wanted, "--json")["ok"] is True
    admin = AdminClient(secured.kafka.client_config())
    entry = (ResourceType.TOPIC, f"{PREFIX}.changes", ResourcePatternType.LITERAL, "User:reader", "*",
             AclOperation.READ)  # fmt: skip
    for removed in admin.delete_acls([AclBindingFilter(*entry, AclPermissionType.ALLOW)]).values():
        assert len(removed.result()) == 1
    found = secured.ask("admin", "acl", "check", *wanted, "--json", status=1)
    lacking = {"resource": "topic", "name": "agents.changes", "pattern": "literal", "operation": "Read"}
    assert (found["missing"], found["extra"]) == ([{**lacking, "denied": False}], [])
    assert [line.partition(" --add ")[2] for line in found["commands"]] == [
        "--allow-principal 'User:reader' --operation Read --topic agents.changes"
    ]
    dry = secured.ask("admin", "acl", "apply", *wanted, "--dry-run", "--json")
    assert (dry["added"], dry["applied"]) == ([lacking], False)
    assert secured.ask("admin", "acl", "check", *wanted, status=1).startswith("         operation")
    assert secured.ask("admin", "acl", "apply", *wanted, "--json")["added"] == [lacking]
    denial = [AclBinding(*entry, AclPermissionType.DENY)]
    for done in admin.create_acls(denial).values():
        done.result()
    found = secured.ask("admin", "acl", "check", *wanted, "--json", status=1)
    assert found["missing"] == [{**lacking, "denied": True}]
    assert "remove it with kafka-acls.sh" in secured.ask("admin", "acl", "apply", *wanted, status=2)
    for gone in admin.delete_acls([AclBindingFilter(*entry, AclPermissionType.DENY)]).values():
        assert len(gone.result()) == 1
    assert secured.ask("manager", "acl", "check", *wanted, "--json")["ok"] is True
    # A worker has more rights than a reader; the additional ones are listed.
    as_reader = ["--role", "reader", "--principal", "User:worker"]
    extra = secured.ask("admin", "acl", "check", *as_reader, "--json")["extra"]
    assert {"resource": "topic", "name": "agents.changes", "pattern": "literal", "operation": "Write"} in extra


@pytest.fixture(scope="module")
def main_job(secured: Secured, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Run the main job, each part by a user with only the rights for it; return the command line of every process."""
    tmp_path = tmp_path_factory.mktemp("exports")
    with (
        pytest.MonkeyPatch.context() as monkeypatch,
        Watched() as watched,
        secured.worker("worker", name="plain") as worker,
    ):
        for number in range(4):
            said = secured.ask("producer", "observe", f"document/d{number}", f'fields={{"n":{number}}}')
            assert "is recorded; this user may not read where" in said
        await_true(lambda: worker.is_ready and sum(each["offset"] for each in worker.folding.values()) == 6)
        assert secured.ask("reader", "state", "document/d1", "--json")["fields"]["fields"]["value"] == {"n": 1}
        assert len(secured.ask("reader", "history", "tool_config/acme", "--json")) == 1
        assert secured.ask("reader", "why", "tool_config/acme.rate_limit", "--json")
        marked = secured.ask("manager", "mark", "before", "--json")
        secured.ask("manager", "snapshot", "--json")
        assert secured.ask("sink", "rebuild", "--at", "@before", "--json")["cut"] == marked["cut"]
        monkeypatch.syspath_prepend(str(ROOT / "docs" / "examples"))
        secured.ask("sink", "sink", "sqlite_sink:open_sink", "--to", secured.folder / "store.db")
        with contextlib.closing(sqlite3.connect(secured.folder / "store.db")) as store:
            assert store.execute("SELECT count(*) FROM state").fetchone() == (6,)
        with secured.as_user("reader"), refold.open(read_only=True) as log:
            apart, here = log.rebuild(parallel=True), log.rebuild(parallel=False)
            assert (apart.root, apart.source["apart"]) == (here.root, 2)
        secured.ask("reader", "export", tmp_path / "out.jsonl")
        secured.ask("reader", "export", tmp_path / "out.archive", "--archive")
        assert secured.ask("reader", "verify", "--json")["ok"] is True
        assert secured.ask("manager", "deadletters", "list", "--json")
        secured.ask("manager", "rewind", "billing", "--to", "@before", "--apply", "--json")
        secured.ask("agent", "demo", "--incident", keys=True)
        replayed = secured.ask("agent", "run", "replay", "incident-1", "--json", keys=True)
        assert replayed["hash"] == replayed["recorded_hash"]
    exports = [path.read_bytes().decode(errors="replace") for path in tmp_path.iterdir()]
    assert len(exports) == 2
    secured.said += [*watched.commands, *exports]
    return list(watched.commands)


def test_main_workflow_with_least_privilege(main_job: list[str]) -> None:
    assert any("refold.streams.rebuild.child" in each for each in main_job)
    assert any("\0worker\0" in each for each in main_job)


def _commands_of(heading: str) -> list[list[str]]:
    """Return the refold commands of a section of docs/OPERATIONS.md, split into words."""
    page = (ROOT / "docs" / "OPERATIONS.md").read_text(encoding="utf-8")
    block = page.partition(f"\n### {heading}\n")[2].partition("```shell\n")[2].partition("```")[0]
    return [line.partition("#")[0].split()[1:] for line in block.splitlines() if line.startswith("refold ")]


def test_poisoned_schemas_topic_is_repaired_as_documented(secured: Secured) -> None:
    """A producer with only a producer's rights wrote it. An admin follows docs/OPERATIONS.md word by word."""
    fields = [{"name": "title", "type": ["null", "long"], "refold.reducer": "sum"}]
    poison = defined({"type": "record", "name": "runbook", "fields": fields})
    with secured.worker("worker", name="poisoned") as worker:
        with secured.as_user("producer"):
            address = parse_url(secured.url)
            clients = Clients(merged(address, None), address.prefix)
            with contextlib.closing(LogProducer(clients)) as outgoing:
                place = KafkaPartition(f"{PREFIX}.schemas", 0)
                for junk in unreadable_definitions():
                    if len(junk.value or b"") < 900_000:
                        outgoing.send(OutgoingRecord(place, junk.key, junk.value, junk.headers, "junk"))
                at = outgoing.write(schema_record(place, poison, None))
        assert "title" in secured.ask("producer", "observe", "runbook/r", "title=x", status=2)
        words = _commands_of("A poisoned .schemas")
        assert [each[:2] for each in words] == [
            ["quarantine", "list"], ["quarantine", "add"], ["quarantine", "add"], ["doctor"], ["verify"],
        ]  # fmt: skip
        denied = secured.ask("producer", "quarantine", "add", f"0={at}", status=2)
        assert "lacks" in denied
        for each in words:
            said = secured.ask("manager", *(word.replace("0=41", f"0={at}") for word in each))
            if each[-1] == "list":
                assert f"0={at}" in said
            if each == ["doctor"]:
                assert f"foreign in {PREFIX}.schemas" in said
        secured.ask("producer", "observe", "runbook/r", "title=x")
        await_true(lambda: worker.is_ready and secured.ask("reader", "verify", "--json")["unchecked"] == [])
        assert secured.ask("reader", "state", "runbook/r", "--json")["fields"]["title"]["value"] == "x"
        assert secured.ask("reader", "verify", "--json")["ok"] is True


def test_agents_over_changes_connect_as_their_worker_does(secured: Secured) -> None:
    with secured.worker("follower", "--agents", "refold.agents.examples.loops", name="agents") as worker:
        await_true(lambda: worker.is_ready)
        for number in range(5):
            secured.ask("producer", "observe", f"action/loop-{number}", "run=r", "tool=t", "inputs_hash=h")

        with secured.as_user("reader"), refold.open(read_only=True) as log:

            def told() -> bool:
                log.port.refresh()
                return sum(name.startswith("audit_event/") for name in log.rebuild()) == 1

            await_true(told)


def _append(secured: Secured, topic: str) -> None:
    """Write a record without refold's checks, as the user of the environment."""
    with contextlib.closing(LogProducer(_clients(secured))) as outgoing:
        outgoing.write(OutgoingRecord(KafkaPartition(f"{PREFIX}.{topic}", 0), b"x", b"x", [], "a forged record"))


def _clients(secured: Secured) -> Clients:
    address = parse_url(secured.url)
    return Clients(merged(address, None), address.prefix)


def _administer(call: Callable[[AdminClient], object]) -> Callable[[Secured], object]:
    return lambda secured: call(_clients(secured).admin())


def _delete_topic(admin: AdminClient) -> None:
    for done in admin.delete_topics([f"{PREFIX}.observations"]).values():
        done.result()


def _alter_lists(admin: AdminClient) -> None:
    mine = AclBinding(ResourceType.TOPIC, "*", ResourcePatternType.LITERAL, "User:manager", "*", AclOperation.ALL,
                      AclPermissionType.ALLOW)  # fmt: skip
    for done in admin.create_acls([mine]).values():
        done.result()


def test_producers_version_with_code_takes_effect_by_a_workers_activation(secured: Secured, tmp_path: Path) -> None:
    """A worker that may not write `.schemas` continues to fold, and activates the version as soon as it may."""
    name = "refold_tests.histories:folded"
    fields: list[dict[str, object]] = [
        {"name": "folded", "type": "long", "refold.reducer": "custom", "refold.function": name}
    ]

    def register(status: int) -> str:
        fields.append({"name": f"more_{len(fields)}", "type": ["null", "long"], "refold.reducer": "latest"})
        file = tmp_path / "coded.avsc"
        file.write_text(json.dumps({"type": "record", "name": "coded", "fields": fields}))
        return str(secured.ask("producer", "types", "--register", file, status=status))

    def pending() -> int:
        return sum(each["pending"] for each in secured.ask("reader", "types", "--json"))

    entry = (ResourceType.TOPIC, f"{PREFIX}.schemas", ResourcePatternType.LITERAL, "User:worker", "*",
             AclOperation.WRITE)  # fmt: skip
    admin = AdminClient(secured.kafka.client_config())
    with secured.worker("worker", name="coded") as worker:
        await_true(lambda: worker.is_ready)
        register(0)
        register(0)
        for done in admin.create_acls([AclBinding(*entry, AclPermissionType.DENY)]).values():
            done.result()
        try:
            said = register(2)
            assert "is pending" in said
            assert pending() == 1
            found = secured.ask("reader", "doctor", "--json", status=1)["findings"]
            assert [each["ok"] for each in found if each["finding"].startswith("pending, though")] == [False]
        finally:
            for gone in admin.delete_acls([AclBindingFilter(*entry, AclPermissionType.DENY)]).values():
                assert len(gone.result()) == 1
        await_true(lambda: pending() == 0)
        register(0)
        secured.ask("producer", "observe", "coded/a", "folded=2", "more_4=1")
        await_true(lambda: worker.is_ready)
        assert secured.ask("reader", "verify", "--json")["ok"] is True


def test_init_without_the_right_to_start_activations_is_a_warning(secured: Secured) -> None:
    url = f"kafka://{secured.kafka.bootstrap}/older"
    with secured.as_user("admin"):
        refold.open(f"{url}?partitions=2").close()
    secured.ask("admin", "acl", "apply", "--role", "producer", "--principal", "User:producer", "--log", url)
    found = secured.ask("producer", "init", "--log", url, "--json")
    assert (found["made"], found["partitions"], found["activations"]) == (False, 2, False)
    warning = secured.said[-1]
    assert warning.startswith("warning: activations are not begun; the first worker will do that: ")
    assert "User:producer lacks Write on the topic older.manifests" in warning
    assert warning.count("\n") == 1
    assert secured.ask("admin", "init", "--log", url, "--json")["activations"] is True
    assert secured.ask("producer", "init", "--log", url, "--json")["activations"] is True


FORGED = {
    ("producer", "changes"), ("producer", "manifests"), ("producer", "snapshots"), ("producer", "deadletters"),
    ("worker", "observations"), ("reader", "schemas"), ("reader", "observations"), ("sink", "observations"),
    ("sink", "changes"), ("manager", "changes"), ("manager", "deadletters"), ("reader", "contents"),
    ("sink", "contents"), ("worker", "contents"),
}  # fmt: skip


@pytest.mark.parametrize(("user", "topic"), sorted(FORGED))
def test_no_role_writes_outside_its_topics(secured: Secured, user: str, topic: str) -> None:
    said = f"User:{user} lacks Write on the topic {PREFIX}.{topic}; .* --operation Write --topic {PREFIX}.{topic} "
    with secured.as_user(user), pytest.raises(Denied, match=said):
        _append(secured, topic)


@pytest.mark.parametrize(
    ("user", "words", "lacks", "command"),
    [
        ("producer", ["state", "document/d1"], "Read on the topic agents.observations",
         "--operation Read --topic agents.observations"),
        ("producer", ["rebuild"], "Read on the topic agents.observations",
         "--operation Read --topic agents.observations"),
        ("producer", ["mark", "mine"], "Write on the topic agents.manifests",
         "--operation Write --topic agents.manifests"),
        ("reader", ["observe", "document/d1", "fields={}"], "Write on the topic agents.observations",
         "--operation Write --topic agents.observations"),
        ("reader", ["worker", "--port", "0"], "Write on every transactional id from refold.agents.fold.",
         "--operation Write --transactional-id refold.agents.fold. --resource-pattern-type prefixed"),
        ("reader", ["rewind", "billing", "--to", "now"], "Read on the group billing",
         "--operation Read --group billing"),
        ("sink", ["mark", "mine"], "Write on the topic agents.manifests", "--operation Write --topic agents.manifests"),
        ("reader", ["acl", "check", "--role", "reader", "--principal", "User:reader"], "Describe on the cluster",
         "--operation Describe --cluster"),
        ("worker", ["init", "--log", "kafka://{servers}/agents2"], "Describe on the topic TOPIC",
         "--operation Describe --topic TOPIC"),
        ("manager", ["acl", "apply", "--role", "worker", "--principal", "User:manager"], "Alter on the cluster",
         "--operation Alter --cluster"),
        ("reader", ["state", "document/d1", "--log", "kafka://{servers}/other"],
         "Describe on the topic other.changes", "--operation Describe --topic other.changes"),
    ],
    ids=lambda given: " ".join(given[:2]) if isinstance(given, list) else "",
)  # fmt: skip
def test_denied_access_names_the_entry_and_the_command(
    secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: str, words: list[str], lacks: str,
    command: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    given = [each.format(servers=secured.kafka.bootstrap) if "{servers}" in each else each for each in words]
    said = secured.ask(user, *given, status=2)
    # If several topics are requested at once, the error may name any of them.
    topic = re.search(r"on the topic (agents2\.\w+); ", said)
    lacks, command = (each.replace("TOPIC", topic[1] if topic else "") for each in (lacks, command))
    assert f"User:{user} lacks {lacks}; " in said, said
    granting = f"kafka-acls.sh --bootstrap-server {secured.kafka.bootstrap} --add --allow-principal 'User:{user}'"
    assert f"{granting} {command} " in said
    # A worker first prints the address of its pages.
    unlogged = [line for line in said.splitlines() if not LOGGED.match(line)]
    assert len(unlogged) == (2 if words[0] == "worker" else 1), said


@pytest.mark.parametrize(
    ("user", "tried", "code"),
    [
        *[(user, _administer(_delete_topic), "TOPIC_AUTHORIZATION_FAILED") for user in sorted(USERS)],
        ("manager", _administer(_alter_lists), "CLUSTER_AUTHORIZATION_FAILED"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_no_role_deletes_topics_or_alters_access_lists(
    secured: Secured, user: str, tried: Callable[[Secured], object], code: str
) -> None:
    with secured.as_user(user), pytest.raises(KafkaException, match=code):
        tried(secured)


def test_doctor_names_the_missing_rights_of_a_role(secured: Secured) -> None:
    for user in ("worker", "producer"):
        assert secured.ask(user, "doctor", "--role", user, "--json")["ok"] is True
    found = secured.ask("reader", "doctor", "--role", "worker", "--json", status=1)
    problems = {each["finding"]: each["remedy"] for each in found["findings"] if not each["ok"]}
    assert [*problems] == [
        "User:reader lacks Read on the group refold.agents",
        *(f"User:reader lacks Write on the topic agents.{name}"
          for name in ("changes", "deadletters", "manifests", "schemas", "snapshots")),
    ]  # fmt: skip
    assert problems["User:reader lacks Read on the group refold.agents"].startswith("an administrator: kafka-acls.sh ")


# Waiting for the group's coordinator once took half a minute.
DOCTOR_S = 15.0


def test_doctor_reports_a_user_without_the_right_to_describe_workers(secured: Secured) -> None:
    entry = (ResourceType.GROUP, f"refold.{PREFIX}", ResourcePatternType.LITERAL, "User:reader", "*",
             AclOperation.DESCRIBE)  # fmt: skip
    admin = AdminClient(secured.kafka.client_config())
    for done in admin.create_acls([AclBinding(*entry, AclPermissionType.DENY)]).values():
        done.result()
    try:
        found = answered_within(DOCTOR_S, lambda: secured.ask("reader", "doctor", "--json"))
        of_role = answered_within(
            DOCTOR_S, lambda: secured.ask("reader", "doctor", "--role", "reader", "--json", status=1)
        )
    finally:
        for gone in admin.delete_acls([AclBindingFilter(*entry, AclPermissionType.DENY)]).values():
            assert len(gone.result()) == 1
    said = {each["subject"]: each["finding"] for each in found["findings"]}
    assert said["workers"].startswith("not checked: the members of the group refold.agents cannot be read")
    assert "User:reader lacks Describe on the group refold.agents" in said["workers"]
    assert "lag" not in said
    (lacking,) = [each["finding"] for each in of_role["findings"] if not each["ok"]]
    assert lacking == "User:reader lacks Describe on the group refold.agents"
    (workers,) = [each for each in of_role["findings"] if each["subject"] == "workers"]
    assert workers["finding"] == next(each["finding"] for each in found["findings"] if each["subject"] == "workers")
    said = {each["subject"]: each["finding"] for each in secured.ask("reader", "doctor", "--json")["findings"]}
    assert "lag" in said


def test_wrong_password_is_named_but_not_shown(secured: Secured, tmp_path: Path) -> None:
    given = (secured.folder / "worker.properties").read_text()
    password = str(secured.kafka.client_config("worker")["sasl.password"])
    other = tmp_path / "other.properties"
    other.write_text(given.replace(password, f"{password[:-1]}x"))
    with secured.as_user("worker"), pytest.MonkeyPatch.context() as patched:
        patched.setenv("REFOLD_KAFKA_CONFIG", str(other))
        with pytest.raises(refold.RefoldError, match=r"(?i)authentication failed.*REFOLD_KAFKA_CONFIG") as refused:
            refold.open(read_only=True, owner_timeout_s=5)
    assert password[:-1] not in str(refused.value)


def test_missing_access_lists_are_reported(
    kafka: SharedKafka, prefix: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("REFOLD_LOG", f"kafka://{kafka.bootstrap}/{prefix}")
    for command in ("check", "apply"):
        assert run(["acl", command, "--role", "reader", "--principal", "User:x"]) == 2
        assert "the brokers keep none (authorizer.class.name is not set)" in capsys.readouterr().err
    assert run(["acl", "check", "--role", "reader", "--principal", "User:x", "--log", "file:x"]) == 2
    assert "only a log on Kafka has access lists" in capsys.readouterr().err


@pytest.mark.usefixtures("main_job")
def test_secrets_appear_nowhere(secured: Secured) -> None:
    """Nothing that the main job or an earlier test printed, logged, exported or ran contains a secret."""
    with secured.as_user("worker", keys=True), pytest.MonkeyPatch.context() as patched:
        patched.setenv("REFOLD_SCHEMA_REGISTRY", f"https://me:{secured.registry_password}@127.0.0.1:1")
        address, registry = parse_url(secured.url), registry_settings(os.environ)
        settings = merged(address, None)
        config = FoldConfig(secured.url, secured.folder, "w", registry=registry, kafka=settings)
        clients = Clients(settings, PREFIX)
        with contextlib.closing(KafkaLog(address, config=dict(settings), read_only=True)) as log:
            shown = [settings, registry, config, clients, log, log.config, address, log.url, vars(log)]
            secured.said += [f"{each!r} {each}" for each in shown]
    said = [*secured.said, secured.log.read_text()]
    heard = "\n".join(said)
    # Everything was logged, so there is a lot to search.
    assert "refold.streams.log.kafka.clients" in heard
    assert "sasl.password" in heard
    assert len(heard) > 100_000
    for number, secret in enumerate(secured.secrets):
        assert secret not in heard, f"secret {number}"


def test_secret_on_a_command_line_would_be_visible() -> None:
    process = started_command("planted-secret")
    try:
        with Watched() as watched:
            await_true(lambda: any("planted-secret" in each for each in watched.commands))
    finally:
        process.kill()
        process.wait()
