"""The constants of the model, as `make bench ARGS="--only scale"` measures them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Measured:
    """Of observations with five fields, which are raw_bytes long as records.

    Attributes:
        thread_rate: Observations a second that one worker folds, while a broker runs on the same two cores.
        cpu_us: CPU of a worker and its sealing process, in microseconds an observation.
        memory_bytes: What a worker and its sealing process have at most at one time.
        raw_bytes: The size of an observation's record, key and id included.
        observation_bytes: What one takes in `.observations`, compressed.
        change_bytes: What one takes in `.changes`, compressed.
        row_bytes: What one takes in a worker's table: timeline, arrivals, id.
        state_bytes: What an entity takes in a worker's table.
        chunk_bytes: What an entity takes in a snapshot, compressed.
        read_us: CPU of a rebuild, in microseconds for each stored entity that it reads.
        replay_us: CPU of a rebuild, in microseconds for each record that it folds.
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


# Rate and CPU: a worker next to its broker on two cores, 100,000 observations of 20,000 entities, idle but for them
# (`--only worker --quick`, 2026-11-26). The rest: `--only scale --quick` of that day.
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
