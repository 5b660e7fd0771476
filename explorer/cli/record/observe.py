"""`refold observe`: record one observation from the command line.

FIELD=VALUE is parsed by the field's type:

rate_limit=50            a number        enabled=true             true or false
tool=search              text as it is   tags='["a", "b"]'        lists, maps and records as JSON
fields.email='"a@b.c"'   an entry of a map; if its type is any JSON value, it is JSON, so text is quoted
output=@result.txt       the content of a file; text that begins with @ is written @@
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

from refold.avro import strict_json
from refold.avro.definition import TypeDefinition
from refold.avro.envelope import ObservationValidator
from refold.avro.errors import Denied, InputError
from refold.avro.files import read_bounded
from refold.avro.jsonform import reader
from refold.avro.nodes import JSON, Node, allows, value_of
from refold.avro.observation import Link, Source, type_of
from refold.avro.shipped import shipped_types
from refold.avro.times import parse_time
from refold.explorer.cli.options import as_json, entity, on_log
from refold.explorer.cli.output.screen import Screen
from refold.explorer.queries.log_target import LogTarget
from refold.explorer.queries.shapes import position_json
from refold.streams.client import Log
from refold.streams.exchange.import_types import TypeCatalog
from refold.streams.log.port import Position
from refold.streams.open import process_context

CONTENT_BYTES_MAX = 64 << 20
"""The maximum size of a file that is given as a value (@FILE), in bytes."""
COLLECTED = frozenset({"array", "map", "record"})
NUMBERS = {"int": int, "long": int, "float": float, "double": float}


def patch_of(definition: TypeDefinition, assignments: Iterable[str]) -> dict[str, Any]:
    """Return the patch that the assignments describe.

    Raises:
        InputError: An assignment is invalid. The message names it.
    """
    patch: dict[str, Any] = {}
    given: set[str] = set()
    fields = {**definition.by_first_name, **definition.fields}
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        if not equals:
            raise InputError(f"{assignment!r:.120}: an assignment is FIELD=VALUE, such as rate_limit=50")
        name, dot, key = path.partition(".")
        if name not in fields:
            known = ", ".join(definition.fields)
            raise InputError(f"{path}: {definition.name} has the fields {known}")
        if path in given or (name in given if dot else name in patch):
            raise InputError(f"{path}: given twice; give it once")
        given.add(path)
        field = fields[name]
        if not dot:
            patch[name] = _value(field.node, _content(text, path), path)
        elif field.reducer != "map":
            raise InputError(f"{path}: {name} is not a map, so it has no entries; give {name}=VALUE")
        else:
            patch.setdefault(name, {})[key] = _value(field.element, _content(text, path), path)
    return patch


def _content(text: str, path: str) -> str:
    if not text.startswith("@"):
        return text
    if text.startswith("@@"):
        return text[1:]
    try:
        return read_bounded(text[1:], CONTENT_BYTES_MAX).decode()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InputError(
            f"{path}: {text[1:]!r:.120} cannot be read ({reason}); text that begins with @ is written @@"
        ) from None


def _value(node: Node, text: str, path: str) -> Any:
    """Parse a text by the field's type. Later validation decides whether the type allows the value."""
    plain = value_of(node)
    kind, logical = plain["type"], plain.get("logicalType")
    if text == "null" and allows(node, "null") and (logical == JSON or kind != "string"):
        return None
    if logical == JSON:
        return reader(node)(_json(text, path, "any JSON value; put text in double quotes"), path)
    if kind in COLLECTED or text.startswith(('{"$blob"', '{"$sealed"')):
        example = {"array": '["a", "b"]', "map": '{"key": ...}'}.get(kind, '{"field": ...}')
        return reader(node)(_json(text, path, f"JSON, such as {example}"), path)
    if logical == "decimal" or kind in ("string", "enum", "bytes", "fixed"):
        return reader(node)(text, path)
    if kind == "boolean":
        return {"true": True, "false": False}.get(text, text)
    return _number(NUMBERS[kind], text, is_time=logical is not None)


def _number(convert: type, text: str, *, is_time: bool) -> Any:
    """Parse a number. Other text is returned unchanged: it is a time, or validation will refuse it."""
    if not text.isascii() or "_" in text:
        return text
    try:
        return convert(text)
    except ValueError:
        pass
    try:
        # 5.0 and 5e3 are whole numbers too; validation refuses other fractions for an integer field.
        return text if is_time else float(text)
    except ValueError:
        return text


def _json(text: str, path: str, wanted: str) -> Any:
    try:
        return strict_json.loads(text)
    except strict_json.JsonRefused as error:
        raise InputError(f"{path}: the value is {wanted}: {error}") from None
    except ValueError:
        raise InputError(f"{path}: the value is {wanted}; given {text!r:.120}") from None


@click.command()
@entity
@click.argument("assignments", metavar="[FIELD=VALUE]...", nargs=-1)
@click.option("--at", metavar="TIME", help="When it happened, RFC 3339 [now].")
@click.option("--source", metavar="AGENT[/RUN]", help="Who observed it [this process, in its own run].")
@click.option("--priority", type=int, default=0, show_default=True, help="A greater one wins, whatever the times.")
@click.option("--cause", "causes", multiple=True, metavar="ID", help="An observation this one was derived from.")
@click.option("--clear", "cleared", multiple=True, metavar="FIELD", help="Withdraw all that was asserted of a field.")
@click.option(
    "--retract", "retracts", multiple=True, metavar="ID", help="An observation of this entity that was wrong."
)
@click.option("--link", metavar="RELATION=TARGET", help="Link to another entity; do not give fields with it.")
@click.option("--unlink", metavar="RELATION=TARGET", help="End a link.")
@click.option("--valid-from", metavar="TIME", help="Since when the link holds.")
@click.option("--valid-to", metavar="TIME", help="Until when the link holds.")
@click.option("--subject", default="", metavar="PSEUDONYM", help="The person that the data is about.")
@click.option("--allow-future", is_flag=True, help="Accept a time that is more than 5 minutes ahead.")
@as_json
@on_log
def observe(target: LogTarget, entity: str, assignments: tuple[str, ...], as_json: bool, **options: Any) -> int:
    """Record an observation of an entity, and print its id.

    \b
    VALUE is parsed by the field's type
      rate_limit=50            a number, or true or false
      tool=search              text
      tags='["a", "b"]'        lists, maps and records are JSON
      fields.email='"a@b.c"'   an entry of a map; if its type is any JSON value, text is quoted
      output=@result.txt       the content of a file; text that begins with @ is written @@

    \b
    Examples
      refold observe tool_config/acme rate_limit=50 enabled=true --source deployer
      refold observe document/user-mia fields.email='"mia@example.com"' --at 2026-11-21T03:12:00Z
      refold observe tool_config/acme --retract 3f0c...
      refold observe step/8f2c#1 --link of=run/8f2c
    """
    given = _envelope(options)
    if not target.exists():
        _check(target, entity, assignments, given)  # do not create a log for an observation that it would refuse
    with target.write() as log:
        patch = _patch(TypeCatalog(log.port.registry, target.own_types(), shipped_types()), entity, assignments)
        found = log.observe(entity, patch, **given)
        log.flush()
        log.port.refresh()
        _report(Screen(), log, entity, found, as_json)
    return 0


def _envelope(options: dict[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments of `Log.observe`."""
    given = {name: options[name] for name in ("priority", "causes", "cleared", "retracts", "subject", "allow_future")}
    given["observed_at"] = None if options["at"] is None else parse_time(options["at"], "--at")
    given["source"] = _source(options["source"])
    if options["link"] is not None and options["unlink"] is not None:
        raise InputError("--link and --unlink are two observations; record one after the other")
    kind = "link" if options["link"] is not None else "unlink" if options["unlink"] is not None else "assert"
    validity = [
        None if options[side] is None else parse_time(options[side], f"--{side.replace('_', '-')}")
        for side in ("valid_from", "valid_to")
    ]
    if kind != "assert":
        given["kind"] = kind
        given["link"] = _link(f"--{kind}", options[kind], *validity)
    elif any(each is not None for each in validity):
        raise InputError("--valid-from and --valid-to say when a link holds; give --link RELATION=TARGET with them")
    return given


def _source(text: str | None) -> Source | str | None:
    if text is None:
        return None
    agent, slash, run = text.partition("/")
    return Source(agent, run) if slash else agent


def _link(option: str, text: str, valid_from: int | None, valid_to: int | None) -> Link:
    relation, equals, target = text.partition("=")
    if not equals:
        raise InputError(f"{option} {text!r:.120}: a link is RELATION=TARGET, such as of=run/8f2c")
    return Link(relation, target, valid_from, valid_to)


def _patch(vocabulary: TypeCatalog, entity: str, assignments: tuple[str, ...]) -> dict[str, Any]:
    return patch_of(_door(vocabulary, entity).definition, assignments)


def _door(vocabulary: TypeCatalog, entity: str) -> ObservationValidator:
    return vocabulary.writer(type_of(entity)).validator


def _check(target: LogTarget, entity: str, assignments: tuple[str, ...], given: dict[str, Any]) -> None:
    door = _door(TypeCatalog((), target.own_types(), shipped_types()), entity)
    now = process_context().now_micros()
    source = given["source"]
    observed_at = given["observed_at"]
    door.build(
        entity,
        patch_of(door.definition, assignments),
        now=now,
        blobs={},
        **{
            **given,
            "source": source if isinstance(source, Source) else Source(source or ""),
            "observed_at": now if observed_at is None else observed_at,
        },
    )


def _report(screen: Screen, log: Log, entity: str, found: str, as_json: bool) -> None:
    try:
        record = log.port.find(bytes.fromhex(found))
        assert record is not None, "an observation that was flushed is found"
        version = sum(1 for _ in log.port.arrivals(entity, log.port.ends()[record.partition]))
    except Denied:  # a user that may only write learns only that it is durable
        if as_json:
            screen.json({"id": found, "entity": entity, "position": None, "version": None})
        else:
            screen.say(f"{found} of {entity} is recorded; this user may not read where")
        return
    if as_json:
        position = position_json(Position(record.partition, record.offset))
        screen.json({"id": found, "entity": entity, "position": position, "version": version})
    else:
        screen.say(f"{found} at {record.partition}={record.offset}, {entity} v{version}")
