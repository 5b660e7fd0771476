"""Cases of conversations: with the owner of a log over its socket, and with a worker's pages over HTTP."""

from __future__ import annotations

import random
import struct
from typing import Any
from urllib.parse import quote

import cbor2

from refold.avro.errors import RefoldError
from refold.avro.ids import identify
from refold_tests.fuzz import mutate, trees
from refold_tests.fuzz.case import Case, read_by
from refold_tests.fuzz.readers import registry
from refold_tests.fuzz.records import LOOKUPS
from refold_tests.fuzz.world import World

METHODS = ("GET", "POST", "HEAD", "PUT", "OPTIONS", "CONNECT", "TRACE", "get", "", "G\tT", "x" * 9000)
HOSTS = ("localhost",) * 8 + ("127.0.0.1:80", "worker", "evil.example", "", "a b", "[::1", "é", "x" * 5000)
PATHS = ("/health", "/ready", "/status", "/metrics", "/", "/nothing", "/health/x", "/metrics?x=1")
PARTITIONS = ("", "?partition=0", "?partition=1", "?partition=9", "?partition=" + "9" * 5000, "?partition=%D9%A3")
SIZES = ("", "ffffffffffffffff", "-1", "0x3", "g", "1" * 9000)
ENDS = (b"\r\n0\r\n\r\n", b"0\r\n\r\n", b"\r\n", b"\r\n0\r\nX: y\r\n\r\n")
OPS = ("append", "flush", "register", "mark", "snapshot", "pin", "collect", "recover", "nothing", "", 7, None)
FORWARDED, LOG = "X-Refold-Forwarded", "X-Refold-Log"


def owner(chance: random.Random, world: World) -> Case:
    """Make a conversation with the owner of a log."""
    parts: list[Any] = []
    for _ in range(chance.choice((1, 1, 2, 4))):
        parts += _sent(chance, _frame(chance, world))
    return read_by("owner", cbor2.dumps(parts))


def _frame(chance: random.Random, world: World) -> bytes:
    what = chance.random()
    if what < 0.1:
        return chance.randbytes(chance.randrange(1, 60))
    if what < 0.2:
        body = cbor2.dumps([chance.choice(OPS), chance.choice(trees.ODD)])
    elif what < 0.4:
        body = cbor2.dumps(["append", [_under_its_id(chance, world)]])
    else:
        body = trees.cbor(chance, trees.changed(chance, chance.choice(_questions(world))))
    size = len(body)
    if chance.random() < 0.15:
        size = chance.choice((0, 1, size - 1, size + 1, size * 2, (64 << 20) + 1, 2**31, 2**32 - 1))
    return struct.pack(">I", max(0, size)) + body


def _questions(world: World) -> tuple[Any, ...]:
    _, observation_id, data = world.records[0]
    cut = world.whens[-1]
    return (
        ["append", [[observation_id, data]]], ["append", [[each[1], each[2]] for each in world.records[:3]]],
        ["register", world.types[0]], ["register", world.types[-1]], ["flush", None],
        ["mark", {"marked": ["deploy", cut, 5], "replace": False}],
        ["mark", {"marked": ["new", cut, 5], "replace": True}], ["snapshot", None], ["snapshot", 5],
        ["pin", {"epochs": [[0, 1, 1]], "pinned_at": 5}], ["collect", {"dry_run": True, "damaged": False}],
        ["recover", False],
    )  # fmt: skip


def _under_its_id(chance: random.Random, world: World) -> list[bytes]:
    """Return a message with an observation whose bytes are changed, under the id that fits the changed bytes."""
    _, observation_id, data = chance.choice(world.records)
    for _ in range(20):
        changed = mutate.damaged(chance, data)
        try:
            return [identify(registry().decode(changed)), changed]
        except RefoldError:
            continue
    return [observation_id, mutate.damaged(chance, data)]


def _sent(chance: random.Random, data: bytes) -> list[Any]:
    """Return bytes as they are sent: at once, in halves, slowly, or incompletely."""
    what = chance.random()
    if what < 0.6 or len(data) < 2:
        return [data]
    at = chance.randrange(1, len(data))
    if what < 0.75:
        return [data[:at], chance.choice((0.0, 0.01, 0.05)), data[at:]]
    if what < 0.85:
        return [data[:at]]
    drops = [data[each : each + 1] for each in range(min(at, 12))]
    return [*(part for drop in drops for part in (drop, 0.01)), data[len(drops) :]]


def pages(chance: random.Random, world: World) -> Case:
    """Make a conversation with a worker's pages."""
    return read_by("pages", cbor2.dumps(http_parts(chance, world)))


def http_parts(chance: random.Random, world: World) -> list[Any]:
    """Return one to three requests, as they are sent."""
    parts: list[Any] = []
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        data = _request(chance, world)
        parts += _sent(chance, mutate.damaged(chance, data) if chance.random() < 0.15 else data)
    return parts


def _request(chance: random.Random, world: World) -> bytes:
    return _request_of(chance, *_page(chance, world))


def _request_of(chance: random.Random, path: str, body: bytes | None) -> bytes:
    method = "POST" if body is not None else "GET"
    if chance.random() < 0.15:
        method = chance.choice(METHODS)
    target = path
    if chance.random() < 0.2:
        target = chance.choice((
            f"http://evil.example{path}", f"//evil.example{path}", f"https://localhost:1{path}", "*", "", path + "#x",
            "evil.example:80", f"/..{path}", path.replace("/", "%2f"), f"{path}\x00", f"{path}é", "/" + "a" * 9000,
            f"http://[::1{path}", "/%", "/state/%ff%fe", "/state/tool_config/%00", "/\\evil.example/x",
        ))  # fmt: skip
    version = chance.choice(("1.1",) * 12 + ("1.0", "0.9", "2.0", "1.1.1", "x", ""))
    lines = [f"{method} {target} HTTP/{version}"]
    lines.append(f"Host: {chance.choice(HOSTS)}")
    content = body or b""
    if body is not None or chance.random() < 0.1:
        content = content or b"{}"
        lines += _lengths(chance, content)
        if any("chunked" in each for each in lines):
            content = _chunked(chance, content)
    for _ in range(chance.choice((0, 0, 0, 1, 2))):
        lines.append(chance.choice((
            "Origin: http://evil.example", "Origin: null", "Origin: http://localhost", "Authorization: Bearer x",
            "Authorization: Basic \xff", f"{FORWARDED}: 1", f"{LOG}: {'0' * 32}", f"{LOG}: \xff",
            "Expect: 100-continue", "Expect: junk", "Content-Encoding: gzip", "Connection: close",
            "Connection: upgrade", "Upgrade: websocket", "Upgrade: h2c", "no colon", ": empty", " folded: x",
            "X: " + "y" * 5000, "Range: bytes=0-", "Host: localhost", "Transfer-Encoding: chunked", "X\x00: y",
            "Sec-WebSocket-Key: x", "Cookie: " + "a=b;" * 900, "X: \x7f\r\r",
        )))  # fmt: skip
    if chance.random() < 0.05:
        lines += [f"X-{number}: y" for number in range(chance.choice((63, 64, 65, 200)))]
    end = "\r\n" if chance.random() < 0.95 else chance.choice(("\n", "\r", "\r\n\r\n"))
    return (end.join(lines) + end * 2).encode("utf-8", "surrogatepass") + content


def _page(chance: random.Random, world: World) -> tuple[str, bytes | None]:
    """Return a page, and what is posted there; None: nothing."""
    what = chance.randrange(8)
    if what == 0:
        return chance.choice(PATHS), None
    if what < 4:
        entity = chance.choice(("tool_config/acme", "document/7", "run/r-1", "nope/x", *mutate.TEXTS))
        given = {name: _when(chance, world) for name in ("at", "since", "until", "clock") if chance.random() < 0.4}
        query = "&".join(f"{name}={_quoted(value)}" for name, value in given.items())
        query += "&x=1" * 40 if chance.random() < 0.03 else ""
        return f"/{chance.choice(('state', 'history'))}/{_quoted(entity)}?{query}", None
    if what < 6:
        name = chance.choice(("/snapshot", "/pin", "/unpin", "/collect", "/recover", "/flush"))
        tree = chance.choice((
            {"pinned_at": 5}, {"epochs": [[0, 1, 1]], "pinned_at": None}, {"dry_run": True, "damaged": False},
            {"wait": False}, {"offsets": {"0": 1}, "schemas": 1}, {},
        ))  # fmt: skip
        return name, mutate.written(chance, mutate.mutated(chance, tree) if chance.random() < 0.8 else tree)
    return f"/lookup/1{chance.choice(PARTITIONS)}", trees.cbor(chance, trees.changed(chance, chance.choice(LOOKUPS)))


def _when(chance: random.Random, world: World) -> str:
    found = chance.choice(world.whens)
    return mutate.text(chance, found) if chance.random() < 0.7 else found


def _quoted(given: str) -> str:
    return quote(given.encode("utf-8", "surrogatepass"), safe="/:@#=,")


def _lengths(chance: random.Random, content: bytes) -> list[str]:
    """Return the declared lengths of the content."""
    size = len(content)
    if chance.random() < 0.7:
        return [f"Content-Length: {size}"]
    return chance.choice((
        [], ["Transfer-Encoding: chunked"], [f"Content-Length: {size + 5}"], [f"Content-Length: {max(0, size - 1)}"],
        ["Content-Length: -1"], ["Content-Length: " + "9" * 5000], [f"Content-Length: {2**64}"],
        [f"Content-Length: {17 << 20}"], [f"Content-Length: {size}, {size}"], ["Content-Length: x"],
        [f"Content-Length: {size}", f"Content-Length: {size + 1}"], [f"Content-Length: +{size}"],
        [f"Content-Length: {size}", "Transfer-Encoding: chunked"], ["Transfer-Encoding: gzip, chunked"],
        ["Content-Length: ٣"], ["Transfer-Encoding: x"],
    ))  # fmt: skip


def _chunked(chance: random.Random, content: bytes) -> bytes:
    size = chance.choice(
        (f"{len(content):x}", f"{len(content):x};ext=1", "ffffffffffffffff", "-1", "0x3", "", "g", "1" * 9000)
    )
    return (
        size.encode()
        + b"\r\n"
        + content
        + chance.choice((b"\r\n0\r\n\r\n", b"0\r\n\r\n", b"\r\n", b"\r\n0\r\nX: y\r\n\r\n"))
    )


VIEWS = (
    "/", "/run/r-1", "/story/r-1", "/entities", "/entity/tool_config/acme", "/entity/document/9", "/changes",
    "/operate", "/compare", "/diff", "/live", "/static/site.css", "/sign-in", "/do/mark", "/nothing", "/run/r-1/2",
    "/entity/run/r-1",
)  # fmt: skip
API = (
    "runs", "run/r-1", "steps/r-1", "state/tool_config/acme", "history/document/7", "why/tool_config/acme.rate_limit",
    "diff", "find", "markers", "effects", "approvals", "compare", "deadletters", "search", "costs", "openapi.json",
    "doctor", "verify", "entity/document/9", "blob/" + "0" * 64,
)  # fmt: skip
QUERY = ("at", "to", "a", "b", "since", "until", "clock", "text", "type", "limit", "step", "depth", "cursor", "agent",
         "run", "tool", "outcome", "exact", "full", "user", "tag", "min_cost")  # fmt: skip
FORMS: dict[str, dict[str, tuple[str, ...]]] = {
    "mark": {"name": ("new", "deploy")},
    "flag": {"run": ("r-1", "nope"), "reason": ("why", "password=hunter2"), "take_back": ("1", "")},
    "pin": {"run": ("r-1",), "take_back": ("1", "")},
    "settle": {"effect": ("x", "look@r-1#2"), "fate": ("done", "not_done"), "result": ('{"a":1}', "["), "note": ("n",)},
    "approve": {"question": ("q", "r-1#2/1"), "reason": ("why",)},
    "deny": {"question": ("q",), "reason": ("why",)},
}


def explorer(chance: random.Random, world: World) -> Case:
    """Make a conversation with the explorer's pages, including actions."""
    parts: list[Any] = []
    for _ in range(chance.choice((1, 1, 2))):
        data = _request_of(chance, *_view(chance, world))
        parts += _sent(chance, mutate.damaged(chance, data) if chance.random() < 0.1 else data)
    return read_by("explorer", cbor2.dumps(parts))


def _view(chance: random.Random, world: World) -> tuple[str, bytes | None]:
    """Return a page or an API request with a query, or a form that is posted."""
    what = chance.random()
    if what < 0.35:
        name = chance.choice(list(FORMS))
        given = [(key, chance.choice(values)) for key, values in FORMS[name].items() if chance.random() < 0.9]
        given.append(
            ("back", chance.choice(("/", "/run/r-1?at=now&x=1", "//evil.example", "http://evil.example", "\\x")))
        )
        given = [(key, mutate.text(chance, value) if chance.random() < 0.3 else value) for key, value in given]
        form = "&".join(f"{key}={_quoted(value).replace('&', '%26')}" for key, value in given)
        form += "&pad=" + "x" * 70_000 if chance.random() < 0.03 else ""
        return f"/do/{name}", form.encode("utf-8", "surrogatepass")
    path = chance.choice(VIEWS) if what < 0.65 else f"/api/{chance.choice(API)}"
    if chance.random() < 0.2:
        path += "/" + _quoted(chance.choice(mutate.TEXTS))
    query = []
    for name in QUERY:
        if chance.random() < 0.12:
            value = (
                _when(chance, world)
                if name in ("at", "to", "a", "b", "since")
                else str(chance.choice((*mutate.TEXTS, *mutate.NUMBERS, "r-1", "1", "document")))
            )
            query.append(f"{name}={_quoted(value).replace('&', '%26')}")
    return path + ("?" + "&".join(query) if query else ""), None


CONVERSATIONS = (owner, pages, explorer)
