"""A policy at the proxy: a denied request does not reach the provider, and the denial is recorded."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from refold.agents.policy.guard import is_denial
from refold.avro.errors import InputError
from refold.policy import Policy, check
from refold_tests.captures import capturing, log_of
from refold_tests.model_server import ModelServer, model_server

pytestmark = pytest.mark.outside

POLICY = """
name = "Büro"

[[rule]]
name = "dear models"
model = "POST *"
args.model.like = "large*"
why = "too dear"

[[rule]]
name = "dear models by their path"
model = "POST *:generateContent"

[[rule]]
name = "dear models by their path, at Amazon"
model = "POST */converse"

[budget]
model_calls = 2
"""
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
    "responses": ("/v1/responses", {"input": "b"}),
    "anthropic": ("/v1/messages", {"messages": [{"role": "user", "content": "c"}], "max_tokens": 1}),
    "gemini": ("/v1beta/models/large:generateContent", {"contents": [{"role": "user", "parts": [{"text": "d"}]}]}),
    "ollama": ("/api/chat", {"messages": [{"role": "user", "content": "e"}]}),
    "converse": ("/model/large/converse", {"messages": [{"role": "user", "content": [{"text": "f"}]}]}),
}
SAID = "policy Büro, rule "


class Answer(NamedTuple):
    """The answer to one request."""

    status: int
    headers: dict[str, str]
    tree: Any


class Outcome(NamedTuple):
    """What agents got through the proxy, and what reached the provider."""

    denied: dict[str, Answer]
    allowed: list[Answer]
    requests: list[Any]
    folder: Path


def ask(url: str, path: str, tree: Any, **headers: str) -> Answer:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=120)
    connection.request("POST", path, json.dumps(tree), {"Content-Type": "application/json", **headers})
    found = connection.getresponse()
    content = found.read()
    connection.close()
    return Answer(found.status, {name.lower(): value for name, value in found.getheaders()}, json.loads(content))


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with model_server() as server:
        yield server


@pytest.fixture(scope="module")
def held(server: ModelServer, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    folder = tmp_path_factory.mktemp("policy")
    with capturing(folder, server.url, policy=Policy.parse(POLICY)) as captured:
        denied = {
            name: ask(captured.url, path, {"model": "large-2", **tree}) for name, (path, tree) in FAMILIES.items()
        }
        path, tree = FAMILIES["chat"]
        allowed = [ask(captured.url, path, {"model": "small", **tree}) for _ in range(3)]
    return Outcome(denied, allowed, list(server.requests), folder)


@pytest.mark.parametrize("family", FAMILIES)
def test_denied_request_gets_an_error_in_the_providers_form(held: Outcome, family: str) -> None:
    status, headers, tree = held.denied[family]
    assert (status, headers["content-type"]) == (403, "application/json")
    if family in ("chat", "responses"):
        assert (tree["error"]["type"], tree["error"]["code"]) == ("policy_denied", "policy_denied")
        message = tree["error"]["message"]
    elif family == "anthropic":
        assert (tree["type"], tree["error"]["type"]) == ("error", "permission_error")
        message = tree["error"]["message"]
    elif family == "gemini":
        assert (tree["error"]["code"], tree["error"]["status"]) == (403, "PERMISSION_DENIED")
        message = tree["error"]["message"]
    elif family == "ollama":
        message = tree["error"]
    else:
        assert headers["x-amzn-errortype"] == "AccessDeniedException"
        message = tree["message"]
    assert message.startswith(SAID + "'dear models")


def test_only_allowed_requests_reach_the_provider_and_count(held: Outcome) -> None:
    assert [each.status for each in held.allowed] == [200, 200, 403]
    assert held.allowed[2].tree["error"]["message"] == (
        "policy Büro, rule 'budget.model_calls': model POST 127.0.0.1/v1/chat/completions is denied: 2 of 2 are used"
    )
    assert len(held.requests) == 2


def test_each_denial_is_an_observation_of_its_step(held: Outcome) -> None:
    with log_of(held.folder) as log:
        denials = log.rebuild(types=["audit_event"])
        rows = [denials[name].fields for name in denials]
        assert len(rows) == len(FAMILIES) + 1
        assert {row["actor"] for row in rows} == {"Büro"}
        assert {row["reason"] for row in rows} >= {"too dear", "2 of 2 are used"}
        for row in rows:
            run, _, number = row["step"].rpartition("#")
            step = log.recording(run).steps[int(number) - 1]
            assert is_denial(step.calls[0])
            assert row["details"]["request_hash"] == step.calls[0].asked.hash
        # A policy test of the captured runs knows what was denied.
        every = [each for row in log.runs() for each in check(Policy.parse("name = 'n'"), log.recording(row.run))]
        assert sum(each.was_denied for each in every) == len(FAMILIES) + 1


def test_policy_that_asks_for_approval_is_refused(server: ModelServer, tmp_path: Path) -> None:
    asking = Policy.parse("name = 'p'\n[[rule]]\nname = 'r'\nmodel = '*'\naction = 'ask'")
    with pytest.raises(InputError, match="nobody waits at a proxy"), capturing(tmp_path, server.url, policy=asking):
        pass


def test_websocket_is_refused(server: ModelServer, tmp_path: Path) -> None:
    with capturing(tmp_path, server.url, policy=Policy.parse("name = 'p'")) as captured:
        connection = http.client.HTTPConnection(captured.url.removeprefix("http://"), timeout=120)
        connection.request("GET", "/v1/responses", headers={
            "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
        })  # fmt: skip
        found = connection.getresponse()
        assert found.status == 403
        assert "the messages of a WebSocket are none" in json.loads(found.read())["message"]
        connection.close()
