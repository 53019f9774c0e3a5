"""Conformance of a pipeline's presets: each is valid, and the released checkpoint fits the machine that it is for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import field, frozen
from click.testing import CliRunner

from omni_cli.deploy.budgets import problems
from omni_cli.deploy.files import presets
from omni_cli.deploy.fitting import placed
from omni_cli.deploy.source import LayeredSource
from omni_core.api import Machine, PipelineComponent, load_plugins, parse_bytes
from omni_core.runtime_api import omni, plan


@frozen
class PresetMachine:
    """The machine that a preset is for.

    Attributes:
        gpus: how many GPUs it has.
        memory: of each, such as ``80GiB``.
        devices: by stage, the devices of its processes in their order; ``None`` is the CPU. Stages without networks may be left out.
    """

    gpus: int = 0
    memory: str = "0"
    devices: Mapping[str, Sequence[int | None]] = field(factory=dict)


class PresetConformance:
    """Tests of a pipeline's presets: subclass it, name the pipeline and its machines, and return a checkpoint.

    The checkpoint needs the released config and the headers of the released weights only, see
    :func:`omni_testing.stand_in.write_stand_in`. Where a preset has no GPU, the memory of this machine counts.
    """

    pipeline: str
    machines: Mapping[str, PresetMachine]

    def checkpoint(self) -> str:
        """Return the folder of a checkpoint with the shapes of the released one."""
        raise NotImplementedError

    def test_every_preset_has_a_machine_and_a_line_about_it(self) -> None:
        component = load_plugins().get("omni_pipelines", self.pipeline)
        assert isinstance(component, PipelineComponent)
        assert presets(component).keys() == self.machines.keys()
        for name, path in presets(component).items():
            assert path.read_text(encoding="utf-8").startswith("# "), (
                f"{name}: begin it with a comment, which is listed"
            )

    def test_every_preset_fits_its_machine(self) -> None:
        for name, machine in self.machines.items():
            sizes = [parse_bytes(machine.memory)] * machine.gpus
            source = LayeredSource(f"{self.pipeline}/{name}", self.checkpoint(), platform="cuda" if sizes else "cpu")
            processes = plan(placed(source.resolve().config, Machine(sizes, here=not sizes)).config)
            assert problems(processes, sizes) == [], name
            found: dict[str, list[int | None]] = {}
            for process in processes:
                for stage in process.stages:
                    found.setdefault(stage.name, []).append(process.gpus.get(stage.name))
            wanted = {stage: list(devices) for stage, devices in machine.devices.items()}
            assert {stage: found.get(stage) for stage in wanted} == wanted, name

    def test_every_preset_is_valid(self) -> None:
        for name in self.machines if "config validate" in load_plugins().names("omni_commands") else ():
            preset = f"{self.pipeline}/{name}"
            said = CliRunner().invoke(omni, ["config", "validate", preset, "--model", self.checkpoint()])
            assert said.exit_code == 0, f"{said.output}{said.exception}"
