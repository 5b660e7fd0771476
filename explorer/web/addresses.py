"""The addresses of pages."""

from __future__ import annotations

from urllib.parse import quote, urlencode


def link(*parts: str, **query: object) -> str:
    """Return the address of a page. parts: the parts of its path, unquoted; query: empty values are left out."""
    path = "/" + "/".join(quote(each, safe="", errors="replace") for each in parts)
    given = {name: _text(value) for name, value in query.items() if value not in (None, "", False)}
    return f"{path}?{urlencode(given, errors='replace')}" if given else path


def entity_link(entity: str, **query: object) -> str:
    """Return the address of an entity's page."""
    type_name, _, name = entity.partition("/")
    return link("entity", type_name, name, **query)


def _text(value: object) -> str:
    return "1" if value is True else str(value)
