"""The explorer of a log on Kafka: the same pages and the same questions."""

from __future__ import annotations

import base64

import pytest

from refold.explorer.demo.desk import RUN
from refold_tests.brokers import SharedKafka
from refold_tests.explored import CONFIG, FORK, READER, explored, write_incident

pytestmark = pytest.mark.timeout(600)


def test_log_on_kafka_has_the_same_pages(kafka: SharedKafka, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFOLD_MASTER_KEY", base64.b64encode(b"m" * 48).decode())
    url = f"kafka://{kafka.bootstrap}/{prefix}"
    write_incident(url)
    with explored(url) as pages:
        assert "A leaking kettle" in pages.get("/").text
        failure = pages.get(f"/run/{RUN}")
        assert "Step 4 pay" in failure.text
        assert pages.get(failure.url).body == failure.body
        assert "it knew 50 , the log had 500" in pages.get(f"/run/{READER}?step=2").text
        assert "@deploy-1" in pages.get(f"/entity/{CONFIG}?at=v1").text
        assert "first divergence at step 4" in pages.get(f"/compare?a={RUN}&b={FORK}").text
        assert "Examination" in pages.get("/operate").text
        assert pages.ask(f"/api/state/{CONFIG}").json["fields"]["rate_limit"]["value"] == 500
