"""The parts of a deployment: the head that serves, the hosts that join it, and the files and devices that each of them needs."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import Any

from attrs import evolve, field, frozen

from omni_cli.deploy.files import DeployFile
from omni_cli.deploy.platforms import platform
from omni_cli.deploy.source import LayeredSource
from omni_core.cli.source import SOURCE_OPTIONS
from omni_core.client.source import VARIABLE, parse_options
from omni_core.config.addresses import join_address
from omni_core.config.loading import expanded, is_file
from omni_core.config.placement import AUTO, PlannedProcess, plan
from omni_core.config.schema import PipelineConfig
from omni_core.errors import ConfigError, did_you_mean
from omni_core.plugins import PluginRegistry, load_plugins
from omni_serve.cli import serve
from omni_serve.section import section_problems

HEAD = "head"
"""The name of the head among the hosts of a deployment."""

STARTUP_SECONDS = 1800
"""The time that a head has until it serves: the download of a checkpoint, hosts that come late, the start of every stage."""

END_SECONDS = 25
"""The time that a server has after its drain, for the end of its processes."""

_NAME = re.compile(r"[a-z]([-a-z0-9]{0,30}[a-z0-9])?")


@frozen
class HostPlan:
    """A machine of a deployment.

    Attributes:
        name: the ``host`` of its stages; :data:`HEAD`: the machine of the server. label: the name in lower case, with dashes.
        stages: those that run there. processes: of stages. gpus: how many it needs.
    """

    name: str
    label: str
    stages: tuple[str, ...] = ()
    processes: int = 0
    gpus: int = 0


@frozen
class Deployment:
    """A pipeline to be run elsewhere.

    Attributes:
        name: of everything that is made for it. pipeline: the argument of ``omni serve``; a file is one of ``files``.
        flags: those that choose the pipeline, without files. overlay: the file or preset of ``--config``, if there is one.
        files: deploy files by name, as text; they refer to each other by these names.
        head, hosts: the machines. port: of the server. drain: the seconds that its requests have to end.
        startup: the seconds until it must serve. is_secure: it serves https by its deploy file. is_public: it needs no API key.
    """

    name: str
    pipeline: str
    flags: tuple[str, ...]
    overlay: str | None
    files: dict[str, str]
    head: HostPlan
    hosts: tuple[HostPlan, ...]
    port: int = 8000
    drain: int = 30
    startup: int = STARTUP_SECONDS
    is_secure: bool = False
    is_public: bool = False
    config: PipelineConfig = field(kw_only=True, repr=False)

    @property
    def machines(self) -> tuple[HostPlan, ...]:
        """The head and the hosts."""
        return (self.head, *self.hosts)

    def serve(self, folder: str, address: str, join_port: int, key: str, listen: str = "0.0.0.0") -> list[str]:
        """Return the arguments of ``omni`` on the head.

        Args:
            folder: of the files there. address: of the head, as hosts reach it. join_port: where they join.
            key: the path of the key file. listen: the address of the server.
        """
        inside = {name: f"{folder}/{name}" for name in self.files}
        arguments = ["serve", inside.get(self.pipeline, self.pipeline), *self.flags]
        if self.overlay is not None:
            arguments += ["--config", inside.get(self.overlay, self.overlay)]
        arguments += ["--host", listen, "--port", str(self.port), "--drain-seconds", str(self.drain)]
        if self.hosts:
            arguments += ["--accept", _address(address, join_port), "--host-key", key]
        return [*arguments, *(["--allow-public"] if self.is_public else [])]

    @staticmethod
    def join(host: HostPlan, head: str, key: str, listen: str | None = None) -> list[str]:
        """Return the arguments of ``omni`` on a host. ``head``: the ``tcp://`` address; ``listen``: the host's own, without a port."""
        own = [] if listen is None else ["--listen", _address(listen, 0)]
        return ["hosts", "join", head, "--key", key, "--as", host.name, *own]


def deployment(
    name: str | None,
    gpus: Mapping[str, int],
    model_path: str | None,
    public: bool,
    startup: int,
    notice: Any,
    **source: Any,
) -> Deployment:
    """Return the deployment of a pipeline, as the options of :func:`omni_core.cli.source.with_source` describe it.

    Args:
        gpus: by host, a number of GPUs in place of that which its stages name.
        model_path: the checkpoint there, in place of the local folder.
        notice: called with lines for the user.

    Raises:
        ConfigError: the pipeline cannot be run elsewhere as it is.
    """
    registry = load_plugins()
    for setting in source["settings"]:
        if setting.startswith("endpoints."):
            raise ConfigError(
                f"--set {setting}: the addresses and keys of hosts are those of the deployment; leave it out"
            )
    if variables := sorted(name for name in os.environ if name.startswith(VARIABLE)):
        raise ConfigError(f"{', '.join(variables)}: set here, and not where the pipeline is to run; use --set")
    # Checked as the head will check it, whose address and key file are not known here.
    assumed = ("endpoints.accept=tcp://127.0.0.1:7555", "endpoints.key_file=run.key")
    plain = _source(source, ())
    deploy = plain.files(registry)
    _check_model(plain, deploy, model_path, registry)
    if deploy is not None and deploy.platforms:
        notice(
            f"this is for the platform {platform()}, and the head goes by its own, with the sections of "
            f"{', '.join(deploy.platforms)} in `platforms`; OMNI_PLATFORM makes it for another"
        )
    config = _resolved(plain, assumed, registry)
    problems = list(section_problems(serve, "server", config.server))
    if problems:
        raise ConfigError("\n".join(problems))
    _check(config)
    files = _files(deploy)
    for option in ("overlay", "pipeline"):
        if source[option] is not None and is_file(str(source[option])):
            source[option] = Path(source[option]).name
    given = config.server
    for key in ("uds", "host"):
        if key in given:
            raise ConfigError(
                f"server.{key}: the deployment chooses the server's address; leave it out of the deploy file"
            )
    found = name or re.sub(r"[^a-z0-9]+", "-", Path(str(plain.name)).stem.lower()).strip("-")
    if not _NAME.fullmatch(found):
        raise ConfigError(
            f"--name {found}: must be 1 to 32 lower-case letters, digits and dashes, and begin with a letter"
        )
    head, *hosts = _machines(config, gpus, notice)
    flags = [("--model", model_path if model_path is not None else source["model"])]
    flags += [("--option", each) for each in source["option"]] + [("--set", each) for each in source["settings"]]
    return Deployment(
        name=found,
        pipeline=str(source["pipeline"]),
        flags=tuple(word for flag, value in flags if value is not None for word in (flag, value)),
        overlay=source["overlay"],
        files=files,
        head=head,
        hosts=tuple(hosts),
        port=int(given.get("port", 8000)),
        drain=ceil(float(given.get("drain_seconds", 30))),
        startup=startup,
        is_secure=bool(given.get("tls_cert")),
        is_public=public,
        config=config,
    )


def _address(host: str, port: int) -> str:
    return f"tcp://{host}:{port}" if host.startswith("[") else join_address(host, port)


def _source(options: Mapping[str, Any], settings: tuple[str, ...]) -> LayeredSource:
    model, option, given, overlay = (options[each] for each in SOURCE_OPTIONS)
    return LayeredSource(options["pipeline"], model, parse_options(option), (*given, *settings), overlay)


def _resolved(source: LayeredSource, assumed: tuple[str, ...], registry: PluginRegistry) -> PipelineConfig:
    """Return the config, with the endpoints of a head if it has hosts."""
    try:
        return source.resolve(registry).config
    except ConfigError as first:
        assert isinstance(source.settings, tuple)
        try:
            return evolve(source, settings=(*source.settings, *assumed)).resolve(registry).config
        except ConfigError as error:
            raise (first if "endpoints.accept: no stage" in str(error) else error) from None


def _check(config: PipelineConfig) -> None:
    """Raise a ConfigError for what a deployment decides by itself."""
    launcher = config.resolved_launcher.name
    if launcher not in ("local", "hosts"):
        raise ConfigError(
            f"launcher.name: {launcher} finds machines by itself; a deployment has those of the stages' `host`"
        )
    for host in config.hosts:
        raise ConfigError(f"hosts.{host}: hosts of a deployment join it, and have no address; leave it out")
    if config.endpoints.address is not None:
        raise ConfigError("endpoints.address: that of the head is the deployment's; leave it out")


def _check_model(source: LayeredSource, deploy: DeployFile | None, there: str | None, registry: PluginRegistry) -> None:
    """Raise a ConfigError for a checkpoint that is a folder of this machine."""
    name = str(source.name)
    if deploy is None and name not in registry.names("omni_pipelines") and expanded(name).is_dir():
        raise ConfigError(
            f"{source.name} is a folder of this machine; name the pipeline, and say where the checkpoint is there: --model /models/NAME"
        )
    documents = deploy.documents if deploy is not None else []
    if there is not None and deploy is not None and deploy.whole is not None:
        raise ConfigError(f"--model-path: {deploy.whole.name} says which model it uses (model_path); change it there")
    named = [
        (f"{each.origin('model_path')}: model_path", each.values["model_path"])
        for _, each in documents
        if each.values.get("model_path")
    ]
    named += [("--model", source.model)] if source.model is not None else []
    if there is not None or not named:
        return
    where, model = named[-1]
    if str(model).startswith((".", "~", "/")) or Path(str(model)).is_dir():
        raise ConfigError(
            f"{where}: {model} is a folder of this machine; say where it is there: --model-path /models/NAME"
        )


def _files(deploy: DeployFile | None) -> dict[str, str]:
    """Return the texts of deploy files by their names.

    Raises:
        ConfigError: two would have one name, or one is based on a file in another folder.
    """
    texts: dict[str, str] = {}
    for _, document in deploy.documents if deploy is not None else []:
        if not is_file(document.name):
            continue  # a preset, which is installed there too
        path = Path(document.name)
        base = document.values.get("base")
        if isinstance(base, str) and is_file(base) and Path(base).name != base:
            raise ConfigError(
                f"{document.origin('base')}: base: {base} is in another folder; files of a deployment are in one folder"
            )
        text = path.read_text(encoding="utf-8")
        if texts.setdefault(path.name, text) != text:
            raise ConfigError(f"{document.name}: another file is called {path.name} too; rename one")
    return texts


def _machines(config: PipelineConfig, wanted: Mapping[str, int], notice: Any) -> list[HostPlan]:
    processes: dict[str, list[PlannedProcess]] = {HEAD: []}
    for process in plan(config):
        if process.host == HEAD:
            raise ConfigError(
                f"stages[{process.stages[0].name}].host: {HEAD} is the name of the server's machine here; choose another"
            )
        processes.setdefault(process.host or HEAD, []).append(process)
    for name in wanted:
        if name not in processes:
            raise ConfigError(f"--gpus {name}: no such machine{did_you_mean(name, processes)}")
    found = [_machine(name, each, wanted.get(name), notice) for name, each in processes.items()]
    labels = [each.label for each in found]
    for each in found:
        if labels.count(each.label) > 1 or not _NAME.fullmatch(each.label):
            raise ConfigError(
                f"host {each.name!r}: its name must be letters, digits and dashes, and differ in them from every other"
            )
    return found


def _machine(name: str, processes: Sequence[PlannedProcess], wanted: int | None, notice: Any) -> HostPlan:
    stages = [stage for process in processes for stage in process.stages]
    numbers = {gpu for process in processes for gpu in process.gpus.values()}
    least = max(numbers, default=-1) + 1
    if wanted is not None and wanted < least:
        raise ConfigError(f"--gpus {name}={wanted}: its stages use GPU {max(numbers)}, so it needs {least}")
    auto = [stage.name for stage in stages if stage.gpu == AUTO]
    if auto and name != HEAD:
        notice(
            f"host {name!r}: `gpu: auto` of {', '.join(dict.fromkeys(auto))} is the CPU there; write numbers for GPUs"
        )
    elif auto and not wanted:
        notice(
            f"the head gets no GPU: `gpu: auto` of {', '.join(dict.fromkeys(auto))} is the CPU then; --gpus {HEAD}=1 gives it one"
        )
    label = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return HostPlan(
        name,
        label,
        tuple(dict.fromkeys(stage.name for stage in stages)),
        len(processes),
        least if wanted is None else wanted,
    )
