"""The output of an agent: bounded, kept over restarts, and followed over rotations."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from refold.agents.supervise.output_files import OutputFile, OutputPosition, output
from refold.streams.temporary import TemporaryFolder


@given(st.lists(st.binary(max_size=12), max_size=12), st.integers(1, 9))
@settings(max_examples=60)
def test_newest_bytes_are_kept_within_twice_the_bound(pieces: list[bytes], bound: int) -> None:
    with TemporaryFolder("refold-test-") as folder:
        for piece in pieces:
            file = OutputFile(folder, bound)  # as after a restart
            file.write(piece)
            file.close()
        whole, (kept, _) = b"".join(pieces), output(folder)
        assert whole.endswith(kept)
        assert min(len(whole), bound) <= len(kept) <= 2 * bound
        assert output(folder, 0)[0] == b""
        assert output(folder, 1)[0] == b"".join(kept.splitlines(keepends=True)[-1:])


@given(st.lists(st.binary(max_size=5), max_size=12), st.integers(5, 9))
@settings(max_examples=60)
def test_follower_gets_every_byte(pieces: list[bytes], bound: int) -> None:
    with TemporaryFolder("refold-test-") as folder:
        position = OutputPosition(folder)
        assert position.read() == b""
        file = OutputFile(folder, bound)
        followed = b""
        for piece in pieces:
            file.write(piece)
            followed += position.read()
        file.close()
        assert followed == b"".join(pieces)


def test_full_disk_stops_nothing(tmp_path: Path) -> None:
    file = OutputFile(tmp_path, 4)
    file.close()
    file.write(b"nowhere")
