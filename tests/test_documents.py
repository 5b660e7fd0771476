"""README and docs run as written (refold_tests/pages.py), and what they link to and name is there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from refold_tests.fresh_environment import linked, requirements
from refold_tests.fuzz.entrances import ENTRANCES
from refold_tests.pages import run_page, with_conversation
from refold_tests.recipes import RECIPES
from refold_tests.tree import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs").glob("guides/*.md"))]
ALL_PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), ROOT / "helm" / "refold" / "README.md"]
INDEX = ROOT / "docs" / "index.md"


def _path(page: Path) -> str:
    return str(page.relative_to(ROOT))


# tests/explorer/test_incident.py, tests/sinks/test_sinks_page.py, tests/test_recipes.py, and in tests/agents/adapters/
# otlp/test_receive.py, langgraph/test_guide.py, openai_agents/test_guide.py, claude_agent_sdk/test_guide.py and
# test_workflow_engines.py follow these, and look at what came of it.
ELSEWHERE = (
    "INCIDENT.md", "SINKS.md", "claude-agent-sdk.md", "langgraph-threads.md", "openai-agents.md", "opentelemetry.md",
    "workflow-engines.md", *(page.name for page in RECIPES),
)  # fmt: skip


@pytest.mark.outside
@pytest.mark.parametrize("page", [each for each in PAGES if each.name not in ELSEWHERE], ids=lambda page: page.name)
def test_examples_on_a_page_run(page: Path, tmp_path: Path) -> None:
    """A guide is run in an environment with what it installs and nothing else."""
    folder = tmp_path / "reader"
    folder.mkdir()
    with_conversation(folder)
    needed = requirements(page) if page.parent.name == "guides" else []
    run_page(page, folder, python=linked(tmp_path, needed) if needed else Path(sys.executable))


SNIPPET = re.compile(r"^```(?:py|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_python_that_needs_a_server_imports_what_it_uses(tmp_path: Path) -> None:
    for page in PAGES:
        code = "\n".join(SNIPPET.findall(page.read_text(encoding="utf-8")))
        (tmp_path / f"{page.parent.name}-{page.stem}.py").write_text(code, encoding="utf-8")
    undefined = [sys.executable, "-P", "-m", "ruff", "check", "--isolated", "--select", "F821,E9", "-q", str(tmp_path)]
    done = subprocess.run(undefined, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


LINK = re.compile(r"\]\(([^)#:\s]*)(?:#([^)\s]+))?\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def _anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as the usual forge and mkdocs make them of words without marks."""
    headings = HEADING.findall(FENCED.sub("", page.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", each.lower()).strip().replace(" ", "-") for each in headings}


@pytest.mark.parametrize("page", ALL_PAGES, ids=_path)
def test_links_and_named_files_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target, anchor in LINK.findall(FENCED.sub("", text)):
        file = page.parent / target if target else page
        assert file.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in _anchors(file), f"{page.name} links to {target}#{anchor}"
    folders = "avro|reducers|streams|agents|sinks|explorer|monitoring|tests|docs|bench|src"
    for named in re.findall(rf"`((?:{folders})/[\w./-]+)`", text):
        assert (ROOT / named).exists(), f"{page.name} names {named}"


CODE = ("avro", "reducers", "streams", "agents", "sinks", "explorer", "tests", "docs")


@pytest.mark.parametrize(
    "page", [ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs" / "reference").glob("*.md")], ids=_path
)
def test_modules_named_without_a_folder_exist(page: Path) -> None:
    modules = {each.name for folder in CODE for each in (ROOT / folder).rglob("*.py")}
    named = re.findall(r"`(\w+\.py)`", page.read_text(encoding="utf-8"))
    assert [each for each in named if each not in modules] == []


@pytest.mark.parametrize("page", ALL_PAGES, ids=_path)
def test_no_diagram_has_a_semicolon(page: Path) -> None:
    """It ends a statement in mermaid, also within a text: the diagram is then not drawn, and nothing says so."""
    diagrams = re.findall(r"^```mermaid\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert [line for each in diagrams for line in each.splitlines() if ";" in line] == []


def test_index_lists_every_page() -> None:
    """But for the decisions, which are a folder in the order of their numbers."""
    linked = {(INDEX.parent / target).resolve() for target, _ in LINK.findall(INDEX.read_text(encoding="utf-8"))}
    assert [_path(each) for each in ALL_PAGES if each.parent.name != "decisions" and each not in {INDEX, *linked}] == []


def test_architecture_fits_on_four_pages() -> None:
    """At 3,500 bytes a page. What does not fit belongs in docs/reference or docs/decisions."""
    assert len((ROOT / "ARCHITECTURE.md").read_bytes()) <= 14_000


ROW = re.compile(r"^\| .* \|$", re.MULTILINE)


def test_every_row_of_the_security_page_names_existing_tests() -> None:
    """A bare name is of the folder of the test before it; a name in parentheses is a driver of the fuzzer."""
    page = (ROOT / "docs" / "SECURITY.md").read_text(encoding="utf-8")
    tables = page.partition("\n## Entrances\n")[2].partition("\n## What is protected\n")[0]
    rows = [row.strip("| ").rsplit(" | ", 1) for row in ROW.findall(tables)]
    rows = [row for row in rows if row[-1] != "test"]
    assert len(rows) > 30
    for what, tests in rows:
        folder, names = None, re.findall(r"`([^`]+)`", tests)
        assert names, f"no test is named: {what}"
        for name in names:
            if name.startswith("tests/"):
                folder = (ROOT / name).parent
                assert (ROOT / name).exists(), f"{name}: {what}"
            elif name.endswith(".py"):
                assert folder is not None, f"{name}: {what}"
                assert (folder / name).exists(), f"{name}: {what}"
            else:
                assert name in ENTRANCES, f"{name}: {what}"
