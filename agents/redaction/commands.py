"""Find secrets in the options of commands: `--password x`, `curl -u bob:x`, `mysql -px`, in a text or a list of words.

1. A long option whose name is a secret's (`--password x`, `--api-key=x`, `-storepass x`) has a secret value.
2. The meaning of a short option depends on its command, so it counts only after that command: `-p` is a password for
   mysql and a port for docker.
3. A value that only shows where a secret belongs is not a secret: `$PASSWORD`, `<password>`, `PASSWORD`, a word of
   prose.

A text is read in one pass: what was taken as a value is not read again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from refold.agents.redaction.names import Names, normal
from refold.agents.redaction.patterns import Span
from refold.agents.redaction.tokens import TOKEN_PATTERN


class Option(NamedTuple):
    """How an option takes its secret.

    Attributes:
        sign: The sign that separates the user's name from the secret after it; empty if there is no user's name.
        is_attached: Whether the value may follow the option directly (-px).
        is_apart: Whether the value may be separate (-p x).
    """

    sign: str = ""
    is_attached: bool = True
    is_apart: bool = True


class _Value(NamedTuple):
    """Where an option's value is, after the user's name.

    Attributes:
        is_secret: Whether it is a secret, as opposed to a placeholder.
    """

    start: int
    end: int
    is_secret: bool


_SECRET = Option()
_APART = Option(is_attached=False)
_ATTACHED = Option(is_apart=False)
_USER = Option(":")
_TABLE: tuple[tuple[str, dict[str, Option]], ...] = (
    ("curl", {"u": _USER, "U": _USER, "user": _USER, "proxy-user": _USER}),
    ("mysql mysqldump mysqladmin mysqlimport mysqlshow mysqlsh mariadb mariadb-dump mariadb-admin 7z",
     {"p": _ATTACHED}),
    ("sshpass", {"p": _SECRET}),
    ("docker_login podman_login nerdctl_login buildah_login helm_registry_login az_login oc_login cf_login "
     "mongo mongosh mongodump mongorestore mongoexport mongoimport", {"p": _APART}),
    ("redis-cli", {"a": _APART}),
    ("ldapsearch ldapadd ldapmodify ldapdelete ldapwhoami ldappasswd", {"w": _SECRET}),
    ("zip unzip sqlcmd ipmitool mosquitto_pub mosquitto_sub", {"P": _SECRET}),
    ("smbclient", {"U": Option("%")}),
    ("lftp", {"u": Option(",")}),
)  # fmt: skip
# A command of several words has _ between them in the table.
_COMMANDS = {
    name if name.startswith("mosquitto") else name.replace("_", " "): options
    for names, options in _TABLE
    for name in names.split()
}
# Names that mean a secret only as options, not in other places.
_OPTION_NAMES = frozenset({"storepass", "keypass", "srcstorepass", "deststorepass", "passin", "passout", "userpass"})
_FIRST_WORDS = frozenset(each.split()[0] for each in _COMMANDS)
_ANY_COMMAND = "|".join(
    re.escape(each).replace(r"\ ", r"[ ]{1,4}") for each in sorted(_COMMANDS, key=len, reverse=True)
)
_PART = re.compile(
    r"(?P<end>(?<!\\)\n|;|&&|\s\|)"
    rf"|(?<![\w.-])(?P<command>{_ANY_COMMAND})(?![\w-])"
    r"|(?<![\w-])(?P<dashes>--?)(?P<name>[A-Za-z][\w-]{0,63})"
)
# What separates an option from its value. The third alternative is how a list of words is printed.
_APART_BY = re.compile(r"=|[ \t]+(?:\\\r?\n[ \t]*)?|\\\r?\n[ \t]*|(?:\\{0,7}[\"'])[ \t]*,\s*(?=\\{0,7}[\"'])", re.ASCII)
_QUOTE = re.compile(r"\\{0,7}[\"']")
_BARE = re.compile(rf"(?:{TOKEN_PATTERN}|[^\s\"'`|;&<>()\[\]{{}},])+")
_PLACEHOLDER = re.compile(r"\$\{?\w+\}?|\$\(.*|%\w|<[^>]*>?|\{.*|\[[^\]]*\]|[A-Z_]+|\.+|[*•]+", re.DOTALL)
_PROSE = frozenset({
    "a", "also", "and", "are", "argument", "arguments", "as", "at", "be", "but", "by", "can", "cannot", "could",
    "default", "do", "does", "either", "field", "file", "flag", "flags", "for", "from", "has", "have", "if", "in",
    "instead", "into", "is", "it", "may", "must", "no", "nor", "not", "of", "on", "only", "option", "options", "or",
    "over", "parameter", "parameters", "prompt", "set", "should", "so", "that", "the", "then", "there", "this", "to",
    "used", "using", "value", "via", "was", "when", "where", "which", "will", "with", "without", "would", "you",
    "your",
})  # fmt: skip
_LIST_NAME = re.compile(r"--?([A-Za-z][\w-]{0,63})(=?)")


def options_in(text: str, names: Names) -> Iterator[Span]:
    """Yield start and end of the values of secret options, in order and without overlaps.

    Args:
        text: The text of one or more commands, or any text that contains commands.
        names: Decides which names are secrets'.
    """
    command = ""
    place = 0
    while match := _PART.search(text, place):
        place = match.end()
        if ended := match["end"]:
            # A header's value has a semicolon: curl -H 'Accept: a; b' -u bob:x.
            command = command if ended == ";" and command == "curl" else ""
        elif match["command"]:
            command = " ".join(match["command"].split())
        else:
            value = _value(text, match, command, names)
            if value is not None:
                place = max(place, value.end)
                if value.is_secret:
                    yield value.start, value.end


def hidden_words(words: Sequence[Any], names: Names) -> dict[int, int]:
    """Return the secrets in a list of words.

    A secret is the word after `--password` or `Authorization:`, or the value of a command's short option.

    Returns:
        For each secret, its index in the list, and the character at which the secret begins in that word.
    """
    found: dict[int, int] = {}
    command = ""
    for at, word in enumerate(words):
        if type(word) is not str or at in found:
            continue
        has_next = at + 1 < len(words) and not isinstance(words[at + 1], (dict, list, tuple))
        if word[:1] == "-":
            _take_option(found, words, at, command, names, has_next=has_next)
        elif word[-1:] == ":" and has_next and len(word) < 64 and names.is_secret(word[:-1]):
            found[at + 1] = 0
        else:
            command = _command_with(command, word.rpartition("/")[2])
    return found


def _take_option(
    found: dict[int, int], words: Sequence[Any], at: int, command: str, names: Names, *, has_next: bool
) -> None:
    word, following = words[at], words[at + 1] if has_next else None
    match = _LIST_NAME.match(word)
    if match is None:
        return
    name = match[1]
    option = None if word.startswith("--") else _short(command, name)
    if option is not None and name not in _COMMANDS.get(command, {}) and option.is_attached:
        _take(found, at, word, 2, option.sign)
        return
    if option is None:
        option = _long(command, name, names, is_double=word.startswith("--"))
    if option is None:
        return
    if match[2]:
        _take(found, at, word, match.end(), option.sign)
    elif match.end() == len(word) and option.is_apart and following is not None:
        _take(found, at + 1, following, 0, option.sign)


def _take(found: dict[int, int], at: int, word: Any, start: int, sign: str) -> None:
    if not isinstance(word, str):
        found[at] = 0
        return
    if word.startswith("-", start):
        return
    cut = _secret_end(sign, word, start, len(word))
    if cut is not None:
        found[at] = cut


def _command_with(command: str, word: str) -> str:
    """Return the command after one more word: `docker`, then `docker login`."""
    longer = f"{command} {word}".strip()
    if command and command not in _COMMANDS and longer in ("helm registry", *_COMMANDS):
        return longer
    return word if word in _FIRST_WORDS else command


def _value(text: str, match: re.Match[str], command: str, names: Names) -> _Value | None:
    """Return the value of an option; None if it has no value, or if its name is not a secret's."""
    name, is_double = match["name"], match["dashes"] == "--"
    by = _APART_BY.match(text, match.end())
    option = None if is_double else _short(command, name)
    if option is not None and (len(name) > 1 or by is None):
        is_flags = name[0] not in _COMMANDS[command]  # as in -sSu: the last flag takes the value
        if is_flags and by is not None:
            return _value_at(text, by.end(), option)
        return _value_at(text, match.start("name") + 1, option) if option.is_attached and not is_flags else None
    if option is None:
        option = _long(command, name, names, is_double=is_double)
    if option is None or by is None or not option.is_apart:
        return None
    return _value_at(text, by.end(), option, may_be_prose=by[0] != "=" and not command, is_double=is_double)


def _short(command: str, name: str) -> Option | None:
    """Find a command's short option: alone (-u), with its value (-ubob:x), or as the last of several (-su)."""
    options = _COMMANDS.get(command)
    if options is None:
        return None
    if name[0] in options:
        return options[name[0]]
    return options.get(name[-1]) if len(name) <= 6 and name.isalpha() else None


def _long(command: str, name: str, names: Names, *, is_double: bool) -> Option | None:
    option = _COMMANDS.get(command, {}).get(name) if is_double else None
    if option is not None:
        return option
    if name.startswith("no-"):
        return None
    return _SECRET if names.is_secret(name) or normal(name) in _OPTION_NAMES else None


def _value_at(
    text: str, start: int, option: Option, *, may_be_prose: bool = False, is_double: bool = True
) -> _Value | None:
    """Return the value that begins at `start`. may_be_prose: the value may be a word of a sentence."""
    if text.startswith(("-", "${", "$("), start):
        return None
    quote = _QUOTE.match(text, start)
    value = _quoted(quote[0]).match(text, quote.end()) if quote else _BARE.match(text, start)
    if value is None:
        return None
    is_word = not quote and may_be_prose and (
        value[0].rstrip(".:!?").lower() in _PROSE or (not is_double and value[0].isalpha())
    )  # fmt: skip
    cut = None if is_word or _PLACEHOLDER.fullmatch(value[0]) else _secret_end(option.sign, text, *value.span())
    is_secret = cut is not None and cut < value.end()
    return _Value(value.start() if cut is None else cut, value.end(), is_secret)


def _secret_end(sign: str, text: str, start: int, end: int) -> int | None:
    """Return where the secret begins, after the user's name. A colon within a token does not end the name."""
    if not sign:
        return start
    found = _users_name(sign).match(text, start, end)
    return found.end() if found else None


@lru_cache(maxsize=32)
def _quoted(quote: str) -> re.Pattern[str]:
    return re.compile(rf"(?:(?!{re.escape(quote)})[^\n])+")


@lru_cache(maxsize=8)
def _users_name(sign: str) -> re.Pattern[str]:
    return re.compile(rf"(?:{TOKEN_PATTERN}|(?!{TOKEN_PATTERN})[^{re.escape(sign)}])*+{re.escape(sign)}")
