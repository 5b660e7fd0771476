"""A recipe of docs/guides, followed by a reader whose models are the stand-in server (refold_tests/model_server.py).

1. A python block that begins with `# NAME.py` is that file. Other python blocks are run.
2. The lines of a sh block are run one after the other, in an environment with what the page's `pip` lines install and
   nothing else (fresh_environment.py). A line must succeed, unless `# exits with N` follows it. A line with `# killed`
   gets a SIGKILL when the server receives its last request (programs.py).
3. A text block after that is what the lines print to standard output. `...` is the rest of a line, or any number of
   lines if it is a line by itself. Times, durations, spaces in lines and the server's address are not compared.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from refold_tests import fresh_environment
from refold_tests.model_server import ModelServer, Reply
from refold_tests.pages import EXITS
from refold_tests.programs import Programs, kill
from refold_tests.tree import ROOT

BLOCK = re.compile(r"^```(python|sh|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"# (\w+\.py)\n")


class Clerk:
    """The model of each recipe: a refund desk. It looks up an order, refunds it if it was paid, and says so. It obeys a
    prompt that says `Never refund`. Without tools it says what to do.

    hold: it sets `held` before its last answer, and waits until this is set.
    """

    def __init__(self) -> None:
        self.hold: threading.Event | None = None
        self.held = threading.Event()

    def __call__(self, body: Any) -> Reply:
        said = " ".join(_texts(body))
        order = re.findall(r"\bo-\d+", said)[-1]
        if re.search(r'"refunded"', said):
            if self.hold is not None:
                self.held.set()
                assert self.hold.wait(300), "nobody was killed"
            return Reply(["Order ", order, " was refunded."])
        may_refund = re.search(r'"paid": ?true', said) and "Never refund" not in said
        if "Say refund or refuse" in said:
            return Reply(["refund" if may_refund else "refuse"])
        if may_refund and "tools" in body:
            return Reply(tools=[("refund", {"order": order, "eur": 42})])
        if '"paid"' not in said and "tools" in body:
            return Reply(tools=[("find_order", {"order": order})])
        return Reply(["Order ", order, " is not refunded."])


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)


def follow(page: Path, folder: Path, server: ModelServer, python: Path | None = None) -> dict[str, int]:
    """Do everything that a page says, in a folder; return each line with the number of requests it made.

    Args:
        page: The page.
        folder: Where its files are made.
        server: The stand-in for the models.
        python: The Python of the reader's environment; without it, one with only what the page installs is made.

    Raises:
        AssertionError: A result differs from the page.
    """
    if python is None:
        needed = fresh_environment.requirements(page)
        assert needed, f"{page.name} does not say what to install"
        python = fresh_environment.linked(folder.with_name(f"{folder.name}-reader"), needed)
    clerk = Clerk()
    server.reset()
    server.mind = clerk
    lines: dict[str, int] = {}
    printed = ""
    with closing(Programs(python, folder)) as programs:
        for kind, body in BLOCK.findall(page.read_text(encoding="utf-8")):
            named = NAMED.match(body)
            if kind == "text":
                assert is_as_shown(body, printed, server.url), f"shown:\n{body}\nprinted:\n{printed}"
            elif kind == "python" and named:
                (folder / named[1]).write_text(body, encoding="utf-8")
            elif kind == "python":
                _run(programs, f"python -c {shlex.quote(body)}", server, clerk, python)
            else:
                printed = ""
                for line in body.replace("\\\n", " ").splitlines():
                    if not line.startswith("pip "):
                        before = len(server.requests)
                        printed += _run(programs, line, server, clerk, python)
                        lines[line] = len(server.requests) - before
    return lines


def _run(programs: Programs, line: str, server: ModelServer, clerk: Clerk, python: Path) -> str:
    environment = {
        **os.environ, "OPENAI_BASE_URL": server.url + "/v1", "ANTHROPIC_BASE_URL": server.url, "COLUMNS": "120",
        "OPENAI_API_KEY": "sk-nobody", "ANTHROPIC_API_KEY": "sk-nobody", "LANGSMITH_TRACING": "false",
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
    }  # fmt: skip
    for ours in ("REFOLD_LOG", "PYTHONSAFEPATH"):
        environment.pop(ours, None)
    is_killed = line.endswith("# killed")
    if is_killed:
        clerk.hold = threading.Event()
        clerk.held.clear()
    process = programs.start(line, environment)
    try:
        if is_killed:
            assert clerk.held.wait(300), f"{line} did not come to the model's last word"
            kill(process)
        printed, errors = process.communicate(timeout=120)
    finally:
        if process.poll() is None:
            kill(process)
            process.wait()
        if clerk.hold is not None:
            clerk.hold.set()
            clerk.hold = None
    said = EXITS.search(line)
    expected = -signal.SIGKILL if is_killed else int(said[1]) if said else 0
    assert process.returncode == expected, f"{line}\nexit {process.returncode}\n{printed}{errors}"
    return printed


def is_as_shown(shown: str, printed: str, address: str) -> bool:
    """Return whether a page's text matches the output."""
    lines = (
        r"(?:[^\n]*\n)*" if line == "..." else re.escape(line).replace(r"\.\.\.", r"[^\n]*") + r"\n"
        for line in _plain(shown).splitlines()
    )
    found = _plain(printed.replace(address.removeprefix("http://"), "api").replace("127.0.0.1", "api"))
    return re.fullmatch("".join(lines), found + "\n") is not None


def _plain(text: str) -> str:
    text = re.sub(r"api\.(openai|anthropic)\.com", "api", text)
    text = re.sub(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d(\.\d+)?)?Z?", "TIME", text)
    text = re.sub(r"\b\d+(\.\d+)? ?(us|ms|s)\b", "TOOK", text)
    return "\n".join(" ".join(line.split()) for line in text.strip().splitlines())


RECIPES = tuple(
    ROOT / "docs" / "guides" / f"{name}.md" for name in ("openai", "anthropic", "langgraph", "pydantic-ai", "threads")
)
