"""`refold plan`: properties of the model, and the command."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.explorer.capacity.check import LIMIT, predictions
from refold.explorer.capacity.measured import MeasuredLog, constants, measured, measurement
from refold.explorer.capacity.model import EPOCH_RECORDS, SLOTS, Demand, plan, rebuild_s, sealing, table_bytes
from refold.explorer.cli.kafka.plan import size_text, time_text
from refold.explorer.cli.main import run
from refold_tests.tree import ROOT

DAY_S = 86_400
MEASURED = measured()
DEMANDS = st.builds(
    Demand,
    rate=st.floats(0.1, 1e6),
    entities=st.integers(1, 10**9),
    retain_s=st.floats(1, 3e8),
    brokers=st.integers(1, 30),
    standbys=st.integers(0, 3),
    raw_bytes=st.integers(50, 10_000),
    worker_disk_bytes=st.floats(1e10, 1e14),
)
HAND = Demand(1_000, 10_000, DAY_S, 3, 0, MEASURED.raw_bytes, 1e13)


@given(DEMANDS)
def test_plan_carries_the_load(demand: Demand) -> None:
    found = plan(demand, MEASURED)
    assert found.workers * MEASURED.thread_rate / 2 >= demand.rate
    assert found.workers * demand.worker_disk_bytes >= found.tables_bytes * (1 - 1e-9)
    assert found.partitions & (found.partitions - 1) == 0
    assert 8 <= found.partitions <= SLOTS
    assert found.is_over or found.partitions >= 2 * found.workers
    assert found.is_over == (2 * found.workers > SLOTS)


@given(DEMANDS, st.floats(1, 10))
def test_larger_load_never_needs_less(demand: Demand, times: float) -> None:
    one = plan(demand, MEASURED)
    for more in (
        replace(demand, rate=demand.rate * times),
        replace(demand, retain_s=demand.retain_s * times),
        replace(demand, standbys=demand.standbys + 1),
    ):
        other = plan(more, MEASURED)
        assert other.workers >= one.workers
        assert other.partitions >= one.partitions
        assert other.tables_bytes >= one.tables_bytes
        assert other.cores >= one.cores


@given(DEMANDS)
def test_epoch_never_seals_more_than_exists(demand: Demand) -> None:
    sealed, tail = sealing(demand.rate, demand.entities, 8, MEASURED)
    every_s = max(10.0, EPOCH_RECORDS / demand.rate)
    most = 2 * min(demand.entities, demand.rate * every_s) * MEASURED.chunk_bytes / every_s
    assert 0 <= sealed <= most * (1 + 1e-9)
    assert math.isclose(tail, demand.rate * every_s)


def test_plan_matches_one_computed_by_hand() -> None:
    found = plan(HAND, MEASURED)
    records = 1_000 * DAY_S
    assert (found.workers, found.partitions, found.is_over) == (1, 8, False)
    assert found.cores == pytest.approx(1_000 * MEASURED.cpu_us / 1e6 * 2)
    assert found.tables_bytes == pytest.approx(records * MEASURED.row_bytes + 10_000 * MEASURED.state_bytes)
    assert found.tables_bytes == table_bytes(records, 10_000, MEASURED)
    assert found.replay_s == pytest.approx(records * MEASURED.replay_us / 1e6)
    # The records of 10 s follow the last epochs, and each entity is read twice.
    assert found.rebuild_s == pytest.approx(rebuild_s(20_000, 10_000, MEASURED))
    # With three brokers, each broker holds all data.
    assert found.broker_disk_bytes > records * (MEASURED.observation_bytes + MEASURED.change_bytes)
    assert plan(replace(HAND, brokers=6), MEASURED).broker_disk_bytes == pytest.approx(found.broker_disk_bytes / 2)


def test_recorded_logs_have_the_constants_and_are_predicted() -> None:
    """As far as this release's constants are of recorded logs: the third log was held back from them."""
    found = measurement()
    logs = [] if found.logs is None else [found.logs]
    for each in logs:
        assert found.constants == constants(each.few, each.many)
        deviations = {one.name: one.deviation for one in predictions(each.between, found.constants)}
        assert {name: deviation for name, deviation in deviations.items() if abs(deviation) > LIMIT} == {}
    assert min(msgspec.structs.astuple(found.constants)) > 0


def test_constants_of_a_log_that_the_model_describes_predict_it() -> None:
    """Logs that are made by the model have its constants, and no deviation."""

    def log(records: int, entities: int) -> MeasuredLog:
        return MeasuredLog(
            records=records, entities=entities, rate=40_000, cpu_us=25, memory=2e8, observations=records * 90,
            changes=records * 110, table=records * 200 + entities * 600, ranges=entities * 270, entities_read=entities,
            replayed=0, rebuild_s=entities * 6e-6, replay_s=records * 20e-6,
        )  # fmt: skip

    found = constants(log(1_000_000, 10_000), log(1_000_000, 250_000))
    expected = (40_000, 25, 2e8, 190, 90, 110, 200, 600, 270, 6, 20)
    assert msgspec.structs.astuple(found) == pytest.approx(expected)
    assert all(abs(each.deviation) < 1e-9 for each in predictions(log(2_000_000, 125_000), found))
    spoiled = msgspec.structs.replace(log(2_000_000, 125_000), table=10**9)
    assert [each.name for each in predictions(spoiled, found) if abs(each.deviation) > LIMIT] == ["worker: table, MB"]


def test_page_has_the_models_figures() -> None:
    """scale.md's examples are those of the constants of this release."""
    page = " ".join((ROOT / "docs" / "reference" / "scale.md").read_text().split())
    agents = plan(Demand(100_000, 20_000_000, 30 * DAY_S, 12, 0, MEASURED.raw_bytes, 8e12), MEASURED)
    by_rate = math.ceil(100_000 / (MEASURED.thread_rate / 2))
    assert f"{by_rate} workers for the rate and {math.ceil(agents.tables_bytes / 8e12)} for the disks" in page
    assert f"so {agents.workers} workers and {agents.partitions} partitions" in page
    year = plan(Demand(5_000, 2_000_000, 365 * DAY_S, 3, 0, MEASURED.raw_bytes, 4e12), MEASURED)
    assert f"5,000 observations a second take {year.tables_bytes / 1e12:.0f} TB a year" in page


def test_command_prints_the_models_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["plan", "--rate", "5000", "--entities", "2000000", "--retain", "365d", "--brokers", "3"]
    assert run(arguments) == 0
    assert "partitions" in capsys.readouterr().out
    assert run([*arguments, "--json"]) == 0
    tree = json.loads(capsys.readouterr().out)
    demand = Demand(5_000, 2_000_000, 365 * DAY_S, 3, 0, MEASURED.raw_bytes, 4e12)
    assert tree == asdict(plan(demand, MEASURED))


def test_load_too_large_for_one_log_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "--rate", "100000000", "--entities", "10", "--retain", "1d"]) == 1
    assert "divide the entities among several logs" in capsys.readouterr().out


@pytest.mark.parametrize("retain", ["", "d", "0d", "3", "-1d", "1 month"])
def test_invalid_duration_is_refused(retain: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "--rate", "1", "--entities", "1", f"--retain={retain}"]) == 2
    assert "--retain" in capsys.readouterr().err


def test_sizes_and_times_are_short() -> None:
    assert [size_text(each) for each in (0, 9_999, 12_345, 5e12, 1e18)] == [
        "0 B",
        "9,999 B",
        "12 kB",
        "5,000 GB",
        "1,000 PB",
    ]
    assert [time_text(each) for each in (1.04, 119, 120, 7_200, 864_000)] == [
        "1.0 s",
        "119.0 s",
        "2.0 m",
        "2.0 h",
        "10.0 d",
    ]
