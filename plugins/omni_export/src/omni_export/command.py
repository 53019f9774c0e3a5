"""``omni export k8s | docker | compose | systemd``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from omni_core.cli.source import with_source
from omni_core.errors import ConfigError
from omni_export.deployment import STARTUP_SECONDS, Deployment, deployment

F = TypeVar("F", bound=Callable[..., None])

_SOURCE = ("pipeline", "model", "option", "settings", "overlay")


class _Gpus(click.ParamType):  # type: ignore[type-arg, unused-ignore]  # generic in new versions only
    """``MACHINE=NUMBER``."""

    name = "gpus"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, tuple):
            return value
        name, equals, number = str(value).partition("=")
        if not (name and equals and number.isdecimal()):
            self.fail(f"{value}: must be MACHINE=NUMBER", param, ctx)
        return name, int(number)


_deployment: list[Callable[[Any], Any]] = [
    with_source,
    click.option("--name", help="The name of everything that is made.  [default: the pipeline's]"),
    click.option(
        "--gpus",
        type=_Gpus(),
        multiple=True,
        metavar="HOST=N",
        help="GPUs of a host, or of the head.  [default: what stages use]",
    ),
    click.option("--model-path", metavar="PATH", help="The checkpoint's folder there, if it is a folder here."),
    click.option("--public", is_flag=True, help="Serve without an API key."),
]


def _with_deployment(function: F) -> F:
    for decorator in reversed(_deployment):
        function = decorator(function)
    return function


def _made(options: dict[str, Any], startup: int = STARTUP_SECONDS) -> Deployment:
    source = {name: options[name] for name in _SOURCE}
    return deployment(
        options["name"], dict(options["gpus"]), options["model_path"], options["public"], startup, _notice, **source
    )


def _notice(line: str) -> None:
    click.echo(f"Note: {line}", err=True)


def write(folder: Path, files: dict[str, str], modes: dict[str, int] | None = None) -> None:
    """Write files into a folder that is new or empty, and say which.

    Raises:
        ConfigError: it is not empty, or cannot be written.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} exists and is not an empty folder; name another")
    try:
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(mode=(modes or {}).get(name, 0o644))
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror}") from error
    for name in files:
        click.echo(str(folder / name))


@click.group()
def export() -> None:
    """Write what runs a pipeline elsewhere: a server, and the hosts of its stages.

    PIPELINE and the options that choose it are those of `omni serve`. Each `host` of its stages becomes a machine that joins the server's.
    """


@export.command()
@_with_deployment
@click.option("--image", required=True, help="The image of all containers; see `omni export docker`.")
@click.option("--namespace", help="The namespace of all objects.  [default: that of `kubectl apply`]")
@click.option(
    "--secret", metavar="NAME", help="A Secret that exists, with run.key and api-key.  [default: one is made]"
)
@click.option(
    "--weights-size", default="100Gi", show_default=True, help="Of the claim for checkpoints that is made; 0: none."
)
@click.option("--weights-claim", metavar="NAME", help="A claim for checkpoints that exists.")
@click.option("--storage-class", metavar="NAME", help="The storage class of the claim that is made.")
@click.option("--shared-memory", default="8Gi", show_default=True, help="The memory of a pod for its relays.")
@click.option("--gpu-resource", default="nvidia.com/gpu", show_default=True, help="The resource that is a GPU.")
@click.option("--pull-secret", metavar="NAME", help="A Secret for the registry of the image.")
@click.option(
    "--startup-seconds",
    default=STARTUP_SECONDS,
    show_default=True,
    type=click.IntRange(5),
    help="Until the server must answer.",
)
@click.option("--monitor", is_flag=True, help="Make a ServiceMonitor of the Prometheus operator.")
@click.option(
    "--helm", type=click.Path(path_type=Path), metavar="FOLDER", help="Write a Helm chart into a new folder instead."
)
def k8s(**options: Any) -> None:
    """Print manifests of Kubernetes, or write a Helm chart."""
    from omni_export.documents import commented, dump
    from omni_export.kubernetes import Options, objects

    made = _made(options, options["startup_seconds"])
    given = Options(
        image=options["image"],
        namespace=options["namespace"],
        secret=options["secret"],
        weights_size=None if options["weights_size"] == "0" else options["weights_size"],
        weights_claim=options["weights_claim"],
        storage_class=options["storage_class"],
        shared_memory=options["shared_memory"],
        gpu_resource=options["gpu_resource"],
        pull_secret=options["pull_secret"],
        monitor=options["monitor"],
    )
    if options["helm"] is not None:
        from omni_export.kubernetes.chart import chart

        if options["namespace"] is not None:
            raise click.UsageError("--namespace: a chart has none; say it to Helm: helm install --namespace NAME")
        write(options["helm"], chart(made, given))
        return
    click.echo(commented(_about(made)) + dump(*objects(made, given).values()), nl=False)


def _about(made: Deployment) -> list[str]:
    """Return what runs where."""
    return [
        f"{host.name}: {', '.join(host.stages) or 'no stage'}{f' ({host.gpus} GPUs)' if host.gpus else ''}"
        for host in made.machines
    ]


@export.command()
@click.argument("pipelines", nargs=-1, metavar="[PIPELINE]...")
@click.option("--variant", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True, help="Of PyTorch.")
@click.option("--package", "packages", multiple=True, metavar="NAME", help="A further distribution; may be repeated.")
@click.option(
    "--wheels",
    default="dist",
    show_default=True,
    metavar="FOLDER",
    help="The folder of wheels, in the folder of the build.",
)
@click.option("--constraints", metavar="FILE", help="A file of versions for pip, in the folder of the build.")
@click.option("--python", "python", default="3.12", show_default=True, help="The version of Python.")
def docker(**options: Any) -> None:
    """Print a Dockerfile that installs the distributions of PIPELINES from wheels.

    Wheels that are not in the folder come from the index of pip.
    """
    from omni_export.image import dockerfile

    click.echo(dockerfile(**options), nl=False)


@export.command()
@_with_deployment
@click.option("--image", required=True, help="The image of all services; see `omni export docker`.")
@click.option("-o", "--out", required=True, type=click.Path(path_type=Path), help="A new folder for the files.")
def compose(**options: Any) -> None:
    """Write a compose file, with the deploy files and the keys, into a new folder."""
    from omni_export.compose import compose_files

    write(options["out"], *compose_files(_made(options), options["image"]))


@export.command()
@_with_deployment
@click.option("--head", metavar="ADDRESS", help="The address of the server's machine, as the hosts reach it.")
@click.option("--listen", default="127.0.0.1", show_default=True, help="The address of the server for clients.")
@click.option("--omni", "program", default="/opt/omni/bin/omni", show_default=True, help="The command on each machine.")
@click.option("-o", "--out", required=True, type=click.Path(path_type=Path), help="A new folder for the files.")
def systemd(**options: Any) -> None:
    """Write units of systemd, for the server and for each host, with the deploy files and the keys, into a new folder."""
    from omni_export.systemd import systemd_files

    made = _made(options)
    if made.hosts and options["head"] is None:
        raise click.UsageError("--head: required, because stages run on other hosts, which join the server there")
    write(options["out"], *systemd_files(made, options["head"] or "", options["listen"], options["program"]))
