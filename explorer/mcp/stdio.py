"""MCP over standard input and output, for a client that starts the server as a child process."""

from __future__ import annotations

import asyncio
import threading

from mcp.server.stdio import stdio_server

from refold.explorer.mcp.server import HistoryServer
from refold.streams.runtime import wait_for


def serve(history: HistoryServer) -> None:
    """Answer requests until standard input ends. Another thread reads it, so that a signal ends the process at once."""
    ended = threading.Event()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            asyncio.run(_serve(history))
        except BaseException as error:  # raised again in the main thread
            failures.append(error)
        finally:
            ended.set()

    threading.Thread(target=run, name="refold-mcp", daemon=True).start()
    wait_for(ended)
    for each in failures:
        raise each


async def _serve(history: HistoryServer) -> None:
    server = history.server
    async with stdio_server() as (messages, answers):
        await server.run(messages, answers, server.create_initialization_options())
