"""A custom reducer that only this process finds: its module is on no path."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from refold.avro.definition import TypeDefinition
from refold_tests.reducers import REDUCERS
from refold_tests.sample_types import defined, document


def only_found_here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> TypeDefinition:
    """Register the reducer `refold_only_here:longest`; return a type with a field `start` that it folds."""
    module = ModuleType("refold_only_here")
    source = folder / "only_here.py"
    source.write_text("def longest(value, assertion):\n    return max(value or '', assertion.value, key=len)\n")
    module.__file__ = str(source)
    exec(compile(source.read_text(), str(source), "exec"), module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setenv("REFOLD_REDUCERS", f"{REDUCERS},{module.__name__}:longest")
    field = {"type": "string", "refold.reducer": "custom", "refold.function": f"{module.__name__}:longest"}
    return defined(document(start=field))
