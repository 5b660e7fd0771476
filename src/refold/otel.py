"""Recorded runs as OpenTelemetry spans. docs/AGENTS.md shows how; needs the extra `otel`."""

from __future__ import annotations

from refold.agents.otel import Span, export, spans

__all__ = ["Span", "export", "spans"]
