"""Code of custom reducers comes from what the operator registered: nothing is imported for a name in a definition."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import refold
from refold.avro.definition import TypeDefinition, parse
from refold.avro.errors import InputError, SchemaError
from refold.reducers import registered
from refold.reducers.custom import code_of
from refold.reducers.fold import Fold
from refold.reducers.registered import NotRegistered, allow, environment, function_of, require
from refold_tests.reducers import REDUCERS, trap

NAMES = [
    "unittest.__main__:run", ":run", "run:", ":", "", "os:system", "os", "os.path:join", "a b:c", "../x:y",
    "x:__class__", "x:y z", "\n:\n", "builtins:exec", "refold_tests.histories:random_history", "ä:ö", "0:1",
]  # fmt: skip


def of_code(name: Any, **more: Any) -> TypeDefinition:
    """A definition as data brings it, that names code."""
    code = {"name": name, "version": 1, "source": "00" * 32, **more}
    field = {"name": "f", "type": "string", "refold.reducer": "custom", "refold.function": name, "refold.code": code}
    return parse({"type": "record", "name": "stranger", "fields": [field]})


@pytest.fixture(autouse=True)
def own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test registers in a place of its own."""
    monkeypatch.setattr(registered, "_functions", {})
    monkeypatch.setattr(registered, "_allowed", {})
    monkeypatch.setattr(registered, "_entry_points", lambda: ())
    monkeypatch.setenv("REFOLD_REDUCERS", "")


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module refold_trap on the path, which writes this file when it is imported."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "refold_trap", raising=False)
    return trap(tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_unregistered_name_in_a_definition_is_refused_with_the_remedy(name: str) -> None:
    with pytest.raises(NotRegistered) as caught:
        Fold(of_code(name))
    said = str(caught.value)
    assert "it is not imported" in said
    assert "\n" not in said
    can_be_allowed = all(part.isidentifier() for part in name.replace(":", ".").split(".")) and ":" in name
    assert ("allow it with --reducers" in said) is can_be_allowed
    if ":" in name:
        with pytest.raises(NotRegistered):
            parse({"type": "record", "name": "t", "fields": [{"name": "f", "type": "string", "refold.reducer": "custom",
                                                               "refold.function": name}]}, code_of)  # fmt: skip


def test_reading_any_definition_imports_no_module() -> None:
    program = """
import json, sys
from refold.avro.definition import parse
from refold.avro.errors import SchemaError
from refold.avro.registry import Registry
from refold.reducers.fold import Fold
from refold.streams.held_types import held

def read(name):
    code = {"name": name, "version": 1, "source": "00" * 32}
    field = {"name": "f", "type": "string", "refold.reducer": "custom", "refold.function": name, "refold.code": code}
    definition = parse({"type": "record", "name": "t", "fields": [field]})
    registry = Registry()
    registry.add(definition)
    registry.newest("t").codec, registry.newest("t").validator
    assert held(registry, "t") is not None
    try:
        Fold(definition)
    except SchemaError:
        return
    raise AssertionError(name)

read("nothing:at_all")
before = set(sys.modules)
for name in sorted(sys.stdlib_module_names):
    for function in ("main", "run", "__doc__"):
        read(f"{name}:{function}")
print(json.dumps(sorted(set(sys.modules) - before)))
"""
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []


def test_function_is_registered_by_its_name(module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFOLD_REDUCERS", "refold_trap:folded")
    for other in ("refold_trap:marked", "refold_trap:unmarked", "refold_trap", "os:system"):
        with pytest.raises(NotRegistered):
            function_of(other)
    assert not module.exists(), "a name that is another's imports nothing"
    assert function_of("refold_trap:folded")(None, 1) == "folded"
    assert module.exists()


def test_module_registers_its_functions_that_have_a_version(module: Path) -> None:
    allow(["refold_trap"])
    assert not module.exists()
    assert function_of("refold_trap:marked")(None, 1) == "marked"
    for other in ("refold_trap:unmarked", "refold_trap:folded", "refold_trap:os", "refold_trap:nothing"):
        with pytest.raises(NotRegistered):
            function_of(other)


def test_entry_point_registers(module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.syspath_prepend(module.parent)
    found = [EntryPoint("folded", "refold_trap:folded", registered.GROUP)]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: found if group == registered.GROUP else [])
    monkeypatch.setenv("REFOLD_REDUCERS", "")
    registered._entry_points.cache_clear()
    try:
        assert function_of("refold_trap:folded")(None, 1) == "folded"
    finally:
        registered._entry_points.cache_clear()


def test_decorator_registers_and_sets_the_version() -> None:
    name = f"{__name__}:{only_counted.__qualname__}"
    with pytest.raises(NotRegistered):
        code_of(name)
    assert refold.reducer(version=7)(only_counted) is only_counted
    assert code_of(name)["version"] == 7
    Fold(of_code(**code_of(name)))


def only_counted(value: Any, assertion: Any) -> str:
    """A reducer of this module."""
    return f"{value or ''}{assertion.value}"


def test_registered_name_with_another_identity_is_not_used_to_fold() -> None:
    allow([only_counted])
    name = f"{__name__}:{only_counted.__qualname__}"
    identity = dict(code_of(name))
    for other in ({"version": 99}, {"source": "11" * 32}):
        with pytest.raises(NotRegistered, match="is not the code"):
            Fold(of_code(**{**identity, **other}))


def test_unregistrable_function_is_refused() -> None:
    for wrong in ("a b", "x:", ":x", "../x", "x:y:z", ""):
        with pytest.raises(InputError, match="give MODULE or MODULE:FUNCTION"):
            allow([wrong])
    with pytest.raises(InputError, match="by a name"):
        allow([lambda value, assertion: value])


def test_module_named_by_the_operator_must_exist(module: Path) -> None:
    allow(["refold_trap:folded", "refold_trap"])
    require()
    allow(["refold_trap:absent"])
    with pytest.raises(SchemaError, match="has no function absent"):
        require()
    allow(["refold_nowhere"])
    with pytest.raises(SchemaError, match="put its module on PYTHONPATH"):
        function_of("any:thing")


def test_child_process_gets_all_registrations(monkeypatch: pytest.MonkeyPatch) -> None:
    assert environment() == {}
    monkeypatch.setenv("REFOLD_REDUCERS", "a:b, c")
    allow(["d", ModuleType("e"), only_counted, "a:b"])
    assert environment() == {"REFOLD_REDUCERS": f"a:b,c,d,e,{__name__}:only_counted"}


def test_opening_a_log_registers(tmp_path: Path) -> None:
    name = f"{__name__}:{only_counted.__qualname__}"
    field = {"name": "text", "type": "string", "refold.reducer": "custom", "refold.function": name}
    file = tmp_path / "own.avsc"
    file.write_text(json.dumps({"type": "record", "name": "own", "fields": [field]}))
    with pytest.raises(SchemaError, match="is not registered here"):
        refold.open(f"file:{tmp_path / 'log'}", types=[file])
    assert not (tmp_path / "log").exists()
    with refold.open(f"file:{tmp_path / 'log'}", types=[file], reducers=[only_counted]) as log:
        for number in range(3):
            log.observe("own/1", {"text": str(number)})
        assert log.state("own/1").fields["text"] == "012"


def test_tests_own_reducers_are_registered_by_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFOLD_REDUCERS", REDUCERS)
    require()
