"""The results of the parts of `make bench`, each kept as a file, so that a run may be done in pieces.

1. `--folder DIR` names the folder. The results of one setting are together in `DIR/results-KEY`: KEY is a digest of the
   machine, of the code and of the options that change what is measured.
2. A part that is done is read from its file, and not measured again.
3. A part that fails, or is interrupted, leaves no file: the file is renamed into its place when it is complete.

The page's text, the goals and docs/ are no part of the code's digest: a change of these measures nothing again.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from refold.avro.kernel import find_kernel

ROOT = Path(__file__).parents[1]
# What is measured, and what measures it. The page's modules and the documents are not.
CODE = ("avro", "reducers", "streams", "agents", "sinks", "explorer", "src", "kernel", "bench", "pyproject.toml")
UNKNOWN = "unknown"
NO_CODE = (":!bench/page.py", ":!bench/results.py", ":!explorer/capacity/measured.json")


class Picture(msgspec.Struct, frozen=True):
    """A picture: its file's name, its title, the names of the axes, and the points of each series."""

    name: str
    title: str
    x: str
    y: str
    series: Mapping[str, Sequence[tuple[float, float]]]


class Figure(msgspec.Struct, frozen=True):
    """A measured figure.

    Attributes:
        goal: What it should reach; None for a figure that is only shown.
        peer: What it is compared with, and that one's own value.
        at_least: Whether more is better.
        moonshot: A further goal.
        limit: What bounds it, measured in the same run.
    """

    name: str
    measured: float
    goal: float | None
    unit: str
    peer: str = ""
    at_least: bool = True
    moonshot: float | None = None
    limit: str = ""

    @property
    def is_reached(self) -> bool | None:
        """Whether it reaches its goal; None without one."""
        if self.goal is None:
            return None
        return self.measured >= self.goal if self.at_least else self.measured <= self.goal


class PartResult(msgspec.Struct, frozen=True):
    """The output of one part.

    Attributes:
        begun: RFC 3339, UTC.
        load_before: The machine's load average of a minute.
        blocks: Tables as Markdown, and lines.
        values: What else is recorded of it.
    """

    name: str
    begun: str
    seconds: float
    load_before: float
    load_after: float
    blocks: list[str]
    pictures: list[Picture]
    figures: list[Figure]
    values: dict[str, Any]


class Setting(msgspec.Struct, frozen=True):
    """What a result depends on.

    Attributes:
        command: The command that measures it.
        options: The options that change what is measured.
        commit: The last commit that changed the code, and a digest of what was changed since in it.
    """

    command: str
    options: Mapping[str, Any]
    processor: str
    cores: int
    memory_gb: int
    system: str
    python: str
    kernel: str
    commit: str

    @property
    def key(self) -> str:
        """A digest of everything but the command's text."""
        told = msgspec.to_builtins(self)
        del told["command"]
        return hashlib.sha256(msgspec.json.encode(told, order="sorted")).hexdigest()[:12]

    def described(self) -> Iterator[tuple[str, str]]:
        """Yield what a page says of the machine."""
        yield "processor", f"{self.processor}, {self.cores} cores"
        yield "memory", f"{self.memory_gb} GB"
        yield "system", f"{self.system}, Python {self.python}"
        yield "refold", f"commit {self.commit}, {self.kernel}"


def setting(command: str, options: Mapping[str, Any], root: Path = ROOT) -> Setting:
    """Return the present setting. root: the folder of the measured code."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Setting(
        command=command, options=options, processor=_processor(), cores=len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_gb=round(memory / (1 << 30)), system=f"{platform.system()} {platform.release()} on {platform.machine()}",
        python=platform.python_version(), kernel=find_kernel().text, commit=_commit(root),
    )  # fmt: skip


class Results:
    """The kept results of one setting. folder: None to keep none. Without git none are kept: the code is unknown."""

    def __init__(self, folder: Path | None, given: Setting) -> None:
        self._folder = None if folder is None or given.commit == UNKNOWN else folder / f"results-{given.key}"

    def get(self, name: str) -> PartResult | None:
        """Return a part's result if it is done. A file that cannot be read is as good as none."""
        if self._folder is None:
            return None
        try:
            return msgspec.json.decode((self._folder / f"{name}.json").read_bytes(), type=PartResult)
        except (OSError, msgspec.MsgspecError):
            return None

    def put(self, result: PartResult) -> None:
        """Keep a part's result."""
        if self._folder is None:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        unfinished = self._folder / f"{result.name}.unfinished"
        unfinished.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1))
        unfinished.replace(self._folder / f"{result.name}.json")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _commit(root: Path) -> str:
    """Return the last commit of the code, with a digest of what the code differs by; UNKNOWN without git."""
    try:
        commit = _git(root, "log", "-1", "--format=%h", "--abbrev=12", "--", *CODE, *NO_CODE).decode().strip()
        changed = _git(root, "diff", "HEAD", "--", *CODE, *NO_CODE)
    except (OSError, subprocess.CalledProcessError):
        return UNKNOWN
    return commit if not changed else f"{commit} and changes {hashlib.sha256(changed).hexdigest()[:12]}"


def _git(root: Path, *arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True).stdout
