"""Agents that real instrumentations observe, each with its SDK against a stand-in model. They send spans and logs.

    python -c 'from refold_tests.otlp_emitters import main; main()' MODEL_URL RECEIVER_URL

All run in one process, because importing the SDKs costs more than the agents do; those of APART run in another
environment. Each has providers of its own, and its instrumentation is removed after it. Each agent asks for one price
by a tool and answers; then it fails once.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from opentelemetry import _logs, trace
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator

from refold_tests.model_server import Reply
from refold_tests.tree import ROOT

ASKED = "What does a kettle cost?"
ANSWERED = "A kettle costs 42 EUR."
BROKEN = "Fail, please."
DESK = "You sell kettles."
CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"


def mind(body: Any) -> Reply:
    """Call the tool, then answer; of any provider's request."""
    text = json.dumps(body)
    if "42 EUR" in text:
        return Reply([ANSWERED])
    return Reply(tools=[("price", {"item": "kettle"})])


class Sending(NamedTuple):
    """Where an emitter sends, and which model it asks."""

    spans: TracerProvider
    logs: LoggerProvider
    model: str


class _Ids(IdGenerator):
    """Ids that are equal in each run, so that a snapshot may hold them."""

    def __init__(self, number: int) -> None:
        self._next = itertools.count(number * 1_000 + 1)

    def generate_trace_id(self) -> int:
        return next(self._next)

    def generate_span_id(self) -> int:
        return next(self._next)


def openai(to: Sending) -> None:
    """OpenTelemetry's own for openai, by the names of today. Messages are in logs."""
    import openai as sdk
    from opentelemetry.instrumentation.genai.openai import OpenAIInstrumentor

    instrument = OpenAIInstrumentor()
    instrument.instrument(tracer_provider=to.spans, logger_provider=to.logs)
    tools: Any = [{"type": "function", "function": {"name": "price", "parameters": {"type": "object"}}}]
    messages: list[Any] = [{"role": "system", "content": DESK}, {"role": "user", "content": ASKED}]
    with sdk.OpenAI(base_url=f"{to.model}/v1", api_key="key", max_retries=0) as client:
        with to.spans.get_tracer("agent").start_as_current_span("sell") as span:
            span.set_attributes({"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "openai"})
            asked: Any = client.chat.completions.create(model="gpt-5-mini", messages=messages, tools=tools)
            [call] = asked.choices[0].message.tool_calls
            messages += [
                asked.choices[0].message.model_dump(exclude_none=True),
                {"role": "tool", "tool_call_id": call.id, "content": price("kettle")},
            ]
            client.chat.completions.create(model="gpt-5-mini", messages=messages, tools=tools)
        with _failing(), sdk.OpenAI(base_url="http://127.0.0.1:9/v1", api_key="key", max_retries=0) as broken:
            broken.chat.completions.create(model="gpt-5-mini", messages=[{"role": "user", "content": BROKEN}])
    instrument.uninstrument()


def anthropic(to: Sending) -> None:
    """OpenLLMetry's for anthropic."""
    import anthropic as sdk
    from opentelemetry.instrumentation.anthropic import AnthropicInstrumentor

    instrument = AnthropicInstrumentor()
    instrument.instrument(tracer_provider=to.spans, logger_provider=to.logs)
    tools: Any = [{"name": "price", "description": "", "input_schema": {"type": "object"}}]
    messages: list[Any] = [{"role": "user", "content": ASKED}]
    more: dict[str, Any] = {"model": "claude-x", "max_tokens": 99, "tools": tools, "system": DESK}
    with (
        sdk.Anthropic(base_url=to.model, api_key="key", max_retries=0) as client,
        to.spans.get_tracer("agent").start_as_current_span("sell.workflow") as span,
    ):
        span.set_attributes({"traceloop.span.kind": "workflow", "traceloop.entity.name": "sell"})
        asked = client.messages.create(messages=messages, **more)
        [call] = asked.content
        messages += [
            {"role": "assistant", "content": [call.model_dump()]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "42 EUR"}]},
        ]
        client.messages.create(messages=messages, **more)
    with _failing(), sdk.Anthropic(base_url="http://127.0.0.1:9", api_key="key", max_retries=0) as broken:
        broken.messages.create(model="claude-x", max_tokens=9, messages=[{"role": "user", "content": BROKEN}])
    instrument.uninstrument()


def langchain(to: Sending) -> None:
    """OpenInference's for langchain: a graph of LangGraph, with its tool node."""
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI
    from langgraph.graph import START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode, tools_condition
    from openinference.instrumentation.langchain import LangChainInstrumentor

    @tool("price")
    def price_of(item: str) -> str:
        """Return the price of an item."""
        return price(item)

    def graph_of(url: str) -> Any:
        key: Any = "key"
        model = ChatOpenAI(model="gpt-5-mini", base_url=f"{url}/v1", api_key=key, max_retries=0)
        bound = model.bind_tools([price_of])
        graph: Any = StateGraph(MessagesState)
        graph.add_node("model", lambda state: {"messages": [bound.invoke(state["messages"])]})
        graph.add_node("tools", ToolNode([price_of]))
        graph.add_edge(START, "model")
        graph.add_conditional_edges("model", tools_condition)
        graph.add_edge("tools", "model")
        return graph.compile(name="langchain")

    instrument = LangChainInstrumentor()
    instrument.instrument(tracer_provider=to.spans)
    graph_of(to.model).invoke({"messages": [("system", DESK), ("user", ASKED)]})
    with _failing():
        graph_of("http://127.0.0.1:9").invoke({"messages": [("user", BROKEN)]})
    instrument.uninstrument()


def openai_agents(to: Sending) -> None:
    """OpenInference's for the OpenAI Agents SDK."""
    import agents
    from openai import AsyncOpenAI
    from openinference.instrumentation.openai_agents import OpenAIAgentsInstrumentor

    instrument = OpenAIAgentsInstrumentor()
    instrument.instrument(tracer_provider=to.spans)

    async def ask(url: str, asked: str) -> None:
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key="key", max_retries=0) as client:
            model = agents.OpenAIChatCompletionsModel(model="gpt-5-mini", openai_client=client)
            tools: list[Any] = [agents.function_tool(price)]
            desk: Any = agents.Agent(name="openai-agents", instructions=DESK, model=model, tools=tools)
            await agents.Runner.run(desk, asked)

    asyncio.run(ask(to.model, ASKED))
    with _failing():
        asyncio.run(ask("http://127.0.0.1:9", BROKEN))
    instrument.uninstrument()
    agents.set_trace_processors([])


def agent_framework(to: Sending) -> None:
    """Microsoft's Agent Framework, which observes itself; its client answers without a server."""
    import agent_framework as sdk
    from agent_framework.observability import ChatTelemetryLayer, enable_instrumentation

    class Model(sdk.FunctionInvocationLayer[Any], ChatTelemetryLayer[Any], sdk.BaseChatClient[Any]):
        OTEL_PROVIDER_NAME = "stand-in"

        def __init__(self) -> None:
            super().__init__()
            self.model = "m-1"

        async def _inner_get_response(self, *, messages: Any, stream: bool, options: Any, **_: Any) -> Any:
            if BROKEN in messages[-1].text:
                raise ConnectionError("the model is gone")
            counted = sdk.UsageDetails(input_token_count=7, output_token_count=5)
            said: Any = sdk.Content.from_function_call("call_1", "price", arguments='{"item": "kettle"}')
            if any(each.type == "function_result" for message in messages for each in message.contents):
                said = ANSWERED
            answer = sdk.Message(role="assistant", contents=[said])
            return sdk.ChatResponse(messages=[answer], response_id="r-1", model="m-1", usage_details=counted)

    trace.set_tracer_provider(to.spans)
    enable_instrumentation(enable_sensitive_data=True)
    desk: Any = sdk.Agent(Model(), DESK, name="agent-framework", tools=[price])
    asyncio.run(desk.run(ASKED))
    with _failing():
        asyncio.run(desk.run(BROKEN))


def google_adk(to: Sending) -> None:
    """Google's Agent Development Kit, which observes itself."""
    from google.adk.agents import LlmAgent
    from google.adk.models import Gemini
    from google.adk.runners import InMemoryRunner
    from google.genai import types

    trace.set_tracer_provider(to.spans)
    _logs.set_logger_provider(to.logs)

    async def ask(url: str, question: str) -> None:
        model = Gemini(model="gemini-x", base_url=url)
        desk = LlmAgent(name="google_adk", model=model, instruction=DESK, tools=[price])
        runner = InMemoryRunner(desk, app_name="desk")
        session = await runner.session_service.create_session(app_name="desk", user_id="someone")
        message = types.Content(role="user", parts=[types.Part(text=question)])
        async for _ in runner.run_async(user_id="someone", session_id=session.id, new_message=message):
            pass

    asyncio.run(ask(to.model, ASKED))
    with _failing():
        asyncio.run(ask("http://127.0.0.1:9", BROKEN))


def price(item: str) -> str:
    """Return the price of an item."""
    return f"A {item} costs 42 EUR"


EMITTERS: Mapping[str, tuple[Callable[[Sending], None], Mapping[str, str]]] = {
    "openai": (openai, {CONTENT: "event_only"}),
    "anthropic": (anthropic, {}),
    "langchain": (langchain, {}),
    "openai-agents": (openai_agents, {}),
    "agent-framework": (agent_framework, {}),
    "google-adk": (google_adk, {"GOOGLE_API_KEY": "key", CONTENT: "span_and_event"}),
}
"""Each emitter, and the environment that its instrumentation reads."""
APART = ("google-adk",)
"""Those that need older releases than the tests have. ADK_PYTHON has them, by `make`."""
ADK_PYTHON = ROOT / ".venv-adk" / "bin" / "python"


def main() -> None:
    """Run the emitters that are named, else all that are not apart."""
    model, receiver, *named = sys.argv[1:]
    for number, (name, (emit, environment)) in enumerate(EMITTERS.items(), 1):
        if name not in named if named else name in APART:
            continue
        os.environ.pop(CONTENT, None)
        os.environ.update(environment)
        resource = Resource.create({"service.name": name})
        spans = TracerProvider(resource=resource, id_generator=_Ids(number))
        spans.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{receiver}/v1/traces")))
        logs = LoggerProvider(resource=resource)
        logs.add_log_record_processor(SimpleLogRecordProcessor(OTLPLogExporter(f"{receiver}/v1/logs")))
        emit(Sending(spans, logs, model))
        spans.shutdown()
        logs.shutdown()


@contextmanager
def _failing() -> Iterator[None]:
    with contextlib.suppress(Exception):
        yield
