"""Checks for your own reducers and types against the laws of the fold. Needs `pip install refold[testing]`.

from hypothesis import strategies as st
from refold.testing import check_reducer, check_type

def test_loudest():
    check_reducer(loudest, values=st.integers(0, 100), type="long")

def test_my_type():
    check_type("types/my_type.avsc")
"""

from __future__ import annotations

from refold.testing.laws import BrokenLaw, check_reducer, check_type, histories, values_of

__all__ = ["BrokenLaw", "check_reducer", "check_type", "histories", "values_of"]
