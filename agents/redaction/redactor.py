"""What of a JSON tree must not be written is replaced by tokens, before anything is written.

    redact = Redactor(key)
    redact({"user": "bob@example.com", "password": "hunter2"})
    {"user": "[email:3d1f...]", "password": "[secret:90ab...]"}

1. One look at all names, and at all texts as one, says whether there can be anything (prefilter.py); mostly there
   cannot, and the tree is given back itself.
2. Of a value under a secret's name (names.py) all texts and numbers are replaced, at any depth below it. `Bearer` and
   its like stay in front of it.
3. In every other text, and in every key, are replaced: secrets that are known (known.py), the user's own rules, secrets
   of a form of their own (patterns.py), secrets that the words around them give away (context.py). That is done again
   until nothing is found, so redacting twice is redacting once (scan.py).
4. A text that is a JSON object or list is treated as the tree it is, and keeps its layout (walk.py).
5. What the first walk met under a name is known in the whole tree: where there is such, the tree is walked once more.

The same tree gives the same whatever was redacted before it, so that a replay, which asks in another order and from
other threads, asks for the same. What a run was given (its input, the answers to its calls) is taken up by `shown`, and
known in all that comes after: there the code can have it from, and in a replay it has the token from there.

A secret has one token wherever it stands and however it was found, also as a part of a text: what an agent makes of
the tokens in a replay then equals the redacted form of what it made of the secrets themselves.

Anything that raises on the way becomes RedactionFailed, which says where it failed and nothing of what was there, and
the write does not take place. What did not change is not copied.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeAlias

from refold.agents.journal.record import Plain
from refold.agents.redaction.known import KnownSecrets
from refold.agents.redaction.names import Names
from refold.agents.redaction.patterns import Finder
from refold.agents.redaction.prefilter import ALL
from refold.agents.redaction.scan import RedactionRules, SecretReader, require_groups
from refold.agents.redaction.tokens import checked, fresh_key
from refold.agents.redaction.walk import Walk, look
from refold.avro.errors import RedactionFailed

GROUPS_ENVIRONMENT = "REFOLD_REDACTION_GROUPS"

Redact: TypeAlias = Callable[[Plain], Plain]
"""Takes a JSON tree, gives what may be written of it; raises where that cannot be told."""


class Redactor:
    """Replaces secrets in JSON trees by tokens. May be called from any thread.

    key: 16 bytes or more; without one the log's own where a run is given the redactor, else a fresh one, whose tokens
    match nothing outside of this object. names: further names of secrets; left: names that are none. secrets: texts
    that are secrets wherever they stand. rules: the user's own, by the kind that their tokens show: a regular
    expression, whose first group is the secret if it has one, or a function that takes a text and gives (start, end)
    of each secret in it. without: kinds that are not looked for (email, iban, card, api-key, jwt, private-key). groups:
    kinds that are looked for as well, though other numbers look like them (ssn, phone). InputError where one of these
    is none.
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
        """For pickle: it is made again of what it was given; rules that are functions have to be of a module."""
        return partial(type(self), self._key if self._is_keyed else None, **self._given), ()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    def __call__(self, tree: Plain) -> Plain:
        """The tree without its secrets; itself where it holds none. RedactionFailed.

        tree: a JSON tree; times, decimals, uuids, Blob and Sealed may stand in it, and stay. Nothing is changed in it.
        """
        return closed(lambda tree: self._redacted(tree, self._known)[0], tree)

    def shown(self, tree: Plain) -> Plain:
        """As by a call, of what the code has from outside: what is named a secret in it is known from now on."""

        def known(tree: Plain) -> Plain:
            found, named = self._redacted(tree, self._known)
            self._known = self._known.extended(named)
            return found

        return closed(known, tree)

    def exchange(self, request: Plain, outcome: Plain) -> tuple[Plain, Plain]:
        """A request, as by a call, and what came of it, as by `shown`; what the request names a secret is known in it.

        A tool that is given a password may quote it in its answer, or in its error. From then on it is known for good.
        """

        def both(pair: Plain) -> Plain:
            asked, named = self._redacted(request, self._known)
            found, more = self._redacted(outcome, self._known.extended(named))
            # Only what is held is searched for, or the work grows with the square of what is named.
            texts = "\n".join(look(outcome, self._rules.names)[:2]) if named else ""
            asking = self._known.extended(named).shown if named else ()
            self._known = self._known.extended([*more, *(each for each in asking if each in texts)])
            return asked, found

        asked, found = closed(both, None)
        return asked, found

    def beside(self, request: Plain) -> Redact:
        """What redacts knowing what the request names a secret."""

        def knowing(tree: Plain) -> Plain:
            _, named = self._redacted(request, self._known)
            return self._redacted(tree, self._known.extended(named))[0]

        return partial(closed, knowing)

    def for_run(self, key: Callable[[], bytes]) -> Redactor:
        """One for a run of a log: it knows nothing of others, and takes the log's key where it has none."""
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
        """What the function makes of the tree. RedactionFailed."""
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
"""What redacts one run: it knows more and more."""


def groups_in(environment: Mapping[str, str]) -> list[str]:
    """The groups that the environment asks for, for the command line. InputError where one of them is none."""
    asked = [each.strip() for each in environment.get(GROUPS_ENVIRONMENT, "").split(",") if each.strip()]
    require_groups(asked, f"{GROUPS_ENVIRONMENT}: ")
    return asked


def for_run(redact: Redact, key: Callable[[], bytes]) -> RunRedactor:
    """What redacts one run of a log. key: gives the log's, where it is needed."""
    return redact.for_run(key) if isinstance(redact, Redactor) else as_of_run(redact)


def unredacted(tree: Plain) -> Plain:
    """All of it may be written."""
    return tree


def is_redacting(redact: Redact | None) -> bool:
    """Whether anything may be kept out by it."""
    return redact.is_redacting if isinstance(redact, Closed) else redact is not None and redact is not unredacted


def as_of_run(redact: Redact) -> RunRedactor:
    """The same object where it is one for a run already."""
    return redact if isinstance(redact, (Redactor, Closed)) else Closed(redact)


def closed(redact: Redact, tree: Plain) -> Plain:
    """What it makes of the tree; whatever it raises is RedactionFailed without anything of the tree."""
    try:
        return redact(tree)
    except RedactionFailed as error:
        failed = str(error)
    except Exception as error:  # of any sort: what is not surely redacted is not written
        failed = (
            f"redaction failed ({type(error).__name__}); nothing was written, and what it failed on is not shown: call "
            "the redactor on the value by hand to see"
        )
    # Outside of the handler, so that what may quote a secret is not kept as this error's context.
    raise RedactionFailed(failed)
