"""The details of an exception that are recorded in addition to its class and text, and its creation from them.

Details, each left out if it is empty; none at all if the exception was made from its text alone:

    args     [VALUE, ...]
    fields   {name: VALUE}: its attributes, those in slots and those of Python's own classes (errno, filename)
    cause, context   {"exception": CLASS, "message": TEXT, **details}; suppress: true as __suppress_context__
    left     {name: CLASS}: attributes with values that have no form here
    title, lines     of pydantic's ValidationError

A VALUE is JSON, or {"refold.KIND": form}, of the kinds of `Making` and capture/messages.py. The kind `value` has the
form of journal/objects.py: dates, numbers, paths and objects that are created from their fields. The other kinds are
those that the two cannot share (decision 146): bytes are text here, in which redaction finds secrets; a list, tuple,
set or dict may hold exceptions and messages; an enumeration's member is looked up without its class's code.

An exception is created from its details without running code that the record names:

1. The class must be imported already (entry.class_named).
2. The object is created by the `__new__` of the Python class that it derives from, and gets its attributes in its
   `__dict__` and slots. No `__init__`, `__new__`, `__setattr__`, `__setstate__` or property of the class runs. Its
   `__str__` runs, to compare the text.
3. An exception of a class with a `__del__` is not created. If the text differs, the exception is of a subclass with the
   recorded text, unless a metaclass or an `__init_subclass__` would run for that.
4. Values are of Python's own types. Only members of enumerations, messages of HTTP, pydantic's error and objects that
   are created from their fields are of other classes, and they are created by name: an enumeration's member is looked
   up, the constructors of messages and of the error are called, and an object is created without a constructor
   (journal/objects.py).
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Iterator, Mapping
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any

import msgspec

from refold.agents.capture.exchange import bytes_of, kept
from refold.agents.capture.messages import body_of, message_made, message_of
from refold.agents.entry import class_name, class_named
from refold.agents.journal.objects import dumped, loaded
from refold.agents.journal.record import Plain
from refold.agents.recorder.plain import DEPTH_MAX
from refold.avro.canonical import INTEGER_END, INTEGER_MIN
from refold.avro.errors import InputError

VALUES_MAX = 2_000
TEXT_MAX = 256 << 10
_PREFIX = "refold."
_IS_HEAP_TYPE = 1 << 9
_PYDANTIC = "pydantic_core._pydantic_core.ValidationError"
_DICT = vars(BaseException)["__dict__"]
_ARGS = vars(BaseException)["args"]
_CAUSE = vars(BaseException)["__cause__"]
_CONTEXT = vars(BaseException)["__context__"]
_SUPPRESS = vars(BaseException)["__suppress_context__"]

_SEVERAL: Mapping[str, Callable[[list[Any]], Any]] = {"tuple": tuple, "set": set, "frozenset": frozenset}


class NoForm(Exception):
    """A value that has no form in a record, or an unknown form in a record."""


# From exceptions to records


def details_of(error: BaseException) -> Plain:
    """Return the details of an exception; None if there are none. It keeps what it can, and never raises."""
    try:
        return _DetailsWriter().details(error, DEPTH_MAX) or None
    except Exception:  # even reading the attributes of some classes raises
        return None


def exception_message(error: BaseException) -> str:
    """Return the text of an exception, in a form that a log can hold."""
    try:
        return text_of(str(error))
    except Exception as problem:  # __str__ may raise anything
        return f"(no text: its __str__ raised {type(problem).__qualname__})"


def text_of(text: str) -> str:
    """Return the text without what a log cannot hold: names of files may contain lone surrogates."""
    return text.encode("utf-8", "backslashreplace").decode()


class _DetailsWriter:
    """Converts an exception to details, up to VALUES_MAX values and TEXT_MAX characters."""

    def __init__(self) -> None:
        self._values = VALUES_MAX
        self._text = TEXT_MAX
        self._open: list[int] = []

    def details(self, error: BaseException, levels: int) -> dict[str, Plain]:
        if id(error) in self._open:
            return {}
        self._open.append(id(error))
        try:
            found = (
                self._lines(error, levels) if class_name(type(error)) == _PYDANTIC else self._own_details(error, levels)
            )
            if levels > 4:
                cause, context = error.__cause__, error.__context__
                others = {"cause": cause, "context": None if context is cause else context}
                found |= {
                    key: self._nested_details(each, levels - 1) for key, each in others.items() if each is not None
                }
            if error.__suppress_context__:
                found["suppress"] = True
            return found
        finally:
            self._open.pop()

    def _nested_details(self, error: BaseException, levels: int) -> dict[str, Plain]:
        """Return the details of an exception that another one holds."""
        text = self._count_text(exception_message(error))
        return {"exception": class_name(type(error)), "message": text, **self.details(error, levels)}

    def _own_details(self, error: BaseException, levels: int) -> dict[str, Plain]:
        found: dict[str, Plain] = {}
        fields: dict[str, Plain] = {}
        left: dict[str, Plain] = {}
        text = exception_message(error)
        args = _ARGS.__get__(error)
        is_text = len(args) == 1 and type(args[0]) is str and args[0] == text
        if not is_text and (args or text):
            try:
                found["args"] = [self.value(each, levels - 2) for each in args]
            except NoForm:
                left["args"] = "tuple"
        for name, value in _fields_of(error):
            try:
                fields[self._count_text(name)] = self.value(value, levels - 2)
            except NoForm:
                left[name] = class_name(type(value))
        return {**found, **({"fields": fields} if fields else {}), **({"left": left} if left else {})}

    def _lines(self, error: Any, levels: int) -> dict[str, Plain]:
        lines = [{name: each.get(name) for name in ("type", "loc", "msg", "input", "ctx")}
                 for each in error.errors(include_url=False)]  # fmt: skip
        try:
            return {"title": str(error.title), "lines": self.value(lines, levels - 1)}
        except NoForm:
            return {"left": {"errors": "list"}}

    def value(self, value: Any, levels: int) -> Plain:
        """Return the form of a value.

        Raises:
            NoForm: The value has none.
        """
        kind = type(value)
        self._values -= 1
        if self._values < 0 or levels < 0:
            raise NoForm
        is_number = (kind is int and INTEGER_MIN <= value < INTEGER_END) or (kind is float and value - value == 0)
        if value is None or kind is bool or is_number:
            return value
        if kind is str:
            return self._count_text(value)
        if kind is list:
            return [self.value(each, levels - 1) for each in value]
        if kind is dict:
            return self._dict(value, levels)
        name, form = self._form(kind, value, levels)
        return {f"{_PREFIX}{name}": form}

    def _dict(self, value: dict[Any, Any], levels: int) -> Plain:
        is_form = len(value) == 1 and str(next(iter(value))).startswith(_PREFIX)
        if all(type(key) is str for key in value) and not is_form:
            return {self._count_text(key): self.value(each, levels - 1) for key, each in value.items()}
        pairs = [[self.value(key, levels - 3), self.value(each, levels - 3)] for key, each in value.items()]
        return {f"{_PREFIX}dict": pairs}

    def _form(self, kind: type, value: Any, levels: int) -> tuple[str, Plain]:
        if kind.__name__ in _SEVERAL and kind.__module__ == "builtins":
            items = value if kind is tuple else sorted(value, key=repr)  # the order of sets differs in each process
            return kind.__name__, [self.value(each, levels - 2) for each in items]
        if kind is bytes:
            return "bytes", kept(self._count_text(value))
        if issubclass(kind, enum.Enum):
            return "enum", [class_name(kind), self.value(value.name, levels - 2)]
        if issubclass(kind, BaseException):
            return "error", self._nested_details(value, levels - 2)
        message = message_of(value)
        if message is not None:
            return f"{message.module}.{message.name}", message.take(value, self._body)
        return "value", self._object(value, levels - 1)

    def _object(self, value: Any, levels: int) -> Plain:
        """Return the form of a value as in a run's state (journal/objects.py)."""
        try:
            tree = dumped(value, "")
        except InputError:
            raise NoForm from None
        if depth_of(tree) > levels:
            raise NoForm
        self._count_text(msgspec.json.encode(tree))
        return tree

    def _count_text(self, given: Any) -> Any:
        self._text -= len(given)
        if self._text < 0 or (isinstance(given, str) and text_of(given) != given):
            raise NoForm
        return given

    def _body(self, data: object) -> Plain:
        """Return the form of a body. One that is too long is left out."""
        body = body_of(data)
        try:
            return self._count_text(body) if isinstance(body, str) else body
        except NoForm:
            return None


def depth_of(tree: Plain) -> int:
    """Return how many levels a JSON tree has."""
    inner = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    return 1 + max(map(depth_of, inner), default=0)


def _fields_of(error: BaseException) -> Iterator[tuple[str, Any]]:
    """Yield the attributes in slots and in fields of Python's own classes, and those in the `__dict__`."""
    for name, descriptor in _descriptors(type(error)).items():
        try:
            value = descriptor.__get__(error)
        except AttributeError:  # the slot is empty
            continue
        if value is not None:
            yield name, value
    yield from list(_dict_of(error).items())


def _descriptors(kind: type) -> dict[str, Any]:
    """Return the fields of an exception's class that are not in its `__dict__`, by name. Reading them runs no code of
    the class."""
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        kinds = MemberDescriptorType if base.__flags__ & _IS_HEAP_TYPE else (MemberDescriptorType, GetSetDescriptorType)
        for name, each in vars(base).items():
            if base not in _WITHOUT_FIELDS and isinstance(each, kinds) and not name.startswith("__"):
                found[name] = each
    return found


_WITHOUT_FIELDS = (object, BaseException, BaseExceptionGroup)


def _dict_of(error: BaseException) -> dict[str, Any]:
    found: dict[str, Any] = _DICT.__get__(error)
    return found


# From records to exceptions


class ExceptionBuilder:
    """Creates exceptions.

    Args:
        raised: Creates an exception that another one holds, from class name, text and details.
    """

    def __init__(self, raised: Callable[[str, str, Plain], BaseException]) -> None:
        self._raised = raised

    def made(self, kind: type[BaseException], message: str, details: Mapping[str, Plain]) -> Iterator[BaseException]:
        """Yield exceptions of the class with these details; the caller takes the first whose text is the message.

        Raises:
            Exception: It cannot be created.
        """
        if any("__del__" in vars(base) for base in kind.__mro__):
            return
        if class_name(kind) == _PYDANTIC:
            yield from (self._chain(each, details) for each in self._validation_errors(kind, details))
            return
        yield self._fill(kind, message, details)
        if type(kind) is type and not any("__init_subclass__" in vars(base) for base in kind.__mro__[:-1]):
            lookalike: Any = type(kind.__name__, (kind,), {"__str__": lambda error: message})
            lookalike.__module__, lookalike.__qualname__ = kind.__module__, kind.__qualname__
            yield self._fill(lookalike, message, details)

    def fields(self, details: Mapping[str, Plain]) -> tuple[dict[str, Any], dict[str, str]]:
        """Return the attributes that can be restored here, and for each of the others the reason why not."""
        found: dict[str, Any] = {}
        left = {str(name): str(each) for name, each in details.get("left", {}).items()}
        for name, form in details.get("fields", {}).items():
            try:
                found[name] = self.value(form)
            except NoForm as why:
                left[name] = str(why)
        return found, left

    def _fill(self, kind: type[BaseException], message: str, details: Mapping[str, Plain]) -> BaseException:
        fields, left = self.fields(details)
        try:
            args = tuple(self.value(each) for each in details.get("args", [message] if message else []))
        except NoForm as why:
            args, left["args"] = (message,), str(why)
        base: Any = next(each for each in kind.__mro__ if not each.__flags__ & _IS_HEAP_TYPE)
        error: BaseException = base.__new__(kind, *(args if issubclass(kind, BaseExceptionGroup) else ()))
        _ARGS.__set__(error, args)
        descriptors = _descriptors(kind)
        for name, value in fields.items():
            if name in descriptors:
                descriptors[name].__set__(error, value)
            else:
                _dict_of(error)[name] = value
        if left:
            noted(error, f"not recorded of it: {', '.join(f'{name} ({each})' for name, each in left.items())}")
        return self._chain(error, details)

    def _chain(self, error: BaseException, details: Mapping[str, Plain]) -> BaseException:
        cause, context = (
            self._nested_exception(details[key]) if key in details else None for key in ("cause", "context")
        )
        if cause is not None:
            _CAUSE.__set__(error, cause)
        _CONTEXT.__set__(error, context or cause)
        _SUPPRESS.__set__(error, details.get("suppress") is True)
        return error

    def _nested_exception(self, form: Plain) -> BaseException:
        if not (isinstance(form, dict) and isinstance(form.get("exception"), str) and isinstance(form["message"], str)):
            raise NoForm("no exception")
        return self._raised(form["exception"], form["message"], form)

    def value(self, form: Plain) -> Any:
        """Return the value of a form.

        Raises:
            NoForm: The form is unknown, or its class is not imported here.
        """
        if isinstance(form, list):
            return [self.value(each) for each in form]
        if not isinstance(form, dict):
            return form
        name = next(iter(form)) if len(form) == 1 else ""
        if not name.startswith(_PREFIX):
            return {key: self.value(each) for key, each in form.items()}
        try:
            return self._value_of(name.removeprefix(_PREFIX), form[name])
        except NoForm:
            raise
        except Exception as error:  # constructors of exceptions may raise anything
            raise NoForm(f"{name.removeprefix(_PREFIX)}: {type(error).__name__}: {error}") from None

    def _value_of(self, name: str, form: Plain) -> Any:
        if name in _SEVERAL:
            return _SEVERAL[name]([self.value(each) for each in form])
        if name == "dict":
            return {self.value(key): self.value(each) for key, each in form}
        if name == "bytes":
            return bytes_of(form)
        if name == "error":
            return self._nested_exception(form)
        if name == "enum":
            kind, member = class_named(form[0]), form[1]
            if not issubclass(type(kind), enum.EnumMeta):
                raise NoForm(f"{form[0]}, which is not imported here")
            return vars(kind)["_member_map_"][member]
        return loaded(form) if name == "value" else message_made(name, form)

    def _validation_errors(self, kind: Any, details: Mapping[str, Plain]) -> Iterator[BaseException]:
        """Yield pydantic's error in two forms: its texts for JSON differ from those for Python values, and it does not
        say which of them it was."""
        core: Any = sys.modules[kind.__module__]
        known = {each["type"] for each in core.list_all_errors()}
        errors = []
        for each in self.value(details["lines"]):
            text = each["msg"].replace("{", "{{").replace("}", "}}")
            line = each["type"] if each["type"] in known else core.PydanticCustomError(each["type"], text, each["ctx"])
            ctx = {} if each["ctx"] is None else {"ctx": each["ctx"]}
            errors.append({"type": line, "loc": tuple(each["loc"]), "input": each["input"], **ctx})
        for given in ("python", "json"):
            error: BaseException = kind.from_exception_data(details["title"], errors, given)
            yield error


def noted(error: BaseException, text: str) -> None:
    """Add a note, even if its class replaces add_note."""
    notes = _dict_of(error).get("__notes__")
    _dict_of(error)["__notes__"] = [*(notes if isinstance(notes, list) else ()), f"refold: {text}"]
