"""The text of a golden trace: it reads back as it was written, and each line is readable."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from refold.agents.golden.file import parsed, pretty

WORDS = st.text(alphabet="ab \n\r\u2028\x85é", max_size=400)
TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | WORDS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["a", "$text", "$object", "b c"]), inner, max_size=3)
    ),
    max_leaves=15,
)


@given(TREES)
def test_tree_round_trips(tree: Any) -> None:
    assert repr(parsed(pretty(tree))) == repr(tree)


@given(st.dictionaries(st.sampled_from("abc"), st.lists(WORDS, max_size=3)))
def test_no_line_is_long(tree: Any) -> None:
    for line in pretty(tree).split("\n"):
        assert len(line) <= 190, line  # 80 characters, each an escape in the worst case


def test_short_values_are_on_one_line_and_long_ones_on_many() -> None:
    tree = {"short": {"a": [1, 2.0]}, "prompt": "Be kind.\nBe brief.\n", "long": "word " * 30}
    assert pretty(tree).splitlines() == [
        "{",
        '  "short": {"a": [1, 2.0]},',
        '  "prompt": {"$text": [',
        '    "Be kind.\\n",',
        '    "Be brief.\\n"',
        "  ]},",
        '  "long": {"$text": [',
        f'    "{"word " * 16}",',
        f'    "{"word " * 14}"',
        "  ]}",
        "}",
    ]
