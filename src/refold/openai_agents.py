"""A tracing processor and a session for the OpenAI Agents SDK (extra `openai-agents`).

from refold.openai_agents import RefoldSession, RefoldTracingProcessor

docs/guides/openai-agents.md shows them.
"""

from __future__ import annotations

try:
    from refold.agents.adapters.openai_agents.processor import RefoldTracingProcessor
    from refold.agents.adapters.openai_agents.session import RefoldSession
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] not in ("agents", "openai", "pydantic"):
        raise
    raise ImportError(
        f"refold.openai_agents needs {error.name}: install it with pip install 'refold[openai-agents]'"
    ) from error

__all__ = ["RefoldSession", "RefoldTracingProcessor"]
