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

The result of a tree does not depend on what was redacted before it. So a replay, which makes its requests in another
order and from other threads, makes the same requests. The exception is `shown`, which receives the run's input and the
answers to its calls: the secrets that are named there are known in everything after. The code can have them from there,
and in a replay it gets the token from there.

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

    Args:
        key: The key of the tokens, at least 16 bytes. Without one, a run uses the log's key; outside of a run, a
            generated key is used, whose tokens match nothing outside of this object.
        names: Further names of secrets.
        left: Names that are not those of secrets.
        secrets: The texts that are secrets everywhere.
        rules: The user's own rules, by the kind in their tokens: a regular expression, whose first group is the secret
            if it has one, or a function that takes a text and returns (start, end) of each secret in it.
        without: The kinds not to search (email, iban, card, api-key, jwt, private-key).
        groups: The kinds to search in addition, although other numbers look like them (ssn, phone).

    Raises:
        InputError: An argument is invalid.
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
        """Support pickle: the object is created again from its arguments. Functions as rules must be in a module."""
        return partial(type(self), self._key if self._is_keyed else None, **self._given), ()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    def __call__(self, tree: Plain) -> Plain:
        """Return the tree without its secrets.

        Args:
            tree: A JSON tree. It is not changed. Times, decimals, uuids, Blob and Sealed may be in it, and stay.

        Returns:
            A redacted copy; the tree itself if it holds no secret.

        Raises:
            RedactionFailed: The tree could not be redacted; the message contains nothing of it.
        """
        return closed(lambda tree: self._redact_tree(tree, self._known)[0], tree)

    def shown(self, tree: Plain) -> Plain:
        """Redact a value that the code got from outside, and know its named secrets from now on.

        Arguments, result and errors are those of a call.
        """

        def known(tree: Plain) -> Plain:
            found, named = self._redact_tree(tree, self._known)
            self._known = self._known.extended(named)
            return found

        return closed(known, tree)

    def exchange(self, request: Plain, outcome: Plain) -> tuple[Plain, Plain]:
        """Redact a request, as a call does, and its result, as `shown` does. Secrets named in the request are known in
        both.

        A tool that receives a password may quote it in its answer or its error. If it does, the secret stays known.

        Args:
            request: The request.
            outcome: The result of the request.

        Returns:
            Both, redacted.

        Raises:
            RedactionFailed: One of them could not be redacted.
        """

        def both(pair: Plain) -> Plain:
            redacted, named = self._redact_tree(request, self._known)
            found, more = self._redact_tree(outcome, self._known.extended(named))
            # Only held secrets are searched, or the work would grow with the square of the named ones.
            texts = "\n".join(look(outcome, self._rules.names)[:2]) if named else ""
            asking = self._known.extended(named).shown if named else ()
            self._known = self._known.extended([*more, *(each for each in asking if each in texts)])
            return redacted, found

        asked, found = closed(both, None)
        return asked, found

    def for_answers_to(self, request: Plain) -> Redact:
        """Return a function that redacts as a call does, and also knows the secrets named in the request."""

        def knowing(tree: Plain) -> Plain:
            _, named = self._redact_tree(request, self._known)
            return self._redact_tree(tree, self._known.extended(named))[0]

        return partial(closed, knowing)

    def for_run(self, key: Callable[[], bytes]) -> Redactor:
        """Return a redactor for one run of a log, independent of other runs.

        Args:
            key: Returns the log's key. It is called only if this redactor was created without a key.
        """
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        if not self._is_keyed:
            other._key, other._is_keyed = checked(key()), True
        return other

    def _redact_tree(self, tree: Plain, known: KnownSecrets) -> tuple[Plain, list[str]]:
        """Return the tree without its secrets, and the secrets that are named in it."""
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


class ClosedRedactor:
    """Wraps a user's own function so that it can be used as a Redactor; its errors become RedactionFailed."""

    def __init__(self, redact: Redact) -> None:
        self._redact = redact
        self.is_redacting = redact is not unredacted

    def __call__(self, tree: Plain) -> Plain:
        """Return the function's result for the tree.

        Raises:
            RedactionFailed: The function raised.
        """
        return closed(self._redact, tree)

    def shown(self, tree: Plain) -> Plain:
        """Same as a call."""
        return self(tree)

    def exchange(self, request: Plain, outcome: Plain) -> tuple[Plain, Plain]:
        """Return the function's results for both."""
        return self(request), self(outcome)

    def for_answers_to(self, request: Plain) -> Redact:
        """Return this object: the function does not depend on the request."""
        return self


RunRedactor: TypeAlias = Redactor | ClosedRedactor
"""Redacts one run; it may learn more secrets as the run proceeds."""


def groups_in(environment: Mapping[str, str]) -> list[str]:
    """Return the groups that REFOLD_REDACTION_GROUPS lists, for the command line.

    Args:
        environment: The environment variables.

    Raises:
        InputError: A group does not exist.
    """
    names = [each.strip() for each in environment.get(GROUPS_ENVIRONMENT, "").split(",") if each.strip()]
    require_groups(names, f"{GROUPS_ENVIRONMENT}: ")
    return names


def for_run(redact: Redact, key: Callable[[], bytes]) -> RunRedactor:
    """Return the redactor of one run of a log.

    Args:
        redact: A Redactor, or a user's own function.
        key: Returns the log's key; called only if it is needed.
    """
    return redact.for_run(key) if isinstance(redact, Redactor) else as_of_run(redact)


def unredacted(tree: Plain) -> Plain:
    """Return the tree unchanged: all of it may be written."""
    return tree


def is_redacting(redact: Redact | None) -> bool:
    """Return whether the function may remove anything."""
    return (
        redact.is_redacting if isinstance(redact, ClosedRedactor) else redact is not None and redact is not unredacted
    )


def as_of_run(redact: Redact) -> RunRedactor:
    """Wrap a user's function for use in a run; return the same object if it can be used already."""
    return redact if isinstance(redact, (Redactor, ClosedRedactor)) else ClosedRedactor(redact)


def closed(redact: Redact, tree: Plain) -> Plain:
    """Return the function's result for the tree.

    Raises:
        RedactionFailed: The function raised any exception. The message contains nothing of the tree.
    """
    try:
        return redact(tree)
    except RedactionFailed as error:
        failed = str(error)
    except Exception as error:  # of any kind: a value that cannot be redacted is not written
        failed = (
            f"redaction failed ({type(error).__name__}); nothing was written, and what it failed on is not shown: call "
            "the redactor on the value by hand to see"
        )
    # Outside of the handler, so that the original error, which may quote a secret, is not stored as context.
    raise RedactionFailed(failed)
