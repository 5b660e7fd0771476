"""Reads and adds the brokers' access control entries.

librdkafka 2.16 returns no entries if the request was denied (it ignores the response's error). So if nothing is found,
further requests check whether this client may read access lists, and whether the brokers have any.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
)

from refold.avro.errors import Denied, StorageError
from refold.streams.log.kafka.access import (
    ALL,
    ALTER,
    ALTER_CONFIGS,
    ANYBODY,
    ANYTHING,
    CLUSTER,
    CLUSTER_NAME,
    CREATE,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    GROUP,
    READ,
    TOPIC,
    TRANSACTIONAL_ID,
    WRITE,
    BrokerAclEntry,
    Grant,
)
from refold.streams.log.kafka.clients import Clients
from refold.streams.log.kafka.committed import describe_group
from refold.streams.log.kafka.faults import error_of, is_unlisted, storage_error

TIMEOUT_S = 30.0
_ABSENT = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.GROUP_ID_NOT_FOUND})
_NONE_KEPT = "the brokers keep none (authorizer.class.name is not set): everybody may do everything there"
_KINDS = {
    TOPIC: ResourceType.TOPIC, GROUP: ResourceType.GROUP, TRANSACTIONAL_ID: ResourceType.TRANSACTIONAL_ID,
    CLUSTER: ResourceType.BROKER,
}  # fmt: skip
_OPERATIONS = {
    ALL: AclOperation.ALL, READ: AclOperation.READ, WRITE: AclOperation.WRITE, CREATE: AclOperation.CREATE,
    ALTER: AclOperation.ALTER, DESCRIBE: AclOperation.DESCRIBE, "Delete": AclOperation.DELETE,
    DESCRIBE_CONFIGS: AclOperation.DESCRIBE_CONFIGS, ALTER_CONFIGS: AclOperation.ALTER_CONFIGS,
}  # fmt: skip
_KIND_OF = {kind: name for name, kind in _KINDS.items()}
_OPERATION_OF = {operation: name for name, operation in _OPERATIONS.items()}


def held_by(clients: Clients, principal: str) -> list[BrokerAclEntry]:
    """The entries for a principal and for all principals.

    Raises:
        StorageError: They cannot be read.
    """
    admin = clients.admin()
    found = [each for who in (principal, ANYBODY) for each in _entries(admin, clients, who)]
    if not found:
        _require_visible(admin, clients)
    return found


def allowed_here(
    clients: Clients, wanted: Iterable[Grant], timeout_s: float = TIMEOUT_S
) -> dict[Grant, bool | None]:  # fmt: skip
    """Whether the broker allows these clients each operation. Unlike for `held_by`, every user may request this.

    Args:
        clients: the clients whose rights are checked.
        wanted: the operations.
        timeout_s: the timeout of each request.

    Returns:
        By grant. None if the broker does not report it: for prefixes, and for transactions.

    Raises:
        StorageError: No answer came.
    """
    admin = clients.admin()
    found: dict[Grant, bool | None] = {}
    for grant in wanted:
        if grant.is_prefix or grant.kind == TRANSACTIONAL_ID:
            found[grant] = None
            continue
        found[grant] = _OPERATIONS[grant.operation] in _operations(admin, clients, grant, timeout_s)
    return found


def _operations(admin: AdminClient, clients: Clients, grant: Grant, timeout_s: float) -> Collection[AclOperation]:
    """The operations that the broker allows these clients on one resource."""
    try:
        return _described(admin, grant, timeout_s).authorized_operations or ()
    except KafkaException as failed:
        error = error_of(failed)
        if error is not None and (is_unlisted(error) or error.code() in _ABSENT):
            return ()
        raise storage_error(f"{clients.servers} does not list its access rights", failed) from failed


def _described(admin: AdminClient, grant: Grant, timeout_s: float) -> Any:
    """A topic's, group's or cluster's description: each has the `authorized_operations`."""
    if grant.kind == TOPIC:
        asked = admin.describe_topics(
            TopicCollection([grant.name]), include_authorized_operations=True, request_timeout=timeout_s
        )
        return asked[grant.name].result()
    if grant.kind == GROUP:
        return describe_group(admin, grant.name, timeout_s, include_authorized_operations=True)
    return admin.describe_cluster(include_authorized_operations=True, request_timeout=timeout_s).result()


def add(clients: Clients, principal: str, grants: Iterable[Grant]) -> None:
    """Give grants to a principal.

    Args:
        clients: Clients of an administrator.
        principal: `User:NAME`.
        grants: What to give.

    Raises:
        StorageError: A grant could not be added; the message names it.
    """
    bindings = [
        AclBinding(
            _KINDS[grant.kind], CLUSTER_NAME if grant.kind == CLUSTER else grant.name,
            ResourcePatternType.PREFIXED if grant.is_prefix else ResourcePatternType.LITERAL,
            principal, ANYTHING, _OPERATIONS[grant.operation], AclPermissionType.ALLOW,
        )
        for grant in grants
    ]  # fmt: skip
    if not bindings:
        return
    admin = clients.admin()
    for done in admin.create_acls(bindings, request_timeout=TIMEOUT_S).values():
        try:
            done.result()
        except KafkaException as failed:
            raise _refusal("access lists cannot be changed", clients, ALTER, failed) from failed


def _entries(admin: AdminClient, clients: Clients, principal: str) -> list[BrokerAclEntry]:
    anything: Any = None  # its stub insists on names
    wanted = AclBindingFilter(
        ResourceType.ANY, anything, ResourcePatternType.ANY, principal, anything, AclOperation.ANY,
        AclPermissionType.ANY,
    )  # fmt: skip
    try:
        found = admin.describe_acls(wanted, request_timeout=TIMEOUT_S).result()
    except KafkaException as failed:
        raise _refusal("access lists cannot be read", clients, DESCRIBE, failed) from failed
    return [
        BrokerAclEntry(each.principal,
             Grant(_KIND_OF[each.restype], each.name, _OPERATION_OF[each.operation],
                   each.resource_pattern_type == ResourcePatternType.PREFIXED),
             each.host, each.permission_type == AclPermissionType.DENY)
        for each in found
        if each.restype in _KIND_OF and each.operation in _OPERATION_OF
    ]  # fmt: skip


def _require_visible(admin: AdminClient, clients: Clients) -> None:
    """Raise StorageError if access lists may not be read, or the brokers have none."""
    try:
        cluster = admin.describe_cluster(include_authorized_operations=True, request_timeout=TIMEOUT_S).result()
    except KafkaException as failed:
        raise storage_error("access lists cannot be read", failed) from failed
    if AclOperation.DESCRIBE not in (cluster.authorized_operations or ()):
        raise Denied(f"access lists cannot be read: {clients.denial_message(Grant(CLUSTER, CLUSTER_NAME, DESCRIBE))}")
    asked = [ConfigResource(ConfigResource.Type.BROKER, str(cluster.nodes[0].id))]
    for done in admin.describe_configs(asked, request_timeout=TIMEOUT_S).values():
        with suppress(KafkaException):  # who may not see brokers' settings is sent no entries
            named = done.result().get("authorizer.class.name")
            if named is None or not named.value:
                raise StorageError(f"access lists cannot be read: {_NONE_KEPT}")


def _refusal(doing: str, clients: Clients, operation: str, failed: KafkaException) -> StorageError:
    error = error_of(failed)
    if error is not None and error.code() == KafkaError.SECURITY_DISABLED:
        return StorageError(f"{doing}: {_NONE_KEPT}")
    return storage_error(doing, failed, needs=clients.denial_message(Grant(CLUSTER, CLUSTER_NAME, operation)))
