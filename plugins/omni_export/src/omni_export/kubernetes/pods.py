"""The pods of a deployment: that of the head, and one for each host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import frozen

from omni_export.deployment import END_SECONDS, Deployment, HostPlan

FILES, KEYS, WEIGHTS, SHARED = "/etc/omni", "/etc/omni-keys", "/models", "/dev/shm"
"""The folders of a pod: the deploy files, the keys, the checkpoints, the memory that its processes share."""

RUN_KEY, API_KEY = "run.key", "api-key"
"""The keys of the Secret: what hosts join with, and what clients send."""

JOIN_PORT = 7555
"""The port at which hosts join the head."""

POD_ADDRESS = "[$(POD_IP)]"
"""The address of a pod in its own command; brackets are for IPv6, and do no harm elsewhere."""

USER = 1000
"""The user and group of the containers."""

BEFORE_STOP_SECONDS = 5
"""The time between the removal of a pod from its Services and the signal that ends it."""

HOST_END_SECONDS = 30
"""The time that a host has to end its processes."""


@frozen(kw_only=True)
class Options:
    """The settings of Kubernetes beside the deployment.

    Attributes:
        image: that of all containers. namespace: of all objects; ``None``: that of who applies them.
        secret: the name of a Secret that exists; ``None``: one is made.
        weights_size: of a claim that is made for checkpoints; ``None``: there is none. weights_claim: one that exists, in its place.
        storage_class: of the claim. shared_memory: of a pod, for relays. gpu_resource: how devices are asked for.
        pull_secret: for the image's registry. monitor: make a ServiceMonitor.
        checksum: of the deploy files; by default it is computed.
    """

    image: str
    namespace: str | None = None
    secret: str | None = None
    weights_size: str | None = "100Gi"
    weights_claim: str | None = None
    storage_class: str | None = None
    shared_memory: str = "8Gi"
    gpu_resource: str = "nvidia.com/gpu"
    pull_secret: str | None = None
    monitor: bool = False
    checksum: str = ""

    @property
    def has_weights(self) -> bool:
        """Return whether there is a volume for checkpoints."""
        return self.weights_claim is not None or self.weights_size is not None


def labels(deployment: Deployment, component: str | None = None) -> dict[str, str]:
    """Return the labels of a deployment's objects; with a component those of its pods."""
    found = {"app.kubernetes.io/name": "omni", "app.kubernetes.io/instance": deployment.name}
    return found if component is None else {**found, "app.kubernetes.io/component": component}


def head_pod(deployment: Deployment, options: Options, resources: Any) -> dict[str, Any]:
    """Return the pod template of the head."""
    command = _command(deployment.serve(FILES, POD_ADDRESS, JOIN_PORT, f"{KEYS}/{RUN_KEY}"))
    environment: list[dict[str, Any]] = []
    if not deployment.is_public:
        secret = {"name": secret_name(deployment, options), "key": API_KEY}
        environment.append({"name": "OMNI_API_KEY", "valueFrom": {"secretKeyRef": secret}})
    ports = [{"name": "http", "containerPort": deployment.port}]
    ports += [{"name": "join", "containerPort": JOIN_PORT}] if deployment.hosts else []
    container = {
        **_container(deployment, options, deployment.head, command, environment, resources),
        "ports": ports,
        "startupProbe": _probe(deployment, "/health", 5, -(-deployment.startup // 5)),
        "livenessProbe": _probe(deployment, "/health", 10, 6),
        "readinessProbe": _probe(deployment, "/health/ready", 5, 1),
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", str(BEFORE_STOP_SECONDS)]}}},
    }
    seconds = BEFORE_STOP_SECONDS + deployment.drain + END_SECONDS
    return _pod(deployment, options, deployment.head, container, seconds)


def host_pod(deployment: Deployment, options: Options, host: HostPlan, resources: Any) -> dict[str, Any]:
    """Return the pod template of a host."""
    head = f"tcp://{deployment.name}-head:{JOIN_PORT}"
    command = _command(deployment.join(host, head, f"{KEYS}/{RUN_KEY}", POD_ADDRESS))
    container = _container(deployment, options, host, command, [], resources)
    return _pod(deployment, options, host, container, HOST_END_SECONDS)


def secret_name(deployment: Deployment, options: Options) -> str:
    """Return the name of the Secret with the keys."""
    return options.secret or f"{deployment.name}-keys"


def resources_of(host: HostPlan, options: Options) -> dict[str, Any]:
    """Return what a host's container asks for: a processor for each of its processes, and its GPUs."""
    found: dict[str, Any] = {"requests": {"cpu": str(max(1, host.processes))}}
    if host.gpus:
        found["limits"] = {options.gpu_resource: str(host.gpus)}
    return found


def _command(arguments: Sequence[str]) -> list[str]:
    """Return a container's command, in which Kubernetes replaces no variable but that of :data:`POD_ADDRESS`."""
    return ["omni", *(word if POD_ADDRESS in word else word.replace("$(", "$$(") for word in arguments)]


def _probe(deployment: Deployment, path: str, period: int, failures: int) -> dict[str, Any]:
    scheme = "HTTPS" if deployment.is_secure else "HTTP"
    get = {"path": path, "port": "http", "scheme": scheme}
    return {"httpGet": get, "periodSeconds": period, "timeoutSeconds": 5, "failureThreshold": failures}


def _container(
    deployment: Deployment,
    options: Options,
    host: HostPlan,
    command: Sequence[str],
    environment: list[dict[str, Any]],
    resources: Any,
) -> dict[str, Any]:
    variables = [
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "HOME", "value": "/tmp"},
        {"name": "OMNI_LOG_FORMAT", "value": "json"},
        *([{"name": "HF_HOME", "value": WEIGHTS}] if options.has_weights else []),
        *environment,
    ]
    mounts: list[dict[str, Any]] = [
        {"name": "temporary", "mountPath": "/tmp"},
        {"name": "shared-memory", "mountPath": SHARED},
    ]
    if host is deployment.head and deployment.files:
        mounts.append({"name": "files", "mountPath": FILES, "readOnly": True})
    if deployment.hosts:
        mounts.append({"name": "keys", "mountPath": KEYS, "readOnly": True})
    if options.has_weights:
        mounts.append({"name": "weights", "mountPath": WEIGHTS})
    return {
        "name": "omni",
        "image": options.image,
        "command": list(command),
        "env": variables,
        "resources": resources,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": mounts,
    }


def _pod(
    deployment: Deployment, options: Options, host: HostPlan, container: dict[str, Any], seconds: int
) -> dict[str, Any]:
    volumes: list[dict[str, Any]] = [
        {"name": "temporary", "emptyDir": {}},
        {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": options.shared_memory}},
    ]
    if host is deployment.head and deployment.files:
        volumes.append({"name": "files", "configMap": {"name": f"{deployment.name}-files"}})
    if deployment.hosts:
        item = {"key": RUN_KEY, "path": RUN_KEY, "mode": 0o440}
        volumes.append({"name": "keys", "secret": {"secretName": secret_name(deployment, options), "items": [item]}})
    if options.has_weights:
        claim = options.weights_claim or f"{deployment.name}-weights"
        volumes.append({"name": "weights", "persistentVolumeClaim": {"claimName": claim}})
    metadata: dict[str, Any] = {"labels": labels(deployment, host.label)}
    if host is deployment.head and deployment.files:
        metadata["annotations"] = {"omni/files": options.checksum}
    pod: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": seconds,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        **({"imagePullSecrets": [{"name": options.pull_secret}]} if options.pull_secret else {}),
        "containers": [container],
        "volumes": volumes,
    }
    return {"metadata": metadata, "spec": pod}
