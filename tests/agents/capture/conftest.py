"""What all tests of the capture share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import certifi
import pytest


@pytest.fixture(scope="module", autouse=True)
def _one_authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """SDK clients load one certificate authority, instead of all: 20 ms for each client. No server here has TLS."""
    file = tmp_path_factory.mktemp("authority") / "one.pem"
    end = "-----END CERTIFICATE-----\n"
    file.write_text(Path(certifi.where()).read_text(encoding="utf-8").partition(end)[0] + end, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(file))
        yield
