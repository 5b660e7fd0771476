"""The checks of a log on Kafka by `refold doctor`. Each yields findings, and none of them raises.

Brokers are asked over Kafka's own protocol, as the user in the settings. Nothing is written, and only rights to read
are needed. A check is left out if it would get no answer.

The check of the workers reports which are alive, by their group, and how far the group lags. A log that no worker folds
is no problem: reading works without, and a log may be created before its first worker runs.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from refold.avro.errors import Denied, RefoldError, RegistryUnavailable, Unanswered
from refold.explorer.doctor.findings import CheckSettings, Finding, disk, inside, nearest
from refold.explorer.queries.log_target import LogTarget
from refold.streams.defaults import OWNER_TIMEOUT_S
from refold.streams.open import resolved_url

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from refold.streams.client import Log
    from refold.streams.log.kafka.clients import Clients
    from refold.streams.log.kafka.lookups import Member
    from refold.streams.log.kafka.url import Address


REMEDY = "see whether all brokers are up: the one that coordinates the group gave no answer"


def workers(clients: Clients, admin: AdminClient, address: Address, timeout_s: float) -> Iterator[Finding]:
    """Report who folds which partitions of an existing log, and the group's lag."""
    from confluent_kafka import KafkaException

    from refold.streams.log.kafka.access import DESCRIBE, GROUP, Grant
    from refold.streams.log.kafka.committed import CommittedOffsets, group_lag
    from refold.streams.log.kafka.faults import storage_error
    from refold.streams.log.kafka.lookups import members_of
    from refold.streams.log.kafka.topics import Topics

    topics = Topics(address.prefix)
    subject = "workers"
    try:
        needs = clients.denial_message(Grant(GROUP, topics.group, DESCRIBE))
        members = members_of(admin, topics.group, topics.observations, timeout_s, needs)
        found = admin.list_topics(topics.observations, timeout_s).topics[topics.observations]
        if found.error is not None:
            raise KafkaException(found.error)
        yield Finding(subject, True, _alive(members, sorted(found.partitions), topics.group, address.url))
        subject = "lag"
        with CommittedOffsets(clients, topics.group, topics.observations, stable=False) as committed:
            lag = group_lag(committed, admin, topics, found.partitions, timeout_s)
        yield Finding(subject, True, _lag_text(lag, len(found.partitions), topics.group))
    except Denied as error:
        yield Finding(subject, True, f"not checked: {error}")
    except RefoldError as error:
        yield Finding(subject, False, str(error), REMEDY)
    except KafkaException as failed:
        problem = storage_error(f"the group {topics.group} cannot be read", failed, clients.last_error)
        yield Finding(subject, False, str(problem), REMEDY)


def _alive(members: list[Member], partitions: list[int], group: str, url: str) -> str:
    if not members:
        return (f"none in the group {group}: no worker folds, and reading works without; to start one: "
                f"refold worker --log {url} --data DIR")  # fmt: skip
    texts = [f"{each.url or each.client_id} {_partitions_text(each.partitions)}" for each in members]
    free = {*partitions}.difference(*(each.partitions for each in members))
    texts += (
        [f"{_partitions_text(sorted(free))} without a worker, as for a moment while workers join and leave"]
        if free
        else []
    )
    return f"{len(members)} alive: {'; '.join(texts)}"


def _partitions_text(partitions: list[int] | tuple[int, ...]) -> str:
    if not partitions:
        return "without a partition"
    return f"with {'partition' if len(partitions) == 1 else 'partitions'} {', '.join(map(str, partitions))}"


def _lag_text(lag: dict[int, int], partitions: int, group: str) -> str:
    """Report the lag in all, and of each partition that lags."""
    rows = [f"partition {number}: {offsets:,}" for number, offsets in sorted(lag.items()) if offsets]
    unsaid = partitions - len(lag)
    more = f"; for {unsaid} of {partitions} partitions it is not known" if unsaid else ""
    each = f" ({', '.join(rows)})" if rows else ""
    return f"{sum(lag.values()):,} recorded and not yet committed by the group {group}{each}{more}"


BROKER_REMEDY = "start the brokers, or name others with --log; for TLS or passwords see docs/SECURITY.md"
CLOCK_REMEDY = "set this machine's clock, or the brokers': observations made here get a time before recorded ones"
REGISTRY_REMEDY = "start it, or correct REFOLD_SCHEMA_REGISTRY; until it answers no new type can be registered"
LOST_REMEDY = "restore the brokers' data; if the log is being created now, check again in a minute"
# A healthy broker answers in moments; the user should not wait half a minute for one that does not.
LOOK_S = 5.0
# A table that is rebuilt is for a while stored next to the old one.
_TABLES_TIMES = 2


def on_kafka(target: LogTarget, looking: CheckSettings) -> Iterator[Finding]:
    """Check settings, brokers, topics, rights, registry, workers, the log, and the worker's disk."""
    from refold.streams.log.kafka.clients import Clients
    from refold.streams.log.kafka.topics import TopicAdmin, Topics
    from refold.streams.log.kafka.url import merged, parse_url

    url = resolved_url(target.url)
    look_s = LOOK_S if target.owner_timeout_s == OWNER_TIMEOUT_S else target.owner_timeout_s
    if looking.data is not None:
        tables = sum(each.stat().st_size for each in looking.data.rglob("*") if each.is_file())
        yield from disk(nearest(looking.data), tables * _TABLES_TIMES)
    try:
        address = parse_url(url)
        clients = Clients(merged(address, None), address.prefix)
        admin = clients.admin()
    except RefoldError as error:
        yield Finding("settings", False, str(error), "see docs/SECURITY.md for the valid settings")
        return
    yield from _config_file()
    yield from _registry()
    topics = TopicAdmin(admin, look_s, clients)
    try:
        unfit = topics.unfit(address)
    except Unanswered as error:
        yield Finding("broker", False, str(error), BROKER_REMEDY)
        return
    except RefoldError as error:
        yield from _rights(clients, address, looking, look_s)
        yield Finding("broker", False, str(error), BROKER_REMEDY)
        return
    yield from _rights(clients, address, looking, look_s)
    yield Finding(
        "broker", True, f"{address.servers}: a broker answers, and sees this user as {_principal_name(clients)}"
    )
    names = Topics(address.prefix)
    missing = {each.topic for each in unfit if each.is_missing}
    if missing == {*names.needed}:
        yield Finding("log", True, f"{url}: none yet; the first observation creates it")
        return
    if names.observations in missing:
        there = ", ".join(sorted({*names.needed} - missing))
        yield Finding("log", False, f"{names.observations} is missing, and there are {there}: the log lost its "
                      "observations, or is being created", LOST_REMEDY)  # fmt: skip
        return
    for each in workers(clients, admin, address, look_s):
        if not each.ok:  # the group's coordinator does not answer; do not wait for it again
            target = replace(target, owner_timeout_s=look_s)
        yield each
    for wrong in unfit:
        yield Finding(f"topic {wrong.topic}", False, wrong.problem, wrong.remedy)
    if unfit:
        return  # opening the log would report the first of these
    yield Finding("topics", True, f"all of {address.prefix}.* are there, and set as a log needs them")
    yield from inside(
        target, looking, "mend on the brokers what it names", CLOCK_REMEDY, [_check_registered, _contents]
    )


def _principal_name(clients: Clients) -> str:
    return "somebody" if clients.principal == "User:NAME" else clients.principal


def _config_file() -> Iterator[Finding]:
    """Check whether other users may read the passwords."""
    from refold.streams.log.kafka.settings import CONFIG_ENVIRONMENT, is_secret, read_settings

    named = os.environ.get(CONFIG_ENVIRONMENT)
    if not named or not any(map(is_secret, read_settings({CONFIG_ENVIRONMENT: named}))):
        return
    found = Path(named).stat()
    is_open = found.st_uid == os.geteuid() and bool(found.st_mode & stat.S_IROTH)
    who = "everybody on this machine may read its passwords" if is_open else "other users may not read it"
    yield Finding("settings", not is_open, f"{named}: {who}", f"chmod 600 {named}")


def _rights(clients: Clients, address: Address, looking: CheckSettings, look_s: float) -> Iterator[Finding]:
    """Report rights that this user's roles need and that it does not have."""
    if not looking.roles:
        return
    from refold.streams.log.kafka.access import AccessScope, commands, needed
    from refold.streams.log.kafka.acls import allowed_here

    roles = ", ".join(looking.roles)
    try:
        scope = AccessScope(address.prefix, looking.roles, looking.keys, contents=address.blobs is None)
        found = allowed_here(clients, needed(scope), look_s)
    except RefoldError as error:
        yield Finding(f"rights of a {roles}", False, str(error), BROKER_REMEDY)
        return
    lacking = [grant for grant, allowed in found.items() if allowed is False]
    for grant in lacking:
        (command,) = commands([grant], clients.principal, clients.servers)
        yield Finding(
            f"rights of a {roles}", False, f"{_principal_name(clients)} lacks {grant}", f"an administrator: {command}"
        )
    if not lacking:
        unsaid = [str(grant) for grant, allowed in found.items() if allowed is None]
        more = f"; `refold acl check` knows of {', '.join(unsaid)}" if unsaid else ""
        yield Finding(
            f"rights of a {roles}", True, f"{_principal_name(clients)} has the rights that brokers report{more}"
        )


def _registry() -> Iterator[Finding]:
    """Check whether the Schema Registry answers, if one is named."""
    from refold.streams.registry.ids import SchemaIds
    from refold.streams.registry.settings import registry_settings

    try:
        settings = registry_settings(os.environ)
        if settings is None:
            return
        with SchemaIds(settings, retries=0) as registry:
            yield Finding("registry", True, f"{settings}: answers; its level is {registry.level()}")
    except RefoldError as error:
        yield Finding("registry", False, str(error), REGISTRY_REMEDY)


def _contents(log: Log) -> Iterator[Finding]:
    """Report where contents too large for a record are stored, and whether some are in another store."""
    from refold.streams.log.kafka.log import KafkaLog

    assert isinstance(log.port, KafkaLog)
    store, topic = log.port.blobs, log.port.topics.contents
    if not log.port.has_store:
        yield Finding(
            "contents", True, f"there is no topic {topic}, or this user may not see it: no runs can be recorded; "
            "refold init creates it, refold acl shows who needs which rights",
        )  # fmt: skip
    elif log.port.stores.is_divided():
        yield Finding(
            "contents", False, f"they are in {store.url} here, and the topic {topic} has some too",
            f"give every process the same store. To leave the topic: refold blobs --copy-to {store.url} without "
            "REFOLD_BLOBS, then delete the topic",
        )  # fmt: skip
    else:
        yield Finding("contents", True, f"they are in {store.url}")


def _check_registered(log: Log) -> Iterator[Finding]:
    """Check whether the registry still holds the schemas that the log's types have their ids from."""
    from refold.streams.registry.ids import SchemaIds, UnknownId
    from refold.streams.registry.settings import registry_settings

    settings = registry_settings(os.environ)
    given = {each.definition.name: each.wire_ids.observation for each in log.port.registry if each.wire_ids}
    if not given:
        return
    if settings is None:
        yield Finding("registry", False, "the log's ids are a Schema Registry's, and none is named here",
                      "name it in REFOLD_SCHEMA_REGISTRY: without it no new type can be registered")  # fmt: skip
        return
    try:
        with SchemaIds(settings, retries=0) as registry:
            gone = [f"{name} ({wire_id})" for name, wire_id in sorted(given.items())
                    if registry.unknown(wire_id) is UnknownId.MISSING]  # fmt: skip
    except RegistryUnavailable:
        return  # reported above
    text = f"the registry lacks {', '.join(gone)}" if gone else "the registry holds the schema of every type"
    yield Finding("registered", not gone, text, "restore the registry's data: it was emptied, or is another one")
