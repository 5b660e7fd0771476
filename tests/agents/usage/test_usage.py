"""Tokens and cost: each provider's form of usage, the price table, and where people see the result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.agents.capture.answers import json_exchange
from refold.agents.usage.prices import PRICES_ENVIRONMENT, SHIPPED, Prices, prices
from refold.agents.usage.tokens import TokenUsage, usage_in
from refold.avro.errors import InputError
from refold_tests.command import Done, refold_command

FORMS: dict[str, tuple[dict[str, Any], TokenUsage | None]] = {
    "OpenAI's chat": (
        {"usage": {"prompt_tokens": 100, "completion_tokens": 20, "prompt_tokens_details": {"cached_tokens": 64},
                   "completion_tokens_details": {"reasoning_tokens": 12}}},
        TokenUsage(36, 20, 64),
    ),
    "OpenAI's responses": (
        {"usage": {"input_tokens": 100, "input_tokens_details": {"cached_tokens": 64}, "output_tokens": 20}},
        TokenUsage(36, 20, 64),
    ),
    "what OpenAI puts in its cache": (
        {"usage": {"prompt_tokens": 100, "completion_tokens": 1,
                   "prompt_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 30}}},
        TokenUsage(10, 1, 60, 30),
    ),
    "Anthropic's": (
        {"usage": {"input_tokens": 3, "cache_read_input_tokens": 1000, "cache_creation_input_tokens": 50,
                   "cache_creation": {"ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 40},
                   "output_tokens": 7}},
        TokenUsage(3, 7, 1000, 50, 40),
    ),
    "Bedrock's": (
        {"usage": {"inputTokens": 3, "cacheReadInputTokens": 1000, "cacheWriteInputTokens": 50, "outputTokens": 7}},
        TokenUsage(3, 7, 1000, 50),
    ),
    "Gemini's": (
        {"usageMetadata": {"promptTokenCount": 100, "cachedContentTokenCount": 40, "candidatesTokenCount": 5,
                           "thoughtsTokenCount": 9, "totalTokenCount": 114}},
        TokenUsage(60, 14, 40),
    ),
    "Ollama's": ({"prompt_eval_count": 26, "eval_count": 298}, TokenUsage(26, 298)),
    "an embedding's": ({"usage": {"prompt_tokens": 8, "total_tokens": 8}}, TokenUsage(8)),
    "none": ({"model": "x"}, None),
    "of another shape": ({"usage": {"input_tokens": "many", "output_tokens": True}}, None),
}  # fmt: skip


@pytest.mark.parametrize("form", list(FORMS))
def test_each_usage_format_counts_each_token_once(form: str) -> None:
    answered, expected = FORMS[form]
    assert usage_in(answered) == expected


def test_token_counts_split_over_two_events_are_merged(tmp_path: Path) -> None:
    events = [
        {"type": "message_start", "message": {"model": "claude-opus-5-5", "usage": {
            "input_tokens": 5, "cache_read_input_tokens": 900, "output_tokens": 1}}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 42}},
    ]  # fmt: skip
    chunks = [[at, f"event: {each['type']}\ndata: {json.dumps(each)}\n\n"] for at, each in enumerate(events)]
    asked, answered = json_exchange({"url": "http://h/v1/messages", "body": "{}"}, {"chunks": chunks})
    assert (asked, usage_in(answered)) == ({}, TokenUsage(5, 42, 900))


TABLE: dict[str, dict[str, Any]] = {
    "big": {"input": 10, "output": 50, "cached": 1, "written": 12.5, "written_hour": 20,
            "long": {"above": 1000, "input": 20, "output": 75}},
    "small": {"input": 1, "output": 2},
}  # fmt: skip


def test_each_kind_of_token_has_its_price() -> None:
    table = Prices(TABLE)
    assert table.cost("big", TokenUsage(100, 10, 200, 40, 30)) == pytest.approx(
        (100 * 10 + 10 * 50 + 200 * 1 + 10 * 12.5 + 30 * 20) / 1e6
    )
    assert table.cost("big", TokenUsage(900, 10, 200)) == pytest.approx((900 * 20 + 10 * 75 + 200 * 1) / 1e6), (
        "a long one"
    )
    assert table.cost("small", TokenUsage(1, 1, 1, 1, 1)) == pytest.approx((1 + 2 + 1 + 1) / 1e6), (
        "without a cache's prices"
    )
    assert table.cost("middle", TokenUsage(1)) is None


@pytest.mark.parametrize("name", [
    "claude-opus-5-5", "claude-opus-5-5-20261001", "claude-opus-5-5@20261001",
    "us.anthropic.claude-opus-5-5-20261001-v1:0",
    "anthropic/claude-opus-5-5", "claude-opus-5-5-latest", "Claude-Opus-5-5",
])  # fmt: skip
def test_model_is_found_by_each_of_its_names(name: str) -> None:
    assert prices({}).cost(name, TokenUsage(1_000_000, 1_000_000)) == pytest.approx(24)


@pytest.mark.parametrize("name", ["claude-opus-5-6", "claude-opus", "opus-5-5", "gpt-5-superlative", ""])
def test_unknown_model_has_no_price(name: str) -> None:
    assert prices({}).cost(name, TokenUsage(1)) is None


def test_shipped_table_names_its_source_and_date() -> None:
    table = prices({})
    assert "price" in table.source
    assert table.checked == "2026-11-26"
    assert "REFOLD_PRICES" in SHIPPED.read_text()


def test_user_prices_take_precedence(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text('[models]\n"gpt-5" = { input = 7 }\n"Our-Model" = { input = 3, output = 4 }\n')
    table = prices({PRICES_ENVIRONMENT: str(own)})
    assert table.cost("gpt-5-2025-08-07", TokenUsage(1_000_000, 1_000_000)) == 7
    assert table.cost("our-model", TokenUsage(1_000_000, 1_000_000)) == 7
    assert table.cost("gpt-5-mini", TokenUsage(1_000_000)) == 0.25


@pytest.mark.parametrize("text", [
    "[models", '[models]\n"x" = 3', '[models]\n"x" = { inputs = 3 }', '[models]\n"x" = { input = "3" }',
    '[models]\n"x" = { input = -1 }', '[models]\n"x" = { input = 1, long = { input = 2 } }', "models = 3",
    '[models]\n"x" = { input = inf }', '[models]\n"x" = { input = 1' + "0" * 400 + " }", "x = " + "[" * 3_000,
    "#" * 2_000_000,
], ids=["cut", "no table", "another kind", "text", "negative", "no limit", "no tables", "infinite", "huge", "deep",
        "long"])  # fmt: skip
def test_invalid_table_is_refused_by_its_path(tmp_path: Path, text: str) -> None:
    own = tmp_path / "own.toml"
    own.write_text(text)
    with pytest.raises(InputError, match=r"own\.toml"):
        prices({PRICES_ENVIRONMENT: str(own)})


def test_run_reports_its_models_usage(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text('[models]\n"known-model" = { input = 1000, output = 2000 }\n')
    url = f"file:{tmp_path / 'log'}"
    with refold.open(url) as log:
        run = log.run("agent", title="two models")

        def asked(model: str) -> dict[str, Any]:
            return {"model": model, "usage": {"input_tokens": 1500, "output_tokens": 10}}

        with run:
            with run.step("ask"):
                run.model(asked, model="known-model")
            with run.step("ask again"):
                run.model(asked, model="other-model")
        with log.run("agent", title="no model"):
            pass

    def refold_says(*arguments: str) -> Done:
        return refold_command(*arguments, log=url, more={PRICES_ENVIRONMENT: str(own)})

    whole = refold_says("run", "show", run.id, "--json").json
    assert {key: each for key, each in whole["usage"].items() if key != "models"} == {
        "input_tokens": 3000, "cached_tokens": 0, "cache_write_tokens": 0, "output_tokens": 20, "cost_usd": 1.52,
        "unpriced": ["other-model"],
    }  # fmt: skip
    assert [(each["model"], each["cost_usd"]) for each in whole["usage"]["models"]] == [
        ("known-model", 1.52), ("other-model", None),
    ]  # fmt: skip
    assert [layer["usage"]["cost_usd"] for layer in whole["layers"]] == [1.52, None]
    shown = refold_says("run", "show", run.id).out
    assert "3,000 tokens read, 20 written; $1.52 without some: no price is known of other-model" in shown
    rows = refold_says("runs", "--usage", "--json").json
    assert [row.get("usage", {}).get("cost_usd") for row in rows] == [None, 1.52]
    assert "usage" not in refold_says("runs", "--json").json[1]
    listed = refold_says("runs", "--usage").out
    assert "$1.52+" in listed
    found = refold_says("runs", "--model", "OTHER", "--json").json
    assert [row["run"] for row in found] == [run.id]
    assert refold_says("runs", "--model", "third", "--json").json == []
