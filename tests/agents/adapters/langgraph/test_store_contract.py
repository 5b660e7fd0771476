"""RefoldStore passes the same cases as LangGraph's own InMemoryStore, on both kinds of log."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from langgraph.store.base import (
    BaseStore,
    GetOp,
    InvalidNamespaceError,
    Item,
    ListNamespacesOp,
    MatchCondition,
    PutOp,
    SearchOp,
)
from langgraph.store.memory import InMemoryStore

from refold.langgraph import RefoldStore
from refold_tests.brokers import SharedKafka
from refold_tests.store_items import keys, named, value_of

pytestmark = pytest.mark.outside


def put_and_get(store: BaseStore, root: str) -> None:
    value = {"text": "hi", "n": 1, "half": 0.5, "none": None, "yes": True, "list": [1, {"a": []}], "o": {"ü": "日本"}}
    store.put((root, "a"), "k", value)
    found = store.get((root, "a"), "k")
    assert found is not None
    assert (found.namespace, found.key, found.value) == ((root, "a"), "k", value)
    assert found.created_at.utcoffset() is not None
    assert found.created_at <= found.updated_at
    for namespace, key in (((root, "a"), "other"), ((root,), "k"), ((root, "b"), "k"), ((root, "a", "k"), "k")):
        assert store.get(namespace, key) is None


def a_put_replaces_the_whole_value(store: BaseStore, root: str) -> None:
    store.put((root,), "k", {"a": 1, "b": 2})
    store.put((root,), "k", {"b": 3})
    assert value_of(store.get((root,), "k")) == {"b": 3}
    store.put((root,), "k", {})
    assert value_of(store.get((root,), "k")) == {}


def a_returned_value_is_the_callers(store: BaseStore, root: str) -> None:
    if isinstance(store, InMemoryStore):
        return  # it returns the object that it holds
    given: dict[str, Any] = {"list": [1]}
    store.put((root,), "k", given)
    given["list"].append(2)
    found = store.get((root,), "k")
    assert found is not None
    found.value["list"].append(3)
    assert value_of(store.get((root,), "k")) == {"list": [1]}


def delete(store: BaseStore, root: str) -> None:
    store.put((root,), "k", {"a": 1})
    store.put((root,), "kept", {"a": 1})
    store.delete((root,), "k")
    store.delete((root,), "never put")
    assert store.get((root,), "k") is None
    assert keys(store.search((root,))) == ["kept"]
    store.put((root,), "k", {"b": 2})
    assert value_of(store.get((root,), "k")) == {"b": 2}
    assert keys(store.search((root,))) == ["k", "kept"]


NAMES = ["", "a#b", "a%23b", "100%", "tab\there", "zoë/ünï", "a" * 200, "#", "%", "new\nline", "a.b"]


def names_stay_apart(store: BaseStore, root: str) -> None:
    for name in NAMES:
        store.put((root,), name, {"name": name})
        if name and "." not in name:
            store.put((root, name), "k", {"namespace": name})
            store.put((root, name, "k"), "k", {"deep": name})
    for name in NAMES:
        assert value_of(store.get((root,), name)) == {"name": name}
        if name and "." not in name:
            assert value_of(store.get((root, name), "k")) == {"namespace": name}
            assert keys(store.search((root, name, "k"))) == ["k"]


def search_by_prefix(store: BaseStore, root: str) -> None:
    for namespace in ((root,), (root, "a"), (root, "a", "b"), (root, "ab"), (f"{root}x",)):
        store.put(namespace, "k", {"depth": len(namespace)})
    assert named(store.search((root,))) == [
        ((root,), "k"), ((root, "a"), "k"), ((root, "a", "b"), "k"), ((root, "ab"), "k")
    ]  # fmt: skip
    assert named(store.search((root, "a"))) == [((root, "a"), "k"), ((root, "a", "b"), "k")]
    assert store.search((root, "none")) == []
    assert all(each.score is None for each in store.search((root,)))


FILTERS: list[tuple[dict[str, Any], list[str]]] = [
    ({}, ["a", "b", "c"]),
    ({"kind": "tea"}, ["a", "b"]),
    ({"kind": {"$eq": "tea"}, "price": {"$lt": 3}}, ["a"]),
    ({"kind": {"$ne": "tea"}}, ["c"]),
    ({"price": {"$gte": 2.5}}, ["b", "c"]),
    ({"price": {"$gt": 2.5, "$lte": 4}}, ["b"]),
    ({"price": {"$gt": "2.5"}}, ["b", "c"]),
    ({"origin": {"land": "CN"}}, ["a"]),
    ({"origin": {"year": {"$gt": 2000}}}, ["a", "b"]),
    ({"tags": ["hot", "green"]}, ["a"]),
    ({"tags": ["hot"]}, []),
    ({"missing": None}, ["a", "b", "c"]),
    ({"missing": {"$ne": 1}}, ["a", "b", "c"]),
    ({"kind": {"tea": 1}}, []),
]


def search_by_filter(store: BaseStore, root: str) -> None:
    store.put(
        (root,), "a", {"kind": "tea", "price": 2, "origin": {"land": "CN", "year": 2020}, "tags": ["hot", "green"]}
    )
    store.put((root,), "b", {"kind": "tea", "price": 4, "origin": {"land": "IN", "year": 2021}, "tags": []})
    store.put((root,), "c", {"kind": "coffee", "price": 4.5, "origin": {"year": 1999}})
    for wanted, expected in FILTERS:
        assert keys(store.search((root,), filter=wanted)) == expected, wanted
    with pytest.raises(ValueError, match=r"\$like"):
        store.search((root,), filter={"kind": {"$like": "t"}})


def pages(store: BaseStore, root: str) -> None:
    for number in range(13):
        store.put((root,), f"{number:02}", {"n": number})
    whole = store.search((root,), limit=100)
    assert len(whole) == 13
    assert len(store.search((root,))) == 10
    paged = [each for offset in range(0, 20, 4) for each in store.search((root,), limit=4, offset=offset)]
    assert [each.key for each in paged] == [each.key for each in whole]
    assert store.search((root,), limit=0) == []
    assert len(store.search((root,), filter={"n": {"$gte": 5}}, limit=3, offset=6)) == 2


def a_query_leaves_nothing_out(store: BaseStore, root: str) -> None:
    store.put((root,), "a", {"text": "likes green tea"})
    store.put((root,), "b", {"text": "drinks coffee"}, index=False)
    store.put((root,), "c", {"text": "no"}, index=["text"])
    assert keys(store.search((root,), query="Who likes tea?")) == ["a", "b", "c"]
    assert keys(store.search((root,), query="...")) == ["a", "b", "c"]


def namespaces(store: BaseStore, root: str) -> None:
    every = [(root, "a"), (root, "a", "v1"), (root, "b", "x", "v1"), (root, "c", "x", "v2")]
    for namespace in every:
        store.put(namespace, "k", {})
    assert store.list_namespaces(prefix=(root,)) == every
    assert store.list_namespaces(prefix=(root, "*", "x")) == every[2:]
    assert store.list_namespaces(prefix=(root,), suffix=("v1",)) == every[1:3]
    assert store.list_namespaces(prefix=(root,), suffix=("x", "*")) == every[2:]
    assert store.list_namespaces(prefix=(root,), max_depth=2) == [(root, "a"), (root, "b"), (root, "c")]
    assert store.list_namespaces(prefix=(root,), limit=2, offset=1) == every[1:3]
    assert store.list_namespaces(prefix=(root, "a", "v1", "deeper")) == []
    with pytest.raises(ValueError, match="middle"):
        store.batch([ListNamespacesOp((MatchCondition("middle", (root,)),))])  # type: ignore[arg-type]


def a_batch_reads_before_it_writes(store: BaseStore, root: str) -> None:
    store.put((root,), "k", {"n": 1})
    put, get, later, search, gone, again, other = store.batch([
        PutOp((root,), "k", {"n": 2}), GetOp((root,), "k"), PutOp((root,), "k", {"n": 3}), SearchOp((root,)),
        PutOp((root,), "k", None), PutOp((root,), "k", {"n": 4}), PutOp((root,), "new", {"n": 5}),
    ])  # fmt: skip
    assert (put, later, gone, again, other) == (None, None, None, None, None)
    assert isinstance(get, Item)
    assert get.value == {"n": 1}
    assert isinstance(search, list)
    assert [each.value for each in search if isinstance(each, Item)] == [{"n": 1}]
    assert value_of(store.get((root,), "k")) == {"n": 4}
    store.batch([PutOp((root,), "k", {"n": 5}), PutOp((root,), "k", None)])
    assert keys(store.search((root,))) == ["new"]
    assert store.batch([]) == []


def what_cannot_be_is_refused(store: BaseStore, root: str) -> None:
    for namespace in ((), ("langgraph", root), (root, ""), (root, "a.b"), (root, 1), (root, "\x00")):
        with pytest.raises(InvalidNamespaceError):
            store.put(namespace, "k", {})  # type: ignore[arg-type]
    with pytest.raises(NotImplementedError):
        store.put((root,), "k", {}, ttl=5)
    with pytest.raises(ValueError):  # noqa: PT011  # each store has words of its own
        store.batch(["get"])  # type: ignore[list-item]
    assert store.search((root,)) == []


def by_await(store: BaseStore, root: str) -> None:
    async def talk() -> list[Any]:
        await asyncio.gather(*(store.aput((root, "a"), f"{n}", {"n": n}) for n in range(8)))
        await store.adelete((root, "a"), "7")
        found = [await store.aget((root, "a"), "3"), await store.aget((root, "a"), "7")]
        listed = await store.asearch((root,), filter={"n": {"$lt": 3}})
        return [*map(value_of, found), keys(listed), await store.alist_namespaces(prefix=(root,))]

    assert asyncio.run(talk()) == [{"n": 3}, None, ["0", "1", "2"], [(root, "a")]]


CASES: list[Callable[[BaseStore, str], None]] = [
    put_and_get, a_put_replaces_the_whole_value, a_returned_value_is_the_callers, delete, names_stay_apart,
    search_by_prefix, search_by_filter, pages, a_query_leaves_nothing_out, namespaces, a_batch_reads_before_it_writes,
    what_cannot_be_is_refused, by_await,
]  # fmt: skip


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, BaseStore]]:
    with RefoldStore(f"file:{tmp_path_factory.mktemp('store') / 'log'}") as store:
        yield {"reference": InMemoryStore(), "refold": store}


@pytest.mark.parametrize("name", ["reference", "refold"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_store_behaves_as_langgraphs_own(
    stores: dict[str, BaseStore], name: str, case: Callable[[BaseStore, str], None]
) -> None:
    case(stores[name], case.__name__)


@pytest.mark.timeout(600)
def test_store_behaves_as_langgraphs_own_on_kafka(kafka: SharedKafka, prefix: str) -> None:
    url = f"kafka://{kafka.bootstrap}/{prefix}?partitions=2"
    large = {"text": "x" * 3_000_000, "noise": os.urandom(300_000).hex()}
    with RefoldStore(url) as one, RefoldStore(url) as other:
        for case in (put_and_get, delete, search_by_prefix, a_batch_reads_before_it_writes, by_await):
            case(one, case.__name__)
        one.put(("m",), "large", large)
        assert value_of(other.get(("m",), "large")) == large
        other.put(("m",), "small", {"n": 1})
        assert keys(one.search(("m",))) == ["large", "small"]
        everything = named(one.search((), limit=1000))
    with RefoldStore(url) as store:
        assert named(store.search((), limit=1000)) == everything
        assert value_of(store.get(("m",), "large")) == large
        assert store.log.verify().mismatches == []
