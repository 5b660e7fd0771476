"""Payment card numbers: an issuer's digits and length, a valid Luhn checksum, grouped as on a card or not at all.

One in ten numbers has a valid checksum, so that alone would eat order numbers and times; the issuer and the length
leave one in a hundred of the random numbers of 16 digits. Digits within a longer word of letters and digits (a
hash, a uuid) are none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from refold.agents.redaction.prefilter import DIGITS_MIN

DIGITS_MAX = 19
_SPACE = r"[ .\-\u00a0\u2009\u202f]"
_LONE = re.compile(rf"(?<![0-9])[0-9]{{{DIGITS_MIN},{DIGITS_MAX}}}(?![0-9])")
# Zero-width, so that what comes after a group that is no card's first is looked at too.
_GROUPED = re.compile(
    rf"(?<![0-9])(?=((?:[0-9]{{4}}({_SPACE})[0-9]{{4}}\2[0-9]{{4}}\2[0-9]{{4}}(?:\2[0-9]{{1,3}})?"
    rf"|[0-9]{{4}}({_SPACE})[0-9]{{6}}\3[0-9]{{4,5}}))(?![0-9]))"
)
_ISSUED = re.compile(
    r"4(?:\d{12}|\d{15}|\d{18})"  # Visa
    r"|5[1-5]\d{14}|2(?:22[1-9]|2[3-9]\d|[3-6]\d\d|7[01]\d|720)\d{12}"  # Mastercard
    r"|3[47]\d{13}"  # American Express
    r"|3(?:0[0-5]|[689]\d)\d{11}(?:\d{2,5})?"  # Diners Club
    r"|35(?:2[89]|[3-8]\d)\d{12,15}"  # JCB
    r"|6(?:011|4[4-9]\d|5\d\d)\d{12,15}"  # Discover
    r"|62\d{14,17}|220[0-4]\d{12,15}"  # UnionPay, Mir
    r"|(?:50|5[6-9]|6\d)\d{14,17}"  # Maestro
)
_DOUBLED = (0, 2, 4, 6, 8, 1, 3, 5, 7, 9)
_LETTERS_THEN_DIGIT = re.compile(r"[A-Za-z]*+[0-9]")
_UUID = re.compile(r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}")


def cards_in(text: str) -> Iterator[tuple[int, int]]:
    """Start and end of each card number in the text."""
    for match in _LONE.finditer(text):
        if is_card(match[0]) and not _is_within(text, *match.span()):
            yield match.span()
    end = 0
    for match in _GROUPED.finditer(text):
        start, after = match.span(1)
        if start >= end and is_card("".join(filter(str.isdigit, match[1]))) and not _is_within(text, start, after):
            end = after
            yield start, after


def is_card(digits: str) -> bool:
    """Whether the digits are those of a payment card."""
    if _ISSUED.fullmatch(digits) is None:
        return False
    numbers = [int(each) for each in reversed(digits)]
    return (sum(numbers[::2]) + sum(_DOUBLED[each] for each in numbers[1::2])) % 10 == 0


def _is_within(text: str, start: int, end: int) -> bool:
    """Whether the digits belong to a longer word, or to a fraction: letters may touch them on both sides, no more."""
    first = start
    while first and text[first - 1].isalpha() and text[first - 1].isascii():
        first -= 1
    before = text[first - 1 : first]
    if (before.isdigit() and before.isascii()) or _LETTERS_THEN_DIGIT.match(text, end):
        return True
    if first == start >= 2 and before == "." and text[start - 2].isdigit():
        return True
    return any(
        found.start() <= start and end <= found.end() for found in _UUID.finditer(text, max(0, start - 36), end + 36)
    )
