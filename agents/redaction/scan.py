"""Redact one text: apply the rules in their order until they find nothing.

Secrets in markup: `<password>x</password>`, also escaped (`&lt;`), and `<add key="password" value="x"/>`.

`<login password="x"/>` is an assignment (context.py). A value ends before the next `<`, and a tag's attributes are read
for at most 256 characters, so that no text is read twice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

from refold.agents.redaction.commands import options_in
from refold.agents.redaction.context import assigned_in, bearers_in, scheme_of, urls_in
from refold.agents.redaction.names import Names
from refold.agents.redaction.patterns import (
    AFTER_URLS,
    BEFORE_URLS,
    GROUPS,
    KINDS,
    Finder,
    Rule,
    Span,
    matching,
    spans,
)
from refold.agents.redaction.prefilter import (
    ALL,
    AT,
    BEARER,
    ESCAPE,
    IBAN,
    KNOWN,
    NUMBER,
    OPTION,
    OWN,
    SIGN,
    TAG,
    KnownSecrets,
    hints_in,
)
from refold.agents.redaction.tokens import KIND, between_tokens, token, token_spans
from refold.avro.errors import InputError, RedactionFailed

_ELEMENT = re.compile(
    r"(?:<|&lt;)(?P<name>[\w:.-]{1,64})(?:\s[^<>&]{0,256})?(?:>|&gt;)(?:<!\[CDATA\[)?"
    r"(?P<value>(?:[^<&\]]|&(?!lt;)|\](?!\]>))++)(?=</(?P=name)\s*>|&lt;/(?P=name)\s*&gt;|\]\]>)"
)
_PAIR = re.compile(
    r"\b(?:name|key|id|type)\s{0,4}=\s{0,4}(?P<quote>\\{0,7}[\"'])(?P<name>[^\"'<>\\]{1,64})(?P=quote)"
    r"[^<>]{0,256}?\bvalue\s{0,4}=\s{0,4}(?P<other>\\{0,7}[\"'])(?P<value>[^\"'<>\\]++)(?P=other)",
    re.IGNORECASE,
)


def elements_in(text: str, names: Names) -> Iterator[Span]:
    """Yield start and end of the texts of elements, and of the values of pairs, whose name is a secret's.

    They are in order and do not overlap.
    """
    found = [
        match.span("value")
        for pattern in (_ELEMENT, _PAIR)
        for match in pattern.finditer(text)
        if names.is_secret(match["name"])
    ]
    end = 0
    for start, after in sorted(found):
        if start >= end:
            end = after
            yield start, after


SECRET = "secret"
ROUNDS_MAX = 16
_MASKS = frozenset("*•")


class RedactionRules:
    """Everything that decides what a secret is; arguments as in Redactor."""

    def __init__(
        self, names: Names, own: Mapping[str, str | re.Pattern[str] | Finder], without: Iterable[str],
        groups: Iterable[str] = (),
    ) -> None:  # fmt: skip
        off, wanted = frozenset(without), frozenset(groups)
        if unknown := off.difference(KINDS):
            raise InputError(f"without={sorted(unknown)[0]!r}: what can be left out is {', '.join(KINDS)}")
        require_groups(wanted, "groups=")
        self.names = names
        users = [_own_rule(kind, rule) for kind, rule in own.items()]
        self.before = [*users, *(each for each in BEFORE_URLS if each.kind not in off)]
        self.after = [
            *(each for each in AFTER_URLS if each.kind not in off), *(each for each in GROUPS if each.kind in wanted),
        ]  # fmt: skip
        self.hints = ALL & ~(NUMBER if not wanted else 0) & ~(IBAN if "iban" in off else 0)
        self.has_cards = "card" not in off
        # A user's own rule may find something in any text.
        self.always = OWN if users else 0


def require_groups(names: Iterable[str], said_by: str) -> None:
    """Check that all groups exist.

    Args:
        names: The names of groups.
        said_by: Where they were given, for the error message.

    Raises:
        InputError: One of them is not a group.
    """
    offered = [each.kind for each in GROUPS]
    if unknown := sorted({*names}.difference(offered)):
        raise InputError(f"{said_by}{unknown[0]!r}: what can be added is {', '.join(offered)}")


class SecretReader:
    """Redacts the texts of one tree.

    Attributes:
        named: The secrets that were found by a name or by the text around them.
    """

    def __init__(self, rules: RedactionRules, key: bytes, known: KnownSecrets) -> None:
        self.names = rules.names
        self.has_cards = rules.has_cards
        self._rules = rules
        self._key = key
        self._known = known
        self.named: list[str] = []

    def hints(self, text: str, among: int) -> int:
        """Return the hints, of those in `among`, that the text gives; 0 if nothing can be found in it."""
        hints = hints_in(text, among & self._rules.hints, self.names.endings, self._known)
        # JSON in a text may write any character as \u0000, which hides it from every other hint.
        return ALL if hints & ESCAPE else hints | self._rules.always

    def settled(self, text: str, hints: int) -> str:
        """Return the text without its secrets, redacted until no rule finds anything.

        Raises:
            RedactionFailed: A rule still finds secrets after ROUNDS_MAX rounds.
        """
        for _ in range(ROUNDS_MAX):
            found = self._redact_once(text, hints)
            if found == text:
                return text
            text = found
        raise RedactionFailed("a rule never stops finding secrets in its own output; nothing was written")

    def hidden(self, text: str) -> str:
        """Redact a text that is a secret as a whole.

        Only tokens, the white space around them and a scheme at the start remain.
        """
        if not text.strip() or _MASKS.issuperset(text):
            return text
        start = scheme_of(text)
        scheme, value = text[:start], text[start:]
        shaped = self._apply_rules(self._rules.after, self._apply_rules(self._rules.before, value, ALL), ALL)
        if shaped == value:
            self.named.append(value.strip())
            shaped = between_tokens(value, self._replace_known)
        return scheme + between_tokens(shaped, self._replace_with_token)

    def token(self, kind: str, secret: str) -> str:
        """Return the token of a secret."""
        return token(self._key, kind, secret)

    def _redact_once(self, text: str, hints: int) -> str:
        if hints & KNOWN:
            text = between_tokens(text, self._replace_known)
        text = self._apply_rules(self._rules.before, text, hints)
        if hints & AT:
            text = self._values_hidden(text, urls_in(text))
        text = self._apply_rules(self._rules.after, text, hints)
        if hints & BEARER:
            text = self._values_hidden(text, bearers_in(text))
        if hints & TAG:
            text = self._values_hidden(text, elements_in(text, self.names))
        if hints & OPTION:
            text = self._values_hidden(text, options_in(text, self.names))
        if hints & SIGN:
            text = self._values_hidden(text, assigned_in(text, self.names))
        return text

    def _apply_rules(self, rules: Iterable[Rule], text: str, hints: int) -> str:
        for rule in rules:
            if rule.needs & hints:
                text = between_tokens(text, partial(self._apply_rule, rule))
        return text

    def _apply_rule(self, rule: Rule, text: str) -> str:
        return _replace_spans(text, spans(rule, text), partial(self.token, rule.kind))

    def _replace_known(self, text: str) -> str:
        return _replace_spans(text, self._known.find(text), partial(self.token, SECRET))

    def _values_hidden(self, text: str, found: Iterable[Span]) -> str:
        # A token has a colon after its kind, and the kind may be a secret's name.
        return _replace_spans(text, _spans_outside(token_spans(text), found), self.hidden)

    def _replace_with_token(self, text: str) -> str:
        secret = text.strip()
        start = text.find(secret)
        return text[:start] + self.token(SECRET, secret) + text[start + len(secret) :] if secret else text


def _own_rule(kind: str, rule: str | re.Pattern[str] | Finder) -> Rule:
    if KIND.fullmatch(kind) is None:
        raise InputError(f"rules: {kind!r} is not a kind; give a-z, 0-9 and -, at most 32 characters, a letter first")
    if isinstance(rule, str):
        try:
            rule = re.compile(rule)
        except re.error as error:
            raise InputError(f"rules: {kind}: {error}") from error
    return Rule(kind, matching(rule) if isinstance(rule, re.Pattern) else rule, OWN)


def _replace_spans(text: str, found: Iterable[Span], change: Callable[[str], str]) -> str:
    pieces: list[str] = []
    done = 0
    for start, end in found:
        pieces += text[done:start], change(text[start:end])
        done = end
    return "".join([*pieces, text[done:]]) if pieces else text


def _spans_outside(tokens: list[Span], found: Iterable[Span]) -> Iterator[Span]:
    """Yield the spans that are not within a token. Both inputs are sorted and read once."""
    number = 0
    for start, end in found:
        while number < len(tokens) and tokens[number][1] <= start:
            number += 1
        if not (number < len(tokens) and tokens[number][0] <= start and end <= tokens[number][1]):
            yield start, end
