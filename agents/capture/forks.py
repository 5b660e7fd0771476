"""Captured forks: a recording answers up to the first request that it does not hold, and the provider from there on.

1. Requests are answered by the recording, as in a replay (playback.py). The first that it does not hold, and all after
   it, are sent to the provider, and captured.
2. A conversation that continues from a recorded turn becomes a fork: a run whose parent is the recorded one, and which
   diverges from it after that turn. It has the parent's turns up to there.
3. The first conversation that goes to the provider without an earlier recorded turn becomes a fork of the given run,
   which diverges before its first turn. Other conversations without a recorded turn are separate runs.

The results for the tools of the last common turn are in the fork's next request. The turn's own record is the parent's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from aiohttp import web

from refold.agents.capture.exchange import is_exchange
from refold.agents.capture.playback import RecordedUpstream
from refold.agents.capture.proxy import Proxy
from refold.agents.capture.turns import ModelReply, ModelTurn, is_answered_by, reply_of, turn_of
from refold.agents.capture.websockets import is_socket
from refold.agents.journal.record import Recording, Step


class ForkedTurn(NamedTuple):
    """A turn of a recording from which a conversation continues.

    Attributes:
        step: The number of its step; 0: before the first.
    """

    parent: Recording
    step: int
    turn: ModelTurn | None = None
    reply: ModelReply | None = None


class Parents:
    """The recordings from which conversations may continue; the given run first."""

    def __init__(self, recordings: Sequence[Recording]) -> None:
        self._first = recordings[0] if recordings else None
        self._turns = [
            ForkedTurn(each, step.number, *found)
            for each in recordings for step in each.steps if step.is_committed and (found := _turn_in(step)) is not None
        ]  # fmt: skip

    def of(self, turn: ModelTurn) -> ForkedTurn | None:
        """Return where a conversation diverges from a recording; None if it belongs to no recording."""
        first, self._first = self._first, None
        found = self.goes_on(turn)
        return found if found is not None or first is None else ForkedTurn(first, 0)

    def goes_on(self, turn: ModelTurn) -> ForkedTurn | None:
        """Return the last recorded turn that a conversation continues; None if it continues none."""
        found = [each for each in self._turns if _continues(turn, each)]
        return max(found, key=lambda each: len(each.turn.chain) if each.turn is not None else 0, default=None)


class ForkingUpstream:
    """Answers from a recording until the first other request, and then through a proxy."""

    def __init__(
        self, replaying: RecordedUpstream, proxy: Proxy, say: Callable[[str], None], *, returns: bool = False
    ) -> None:  # fmt: skip
        """Answer from a recording first.

        Args:
            replaying: The recording.
            proxy: Forwards what is not recorded.
            say: Gets the reason when the first request is forwarded.
            returns: Whether a later request that is recorded is answered from the recording again.
        """
        self._returns = returns
        self._replaying = replaying
        self._proxy = proxy
        self._say = say
        self._is_live = False

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""
        if is_socket(request):
            self._go_live("a WebSocket is not answered by a recording in part")
        if is_socket(request) or (self._is_live and not self._returns):
            return await self._proxy.handle(request)
        answered, body, why = await self._replaying.tried(request)
        if answered is not None:
            return answered
        self._go_live(why)
        return await self._proxy.handle(request, body)

    def _go_live(self, why: str) -> None:
        if not self._is_live:
            self._is_live = True
            self._say(f"live from here on: {why}")

    def malformed(self, why: str) -> web.Response:
        """As Proxy."""
        return self._proxy.malformed(why)

    def ending(self) -> None:
        """As Proxy."""
        self._proxy.ending()

    async def close(self) -> None:
        """As Proxy."""
        await self._proxy.close()


def _turn_in(step: Step) -> tuple[ModelTurn, ModelReply | None] | None:
    call = next((each for each in step.calls if each.asked.kind == "model" and is_exchange(each.asked.request)), None)
    turn = None if call is None else turn_of(call.asked.request)
    return None if turn is None or call is None else (turn, reply_of(turn.family, call.answer))


def _continues(turn: ModelTurn, recorded: ForkedTurn) -> bool:
    """Return whether a conversation begins with a recorded turn and its reply."""
    assert recorded.turn is not None
    if turn.follows:
        return recorded.reply is not None and recorded.reply.id == turn.follows
    length = len(recorded.turn.chain)
    rest = turn.messages[length:]
    return (
        recorded.reply is not None and bool(rest) and turn.chain[length - 1] == recorded.turn.chain[-1]
        and is_answered_by(turn, rest, recorded.reply)
    )  # fmt: skip
