"""A policy at the proxy: a request to a model is checked before it is forwarded, and a denied one is not.

1. The request is read whole, and brought into its recorded form. Rules see that form, without credentials; a redactor
   of the runs is applied later.
2. The policy decides. Its facts are those of everything that passed this proxy: one program under `refold record`,
   every agent under `refold proxy`.
3. A denied request gets status 403, which no SDK tries again, with an error in the provider's own form. The exchange is
   captured like any other. The headers of the response name the policy, the rule and the reason, so the thread that
   stores it observes the denial (sessions.py).
4. An allowed request is forwarded. Its answer is counted when it ends.

Tool calls are made by the agent, and the proxy sees them only in the conversation: it cannot stop them. Nobody waits at
the proxy for a person, so a policy with a rule that asks is refused. A WebSocket is not let through, because its
messages are not requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote, unquote

import msgspec

from refold.agents.capture.exchange import Headers, Response, is_exchange
from refold.agents.capture.turns import family_of
from refold.agents.journal.record import Call, Plain, RecordedRequest
from refold.agents.policy.decision import PolicyDecision, PolicyDenied, decide
from refold.agents.policy.facts import RunFacts, title_of
from refold.agents.policy.guard import DENIED_HEADER, DENIED_STATUS, DENIED_TYPE, count_recorded
from refold.agents.policy.rules import Policy
from refold.avro.errors import InputError

RULE_HEADER, WHY_HEADER = "x-refold-rule", "x-refold-why"
_AMAZON = "x-amzn-ErrorType"


def require_no_question(policy: Policy) -> None:
    """Check that a policy can be enforced at a proxy.

    Raises:
        InputError: A rule of it asks a person.
    """
    asking = [rule.name for rule in policy.rule if rule.action == "ask"]
    if asking:
        raise InputError(
            f"policy {policy.name}, rule {asking[0]!r} asks a person, and nobody waits at a proxy: deny, or hold the "
            "agent to the policy in its own code (guard=)"
        )


class ProxyGuard:
    """A policy, and the facts of everything that passed the proxy. For use in its event loop."""

    def __init__(self, policy: Policy, started_at: int) -> None:
        """Begin without calls.

        Args:
            policy: The policy, which asks nobody.
            started_at: When the proxy began, microseconds.
        """
        self._policy = policy
        self._facts = RunFacts(policy, started_at)

    def count(self, calls: Iterable[Call]) -> None:
        """Count recorded calls, of an earlier process that is resumed."""
        for call in calls:
            if is_exchange(call.asked.request):
                count_recorded(self._facts, call, "")

    def decide(self, name: str, request: Plain) -> PolicyDecision | None:
        """Decide on a request, and count it if it is allowed.

        Args:
            name: The name of the call, such as `POST api.openai.com/v1/responses`.
            request: The request as it is recorded.

        Returns:
            The denial; None if it is allowed.
        """
        recorded = RecordedRequest(kind="model", name=name, request=request)
        decision = decide(self._policy, self._facts, recorded)
        if decision is not None and decision.action == "deny":
            self._facts.denied += 1
            return decision
        self._facts.begin(recorded, "")
        return None

    def ended(self, name: str, request: Plain, answer: Plain, started_at: int, duration_ms: float) -> None:
        """Count how an allowed request was answered.

        Args:
            name: The name of the call.
            request: The request as it is recorded.
            answer: The answer as it is recorded; None if no response came.
            started_at: When the request arrived, microseconds.
            duration_ms: How long the call took, milliseconds.
        """
        recorded = RecordedRequest(kind="model", name=name, request=request)
        self._facts.end(Call(asked=recorded, answer=answer, started_at=started_at, duration_ms=duration_ms), "")


class CountedCopy:
    """The copy of an allowed exchange, by which its answer is counted."""

    def __init__(self, guard: ProxyGuard, name: str, request: Plain, began_at: int, sent: Headers) -> None:
        """Begin without a response.

        Args:
            guard: Counts it.
            name: The name of the call.
            request: The request as it is recorded.
            began_at: When it arrived, microseconds.
            sent: The request's headers.
        """
        self._guard = guard
        self._given = name, request
        self._began_at = began_at
        self._sent = sent
        self._response: Response | None = None

    def head(self, http: str, status: int, headers: Headers, now_ms: float) -> None:
        """Begin the response, as in Response."""
        self._response = Response(self._sent, http, status, headers, now_ms)

    def add(self, data: bytes, now_ms: float) -> None:
        """Add a piece of its body."""
        if self._response is not None:
            self._response.add(data, now_ms)

    def end(self, now_ms: float) -> None:
        """Count it."""
        answer = None if self._response is None else self._response.answer()
        self._guard.ended(*self._given, answer, self._began_at, now_ms)


def denied(decision: PolicyDecision, name: str, request: Plain) -> tuple[dict[str, str], bytes]:
    """Return the headers and the body of the response to a denied request, in the form of the provider's own errors."""
    recorded = RecordedRequest(kind="model", name=name, request=request)
    message = str(PolicyDenied(decision.policy, decision.rule, title_of(recorded), decision.why))
    family = family_of(request)
    headers = {
        "Content-Type": "application/json", DENIED_HEADER: quote(decision.policy), RULE_HEADER: quote(decision.rule),
        WHY_HEADER: quote(decision.why),
    }  # fmt: skip
    tree: Any = {"error": {"message": message, "type": DENIED_TYPE, "param": None, "code": DENIED_TYPE}}
    if family == "anthropic":
        tree = {"type": "error", "error": {"type": "permission_error", "message": message}}
    elif family == "gemini":
        tree = {"error": {"code": DENIED_STATUS, "message": message, "status": "PERMISSION_DENIED"}}
    elif family == "ollama":
        tree = {"error": message}
    elif family == "converse":
        tree, headers[_AMAZON] = {"message": message}, "AccessDeniedException"
    return headers, msgspec.json.encode(tree)


def denial_in(answer: Plain) -> PolicyDecision | None:
    """Return the denial that a recorded answer is; None if it is another answer."""
    headers = answer.get("headers") if isinstance(answer, Mapping) else None
    given = {str(name).lower(): unquote(str(value)) for name, value in headers or ()}
    if not {DENIED_HEADER, RULE_HEADER} <= given.keys() or answer.get("status") != DENIED_STATUS:
        return None
    return PolicyDecision("deny", given[DENIED_HEADER], given[RULE_HEADER], given.get(WHY_HEADER, ""))
