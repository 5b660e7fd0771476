"""What a process imports before it does anything: hundreds of tests, and every command, pay for it."""

from __future__ import annotations

import ast
import inspect
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import refold
from refold_tests.command import COMMAND

LISTED = "import json, sys; print(json.dumps(sorted(sys.modules)))"
# Dear ones, ours and others', by what may do without them.
FOR_RUNS = {
    "asyncio",
    "cryptography",
    "refold.agents.recorder.run",
    "refold.agents.replay.run",
    "refold.agents.compare.compare",
}
FOR_KAFKA = {"aiokafka", "confluent_kafka", "faust"}
FOR_A_LOG = {"cbor2", "fastavro", "msgspec", "rocksdict", "refold.avro.codec", "refold.streams.client"}
FOR_PAGES = {"aiohttp", "jinja2"}
FOR_THE_SCREEN = {"click", "rich"}


def imported_by(code: str) -> set[str]:
    """The modules that a fresh interpreter holds after running `code`."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", f"{code}\n{LISTED}"], capture_output=True, text=True, check=True
    )  # fmt: skip
    return set(json.loads(done.stdout.splitlines()[-1]))


def imported_by_command(arguments: list[str], env: Mapping[str, str] = os.environ) -> set[str]:
    """The modules that `refold ARGUMENTS` imports."""
    command = [sys.executable, "-X", "importtime", *COMMAND[1:], *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}


@pytest.mark.parametrize(
    ("code", "left_out"),
    [
        ("import refold", FOR_A_LOG | FOR_RUNS | FOR_KAFKA | FOR_THE_SCREEN | {"inspect", "typing_extensions"}),
        ("import refold; refold.InputError", FOR_A_LOG | FOR_RUNS | FOR_KAFKA | FOR_THE_SCREEN),
        ("import pytest_refold", FOR_A_LOG | FOR_RUNS | FOR_KAFKA),
        ("import refold.explorer.cli.main", FOR_A_LOG | FOR_RUNS | FOR_KAFKA | {"rich"}),
        ("import refold; refold.open", (FOR_RUNS | FOR_KAFKA | FOR_THE_SCREEN | {"fastavro", "multiprocessing"})),
        ("import refold.agents.recorder.run", FOR_KAFKA | FOR_THE_SCREEN),
        # `refold explore` says its address after this.
        (
            "import refold.explorer.cli.explore, refold.streams.web.listening, refold.streams.open",
            FOR_RUNS | FOR_KAFKA | FOR_PAGES,
        ),
    ],
)  # fmt: skip
def test_unneeded_modules_are_not_imported(code: str, left_out: set[str]) -> None:
    assert imported_by(code) & left_out == set()


def test_observing_and_reading_does_not_import_run_modules(tmp_path: Path) -> None:
    assert (
        imported_by(f"""
import refold
with refold.open("file:{tmp_path}/log") as log:
    log.observe("tool_config/acme", {{"rate_limit": 50}}, source="deployer")
    log.flush()
    assert log.rebuild()["tool_config/acme"].fields["rate_limit"] == 50
""")
        & (FOR_RUNS | FOR_KAFKA | FOR_THE_SCREEN | {"fastavro"})
        == set()
    )


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["nothing-of-ours"]])
def test_command_without_a_log_imports_none(arguments: list[str]) -> None:
    imported = imported_by_command(arguments)
    assert "refold.explorer.cli.options" in imported
    assert imported & (FOR_A_LOG | FOR_RUNS | FOR_KAFKA | {"rich"}) == set()


def test_piped_output_needs_no_rich(tmp_path: Path) -> None:
    bare = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "TTY_COMPATIBLE")}
    observe = ["--log", f"file:{tmp_path}/log", "observe", "tool_config/acme", "rate_limit=50"]
    imported = imported_by_command(observe, env=bare)
    assert "rocksdict" in imported
    assert imported & (FOR_RUNS | FOR_KAFKA | {"fastavro", "rich"}) == set()


def test_checkers_and_the_interpreter_see_the_same_names() -> None:
    """What stands under TYPE_CHECKING, what is looked up late, __all__ and dir()."""
    tree = ast.parse(inspect.getsource(refold))
    seen = {
        each.asname or each.name: (node.module, each.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.startswith("refold.")
        for each in node.names
    }
    assert set(seen) == set(refold.__all__) <= set(dir(refold))
    for name, (module, there) in seen.items():
        assert getattr(refold, name) is getattr(sys.modules[module], there), name


def test_unknown_name_is_refused_as_by_any_module() -> None:
    with pytest.raises(AttributeError, match="'refold' has no attribute 'opne'"):
        refold.opne  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'opne' from 'refold'"):
        from refold import opne  # type: ignore[attr-defined]  # noqa: F401


def test_public_classes_are_pickled_by_their_own_module() -> None:
    for name in refold.__all__:
        assert pickle.loads(pickle.dumps(getattr(refold, name))) is getattr(refold, name), name
