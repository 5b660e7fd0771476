"""Sets of values with which the chart is rendered, each named after its subject."""

from __future__ import annotations

from typing import Any

SECRET = "hunter2"
_FROM = {"secret": "kafka-user", "key": "password"}
_POSTGRES = {
    "name": "analytics", "kind": "postgres", "to": "postgresql://refold@db.example:5432/analytics",
    "secretEnv": {"PGPASSWORD": {"secret": "analytics-db", "key": "password"}},
    "egress": [{"to": [{"ipBlock": {"cidr": "10.9.0.0/16"}}], "ports": [5432]}],
}  # fmt: skip
_PARQUET = {
    "name": "lake", "kind": "parquet", "to": "s3://lake/refold", "env": {"AWS_REGION": "eu-central-1"},
    "secretEnv": {"AWS_ACCESS_KEY_ID": {"secret": "lake", "key": "id"},
                  "AWS_SECRET_ACCESS_KEY": {"secret": "lake", "key": "secret"}},
    "tmpSizeLimit": "50Gi", "resources": {"requests": {"cpu": "1", "memory": "4Gi"}, "limits": {"memory": "4Gi"}},
}  # fmt: skip
_OTLP = {"name": "traces", "kind": "otlp", "to": "http://collector:4318", "keys": True, "size": "1Gi"}
_BROKERS = [{"to": [{"podSelector": {"matchLabels": {"app": "kafka"}}}], "ports": [9093]}]
_PROMETHEUS = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]

_EXTRA: dict[str, Any] = {
    "extraVolumes": [{"name": "ca", "configMap": {"name": "company-ca"}}],
    "extraVolumeMounts": [{"name": "ca", "mountPath": "/etc/ssl/company", "readOnly": True}],
    "initContainers": [{"name": "wait", "image": "busybox:1", "command": ["true"]}],
}
_SPREAD = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule",
           "labelSelector": {"matchLabels": {"a": "b"}}}  # fmt: skip
_PLACE: dict[str, Any] = {
    "nodeSelector": {"pool": "jobs"}, "tolerations": [{"key": "jobs", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
        {"weight": 1, "preference": {"matchExpressions": [{"key": "disk", "operator": "Exists"}]}}]}},
    "topologySpreadConstraints": [_SPREAD],
}  # fmt: skip

VALUES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "one-worker": {"workers": {"replicas": 1, "podDisruptionBudget": {"enabled": False}}, "log": {"partitions": 1}},
    "many-workers": {
        "log": {"brokers": ["kafka-0.kafka:9092", "kafka-1.kafka:9092", "[fd00::3]:9092"], "prefix": "agents.eu",
                "partitions": 256},
        "workers": {"replicas": 64, "standby": True, "podDisruptionBudget": {"maxUnavailable": "10%"},
                    "persistence": {"storageClass": "fast", "size": "500Gi", "whenDeleted": "Delete"}},
    },
    "ephemeral": {"workers": {"persistence": {"enabled": False, "size": "40Gi"}}},
    "default-class": {"workers": {"persistence": {"storageClass": ""}}},
    "tls-properties": {"kafka": {"existingSecret": "kafka-client", "propertiesKey": "worker.properties"}},
    "sasl": {
        "kafka": {
            "settings": {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "worker",
                         "ssl.ca.location": "/etc/refold/secrets/kafka-ca/ca.crt", "socket.timeout.ms": 30000},
            "secretSettings": {"sasl.password": _FROM},
        },
        "secretFiles": ["kafka-ca"],
        "topics": {"kafka": {"existingSecret": "kafka-admin"}},
        "workers": {"kafka": {"settings": {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN",
                                           "sasl.username": "fold"}, "secretSettings": {"sasl.password": _FROM}}},
    },
    "registry": {
        "registry": {"url": "https://registry.example:8081", "existingSecret": "registry-user",
                     "settings": {"ssl.ca.location": "/etc/refold/secrets/registry-ca/ca.crt"}},
        "secretFiles": ["registry-ca"],
    },
    "postgres": {"sinks": [_POSTGRES]},
    "parquet": {"sinks": [_PARQUET, {**_PARQUET, "name": "lake-2", "to": "file:///data/refold",
                                     "everySeconds": 300, "existingClaim": "lake"}]},
    "otlp": {"sinks": [_OTLP], "keys": {"existingSecret": "refold-keys"}},
    "own-sink": {"sinks": [{"name": "own", "kind": "shop.sinks:warehouse", "port": 7000,
                            "toFrom": {"secret": "warehouse", "key": "url"},
                            "kafka": {"existingSecret": "kafka-sink"}}]},
    "monitoring": {
        "sinks": [_POSTGRES],
        "monitoring": {"serviceMonitor": {"enabled": True, "interval": "15s", "labels": {"release": "prometheus"}},
                       "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
                       "dashboard": {"enabled": True}},
    },
    "network-policy": {
        "sinks": [_POSTGRES, _OTLP],
        "retention": {"enabled": True},
        "networkPolicy": {"enabled": True, "kafka": _BROKERS, "monitoring": _PROMETHEUS,
                          "clients": [{"podSelector": {}}],
                          "registry": [{"to": [{"ipBlock": {"cidr": "10.2.0.7/32"}}], "ports": [8081]}]},
    },
    "retention": {
        "garbage": {"enabled": True},
        "retention": {"enabled": True, "schedule": "@daily", "classes": {"success": 3, "failed": 60}},
        "keys": {"existingSecret": "refold-keys", "masterKeyKey": "master"},
        "blobs": {"existingClaim": "blobs"},
        "types": {"existingConfigMap": "our-types"},
    },
    "openshift": {"podSecurity": {"runAsUser": None, "runAsGroup": None, "fsGroup": None},
                  "serviceAccount": {"create": False, "name": "refold"}},
    "placed": {
        "nameOverride": "fold", "image": {"repository": "registry.example:5000/data/refold",
                                          "digest": "sha256:" + "0f" * 32, "pullSecrets": ["pull"]},
        "env": {"PYTHONPATH": "/app"}, "secretEnv": {"OUR_TOKEN": {"secret": "ours", "key": "token"}},
        "workers": {"nodeSelector": {"disk": "nvme"}, "tolerations": [{"key": "fold", "operator": "Exists"}],
                    "priorityClassName": "high", "podLabels": {"team": "data"}, "podAnnotations": {"note": "a: b"},
                    "agents": "refold.agents.examples.loops", "topologySpreadConstraints": [],
                    "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
                        {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"a": "b"}}}]}}},
    },
    "extras": {
        "commonLabels": {"cost-centre": "42"},
        "workers": {**_EXTRA, "extraArgs": ["--owner-timeout=60"], "service": {"annotations": {"note": "a"}}},
        "sinks": [{**_POSTGRES, **_EXTRA, "extraArgs": ["--owner-timeout=60"], "topologySpreadConstraints": [_SPREAD]}],
        "topics": {**_EXTRA, **_PLACE, "extraArgs": ["--json"], "serviceAccountName": "maker"},
        "retention": {**_EXTRA, **_PLACE, "enabled": True, "extraArgs": ["--json"]},
        "garbage": {**_EXTRA, "enabled": True, "serviceAccountName": "cleaner"},
        "blobs": {"url": "s3://contents/refold"},
    },
    "autoscaled": {"workers": {"autoscaling": {"enabled": True}}},
    "keda": {"workers": {"autoscaling": {"enabled": True, "minReplicas": 1, "maxReplicas": 4, "kedaTriggers": [
        {"type": "kafka", "metadata": {"bootstrapServers": "kafka:9092", "consumerGroup": "refold.agents",
                                       "topic": "agents.observations", "lagThreshold": "50000"}}]}}},
    "renamed-monitoring": {
        "fullnameOverride": "fold", "nameOverride": "folder", "sinks": [_POSTGRES],
        "monitoring": {"serviceMonitor": {"enabled": True}, "prometheusRule": {"enabled": True},
                       "runbookBaseUrl": "https://docs.example/OPERATIONS.html"},
    },
    "least": {"topics": {"enabled": False}, "test": {"enabled": False}, "serviceAccount": {"create": False},
              "fullnameOverride": "fold", "blobs": {"url": "file:///mnt/blobs"}},
}  # fmt: skip
