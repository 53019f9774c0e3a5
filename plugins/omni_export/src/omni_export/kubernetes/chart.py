"""A deployment as a Helm chart: the same objects, with the values that operators change taken out of them.

The objects are made with marks in place of these values; in their YAML the marks become expressions of Helm. The chart has no
Secret: who installs it makes one, and names it in the values.
"""

from __future__ import annotations

import re
from importlib.metadata import version
from typing import Any

from attrs import evolve

from omni_export.deployment import Deployment, HostPlan
from omni_export.documents import commented, dump
from omni_export.kubernetes.objects import objects
from omni_export.kubernetes.pods import API_KEY, RUN_KEY, Options, resources_of, secret_name

_MARK = re.compile(r"omni-value:([\w.-]+):(text|yaml|plain)")
_OPTIONAL = {
    "weights": "weights.create",
    "disruption-budget": "disruptionBudget.enabled",
    "network-pods": "networkPolicy.enabled",
    "network-http": "networkPolicy.enabled",
    "monitor": "serviceMonitor.enabled",
}
"""Objects that a value switches on, by the name of their file."""


def chart(deployment: Deployment, options: Options) -> dict[str, str]:
    """Return the files of a chart by their paths in it."""
    files = {f"files/{name}": text for name, text in deployment.files.items()}
    marked = evolve(
        options,
        namespace=None,  # Helm's
        image=_mark("image"),
        secret=_mark("secret"),
        weights_size=_mark("weights.size") if options.has_weights else None,
        weights_claim=None,
        storage_class=_mark("weights.storageClass"),
        shared_memory=_mark("sharedMemory"),
        pull_secret=None,
        monitor=True,
        checksum=_mark("files", "plain"),
    )
    found = objects(deployment, marked, lambda host: _mark(f"machines.{_key(host)}.resources", "yaml"))
    files["Chart.yaml"] = dump(
        {
            "apiVersion": "v2",
            "name": deployment.name,
            "description": f"The omni pipeline {deployment.config.resolved_name}",
            "type": "application",
            "version": "0.1.0",
            "appVersion": version("omni-core"),
        }
    )
    files["values.yaml"] = _values(deployment, options)
    for name, made in found.items():
        files[f"templates/{name}.yaml"] = _template(name, made, deployment)
    return files


def _mark(path: str, kind: str = "text") -> str:
    return f"omni-value:{path}:{kind}"


def _key(host: HostPlan) -> str:
    """Return the name of a host in the values, unlike that of any other; an expression of Helm takes no dashes."""
    return re.sub(r"-([a-z])", lambda found: found[1].upper(), host.label).replace("-", "_")


def _values(deployment: Deployment, options: Options) -> str:
    needed = ([RUN_KEY] if deployment.hosts else []) + ([] if deployment.is_public else [API_KEY])
    values: dict[str, Any] = {
        "image": options.image,
        "secret": secret_name(deployment, options),
        "weights": {
            "create": options.weights_claim is None and options.weights_size is not None,
            "size": options.weights_size or "0",
            "storageClass": options.storage_class or "",
            "claim": options.weights_claim or f"{deployment.name}-weights",
        },
        "sharedMemory": options.shared_memory,
        "machines": {
            _key(host): {"resources": resources_of(host, options), "nodeSelector": {}, "tolerations": []}
            for host in deployment.machines
        },
        "imagePullSecrets": [{"name": options.pull_secret}] if options.pull_secret else [],
        "disruptionBudget": {"enabled": True},
        "networkPolicy": {"enabled": True},
        "serviceMonitor": {"enabled": options.monitor},
    }
    if not options.has_weights:
        del values["weights"]
    return commented([f"secret: one that exists, with the keys {' and '.join(needed) or '(none)'}"]) + dump(values)


def _template(name: str, made: dict[str, Any], deployment: Deployment) -> str:
    if name == "files":
        lines = [f'  {key}: |\n{{{{ .Files.Get "files/{key}" | indent 4 }}}}\n' for key in deployment.files]
        return dump({key: value for key, value in made.items() if key != "data"}) + "data:\n" + "".join(lines)
    if name == "weights":
        made = {**made, "spec": {key: each for key, each in made["spec"].items() if key != "storageClassName"}}
    plain = dump(made).replace("{{", '{{ "{{" }}')  # braces in what users wrote are text
    text = _MARK.sub(lambda found: _expression(found, deployment), plain)
    text = re.sub(r"(?m)^( *)([\w-]+): (\{\{ toYaml \S+) \}\}$", _nested, text)
    if name == "head" or name.startswith("host-"):
        text = _pod_values(text, name)
    if name == "weights":
        text += "  {{- with .Values.weights.storageClass }}\n  storageClassName: {{ . | quote }}\n  {{- end }}\n"
    switch = _OPTIONAL.get(name)
    return text if switch is None else f"{{{{- if .Values.{switch} }}}}\n{text}{{{{- end }}}}\n"


def _expression(found: re.Match[str], deployment: Deployment) -> str:
    path, kind = found.groups()
    if path == "files":
        texts = " ".join(f'(.Files.Get "files/{name}")' for name in sorted(deployment.files))
        return f'{{{{ printf "{"%s" * len(deployment.files)}" {texts} | sha256sum }}}}'
    return f"{{{{ .Values.{path} | quote }}}}" if kind == "text" else f"{{{{ toYaml .Values.{path} }}}}"


def _nested(found: re.Match[str]) -> str:
    indent, key, expression = found.groups()
    return f"{indent}{key}:\n{indent}  {{{{- {expression.removeprefix('{{ ')} | nindent {len(indent) + 2} }}}}"


def _pod_values(text: str, name: str) -> str:
    """Add what the values may say about a pod to its template, before its containers; take the claim's name from the values."""
    found = re.search(r"(?m)^( *)containers:$", text)
    assert found is not None
    indent = found[1]
    machine = re.search(r"\.Values\.(machines\.\w+)\.resources", text)
    assert machine is not None
    lines = ""
    for key, path in (
        ("nodeSelector", f"{machine[1]}.nodeSelector"),
        ("tolerations", f"{machine[1]}.tolerations"),
        ("imagePullSecrets", "imagePullSecrets"),
    ):
        lines += f"{indent}{{{{- with .Values.{path} }}}}\n{indent}{key}:\n"
        lines += f"{indent}  {{{{- toYaml . | nindent {len(indent) + 2} }}}}\n{indent}{{{{- end }}}}\n"
    text = text[: found.start()] + lines + text[found.start() :]
    return re.sub(r"claimName: \S+", "claimName: {{ .Values.weights.claim | quote }}", text)
