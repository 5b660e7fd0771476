"""The import graph: every import in the code, wherever it is, as edges between modules and folders.

Imports in functions and `TYPE_CHECKING` blocks, and `importlib.import_module("refold...")`, count like those at the
top of a module: a late import can still point in the wrong direction.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from refold_tests.tree import FOLDERS, shipped_files

# The modules in src/refold itself, except `refold.testing`: the public interface over all folders.
FACE = "refold"
TESTING = "testing"
EVERYTHING = frozenset({*FOLDERS, TESTING, FACE})

# Where a bare `agents` is the OpenAI Agents SDK.
AGENTS_SDK = "refold.agents.adapters.openai_agents."

# A folder may import itself and these folders.
ALLOWED: Mapping[str, frozenset[str]] = {
    "avro": frozenset(),
    "reducers": frozenset({"avro"}),
    "streams": frozenset({"avro", "reducers"}),
    "agents": frozenset({"avro", "reducers", "streams"}),
    "sinks": frozenset({"avro", "reducers", "streams", "agents"}),
    "explorer": EVERYTHING,
    TESTING: EVERYTHING,
    FACE: EVERYTHING,
}


@dataclass(frozen=True, slots=True)
class Edge:
    """`importer` imports `target` on `line`. If `target` is not a module of refold, it is the text as written."""

    importer: str
    target: str
    line: int

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.target}"


def folder_of(module: str) -> str:
    """Return the folder of a dotted name: `refold.avro.ids` is in `avro`; `refold` and `refold.x` are the public
    interface.
    """
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in (*FOLDERS, TESTING) else FACE


def modules(root: Path) -> dict[str, Path]:
    """Return the file of every module below src/refold, by dotted name."""
    found = {}
    for name in shipped_files(root):
        if name.endswith(".py"):
            dotted = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            found[dotted] = root / "src" / name
    return found


def edges(root: Path) -> list[Edge]:
    """Return every import of refold by refold. A bare `streams` or `avro` counts too, because it would be a mistake."""
    known = modules(root)
    found = []
    for importer, path in known.items():
        package = importer if path.name == "__init__.py" else importer.rpartition(".")[0]
        for name, line in _imported(ast.parse(path.read_bytes(), str(path)), package):
            top = name.partition(".")[0]
            if top in ("refold", *FOLDERS) and not (top == "agents" and importer.startswith(AGENTS_SDK)):
                found.append(Edge(importer, _longest_module(name, known), line))
    return found


def misdirected(found: list[Edge]) -> list[str]:
    """Return the edges that ALLOWED does not allow, as text."""
    return [
        str(edge)
        for edge in found
        if not edge.target.startswith("refold")
        or folder_of(edge.target) not in ALLOWED[folder_of(edge.importer)] | {folder_of(edge.importer)}
    ]


def cycle(found: list[Edge]) -> list[str]:
    """Return the modules of one import cycle, first and last the same; empty if there is none."""
    graph: dict[str, set[str]] = {}
    for edge in found:
        graph.setdefault(edge.importer, set()).add(edge.target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        names: list[str] = error.args[1]
        return names
    return []


def _imported(tree: ast.Module, package: str) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                for alias in node.names:
                    yield alias.name, node.lineno
            case ast.ImportFrom():
                base = node.module or ""
                if node.level:
                    parts = package.split(".")
                    base = ".".join((*parts[: len(parts) - node.level + 1], *filter(None, (node.module,))))
                for alias in node.names:
                    yield f"{base}.{alias.name}", node.lineno
            case ast.Call(
                func=ast.Name(id="import_module") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield name, node.lineno


def _longest_module(name: str, known: Mapping[str, Path]) -> str:
    """Shorten `refold.avro.ids.identify` to `refold.avro.ids`. A folder that is not a module is returned unchanged."""
    candidate = name
    while candidate not in known and candidate.count(".") > 1:
        candidate = candidate.rpartition(".")[0]
    if candidate in known or folder_of(candidate) != FACE:
        return candidate
    return FACE if name.partition(".")[0] == FACE else name
