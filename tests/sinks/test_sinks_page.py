"""docs/SINKS.md, followed word by word, with what its commands need."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg
import pytest

from refold_tests.pages import run_page, with_conversation
from refold_tests.postgres import Database
from refold_tests.tree import ROOT

PAGE = ROOT / "docs" / "SINKS.md"
SQL = re.compile(r"^```sql\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def shown(tmp_path: Path) -> Path:
    """The page, for a folder that is not a checkout's root."""
    page = tmp_path / "page.md"
    text = PAGE.read_text(encoding="utf-8")
    page.write_text(text.replace("PYTHONPATH=docs/examples refold", "refold"), encoding="utf-8")
    return page


def test_sinks_page_is_true(shown: Path, postgres_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_conversation(tmp_path)
    database = Database(postgres_server, "agents")
    try:
        host, port = postgres_server.partition("@")[2].partition("/")[0].split(":")
        monkeypatch.setenv("PYTHONPATH", str(ROOT / "docs" / "examples"))
        assert run_page(shown, tmp_path, {"PGHOST": host, "PGPORT": port, "PGUSER": "agents"}) >= 4
        statements = [each for block in SQL.findall(_section(shown)) for each in block.split(";") if each.strip()]
        with psycopg.connect(database.url) as connection:
            states, history, position = (connection.execute(each.encode()).fetchall() for each in statements)
        assert states == [("tool_config/acme", 50, True)]
        assert [row[1:] for row in history] == [
            ("rate_limit", None, 100, "deployer"), ("rate_limit", 100, 50, "operator"),
        ]  # fmt: skip
        assert position[0][0].startswith("cut:1.")
        assert (tmp_path / "state.db").exists()
    finally:
        database.drop()


def _section(page: Path) -> str:
    """What the page says of PostgreSQL; other stores have SQL of their own."""
    return page.read_text(encoding="utf-8").partition("\n## PostgreSQL")[2].partition("\n## ")[0]
