"""The chart under test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from refold_tests import charts

# What is fetched and built once is then waited for by one worker.
_ELSEWHERE = ("test_running.py",)


@pytest.fixture(scope="package")
def chart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[charts.Helm]:
    """Helm with the chart, to render it with values."""
    with charts.helm(tmp_path_factory.mktemp("helm")) as running:
        yield running


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One of xdist's workers for all that asks Helm, but for what runs by itself."""
    for item in items:
        is_of_helm = item.path.parent.name == "helm" and item.path.name not in _ELSEWHERE
        if is_of_helm and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group("helm"))
