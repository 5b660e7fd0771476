"""docs/CLI.md says what the commands say."""

from __future__ import annotations

import re

from refold.explorer.cli.document import page
from refold.explorer.cli.main import cli
from refold_tests.tree import ROOT

DOCUMENT = ROOT / "docs" / "CLI.md"


def test_the_page_is_what_the_commands_say() -> None:
    written = DOCUMENT.read_text(encoding="utf-8")
    assert written == page(), "run: python -P -m refold.explorer.cli.document > docs/CLI.md"


def test_every_command_is_on_the_page_with_an_example() -> None:
    sections = dict(re.findall(r"^## refold (\w+)\n(.*?)(?=^## |\Z)", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL))
    assert sections.keys() == cli.commands.keys()
    for name, body in sections.items():
        assert f"  refold {name}" in body.partition("Example")[2].replace("| refold", "  refold"), name


def test_every_point_in_time_is_explained() -> None:
    for name, command in cli.commands.items():
        asks = any("WHEN" in str(parameter.metavar) for parameter in command.params)
        assert asks == ("WHEN is one of" in (command.epilog or "")), name
