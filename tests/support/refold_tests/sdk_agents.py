"""Agents of the OpenAI Agents SDK: a desk with two tools, an agent as a tool, a guardrail and a handoff."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import agents
from agents import Agent, GuardrailFunctionOutput, OpenAIChatCompletionsModel, Runner, function_tool, input_guardrail
from openai import AsyncOpenAI

from refold_tests.model_server import ModelServer, Reply

ASKED = "Please refund order o-7."
DONE = "Refunded."


@function_tool
def find_order(order: str) -> dict[str, Any]:
    """Find an order."""
    return {"order": order, "eur": 42}


@function_tool
async def pay(order: str) -> str:
    """Pay an order."""
    raise ValueError(f"{order} is paid")


@input_guardrail
async def polite(context: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
    """Let everything pass that is polite."""
    return GuardrailFunctionOutput(output_info=None, tripwire_triggered="rude" in str(given))


def mind(body: Any) -> Reply:
    """Call both tools and the helper, then hand over, then answer."""
    said = str(body["messages"][0]["content"])
    if said == "You help.":
        return Reply(["Helped."])
    if said == "You refund.":
        return Reply([DONE])
    results = [each for each in body["messages"] if each["role"] == "tool"]
    if not results:
        return Reply(tools=[("find_order", {"order": "o-7"}), ("pay", {"order": "o-7"}), ("help", {"input": "o-7"})])
    return Reply(tools=[("transfer_to_refunds", {})])


def client(server: ModelServer) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{server.url}/v1", api_key="key", max_retries=0)


def desk(sdk: AsyncOpenAI) -> Agent[Any]:
    model = OpenAIChatCompletionsModel(model="gpt-5-mini", openai_client=sdk)
    helper: Agent[Any] = Agent(name="helper", instructions="You help.", model=model)
    refunds: Agent[Any] = Agent(name="refunds", instructions="You refund.", model=model)
    tools = [find_order, pay, helper.as_tool("help", "Helps.")]
    return Agent(
        name="desk", instructions="You decide.", model=model, tools=[*tools], handoffs=[refunds],
        input_guardrails=[polite],
    )  # fmt: skip


async def asked(agent: Agent[Any], given: str = ASKED, *, is_streamed: bool = False, **more: Any) -> Any:
    """Return the final output of a run of the SDK."""
    if not is_streamed:
        return (await Runner.run(agent, given, **more)).final_output
    result = Runner.run_streamed(agent, given, **more)
    async for _ in result.stream_events():
        pass
    return result.final_output


def ask(server: ModelServer, given: str = ASKED, *, is_streamed: bool = False) -> Any:
    """As `asked`, of a new desk in a loop of its own."""

    async def whole() -> Any:
        async with client(server) as sdk:
            return await asked(desk(sdk), given, is_streamed=is_streamed)

    return asyncio.run(whole())


@contextmanager
def processing(*processors: agents.TracingProcessor) -> Iterator[None]:
    """Give the SDK these processors, and none that sends to OpenAI."""
    agents.set_trace_processors([*processors])
    try:
        yield
    finally:
        agents.set_trace_processors([])
