"""Agents are found by their names."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from refold.agents.entry import agent_of, recorded_agent_of
from refold.avro.errors import InputError


@pytest.fixture(autouse=True)
def path_as_it_was() -> Iterator[None]:
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "shop_entry").mkdir()
    (tmp_path / "shop_entry" / "helper_entry.py").write_text("PRICE = 5\n")
    (tmp_path / "shop_entry" / "agent.py").write_text(
        "import sys\nfrom dataclasses import dataclass\n\n@dataclass\nclass Desk:\n    name: str = 'front'\n\n"
        "def refund(run):\n    from helper_entry import PRICE\n    return PRICE\n\nclass Bot:\n    def act(run):\n"
        "        return Desk().name\n"
    )
    (tmp_path / "shop_entry" / "broken.py").write_text("import no_such_module_at_all\n")
    return tmp_path


def test_entry_by_module(shop: Path) -> None:
    assert agent_of("shop_entry.agent:Bot.act", shop)(None) == "front"


def test_entry_by_file_with_its_neighbours(shop: Path) -> None:
    assert agent_of("shop_entry/agent.py:refund", shop)(None) == 5
    assert agent_of("agent.py:Bot.act", shop / "shop_entry")(None) == "front"


def test_changed_file_is_reloaded(shop: Path) -> None:
    file = shop / "shop_entry" / "agent.py"
    before = agent_of(f"{file}:refund", Path("/"))
    file.write_text("def refund(run):\n    return 'mended'\n")
    assert before(None) == 5
    assert agent_of(f"{file}:refund", Path("/"))(None) == "mended"


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("shop_entry", "module:function"),
        (":refund", "module:function"),
        ("shop_entry.agent:refnd", "it has dataclass, Desk, refund, Bot"),
        ("shop_entry.agnt:refund", "no module shop_entry.agnt"),
        ("no_shop:refund", "PYTHONPATH"),
        ("shop_entry/agnt.py:refund", "no file"),
    ],
)
def test_missing_entry_is_reported(shop: Path, entry: str, said: str) -> None:
    with pytest.raises(InputError) as refused:
        agent_of(entry, shop)
    assert said in str(refused.value)
    assert entry in str(refused.value)


def test_import_error_inside_the_module_is_not_hidden(shop: Path) -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module_at_all"):
        agent_of("shop_entry.broken:refund", shop)


@pytest.mark.parametrize(
    "entry",
    [
        "unittest.__main__:run", "os:system", "antigravity:fly", "refold.explorer.cli.main:main", "no_such_entry:x",
        "../outside_entry.py:run", "a b:c", ".:x", "..x:y", "shop_entry.:x", "/etc/passwd.py:x", "json:loads",
        "refold.explorer.demo.:x", "refold.explorer.demo./../x.py:x", "refold.explorer.demo.stage:main",
    ],
)  # fmt: skip
def test_recorded_name_loads_nothing_outside_of_the_folder(
    shop: Path, entry: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    (shop.parent / "outside_entry.py").write_text("raise AssertionError('loaded')\n")
    (shop / "json.py").write_text("def loads(run):\n    pass\n")
    before = set(sys.modules)
    with pytest.raises(InputError, match="nothing is imported"):
        recorded_agent_of(entry, shop)
    assert set(sys.modules) == before


def test_recorded_name_loads_code_of_the_folder_and_of_pythonpath(
    shop: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert recorded_agent_of("shop_entry.agent:Bot.act", shop)(None) == "front"
    assert recorded_agent_of("shop_entry/agent.py:Bot.act", shop)(None) == "front"
    other = tmp_path_factory.mktemp("other")
    (other / "other_entry.py").write_text("def run(run):\n    return 7\n")
    monkeypatch.syspath_prepend(other)
    with pytest.raises(InputError, match="nothing is imported"):
        recorded_agent_of("other_entry:run", shop)
    monkeypatch.setenv("PYTHONPATH", str(other))
    assert recorded_agent_of("other_entry:run", shop)(None) == 7
