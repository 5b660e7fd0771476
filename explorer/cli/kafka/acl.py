"""`refold acl`: the access rights that each role needs on a secured Kafka."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from refold.avro.errors import InputError
from refold.explorer.cli.options import InOrder, as_json, on_log
from refold.explorer.cli.output.fitting import TableColumn
from refold.explorer.cli.output.screen import Screen, counted
from refold.explorer.queries.log_target import LogTarget
from refold.streams.log.kafka.access import ROLES
from refold.streams.open import is_kafka, resolved_url

if TYPE_CHECKING:
    from refold.streams.log.kafka.access import AccessScope, Grant
    from refold.streams.log.kafka.clients import Clients

COLUMNS = (TableColumn("", is_fixed=True), TableColumn("operation", "cyan", is_fixed=True), TableColumn("on"))


@click.group(cls=InOrder)
def acl() -> None:
    """Show or grant the Kafka access that each role needs.

    \b
      producer   records observations, registers types
      worker     folds: `refold worker`
      reader     asks questions, rebuilds, verifies
      sink       copies state to a store: it reads, and writes nothing to Kafka
      admin      creates the log, marks and pins, retries dead letters, reads access lists

    A user that records runs with effects reads the log too: give it the roles producer and reader. docs/SECURITY.md
    says what is and is not protected.
    """


def role_options(command: Callable[..., int]) -> Callable[..., Any]:
    """Make a command over the rights of a principal: adds --log, --role, --principal, --keys, --group and --json."""

    @functools.wraps(command)
    def run(target: LogTarget, role: tuple[str, ...], principal: str, keys: bool, group: tuple[str, ...],
            **given: Any) -> int:  # fmt: skip
        url = resolved_url(target.url)
        if not is_kafka(url):
            raise InputError(f"{url}: only a log on Kafka has access lists; give kafka://HOST:PORT/NAME")
        from refold.streams.log.kafka.access import AccessScope, check_principal
        from refold.streams.log.kafka.clients import Clients
        from refold.streams.log.kafka.url import merged, parse_url

        address = parse_url(url)
        clients = Clients(merged(address, None), address.prefix)
        scope = AccessScope(address.prefix, role, keys, group, contents=address.blobs is None)
        return command(clients, scope, check_principal(principal), Screen(), **given)

    for option in (
        as_json,
        click.option("--group", multiple=True, metavar="NAME",
                     help="A consumer group of its own, to join or to rewind; may be repeated."),
        click.option("--keys", is_flag=True, help="The log's key ring is in a topic, and this role uses it."),
        click.option("--principal", required=True, metavar="User:NAME", help="The user, as the brokers name it."),
        click.option("--role", multiple=True, required=True, type=click.Choice(ROLES),
                     help="A role of the user; may be repeated."),
    ):  # fmt: skip
        run = option(run)
    return on_log(run)


@acl.command(name="print")
@role_options
def print_(clients: Clients, scope: AccessScope, principal: str, screen: Screen, *, as_json: bool) -> int:
    """Print the commands of Kafka's own tool that grant what the roles need. No broker is contacted.

    \b
    Example
      refold acl print --log kafka://127.0.0.1:9092/agents --role producer --principal User:agents
    """
    from refold.streams.log.kafka.access import commands, needed

    grants = needed(scope)
    lines = commands(grants, principal, clients.servers)
    if as_json:
        screen.json({"principal": principal, "roles": [*scope.roles], "acls": [*map(_json, grants)], "commands": lines})
        return 0
    screen.say(f"# {principal} as {', '.join(scope.roles)}; add --command-config FILE to connect as an administrator")
    for line in lines:
        screen.say(line)
    return 0


@acl.command()
@click.option("--dry-run", "is_dry", is_flag=True, help="Print what would be added, and add nothing.")
@role_options
def apply(clients: Clients, scope: AccessScope, principal: str, screen: Screen, *, is_dry: bool, as_json: bool) -> int:
    """Grant a principal the rights that its roles need and that it does not have.

    Connect as a Kafka administrator. Existing entries stay: nothing is ever removed, and a second run adds nothing.
    `refold acl check` lists rights that are not needed; kafka-acls.sh --remove removes them.

    \b
    Example
      refold acl apply --role worker --principal User:refold-worker --dry-run
    """
    from refold.streams.log.kafka.access import missing, needed
    from refold.streams.log.kafka.acls import add, held_by

    lacking = missing(needed(scope), held_by(clients, principal))
    denied = [f"{grant} is denied by an entry for {denial.principal}" for grant, denial in lacking if denial]
    if denied:
        raise InputError(f"{principal}: {'; '.join(denied)}: remove it with kafka-acls.sh --remove --deny-principal")
    grants = [grant for grant, _ in lacking]
    if not is_dry:
        add(clients, principal, grants)
    if as_json:
        screen.json({"principal": principal, "roles": [*scope.roles], "applied": not is_dry,
                     "added": [*map(_json, grants)]})  # fmt: skip
        return 0
    screen.table(COLUMNS, [["would add" if is_dry else "added", each.operation, _resource(each)] for each in grants])
    if not grants:
        screen.say(f"{principal} has every right that it needs; nothing to add")
    elif is_dry:
        screen.say(f"{counted(len(grants), 'entry', 'entries')}; nothing was added, this was a dry run")
    return 0


@acl.command()
@role_options
def check(clients: Clients, scope: AccessScope, principal: str, screen: Screen, *, as_json: bool) -> int:
    """Compare the rights of a principal with those that its roles need.

    Exits with 1 when a right is missing or denied, and prints the command that adds it. Further rights on the log's own
    topics, groups and transactions are listed, and are no failure. A super user needs no entries, but brokers do not
    report who is a super user: for it, every right is reported as missing.

    \b
    Example
      refold acl check --role reader --principal User:dashboards
    """
    from refold.streams.log.kafka.access import commands, extra, missing, needed
    from refold.streams.log.kafka.acls import held_by

    wanted, held = needed(scope), held_by(clients, principal)
    lacking, more = missing(wanted, held), extra(wanted, held, principal, scope.prefix)
    lines = commands([grant for grant, denial in lacking if denial is None], principal, clients.servers)
    if as_json:
        screen.json({
            "ok": not lacking, "principal": principal, "roles": [*scope.roles],
            "missing": [{**_json(grant), "denied": denial is not None} for grant, denial in lacking],
            "extra": [*map(_json, more)], "commands": lines,
        })  # fmt: skip
        return 1 if lacking else 0
    rows = [["DENIED" if denial else "MISSING", grant.operation, _resource(grant)] for grant, denial in lacking]
    screen.table(COLUMNS, rows + [["extra", each.operation, _resource(each)] for each in more])
    if not lacking:
        screen.say(f"{principal} has every right that {', '.join(scope.roles)} needs")
    for line in lines:
        screen.say(line)
    return 1 if lacking else 0


def _resource(grant: Grant) -> str:
    return f"{grant.kind} {grant.name}{'*' if grant.is_prefix else ''}"


def _json(grant: Grant) -> dict[str, str]:
    return {"resource": grant.kind, "name": grant.name, "pattern": "prefixed" if grant.is_prefix else "literal",
            "operation": grant.operation}  # fmt: skip
