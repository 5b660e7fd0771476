"""Default values and allowed names of arguments, importable without the modules that use them."""

from __future__ import annotations

# How long to wait for the process that owns a `file:` log, or for Kafka's brokers.
OWNER_TIMEOUT_S = 30.0
# The meaning of a time: when the log recorded an observation, or when it happened.
CLOCKS = ("recorded", "observed")
# A chunk of encoded entities (streams/snapshots/chunk.py) is full at this size.
CHUNK_BYTES = 64 << 10
# Entities that were put are made a layer (streams/snapshots/layers.py) at this size.
PUT_BYTES = 64 << 20
# How many chunks that were read from a file or from `.snapshots` stay in memory.
OPEN_CHUNKS = 512
