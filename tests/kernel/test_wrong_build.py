"""A build of the kernel that is wrong on purpose: verify and the fuzzer find a loss, and a panic costs nothing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from refold_tests.tree import ROOT

# All tests of this file share one build, so xdist gives them to one worker.
pytestmark = [pytest.mark.outside, pytest.mark.xdist_group("wrong kernel")]

PROGRAM = """
import json, sys
import refold, refold_kernel
with refold.open("file:" + sys.argv[1]) as log:
    for number in range(3):
        log.observe("tool_config/a", {"rate_limit": number}, source="agent")
    log.flush()
    state = log.state("tool_config/a")
    report = log.verify()
    print(json.dumps({"version": state.version, "panics": refold_kernel.panics(),
                      "mismatches": sorted({each.place for each in report.mismatches})}))
"""


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the module as the feature `wrong` builds it, to be on the path before the installed one."""
    folder = tmp_path_factory.mktemp("wrong")
    # What `make kernel` compiled of other packages is not compiled again: half of the work. cargo compares the times.
    built = ROOT / "kernel" / "target" / "release"
    if built.exists():
        shutil.copytree(built, folder / "release", symlinks=True)
    command = ["cargo", "build", "--quiet", "--release", "--locked", "--features", "wrong", "--target-dir", str(folder)]
    building = {**os.environ, "PYO3_PYTHON": sys.executable, "PYO3_BUILD_EXTENSION_MODULE": "1"}
    done = subprocess.run(command, cwd=ROOT / "kernel", env=building, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (folder / "path").mkdir()
    shutil.copy(next((folder / "release").glob("librefold_kernel.*[oy]*")), folder / "path" / "refold_kernel.abi3.so")
    return folder / "path"


def ran(wrong: Path, how: str, *command: str) -> subprocess.CompletedProcess[str]:
    """A program's end with that kernel, wrong in this way."""
    path = os.pathsep.join([str(wrong), str(ROOT / "tests" / "support")])
    environment = {**os.environ, "PYTHONPATH": path, "REFOLD_KERNEL_WRONG": how}
    return subprocess.run(
        [sys.executable, "-P", *command], env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("how", ["", "loses", "panics"], ids=["right", "loses", "panics"])
def test_verify_reports_a_wrong_kernel(wrong: Path, tmp_path: Path, how: str) -> None:
    done = ran(wrong, how, "-c", PROGRAM, str(tmp_path / "log"))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["version"] == (2 if how == "loses" else 3)
    assert (found["panics"] > 0) is (how == "panics")
    assert {"state", "kernel"} <= set(found["mismatches"]) if how == "loses" else found["mismatches"] == []


@pytest.mark.parametrize("how", ["loses", "panics"])
def test_fuzzer_finds_a_wrong_kernel(wrong: Path, how: str) -> None:
    done = ran(wrong, how, "-m", "refold_tests.fuzz.kernel", "--count", "1500", "--seed", "1")
    assert done.returncode == 1
    assert "by Python to" in done.stderr if how == "loses" else "the kernel panicked" in done.stderr
