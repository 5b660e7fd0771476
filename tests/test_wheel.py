"""The wheel that users get: built from the sdist, whole, and importable without the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import refold
from refold.avro.kernel import SWITCH
from refold_tests import fresh_environment
from refold_tests.absent import without
from refold_tests.tree import ROOT, shipped_files

# All tests of this file share one build, so xdist gives them to one worker.
pytestmark = [pytest.mark.outside, pytest.mark.xdist_group("wheel")]

# Top-level modules of the `kafka` extra: a module of ours may need them, the package may not.
OPTIONAL = ("confluent_kafka", "faust", "mode", "prometheus_client")

IMPORT_ALL = f"""
import importlib, importlib.metadata, sys
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {OPTIONAL!r}:
            raise
import refold
distribution = importlib.metadata.distribution("refold")
loaded = {{entry.group: entry.load() for entry in distribution.entry_points}}
assert callable(loaded["console_scripts"])
assert callable(loaded["pytest11"].pytest_addoption)
print(refold.__file__, distribution.version)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fresh_environment.built_wheel(tmp_path_factory.mktemp("dist"))


def test_wheel_holds_exactly_the_packages_files(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    expected = set(shipped_files())
    assert {Path(name).suffix for name in expected} >= {".py", ".avsc", ".typed"}
    assert expected - held == set(), "missing from the wheel"
    assert held - expected == set(), "in the wheel, not in the folders"


def test_wheel_is_for_every_platform(wheel: Path) -> None:
    assert wheel.name == f"refold-{refold.__version__}-py3-none-any.whl"


def test_wheel_imports_without_the_checkout(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
        sources = [name for name in archive.namelist() if name.endswith(".py")]
    names = [name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in sources]
    command = [sys.executable, "-P", "-c", IMPORT_ALL, *(name for name in names if "__main__" not in name)]
    # PYTHONPATH comes before site-packages, so the unpacked wheel wins over the editable install.
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(tmp_path / "refold" / "__init__.py"), refold.__version__]


GUIDES = sorted(page for page in (ROOT / "docs" / "guides").glob("*.md") if fresh_environment.requirements(page))
DISTRIBUTIONS = "import importlib.metadata as m; print(*sorted({each.name.lower() for each in m.distributions()}))"


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment into which pip has installed refold's wheel, and the kernel's if `make` built it."""
    built = (Path(sys.prefix) / "kernel-wheel").glob("*.whl")
    return fresh_environment.installed(tmp_path_factory.mktemp("bare"), ["refold", *map(str, built)], wheel)


def test_both_wheels_run_the_demo_in_a_bare_environment(bare: Path, tmp_path: Path) -> None:
    if not (Path(sys.prefix) / "kernel-wheel" / ".built").exists():
        without("no wheel of the kernel: make kernel")
    environment = {name: value for name, value in os.environ.items() if name != SWITCH}

    def said(*command: str) -> str:
        done = subprocess.run(
            [bare.parent / "refold", *command],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "(kernel " in said("--version")
    assert "root" in said("demo")


def test_linked_environments_hold_what_pip_installs(bare: Path, wheel: Path, tmp_path: Path, is_soak: bool) -> None:
    """Guides are followed in linked environments. In `make soak` pip installs what each guide says; else, refold."""
    assert len(GUIDES) >= 10
    needs = {page.stem: fresh_environment.requirements(page) for page in GUIDES} if is_soak else {}
    made = {"bare": (fresh_environment.linked(tmp_path / "linked", ["refold"]), bare)}
    for name, needed in needs.items():
        folder = tmp_path / name
        made[name] = (
            fresh_environment.linked(folder / "linked", needed),
            fresh_environment.installed(folder / "installed", needed, wheel),
        )
    for name, pythons in made.items():
        found = []
        for python in pythons:
            done = subprocess.run([python, "-P", "-c", DISTRIBUTIONS], capture_output=True, text=True, check=True)
            version = subprocess.run(
                [python.parent / "refold", "--version"], capture_output=True, text=True, check=True
            )
            assert refold.__version__ in version.stdout
            found.append({*done.stdout.split()} - {"pip", "setuptools", "refold-kernel"})
        assert found[0] == found[1], name


def test_linked_environment_lacks_everything_else(tmp_path: Path) -> None:
    python = fresh_environment.linked(tmp_path, ["refold"])
    for absent in ("aiohttp", "langgraph", "pydantic", "pytest", "opentelemetry.sdk"):
        done = subprocess.run([python, "-P", "-c", f"import {absent}"], capture_output=True, text=True, check=False)
        assert "ModuleNotFoundError" in done.stderr, absent
