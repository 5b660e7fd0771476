"""What a caller may leave unsaid, and the names it may say: known without importing what they are for."""

from __future__ import annotations

# How long to wait for the process that owns a `file:` log, or for Kafka's brokers.
OWNER_TIMEOUT_S = 30.0
# What a time means: when the log took it, or when it happened.
CLOCKS = ("recorded", "observed")
