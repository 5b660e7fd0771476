"""The time of a redaction grows linearly with the text, for any two pieces of what the patterns search for.

Times on the same machine are compared. A text fails if TIMES as much of it takes more than BOUND times as long, three
times in a row, each time the best of three in processor time. Quadratic growth would take TIMES squared.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest

from refold.agents.redaction.commands import options_in
from refold.agents.redaction.context import assigned_in, bearers_in, urls_in
from refold.agents.redaction.names import Names
from refold.agents.redaction.patterns import AFTER_URLS, BEFORE_URLS, GROUPS
from refold.agents.redaction.prefilter import ALL, KnownSecrets, hints_in
from refold.agents.redaction.redactor import Redactor
from refold.agents.redaction.scan import elements_in
from refold.agents.redaction.tokens import between_tokens, token_spans
from refold.avro.errors import RedactionFailed

pytestmark = pytest.mark.outside

KEY = b"0123456789abcdef"
NAMES = Names()
KNOWN = KnownSecrets(["correct-horse-9", "a" * 60 + "b"])
FINDERS: dict[str, Callable[[str], object]] = {
    **{rule.kind: lambda text, rule=rule: [*rule.find(text)] for rule in (*BEFORE_URLS, *AFTER_URLS, *GROUPS)},  # type: ignore[misc]
    "url": lambda text: [*urls_in(text)],
    "bearer": lambda text: [*bearers_in(text)],
    "assigned": lambda text: [*assigned_in(text, NAMES)],
    "element": lambda text: [*elements_in(text, NAMES)],
    "option": lambda text: [*options_in(text, NAMES)],
    "known": KNOWN.find,
    "hints": lambda text: hints_in(text, ALL, NAMES.endings, KNOWN),
    "tokens": lambda text: (between_tokens(text, str), token_spans(text)),
}
FRAGMENTS = [
    # names and commands
    "password", "key='", "cookie:", "authorization: ", "bearer ", "mot de passe", "curl ", "mysql", "--password ",
    "-u=",
    # quotes, escapes, separators, brackets, tags
    '"', "'", "\\", '\\"', "=", ":", " ", "\n", ",", "|", "://", "@", "%40", ".", "_", "-", "[", "{", "](", "<", "</",
    "&lt;", "<a>", "]", 'name="pin" value=',
    # digits, base64, keys, tokens, addresses
    "1", "4111111111111111", "4111 ", "+1 ", "DE89 ", "078-05-1120", "eyJ", "QUJD", "sk-", "SG.", "-----BEGIN ",
    "PRIVATE KEY", "-----END ", "[email:0123456789abcdef0123]", "a", "é", "o'", "b@x.org", '"a b"@', "http://u:p@h",
]  # fmt: skip
SMALL, TIMES, BOUND, TRIES, WORTH_S = 125, 8, 24, 3, 0.000_06


def texts(first: str, second: str) -> Iterable[Callable[[int], str]]:
    """Return functions from a size to a text: the two pieces in alternation, and all of the first before the second."""
    yield lambda size: (first + second) * (size // len(first + second))
    yield lambda size: first * (size // 2 // len(first)) + second * (size // 2 // len(second))


def seconds(work: Callable[[], object], best_of: int = 1) -> float:
    """Return the least processor time of this thread that the work takes."""
    taken = []
    for _ in range(best_of):
        begun = time.thread_time()
        work()
        taken.append(time.thread_time() - begun)
    return min(taken)


def is_linear(work: Callable[[Any], object], of: Callable[[int], Any], size: int, times: int, bound: float) -> bool:
    """Return whether `times` as much takes at most `bound` times as long; each try uses twice the size."""
    for number in range(TRIES):
        small, large = of(size << number), of((size << number) * times)
        if seconds(partial(work, large), 3) <= bound * seconds(partial(work, small), 3):
            return True
    return False


def test_every_pattern_is_linear_on_any_two_pieces() -> None:
    """Run every finder on all ordered pairs, in alternation and in sequence. Slow-looking pairs are measured again."""
    bad = []
    for first in FRAGMENTS:
        for second in FRAGMENTS:
            for form, of in enumerate(texts(first, second)):
                small, large = of(SMALL), of(SMALL * TIMES)
                for name, find in FINDERS.items():
                    taken = seconds(partial(find, large))
                    looks_slow = taken > WORTH_S and taken > BOUND * seconds(partial(find, small))
                    if looks_slow and not is_linear(find, of, 4 * SMALL, TIMES, BOUND):
                        bad.append((name, first, second, form))
    assert bad == []


def redacted(tree: Any) -> object:
    """Return the result. A text that does not settle is refused, which is a result, too."""
    try:
        return Redactor(KEY, secrets=["correct-horse-9"], groups=["ssn", "phone"]).exchange(tree, tree)
    except RedactionFailed:
        return None


TREES: dict[str, Callable[[int], Any]] = {
    "quoted passwords": lambda size: 'password=\\"' * (size // 11),
    "tokens and passwords": lambda size: "http://u:p@h b@x.org password='x1' " * (size // 33),
    "cards": lambda size: "4111111111111111a" * (size // 17),
    "words": lambda size: ["--password", "hunter2", "curl", "-u", "bob:x"] * (size // 20),
    "pairs": lambda size: [["authorization", f"x{number}"] for number in range(size // 20)],
    "names": lambda size: {f"password{number}_token": f"secret number {number}" for number in range(size // 20)},
    "members": lambda size: [{"name": "password", "value": f"secret number {number}"} for number in range(size // 20)],
    "json": lambda size: '[{"token": "x", "logprob": 1, "a": [["pin", "1"]]}' + ', {"token": "x"}' * (size // 15) + "]",
    "known": lambda size: [{"password": "a" * (size // 4) + "b"}, "a" * size],
    "long quotes": lambda size: "password=" + "\\" * (size // 2) + '"' + "\\" * (size // 2),
    "many quotes": lambda size: "key='" + "".join(f'password={chr(92) * (at % 60)}"' for at in range(size // 40)),
}


def test_whole_trees_are_redacted_in_linear_time() -> None:
    assert [name for name, of in TREES.items() if not is_linear(redacted, of, 4_000, 4, 9)] == []


def test_long_text_of_quoted_passwords_is_fully_redacted() -> None:
    redact = Redactor(KEY)
    found = redact('password=\\"hunter2\\" ' * 2_000)
    assert found == f'password=\\"{redact({"pin": "hunter2"})["pin"]}\\" ' * 2_000
