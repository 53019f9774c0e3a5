"""The tutorials work as written: their files are created, their commands run, and the output is compared.

On a page, a code block with a ``title`` is a file of that name, or more of it if there was such a block before; with
``(part)`` behind the name it is a part of the file. A ``console`` block holds commands (``$``, continued with ``>``)
and their output, where ``...`` stands for anything.
"""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

import psutil
import pytest
from tutorials import Reader, check, follow, reader

from omni_core.hookspecs import works
from omni_core.plugins import load_plugins

__all__ = ["reader"]
pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "omni-pipeline-chat-echo"


@pytest.mark.timeout(240)
def test_the_first_pipeline_is_the_example(reader: Reader) -> None:
    follow(ROOT / "docs" / "first-pipeline.md", reader)
    for part in ("pyproject.toml", "src/chat_echo", "tests"):
        for path in (EXAMPLE / part).rglob("*.*") if (EXAMPLE / part).is_dir() else [EXAMPLE / part]:
            if "__pycache__" not in path.parts:
                name = path.relative_to(EXAMPLE)
                assert (reader.folder / name).read_text() == path.read_text(), f"{name} is not as the tutorial has it"


def test_the_first_stage_needs_no_package(reader: Reader) -> None:
    follow(ROOT / "docs" / "first-stage.md", reader)


@pytest.mark.timeout(240)
def test_every_form_of_a_stage_runs(reader: Reader) -> None:
    follow(ROOT / "docs" / "stages.md", reader)


@pytest.mark.timeout(240)
def test_images_from_the_command_line(reader: Reader) -> None:
    follow(ROOT / "docs" / "images.md", reader)


@pytest.mark.timeout(240)
def test_the_first_relay(reader: Reader) -> None:
    follow(ROOT / "docs" / "first-relay.md", reader)
    assert reader.folder.name == "my-relay"


@pytest.mark.timeout(300)
def test_a_model_from_the_template(reader: Reader) -> None:
    follow(ROOT / "docs" / "models.md", reader)
    assert reader.folder.name == "my-model"


@pytest.mark.timeout(240)
def test_a_model_that_speaks(reader: Reader) -> None:
    follow(ROOT / "docs" / "speech-model.md", reader)


@pytest.mark.parametrize(
    ("expected", "code", "output", "errors"),
    [
        ("hello\n", 0, "hallo\n", ""),
        ("hello\n", 1, "hello\n", ""),
        ("Error: no\n", 0, "Error: no\n", ""),
        ("Error: no\n", 1, "", "Error: yes\n"),
        ("", 1, "", ""),
    ],
)
def test_a_wrong_page_is_detected(expected: str, code: int, output: str, errors: str) -> None:
    with pytest.raises(AssertionError):
        check("say", expected, code, output, errors)


def test_output_may_be_left_out_of_a_page() -> None:
    check("say", "one ... three\n...\nfive\n", 0, "one two three\nfour\nfive\n", "")


@pytest.mark.timeout(240)
def test_several_hosts(reader: Reader) -> None:
    joining = [each for hook, each, _, answer in load_plugins().check() if hook == "omni_relays" and works(answer)]
    if not any(getattr(each, "across_hosts", False) for each in joining):
        pytest.skip("no relay that joins hosts can work here")
    pytest.importorskip("omni_launchers.hosts")
    follow(ROOT / "docs" / "hosts.md", reader)


@pytest.mark.timeout(240)
def test_hosts_by_ssh_and_slurm(reader: Reader, tmp_path: Path) -> None:
    """``ssh gpu1`` leads to an sshd of the test, and ``srun`` is a stand-in, with two nodes."""
    remote = pytest.importorskip("omni_testing.ours.remote")
    joining = [each for hook, each, _, answer in load_plugins().check() if hook == "omni_relays" and works(answer)]
    if not any(getattr(each, "across_hosts", False) for each in joining):
        pytest.skip("no relay that joins hosts can work here")
    there = {"PATH": reader.environment["PATH"], "PYTHONPATH": str(reader.folder), "PLACE": "gpu1"}
    (tmp_path / "ssh").mkdir(mode=0o700)
    sshd = remote.Sshd(tmp_path / "ssh", ("gpu1",), there)
    programs = tmp_path / "programs"
    programs.mkdir()
    clients = {"ssh": [shutil.which("ssh"), *sshd.client[1:]], "srun": remote.make_srun(tmp_path / "ssh", "0,1")}
    for name, words in clients.items():
        place = 'PLACE="node 1" ' if name == "srun" else ""
        (programs / name).write_text(f'#!/bin/sh\n{place}exec {shlex.join(map(str, words))} "$@"\n')
        (programs / name).chmod(0o755)
    reader.environment["PATH"] = f"{programs}{os.pathsep}{reader.environment['PATH']}"
    try:
        follow(ROOT / "docs" / "remote-hosts.md", reader)
    finally:
        sshd.close()


@pytest.mark.timeout(240)
def test_a_launcher_of_ones_own(reader: Reader) -> None:
    follow(ROOT / "docs" / "launchers.md", reader)


@pytest.mark.parametrize("page", ["from-vllm-omni.md", "from-sglang-omni.md"])
def test_the_files_of_other_systems_convert_as_shown(reader: Reader, page: str) -> None:
    follow(ROOT / "docs" / page, reader)


@pytest.mark.timeout(240)
def test_operations_on_a_running_pipeline(reader: Reader) -> None:
    pytest.importorskip("omni_cli.live")
    try:
        follow(ROOT / "docs" / "live-operations.md", reader)
    finally:
        for each in psutil.process_iter(["cwd"]):  # the pipeline, if a command failed before the one that ends it
            if each.info["cwd"] == str(reader.folder):
                each.kill()
