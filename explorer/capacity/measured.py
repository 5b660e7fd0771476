"""The constants of the model, as `make bench ARGS="--only scale"` measures them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Measured:
    """Measurements with observations of five fields. As records they have raw_bytes bytes.

    Attributes:
        thread_rate: Observations per second that one worker folds, with a broker on the same two cores.
        cpu_us: CPU time of a worker and its sealing process, in microseconds per observation.
        memory_bytes: The peak memory of a worker and its sealing process together.
        raw_bytes: The size of an observation's record, including key and id.
        observation_bytes: The size of an observation in `.observations`, compressed.
        change_bytes: The size of an observation's change in `.changes`, compressed.
        row_bytes: The size of an observation's rows in a worker's table: timeline, arrivals, id.
        state_bytes: The size of an entity in a worker's table.
        chunk_bytes: The size of an entity in a snapshot, compressed.
        read_us: CPU time of a rebuild, in microseconds per stored entity that it reads.
        replay_us: CPU time of a rebuild, in microseconds per record that it folds.
    """

    thread_rate: float
    cpu_us: float
    memory_bytes: float
    raw_bytes: int
    observation_bytes: float
    change_bytes: float
    row_bytes: float
    state_bytes: float
    chunk_bytes: float
    read_us: float
    replay_us: float


# Rate and CPU: a worker next to its broker on two cores that were otherwise idle, 100,000 observations of 20,000
# entities (`--only worker --quick`, 2026-11-26). The rest: `--only scale --quick` of that day.
MEASURED = Measured(
    thread_rate=28_000,
    cpu_us=36,
    memory_bytes=210e6,
    raw_bytes=190,
    observation_bytes=85,
    change_bytes=120,
    row_bytes=191,
    state_bytes=606,
    chunk_bytes=273,
    read_us=6.1,
    replay_us=21.8,
)
