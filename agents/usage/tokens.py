"""The tokens that a model read and wrote, from the usage in its provider's answer.

    OpenAI      usage: prompt_tokens or input_tokens, which include cached ones; completion_tokens or output_tokens
    Anthropic   usage: input_tokens, and apart cache_read_input_tokens, cache_creation_input_tokens; output_tokens
    Bedrock     usage: inputTokens, and apart cacheReadInputTokens, cacheWriteInputTokens; outputTokens
    Gemini      usageMetadata: promptTokenCount, which includes cachedContentTokenCount; candidatesTokenCount, and
                apart thoughtsTokenCount
    Ollama      prompt_eval_count, eval_count

Here each token is counted once, whatever the provider's form.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

_NONE: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Counts of tokens.

    Attributes:
        input: The tokens that were read, not from a cache.
        cached: The tokens that were read from the provider's cache.
        written: The tokens that were read, and stored in that cache.
        written_hour: The tokens of `written` that the cache keeps for an hour.
        output: The tokens that were written by the model, including thoughts.
    """

    input: int = 0
    output: int = 0
    cached: int = 0
    written: int = 0
    written_hour: int = 0

    @property
    def read(self) -> int:
        """All tokens that the model read."""
        return self.input + self.cached + self.written

    def __add__(self, other: TokenUsage) -> TokenUsage:
        return TokenUsage(
            self.input + other.input, self.output + other.output, self.cached + other.cached,
            self.written + other.written, self.written_hour + other.written_hour,
        )  # fmt: skip


def usage_in(answered: Mapping[str, Any]) -> TokenUsage | None:
    """Return the tokens that an answer reports.

    Args:
        answered: The answer as JSON, as `json_exchange` (capture/answers.py) returns it.

    Returns:
        None if the answer reports no usage.
    """
    if (found := _part(answered, "usageMetadata")) and _first(found, "promptTokenCount") is not None:
        prompt = _count(found, "promptTokenCount", "toolUsePromptTokenCount")
        return _inclusive(
            prompt,
            _count(found, "cachedContentTokenCount"),
            0,
            _count(found, "candidatesTokenCount", "thoughtsTokenCount"),
        )
    if _first(answered, "prompt_eval_count", "eval_count") is not None:
        return TokenUsage(_count(answered, "prompt_eval_count"), _count(answered, "eval_count"))
    usage = _part(answered, "usage")
    read = _first(usage, "input_tokens", "prompt_tokens", "inputTokens")
    output = _first(usage, "output_tokens", "completion_tokens", "outputTokens")
    if read is None and output is None:
        return None
    details = _part(usage, "prompt_tokens_details") or _part(usage, "input_tokens_details")
    if details:
        return _inclusive(
            read or 0, _count(details, "cached_tokens"), _count(details, "cache_write_tokens"), output or 0
        )
    return TokenUsage(
        read or 0,
        output or 0,
        _count(usage, "cache_read_input_tokens", "cacheReadInputTokens"),
        _count(usage, "cache_creation_input_tokens", "cacheWriteInputTokens"),
        _count(_part(usage, "cache_creation"), "ephemeral_1h_input_tokens"),
    )


def total(usages: Iterable[TokenUsage]) -> TokenUsage:
    """Return the sum of all of them."""
    return sum(usages, TokenUsage())


def _inclusive(read: int, cached: int, written: int, output: int) -> TokenUsage:
    """Build the counts for providers that include the cache's tokens in those that were read."""
    cached, written = min(cached, read), min(written, max(0, read - cached))
    return TokenUsage(read - cached - written, output, cached, written)


def _part(tree: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = tree.get(name)
    return found if isinstance(found, Mapping) else _NONE


def _first(tree: Mapping[str, Any], *names: str) -> int | None:
    return next((value for name in names if _is_count(value := tree.get(name))), None)


def _count(tree: Mapping[str, Any], *names: str) -> int:
    """Return the sum of the counts under these names."""
    return sum(tree[name] for name in names if _is_count(tree.get(name)))


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
