"""A session store and hooks for the Claude Agent SDK (extra `claude-agent-sdk`).

from refold.claude_agent_sdk import RefoldHooks, RefoldSessionStore

docs/guides/claude-agent-sdk.md shows it.
"""

from __future__ import annotations

try:
    from refold.agents.adapters.claude_agent_sdk.hooks import RefoldHooks
    from refold.agents.adapters.claude_agent_sdk.store import RefoldSessionStore
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] not in ("claude_agent_sdk", "anyio"):
        raise
    raise ImportError(
        f"refold.claude_agent_sdk needs {error.name}: install it with pip install 'refold[claude-agent-sdk]'"
    ) from error

__all__ = ["RefoldHooks", "RefoldSessionStore"]
