"""For each entry point, how a case is made: files, and the command line that reads them. And the list of all entry
points.
"""

from __future__ import annotations

import base64
import copy
import gzip
import hashlib
import json
import random
from collections.abc import Iterator
from typing import Any

import cbor2
import click

from refold_tests.fuzz import containers, mutate
from refold_tests.fuzz.case import Case, Log, Make, as_given, read_by
from refold_tests.fuzz.conversations import CONVERSATIONS
from refold_tests.fuzz.named_files import NAMED_FILES
from refold_tests.fuzz.records import RECORDS
from refold_tests.fuzz.world import CHATS, TAU, World
from refold_tests.tree import ROOT

URLS = (
    "file:%00", "file:log", "file:" + "x" * 300, "file:log?partitions=9999999999", "file:", "s3:x", "x.avro", "kafka:",
    "file:log?blobs=s:%00", "file:log?partitions=²", "file:%ff", "file:x/../log", "file:log?blobs=file:%00", "file:%0a",
)  # fmt: skip
CUT_PARTS: tuple[Any, ...] = (
    -1, 2**64, 2**70, -(2**70), 1.5, b"", b"x" * 16, "x", None, [], {}, {0: 1}, {0: 2**63}, {2**40: 0}, {"0": 1},
    {0: 0, 1: 0, 2: 0}, True, cbor2.undefined, float("nan"), 10**4000,
)  # fmt: skip
SESSIONS = (
    ("function_calling.traj", "swe-agent"), ("claude.jsonl", "claude-code"), ("claude_sidechain.jsonl", "claude-code"),
    ("codex.jsonl", "codex"), ("codex_old.jsonl", "codex"), ("anthropic.jsonl", "chat"), ("pairs.jsonl", "chat"),
    ("sharegpt.jsonl", "chat"), ("otlp_gen_ai.jsonl", "otlp"), ("otlp_openinference.jsonl", "otlp"),
    ("otlp_traceloop.json", "otlp"),
)  # fmt: skip
POSITIONS = (
    "0/1", "observations/0/5", "changes/0=3", "0=1", "1:2", "contents/1/" + "9" * 30, "-1/-1", "x/y/z", "0/1/2/3",
    "keys/0/0", "observations/0/5-9", "schemas/0/\u0663", "look@r-1#2", "r-1#2/1", "3=done", "NAME=0", "k=v=w",
)  # fmt: skip
ENTITIES = ("tool_config/acme", "document/7", "run/r-1", "step/r-1#1", "nope/x")


def lines(chance: random.Random, world: World) -> Case:
    """Make exported observations as JSON lines, plain or gzipped."""
    return _documents(chance, world.lines, "observations")


def chat(chance: random.Random, world: World) -> Case:
    """Make recorded conversations."""
    return _documents(chance, CHATS, "chat")


def tau_bench(chance: random.Random, world: World) -> Case:
    """Make recorded tau-bench runs."""
    return _documents(chance, TAU, "tau-bench")


def sessions(chance: random.Random, world: World) -> Case:
    """Make trajectories and sessions of coding agents: whole files with some changed values, half of them as `auto`."""
    name, form = chance.choice(SESSIONS)
    path = ROOT / "tests" / "agents" / "samples" / name
    text = path.read_text(encoding="utf-8")
    trees = (
        [json.loads(text)] if name.endswith((".traj", ".json")) else [json.loads(line) for line in text.splitlines()]
    )
    given = list(trees)
    for _ in range(chance.choice((1, 1, 2, 4))):
        at = chance.randrange(len(given))
        given[at] = mutate.mutated(chance, given[at], trees)
    data = b"\n".join(mutate.written(chance, each) for each in given) + b"\n"
    data = mutate.damaged(chance, data) if chance.random() < 0.1 else data
    form = chance.choice((form, "auto"))
    return Case(["import", "x.jsonl", "--format", form], {"x.jsonl": data}, log=_log(chance))


def _documents(chance: random.Random, trees: Any, form: str) -> Case:
    given = [chance.choice(trees) for _ in range(chance.randint(1, 3))]
    at = chance.randrange(len(given))
    given[at] = mutate.mutated(chance, given[at], trees)
    if form == "observations" and isinstance(given[at], dict) and chance.random() < 0.8:
        given[at].pop("id", None)  # otherwise almost every one would be refused for its id
    data = b"\n".join(mutate.written(chance, each) for each in given) + b"\n"
    name = "x.jsonl"
    if chance.random() < 0.2:
        data = mutate.damaged(chance, data)
    if chance.random() < 0.2:
        data, name = gzip.compress(data, mtime=0), "x.jsonl.gz"
        data = mutate.damaged(chance, data) if chance.random() < 0.5 else data
    return Case(["import", name, "--format", form], {name: data}, log=_log(chance))


def recorded(chance: random.Random, world: World) -> Case:
    """Use real runs of agents: conversations of SWE-agent, and tau-bench's own results; without them, the same as
    `chat`.
    """
    if not world.sessions:
        return chat(chance, world)
    form, tree = chance.choice(world.sessions)
    return _documents(chance, [tree], form)


def log_files(chance: random.Random, world: World) -> Case:
    """Make the files of an embedded log, one of them damaged, cut, empty or full of zeros."""
    name = chance.choice([*world.log_files, *(each for each in world.log_files if each.endswith("CURRENT"))])
    data = (world.folder / "kept" / name).read_bytes()
    changed = chance.choice((
        b"", bytes(len(data)), data[: len(data) // 2], mutate.damaged(chance, data), mutate.damaged(chance, data),
        chance.randbytes(64),
    ))  # fmt: skip
    command = chance.choice((
        ["state", "tool_config/acme"], ["rebuild"], ["verify"], ["doctor"], ["export", "out.jsonl", "--force"],
        ["observe", "tool_config/acme", "rate_limit=1"], ["markers"], ["runs", "--json"], ["recover"],
    ))  # fmt: skip
    return read_by("log_files", cbor2.dumps([name, changed, command]))


def container(chance: random.Random, world: World) -> Case:
    """Make exported observations as an Avro container."""
    return Case(["import", "x.avro"], {"x.avro": _container(chance, world.export)}, log=_log(chance))


def _log(chance: random.Random) -> Log:
    """Sometimes return a log with contents: opening it takes longer than everything else."""
    return "shared" if chance.random() < 0.3 else "own"


def archive(chance: random.Random, world: World) -> Case:
    """Make an archive."""
    data = _container(chance, world.archive)
    more = ["--fork"] if chance.random() < 0.3 else []
    return Case(["import", "x.avro", "--format", "archive", *more], {"x.avro": data}, log="own")


def _container(chance: random.Random, given: containers.Container) -> bytes:
    if chance.random() < 0.3:
        return mutate.damaged(chance, containers.written(given))
    changed = containers.mutated(
        chance, given, lambda tree: mutate.mutated(chance, tree), lambda data: mutate.damaged(chance, data)
    )
    return containers.written(changed)


def closed_archive(chance: random.Random, world: World) -> Case:
    """Make an archive with changed items and an end that matches them."""
    import io

    import fastavro

    from refold.streams.exchange import archive_form

    schema = fastavro.parse_schema(world.archive.schema)
    items = []
    for count, data in world.archive.blocks:
        stream = io.BytesIO(data)
        for _ in range(count):
            datum: Any = fastavro.schemaless_reader(stream, schema, None, return_record_name=True)
            items.append(archive_form.item_of(datum))
    kept: list[Any] = items[:-1]
    for _ in range(chance.choice((1, 1, 2))):
        at = chance.randrange(len(kept))
        item = kept[at]
        name = chance.choice(item._fields)
        try:
            kept[at] = item._replace(**{name: _part(chance, getattr(item, name))})
            if chance.random() < 0.1:
                kept.insert(at, kept[at])
        except (TypeError, ValueError):
            continue
    out = io.BytesIO()
    try:
        archive_form.write_items(out, kept, world.archive.sync)
    except Exception:  # Avro cannot hold a part
        return archive(chance, world)
    return Case(["import", "x.avro", "--format", "archive"], {"x.avro": out.getvalue()}, log="own")


def _part(chance: random.Random, given: Any) -> Any:
    if isinstance(given, bytes):
        return mutate.damaged(chance, given) if chance.random() < 0.8 else b""
    if isinstance(given, str) and given.startswith("{"):
        return mutate.written(chance, mutate.mutated(chance, json.loads(given))).decode(errors="replace")
    if isinstance(given, str) and given.startswith("cut:"):
        return _cut(chance, given)
    if isinstance(given, int):
        return chance.choice((0, 1, given + 1, given - 1, -1, 2**31 - 1, 2**63 - 1, -(2**63)))
    return mutate.near(chance, given)


def _cut(chance: random.Random, given: str) -> str:
    """Return a cut's text, with its tree changed and encoded again."""
    encoded = given.removeprefix("cut:1.")
    tree: Any = cbor2.loads(base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)))
    key = chance.choice(list(tree))
    values = CUT_PARTS
    what = chance.randrange(4)
    if what == 0:
        tree[key] = chance.choice(values)
    elif what == 1:
        del tree[key]
    elif what == 2:
        tree[chance.choice(("o", "x", 0))] = chance.choice(values)
    elif isinstance(tree.get("p"), dict):
        tree["p"] = {**tree["p"], chance.choice((0, 1, 7, -1, 2**64)): chance.choice(values)}
    if chance.random() < 0.1:
        tree = chance.choice(values)
    data = cbor2.dumps(tree, canonical=chance.random() < 0.8)
    data = mutate.damaged(chance, data) if chance.random() < 0.3 else data
    return "cut:1." + base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def when(chance: random.Random, world: World) -> Case:
    """Make a WHEN, sometimes a cut."""
    given = chance.choice(world.whens)
    text = _cut(chance, given) if given.startswith("cut:") else mutate.text(chance, given)
    text = mutate.text(chance, text) if chance.random() < 0.3 else text
    entity = chance.choice(ENTITIES)
    more = ["--clock", "observed"] if chance.random() < 0.2 else []
    as_json = ["--json"] if chance.random() < 0.3 else []
    return Case(
        chance.choice((
            ["rebuild", "--at", text, *more], ["state", entity, "--at", text, *more], ["diff", text, "now"],
            ["history", entity, "--at", text], ["why", f"{entity}.rate_limit", "--at", text],
            ["mark", "again", "--at", text], ["knew", "desk", entity, "--at", text], ["runs", "--at", text],
            ["export", "out.jsonl", "--at", text, "--force"], ["diff", "offset:0=0", text, entity],
        ))
        + as_json
    )  # fmt: skip


def types(chance: random.Random, world: World) -> Case:
    """Make a type file."""
    tree = mutate.mutated(chance, chance.choice(world.types), world.types)
    data = mutate.written(chance, tree)
    data = mutate.damaged(chance, data) if chance.random() < 0.2 else data
    arguments = chance.choice((["types", "--register", "x.avsc"], ["types", "--types", "x.avsc"],
                               ["observe", "tool_config/acme", "rate_limit=1", "--types", "x.avsc"]))  # fmt: skip
    return Case(arguments, {"x.avsc": data})


GOLDEN_COMMANDS = (["golden", "sign"], ["golden", "list"], ["golden", "run"])
GOLDEN_VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    2**63,
    10**30,
    1.5,
    "",
    "x",
    "\ud800",
    "9" * 5000,
    [],
    [[]],
    ["x"],
    {},
    {"x": 1},
    {"$text": [1]},
)
"""The values that replace each member of a golden trace in turn."""


def golden_members(world: World) -> Iterator[Case]:
    """Yield a golden trace without each member, and with each of GOLDEN_VALUES instead; sign, list and run it."""
    for at in range(len(mutate.places(world.golden))):
        for value in (..., *GOLDEN_VALUES):
            tree = copy.deepcopy(world.golden)
            holder, key = mutate.places(tree)[at]
            if value is ...:
                del holder[key]
            else:
                holder[key] = value
            data = json.dumps(signed(tree)).encode()
            for command in GOLDEN_COMMANDS:
                yield Case([*command, "x.golden.json"], {"x.golden.json": data}, log="none")


def signed(tree: dict[str, Any]) -> dict[str, Any]:
    """Return a golden trace with the hash of its current content."""
    body = {key: each for key, each in tree.items() if key != "sha256"}
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return {**tree, "sha256": hashlib.sha256(text.encode(errors="replace")).hexdigest()}


def golden(chance: random.Random, world: World) -> Case:
    """Make a golden trace, signed or not."""
    tree = mutate.mutated(chance, world.golden, [world.golden, {"a": CHATS}])
    if isinstance(tree, dict) and chance.random() < 0.7:
        tree = signed(tree)
    data = mutate.written(chance, tree)
    data = mutate.damaged(chance, data) if chance.random() < 0.1 else data
    return Case([*chance.choice(GOLDEN_COMMANDS), "x.golden.json"], {"x.golden.json": data}, log="none")


def observe(chance: random.Random, world: World) -> Case:
    """Make an observation on the command line."""
    name = chance.choice(("rate_limit", "settings", "settings.a", "tags", "tool", "enabled", "timeout_ms", "fields.x"))
    said = json.dumps(mutate.value(chance)) if chance.random() < 0.6 else chance.choice((*mutate.TEXTS, *mutate.RAW))
    entity = chance.choice((*ENTITIES, *mutate.TEXTS))
    more: list[str] = []
    for option in ("--at", "--source", "--cause", "--clear", "--retract", "--link", "--priority", "--subject"):
        if chance.random() < 0.15:
            more += [option, chance.choice((*mutate.TEXTS, *world.ids, "of=run/r", str(2**70)))]
    return Case(as_given(["observe", entity, f"{name}={said}", *more]))


LEFT_OUT = {"demo", "deck", "explore", "worker", "sink", "acl", "bisect", "rewind", "export", "import"}
"""Commands that serve, contact others, or have their own entry point."""


def arguments(chance: random.Random, world: World) -> Case:
    """Make any command with any options."""
    from refold.explorer.cli.main import cli

    words: list[str] = []
    command: click.Command = cli
    context = click.Context(cli, info_name="refold")
    while isinstance(command, click.Group):
        names = [name for name in command.list_commands(context) if name not in LEFT_OUT]
        words.append(chance.choice(names))
        found = command.get_command(context, words[-1])
        assert found is not None
        command = found
    for each in command.params:
        if isinstance(each, click.Option):
            name = max(each.opts, key=len)
            if name in ("--follow", "--agent", "--code", "--entry", "--help") or chance.random() > 0.25:
                continue
            words += [name] if each.is_flag else [name, _word(chance, world, each)]
        elif each.required or chance.random() < 0.5:
            words += [_word(chance, world, each) for _ in range(1 if each.nargs == 1 else chance.randrange(3))]
    return Case(as_given(words))


def _word(chance: random.Random, world: World, of: click.Parameter) -> str:
    if isinstance(of.type, click.Choice) and chance.random() < 0.8:
        return str(chance.choice(list(of.type.choices)))
    if "log_url" in of.opts or "--log" in of.opts:
        return chance.choice(URLS)
    if "--worker" in of.opts:
        return "http://127.0.0.1:1"
    if chance.random() < 0.4:
        return chance.choice((*ENTITIES, "r-1", "deploy", "new", *world.ids, "tool_config/acme.rate_limit"))
    pool = chance.choice(
        (mutate.TEXTS, tuple(map(str, mutate.NUMBERS)), world.whens, POSITIONS, ("x.avro", "x.jsonl", "log", "."))
    )
    return str(chance.choice(pool))


def cut(chance: random.Random, world: World) -> Case:
    """Make the text of a cut."""
    return read_by("cut", _cut(chance, world.whens[-1]).encode())


ENTRANCES: dict[str, Make] = {
    each.__name__: each
    for each in (
        lines, chat, tau_bench, sessions, recorded, container, log_files, archive, closed_archive, when, types, golden,
        observe, arguments, cut, *NAMED_FILES, *RECORDS, *CONVERSATIONS,
    )
}  # fmt: skip
