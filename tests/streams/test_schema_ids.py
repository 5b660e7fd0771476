"""Wire ids from a real Schema Registry: assigned permanently, refused with the registry's reason, or unknown."""

from __future__ import annotations

import json
import socket
import threading
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from refold.avro.definition import TypeDefinition, parse
from refold.avro.errors import InputError, RegistryUnavailable, SchemaError
from refold.avro.registry import Registry, WireIds
from refold.streams.registry.ids import SchemaIds, UnknownId, subjects_of
from refold.streams.registry.settings import RegistrySettings, registry_settings
from refold.testing.registry import SchemaRegistry
from refold_tests.proxy import gateway

USER_INFO = "tester:s3cret:with:colons"


def asking(url: str, user_info: str | None = None, **options: float) -> SchemaIds:
    """A client with a short time-out."""
    return SchemaIds(RegistrySettings((url,), user_info), timeout_s=options.get("timeout_s", 20.0), retries=0)


def thing(**fields: str | Mapping[str, object]) -> TypeDefinition:
    """A type of simple fields: name -> Avro type, or the complete field without its name."""
    whole = [{"name": name, "refold.reducer": "latest", **(each if isinstance(each, dict) else {"type": each})}
             for name, each in fields.items()]  # fmt: skip
    return parse({"type": "record", "name": "thing", "fields": whole})


def registry_request(url: str, path: str, method: str, body: object = None) -> object:
    """Send the registry a request that refold itself never sends."""
    data = None if body is None else json.dumps(body).encode()
    kind = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
    with urllib.request.urlopen(urllib.request.Request(url + path, data, kind, method=method), timeout=30) as answer:
        found: object = json.load(answer)
    return found


def set_level(url: str, subject: str, level: str) -> None:
    registry_request(url, f"/config/{subject}", "PUT", {"compatibility": level})


def subjects_in(url: str, prefix: str) -> set[str]:
    found = registry_request(url, "/subjects", "GET")
    assert isinstance(found, list)
    return {each for each in found if each.startswith(f"{prefix}.")}


@pytest.fixture
def prefix() -> str:
    """The prefix of the subjects of this test's log."""
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture
def ids(schema_registry: str) -> Iterator[SchemaIds]:
    with asking(schema_registry) as found:
        yield found


def test_each_schema_has_its_own_permanent_id(ids: SchemaIds, schema_registry: str, prefix: str) -> None:
    first, second = thing(a="int"), thing(a="long", b="string")
    given = ids.register(prefix, first)
    assert len({*given}) == 3
    later = ids.register(prefix, second)
    assert not {*given} & {*later}
    with asking(schema_registry) as another:
        assert another.register(prefix, first) == given
        assert another.register(prefix, second) == later
    assert subjects_in(schema_registry, prefix) == {*subjects_of(prefix, first)}
    registry = Registry()
    for definition, wire_ids in ((first, given), (second, later)):
        registry.check(definition, wire_ids)
        registry.add(definition, wire_ids=wire_ids)


def test_version_that_only_folds_differently_keeps_its_observation_schema_and_id(ids: SchemaIds, prefix: str) -> None:
    one = ids.register(prefix, thing(a="long"))
    other = ids.register(prefix, thing(a={"type": "long", "refold.reducer": "sum"}))
    assert other.observation == one.observation
    assert other.state != one.state


def test_logs_share_ids_and_have_their_own_subjects(ids: SchemaIds, schema_registry: str, prefix: str) -> None:
    given = ids.register(f"{prefix}a", thing(a="int"))
    assert ids.register(f"{prefix}b", thing(a="int")) == given
    assert subjects_in(schema_registry, f"{prefix}b") == {*subjects_of(f"{prefix}b", thing(a="int"))}


def test_schemas_that_differ_only_in_aliases_may_share_an_id(ids: SchemaIds, prefix: str) -> None:
    """Apicurio assigns them one id, other registries do not: both are acceptable."""
    registry = Registry()
    plain = {"type": "long", "refold.name": "z", "aliases": ["z"]}
    for definition in (thing(z="long"), thing(a=plain), thing(a={**plain, "aliases": ["z", "y"]})):
        wire_ids = ids.register(prefix, definition)
        registry.check(definition, wire_ids)
        registry.add(definition, wire_ids=wire_ids)
    assert len(registry) == 3


@pytest.mark.parametrize(("level", "kind"), [("FULL", "observation"), ("BACKWARD", "state"), ("FULL", "change")])
def test_refusal_gives_its_reason_and_registers_nothing(
    ids: SchemaIds, schema_registry: str, prefix: str, level: str, kind: str
) -> None:
    first = thing(a="int")
    second = thing(a="long" if kind == "observation" else {"type": "int", "refold.reducer": "sum"})
    ids.register(prefix, first)
    subjects = subjects_of(prefix, first)
    subject = getattr(subjects, kind)
    set_level(schema_registry, subject, level)
    with pytest.raises(SchemaError) as refused:
        ids.register(prefix, second)
    said = str(refused.value)
    assert said.startswith(f"thing: its {kind} schema is refused by the Schema Registry under the subject {subject}, ")
    assert f"with the compatibility level {level}: " in said
    assert "union" in said.lower()  # the registry's own message about the incompatibility
    for each in subjects:
        assert registry_request(schema_registry, f"/subjects/{each}/versions", "GET") == [1]
    set_level(schema_registry, subject, "NONE")
    ids.register(prefix, second)
    assert registry_request(schema_registry, f"/subjects/{subject}/versions", "GET") == [1, 2]


def test_id_missing_in_the_registry_is_distinguished_from_a_foreign_one(
    ids: SchemaIds, schema_registry: str, prefix: str
) -> None:
    answer = registry_request(schema_registry, f"/subjects/{prefix}-elsewhere/versions", "POST", {"schema": '"string"'})
    assert isinstance(answer, dict)
    assert ids.unknown(answer["id"]) is UnknownId.FOREIGN
    assert ids.unknown(2**31 - 1) is UnknownId.MISSING
    assert ids.unknown(2**32 - 1) is UnknownId.MISSING
    assert ids.unknown(0) is UnknownId.MISSING


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("/subjects/", {"id": 2**31}, "got the id 2147483648 from the Schema Registry, which a message cannot carry"),
        ("/schemas/ids/", {"schema": '"string"'}, "under which another schema is registered: readers would misread it"),
        ("/schemas/ids/", {"schema": "no schema"}, "under which another schema is registered"),
    ],
    ids=str,
)
def test_misleading_id_is_refused(schema_registry: str, prefix: str, path: str, body: object, reason: str) -> None:
    with gateway(schema_registry) as before, asking(before.url) as ids:
        before.forged[path] = 200, json.dumps(body).encode()
        with pytest.raises(SchemaError, match=reason):
            ids.register(prefix, thing(a="int"))


def test_concurrent_writers_get_the_same_ids(schema_registry: str, prefix: str) -> None:
    def register(number: int) -> list[WireIds]:
        with asking(schema_registry) as ids:
            start.wait()
            return [ids.register(prefix, thing(a="int")), ids.register(prefix, thing(a="long"))]

    writers = 6
    start = threading.Barrier(writers)
    with ThreadPoolExecutor(writers) as pool:
        given = list(pool.map(register, range(writers)))
    assert given == [given[0]] * writers
    for subject in subjects_of(prefix, thing(a="int")):
        assert registry_request(schema_registry, f"/subjects/{subject}/versions", "GET") == [1, 2]


# Outages say nothing about any schema.


def test_unreachable_registry() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with asking(url) as ids:
            for ask in (lambda: ids.register("p", thing(a="int")), lambda: ids.unknown(1)):
                with pytest.raises(RegistryUnavailable, match=f"the Schema Registry at {url} gives no answer") as gone:
                    ask()
                assert str(gone.value).endswith("Start it, or correct REFOLD_SCHEMA_REGISTRY")


def test_registry_that_hangs_dies_and_recovers(own_registry: SchemaRegistry, prefix: str) -> None:
    with asking(own_registry.url, timeout_s=1.0) as hasty, asking(own_registry.url) as ids:
        given = ids.register(prefix, thing(a="int"))
        own_registry.pause()
        with pytest.raises(RegistryUnavailable, match="gives no answer"):
            hasty.unknown(given.change)
        own_registry.resume()
        assert ids.unknown(given.change) is UnknownId.FOREIGN
        own_registry.kill()
        with pytest.raises(RegistryUnavailable, match="gives no answer"):
            ids.register(prefix, thing(a="long"))
        own_registry.restart()
        assert ids.unknown(given.change) is UnknownId.MISSING
        assert len({*ids.register(prefix, thing(a="long"))}) == 3


def test_emptied_registry_assigns_no_id_twice(own_registry: SchemaRegistry, prefix: str) -> None:
    registry = Registry()
    with asking(own_registry.url) as ids:
        given = ids.register(prefix, thing(a="int"))
        registry.add(thing(a="int"), wire_ids=given)
        own_registry.restart()
        again = ids.register(prefix, thing(a="long"))
    assert {*again} & {*given}
    with pytest.raises(SchemaError, match="was the registry emptied or replaced"):
        registry.check(thing(a="long"), again)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (500, b'{"error_code": 50001, "message": "Error in the backend data store"}'),
        (503, b"<html>down</html>"),
        (429, b"{}"),
        (403, b'{"error_code": 40301, "message": "Forbidden"}'),
        (404, b"<html>no such page</html>"),
        (404, b'{"error_code": 404, "message": "HTTP 404 Not Found"}'),
        (200, b"<html>a login page</html>"),
        (200, b"[]"),
        (200, b""),
    ],
    ids=str,
)
def test_inconclusive_answer(schema_registry: str, prefix: str, status: int, body: bytes) -> None:
    with gateway(schema_registry) as before, asking(before.url) as ids:
        before.forged["/"] = status, body
        with pytest.raises(RegistryUnavailable):
            ids.unknown(1)
        with pytest.raises(RegistryUnavailable):
            ids.register(prefix, thing(a="int"))
        before.forged.clear()
        assert len({*ids.register(prefix, thing(a="int"))}) == 3


# Authentication.


def test_user_authenticates_by_password(schema_registry: str, prefix: str) -> None:
    with gateway(schema_registry, USER_INFO) as before:
        with asking(before.url, USER_INFO) as ids:
            assert len({*ids.register(prefix, thing(a="int"))}) == 3
            assert ids.unknown(2**31 - 1) is UnknownId.MISSING
        assert before.asked
        before.asked.clear()
        for wrong in ("tester:wrong", None):
            with asking(before.url, wrong) as ids:
                asked: list[Callable[[], object]] = [
                    partial(ids.register, prefix, thing(a="int")),
                    partial(ids.unknown, 1),
                ]
                for ask in asked:
                    with pytest.raises(RegistryUnavailable) as refused:
                        ask()
                    said = str(refused.value)
                    assert "answers 401: it does not let this user in; correct REFOLD_SCHEMA_REGISTRY_USER_INFO" in said
                    assert "wrong" not in said
        assert not before.asked


def test_environment_names_registry_and_user() -> None:
    url, user = "REFOLD_SCHEMA_REGISTRY", "REFOLD_SCHEMA_REGISTRY_USER_INFO"
    assert registry_settings({}) is registry_settings({url: " ", user: "a:b"}) is None
    assert registry_settings({url: "http://h:1/"}) == RegistrySettings(("http://h:1",))
    assert registry_settings({url: "http://h:1/p", user: "a:b:c"}) == RegistrySettings(("http://h:1/p",), "a:b:c")
    two = registry_settings({url: "https://a%40b:c%3Ad@h/x, https://g:2"})
    assert two == RegistrySettings(("https://h/x", "https://g:2"), "a@b:c:d")
    for shown in (str(two), repr(two)):
        assert "https://h/x" in shown
        assert "c:d" not in shown
        assert "c%3Ad" not in shown


@pytest.mark.parametrize(
    "environ",
    [
        {"REFOLD_SCHEMA_REGISTRY": each}
        for each in (
            "h:1",
            "kafka://u:s3cret@h",
            "http://",
            "http://u:s3cret@h:port",
            "http://u:s3cret@h?x=1",
            "http://[",
        )
    ]
    + [
        {"REFOLD_SCHEMA_REGISTRY": "http://u:s3cret@h", "REFOLD_SCHEMA_REGISTRY_USER_INFO": "u:s3cret2"},
        {"REFOLD_SCHEMA_REGISTRY": "http://h", "REFOLD_SCHEMA_REGISTRY_USER_INFO": "s3cret"},
    ],
    ids=str,
)
def test_unusable_setting_is_refused_without_its_secrets(environ: dict[str, str]) -> None:
    with pytest.raises(InputError, match="REFOLD_SCHEMA_REGISTRY") as refused:
        registry_settings(environ)
    assert "s3cret" not in str(refused.value)
