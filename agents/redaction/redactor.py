"""Replace secrets in a JSON tree by tokens, before anything is written.

    redact = Redactor(key)
    redact({"user": "bob@example.com", "password": "hunter2"})
    {"user": "[email:3d1f...]", "password": "[secret:90ab...]"}

1. One scan of all names, and of all texts as one, decides whether there can be any secret (prefilter.py); mostly there
   cannot, and the tree itself is returned.
2. In a value with the name of a secret (names.py) all texts and numbers are replaced, at any depth. `Bearer` and the
   like stay before the token.
3. In every other text, and in every key, these are replaced: known secrets (prefilter.py), matches of the user's own
   rules, secrets with a form of their own (patterns.py), and secrets that the surrounding words reveal (context.py).
   This repeats until nothing is found, so redacting twice equals redacting once (scan.py).
4. A text that is a JSON object or list is treated as the tree it is, and keeps its layout (walk.py).
5. Secrets that the first walk found by a name are then known in the whole tree: if there are any, the tree is walked
   once more.

The same tree gives the same result whatever was redacted before it, so that a replay, which requests in another order
and from other threads, makes the same requests. The run's input, and the answers to its calls, are passed to `shown`;
their secrets are known in everything after: the code can have them from there, and in a replay it has the token from
there.

A secret has one token in every place, however it was found, also as a part of a text: so what an agent computes from
the tokens in a replay equals the redacted form of what it computed from the secrets.

Any exception becomes RedactionFailed, which says where it failed and nothing of the content, and the write does not
happen. Unchanged parts are not copied.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeAlias

from refold.agents.journal.record import Plain
from refold.agents.redaction.names import Names
from refold.agents.redaction.patterns import Finder
from refold.agents.redaction.prefilter import ALL, KnownSecrets
from refold.agents.redaction.scan import RedactionRules, SecretReader, require_groups
from refold.agents.redaction.tokens import checked, fresh_key
from refold.agents.redaction.walk import Walk, look
from refold.avro.errors import RedactionFailed

GROUPS_ENVIRONMENT = "REFOLD_REDACTION_GROUPS"

Redact: TypeAlias = Callable[[Plain], Plain]
"""Maps a JSON tree to the tree that may be written; raises if that is unknown."""


class Redactor:
    """Replaces secrets in JSON trees by tokens. May be called from any thread.

    key: 16 bytes or more; without one, the log's own if a run is given the redactor, else a generated one, whose tokens
    match nothing outside of this object. names: further names of secrets; left: names that are not. secrets: texts that
    are secrets everywhere. rules: the user's own, by the kind in their tokens: a regular expression, whose first group
    is the secret if it has one, or a function that takes a text and returns (start, end) of each secret in it. without:
    kinds not to search (email, iban, card, api-key, jwt, private-key). groups: kinds to search in addition, although
    other numbers look like them (ssn, phone). InputError if one of these is invalid.
    """

    def __init__(
        self,
        key: bytes | None = None,
        *,
        names: Iterable[str] = (),
        left: Iterable[str] = (),
        secrets: Iterable[str] = (),
        rules: Mapping[str, str | re.Pattern[str] | Finder] | None = None,
        without: Iterable[str] = (),
        groups: Iterable[str] = (),
    ) -> None:
        given = {"names": [*names], "left": [*left], "secrets": [*secrets], "without": [*without], "groups": [*groups]}
        self._given: dict[str, Any] = {**given, "rules": rules}
        self._is_keyed = key is not None
        self._key = fresh_key() if key is None else checked(key)
        self._rules = RedactionRules(
            Names(given["names"], given["left"]), rules or {}, given["without"], given["groups"]
        )
        self._known = KnownSecrets(each for each in given["secrets"] if each)

    def __reduce__(self) -> tuple[Callable[[], Redactor], tuple[()]]:
        """For pickle: it is made again from its arguments; rules that are functions must be in a module."""
        return partial(type(self), self._key if self._is_keyed else None, **self._given), ()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    def __call__(self, tree: Plain) -> Plain:
        """Return the tree without its secrets; the tree itself if it holds none. RedactionFailed.

        tree: a JSON tree; times, decimals, uuids, Blob and Sealed may be in it, and stay. It is not changed.
        """
        return closed(lambda tree: self._redacted(tree, self._known)[0], tree)

    def shown(self, tree: Plain) -> Plain:
        """As a call, for values that the code got from outside: their named secrets are known from now on."""

        def known(tree: Plain) -> Plain:
            found, named = self._redacted(tree, self._known)
            self._known = self._known.extended(named)
            return found

        return closed(known, tree)

    def exchange(self, request: Plain, outcome: Plain) -> tuple[Plain, Plain]:
        """Redact a request, as by a call, and its result, as by `shown`; secrets named in the request are known in
        both.

        A tool that is given a password may quote it in its answer, or in its error. From then on it stays known.
        """

        def both(pair: Plain) -> Plain:
            asked, named = self._redacted(request, self._known)
            found, more = self._redacted(outcome, self._known.extended(named))
            # Only held secrets are searched, or the work would grow with the square of the named ones.
            texts = "\n".join(look(outcome, self._rules.names)[:2]) if named else ""
            asking = self._known.extended(named).shown if named else ()
            self._known = self._known.extended([*more, *(each for each in asking if each in texts)])
            return asked, found

        asked, found = closed(both, None)
        return asked, found

    def beside(self, request: Plain) -> Redact:
        """Return a redactor that also knows the secrets named in the request."""

        def knowing(tree: Plain) -> Plain:
            _, named = self._redacted(request, self._known)
            return self._redacted(tree, self._known.extended(named))[0]

        return partial(closed, knowing)

    def for_run(self, key: Callable[[], bytes]) -> Redactor:
        """Return a redactor for a run of a log: it knows nothing of others, and uses the log's key if it has none."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        if not self._is_keyed:
            other._key, other._is_keyed = checked(key()), True
        return other

    def _redacted(self, tree: Plain, known: KnownSecrets) -> tuple[Plain, list[str]]:
        """The tree without its secrets, and the secrets that are named in it."""
        keys, texts, is_telling = look(tree, self._rules.names)
        reading = SecretReader(self._rules, self._key, known)
        key_hints, hints = reading.hints(keys, ALL), reading.hints(texts, ALL)
        if not (key_hints or hints or is_telling):
            return tree, []
        found = Walk(reading, key_hints, hints).tree(tree)
        after = known.extended(reading.named)
        if after is not known:
            reading = SecretReader(self._rules, self._key, after)
            found = Walk(reading, reading.hints(keys, ALL), reading.hints(texts, ALL)).tree(tree)
        return found, reading.named


class Closed:
    """A user's own function in a Redactor's place, its errors closed in."""

    def __init__(self, redact: Redact) -> None:
        self._redact = redact
        self.is_redacting = redact is not unredacted

    def __call__(self, tree: Plain) -> Plain:
        """Return the function's result for the tree. RedactionFailed."""
        return closed(self._redact, tree)

    def shown(self, tree: Plain) -> Plain:
        """The same."""
        return self(tree)

    def exchange(self, request: Plain, outcome: Plain) -> tuple[Plain, Plain]:
        """The same of both."""
        return self(request), self(outcome)

    def beside(self, request: Plain) -> Redact:
        """The same."""
        return self


RunRedactor: TypeAlias = Redactor | Closed
"""Redacts one run: it knows more and more secrets."""


def groups_in(environment: Mapping[str, str]) -> list[str]:
    """Return the groups in the environment, for the command line. InputError if one of them is invalid."""
    asked = [each.strip() for each in environment.get(GROUPS_ENVIRONMENT, "").split(",") if each.strip()]
    require_groups(asked, f"{GROUPS_ENVIRONMENT}: ")
    return asked


def for_run(redact: Redact, key: Callable[[], bytes]) -> RunRedactor:
    """Return the redactor of one run of a log. key: returns the log's, if needed."""
    return redact.for_run(key) if isinstance(redact, Redactor) else as_of_run(redact)


def unredacted(tree: Plain) -> Plain:
    """All of it may be written."""
    return tree


def is_redacting(redact: Redact | None) -> bool:
    """Whether anything may be kept out by it."""
    return redact.is_redacting if isinstance(redact, Closed) else redact is not None and redact is not unredacted


def as_of_run(redact: Redact) -> RunRedactor:
    """Return the same object if it is one for a run already."""
    return redact if isinstance(redact, (Redactor, Closed)) else Closed(redact)


def closed(redact: Redact, tree: Plain) -> Plain:
    """Return its result for the tree; any exception becomes RedactionFailed without any content of the tree."""
    try:
        return redact(tree)
    except RedactionFailed as error:
        failed = str(error)
    except Exception as error:  # of any kind: a value that may not be redacted is not written
        failed = (
            f"redaction failed ({type(error).__name__}); nothing was written, and what it failed on is not shown: call "
            "the redactor on the value by hand to see"
        )
    # Outside of the handler, so that what may quote a secret is not kept as this error's context.
    raise RedactionFailed(failed)
