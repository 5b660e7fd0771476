"""The contract of every key ring. A subclass with the fixture `opened` tests one kind of ring."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from refold.agents.keys.ring import KEY_BYTES, KeyRing

IDS = ("run:a", "run:A", "run:ä/../b", "x" * 1000, ".", "person:ab\u2028c")


class RingContract:
    """The contract. A subclass has the fixture `opened`, which returns a new handle of one ring each time, as if from
    another process.
    """

    def test_key_is_created_once_and_kept(self, opened: Callable[[], KeyRing]) -> None:
        ring = opened()
        assert [*ring.ids()] == []
        keys = {key_id: ring.create(key_id) for key_id in IDS}
        assert len(set(keys.values())) == len(IDS)
        assert {len(key) for key in keys.values()} == {KEY_BYTES}
        for each in (ring, opened()):
            assert [*each.ids()] == sorted(IDS)
            for key_id, key in keys.items():
                assert each.get(key_id) == each.create(key_id) == key
            assert each.get("run:none") is None

    def test_destroyed_key_is_gone_for_everyone(self, opened: Callable[[], KeyRing]) -> None:
        ring, other = opened(), opened()
        kept, key = ring.create("run:kept"), ring.create("run:gone")
        other.refresh()
        assert other.get("run:gone") == key
        ring.destroy("run:gone")
        ring.destroy("run:gone")
        other.refresh()
        for each in (ring, other, opened()):
            assert each.get("run:gone") is None
            assert [*each.ids()] == ["run:kept"]
            assert each.get("run:kept") == kept
            each.destroy("run:gone")
            each.destroy("run:never")
        fresh = ring.create("run:gone")
        other.refresh()
        assert other.get("run:gone") == fresh != key

    def test_concurrent_requests_get_one_key(self, opened: Callable[[], KeyRing]) -> None:
        rings = [opened() for _ in range(4)]
        with ThreadPoolExecutor(len(rings)) as threads:
            for number in range(5):
                keys = [*threads.map(lambda ring, key_id=f"run:{number}": ring.create(key_id), rings)]
                assert len({*keys}) == 1, number

    def test_close_is_idempotent(self, opened: Callable[[], KeyRing]) -> None:
        ring = opened()
        ring.create("run:a")
        ring.close()
        ring.close()
        assert [*opened().ids()] == ["run:a"]
