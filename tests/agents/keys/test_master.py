"""Master keys: which values are accepted, what they wrap, and that no message reveals one."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from refold.agents.keys.master import MasterKeys, read_masters
from refold.avro.errors import CorruptionError, InputError

OLD, NEW = (base64.b64encode(bytes([each]) * 32).decode() for each in (1, 2))
KEY = bytes(range(64))


def test_key_opens_under_its_id_with_the_master_that_wrapped_it() -> None:
    old, new, both = read_masters(OLD), read_masters(NEW), read_masters(f"{NEW}, {OLD}")
    wrapped = old.wrap("run:a", KEY)
    assert KEY not in wrapped
    assert old.unwrap("run:a", wrapped, "here") == both.unwrap("run:a", wrapped, "here") == KEY
    assert both.wrap("run:a", KEY) == new.wrap("run:a", KEY)
    with pytest.raises(InputError, match=f"here: the key run:a is wrapped by the master key {old.names[0]}") as caught:
        new.unwrap("run:a", wrapped, "here")
    assert new.names[0] in str(caught.value)
    for other in (wrapped[:-1], wrapped[:-1] + b"?", wrapped[:6]):
        with pytest.raises(CorruptionError, match="run:a"):
            old.unwrap("run:a", other, "here")
    with pytest.raises(CorruptionError, match="run:b"):
        old.unwrap("run:b", wrapped, "here")


def test_master_key_may_be_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a master"
    path.write_text(f"{NEW}\n{OLD}\n")
    for given in (f"file:{path}", f"file://{str(path).replace(' ', '%20')}"):
        assert read_masters(given).names == read_masters(f"{NEW},{OLD}").names
    with pytest.raises(InputError, match=r"REFOLD_MASTER_KEY \(.*none\): cannot be read"):
        read_masters(f"file:{tmp_path}/none")


@pytest.mark.parametrize("given", ["secret?word", base64.b64encode(b"x" * 31).decode(), ",", "c2hvcnQ=", f"{OLD},x"])
def test_invalid_master_key_is_refused_without_showing_it(given: str) -> None:
    with pytest.raises(InputError, match="openssl rand -base64 48") as caught:
        read_masters(given)
    assert given.strip(",") == "" or given not in str(caught.value)


def test_key_names_distinguish_keys_without_revealing_them() -> None:
    masters = MasterKeys([b"1" * 32, b"2" * 32])
    assert len({*masters.names}) == 2
    assert not any((b"1" * 6).hex() in each for each in masters.names)
