"""Numbers that name a person or an account: IBANs, US social security numbers, telephone numbers.

An IBAN has a country, the length that is usual there and two check digits (modulo 97), so it is found without being
asked for. A social security number and a telephone number are nothing but digits: one in a thousand other numbers looks
like them, so they are groups that a user switches on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_LENGTHS = {
    15: "NO", 16: "BE", 18: "DK FI FK FO GL NL SD", 19: "MK SI", 20: "AT BA EE KZ LT LU MN XK", 21: "CH HR LI LV",
    22: "BG BH CR DE GB GE IE ME RS VA", 23: "AE GI IL IQ OM SO TL", 24: "AD CZ ES MD PK RO SA SE SK TN VG",
    25: "LY PT ST", 26: "IS TR", 27: "BI DJ FR GR IT MC MR SM", 28: "AL AZ BY CY DO GT HN HU LB NI PL SV",
    29: "BR EG PS QA UA", 30: "JO KW MU YE", 31: "MT SC", 32: "LC", 33: "RU",
}  # fmt: skip
_LENGTH_OF = {country: length for length, countries in _LENGTHS.items() for country in countries.split()}
_LENGTH_MAX = max(_LENGTHS)
# In one piece, or in groups of four with the same sign between them.
_IBAN = re.compile(
    rf"(?<![0-9A-Za-z])[A-Z]{{2}}[0-9]{{2}}(?:[0-9A-Z]{{11,{_LENGTH_MAX - 4}}}(?![0-9A-Za-z])"
    r"|([ \u00a0-])(?:[0-9A-Z]{4}\1){1,7}[0-9A-Z]{1,4}(?![0-9A-Za-z]))"
)
_SSN = re.compile(r"(?<![\w.-])(?!000|666|9)[0-9]{3}([ -])(?!00)[0-9]{2}\1(?!0000)[0-9]{4}(?![\w-]|\.[0-9])")
_PHONE = re.compile(
    r"(?<![\w.+-])(?:"
    r"(?:\+|00)[1-9](?:[ .()/-]{0,2}[0-9]){6,14}"  # international
    r"|(?:\([2-9][0-9]{2}\) ?|[2-9][0-9]{2}[ .-])[2-9][0-9]{2}[ .-][0-9]{4}"  # North America
    r"|(?![0-9]{3}-[0-9]{2}-[0-9]{4}\b)\(?0[1-9][0-9]{1,4}\)?[ /-][0-9]{2,5}(?:[ -]?[0-9]){2,8}"  # national
    r")(?![\w-]|\.[0-9])"
)
_SPACES = str.maketrans("", "", " \u00a0-")


def ibans_in(text: str) -> Iterator[tuple[int, int]]:
    """Start and end of each IBAN in the text."""
    place = 0
    while match := _IBAN.search(text, place):
        start, end = match.span()
        place = end
        found = _iban_end(text, start, end)
        if found is None:
            place = start + 4  # what follows may begin one
        else:
            yield start, found
            place = found


def _iban_end(text: str, start: int, end: int) -> int | None:
    """Where the IBAN ends that begins at a place; words in capitals after it may look like groups of it."""
    length = _LENGTH_OF.get(text[start : start + 2])
    if length is None:
        return None
    left = length
    for at in range(start, end):
        left -= text[at] not in " \u00a0-"
        if not left:
            is_whole = at + 1 == end or text[at + 1] in " \u00a0-"
            return at + 1 if is_whole and _is_checked(text[start : at + 1].translate(_SPACES)) else None
    return None


def _is_checked(iban: str) -> bool:
    return int("".join(str(int(each, 36)) for each in iban[4:] + iban[:4])) % 97 == 1


def ssns_in(text: str) -> Iterator[tuple[int, int]]:
    """Start and end of each US social security number in the text."""
    return (match.span() for match in _SSN.finditer(text))


def phones_in(text: str) -> Iterator[tuple[int, int]]:
    """Start and end of each telephone number in the text."""
    return (match.span() for match in _PHONE.finditer(text))
