"""The minimal Kafka access rights of each role.

    producer   records observations, registers types
    worker     folds: reads the log and writes the results, in the workers' group and in transactions
    reader     asks questions, rebuilds, verifies
    sink       copies state to a store: it reads, and keeps its position in the store
    admin      makes the log, marks and pins points, retries dead letters, rewinds groups, looks at access lists

Entries use whole names where possible, because a prefix `agents.` would include the log `agents.eu`. No role may delete
a topic or records, or alter access lists. Describe comes with Read, Write and Alter, DescribeConfigs with AlterConfigs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from refold.avro.errors import InputError

ROLES = ("producer", "worker", "reader", "sink", "admin")
TOPIC, GROUP, TRANSACTIONAL_ID, CLUSTER = "topic", "group", "transactional-id", "cluster"
CLUSTER_NAME = "kafka-cluster"
ANYTHING, ANYBODY = "*", "User:*"
ALL, READ, WRITE, CREATE, ALTER = "All", "Read", "Write", "Create", "Alter"
DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS = "Describe", "DescribeConfigs", "AlterConfigs"
_IMPLIED = {DESCRIBE: {READ, WRITE, "Delete", ALTER}, DESCRIBE_CONFIGS: {ALTER_CONFIGS}}
_PRINCIPAL = re.compile(r"[A-Za-z]+:[^\s'\"][^'\"\n]*\Z")
_READ_ONLY = ("changes", "deadletters", "manifests", "observations", "schemas", "snapshots")
_FOLD_WRITES = ("changes", "deadletters", "manifests", "schemas", "snapshots")
_ADMIN_WRITES = ("manifests", "observations", "schemas", "snapshots")
_ON_CONTENTS = {"producer": (WRITE,), "admin": (WRITE, CREATE, ALTER_CONFIGS)}
# What a client reads before it writes: definitions, markers, and the offset up to which records are decided.
_LOOKED_AT = ("deadletters", "manifests", "schemas")


class Grant(NamedTuple):
    """One operation on one resource.

    Attributes:
        is_prefix: Whether it is on all resources whose names begin with `name`.
    """

    kind: str
    name: str
    operation: str
    is_prefix: bool = False

    def __str__(self) -> str:
        if self.kind == CLUSTER:
            return f"{self.operation} on the cluster"
        what = self.kind.replace("-", " ")
        return f"{self.operation} on {f'every {what} from' if self.is_prefix else f'the {what}'} {self.name}"


class BrokerAclEntry(NamedTuple):
    """One access control entry of the broker."""

    principal: str
    grant: Grant
    host: str
    is_denial: bool


class AccessScope(NamedTuple):
    """The input of `needed`: a log's prefix, roles, whether its topic of keys is used, the user's own consumer groups,
    and whether its contents are in its own topic.
    """

    prefix: str
    roles: Sequence[str]
    keys: bool = False
    groups: Sequence[str] = ()
    contents: bool = True


def needed(asked: AccessScope) -> list[Grant]:
    """All grants that the roles need, in order, each once."""
    found = dict.fromkeys(grant for role in asked.roles for grant in _of_role(role, asked))
    held = [BrokerAclEntry("", grant, ANYTHING, is_denial=False) for grant in found]
    # Grants that another one implies are left out.
    return sorted(grant for grant in found if not any(each.grant != grant and _allows(each, grant) for each in held))


def missing(wanted: Iterable[Grant], held: Sequence[BrokerAclEntry]) -> list[tuple[Grant, BrokerAclEntry | None]]:
    """The grants that are not allowed, each with the entry that denies it, if any.

    An entry for a single host is ignored, because it allows the operation on that host only.
    """
    found: list[tuple[Grant, BrokerAclEntry | None]] = []
    for grant in wanted:
        denial = next((each for each in held if each.is_denial and _denies(each, grant)), None)
        if denial is not None or not any(_allows(each, grant) for each in held):
            found.append((grant, denial))
    return found


def extra(wanted: Sequence[Grant], held: Sequence[BrokerAclEntry], principal: str, prefix: str) -> list[Grant]:
    """Return the principal's grants on the log's own resources that are not wanted.

    Args:
        wanted: What it should have.
        held: What the brokers report, of all principals.
        principal: `User:NAME`.
        prefix: The log's prefix.
    """
    needless: list[Grant] = []
    for each in held:
        is_asked = each.grant in wanted or any(_brings(grant, each.grant) for grant in wanted)
        if each.principal == principal and not each.is_denial and not is_asked and _touches(each.grant, prefix):
            needless.append(each.grant)
    return sorted(set(needless))


def commands(grants: Iterable[Grant], principal: str, servers: str) -> list[str]:
    """Return the shell commands that give a principal the grants, as few as possible.

    Args:
        grants: What to give.
        principal: `User:NAME`.
        servers: The bootstrap servers, `HOST:PORT,...`.
    """
    by_name: dict[tuple[str, bool, str], list[str]] = {}
    for grant in grants:
        by_name.setdefault((grant.kind, grant.is_prefix, grant.name), []).append(grant.operation)
    by_operations: dict[tuple[str, bool, tuple[str, ...]], list[str]] = {}
    for (kind, is_prefix, name), operations in by_name.items():
        by_operations.setdefault((kind, is_prefix, tuple(sorted(set(operations)))), []).append(name)
    return [
        " ".join([
            f"kafka-acls.sh --bootstrap-server {servers} --add --allow-principal '{principal}'",
            *(f"--operation {each}" for each in operations),
            *(["--cluster"] if kind == CLUSTER else [f"--{kind} {name}" for name in names]),
            *(["--resource-pattern-type prefixed"] if is_prefix else []),
        ])
        for (kind, is_prefix, operations), names in by_operations.items()
    ]  # fmt: skip


def denial_message(grant: Grant, principal: str, servers: str) -> str:
    """Return the message for a denied operation, with the command that allows it.

    Args:
        grant: What was denied.
        principal: `User:NAME`.
        servers: The bootstrap servers, `HOST:PORT,...`.
    """
    (command,) = commands([grant], principal, servers)
    return (
        f"{principal} lacks {grant}; a Kafka administrator grants it: {command} (what a whole role needs: refold acl)"
    )


def check_principal(text: str) -> str:
    """Check a principal's form. Raises InputError."""
    if not _PRINCIPAL.match(text):
        raise InputError(f"--principal {text!r}: give User:NAME, as the broker names the user")
    return text


def _of_role(role: str, asked: AccessScope) -> Iterator[Grant]:
    """All that one role needs."""
    prefix, group = asked.prefix, f"refold.{asked.prefix}"
    if role in ("reader", "sink", "worker", "admin"):
        yield from _topics(prefix, _READ_ONLY, READ, DESCRIBE_CONFIGS)
        yield Grant(GROUP, group, READ if role == "worker" else DESCRIBE)
    if role == "producer":
        yield from _topics(prefix, _READ_ONLY, DESCRIBE, DESCRIBE_CONFIGS)
        yield from _topics(prefix, _LOOKED_AT, READ)
        yield from _topics(prefix, ("observations", "schemas"), WRITE)
        yield Grant(GROUP, group, DESCRIBE)
    if role == "worker":
        yield from _topics(prefix, _FOLD_WRITES, WRITE)
        yield Grant(GROUP, f"{group}.agents.", READ, is_prefix=True)
        yield Grant(TRANSACTIONAL_ID, f"{group}.fold.", WRITE, is_prefix=True)
    if role in ("worker", "admin"):
        yield Grant(TRANSACTIONAL_ID, f"{group}.snapshots.", WRITE, is_prefix=True)
    if role == "admin":
        yield from _topics(prefix, _READ_ONLY, CREATE, ALTER_CONFIGS)
        yield from _topics(prefix, _ADMIN_WRITES, WRITE)
        yield Grant(CLUSTER, CLUSTER_NAME, DESCRIBE)
    if asked.keys and role != "worker":
        yield from _topics(prefix, ("keys",), READ, DESCRIBE_CONFIGS)
        # The process that seals the first content creates the topic.
        yield from _topics(prefix, ("keys",), *([WRITE, CREATE] if role in ("producer", "admin") else []))
    if asked.contents:
        # Putting a content first reads whether it exists.
        yield from _topics(prefix, ("contents",), READ, DESCRIBE_CONFIGS)
        yield from _topics(prefix, ("contents",), *_ON_CONTENTS.get(role, ()))
    for each in asked.groups:
        yield Grant(GROUP, each, READ)


def _topics(prefix: str, names: Iterable[str], *operations: str) -> Iterator[Grant]:
    for name in names:
        for operation in operations:
            yield Grant(TOPIC, f"{prefix}.{name}", operation)


def _covers(held: Grant, wanted: Grant) -> bool:
    """Whether an entry covers all wanted resources."""
    if held.kind != wanted.kind:
        return False
    if held.is_prefix:
        return wanted.name.startswith(held.name)
    return held.name == ANYTHING or (held.name == wanted.name and not wanted.is_prefix)


def _brings(held: Grant, wanted: Grant) -> bool:
    """Whether one operation implies the other."""
    operations = {ALL, wanted.operation} | _IMPLIED.get(wanted.operation, set())
    return held.operation in operations and _covers(held, wanted)


def _allows(held: BrokerAclEntry, wanted: Grant) -> bool:
    return not held.is_denial and held.host == ANYTHING and _brings(held.grant, wanted)


def _denies(held: BrokerAclEntry, wanted: Grant) -> bool:
    """Whether an entry denies at least a part of the grant."""
    is_part = wanted.is_prefix and held.grant.kind == wanted.kind and held.grant.name.startswith(wanted.name)
    return held.grant.operation in (ALL, wanted.operation) and (is_part or _covers(held.grant, wanted))


def _touches(grant: Grant, prefix: str) -> bool:
    """Whether a grant concerns this log's own topics, groups or transactions."""
    whole = {TOPIC: f"{prefix}.", GROUP: f"refold.{prefix}", TRANSACTIONAL_ID: f"refold.{prefix}."}.get(grant.kind)
    if whole is None:
        return False
    return grant.name == ANYTHING or grant.name.startswith(whole) or (grant.is_prefix and whole.startswith(grant.name))
