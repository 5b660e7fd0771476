"""Actions that write from the pages. They exist only if the explorer was started with --write.

    POST /do/mark      name                                       POST /do/pin       run, take_back
    POST /do/flag      run, reason, take_back                     POST /do/settle    effect, fate, result, note
    POST /do/approve   question, reason                           POST /do/deny      question, reason
    POST /do/agent     agent, desired, reason

1. A form on a page posts to /do/NAME. refold's web server refuses a post that another site caused (header Origin).
2. The action opens the log for writing, writes, flushes and closes it. So the explorer does not remain its owner.
3. One thread runs all actions, one after the other.
4. The response redirects to the page that the form was on, as of now. `back` must be a path on this server.
5. The observations name the user who runs the explorer's process, as those of the command line do.
"""

from __future__ import annotations

import getpass
import time
from collections.abc import Callable, Mapping
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

from refold.agents.effects.errors import NotDone
from refold.agents.effects.order import Done
from refold.agents.log import AgentLog
from refold.agents.retention.marks import flag, pin, unflag, unpin
from refold.agents.supervise.entries import AgentEntries
from refold.agents.supervise.lease import DESIRED
from refold.agents.supervise.listing import known_agent
from refold.avro.errors import InputError
from refold.avro.strict_json import json_or_text
from refold.explorer.queries.log_target import LogTarget

CONTENT_BYTES_MAX = 65_536
_OF_A_CUT = ("at", "to")


class ActionForm:
    """The fields of a posted form."""

    def __init__(self, content: bytes) -> None:
        """
        Args:
            content: The posted form.

        Raises:
            InputError: The form is longer than CONTENT_BYTES_MAX bytes.
        """
        if len(content) > CONTENT_BYTES_MAX:
            raise InputError(f"a form has at most {CONTENT_BYTES_MAX:,} bytes")
        self._fields = parse_qs(content.decode(errors="replace"), keep_blank_values=True)

    def get(self, name: str) -> str:
        """Return a field without surrounding spaces; empty if the form does not have it."""
        return self._fields.get(name, [""])[0].strip()

    def need(self, name: str) -> str:
        """Return a required field.

        Raises:
            InputError: The field is missing or empty.
        """
        if not (found := self.get(name)):
            raise InputError(f"the form needs the field {name}")
        return found

    @property
    def back(self) -> str:
        """The address of the page that the form was on, as of now.

        Raises:
            InputError: It is not a page of this server.
        """
        parts = urlsplit(self.get("back") or "/")
        if parts.scheme or parts.netloc or not parts.path.startswith("/") or "\\" in parts.path:
            raise InputError("the field back names a page of this server, such as /operate")
        kept = [(name, value) for name, value in parse_qsl(parts.query) if name not in _OF_A_CUT]
        return parts.path + (f"?{urlencode(kept)}" if kept else "")


def _mark(log: AgentLog, form: ActionForm) -> None:
    log.mark(form.need("name"))


def _flag(log: AgentLog, form: ActionForm) -> None:
    run = form.need("run")
    if form.get("take_back"):
        unflag(log, run)
    else:
        flag(log, log.vault, run, form.get("reason"))


def _pin(log: AgentLog, form: ActionForm) -> None:
    run = form.need("run")
    if form.get("take_back"):
        unpin(log, run)
    else:
        pin(log, log.vault, run)


def _settle(log: AgentLog, form: ActionForm) -> None:
    fate = form.need("fate")
    if fate not in ("done", "not_done"):
        raise InputError(f"fate: done or not_done, given {fate!r:.40}")
    found = Done(json_or_text(form.need("result"))) if fate == "done" else NotDone()
    log.effects.settle(form.need("effect"), found, by=getpass.getuser(), note=form.get("note"))


def _answer(log: AgentLog, form: ActionForm, *, is_approved: bool) -> None:
    log.answer(form.need("question"), is_approved=is_approved, by=getpass.getuser(), reason=form.get("reason"))


def _agent(log: AgentLog, form: ActionForm) -> None:
    name, desired, now = form.need("agent"), form.need("desired"), time.time_ns() // 1000
    if desired not in DESIRED:
        raise InputError(f"desired: one of {', '.join(DESIRED)}, given {desired!r:.40}")
    known_agent(log, name, now)
    AgentEntries(log, lambda: now).request(name, desired, getpass.getuser(), form.get("reason"))


ACTIONS: Mapping[str, Callable[[AgentLog, ActionForm], None]] = {
    "mark": _mark,
    "flag": _flag,
    "pin": _pin,
    "settle": _settle,
    "agent": _agent,
    "approve": lambda log, form: _answer(log, form, is_approved=True),
    "deny": lambda log, form: _answer(log, form, is_approved=False),
}


def act(target: LogTarget, name: str, content: bytes) -> str:
    """Run the action that a form posts to, and return the address to redirect to.

    Args:
        target: The log.
        name: The action, one of ACTIONS.
        content: The form, as browsers post it.

    Raises:
        InputError: There is no such action, or the form does not fit it.
        RefoldError: The log cannot be written, or refuses the data.
    """
    if name not in ACTIONS:
        raise InputError(f"/do/{name:.40}: there are {', '.join(ACTIONS)}")
    form = ActionForm(content)
    back = form.back
    with target.write(make=False) as log:
        ACTIONS[name](log, form)
    return back
