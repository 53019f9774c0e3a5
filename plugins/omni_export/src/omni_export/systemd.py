"""A deployment as units of systemd: one for the server, and one for each host's machine."""

from __future__ import annotations

import re
import secrets

from omni_core.errors import ConfigError
from omni_export.deployment import END_SECONDS, Deployment, HostPlan
from omni_launchers.hosts.curve import CurveKeys

FOLDER = "/etc/omni"
"""The folder of the deploy files and the keys on every machine."""

JOIN_PORT = 7555
HOST_END_SECONDS = 30
USER = "omni"

_PLAIN = re.compile(r"[\w./:@=+,\[\]-]+")
_ADDRESS = re.compile(r"[\w.:-]+")


def systemd_files(
    deployment: Deployment, head: str, listen: str, program: str
) -> tuple[dict[str, str], dict[str, int]]:
    """Return the files by name, and the modes of those that are secret.

    Args:
        head: the address of the server's machine, as hosts reach it. listen: that of the server for clients. program: ``omni``.
    """
    for option, text in (("--head", head), ("--listen", listen)):
        if text and not _ADDRESS.fullmatch(text):
            raise ConfigError(f"{option} {text}: must be an address, without a port")
    files, modes = dict(deployment.files), dict[str, int]()
    if deployment.hosts:
        files["run.key"], modes["run.key"] = CurveKeys.new().text(), 0o600
    if not deployment.is_public:
        files["environment"], modes["environment"] = f"OMNI_API_KEY={secrets.token_urlsafe(32)}\n", 0o600
    for host in deployment.machines:
        is_head = host is deployment.head
        name = f"omni-{deployment.name}" if is_head else f"omni-{deployment.name}-{host.label}"
        files[f"{name}.service"] = _unit(deployment, host, head, listen, program)
    return files, modes


def _unit(deployment: Deployment, host: HostPlan, head: str, listen: str, program: str) -> str:
    is_head = host is deployment.head
    key = "${CREDENTIALS_DIRECTORY}/run.key"
    if is_head:
        arguments = deployment.serve(FOLDER, head, JOIN_PORT, key, listen)
        about, seconds = f"omni: the server of {deployment.name}", deployment.drain + END_SECONDS
    else:
        address = f"[{head}]" if ":" in head else head
        arguments = deployment.join(host, f"tcp://{address}:{JOIN_PORT}", key)
        about, seconds = f"omni: the host {host.name} of {deployment.name}", HOST_END_SECONDS
    lines = [
        f"# Copy to /etc/systemd/system on {'the server' if is_head else f'the host {host.name}'}; its other files to {FOLDER}.",
        "[Unit]",
        f"Description={_escaped(about)}",
        "Wants=network-online.target",
        "After=network-online.target",
        "",
        "[Service]",
        "Type=exec",
        f"ExecStart={' '.join(_word(each) for each in (program, *arguments))}",
        "Restart=on-failure",
        "RestartSec=5",
        "KillMode=mixed",
        f"TimeoutStopSec={seconds}",
        "DynamicUser=yes",
        f"User={USER}",
        "StateDirectory=omni",
        "WorkingDirectory=%S/omni",
        "Environment=HOME=%S/omni HF_HOME=%S/omni",
        *([f"EnvironmentFile={FOLDER}/environment"] if is_head and not deployment.is_public else []),
        *([f"LoadCredential=run.key:{FOLDER}/run.key"] if deployment.hosts else []),
        "LimitNOFILE=65536",
        "LimitMEMLOCK=infinity",
        "NoNewPrivileges=yes",
        "ProtectHome=yes",
        "",
        "[Install]",
        "WantedBy=multi-user.target",
    ]
    return "\n".join(lines) + "\n"


def _word(text: str) -> str:
    """Return a word of a command as systemd reads it: its own variable stays one, and nothing else is expanded."""
    if text.startswith("${CREDENTIALS_DIRECTORY}/"):
        return text
    escaped = _escaped(text).replace("$", "$$")
    if _PLAIN.fullmatch(text):
        return escaped
    return '"' + escaped.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _escaped(text: str) -> str:
    return text.replace("%", "%%")
