"""Measures `refold import` of recorded chats into a new embedded log, and `refold verify` of that log.

The conversations are generated: a question, and TURNS calls of a tool, each with its result and a reply, about 300
bytes of text a message. Each round runs in a new process, which has imported one conversation into another log before
the clock starts: start-up and imports are not counted. verify is that of the command line, with all its checks.
"""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import tempfile
import time
from contextlib import redirect_stdout
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from new_process import in_new_process
from page import note, titled_table
from recording import words
from results import Figure
from rich.console import Console

CONVERSATIONS, TURNS = 400, 12
TEXT_BYTES = 300
ROUNDS = 3
SEED = 3
IMPORT_GOAL, VERIFY_GOAL = 15_000, 30_000


class Imported(NamedTuple):
    """The figures of a round. cpu: microseconds an observation."""

    observations: int
    imported_per_second: float
    import_cpu: float
    verified_per_second: float
    verify_cpu: float


def show(console: Console, folder: Path, share: int) -> None:
    """Print the table."""
    with console.status("importing chats"):
        rounds = [in_new_process(_round, str(folder), CONVERSATIONS // share) for _ in range(ROUNDS)]
    found = Imported(*map(median, zip(*rounds, strict=True)))
    title = f"Importing {CONVERSATIONS // share:,} chats of {TURNS} turns, and verifying them (medians of {ROUNDS})"
    table = titled_table(title, "command", "observations", "a second", "CPU us an observation")
    count = f"{found.observations:,.0f}"
    table.add_row("refold import", count, f"{found.imported_per_second:,.0f}", f"{found.import_cpu:.1f}")
    table.add_row("refold verify", count, f"{found.verified_per_second:,.0f}", f"{found.verify_cpu:.1f}")
    console.print(table)
    unit = "observations a second"
    note(console, Figure("`refold import` of chat runs", found.imported_per_second, IMPORT_GOAL, unit))
    note(console, Figure("`refold verify` of chat runs", found.verified_per_second, VERIFY_GOAL, unit))


def _round(folder: str, conversations: int) -> Imported:
    path = Path(tempfile.mkdtemp(prefix="bench-", dir=folder))
    rng = random.Random(SEED)
    for name, count in (("first", 1), ("all", conversations)):
        lines = (json.dumps(_conversation(number, rng)) for number in range(count))
        (path / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    for name in ("first", "all"):
        log = f"file:{path}/{name}"
        read, import_s, import_cpu_s = _ran("import", str(path / f"{name}.jsonl"), "--format", "chat", "--log", log)
        verified, verify_s, verify_cpu_s = _ran("verify", "--log", log)
        assert verified["ok"]
    shutil.rmtree(path)
    count = read["read"]
    return Imported(count, count / import_s, import_cpu_s / count * 1e6, count / verify_s, verify_cpu_s / count * 1e6)


def _ran(*command: str) -> tuple[Any, float, float]:
    """Run a command in this process; return what it printed, its seconds, and the CPU seconds of this process and of
    those that it started.
    """
    from refold.explorer.cli.main import run

    with redirect_stdout(io.StringIO()) as output:
        begin_s, begin_cpu_s = time.perf_counter(), _cpu_s()
        status = run([*command, "--json"])
        seconds, cpu_s = time.perf_counter() - begin_s, _cpu_s() - begin_cpu_s
    assert status == 0, output.getvalue()
    return json.loads(output.getvalue()), seconds, cpu_s


def _cpu_s() -> float:
    return sum(os.times()[:4])


def _conversation(number: int, rng: random.Random) -> dict[str, Any]:
    messages: list[dict[str, Any]] = [{"role": "user", "content": words(TEXT_BYTES, rng)}]
    for turn in range(TURNS):
        call = f"call-{turn}"
        arguments = json.dumps({"query": words(60, rng), "limit": turn})
        calls = [{"id": call, "type": "function", "function": {"name": f"search-{turn % 5}", "arguments": arguments}}]
        messages += [
            {"role": "assistant", "content": words(TEXT_BYTES, rng), "tool_calls": calls},
            {"role": "tool", "tool_call_id": call, "content": words(TEXT_BYTES, rng)},
        ]
    messages.append({"role": "assistant", "content": words(TEXT_BYTES, rng)})
    return {"id": f"chat-{number}", "model": "bench", "created": 1_700_000_000 + number, "messages": messages}
