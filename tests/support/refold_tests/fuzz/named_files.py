"""Cases of files that users or their programs name: policies, prices, settings, keys, spools, search indexes."""

from __future__ import annotations

import json
import random
import sqlite3
import struct
from typing import Any

import cbor2
import msgspec

from refold_tests.fuzz import mutate
from refold_tests.fuzz.case import Case, as_given, read_by
from refold_tests.fuzz.world import CHATS, World

POLICY: dict[str, Any] = {
    "name": "desk",
    "rule": [
        {"name": "large", "tool": "look*", "args": {"order": {"over": 100, "like": "7*"}}, "action": "ask",
         "expires_s": 60, "why": "a person decides"},
        {"name": "known", "tool": "*", "args": {"order": {"one_of": ["7", 7], "missing": False}}, "action": "allow"},
        {"name": "far", "tool": "?ook", "args": {"to": {"lines": {"0": {"differs": {"a": [1]}}}}}},
        {"name": "models", "model": "gpt-*", "args": {"equals": {"equals": 1}}},
    ],
    "budget": {"calls": 5, "tool_calls": 1, "tokens": 200_000, "time_s": 900.5, "steps": 3},
    "loop": {"repeats": 2, "period_max": 4, "except": ["poll*"]},
}  # fmt: skip
PRICES: dict[str, Any] = {
    "models": {
        "gpt-5": {"input": 1.25, "output": 10, "cached": 0.125},
        "claude": {"input": 3, "output": 15, "written": 3.75, "long": {"above": 200_000, "input": 6, "output": 22.5}},
    },
}  # fmt: skip
PLAN: dict[str, Any] = {
    "attempts": 3, "attempts_per_hour": 10, "expect": ["outcome=succeeded", "look>=1"], "golden": ".",
    "guard": "x.toml", "remedy": [
        {"name": "again", "do": "retry", "on": ["loop", "error"], "match": "look*", "expect": ["steps<9"]},
        {"name": "read", "do": "refresh", "answers": {"pay": {"a": [1]}}, "approve": True},
        {"name": "other", "do": "change", "state": {"seen": [1]}, "drop": ["seen[0].a"], "version": "2",
         "arguments": {"model": {"system": "stop"}}, "entry": "this:d"},
        {"name": "more", "do": "limit", "budget": {"tokens": 9, "cost_usd": 0.5}, "loop": {"repeats": 9}},
        {"name": "own", "do": "function", "function": "this:d"},
        {"name": "person", "do": "ask", "on": ["divergence"]},
    ],
}  # fmt: skip
AGENTS: dict[str, Any] = {
    "agents": {
        "desk": {
            "command": ["python", "desk.py"], "mode": "sdk", "restart": "on-failure", "backoff_s": 0.1, "retries": 3,
            "env": {"KEY": "env:HOME", "FILE": "file:x", "TEXT": "text:y"}, "work": ".", "budget": {"calls": 5},
            "limits": {"memory_mb": 64}, "hide": ["~/.ssh"], "isolation": "bubblewrap", "output_mb": 1, "heal": PLAN,
        },
        "captured": {"command": ["x"], "mode": "capture", "upstream": "https://api.openai.com", "restart": "always"},
    },
}  # fmt: skip
SETTINGS = (
    "security.protocol=SASL_SSL", "sasl.mechanism=SCRAM-SHA-512", "sasl.username=x", "sasl.password=secret",
    "ssl.ca.location=/dev/null", "ssl.truststore.location=x.pem", "ssl.truststore.type=PEM", "ssl.keystore.type=JKS",
    'sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required username="a" password="b\\"c";',
    "ssl.keystore.key=-----BEGIN KEY----- AAAA -----END KEY-----", "ssl.endpoint.identification.algorithm=",
    "acks=0", "socket.timeout.ms=5000 \\", "# comment", "! other", "schema.registry.url=https://u:p@h/", "a b=c", "=",
    "basic.auth.user.info=a:b", "debug", "check.crcs=true", "linger.ms=" + "9" * 400,
)  # fmt: skip
LENGTH = struct.Struct(">I")
ODD_FRAMES: tuple[Any, ...] = (
    [], {}, None, 7, ["end"], ["piece", 1], ["piece", 1, "text"], ["head"], ["head", [], "HTTP/1.1", 200, [], 1.0],
    ["head", 1, 2, 3, 4, 5], ["request"], ["request", "x", 1, 2], ["end", "whole", 1.0, None, None],
    ["end", "whole", 1.0, ["x"], {"a": 1}], ["end", 7, "x", ["a", "b"], None], ["nothing", 1, 2],
)  # fmt: skip
BODY = json.dumps({"model": "m", "messages": CHATS[1]})
REPLY = {"id": "c", "model": "m", "choices": [{"message": {"role": "assistant", "content": "hi"}}]}
EDITS = {
    "--set": ("seen[1].a=3", 'seen=[1,{"a":1e999}]', "new.deep[0]=1", "seen[99999999999]=1", 'seen[1]={"$blob":"x"}'),
    "--drop": ("seen", "seen[0]", "seen[1].a", "nope"),
    "--input": ('{"order":"8"}', "[", "null", '"x"'),
    "--tool-result": ('2/look={"order":"7"}', "look=1", "0/look=2", "99/look=1", "2/look="),
    "--argument": ("look.order=8", "look.order=", "look=1", "model.temperature=0", "look.x.y=1"),
    "--policy": ("live", "recorded"),
    "--allow": ("look", "*"),
    "--id": ("child", "r-1", "a/b"),
}
MAPPED = (
    "role=from",
    "content=value",
    "messages=turns",
    "model=name",
    "tool_calls=calls",
    "timestamp=at",
    "created=at",
)


def policy(chance: random.Random, world: World) -> Case:
    """Make a policy, tested on a run."""
    tree = mutate.mutated(chance, POLICY, [POLICY, {"a": CHATS}])
    as_json = ["--json"] if chance.random() < 0.3 else []
    return Case(["policy", "test", "x.toml", "r-1", *as_json], {"x.toml": toml(chance, tree)})


def policy_file(chance: random.Random, world: World) -> Case:
    """Make a policy, and decide by it."""
    return read_by("policy_file", toml(chance, mutate.mutated(chance, POLICY, [POLICY, {"a": CHATS}])))


def plan(chance: random.Random, world: World) -> Case:
    """Make a plan of remedies, and choose from it."""
    return read_by("plan", toml(chance, mutate.mutated(chance, PLAN, [PLAN, POLICY, {"a": CHATS}])))


def agents_file(chance: random.Random, world: World) -> Case:
    """Make a file of agents."""
    return read_by("agents_file", toml(chance, mutate.mutated(chance, AGENTS, [AGENTS, PLAN, POLICY])))


def prices(chance: random.Random, world: World) -> Case:
    """Make a table of prices, and compute the cost of some calls."""
    return read_by("prices", toml(chance, mutate.mutated(chance, PRICES, [PRICES, POLICY])))


def kafka_settings(chance: random.Random, world: World) -> Case:
    """Make a file of settings for Kafka's clients and the Schema Registry."""
    lines = chance.choices(SETTINGS, k=chance.randrange(8))
    if lines and chance.random() < 0.8:
        at = chance.randrange(len(lines))
        lines[at] = mutate.text(chance, lines[at])
    data = chance.choice(("\n", "\r\n", "\r", "\n")).join(lines).encode("utf-8", "surrogatepass")
    return read_by("kafka_settings", mutate.damaged(chance, data) if chance.random() < 0.2 else data)


def key_file(chance: random.Random, world: World) -> Case:
    """Make a file of a key ring."""
    tree: Any = {"key": "ab" * 32, "key_id": "run/r-1"}
    data = mutate.written(chance, mutate.mutated(chance, tree) if chance.random() < 0.9 else tree)
    return read_by("key_file", mutate.damaged(chance, data) if chance.random() < 0.3 else data)


def master_key(chance: random.Random, world: World) -> Case:
    """Make a file with master keys."""
    data = chance.choice((b"QUFB" * 12, b"QUFB" * 12 + b"," + b"QkJC" * 12, b"QUFB", b"\xff" * 40, b" \n", b"=" * 60))
    return read_by("master_key", mutate.damaged(chance, data) if chance.random() < 0.7 else data)


def spool(chance: random.Random, world: World) -> Case:
    """Make an exchange that a dead proxy left in its spool."""
    url = "https://api.openai.com/v1/chat/completions"
    request = {"exchange": 1, "method": "POST", "url": url, "type": "application/json", "body": BODY}
    frames: list[Any] = [
        ["request", 1_767_225_600_000_000, "chat", request],
        ["head", [["accept", "*/*"]], "HTTP/1.1", 200, [["content-type", "application/json"]], 1.5],
        ["piece", 2.5, json.dumps(REPLY).encode()],
        ["end", "whole", 3.5, None, None],
    ]  # fmt: skip
    what = chance.random()
    if what < 0.4:
        at = chance.randrange(4)
        frames[at] = chance.choice(ODD_FRAMES) if chance.random() < 0.5 else mutate.mutated(chance, frames[at][1:])
    elif what < 0.6:
        frames[0][3] = mutate.mutated(chance, request, [request, {"a": CHATS}])
    elif what < 0.7:
        frames[2][2] = mutate.written(chance, mutate.mutated(chance, REPLY, CHATS))
    packed = [_packed(each) for each in frames]
    data = b"".join(LENGTH.pack(len(each)) + each for each in packed)
    if what > 0.7:
        data = chance.choice((
            mutate.damaged(chance, data), bytes(len(data)), data[: chance.randrange(len(data))] + bytes(512),
            LENGTH.pack(2**32 - 1) + data, data + LENGTH.pack(2**31), b"", bytes(4),
        ))  # fmt: skip
    return read_by("spool", data)


def _packed(frame: Any) -> bytes:
    try:
        return msgspec.msgpack.encode(frame)
    except (TypeError, ValueError, OverflowError, UnicodeError, RecursionError):
        return msgspec.msgpack.encode(repr(frame)[:1000].encode(errors="replace"))


def search_index(chance: random.Random, world: World) -> Case:
    """Make the file of a search index: damaged, from another program, or with other tables."""
    what = chance.randrange(6)
    if what == 0:
        data = chance.choice((b"", b"x", bytes(4096), chance.randbytes(5000), b"SQLite format 3\x00" + bytes(100)))
    elif what == 1:
        with sqlite3.connect(":memory:") as made:
            made.execute(
                chance.choice(("CREATE TABLE about(name, value)", "CREATE TABLE t(x)", "CREATE VIEW v AS SELECT 1"))
            )
            data = made.serialize()
    else:
        data = world.search_index
        for _ in range(chance.choice((1, 1, 5, 40))):
            data = mutate.damaged(chance, data) if chance.random() < 0.2 else _changed_byte(chance, data)
        if what == 5:
            data = data[: chance.randrange(len(data))]
    words = ["--no-update"] if chance.random() < 0.5 else []
    text = chance.choice(("y", "pay back", '"no', "a*", "AND OR", *mutate.TEXTS[:12]))
    return Case(as_given(["run", "search", "--index", "x.db", *words, "--json", "--", text]), {"x.db": data})


def _changed_byte(chance: random.Random, data: bytes) -> bytes:
    found = bytearray(data)
    found[chance.randrange(len(found))] = chance.choice((0, 1, 0x7F, 0xFF, chance.randrange(256)))
    return bytes(found)


def mapped(chance: random.Random, world: World) -> Case:
    """Make conversations with renamed keys, and the names that are given for them."""
    given = chance.sample(MAPPED, k=chance.randrange(1, 4))
    trees = [json.loads(_renamed(json.dumps(each), given)) for each in CHATS]
    data = b"\n".join(mutate.written(chance, mutate.mutated(chance, each, trees)) for each in trees) + b"\n"
    maps = [mutate.text(chance, each) if chance.random() < 0.3 else each for each in given]
    form = chance.choice(("chat", "chat", "auto", "otlp"))
    words = [word for each in maps for word in ("--map", each)]
    return Case(as_given(["import", "x.jsonl", "--format", form, *words]), {"x.jsonl": data}, log="own")


def _renamed(text: str, given: list[str]) -> str:
    for each in given:
        key, _, theirs = each.partition("=")
        text = text.replace(f'"{key}":', f'"{theirs}":')
    return text


def toml(chance: random.Random, tree: Any) -> bytes:
    """Return a tree as TOML, as far as TOML can represent it; sometimes damaged, or nested too deeply."""
    if not isinstance(tree, dict):
        tree = {"name": tree}
    try:
        said = "\n".join(f"{_key(key)} = {_inline(value)}" for key, value in tree.items())
    except RecursionError:  # the deepest trees
        said = "x = " + "{a = " * 3000
    if chance.random() < 0.1:
        said += chance.choice(
            (
                "\na.b.c = 1\na.b = 2",
                "\n[x]\n[x]",
                "\nx = " + "[" * 3000,
                "\n" + "a." * 3000 + "a = 1",
                "\nx = 1979-05-27T07:32:00Z",
                "\nx = 0x" + "f" * 5000,
                "\nx = " + "9" * 5000,
                "\nx = nan",
                "\n[[rule]]",
            )
        )
    data = said.encode("utf-8", "surrogatepass")
    return mutate.damaged(chance, data) if chance.random() < 0.15 else data


def _key(key: Any) -> str:
    return json.dumps(str(key))


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(key)} = {_inline(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_inline, value)) + "]"
    if isinstance(value, float):
        return {"inf": "inf", "-inf": "-inf"}.get(str(value), str(value))
    return "null" if value is None else json.dumps(value)


def edits(chance: random.Random, world: World) -> Case:
    """Fork a run with changes of its state, input, results and arguments; or replay it, or test it."""
    words = ["run", "fork", "r-1", "--agent", "desk.py:answer", "--at", str(chance.choice((0, 1, 1, 1, 2, 9)))]
    for option, goods in EDITS.items():
        if chance.random() < 0.3:
            words += [
                option,
                mutate.text(chance, chance.choice(goods)) if chance.random() < 0.7 else chance.choice(goods),
            ]
    return Case(as_given(words))


def checkpoint(chance: random.Random, world: World) -> Case:
    """Make a checkpoint of LangGraph's in a log: damaged, or naming classes."""
    import ormsgpack

    hostile = chance.choice((
        ("os", "system", "touch hacked"), ("subprocess", "Popen", ["touch", "hacked"]), ("builtins", "eval", "1"),
        ("refold_tests.fuzz.hostile", "Loaded", {}), ("langchain_core.messages.human", "HumanMessage", {"content": 1}),
        ("uuid", "UUID", "x"), ("decimal", "Decimal", "1"), ("", "", None), ("pathlib", "Path", "x"),
    ))  # fmt: skip
    code = chance.choice((0, 1, 2, 3, 4, 5, 6, 42, 127))
    module, name, given = hostile
    parts = chance.choice(([*hostile], [*hostile, "__init__"], [module, name], module, [module, name, [given], {}]))
    values = mutate.mutated(chance, {"v": 4, "channel_values": {"messages": [1, "a"]}, "x": None}, CHATS)
    try:
        data = ormsgpack.packb([values, ormsgpack.Ext(code, ormsgpack.packb(parts))])
    except (TypeError, ValueError, RecursionError):  # MessagePack cannot hold a part
        data = ormsgpack.packb(ormsgpack.Ext(code, ormsgpack.packb(parts)))
    if chance.random() < 0.2:
        said = {"lc": chance.choice((1, 2)), "type": "constructor", "id": [module, name], "args": [given]}
        kind, data = "json", mutate.written(chance, mutate.mutated(chance, said) if chance.random() < 0.5 else said)
    else:
        kind = chance.choice(("msgpack",) * 8 + ("json", "pickle", "bytes", "null", "", "x", "bytearray"))
    return read_by("checkpoint", cbor2.dumps([kind, mutate.damaged(chance, data) if chance.random() < 0.4 else data]))


NAMED_FILES = (
    policy, policy_file, plan, agents_file, edits, prices, kafka_settings, key_file, master_key, spool, search_index,
    mapped, checkpoint,
)  # fmt: skip
