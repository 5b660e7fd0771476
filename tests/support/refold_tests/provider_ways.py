"""The usage of the SDKs of Google, Ollama and Amazon: a question, a tool call, its result, the answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any

from refold_tests.model_server import WORDS, Reply

KEY = "a-key-that-nobody-may-see"
TOOL, ARGUMENTS, RESULT = "look", {"at": 1}, "it is paid"
ASKING = Reply(["Let me ", "see. "], [(TOOL, ARGUMENTS)])
SAYING = Reply(WORDS)
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"at": {"type": "integer"}}}


def mind(body: Any) -> Reply:
    """Call a tool, and answer once its result is there."""
    return SAYING if RESULT in json.dumps(body) or "prompt" in body else ASKING


def gemini(url: str, question: str, *, is_streamed: bool) -> list[Any]:
    """Use google-genai."""
    from google import genai
    from google.genai import types

    tools = [types.Tool(function_declarations=[types.FunctionDeclaration(name=TOOL, parameters_json_schema=SCHEMA)])]
    given: Any = {"model": "gemini-x", "config": types.GenerateContentConfig(tools=list(tools))}
    contents = [types.Content(role="user", parts=[types.Part(text=question)])]
    found: list[Any] = []
    with genai.Client(api_key=KEY, http_options=types.HttpOptions(base_url=url)) as client:
        for _ in range(2):
            answers = (
                list(client.models.generate_content_stream(contents=list(contents), **given)) if is_streamed
                else [client.models.generate_content(contents=list(contents), **given)]
            )  # fmt: skip
            found += [each.model_dump(mode="json", exclude={"sdk_http_response"}) for each in answers]
            contents += [
                each.candidates[0].content for each in answers if each.candidates and each.candidates[0].content
            ]
            response = types.Part.from_function_response(name=TOOL, response={"result": RESULT})
            contents.append(types.Content(role="user", parts=[response]))
    return found


def ollama(url: str, question: str, *, is_streamed: bool) -> list[Any]:
    """Use Ollama's SDK."""
    import ollama as sdk

    tools: Any = [{"type": "function", "function": {"name": TOOL, "parameters": SCHEMA}}]
    messages: list[Any] = [{"role": "user", "content": question}]
    found: list[Any] = []
    with sdk.Client(host=url) as client:
        for _ in range(2):
            answer: Any = client.chat("llama-x", messages=messages, tools=tools, stream=is_streamed)
            parts = [each.model_dump(mode="json") for each in (answer if is_streamed else [answer])]
            found += parts
            calls = [call for each in parts for call in each["message"]["tool_calls"] or ()]
            text = "".join(each["message"]["content"] or "" for each in parts)
            messages.append({"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})})
            messages.append({"role": "tool", "content": RESULT, "tool_name": TOOL})
    return found


def generate(url: str, question: str, *, is_streamed: bool) -> list[Any]:
    """Use Ollama's SDK with prompts, which are continued by a context."""
    import ollama as sdk

    found: list[Any] = []
    context = None
    with sdk.Client(host=url) as client:
        for _ in range(2):
            answer: Any = client.generate("llama-x", question, context=context, stream=is_streamed)
            found += [each.model_dump(mode="json") for each in (answer if is_streamed else [answer])]
            context = found[-1]["context"]
    return found


def bedrock(url: str) -> Any:
    """Return Amazon's client."""
    import botocore.session
    from botocore.config import Config

    return botocore.session.Session().create_client(
        "bedrock-runtime", region_name="us-east-1", endpoint_url=url, aws_access_key_id="AKIDEXAMPLE",
        aws_secret_access_key="secret-of-the-account", aws_session_token=KEY,
        config=Config(retries={"total_max_attempts": 1}),
    )  # fmt: skip


def converse(url: str, question: str, *, is_streamed: bool) -> list[Any]:
    """Use botocore with Bedrock's Converse."""
    messages: list[Any] = [{"role": "user", "content": [{"text": question}]}]
    found: list[Any] = []
    with closing(bedrock(url)) as client:
        for _ in range(2):
            if is_streamed:
                found += list(client.converse_stream(modelId="model-x:0", messages=messages)["stream"])
            else:
                answer = client.converse(modelId="model-x:0", messages=messages)
                found.append({name: answer[name] for name in ("output", "stopReason", "usage")})
            content = [
                {"text": "".join(ASKING.words)},
                {"toolUse": {"toolUseId": "tooluse_1", "name": TOOL, "input": ARGUMENTS}},
            ]
            result = {"toolUseId": "tooluse_1", "content": [{"text": RESULT}]}
            messages += [
                {"role": "assistant", "content": content}, {"role": "user", "content": [{"toolResult": result}]},
            ]  # fmt: skip
    return found


def invoke(url: str, question: str, *, is_streamed: bool) -> list[Any]:
    """Use botocore with a model's own format."""
    messages: list[Any] = [{"role": "user", "content": question}]
    found: list[Any] = []
    with closing(bedrock(url)) as client:
        for _ in range(2):
            body = json.dumps({"anthropic_version": "bedrock-2023-05-31", "max_tokens": 9, "messages": messages})
            if is_streamed:
                found += list(client.invoke_model_with_response_stream(modelId="claude-x", body=body)["body"])
            else:
                found.append(json.loads(client.invoke_model(modelId="claude-x", body=body)["body"].read()))
            use = {"type": "tool_use", "id": "toolu_0", "name": TOOL, "input": ARGUMENTS}
            result = {"type": "tool_result", "tool_use_id": "toolu_0", "content": RESULT}
            messages += [
                {"role": "assistant", "content": [{"type": "text", "text": "".join(ASKING.words)}, use]},
                {"role": "user", "content": [result]},
            ]
    return found


WAYS: Mapping[str, Callable[..., list[Any]]] = {
    "gemini": gemini, "ollama": ollama, "generate": generate, "converse": converse, "invoke": invoke,
}  # fmt: skip
