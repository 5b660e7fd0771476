"""Decide which names mean that their value is a secret: api_key, X-Api-Key, OPENAI_API_KEY and dbPassword alike.

Names are compared by their letters and digits only, in lower case. Words for a password are also known in other
languages: Passwort, mot de passe, contraseña, senha, wachtwoord.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Mapping

from refold.agents.journal.record import Plain
from refold.agents.redaction.prefilter import Endings

ENDINGS = (
    "password", "passwd", "passphrase", "passcode", "passwordhash", "secret", "secrets", "apikey", "apikeys",
    "accesskey", "secretkey", "privatekey", "signingkey", "encryptionkey", "credential", "credentials",
    "accesstokens", "refreshtokens", "token", "cookie", "cookies", "securitycode",
)  # fmt: skip
# Words for a password, each with and without its accents. A secret's name ends in one of these.
FOREIGN_ENDINGS = (
    "passwort", "passwörter", "kennwort", "kennwörter", "losungswort", "zugangscode",  # German
    "motdepasse", "motsdepasse", "codesecret", "phrasesecrète", "phrasesecrete",  # French
    "contraseña", "contrasena", "contraseñas", "contrasenas", "clavedeacceso", "clavesecreta",  # Spanish
    "paroladordine", "parolasegreta", "codicesegreto", "chiavesegreta",  # Italian
    "palavrapasse", "senhaatual", "novasenha", "senhasecreta", "suasenha", "minhasenha",  # Portuguese
    "wachtwoord", "wachtwoorden", "toegangscode", "geheimewoord",  # Dutch
    "lösenord", "losenord", "adgangskode", "passord", "salasana",  # Swedish, Danish, Norwegian, Finnish
    "пароль", "пароля", "密码", "密碼", "パスワード", "비밀번호",
)  # fmt: skip
# Other words end in these (resenha is a review), so they count only as the whole name.
FOREIGN_WHOLE = frozenset({"senha", "mdp", "heslo", "hasło", "haslo", "şifre", "sifre"})
WHOLE = frozenset({
    "pass", "pwd", "auth", "authorization", "proxyauthorization", "authheader", "authorizationheader", "basicauth",
    "httpauth", "cvv", "cvv2", "cvc", "cvc2", "pin", "pincode", "otp", "totp", "ssn", "socialsecuritynumber",
})  # fmt: skip
# Page tokens of listings, and what language models call tokens.
HARMLESS_ENDINGS = (
    "pagetoken", "nexttoken", "continuationtoken", "continuetoken", "synctoken", "starttoken", "stoptoken", "endtoken",
    "bostoken", "eostoken", "padtoken", "unktoken", "septoken", "clstoken", "masktoken", "firsttoken", "lasttoken",
    "pertoken", "specialtoken",
)  # fmt: skip
_SEPARATORS = re.compile(r"[\W_]+")
# Some systems write accents in JSON as a letter and a separate accent. Only hints see these; `normal` drops every
# character that is not a letter or a digit, which leaves the word without its accent.
_DECOMPOSED = tuple(
    found for each in (*FOREIGN_ENDINGS, *FOREIGN_WHOLE) if (found := unicodedata.normalize("NFD", each)) != each
)
_ALL_ENDINGS = (*ENDINGS, *FOREIGN_ENDINGS)
_ALL_WHOLE = WHOLE | FOREIGN_WHOLE
_CACHED_MAX = 4096


class Names:
    """The names of secrets.

    Args:
        added: Further names of secrets.
        left: Names that are not those of secrets.
    """

    def __init__(self, added: Collection[str] = (), left: Collection[str] = ()) -> None:
        self._added = frozenset(map(normal, added))
        self._left = frozenset(map(normal, left))
        self._known_names: dict[str, bool] = {}
        self._harmless: set[str] = set()
        self.endings = Endings([*_ALL_ENDINGS, *_ALL_WHOLE, *_DECOMPOSED, *self._added])

    def is_secret(self, name: str) -> bool:
        """Return whether the value under this name is a secret."""
        known = self._known_names.get(name)
        if known is None:
            known = self._is_secret(normal(name))
            if len(self._known_names) < _CACHED_MAX and len(name) < 100:
                self._known_names[name] = known
                if not known:
                    self._harmless.add(name)
        return known

    def are_harmless(self, names: Collection[object]) -> bool:
        """Return whether none of the names is a secret's."""
        return self._harmless.issuperset(names) or not any(
            isinstance(each, str) and self.is_secret(each) for each in names
        )

    def _is_secret(self, name: str) -> bool:
        if name in self._left:
            return False
        if name in self._added or name in _ALL_WHOLE:
            return True
        return name.endswith(_ALL_ENDINGS) and not name.endswith(HARMLESS_ENDINGS)


def is_of_a_model(name: str, siblings: Mapping[str, Plain]) -> bool:
    """Return whether a `token` is a piece of a model's text: the same object also has its probability."""
    return "logprob" in siblings and normal(name) == "token"


def normal(name: str) -> str:
    """Return the name's letters and digits, in lower case."""
    return _SEPARATORS.sub("", name.lower())
