"""What the chart takes, and what it refuses: with the place of the value, before anything is installed."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from refold.streams.log.kafka.settings import _SECRET
from refold_tests.chart_values import SECRET, VALUES
from refold_tests.charts import CHART, ChartRefused, Helm, Values

_SINK = {"name": "one", "kind": "postgres", "to": "postgresql://db/x"}
_POLICY = {"enabled": True, "kafka": [{"to": [{"podSelector": {}}], "ports": [9092]}]}
WRONG: list[tuple[Values, str]] = [
    ({"replicas": 3}, "additional properties 'replicas' not allowed"),
    ({"workers": {"replica": 3}}, "at '/workers': additional properties 'replica' not allowed"),
    ({"workers": {"replicas": "3"}}, "at '/workers/replicas': got string, want integer"),
    ({"workers": {"replicas": -1}}, "at '/workers/replicas': minimum"),
    ({"workers": {"replicas": 2.5}}, "at '/workers/replicas'"),
    ({"workers": {"replicas": 9}}, "give at most as many workers as log.partitions"),
    ({"workers": {"standby": "yes"}}, "at '/workers/standby': got string, want boolean"),
    ({"workers": {"port": 80}}, "at '/workers/port': minimum"),
    ({"workers": {"commitIntervalMs": 0}}, "at '/workers/commitIntervalMs': minimum"),
    ({"workers": {"terminationGracePeriodSeconds": 30}}, "at '/workers/terminationGracePeriodSeconds': minimum"),
    ({"workers": {"agents": "not-a-module"}}, "at '/workers/agents'"),
    ({"workers": {"persistence": {"size": "20 GB"}}}, "at '/workers/persistence/size'"),
    ({"workers": {"persistence": {"whenDeleted": "retain"}}}, "at '/workers/persistence/whenDeleted'"),
    ({"workers": {"podDisruptionBudget": {"maxUnavailable": 0}}}, "at '/workers/podDisruptionBudget/maxUnavailable'"),
    ({"workers": {"probes": {"liveness": {"path": "/"}}}}, "at '/workers/probes/liveness': additional properties"),
    ({"workers": {"resources": {"limit": {"cpu": 1}}}}, "at '/workers/resources': additional properties 'limit'"),
    ({"workers": {"resources": {"requests": {"memory": "2 gigs"}}}}, "at '/workers/resources/requests/memory'"),
    ({"sinks": [{**_SINK, "tls": {"existingSecret": "own"}}]}, "at '/sinks/0': additional properties 'tls'"),
    ({"sinkDefaults": {"tls": {"existingSecret": "No Name"}}}, "at '/sinkDefaults/tls/existingSecret'"),
    ({"log": {"brokers": []}}, "at '/log/brokers': minItems"),
    ({"log": {"brokers": "kafka:9092"}}, "at '/log/brokers': got string, want array"),
    ({"log": {"brokers": ["kafka"]}}, "at '/log/brokers/0'"),
    ({"log": {"brokers": [f"user:{SECRET}@kafka:9092"]}}, "at '/log/brokers/0'"),
    ({"log": {"partitions": 12}}, "at '/log/partitions': value must be one of"),
    ({"log": {"prefix": "agents/eu"}}, "at '/log/prefix'"),
    ({"log": {"url": "kafka://a:9092/x"}}, "at '/log': additional properties 'url'"),
    ({"kafka": {"settings": {"sasl.password": SECRET}}}, "at '/kafka/settings/sasl.password': value must be 'a secret"),
    ({"kafka": {"settings": {"sasl.jaas.config": SECRET}}}, "sasl.jaas.config': value must be 'a secret"),
    ({"kafka": {"settings": {"ssl.key.password": SECRET}}}, "ssl.key.password': value must be 'a secret"),
    ({"kafka": {"settings": {"ssl.key.pem": SECRET}}}, "at '/kafka/settings/ssl.key.pem': value must be 'a secret"),
    ({"kafka": {"settings": {"SASL_USERNAME": "x"}}}, "invalid propertyName 'SASL_USERNAME'"),
    ({"kafka": {"secretSettings": {"sasl.password": SECRET}}}, "at '/kafka/secretSettings/sasl.password': got string"),
    ({"kafka": {"secretSettings": {"sasl.password": {"secret": "a"}}}}, "missing property 'key'"),
    ({"kafka": {"password": SECRET}}, "at '/kafka': additional properties 'password'"),
    ({"topics": {"kafka": {"settings": {"sasl.password": SECRET}}}}, "at '/topics/kafka'"),
    ({"registry": {"url": f"https://u:{SECRET}@r"}}, "at '/registry/url'"),
    ({"registry": {"existingSecret": "s"}}, "at '/registry/existingSecret'"),
    ({"registry": {"url": "http://r", "settings": {"ssl.key.password": SECRET}}}, "must be one of 'ssl.ca.location'"),
    ({"blobs": {"url": "/mnt/blobs"}}, "at '/blobs/url'"),
    ({"env": {"OUR_PASSWORD": SECRET}}, "at '/env/OUR_PASSWORD': value must be 'a secret"),
    ({"env": {"REFOLD_MASTER_KEY": SECRET}}, "at '/env/REFOLD_MASTER_KEY': value must be 'a secret"),
    ({"env": {"AWS_SECRET_ACCESS_KEY": SECRET}}, "at '/env/AWS_SECRET_ACCESS_KEY': value must be 'a secret"),
    ({"env": {"REFOLD_LOG": "kafka://a:1/b"}}, "at '/env/REFOLD_LOG': value must be 'set by the chart"),
    ({"env": {"COUNT": 3}}, "at '/env/COUNT': got number, want string"),
    ({"secretEnv": {"OUR_TOKEN": SECRET}}, "at '/secretEnv/OUR_TOKEN'"),
    ({"secretFiles": ["Upper"]}, "at '/secretFiles/0'"),
    ({"sinks": {"postgres": {}}}, "at '/sinks': got object, want array"),
    ({"sinks": [{"name": "one", "kind": "postgres"}]}, "missing property 'to'"),
    ({"sinks": [{**_SINK, "kind": "mysql"}]}, "at '/sinks/0/kind'"),
    ({"sinks": [{**_SINK, "name": "One"}]}, "at '/sinks/0/name'"),
    ({"sinks": [{**_SINK, "name": "a" * 17}]}, "at '/sinks/0/name'"),
    ({"sinks": [{**_SINK, "to": "db.example"}]}, "at '/sinks/0/to'"),
    ({"sinks": [{**_SINK, "to": f"postgresql://refold:{SECRET}@db/x"}]}, "'/sinks/0/to': value must be 'a URL"),
    ({"sinks": [{**_SINK, "to": f"postgresql://db/x?user=a&password={SECRET}"}]}, "at '/sinks/0/to'"),
    ({"sinks": [{**_SINK, "replicas": 2}]}, "at '/sinks/0': additional properties 'replicas'"),
    ({"sinks": [{**_SINK, "terminationGracePeriodSeconds": 1}]}, "at '/sinks/0/terminationGracePeriodSeconds'"),
    ({"sinks": [{**_SINK, "kind": "otlp", "to": "http://c:4318"}]}, "give it a volume, size or existingClaim"),
    ({"sinks": [_SINK, _SINK]}, "sinks: two are called one"),
    ({"env": {"A": "1"}, "secretEnv": {"A": {"secret": "a", "key": "b"}}}, "A is under env and under secretEnv"),
    ({"env": {"HOME": "/root"}}, "at '/env/HOME': value must be 'set by the chart"),
    ({"secretEnv": {"REFOLD_KAFKA_SASL_PASSWORD": {"secret": "a", "key": "b"}}}, "value must be 'set by the chart"),
    ({"image": {"repository": "Refold"}}, "at '/image/repository'"),
    ({"image": {"digest": "abc"}}, "at '/image/digest'"),
    ({"image": {"pullPolicy": "Sometimes"}}, "at '/image/pullPolicy'"),
    ({"retention": {"schedule": "nightly"}}, "at '/retention/schedule'"),
    ({"retention": {"classes": {"success": "3d"}}}, "at '/retention/classes/success'"),
    ({"monitoring": {"serviceMonitor": {"interval": "15"}}}, "at '/monitoring/serviceMonitor/interval'"),
    ({"networkPolicy": {"enabled": True}}, "at '/networkPolicy/kafka': minItems"),
    ({"networkPolicy": {**_POLICY, "dns": []}}, "at '/networkPolicy/dns': minItems"),
    ({"networkPolicy": {**_POLICY, "kafka": [{"ports": [9092]}]}}, "at '/networkPolicy/kafka/0': missing property"),
    ({"networkPolicy": {**_POLICY, "kafka": [{"to": [{}], "ports": [1]}]}}, "at '/networkPolicy/kafka/0/to/0'"),
    ({"networkPolicy": {**_POLICY, "clients": [{"ipBlock": {"cidr": "10.0.0.1"}}]}}, "/ipBlock/cidr'"),
    ({"podSecurity": {"runAsUser": 0}}, "at '/podSecurity/runAsUser': minimum"),
    ({"podSecurity": {"privileged": True}}, "at '/podSecurity': additional properties 'privileged'"),
    ({"serviceAccount": {"token": True}}, "at '/serviceAccount': additional properties 'token'"),
]  # fmt: skip


@pytest.mark.parametrize(("values", "said"), WRONG, ids=[said for _, said in WRONG])
def test_wrong_value_is_refused_by_its_path(chart: Helm, values: Values, said: str) -> None:
    with pytest.raises(ChartRefused) as refused:
        chart.template(values)
    assert said in str(refused.value)


def test_secret_value_is_never_rendered_or_shown_in_the_message(chart: Helm) -> None:
    for values, _ in WRONG:
        if SECRET in json.dumps(values):
            with pytest.raises(ChartRefused) as refused:
                chart.template(values)
            assert SECRET not in str(refused.value)
    for values in VALUES.values():
        assert "kind: Secret" not in chart.template(values)


@pytest.mark.parametrize("name", ["sasl.password", "ssl.key.password", "sasl.jaas.config", "basic.auth.user.info",
                                  "ssl.key.pem", "ssl.keystore.key", "sasl.oauthbearer.client.secret",
                                  "sasl.oauthbearer.config", "ssl.keystore.password"])  # fmt: skip
def test_chart_and_clients_agree_on_what_is_secret(chart: Helm, name: str) -> None:
    assert _SECRET.search(name)
    with pytest.raises(ChartRefused, match=r"at '/kafka/settings/.*: value must be 'a secret"):
        chart.template({"kafka": {"settings": {name: "x"}}})
    chart.template({"kafka": {"secretSettings": {name: {"secret": "a", "key": "b"}}}})


def test_schema_is_strict_everywhere() -> None:
    """An object that takes names which nobody knows would take misspelt ones."""
    loose = []

    def look(node: Any, at: str) -> None:
        if isinstance(node, dict):
            if "properties" in node and node.get("type") == "object" and node.get("additionalProperties") is not False:
                loose.append(at)
            for key, value in node.items():
                look(value, f"{at}/{key}")
        elif isinstance(node, list):
            for number, value in enumerate(node):
                look(value, f"{at}/{number}")

    look(json.loads((CHART / "values.schema.json").read_text(encoding="utf-8")), "")
    assert loose == []


def _leaves(tree: Any, at: str = "") -> dict[str, Any]:
    """Each value by its dotted name; an empty mapping and a list are values."""
    if not isinstance(tree, dict) or not tree:
        return {at: tree}
    return {
        name: value for key, each in tree.items() for name, value in _leaves(each, f"{at}.{key}" if at else key).items()
    }


def test_readmes_table_matches_the_values() -> None:
    """Every value with its default, in the file's order."""
    rows = re.findall(r"^\| `([^`]+)` \| `(.*?)` \| (.+) \|$", (CHART / "README.md").read_text(encoding="utf-8"), re.M)
    told = {name: yaml.safe_load(default) for name, default, _ in rows if not name.startswith("sinks[].")}
    # One row for what belongs together.
    whole = {name for name in told if isinstance(told[name], dict) and told[name]}
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    wanted: dict[str, Any] = {}
    for name, value in _leaves(values).items():
        above = next((each for each in whole if name.startswith(f"{each}.")), None)
        if above is None:
            wanted[name] = value
        else:
            node = values
            for step in above.split("."):
                node = node[step]
            wanted[above] = node
    assert told == wanted
    assert list(told) == list(wanted)


def test_readme_describes_each_setting_of_a_sink() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    known = set(schema["properties"]["sinks"]["items"]["properties"]) - set(
        schema["properties"]["sinkDefaults"]["properties"]
    )
    text = (CHART / "README.md").read_text(encoding="utf-8")
    assert known == set(re.findall(r"^\| `sinks\[\]\.(\w+)` \|", text, re.M))
