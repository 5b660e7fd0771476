"""custom: a user's pure function, folded over the live assertions in Q order.

    def loudest(value, assertion):      # value: the result so far, None at first
        return max(value or 0, assertion.value)

The type's file names it as `"refold.function": "module:loudest"`. It is looked up only among the functions that the
operator registered (registered.py). Its name, its version (an attribute `refold_version` on the function, 1 without
one) and the hash of its source identify it, and are all part of the definition.
An assertion on which it fails does not change the value (failed.py). Cell: [value, greatest q].
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from refold.avro.canonical import encode
from refold.avro.errors import SchemaError, ValidationError
from refold.avro.nodes import Node
from refold.avro.observation import Value
from refold.avro.values import checker
from refold.reducers import failed
from refold.reducers.cells import Assertion, AssertionEnvelope, Cell, Element, Elements, Mutation, Op, Reducer
from refold.reducers.registered import VERSION, function_of

Function: TypeAlias = Callable[[Any, Assertion], Any]


def code_of(name: str) -> Mapping[str, object]:
    """Return what identifies a registered custom reducer: {name, version, source}; source is the SHA-256 of its source
    text, in hex.

    Raises:
        NotRegistered: the operator registered no function with that name.
    """
    function = function_of(name)
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):
        raise SchemaError(f"the source of the custom reducer {name!r} cannot be read, so it has no identity") from None
    version = getattr(function, VERSION, 1)
    return {"name": name, "version": version, "source": hashlib.sha256(source.encode()).hexdigest()}


class Custom(Reducer):
    """A left fold in Q order; None means absent. The result must fit the field's own type."""

    in_order = True

    def __init__(self, field: str, function: Function, node: Node) -> None:
        super().__init__(field)
        self.function = function
        self._name = f"{function.__module__}:{function.__qualname__}"
        self._node = node
        self._check = checker(node, 2**62)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.field, self.function, self._node)

    def fold(self, cell: Cell, value: Any, envelope: AssertionEnvelope, out: list[Mutation]) -> Cell:
        before = None if cell is None else cell[0]
        after = self._apply(before, value, envelope)
        if not self.same(before, after):
            op: Op = "clear" if after is None else "set"
            out.append(Mutation(self.field, op, None, before, after, envelope.id))
        return [after, envelope.q]

    def _apply(self, before: Value, value: Any, envelope: AssertionEnvelope) -> Value:
        """Return the function's result for an assertion; the unchanged value if the function fails (failed.py)."""
        try:
            # Pass a copy: a function that modifies its argument and then fails must not change the value.
            result = self.function(_in_key_order(before), Assertion(value, *envelope))
        except Exception as error:  # user code may raise anything
            why, problem = f"the custom reducer of {self.field} failed: {error!r}", error
        else:
            try:
                return None if result is None else _in_key_order(self._check(result, self.field, None))
            except ValidationError as error:
                why, problem = f"the custom reducer of {self.field} gave what its type forbids: {error}", error
        if failed.raises(problem):
            raise SchemaError(why) from problem
        failed.note(self._name, envelope.id, why)
        return before

    def present(self, cell: Cell) -> bool:
        return cell[0] is not None

    def value(self, cell: Cell) -> Value:
        result: Value = cell[0]
        return result

    def holders(self, cell: Cell) -> Value:
        result: bytes = cell[1][-32:]
        return result

    def elements(self, cell: Cell) -> Elements:
        return {None: Element(cell[0], cell[1])}

    def same(self, old: Value, new: Value) -> bool:
        return encode(old) == encode(new)


def _in_key_order(value: Value) -> Value:
    """Return a value with the key order of a stored value, so that a function always sees the same order of keys."""
    if isinstance(value, dict):
        return {key: _in_key_order(value[key]) for key in sorted(value)}
    if isinstance(value, list):
        return [_in_key_order(each) for each in value]
    return value
