"""The grants that roles need, and their comparison with the grants that a broker reports."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from refold.avro.errors import InputError
from refold.streams.log.kafka.access import (
    ALL,
    ANYBODY,
    ANYTHING,
    CLUSTER,
    DESCRIBE,
    GROUP,
    READ,
    ROLES,
    TOPIC,
    TRANSACTIONAL_ID,
    WRITE,
    AccessScope,
    BrokerAclEntry,
    Grant,
    check_principal,
    commands,
    extra,
    missing,
    needed,
)
from refold.streams.log.kafka.acls import allowed_here
from refold.streams.log.kafka.clients import Clients
from refold.streams.log.kafka.faults import text_of
from refold.testing.kafka import Kafka

ME = "User:me"
WORKER = AccessScope("agents", ["worker"])


def grant_entries(
    *grants: Grant, principal: str = ME, host: str = ANYTHING, is_denial: bool = False
) -> list[BrokerAclEntry]:
    return [BrokerAclEntry(principal, grant, host, is_denial) for grant in grants]


def wanting(asked: AccessScope, *entries: BrokerAclEntry) -> list[str]:
    return [str(grant) for grant, _ in missing(needed(asked), entries)]


def writes(*roles: str) -> set[str]:
    return {
        each.name for each in needed(AccessScope("agents", roles)) if each.operation == WRITE and each.kind == TOPIC
    }


def test_roles_write_their_topics() -> None:
    assert writes("reader") == writes("sink") == set()
    assert writes("producer") == {"agents.contents", "agents.observations", "agents.schemas"}
    assert writes("worker") == {
        "agents.changes", "agents.deadletters", "agents.manifests", "agents.schemas", "agents.snapshots"
    }  # fmt: skip
    assert "agents.changes" not in writes("admin")
    reads = {each.name for each in needed(AccessScope("agents", ["producer"])) if each.operation == READ}
    assert reads == {"agents.contents", "agents.deadletters", "agents.manifests", "agents.schemas"}
    for role in ROLES:  # if the contents are elsewhere, no grant on their topic is needed
        assert "contents" not in str(needed(AccessScope("agents", [role], contents=False)))


@pytest.mark.parametrize("role", ROLES)
def test_no_role_may_delete_or_alter_access_lists_and_each_needs_each_of_its_entries(role: str) -> None:
    asked = AccessScope("agents", [role], keys=True, groups=["mine"])
    wanted = needed(asked)
    assert not [each for each in wanted if each.operation in ("Delete", ALL)]
    assert [each.operation for each in wanted if each.kind == CLUSTER] == ([DESCRIBE] if role == "admin" else [])
    # Full names, except for names known only at run time; no prefix matches another log.
    prefixes = {each.name for each in wanted if each.is_prefix}
    assert prefixes <= {"refold.agents.agents.", "refold.agents.fold.", "refold.agents.snapshots."}
    entries = grant_entries(*wanted)
    assert missing(wanted, entries) == []
    for number, grant in enumerate(wanted):
        lacking = [each for each, _ in missing(wanted, entries[:number] + entries[number + 1 :])]
        assert lacking == [grant]


def test_broader_entries_suffice_and_are_reported_as_excess() -> None:
    broad = [Grant(TOPIC, "agents.", ALL, is_prefix=True), Grant(GROUP, ANYTHING, READ),
             Grant(TRANSACTIONAL_ID, "refold.", WRITE, is_prefix=True)]  # fmt: skip
    entries = [*grant_entries(*broad), *grant_entries(Grant(TOPIC, "other.observations", ALL))]
    assert wanting(WORKER, *entries) == []
    assert extra(needed(WORKER), entries, ME, "agents") == sorted(broad)
    assert extra(needed(WORKER), grant_entries(*needed(WORKER)), ME, "agents") == []
    # Read implies Describe, so Describe is not an extra grant.
    assert extra(needed(WORKER), grant_entries(Grant(GROUP, "refold.agents", DESCRIBE)), ME, "agents") == []


def test_ineffective_entries() -> None:
    whole = needed(WORKER)
    read = Grant(GROUP, "refold.agents", READ)
    others = [each for each in grant_entries(*whole) if each.grant != read]
    said = ["Read on the group refold.agents"]
    assert wanting(WORKER, *others) == said
    assert wanting(WORKER, *others, *grant_entries(read, host="10.0.0.1")) == said
    assert wanting(WORKER, *others, *grant_entries(read._replace(operation=DESCRIBE))) == said
    assert wanting(WORKER, *others, *grant_entries(Grant(GROUP, "refold.agent", READ))) == said
    assert wanting(WORKER, *others, *grant_entries(Grant(TOPIC, ANYTHING, READ))) == said
    assert wanting(WORKER, *others, *grant_entries(read, principal=ANYBODY)) == []
    # A grant on one full name does not cover all names with that prefix.
    fold = Grant(TRANSACTIONAL_ID, "refold.agents.fold.", WRITE, is_prefix=True)
    others = [each for each in grant_entries(*whole) if each.grant != fold]
    assert wanting(WORKER, *others, *grant_entries(fold._replace(is_prefix=False))) == [str(fold)]


def test_denial_takes_precedence() -> None:
    fold = Grant(TRANSACTIONAL_ID, "refold.agents.fold.", WRITE, is_prefix=True)
    for denied in (fold, Grant(TRANSACTIONAL_ID, "refold.agents.fold.w", ALL), Grant(TRANSACTIONAL_ID, ANYTHING, ALL)):
        (denial,) = grant_entries(denied, is_denial=True, principal=ANYBODY)
        found = missing(needed(WORKER), [*grant_entries(*needed(WORKER)), denial])
        assert (fold, denial) in found
    unrelated = grant_entries(Grant(TOPIC, "agents.observations", DESCRIBE), is_denial=True)
    assert not [grant for grant, _ in missing(needed(WORKER), [*grant_entries(*needed(WORKER)), *unrelated])]


def test_commands_name_everything_once() -> None:
    grants = needed(AccessScope("agents", ["admin"], keys=True, groups=["billing"]))
    lines = commands(grants, ME, "h:1")
    words = [line.split() for line in lines]
    said = sum(line.count("--operation") * sum(line.count(each) for each in ("--topic", "--group", "--cluster",
               "--transactional-id")) for line in words)  # fmt: skip
    assert said == len(grants)
    assert all("--bootstrap-server h:1 --add --allow-principal 'User:me'" in line for line in lines)
    assert [line for line in lines if "--cluster" in line] == [
        "kafka-acls.sh --bootstrap-server h:1 --add --allow-principal 'User:me' --operation Describe --cluster"
    ]


@pytest.mark.parametrize("text", ["me", "User:", "User:a'; rm", "User: a", ":x", "User:a\nb"])
def test_invalid_principal(text: str) -> None:
    with pytest.raises(InputError, match="give User:NAME"):
        check_principal(text)


def test_principal_may_be_a_certificates_name() -> None:
    assert check_principal("User:CN=a b,OU=c") == "User:CN=a b,OU=c"


def test_broker_without_a_topic_of_offsets_is_asked_until_it_has_a_coordinator(
    kafka_cluster: Callable[..., Kafka],
) -> None:
    kafka = kafka_cluster()
    with (kafka.folder / "node1" / "server.properties").open("a", encoding="utf-8") as file:
        file.write("offsets.topic.replication.factor=2\n")  # more than its brokers, so it cannot create the topic
    kafka.restart(1)
    clients = Clients({"bootstrap.servers": kafka.bootstrap}, "agents")
    read = Grant(GROUP, "refold.agents", READ)
    other = AdminClient(kafka.client_config())
    with ThreadPoolExecutor(1) as threads:
        allowed = threads.submit(allowed_here, clients, [read])
        # The client itself stops looking for a coordinator long before its request times out.
        with pytest.raises(KafkaException, match="Timed out"):
            other.describe_consumer_groups([read.name], request_timeout=3)[read.name].result()
        other.create_topics([NewTopic("__consumer_offsets", 4, 1)])["__consumer_offsets"].result()
        assert allowed.result() == {read: True}


def test_client_error_without_a_reason_has_its_code() -> None:
    said = KafkaError(KafkaError.COORDINATOR_LOAD_IN_PROGRESS, "ConsumerGroupDescribe: ")
    assert text_of(said) == "ConsumerGroupDescribe: COORDINATOR_LOAD_IN_PROGRESS"
