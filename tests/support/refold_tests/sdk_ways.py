"""The usage of OpenAI's and Anthropic's SDKs: sync and async, complete and streamed, with errors."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any, NamedTuple

import anthropic
import openai

from refold_tests.model_server import ModelServer

ASKED: Any = [{"role": "user", "content": "was it paid? 🤔"}]
KEY = "sk-a-key-that-nobody-may-see"


class Way(NamedTuple):
    """One way of use: the SDK, whether it is async, and how it is called."""

    sdk: str
    is_async: bool
    use: str


WAYS = [
    Way(sdk, is_async, use)
    for sdk in ("openai", "anthropic")
    for is_async in (False, True)
    for use in ("plain", "stream", "events", "raw", "retried", "refused", "broken", "left", "unused")
] + [Way("openai", is_async, use) for is_async in (False, True) for use in ("embeddings", "responses")]
REQUESTS = {"retried": 2, "refused": 1, "unused": 0}


def prepare(server: ModelServer, use: str) -> None:
    """Make the server fail as a way of use needs it."""
    server.reset()
    server.failing = 1 if use in ("retried", "refused") else 0
    server.breaks = use == "broken"


def client_of(way: Way, server: ModelServer, url: str = "") -> Any:
    """Return the SDK's client. url: where it sends requests; empty: to the server."""
    kinds: dict[tuple[str, bool], Any] = {
        ("openai", False): openai.OpenAI, ("openai", True): openai.AsyncOpenAI,
        ("anthropic", False): anthropic.Anthropic, ("anthropic", True): anthropic.AsyncAnthropic,
    }  # fmt: skip
    retries = 2 if way.use == "retried" else 0
    url = (url or server.url) + ("/v1" if way.sdk == "openai" else "")
    return kinds[way.sdk, way.is_async](api_key=KEY, base_url=url, max_retries=retries)


def endpoint(way: Way, client: Any, asked: Any) -> tuple[Any, dict[str, Any]]:
    """Return the resource that creates answers, and the arguments of the call."""
    if way.sdk == "openai":
        return client.chat.completions, {"model": "gpt-x", "messages": asked}
    return client.messages, {"model": "claude-x", "messages": asked, "max_tokens": 100}


def other_endpoint(way: Way, client: Any, asked: Any) -> Any:
    """Return the answer; for an async client an awaitable."""
    if way.use == "embeddings":
        return client.embeddings.create(
            model="e", input=asked[0]["content"], encoding_format="float", user=openai.NOT_GIVEN
        )
    return client.responses.create(model="gpt-x", input=asked[0]["content"], temperature=openai.NOT_GIVEN)


def use_sync(way: Way, client: Any, asked: Any = ASKED) -> Any:
    """Return what the SDK returns, as JSON."""
    if way.use in ("embeddings", "responses"):
        return other_endpoint(way, client, asked).model_dump(mode="json")
    place, given = endpoint(way, client, asked)
    if way.use in ("plain", "retried"):
        return place.create(**given).model_dump(mode="json")
    if way.use == "raw":
        found = place.with_raw_response.create(**given)
        return [found.status_code, found.headers["x-request-id"], found.parse().model_dump(mode="json")]
    if way.use == "refused":
        try:
            return place.create(**given)
        except (openai.RateLimitError, anthropic.RateLimitError) as error:
            return [type(error).__name__, error.status_code, error.response.headers["x-request-id"], str(error)]
    if way.use == "stream":
        return [each.model_dump(mode="json") for each in place.create(**given, stream=True)]
    if way.use == "events":
        with place.stream(**given) as stream:
            return [each.model_dump(mode="json") for each in stream][-1]
    if way.use == "broken":
        got: list[Any] = []
        try:
            for each in place.create(**given, stream=True):
                got.append(each.model_dump(mode="json"))
        except Exception as error:
            return [got, type(error).__name__, str(error)]
        return got
    if way.use == "left":
        stream = place.create(**given, stream=True)
        first = next(iter(stream)).model_dump(mode="json")
        stream.close()
        return first
    return None


async def use_async(way: Way, client: Any, asked: Any = ASKED) -> Any:
    """Return what the SDK returns for an async client, as JSON."""
    if way.use in ("embeddings", "responses"):
        return (await other_endpoint(way, client, asked)).model_dump(mode="json")
    place, given = endpoint(way, client, asked)
    if way.use in ("plain", "retried"):
        return (await place.create(**given)).model_dump(mode="json")
    if way.use == "raw":
        found = await place.with_raw_response.create(**given)
        parsed = found.parse()
        parsed = await parsed if inspect.isawaitable(parsed) else parsed
        return [found.status_code, found.headers["x-request-id"], parsed.model_dump(mode="json")]
    if way.use == "refused":
        try:
            return await place.create(**given)
        except (openai.RateLimitError, anthropic.RateLimitError) as error:
            return [type(error).__name__, error.status_code, error.response.headers["x-request-id"], str(error)]
    if way.use == "stream":
        return [each.model_dump(mode="json") async for each in await place.create(**given, stream=True)]
    if way.use == "events":
        async with place.stream(**given) as stream:
            return [each.model_dump(mode="json") async for each in stream][-1]
    if way.use == "broken":
        got: list[Any] = []
        try:
            async for each in await place.create(**given, stream=True):
                got.append(each.model_dump(mode="json"))
        except Exception as error:
            return [got, type(error).__name__, str(error)]
        return got
    if way.use == "left":
        stream = await place.create(**given, stream=True)
        async for each in stream:
            await stream.close()
            return each.model_dump(mode="json")
    return None


def bare(way: Way, server: ModelServer, url: str = "", asked: Any = ASKED) -> Any:
    """Return what the SDK returns without refold. url: as for client_of."""

    async def use() -> Any:
        async with client_of(way, server, url) as client:
            return await use_async(way, client, asked)

    if way.is_async:
        return asyncio.run(use())
    with client_of(way, server, url) as client:
        return use_sync(way, client, asked)
