"""The compiled hot path is the same program: built from this tree, it folds the same history to the same bytes."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from refold_tests.tree import ROOT

PROGRAM = """
import json, pickle, sys
from refold.avro import encoder
from refold.avro.definition import parse
from refold.avro.ids import identify
from refold.reducers import fold as module
from refold.reducers.custom import code_of
from refold.reducers.entity import Entity, pack
from refold.reducers.fold import Fold, Seen
from refold.reducers.order import order_key
from refold.reducers.state import hash_state
from refold_tests.histories import EVERYTHING_AVSC, random_history

fold = Fold(parse(json.loads(EVERYTHING_AVSC), code_of))
fold.reducers = pickle.loads(pickle.dumps(fold.reducers))  # as they go to another process
print(json.dumps([encoder.__file__.endswith(".py"), module.__file__.endswith(".py")]))
for number in range(12):
    states, done = {}, {}
    for offset, observation in enumerate(random_history(int(sys.argv[1]) + number, 80)):
        found = identify(observation)
        name, q = observation.entity, order_key(observation, found)
        seen = done.setdefault(name, {})
        if q in seen:
            continue
        state, mutations = fold.step(states.get(name) or Entity(name), Seen(offset, q, observation), seen.values)
        seen[q] = Seen(offset, q, observation)
        state.state_hash = hash_state(fold, state)
        states[name] = state
        print(found.hex(), state.state_hash.hex(), repr(mutations))
    print([pack(state).hex() for state in states.values()])
"""


def test_nothing_that_is_compiled_rests_on_a_cached_property() -> None:
    """Compiled, it is made anew each time it is asked for, and nothing tells but the time."""
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    assert [each for each in build.HOT_PATH if "cached_property" in (ROOT / each).read_text(encoding="utf-8")] == []


# All tests of this file share one build, so xdist gives them to one worker.
pytestmark = [pytest.mark.outside, pytest.mark.xdist_group("compiled")]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked wheel of a compiled build."""
    if shutil.which((sysconfig.get_config_var("CC") or "cc").split()[0]) is None:
        pytest.skip("no C compiler here")
    out = tmp_path_factory.mktemp("compiled")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    asked = {**os.environ, "REFOLD_COMPILE": "1", "REFOLD_COMPILE_OPTIMIZATION": "0"}
    subprocess.run(build, env=asked, check=True, capture_output=True, timeout=280)
    (wheel,) = out.glob("*.whl")
    assert "none-any" not in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(out / "wheel")
    return out / "wheel"


def test_compiled_bytes_are_held_to_the_same_tests(package: Path) -> None:
    """A compiler may compare numbers in a way of its own, and no history at random comes across the one that tells."""
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", str(ROOT / "tests" / "avro")]
    environment = {**os.environ, "PYTHONPATH": str(package)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stdout[-3000:]


def test_compiled_and_plain_fold_alike(package: Path, seed: int) -> None:
    compiled, plain = _output(package, seed), _output(ROOT / "src", seed)
    assert compiled[0] == "[false, false]"
    assert plain[0] == "[true, true]"
    assert compiled[1:] == plain[1:]


def _output(package: Path, seed: int) -> list[str]:
    path = os.pathsep.join([str(package), str(ROOT / "tests" / "support")])
    done = subprocess.run([sys.executable, "-P", "-c", PROGRAM, str(seed)], env={**os.environ, "PYTHONPATH": path},
                          check=True, capture_output=True, text=True, timeout=120)  # fmt: skip
    return done.stdout.splitlines()
