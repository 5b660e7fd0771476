"""Each import that a text of the tests or of the documentation states finds its name.

No type checker reads the code of child processes, which is text, and the examples on pages. After a rename they fail
where they run, or not before a reader tries them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from refold_tests.tree import ROOT

# At the beginning of a line, of a text, or of a statement in either.
IMPORT = re.compile(
    r"""(?:^|["'`(;]|\\n)[ ]*(?:
        from\ (?P<module>refold(?:_tests)?(?:\.\w+)*)\ import\ (?P<names>\([\w\s,]*\)|[\w, ]+)
        | import\ (?P<alone>refold(?:_tests)?(?:\.\w+)+)
    )""",
    re.MULTILINE | re.VERBOSE,
)
# They state imports that are wrong.
WRONG = {ROOT / "tests" / name for name in ("test_imports.py", "test_startup.py", Path(__file__).name)}


def stated(text: str) -> Iterator[tuple[str, str]]:
    """Each module that a text imports, with each name imported from it; or with an empty one."""
    for found in IMPORT.finditer(text):
        if found["alone"]:
            yield found["alone"], ""
        else:
            for name in re.findall(r"(\w+)(?: as \w+)?", found["names"]):
                yield found["module"], name


@cache
def source_of(module: str) -> str | None:
    """The source of a module; empty for a folder without `__init__.py`, None if there is neither."""
    for base in (ROOT / "src", ROOT / "tests" / "support"):
        path = base.joinpath(*module.split("."))
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file.exists():
                return file.read_text(encoding="utf-8")
        if path.is_dir():
            return ""
    return None


@cache
def names_of(module: str) -> set[str]:
    """The names that a module defines or imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(source_of(module) or "")):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {each.asname or each.name for each in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


def is_found(module: str, name: str) -> bool:
    """Whether a module is there, and has the name. Most names are found without parsing the module."""
    source = source_of(module)
    if source is None:
        return False
    is_plain = re.search(rf"^(?:class|def|async def) {name}\b|^{name}\b *[:=]", source, re.MULTILINE)
    return bool(not name or is_plain) or source_of(f"{module}.{name}") is not None or name in names_of(module)


def test_each_stated_import_finds_its_name() -> None:
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    code = [path for folder in ("docs", "tests", "bench") for path in (ROOT / folder).rglob("*.py")]
    found = {(path, *each) for path in {*documents, *code} - WRONG for each in stated(path.read_text(encoding="utf-8"))}
    assert len({module for _, module, _ in found}) > 300
    wrong = [f"{path.relative_to(ROOT)}: {module} {name}" for path, module, name in found if not is_found(module, name)]
    assert sorted(wrong) == []


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("from refold.avro.errors import InputError, NoError", [("refold.avro.errors", "NoError")]),
        ("'from refold.avro.no import x'", [("refold.avro.no", "x")]),
        ('"pass\\nfrom refold.avro import errors, no\\nmain()"', [("refold.avro", "no")]),
        (
            "CODE = '''\nfrom refold.avro.errors import (\n    InputError,\n    No,\n)\n'''",
            [("refold.avro.errors", "No")],
        ),
        ("python -c 'import sys; import refold.avro.no'", [("refold.avro.no", "")]),
        ("from refold import no, open as opened, InputError", [("refold", "no")]),
        ("from refold_tests.tree import ROOT, NO as no", [("refold_tests.tree", "NO")]),
        ("from refold.{module} import x", []),
    ],
    ids=["name", "module", "after-newline", "lines", "alone", "public", "tests", "formatted"],
)
def test_planted_wrong_name_is_found(text: str, wrong: list[tuple[str, str]]) -> None:
    assert [each for each in stated(text) if not is_found(*each)] == wrong
