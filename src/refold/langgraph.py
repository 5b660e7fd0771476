"""A checkpointer and a store for LangGraph whose threads and items are entities of a log (extra `langgraph`).

from refold.langgraph import RefoldSaver, RefoldStore

docs/guides/langgraph-threads.md shows it.
"""

from __future__ import annotations

try:
    from refold.agents.adapters.langgraph.saver import RefoldSaver
    from refold.agents.adapters.langgraph.store import RefoldStore
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] not in ("langchain_core", "langgraph"):
        raise
    raise ImportError(
        f"refold.langgraph needs {error.name}: install it with pip install 'refold[langgraph]'"
    ) from error

__all__ = ["RefoldSaver", "RefoldStore"]
