"""The MCP server of one log: its tools and resources, independent of the transport (stdio.py, http.py).

1. A request is answered in a thread with its own open log. Requests that read a whole log have one thread of their own,
   so they block no other question; so do requests that write.
2. If a question has no answer, the tool's result has `isError`. Its text tells the model why, and what to do next.
3. A defect is one line in the server's own log. No details of it are sent to the client.

Entities are resources: `refold://entity/TYPE/ID`, with `?at=WHEN` for an earlier point. They answer as the tool
`state`.

The tool `observe` exists only if the server was started with --write.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
    TextContent,
    TextResourceContents,
    Tool,
    ToolAnnotations,
)

import refold
from refold.agents.log import AgentLog
from refold.avro.errors import InputError, RefoldError
from refold.avro.observation import Source
from refold.explorer.mcp.bounded import answer, compact
from refold.explorer.mcp.tools import TOOLS
from refold.explorer.queries.find import FindQuery
from refold.explorer.queries.log_target import Handles, LogTarget
from refold.streams.web.server import Busy, Lane

OBSERVE = "observe"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "entity": {"type": "string", "description": "TYPE/ID"},
        "patch": {"type": "object", "description": "Fields and their values; state shows the fields of an entity"},
        "agent": {"type": "string", "description": "Who observed it"},
        "run": {"type": "string", "description": "In which of its runs"},
        "causes": {"type": "array", "items": {"type": "string"},
                   "description": "Ids of observations that it was derived from"},
    },
    "required": ["entity", "patch", "agent"],
    "additionalProperties": False,
}  # fmt: skip
ABOUT = "Record an observation of an entity, durably. Values that were there stay in its history."
KINDS: Mapping[str, type] = {"entity": str, "patch": dict, "agent": str, "run": str, "causes": list}


def observe(target: LogTarget, given: Mapping[str, Any]) -> str:
    """Record an observation; once it is durable, return JSON with its id.

    Raises:
        RefoldError: The observation was refused, and nothing is recorded.
    """
    found = {name: value for name, value in given.items() if value is not None}
    for name, value in found.items():
        if name not in KINDS:
            raise InputError(f"{name!r:.60}: {OBSERVE} takes {', '.join(KINDS)}")
        if not isinstance(value, KINDS[name]):
            raise InputError(f"{name}: {SCHEMA['properties'][name]['type']} of JSON, given {value!r:.60}")
    missing = [name for name in SCHEMA["required"] if not found.get(name)]
    if missing:
        raise InputError(f"{OBSERVE} needs {', '.join(missing)}")
    source = Source(found["agent"], found.get("run", ""))
    with target.write(make=False) as log:
        observation = log.observe(found["entity"], found["patch"], source=source, causes=found.get("causes", ()))
        log.flush()
        return compact(
            {"again": {"at": str(log.point().cut)}, "answer": {"id": observation, "entity": found["entity"]}}
        )


SCHEME, HOST = "refold", "entity"
TEMPLATE = f"{SCHEME}://{HOST}/{{+entity}}{{?at}}"
LISTED = 100


class EntityPage(NamedTuple):
    """A page of entity names.

    Attributes:
        cursor: The cursor of the next page; None: this is the last page.
    """

    entities: list[str]
    cursor: str | None


def address_of(entity: str, at: str | None = None) -> str:
    """Return the URI of an entity's resource."""
    query = "" if at is None else f"?{urlencode({'at': at})}"
    return f"{SCHEME}://{HOST}/{quote(entity, safe='/')}{query}"


def entities(log: AgentLog, cursor: str | None) -> EntityPage:
    """Return a page of entities, without those that record runs. A cursor is CUT@OFFSET.

    Raises:
        InputError: The cursor cannot be read.
    """
    at, _, offset = (cursor or f"{log.point().cut}@0").rpartition("@")
    if not at or not offset.isascii() or not offset.isdigit() or len(offset) > 15:
        raise InputError(f"cursor {cursor!r:.80}: give the one that the page before returned")
    names = list(FindQuery().names(log, log.point(at).cut))
    begin = int(offset)
    end = begin + LISTED
    return EntityPage(names[begin:end], f"{at}@{end}" if end < len(names) else None)


def read(log: AgentLog, address: str) -> str:
    """Return the state of an entity, as the tool `state` does.

    Raises:
        RefoldError: There is no such entity, or the address is not a resource.
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


INSTRUCTIONS = (
    "What agents observed and did, and what their world looked like at any moment. WHEN is a time (RFC 3339 with "
    "zone), @MARKER, cut:TEXT, vN of an entity, run:ID#STEP, or now. Each answer's `again` holds the arguments at its "
    "exact cut: ask with them for the same answer. A long answer is cut short: `more` lists cursors to ask again with."
)
JSON = "application/json"
_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class HistoryServer:
    """Answers MCP requests about one log.

    Args:
        writes: Whether `observe` is a tool too.
    """

    def __init__(self, target: LogTarget, *, writes: bool = False) -> None:
        self._target = target
        self._writes = writes
        self._handles = Handles(target)
        self._lanes = {"ask": Lane("refold-mcp-ask", 3), "slow": Lane("refold-mcp-slow", 1),
                       "write": Lane("refold-mcp-write", 1)}  # fmt: skip
        self.server: Server[Any] = Server(
            "refold", version=refold.__version__, instructions=INSTRUCTIONS,
            on_list_tools=self._list_tools, on_call_tool=self._call_tool,
            on_list_resources=self._list_resources, on_read_resource=self._read_resource,
            on_list_resource_templates=self._list_templates,
        )  # fmt: skip

    def close(self) -> None:
        """Stop answering, and close the log."""
        for lane in self._lanes.values():
            lane.close()
        self._handles.close()

    def tools(self) -> list[Tool]:
        """Return the definitions of all tools."""
        found = [
            Tool(name=each.name, description=each.about, input_schema=each.schema,
                 annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False))
            for each in TOOLS.values()
        ]  # fmt: skip
        if self._writes:
            hints = ToolAnnotations(
                read_only_hint=False, destructive_hint=False, idempotent_hint=False, open_world_hint=False
            )
            found.append(Tool(name=OBSERVE, description=ABOUT, input_schema=SCHEMA,
                              annotations=hints))  # fmt: skip
        return found

    async def _list_tools(self, context: Any, params: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=self.tools())

    async def _call_tool(self, context: ServerRequestContext[Any], given: CallToolRequestParams) -> CallToolResult:
        tool, arguments = TOOLS.get(given.name), given.arguments or {}
        try:
            if tool is not None:
                text = await self._query("slow" if tool.is_slow else "ask", lambda log: answer(log, tool, arguments))
            elif self._writes and given.name == OBSERVE:
                text = await self._run("write", lambda: observe(self._target, arguments))
            else:
                names = ", ".join(each.name for each in self.tools())
                raise MCPError(INVALID_PARAMS, f"{given.name:.60}: no such tool; there are {names}")
        except (RefoldError, OSError) as error:
            hint = f"\nNext: {tool.hint}." if tool is not None else ""
            return CallToolResult(content=[TextContent(text=f"{_readable(error)}{hint}")], is_error=True)
        except Busy:
            busy = "too many questions wait for an answer; ask again"
            return CallToolResult(content=[TextContent(text=busy)], is_error=True)
        return CallToolResult(content=[TextContent(text=text)])

    async def _list_resources(self, context: Any, params: PaginatedRequestParams | None) -> ListResourcesResult:
        cursor = None if params is None else params.cursor
        page = await self._resource("slow", lambda log: entities(log, cursor))
        found = [Resource(uri=address_of(each), name=each, mime_type=JSON) for each in page.entities]
        return ListResourcesResult(resources=found, next_cursor=page.cursor)

    async def _list_templates(self, context: Any, params: PaginatedRequestParams | None) -> ListResourceTemplatesResult:
        about = "An entity's state; at: WHEN, without it now"
        template = ResourceTemplate(uri_template=TEMPLATE, name=HOST, description=about, mime_type=JSON)
        return ListResourceTemplatesResult(resource_templates=[template])

    async def _read_resource(self, context: Any, given: ReadResourceRequestParams) -> ReadResourceResult:
        text = await self._resource("ask", lambda log: read(log, given.uri))
        return ReadResourceResult(contents=[TextResourceContents(uri=given.uri, mime_type=JSON, text=text)])

    async def _resource(self, lane: str, work: Callable[[AgentLog], _T]) -> _T:
        try:
            return await self._query(lane, work)
        except (RefoldError, OSError) as error:
            raise MCPError(INVALID_PARAMS, _readable(error)) from None
        except Busy:
            raise MCPError(INTERNAL_ERROR, "too many questions wait for an answer; ask again") from None

    async def _query(self, lane: str, work: Callable[[AgentLog], _T]) -> _T:
        return await self._run(lane, lambda: work(self._handles.log()))

    async def _run(self, lane: str, work: Callable[[], _T]) -> _T:
        """Run work in a lane and return its result. An unexpected exception is a defect: the server's log says
        where.
        """
        try:
            found: _T = await asyncio.wrap_future(self._lanes[lane].submit(work))
            return found
        except (RefoldError, OSError, Busy):
            raise
        except Exception as error:  # a defect: the client gets an error, and the server's log says where
            frames = traceback.extract_tb(error.__traceback__)
            where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "?"
            _log.error("a question failed: %s: %.300s (%s)", type(error).__name__, error, where)
            raise MCPError(
                INTERNAL_ERROR, "the question failed, which is a defect; the server's log says where"
            ) from None


def _readable(error: Exception) -> str:
    return str(error) if isinstance(error, RefoldError) else str(getattr(error, "strerror", None) or error)


def one_line_logs() -> None:
    """Make the SDK log to standard error with one line per message, without tracebacks."""
    handler = logging.StreamHandler()
    handler.setFormatter(_OneLineFormatter("refold: %(message)s"))
    for name in ("mcp", "refold"):
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.propagate = False


class _OneLineFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        error = record.exc_info[1] if record.exc_info else None
        message = " ".join(record.getMessage().split())[:500]
        return f"refold: {message}" + (f" ({type(error).__name__})" if error is not None else "")
