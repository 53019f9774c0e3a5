"""Launchers that break one rule of their contract each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from attrs import evolve

from omni_core.machines import Grant, LauncherOptions, LocalLauncher, LocalMachine, Need
from omni_core.processes.process import StageProcess, SupervisedProcess
from omni_core.protocol.specs import ProcessSpec


class TakesAnything(LocalLauncher):
    async def acquire(self, needs: Sequence[Need]) -> None:
        pass


class IgnoresSettings(LocalLauncher):
    def __init__(self, options: LauncherOptions) -> None:
        super().__init__(evolve(options, settings={}))


class TwoFolders(LocalLauncher):
    """Gives a machine of the same name another folder each time."""

    async def place(self, unit: str) -> Grant:
        return Grant(LocalMachine(Path(mkdtemp(prefix="omni-wrong-", dir=self.here.directory))))


class _OtherMachine(LocalMachine):
    def __init__(self, directory: Path, change: Callable[..., Any]) -> None:
        super().__init__(directory)
        self._change = change

    def start(
        self, spec: ProcessSpec, on_exit: Callable[[SupervisedProcess], None], on_line: Any = None
    ) -> StageProcess:
        return super().start(*self._change(spec, on_exit), on_line)


def _twice(on_exit: Callable[[SupervisedProcess], None]) -> Callable[[SupervisedProcess], None]:
    def ended(process: SupervisedProcess) -> None:
        on_exit(process)
        on_exit(process)

    return ended


class DropsVariables(LocalLauncher):
    def __init__(self, options: LauncherOptions) -> None:
        super().__init__(options)
        self.here = _OtherMachine(options.directory, lambda spec, on_exit: (evolve(spec, own_env={}), on_exit))


class TellsTwice(LocalLauncher):
    def __init__(self, options: LauncherOptions) -> None:
        super().__init__(options)
        self.here = _OtherMachine(options.directory, lambda spec, on_exit: (spec, _twice(on_exit)))


class TellsNothing(LocalLauncher):
    def __init__(self, options: LauncherOptions) -> None:
        super().__init__(options)
        self.here = _OtherMachine(options.directory, lambda spec, on_exit: (spec, lambda process: None))


class AddsAnything(LocalLauncher):
    async def add(self, need: Need) -> None:
        pass


class KnowsTheLastUnitOnly(LocalLauncher):
    """Takes what it is asked for last for everything that there is."""

    def __init__(self, options: LauncherOptions) -> None:
        super().__init__(options)
        self._units: set[str] = set()

    async def acquire(self, needs: Sequence[Need]) -> None:
        await super().acquire(needs)
        self._units = {need.unit for need in needs}

    async def place(self, unit: str) -> Grant:
        assert unit in self._units
        return await super().place(unit)


class LeavesTheForkServer(LocalLauncher):
    async def release(self) -> None:
        pass
