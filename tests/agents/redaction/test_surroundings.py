"""Secrets that are found by the text around them: tags, options of commands, words of other languages, list items."""

from __future__ import annotations

import gzip
import io
import json
import re
import tarfile
import unicodedata
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.agents.redaction.prefilter import KnownSecrets
from refold.agents.redaction.redactor import Redactor
from refold.explorer.cli.runs.code import redactor_for
from refold_tests.absent import without

KEY = b"0123456789abcdef"
TOKEN = re.compile(r"\[([a-z-]+):[0-9a-f]{20}\]")


def seen(tree: Any, **options: Any) -> Any:
    """Return the redacted tree, with only the kinds of the tokens."""
    redact = Redactor(KEY, **options)
    found = redact(tree)
    assert redact(found) == found, "redacting twice is redacting once"
    return json.loads(TOKEN.sub(r"[\1]", json.dumps(found, ensure_ascii=False)))


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("<password>x</password>", "<password>[secret]</password>"),
        ("<db:Password type='t'>hunter two</db:Password>", "<db:Password type='t'>[secret]</db:Password>"),
        ("&lt;apiKey&gt;x&amp;y&lt;/apiKey&gt;", "&lt;apiKey&gt;[secret]&lt;/apiKey&gt;"),
        ("<token><![CDATA[x<]]></token>", "<token><![CDATA[x<]]></token>"),
        ("<token><![CDATA[x]]></token>", "<token><![CDATA[[secret]]]></token>"),
        ("<login user='bob' password='x'/>", "<login user='bob' password='[secret]'/>"),
        ('<add key="DbPassword" value="x y"/>', '<add key="DbPassword" value="[secret]"/>'),
        ('<input type="password" size="9" value="x">', '<input type="password" size="9" value="[secret]">'),
        ("deploy --password x --user bob", "deploy --password [secret] --user bob"),
        ("deploy --password=x", "deploy --password=[secret]"),
        ("deploy --api-key 'x y' --token \"z\"", "deploy --api-key '[secret]' --token \"[secret]\""),
        ("deploy --password \\\n  hunter2", "deploy --password \\\n  [secret]"),
        ("run(['deploy', '--password', 'x'])", "run(['deploy', '--password', '[secret]'])"),
        ("java -storepass changeit1 -jar x", "java -storepass [secret] -jar x"),
        ("curl -u bob:x http://example.org", "curl -u bob:[secret] http://example.org"),
        ("curl -sSu 'bob:x' -H 'A: b; c' -U p:y z", "curl -sSu 'bob:[secret]' -H 'A: b; c' -U p:[secret] z"),
        ("curl -ubob:x z; curl --user bob:x", "curl -ubob:[secret] z; curl --user bob:[secret]"),
        ("curl -u bob@example.org:x z", "curl -u [email]:[secret] z"),
        ("mysql -uroot -px shop", "mysql -uroot -p[secret] shop"),
        ("mysqldump -h db -p'x y' shop | gzip", "mysqldump -h db -p'[secret]' shop | gzip"),
        ("sshpass -p x ssh bob@h", "sshpass -p [secret] ssh bob@h"),
        ("docker login -u bob -p x r.example.org", "docker login -u bob -p [secret] r.example.org"),
        ("redis-cli -a x ping", "redis-cli -a [secret] ping"),
        ('to "a b"@example.org!', "to [email]!"),
        ('{"to": "\\"a b\\"@example.org"}', '{"to": "[email]"}'),
        ("Passwort: hunter2!", "Passwort: [secret]"),
        ("mot de passe : hunter2", "mot de passe : [secret]"),
        ("mot_de_passe='x'", "mot_de_passe='[secret]'"),
        ("contraseña=hunter2, contrasena: 'x'", "contraseña=[secret], contrasena: '[secret]'"),
        (unicodedata.normalize("NFD", "contraseña='x'"), unicodedata.normalize("NFD", "contraseña='[secret]'")),
        ("parola d'ordine: 'x'", "parola d'ordine: '[secret]'"),
        ("a senha: hunter2; palavra-passe='x'", "a senha: [secret]; palavra-passe='[secret]'"),
        ("wachtwoord = hunter2", "wachtwoord = [secret]"),
        ("密码：hunter2", "密码：[secret]"),
        ("code=\"login(password='x')\"", "code=\"login(password='[secret]')\""),
        ("IBAN DE89 3704 0044 0532 0130 00 AND", "IBAN [iban] AND"),
        ("GB82WEST12345698765432, FR1420041010050500013M02606", "[iban], [iban]"),
    ],
)  # fmt: skip
def test_secrets_in_a_text(text: str, left: str) -> None:
    assert seen(text) == left


@pytest.mark.parametrize(
    "text",
    [
        "give --password to set one, or --password-file FILE; --no-password asks for none",
        "  --token TEXT       The token.  --password <password>",
        "deploy --password $PASSWORD --token ${TOKEN} --api-key \"$(cat key)\"",
        "docker run -p 8080:80 -u 1000:1000 x && tar -pxf y",
        "mysql -u root -p shop",
        "curl -u bob -p -sS z",
        "the chip -and -pin reader; a search for x -password reset",
        "<token> and </a>; <password></password> <tokens>5</tokens>",
        "--max-tokens 512 --tokenizer x -t -- --",
        "resenha: hunter2x, passwörtlich=a1",
        "DE88 3704 0044 0532 0130 00; XX89370400440532013000; DE8937040044053201300",
        "078-05-1120 and +49 30 901820",
        'say "hello"@once',
    ],
)  # fmt: skip
def test_texts_without_secrets(text: str) -> None:
    assert Redactor(KEY)({"a": text})["a"] == text


LISTS: list[tuple[Any, Any]] = [
    (["deploy", "--password", "hunter2", "x"], ["deploy", "--password", "[secret]", "x"]),
    (["--pin", 1234], ["--pin", "[secret]"]),
    (["--password=x", "-y"], ["--password=[secret]", "-y"]),
    (["Authorization:", "Bearer x"], ["Authorization:", "Bearer [secret]"]),
    (["/usr/bin/curl", "-s", "-u", "bob:x"], ["/usr/bin/curl", "-s", "-u", "bob:[secret]"]),
    (["mysql", "-uroot", "-px"], ["mysql", "-uroot", "-p[secret]"]),
    (["docker", "login", "-p", "x"], ["docker", "login", "-p", "[secret]"]),
    ([["authorization", "x"], ["accept", "y"]], [["authorization", "[secret]"], ["accept", "y"]]),
    ([{"name": "DB_PASSWORD", "value": "x"}], [{"name": "DB_PASSWORD", "value": "[secret]"}]),
    ({"Key": "api_key", "Value": {"a": "x"}}, {"Key": "api_key", "Value": {"a": "[secret]"}}),
    ({"Passwort": "x", "contraseña": "y", "mdp": "z"}, dict.fromkeys(["Passwort", "contraseña", "mdp"], "[secret]")),
]  # fmt: skip


@pytest.mark.parametrize(("tree", "left"), LISTS)
def test_names_in_a_sibling_item(tree: Any, left: Any) -> None:
    assert seen(tree) == left
    assert seen(json.dumps({"a": tree}, ensure_ascii=False)) == json.dumps({"a": left}, ensure_ascii=False)


@pytest.mark.parametrize(
    "tree",
    [
        {"required": ["token", "user"]},
        ["--password", "--verbose"],
        ["docker", "run", "-p", "80:80"],
        ["grep", "-p", "x"],
        [["a", "x"], ["b"]],
        {"name": "colour", "value": "x"},
        ["password"],
    ],
)
def test_lists_without_secrets(tree: Any) -> None:
    assert Redactor(KEY)(tree) is tree
    assert seen(json.dumps(tree)) == json.dumps(tree)


def test_newest_256_secrets_of_a_run_are_remembered() -> None:
    known = KnownSecrets().extended(f"secret number {number}" for number in range(300))
    assert known.shown == tuple(f"secret number {number}" for number in range(300 - 256, 300))


def test_optional_groups_apply_when_enabled() -> None:
    text = "ssn 078-05-1120, call +49 (0)30 901820 or (212) 555-0187 or 030 901820; 2026-01-02, 000-12-3456, 10.0.0.1"
    left = "ssn [ssn], call [phone] or [phone] or [phone]; 2026-01-02, 000-12-3456, 10.0.0.1"
    assert seen(text, groups=["ssn", "phone"]) == left
    assert seen("078-05-1120", groups=["phone"]) == "078-05-1120"
    assert seen("DE89370400440532013000", without=["iban"]) == "DE89370400440532013000"
    with pytest.raises(refold.InputError, match="ssn, phone"):
        Redactor(groups=["address"])


def test_command_line_reads_groups_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    redact = redactor_for("")
    assert redact is not None
    assert redact("ssn 078-05-1120") == "ssn 078-05-1120"
    monkeypatch.setenv("REFOLD_REDACTION_GROUPS", "ssn, phone")
    redact = redactor_for("")
    assert redact is not None
    assert TOKEN.search(redact("ssn 078-05-1120"))
    monkeypatch.setenv("REFOLD_REDACTION_GROUPS", "x")
    with pytest.raises(refold.InputError, match="REFOLD_REDACTION_GROUPS: 'x': what can be added is ssn, phone"):
        redactor_for("")


@pytest.fixture
def samples(tau_bench_file: Path) -> Path:
    """The folder of recorded conversations, sessions and turns."""
    folder = tau_bench_file.parent
    if not (folder / "sessions").is_dir():
        without(f"no {folder}/sessions: name the folder that holds it in REFOLD_SHARED_DATA")
    return folder


def test_real_sessions_have_no_false_positives(samples: Path) -> None:
    """Checked by hand: an address in a traceback, and the header of each request. Anything more is a false positive."""
    redact = Redactor(KEY)
    found: dict[str, set[str]] = {}
    for path in sorted((samples / "sessions").glob("*.gz")):
        text = gzip.decompress(path.read_bytes()).decode()
        found[path.name] = hits(redact, text)
    with tarfile.open(samples / "capture" / "tapes-fixtures.tar.gz") as archive:
        for member in archive:
            file = archive.extractfile(member) if member.name.endswith("request.json") else None
            if file is not None:
                found[member.name] = hits(redact, io.TextIOWrapper(file, "utf-8").read())
    assert len(found) > 10
    assert {" ".join(hit.split()) for hits in found.values() for hit in hits} == {
        '"authorization", "[secret',  # a header's value that the publisher of the sample removed
        'ria\\",\\n55: author_email=\\"[email',
    }


def hits(redact: Redactor, text: str) -> set[str]:
    """Return the text before each token, with the token's kind."""
    left = redact(text)
    return {left[max(0, match.start() - 30) : match.end(1)] for match in TOKEN.finditer(left)}
