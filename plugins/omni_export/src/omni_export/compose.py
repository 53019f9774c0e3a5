"""A deployment as a compose file: the server and each host in a container, on one machine."""

from __future__ import annotations

import secrets
from typing import Any

from omni_export.deployment import END_SECONDS, HEAD, Deployment, HostPlan
from omni_export.documents import commented, dump
from omni_launchers.hosts.curve import CurveKeys

FILES, KEY, WEIGHTS = "/etc/omni", "/run/secrets/run.key", "/models"
JOIN_PORT = 7555
HOST_END_SECONDS = 30
SHARED_MEMORY = "8gb"

_HEALTH = "import urllib.request as r; r.urlopen('{scheme}://127.0.0.1:{port}/health', timeout=4{context})"


def compose_files(deployment: Deployment, image: str) -> tuple[dict[str, str], dict[str, int]]:
    """Return the files by name, and the modes of those that are secret."""
    files = {f"files/{name}": text for name, text in deployment.files.items()}
    modes = {}
    if deployment.hosts:
        files["run.key"], modes["run.key"] = CurveKeys.new().text(), 0o600
    if not deployment.is_public:
        files[".env"], modes[".env"] = f"OMNI_API_KEY={secrets.token_urlsafe(32)}\n", 0o600
    first, services = 0, dict[str, Any]()
    for host in deployment.machines:
        services[HEAD if host is deployment.head else host.label] = _service(deployment, host, image, first)
        first += host.gpus
    document: dict[str, Any] = {"name": deployment.name, "services": services, "volumes": {"weights": {}}}
    if deployment.hosts:
        document["secrets"] = {"run.key": {"file": "./run.key"}}
    about = ["docker compose up --detach; the containers run as user 1000, who must be able to read run.key."]
    return {"compose.yaml": commented(about) + dump(document), **files}, modes


def _service(deployment: Deployment, host: HostPlan, image: str, first: int) -> dict[str, Any]:
    is_head = host is deployment.head
    head = f"tcp://{HEAD}:{JOIN_PORT}"
    arguments = deployment.serve(FILES, HEAD, JOIN_PORT, KEY) if is_head else deployment.join(host, head, KEY)
    volumes = ["weights:" + WEIGHTS]
    made: dict[str, Any] = {
        "image": image,
        "command": [word.replace("$", "$$") for word in ("omni", *arguments)],  # compose reads $ as its own
        "hostname": HEAD if is_head else host.label,
        "user": "${UID:-1000}:${GID:-1000}",
        "environment": {"HOME": "/tmp", "HF_HOME": WEIGHTS},
        "restart": "unless-stopped",
        "read_only": True,
        "tmpfs": ["/tmp"],
        "shm_size": SHARED_MEMORY,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
    }
    if deployment.hosts:
        made["secrets"] = ["run.key"]
    if is_head:
        seconds = deployment.drain + END_SECONDS
        made["ports"] = [f"127.0.0.1:{deployment.port}:{deployment.port}"]
        made["healthcheck"] = _health(deployment)
        if not deployment.is_public:
            made["environment"]["OMNI_API_KEY"] = "${OMNI_API_KEY:?the key that clients send}"
        if deployment.files:
            volumes.append(f"./files:{FILES}:ro")
    else:
        seconds = HOST_END_SECONDS
        made["depends_on"] = [HEAD]
    made["stop_grace_period"] = f"{seconds}s"
    made["volumes"] = volumes
    if host.gpus:
        ids = [str(first + number) for number in range(host.gpus)]
        device = {"driver": "nvidia", "device_ids": ids, "capabilities": ["gpu"]}
        made["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
    return made


def _health(deployment: Deployment) -> dict[str, Any]:
    scheme, context = (
        ("https", ", context=__import__('ssl')._create_unverified_context()") if deployment.is_secure else ("http", "")
    )
    script = _HEALTH.format(scheme=scheme, port=deployment.port, context=context)
    return {
        "test": ["CMD", "python", "-c", script],
        "interval": "10s",
        "timeout": "5s",
        "start_period": f"{deployment.startup}s",
    }
