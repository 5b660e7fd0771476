"""Which kernel is used, who says so, and what is done about one that cannot be used."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from types import ModuleType

import pytest

from refold.avro import kernel
from refold.avro.kernel import FORMAT, MODULE, SWITCH, find_kernel
from refold.explorer.doctor.examine import libraries
from refold.explorer.doctor.findings import Finding
from refold_tests.tree import ROOT


@pytest.fixture(autouse=True)
def _looked_for_anew() -> Iterator[None]:
    kernel._installed.cache_clear()
    yield
    kernel._installed.cache_clear()


def doctors() -> Finding:
    """What `refold doctor` finds of it."""
    (found,) = (each for each in libraries(with_kafka=False) if each.subject == "kernel")
    return found


def planted(monkeypatch: pytest.MonkeyPatch, **names: object) -> None:
    """Have another module in the kernel's place."""
    module = ModuleType(MODULE)
    vars(module).update(names)
    monkeypatch.setitem(sys.modules, MODULE, module)


def test_installed_kernel_is_used() -> None:
    status = find_kernel()
    assert status.kernel is not None
    assert status.text == f"kernel {metadata.version('refold-kernel')}"
    assert doctors()[:3] == ("kernel", True, status.text)


def test_one_version_of_rust_is_named_everywhere() -> None:
    oldest = tomllib.loads((ROOT / "kernel" / "Cargo.toml").read_text(encoding="utf-8"))["package"]["rust-version"]
    texts = (".github/workflows/wheels.yml", "Makefile", ".ci/run", "Dockerfile", "docs/reference/kernel.md")
    for text in texts:
        assert set(re.findall(r"(?i)rust\D{1,14}(1\.\d+)", (ROOT / text).read_text(encoding="utf-8"))) == {oldest}, text


def test_environment_variable_disables_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "0")
    assert find_kernel() == (None, f"plain Python, for {SWITCH} is 0", False)
    assert doctors().ok


def test_python_is_used_without_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, MODULE, None)
    assert find_kernel() == (None, "plain Python, for refold-kernel is not installed", False)
    assert doctors().ok


def test_kernel_of_another_format_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch, FORMAT=FORMAT + 1, __version__="9.0")
    problem = f"plain Python, for refold-kernel 9.0 has format {FORMAT + 1}, not {FORMAT}"
    assert find_kernel() == (None, problem, True)
    found = doctors()
    assert (found.ok, found.finding) == (False, problem)
    assert "pip install" in found.remedy


def test_invalid_kernel_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch)
    status = find_kernel()
    assert (status.kernel, status.is_unusable) == (None, True)
