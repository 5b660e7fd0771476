"""A checkpointer for LangGraph whose threads are entities of a log (extra `langgraph`).

from refold.langgraph import RefoldSaver

docs/guides/langgraph-threads.md shows it.
"""

from __future__ import annotations

from refold.agents.adapters.langgraph.saver import RefoldSaver

__all__ = ["RefoldSaver"]
