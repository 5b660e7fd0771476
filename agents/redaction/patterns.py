"""Find secrets by their own form, wherever they are: keys, tokens with a known prefix, mail addresses, card numbers.

A rule runs only on texts that give the hint it needs (prefilter.py), so every secret that it finds must give that hint.

Numbers that name a person or an account: IBANs, US social security numbers, telephone numbers.

An IBAN has a country, the usual length of that country and two check digits (modulo 97), so it is searched by default.
A social security number or a telephone number is only digits, and one in a thousand other numbers looks like it. So
these are groups that a user switches on.

A payment card number has an issuer's prefix and length and a valid Luhn checksum. Its digits are grouped as on a card,
or not at all. One in ten numbers has a valid checksum, so the checksum alone would match order numbers and times; with
issuer and length, one in a hundred of the random numbers of 16 digits matches. Digits within a longer word of letters
and digits (a hash, a uuid) are not a card number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeAlias

from refold.agents.redaction.prefilter import ARMOUR, AT, DIGITS, DIGITS_MIN, IBAN, NUMBER, RUN, RUN_CHARACTERS_MIN
from refold.avro.errors import RedactionFailed

DIGITS_MAX = 19
_SPACE = r"[ .\-\u00a0\u2009\u202f]"
_LONE = re.compile(rf"(?<![0-9])[0-9]{{{DIGITS_MIN},{DIGITS_MAX}}}(?![0-9])")
# Zero-width, so that digits after a group that does not start a card number are examined too.
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
    """Yield start and end of each card number in the text."""
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
    """Return whether the digits are those of a payment card."""
    if _ISSUED.fullmatch(digits) is None:
        return False
    numbers = [int(each) for each in reversed(digits)]
    return (sum(numbers[::2]) + sum(_DOUBLED[each] for each in numbers[1::2])) % 10 == 0


def _is_within(text: str, start: int, end: int) -> bool:
    """Return whether the digits belong to a longer word or to a fraction. Letters may touch them, digits not."""
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


_LENGTHS = {
    15: "NO", 16: "BE", 18: "DK FI FK FO GL NL SD", 19: "MK SI", 20: "AT BA EE KZ LT LU MN XK", 21: "CH HR LI LV",
    22: "BG BH CR DE GB GE IE ME RS VA", 23: "AE GI IL IQ OM SO TL", 24: "AD CZ ES MD PK RO SA SE SK TN VG",
    25: "LY PT ST", 26: "IS TR", 27: "BI DJ FR GR IT MC MR SM", 28: "AL AZ BY CY DO GT HN HU LB NI PL SV",
    29: "BR EG PS QA UA", 30: "JO KW MU YE", 31: "MT SC", 32: "LC", 33: "RU",
}  # fmt: skip
_LENGTH_OF = {country: length for length, countries in _LENGTHS.items() for country in countries.split()}
_LENGTH_MAX = max(_LENGTHS)
# In one piece, or in groups of four with the same separator between them.
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
    """Yield start and end of each IBAN in the text."""
    place = 0
    while match := _IBAN.search(text, place):
        start, end = match.span()
        place = end
        found = _iban_end(text, start, end)
        if found is None:
            place = start + 4  # an IBAN may begin in the rest
        else:
            yield start, found
            place = found


def _iban_end(text: str, start: int, end: int) -> int | None:
    """Return where the IBAN that begins at `start` ends, or None. Capital words after it may look like its groups."""
    length = _LENGTH_OF.get(text[start : start + 2])
    if length is None:
        return None
    left = length
    for at in range(start, end):
        left -= text[at] not in " \u00a0-"
        if not left:
            is_whole = at + 1 == end or text[at + 1] in " \u00a0-"
            return at + 1 if is_whole and _has_valid_checksum(text[start : at + 1].translate(_SPACES)) else None
    return None


def _has_valid_checksum(iban: str) -> bool:
    return int("".join(str(int(each, 36)) for each in iban[4:] + iban[:4])) % 97 == 1


def ssns_in(text: str) -> Iterator[tuple[int, int]]:
    """Return start and end of each US social security number in the text."""
    return (match.span() for match in _SSN.finditer(text))


def phones_in(text: str) -> Iterator[tuple[int, int]]:
    """Return start and end of each telephone number in the text."""
    return (match.span() for match in _PHONE.finditer(text))


Span: TypeAlias = tuple[int, int]
Finder: TypeAlias = Callable[[str], Iterable[Span]]
"""Takes a text and returns start and end of each secret in it."""


class Rule(NamedTuple):
    """One kind of secret.

    Attributes:
        needs: The hint that every text with such a secret gives.
    """

    kind: str
    find: Finder
    needs: int


def matching(pattern: re.Pattern[str]) -> Finder:
    """Return a finder for a regular expression. It finds the first group if there is one, else the whole match."""
    group = 1 if pattern.groups else 0

    def find(text: str) -> Iterator[Span]:
        return (match.span(group) for match in pattern.finditer(text) if match[group])

    return find


def spans(rule: Rule, text: str) -> list[Span]:
    """Return where a rule finds secrets, in order and without overlaps.

    Raises:
        RedactionFailed: The rule's function raised, or returned a position outside of the text. The message does not
            contain the text.
    """
    try:
        found = sorted((int(start), int(end)) for start, end in rule.find(text))
    except Exception as error:  # from a user's function; its message may quote the text
        failed = f"raised {type(error).__name__}"
    else:
        if all(0 <= start <= end <= len(text) for start, end in found):
            return _without_overlaps(found)
        failed = "gave a place outside of the text"
    raise RedactionFailed(f"the rule {rule.kind!r} {failed}; nothing was written, and the text is not shown")


def _without_overlaps(found: list[Span]) -> list[Span]:
    apart: list[Span] = []
    for start, end in found:
        if apart and start < apart[-1][1]:
            apart[-1] = apart[-1][0], max(end, apart[-1][1])
        elif start < end:
            apart.append((start, end))
    return apart


_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----|\Z)",
    re.DOTALL,
)
_JWT_CHARACTERS = re.compile(rf"[\w.-]{{{RUN_CHARACTERS_MIN},}}+", re.ASCII)

# A key's prefix, and what follows it. Each has RUN_CHARACTERS_MIN word characters in a row, which gives the hint RUN.
_ANYWHERE = (
    (r"[spr]k_(?:live|test)_", r"\w{10,}"),  # Stripe
    (r"whsec_", r"\w{16,}"),
    (r"gh[pousr]_", r"[0-9A-Za-z]{20,}"),  # GitHub
    (r"github_pat_", r"\w{20,}"),
    (r"glpat-", r"[\w-]{20,}"),  # GitLab
    (r"xox[a-z]-", r"[\w-]{11,}"),  # Slack
    (r"xapp-", r"[\w-]{11,}"),
    (r"hooks\.slack\.com/services/", r"[\w/]{20,}"),
    (r"AKIA", r"[0-9A-Z]{16}"),  # AWS
    (r"ASIA", r"[0-9A-Z]{16}"),
    (r"AIza", r"[\w-]{35}"),  # Google
    (r"ya29\.", r"[\w-]{20,}"),
    (r"GOCSPX-", r"[\w-]{20,}"),
    (r"npm_", r"[0-9A-Za-z]{36}"),
    (r"pypi-", r"[\w-]{50,}"),
    (r"gsk_", r"[0-9A-Za-z]{40,}"),  # Groq
    (r"xai-", r"[0-9A-Za-z]{40,}"),
    (r"pplx-", r"[0-9A-Za-z]{40,}"),  # Perplexity
    (r"SG\.", r"[\w-]{16,}\.[\w-]{16,}"),  # SendGrid
    (r"dop_v1_", r"[0-9a-f]{60,}"),  # DigitalOcean
    (r"shp(?:at|ca|pa|ss)_", r"[0-9a-fA-F]{32}"),  # Shopify
    (r"lin_api_", r"\w{30,}"),  # Linear
    (r"tskey-", r"[\w-]{20,}"),  # Tailscale
    (r"AGE-SECRET-KEY-1", r"[0-9A-Z]{50,}"),
)
# Other words end in these prefixes (task-, desk-), so they count only at the beginning of a word.
_FIRST_IN_A_WORD = (
    (r"sk-", r"[\w-]{16,}"),  # OpenAI, Anthropic and many like them
    (r"hf_", r"[0-9A-Za-z]{30,}"),  # Hugging Face
    (r"r8_", r"[0-9A-Za-z]{30,}"),  # Replicate
    (r"SK", r"[0-9a-f]{32}(?![0-9a-f])"),  # Twilio
    (r"dapi", r"[0-9a-f]{32}"),  # Databricks
    (r"ntn_", r"[0-9A-Za-z]{40,}"),  # Notion
    (r"hvs\.", r"[\w-]{24,}"),  # Vault
)
_PREFIX = re.compile("|".join(prefix for prefix, _ in (*_ANYWHERE, *_FIRST_IN_A_WORD)))
_API_KEY = re.compile(
    "|".join(
        [*(prefix + rest for prefix, rest in _ANYWHERE)]
        + [rf"(?<![0-9A-Za-z]){prefix}{rest}" for prefix, rest in _FIRST_IN_A_WORD]
    ),
    re.ASCII,
)


def _api_keys_in(text: str) -> Iterable[Span]:
    # Searching for the prefixes takes a tenth of the time of searching for whole keys, which are rare.
    return matching(_API_KEY)(text) if _PREFIX.search(text) else ()


def _jwts_in(text: str) -> Iterator[Span]:
    """Find parts separated by dots, of which the first contains `eyJ` and at least thirteen characters after it.

    Each character of a run is read once. A regular expression that searches for `eyJ` would read on from each of them.
    """
    for match in _JWT_CHARACTERS.finditer(text):
        if "eyJ" not in match[0]:
            continue
        parts = match[0].split(".")
        start, number = match.start(), 0
        while number < len(parts):
            part, count = parts[number], 1
            found = part.find("eyJ")
            if 0 <= found <= len(part) - RUN_CHARACTERS_MIN and number + 2 < len(parts):
                count = min(5, len(parts) - number)
                yield start + found, start + sum(map(len, parts[number : number + count])) + count - 1
            start += sum(map(len, parts[number : number + count])) + count
            number += count


# The first group starts at the beginning of a run, so no run is examined twice. %40 is an @ in a URL. A quote belongs
# to an address only in names such as O'Neill and D'Angelo; otherwise quotes enclose addresses. At most two quotes are
# allowed: an address may begin after each, and with any number allowed, the rest would be read again from each.
_DOMAIN = r"(?:@|%40)(?:[\w-]++\.)+(?:xn--[a-z0-9-]+|[^\W\d_]{2,})"
_EMAIL = re.compile(rf"(?<![\w.+-])[.+-]*+(\w[\w.+-]*+(?:(?<=[oOdD])(?<!\w[oOdD])'[\w.+-]*+){{0,2}}+{_DOMAIN})")
# The quoted name may contain anything; it has 64 characters at most (RFC 5321).
_QUOTED_EMAIL = re.compile(rf'(\\{{0,3}}"(?:[^"\\\r\n]|\\[^\r\n"]){{1,64}}\\{{0,3}}"{_DOMAIN})')


def _emails_in(text: str) -> Iterator[Span]:
    for match in _EMAIL.finditer(text):
        # git@host:path names a repository.
        if not (match[1].startswith("git@") and text[match.end() : match.end() + 1] == ":"):
            yield match.span(1)
    if '"@' in text or '"%40' in text:
        yield from (match.span(1) for match in _QUOTED_EMAIL.finditer(text))


BEFORE_URLS = (
    Rule("private-key", matching(_PRIVATE_KEY), ARMOUR),
    Rule("jwt", _jwts_in, RUN),
    Rule("api-key", _api_keys_in, RUN),
)
"""These rules run before the users and hosts of URLs are searched."""
AFTER_URLS = (Rule("iban", ibans_in, IBAN), Rule("email", _emails_in, AT), Rule("card", cards_in, DIGITS))
KINDS = tuple(each.kind for each in (*BEFORE_URLS, *AFTER_URLS))
GROUPS = (Rule("ssn", ssns_in, NUMBER), Rule("phone", phones_in, NUMBER))
"""Other numbers look like these too, so they are searched only if a user asks for it."""
