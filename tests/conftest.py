"""How every test runs: the seed, hypothesis' profiles, and the data that stands beside a checkout.

Environment:
    REFOLD_SEED          repeats a run
    REFOLD_SOAK=1        many more examples for each property
    REFOLD_FAULT_ROUNDS  how often each fault test kills (30)
    REFOLD_SHARED_DATA   the folder of recorded conversations (../shared/data from the root)
    CI=true              a test that lacks that folder fails instead of being skipped
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from refold_tests.tree import ROOT

SOAK = os.environ.get("REFOLD_SOAK", "") not in ("", "0")
PROFILE = "soak" if SOAK else "ci"
FAULT_ROUNDS = int(os.environ.get("REFOLD_FAULT_ROUNDS", "30"))

# A loaded machine is no failure: neither a deadline for an example nor a complaint about slow generation.
for name, examples in (("ci", 100), ("soak", 5_000)):
    settings.register_profile(
        name,
        max_examples=examples,
        deadline=None,
        print_blob=True,
        derandomize=False,
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.load_profile(PROFILE)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Choose one seed for hypothesis and the fault tests, before xdist's workers inherit the environment."""
    given = config.getoption("--hypothesis-seed")
    if given is not None:
        os.environ["REFOLD_SEED"] = given
    seed = os.environ.setdefault("REFOLD_SEED", str(random.SystemRandom().getrandbits(32)))
    config.option.hypothesis_seed = seed


def pytest_report_header() -> str:
    """Shown once, above the tests: what it takes to run the same again."""
    return f"refold: REFOLD_SEED={os.environ['REFOLD_SEED']}, profile {PROFILE}, {FAULT_ROUNDS} fault rounds"


@pytest.fixture
def seed() -> int:
    """The seed of this run: a test that draws at random draws from random.Random(seed)."""
    return int(os.environ["REFOLD_SEED"])


@pytest.fixture(scope="session")
def fault_rounds() -> int:
    """How many times a fault test kills its process."""
    return FAULT_ROUNDS


@pytest.fixture(scope="session")
def tau_bench_file() -> Path:
    """Recorded tau-bench airline conversations (JSON lines, gzip). Without them: a skip, in CI a failure."""
    folder = Path(os.environ.get("REFOLD_SHARED_DATA") or ROOT.parent / "shared" / "data")
    path = folder / "tau_bench_airline_gpt4o.jsonl.gz"
    if path.is_file():
        return path
    reason = f"no {path}: name the folder that holds it in REFOLD_SHARED_DATA"
    if os.environ.get("CI", "").lower() in ("", "0", "false"):
        pytest.skip(reason)
    pytest.fail(f"{reason} (CI is set, so this test may not be skipped)", pytrace=False)
