"""Every object of a deployment in Kubernetes, by the name of its file in a chart."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from hashlib import sha256
from typing import Any

from attrs import evolve

from omni_core.errors import ConfigError
from omni_export.deployment import HEAD, Deployment, HostPlan
from omni_export.kubernetes.pods import (
    API_KEY,
    JOIN_PORT,
    RUN_KEY,
    Options,
    head_pod,
    host_pod,
    labels,
    resources_of,
    secret_name,
)
from omni_launchers.hosts.curve import CurveKeys

__all__ = ["Options", "objects"]

_LONGEST_NAME = 52
"""Characters of the name of a StatefulSet: its pods have it in a label, of 63, with a dash and ten characters of a digest."""

Resources = Callable[[HostPlan], Any]


def objects(deployment: Deployment, options: Options, resources: Resources | None = None) -> dict[str, dict[str, Any]]:
    """Return the objects in the order in which they are applied.

    Args:
        resources: what the container of a host asks for, by default :func:`~omni_export.kubernetes.pods.resources_of`.
    """
    asked = resources or (lambda host: resources_of(host, options))
    options = evolve(options, checksum=options.checksum or checksum(deployment))
    found: dict[str, dict[str, Any]] = {}
    if deployment.files:
        found["files"] = _object("v1", "ConfigMap", "files", deployment, options, data=dict(deployment.files))
    if options.secret is None and (deployment.hosts or not deployment.is_public):
        found["keys"] = _secret(deployment, options)
    if options.weights_claim is None and options.weights_size is not None:
        found["weights"] = _claim(deployment, options)
    found["service"] = _service(deployment, options, "", HEAD, deployment.port, "http")
    if deployment.hosts:
        found["service-head"] = _headless(deployment, options, "head", labels(deployment, HEAD), JOIN_PORT)
        found["service-hosts"] = _headless(deployment, options, "hosts", labels(deployment), JOIN_PORT)
    found["head"] = _head(deployment, options, asked)
    for host in deployment.hosts:
        found[f"host-{host.label}"] = _host(deployment, options, host, asked)
    found["disruption-budget"] = _object(
        "policy/v1",
        "PodDisruptionBudget",
        "",
        deployment,
        options,
        spec={"maxUnavailable": 1, "selector": {"matchLabels": labels(deployment)}},
    )
    found["network-pods"] = _network(deployment, options)
    found["network-http"] = _network(deployment, options, http=True)
    if options.monitor:
        found["monitor"] = _monitor(deployment, options)
    return found


def checksum(deployment: Deployment) -> str:
    """Return a digest of the deploy files: the head's pod is replaced when they change."""
    return sha256("".join(text for _, text in sorted(deployment.files.items())).encode()).hexdigest()


def _object(
    version: str, kind: str, suffix: str, deployment: Deployment, options: Options, **content: Any
) -> dict[str, Any]:
    name = f"{deployment.name}-{suffix}" if suffix else deployment.name
    if kind == "StatefulSet" and len(name) > _LONGEST_NAME:
        raise ConfigError(
            f"host {suffix!r}: {name} is {len(name)} characters, and the name of a StatefulSet may have {_LONGEST_NAME}, as its pods "
            "have labels with more; give a shorter --name, or a shorter `host`"
        )
    place = {"namespace": options.namespace} if options.namespace is not None else {}
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": name, **place, "labels": labels(deployment)},
        **content,
    }


def _secret(deployment: Deployment, options: Options) -> dict[str, Any]:
    data = {RUN_KEY: CurveKeys.new().text()} if deployment.hosts else {}
    if not deployment.is_public:
        data[API_KEY] = secrets.token_urlsafe(32)
    return _object("v1", "Secret", "keys", deployment, options, type="Opaque", stringData=data)


def _claim(deployment: Deployment, options: Options) -> dict[str, Any]:
    mode = "ReadWriteMany" if deployment.hosts else "ReadWriteOnce"
    storage = {"storageClassName": options.storage_class} if options.storage_class is not None else {}
    spec = {"accessModes": [mode], **storage, "resources": {"requests": {"storage": options.weights_size}}}
    return _object("v1", "PersistentVolumeClaim", "weights", deployment, options, spec=spec)


def _service(
    deployment: Deployment, options: Options, suffix: str, component: str, port: int, name: str
) -> dict[str, Any]:
    ports = [{"name": name, "port": port, "targetPort": name}]
    made = _object(
        "v1", "Service", suffix, deployment, options, spec={"selector": labels(deployment, component), "ports": ports}
    )
    made["metadata"]["labels"] = labels(deployment, component)
    return made


def _headless(
    deployment: Deployment, options: Options, suffix: str, selector: dict[str, str], port: int
) -> dict[str, Any]:
    """Return a Service that gives pods names. The head gets its own before it is ready: it is ready when its hosts have joined."""
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": selector,
        "ports": [{"name": "join", "port": port}],
    }
    return _object("v1", "Service", suffix, deployment, options, spec=spec)


def _head(deployment: Deployment, options: Options, resources: Resources) -> dict[str, Any]:
    template = head_pod(deployment, options, resources(deployment.head))
    spec = {
        "replicas": 1,
        "strategy": {"type": "Recreate"},  # two heads would want the same hosts and devices
        "selector": {"matchLabels": labels(deployment, HEAD)},
        "template": template,
    }
    return _object("apps/v1", "Deployment", "head", deployment, options, spec=spec)


def _host(deployment: Deployment, options: Options, host: HostPlan, resources: Resources) -> dict[str, Any]:
    spec = {
        "replicas": 1,
        "serviceName": f"{deployment.name}-hosts",
        "selector": {"matchLabels": labels(deployment, host.label)},
        "template": host_pod(deployment, options, host, resources(host)),
    }
    return _object("apps/v1", "StatefulSet", host.label, deployment, options, spec=spec)


def _network(deployment: Deployment, options: Options, http: bool = False) -> dict[str, Any]:
    """Return a policy: pods of the deployment reach each other, others only the server's port."""
    everyone = {"ports": [{"protocol": "TCP", "port": "http"}]}
    each_other = {"from": [{"podSelector": {"matchLabels": labels(deployment)}}]}
    spec = {
        "podSelector": {"matchLabels": labels(deployment, HEAD) if http else labels(deployment)},
        "policyTypes": ["Ingress"],
        "ingress": [everyone if http else each_other],
    }
    suffix = "http" if http else "pods"
    return _object("networking.k8s.io/v1", "NetworkPolicy", suffix, deployment, options, spec=spec)


def _monitor(deployment: Deployment, options: Options) -> dict[str, Any]:
    endpoint: dict[str, Any] = {
        "port": "http",
        "path": "/metrics",
        "scheme": "https" if deployment.is_secure else "http",
    }
    if not deployment.is_public:
        credentials = {"name": secret_name(deployment, options), "key": API_KEY}
        endpoint["authorization"] = {"type": "Bearer", "credentials": credentials}
    spec = {"selector": {"matchLabels": labels(deployment, HEAD)}, "endpoints": [endpoint]}
    return _object("monitoring.coreos.com/v1", "ServiceMonitor", "", deployment, options, spec=spec)
