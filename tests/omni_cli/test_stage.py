"""The settings of ``omni stage``, what it shows, and a pipeline that ends meanwhile."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from omni_cli import stage
from omni_cli.status_client import StatusClient
from omni_core.errors import ConfigError, OmniError
from omni_core.protocol.operation_messages import Change, OperationRequest

LISTEN = """
import signal, socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
print("ready", flush=True)
signal.pause()
"""


def test_settings_are_values_by_path() -> None:
    given = ("factory_args.n=3", "gpu=[0, 1]", "host=[null, b]", "env.LEVEL=7", "factory_args.text=7 of 9")
    assert stage._settings(given) == {
        "factory_args.n": 3,
        "gpu": [0, 1],
        "host": [None, "b"],
        "env.LEVEL": "7",
        "factory_args.text": "7 of 9",
    }
    with pytest.raises(ConfigError, match="--set gpu: given twice"):
        stage._settings(("gpu=0", "gpu=1"))
    with pytest.raises(ConfigError, match="must be of the form field=value"):
        stage._settings(("gpu",))


def test_what_was_changed_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    for change, line in (
        (Change("talker", ["talker.1"], ["talker"]), "talker: started talker.1, ended talker"),
        (Change("talker", [], ["talker.2", "talker.1"]), "talker: ended talker.2, talker.1"),
        (Change("talker"), "talker: nothing to do"),
    ):
        stage._show(change, as_json=False)
        assert capsys.readouterr().out == f"{line}\n"
    stage._show(Change("t", ["t.1"]), as_json=True)
    assert json.loads(capsys.readouterr().out) == {"group": "t", "started": ["t.1"], "ended": []}


async def test_an_operation_ends_with_its_pipeline(run_folder: Path) -> None:
    command = [sys.executable, "-S", "-c", LISTEN, str(run_folder / "coordinator.sock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as owner, StatusClient(run_folder) as client:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"ready\n"
        operating = asyncio.create_task(client.operate(OperationRequest("", "a"), owner.pid))
        await asyncio.sleep(0.1)
        assert not operating.done()
        owner.kill()
        with pytest.raises(OmniError, match=rf"the pipeline \(pid {owner.pid}\) has ended"):
            await asyncio.wait_for(operating, 60)
        owner.wait()
        with pytest.raises(OmniError, match="has ended"):
            await client.operate(OperationRequest("", "a"), owner.pid)
