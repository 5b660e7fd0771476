"""How every test runs: the seed, hypothesis' profiles, and the data that stands beside a checkout.

Environment:
    REFOLD_SEED          repeats a run
    REFOLD_SOAK=1        many more examples for each property, and more rounds of what uses the fixture `is_soak`
    REFOLD_FAULT_ROUNDS  how often each fault test kills (6; `make test-faults`: 30)
    REFOLD_SHARED_DATA   the folder of recorded conversations (../shared/data from the root)
    KAFKA_BOOTSTRAP      a broker that runs already, instead of the one that a run starts for itself
    SCHEMA_REGISTRY_URL  a Confluent-compatible Schema Registry that runs already, likewise
    CI=true              a test that lacks that folder, or what it takes to run Kafka, a Schema Registry or PostgreSQL,
                         fails instead of being skipped
"""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

# Before any of it is imported.
pytest.register_assert_rewrite("refold_tests")

from refold.reducers import registered  # noqa: E402
from refold.testing.kafka import Kafka  # noqa: E402
from refold.testing.postgres import Postgres  # noqa: E402
from refold.testing.postgres import started as started_postgres  # noqa: E402
from refold.testing.registry import SchemaRegistry, start_registry  # noqa: E402
from refold_tests import (  # noqa: E402
    brokers,
    costs,
    inner_loop,
    java,
    postgres,
    registries,
    s3,
    servers,
    worker_deaths,
)
from refold_tests.absent import without  # noqa: E402
from refold_tests.child import Child, children  # noqa: E402
from refold_tests.forked_children import forked_children as forking_children  # noqa: E402
from refold_tests.kafka_topics import Broker  # noqa: E402
from refold_tests.reducers import REDUCERS  # noqa: E402
from refold_tests.tree import ROOT  # noqa: E402

if TYPE_CHECKING:
    from xdist.remote import Producer

    from refold_tests.schedule import OrderedScheduling

# The code that types of the tests name. A test that names more registers it.
os.environ["REFOLD_REDUCERS"] = REDUCERS

SOAK = os.environ.get("REFOLD_SOAK", "") not in ("", "0")
PROFILE = "soak" if SOAK else "ci"
_OWNER = pytest.StashKey[servers.Owner | None]()
FAULT_ROUNDS = int(os.environ.get("REFOLD_FAULT_ROUNDS", "6"))

# A loaded machine is no failure: neither a deadline for an example nor a complaint about slow generation.
# `brief` is for further interpreters (`make test-interpreters`), which differ in the language and not in the histories.
for name, examples in (("ci", 50), ("soak", 5_000), ("brief", 10)):
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
    # A shell has what it starts in the background ignore Ctrl-C, and all that is started from there; tests send it.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    given = config.getoption("--hypothesis-seed")
    if given is not None:
        os.environ["REFOLD_SEED"] = given
    seed = os.environ.setdefault("REFOLD_SEED", str(random.SystemRandom().getrandbits(32)))
    config.option.hypothesis_seed = seed
    starts = {"kafka": brokers.start, "schema registry": registries.start, "postgres": postgres.start, "s3": s3.start}
    config.stash[_OWNER] = servers.own(config, starts)
    if not hasattr(config, "workerinput"):
        worker_deaths.begin(config)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> OrderedScheduling | None:
    """For `--dist loadgroup` an order in which the cores have work until the end; else xdist's own."""
    if config.getoption("dist") != "loadgroup":
        return None
    from refold_tests.schedule import OrderedScheduling

    return OrderedScheduling(config, log)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import a module for `make check` that has no test of the inner loop."""
    is_module = collection_path.suffix == ".py" and collection_path.name.startswith("test_")
    return True if is_module and config.option.markexpr == "inner" and inner_loop.is_left_out(collection_path) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark by their fixtures what uses a server, what does more in a soak, and what `make check` runs, before `-m`."""
    for item in items:
        names = {*getattr(item, "fixturenames", ())}
        if names & {"kafka", "kafka_cluster"}:
            item.add_marker("kafka")
        if names & {"schema_registry", "own_registry"}:
            item.add_marker("registry")
        if names & {"postgres_server", "postgres_database", "own_postgres"}:
            item.add_marker("postgres")
        if "is_soak" in names:
            item.add_marker("soak")
        if not inner_loop.reasons(item):
            item.add_marker("inner")
    inner_loop.note(config, items)
    costs.begin(config)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Spare the garbage collector what the collection makes, now and later: it stays until the end of the run.

    Its threshold stays the default: Kafka's clients in cycles keep their threads until it runs, hundreds with 50,000.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """A test of the inner loop starts no server, and neither do its fixtures, whatever their scope.

    After the last test of a module, collect its garbage, and spare the garbage collector what it left. What a module
    imports and caches stays until the end of the run. Each full collection went through it again.
    """
    with inner_loop.guarded() if item.get_closest_marker("inner") else nullcontext():
        result = yield
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    costs.note(item, report)
    return report


def pytest_runtest_setup(item: pytest.Item) -> None:
    worker_deaths.begin_test(item.config)
    if item.get_closest_marker("kafka") is not None:
        brokers.require(item)
    if item.get_closest_marker("registry") is not None:
        registries.require(item)
    if item.get_closest_marker("postgres") is not None:
        postgres.require(item)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The last lines of a run that left out what needs a server say so."""
    reasons = [str(report.longrepr[-1]) for report in terminalreporter.stats.get("skipped", ())]
    servers_needed = (("Kafka", brokers.NEEDS), ("a Schema Registry", registries.NEEDS), ("a JDK", java.NEEDS),
                      ("PostgreSQL", postgres.NEEDS))  # fmt: skip
    for name, needs in servers_needed:
        lacking = [reason.removeprefix("Skipped: ") for reason in reasons if needs in reason]
        if lacking:
            terminalreporter.section(f"without {name}", yellow=True)
            count = "1 test was" if len(lacking) == 1 else f"{len(lacking)} tests were"
            terminalreporter.write_line(f"{count} skipped: {lacking[0]}")
    worker_deaths.tell(terminalreporter)
    if terminalreporter.config.getoption("durations") is not None:
        costs.tell(terminalreporter)


def pytest_report_header() -> str:
    """Shown once, above the tests: what it takes to run the same again."""
    profile = settings.get_current_profile_name()
    return f"refold: REFOLD_SEED={os.environ['REFOLD_SEED']}, profile {profile}, {FAULT_ROUNDS} fault rounds"


@pytest.fixture(autouse=True)
def _kept_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one test allows by --reducers, run in this process, no later test finds allowed."""
    monkeypatch.setattr(registered, "_allowed", dict(registered._allowed))
    monkeypatch.setenv("REFOLD_REDUCERS", REDUCERS)


@pytest.fixture(autouse=True)
def _kept_path() -> Iterator[None]:
    """Agents are found by name from a folder that is put on sys.path: for the next test it is not there."""
    before = sys.path[:]
    yield
    sys.path[:] = before


@pytest.fixture(scope="session")
def seed() -> int:
    """The seed of this run: a test that draws at random draws from random.Random(seed)."""
    return int(os.environ["REFOLD_SEED"])


@pytest.fixture(scope="session")
def fault_rounds() -> int:
    """How many times a fault test kills its process."""
    return FAULT_ROUNDS


@pytest.fixture(scope="session")
def is_soak() -> bool:
    """Whether this is `make soak`: a test that uses it is marked for that, and does more then."""
    return SOAK


@pytest.fixture
def child() -> Iterator[Callable[..., Child]]:
    """Starts Python code in an interpreter of its own (refold_tests.child); all are gone after the test."""
    with children() as start:
        yield start


@pytest.fixture
def forked_children() -> Iterator[None]:
    """Processes that rebuild, seal or replay are forked, and no interpreters (refold_tests.forked_children)."""
    with forking_children():
        yield


@pytest.fixture(scope="session")
def tau_bench_file() -> Path:
    """Recorded tau-bench airline conversations (JSON lines, gzip). Without them: a skip, in CI a failure."""
    return _shared("tau_bench_airline_gpt4o.jsonl.gz")


@pytest.fixture(scope="session")
def sessions_folder() -> Path:
    """Recorded SWE-agent trajectories. Without them: a skip, in CI a failure."""
    return _shared("sessions")


@pytest.fixture(scope="session")
def turns_file() -> Path:
    """Turns of a real session as they crossed the wire (tar.gz). Without them: a skip, in CI a failure."""
    return _shared("capture/tapes-fixtures.tar.gz")


def _shared(name: str) -> Path:
    path = Path(os.environ.get("REFOLD_SHARED_DATA") or ROOT.parent / "shared" / "data") / name
    if path.exists():
        return path
    without(f"no {path}: name the folder that holds it in REFOLD_SHARED_DATA")


@pytest.fixture(scope="session")
def kafka(pytestconfig: pytest.Config) -> brokers.SharedKafka:
    """The run's one broker, shared by all tests and workers: never to be killed. See `prefix`."""
    return brokers.shared(pytestconfig.stash[_OWNER])


@pytest.fixture
def prefix(kafka: brokers.SharedKafka) -> Iterator[str]:
    """What this test's topics on the shared broker begin with; they are deleted after it."""
    text = f"t{uuid.uuid4().hex[:12]}"
    yield text
    kafka.delete_topics(text)


@pytest.fixture
def broker(kafka: brokers.SharedKafka, prefix: str) -> Broker:
    """The shared broker as Kafka's own clients see it, for topics that begin with this test's prefix."""
    return Broker(kafka.bootstrap, prefix)


@pytest.fixture
def kafka_cluster() -> Iterator[Callable[..., Kafka]]:
    """Starts a Kafka of the test's own (refold.testing.kafka.start_kafka), to be killed as it likes."""
    with ExitStack() as ending:
        yield lambda **named: ending.enter_context(brokers.started(**named))


@pytest.fixture(scope="session")
def schema_registry(pytestconfig: pytest.Config) -> str:
    """The URL of the run's one Schema Registry, shared by all tests and workers: its global config is not theirs."""
    return registries.shared(pytestconfig.stash[_OWNER])


@pytest.fixture(scope="session")
def s3_endpoint(pytestconfig: pytest.Config) -> str:
    """The run's one S3 store (refold_tests.s3), shared by all tests and workers, each in a bucket of its own."""
    return servers.address_of(pytestconfig.stash[_OWNER], "s3")


@pytest.fixture
def bucket(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty bucket on the shared S3 store, which this process and those it starts reach."""
    name = f"t{uuid.uuid4().hex[:12]}"
    s3.reach(monkeypatch, s3_endpoint)
    s3.make_bucket(s3_endpoint, name)
    return name


@pytest.fixture
def own_registry() -> Iterator[SchemaRegistry]:
    """A Schema Registry of the test's own, to be killed as it likes."""
    with start_registry() as registry:
        yield registry


@pytest.fixture(scope="session")
def postgres_server(pytestconfig: pytest.Config) -> str:
    """The URL of the run's one PostgreSQL, of its superuser, shared by all tests and workers."""
    return postgres.shared(pytestconfig.stash[_OWNER])


@pytest.fixture
def postgres_database(postgres_server: str) -> Iterator[postgres.Database]:
    """A database of the test's own on the shared server, dropped after it."""
    database = postgres.Database(postgres_server, f"t{uuid.uuid4().hex[:12]}")
    yield database
    database.drop()


@pytest.fixture
def own_postgres() -> Iterator[Postgres]:
    """A PostgreSQL of the test's own, to be killed as it likes."""
    with started_postgres() as server:
        yield server
