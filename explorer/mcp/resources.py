"""Entities as resources: `refold://entity/TYPE/ID`, with `?at=WHEN` at an earlier point; as the tool `state`."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from refold.agents.log import AgentLog
from refold.avro.errors import InputError
from refold.explorer.mcp.answers import answer
from refold.explorer.mcp.tools import TOOLS
from refold.explorer.queries.find import FindQuery

SCHEME, HOST = "refold", "entity"
TEMPLATE = f"{SCHEME}://{HOST}/{{+entity}}{{?at}}"
LISTED = 100


class EntityPage(NamedTuple):
    """Entities by name. cursor: of the next page, None at the end."""

    entities: list[str]
    cursor: str | None


def address_of(entity: str, at: str | None = None) -> str:
    """The resource of an entity."""
    query = "" if at is None else f"?{urlencode({'at': at})}"
    return f"{SCHEME}://{HOST}/{quote(entity, safe='/')}{query}"


def entities(log: AgentLog, cursor: str | None) -> EntityPage:
    """A page of them; those that runs are recorded as are left out. A cursor is CUT@OFFSET."""
    at, _, offset = (cursor or f"{log.point().cut}@0").rpartition("@")
    if not at or not offset.isascii() or not offset.isdigit() or len(offset) > 15:
        raise InputError(f"cursor {cursor!r:.80}: give the one that the page before returned")
    names = list(FindQuery().names(log, log.point(at).cut))
    begin = int(offset)
    end = begin + LISTED
    return EntityPage(names[begin:end], f"{at}@{end}" if end < len(names) else None)


def read(log: AgentLog, address: str) -> str:
    """The state of an entity, as the tool `state` gives it.

    Raises:
        RefoldError: There is no such entity, or it is no address of one.
    """
    try:
        parts = urlsplit(address)
        query = dict(parse_qsl(parts.query, max_num_fields=4))
    except ValueError:
        parts, query = None, {}
    entity = "" if parts is None else unquote(parts.path.removeprefix("/"), errors="replace")
    if parts is None or (parts.scheme, parts.netloc) != (SCHEME, HOST) or not entity or query.keys() - {"at"}:
        raise InputError(f"{address:.120}: a resource is {TEMPLATE}, such as {address_of('tool_config/acme')}")
    return answer(log, TOOLS["state"], {"entity": entity, **query})
