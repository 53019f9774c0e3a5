"""Checkpoints of the hub: what planning transfers, what ``omni pull`` downloads, and the errors; with the hub's own client."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from attrs import define
from hub_stand_in import Hub, serve

from omni_core.errors import ConfigError
from omni_torch.checkpoints import hub as client
from omni_torch.checkpoints.headers import INDEX, TensorInfo

WEIGHTS = 3_000_000
_LISTING = (
    "import sys; from omni_torch.checkpoints.hub import listing; found = listing(sys.argv[1]);"
    "print(sorted((name, each.dtype, each.values) for name, each in found.tensors.items()))"
)


@define
class Machine:
    """An empty machine whose hub is the stand-in."""

    hub: Hub
    home: Path

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        env = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
        env |= {"HF_ENDPOINT": self.hub.endpoint, "HF_HOME": str(self.home / "hf"), "XDG_CACHE_HOME": str(self.home)}
        env |= environment
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)

    def omni(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return self.run(sys.executable, "-m", "omni_core.cli", *arguments, **environment)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "omni_core.cli", *arguments]
        environment = {**os.environ, "HF_ENDPOINT": self.hub.endpoint, "HF_HOME": str(self.home / "hf")}
        return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)

    def listing(self, model: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return self.run(sys.executable, "-c", _LISTING, model, **environment)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with serve() as hub:
        yield Machine(hub, tmp_path / "home")


def write_shard(path: Path, name: str) -> None:
    header = {name: {"dtype": "BF16", "shape": [WEIGHTS // 2], "data_offsets": [0, WEIGHTS]}}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(WEIGHTS))


@pytest.fixture
def repository(machine: Machine, tmp_path: Path) -> str:
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "config.json").write_text('{"architectures": ["Parrot"]}')
    (folder / "README.md").write_text("not read")
    for number in (1, 2):
        write_shard(folder / f"model-0000{number}-of-00002.safetensors", f"layer.{number}")
    weight_map = {f"layer.{number}": f"model-0000{number}-of-00002.safetensors" for number in (1, 2)}
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    machine.hub.repositories["owner/parrot"] = folder
    return "owner/parrot"


def test_planning_transfers_headers_only_and_once(machine: Machine, repository: str) -> None:
    expected = str([("layer.1", "BF16", WEIGHTS // 2), ("layer.2", "BF16", WEIGHTS // 2)])
    first = machine.listing(repository)
    assert first.stdout.strip() == expected, first.stderr
    assert machine.hub.sent < 10_000
    assert not machine.hub.weights_sent()
    before = machine.hub.sent
    assert machine.listing(repository).stdout.strip() == expected
    assert machine.hub.sent == before
    assert machine.listing(repository, HF_HUB_OFFLINE="1").stdout.strip() == expected


def test_shards_of_other_names_are_found_by_the_index(machine: Machine, repository: str) -> None:
    folder = machine.hub.repositories[repository]
    (folder / "model-00002-of-00002.safetensors").rename(folder / "speech.safetensors")
    weight_map = {"layer.1": "model-00001-of-00002.safetensors", "layer.2": "speech.safetensors"}
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    found = machine.listing(repository)
    assert "layer.2" in found.stdout, found.stderr


def test_pull_downloads_what_models_read_and_then_nothing(machine: Machine, repository: str) -> None:
    machine.hub.cut_after = WEIGHTS // 2  # the connection breaks once, in the middle of a shard
    pulled = machine.omni("pull", repository)
    assert pulled.returncode == 0, pulled.stderr
    folder = Path(pulled.stdout.strip())
    assert {path.name for path in folder.iterdir()} == {
        "config.json", INDEX, "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    }  # fmt: skip
    assert machine.hub.cut_after is None
    served = machine.hub.repositories[repository]
    assert all((folder / path.name).read_bytes() == (served / path.name).read_bytes() for path in folder.iterdir())
    before = machine.hub.sent
    assert machine.omni("pull", repository).stdout == pulled.stdout
    assert machine.hub.sent - before < 2_000
    offline = machine.omni("pull", repository, HF_HUB_OFFLINE="1")
    assert offline.stdout == pulled.stdout, offline.stderr


def test_pull_downloads_templates_tokenizers_and_voices_of_any_layout(machine: Machine, repository: str) -> None:
    served = machine.hub.repositories[repository]
    files = {
        "chat_template.json", "chat_template.jinja", "additional_chat_templates/tool_use.jinja", "vocab.json", "merges.txt",
        "tokenizer_config.json", "special_tokens_map.json", "preprocessor_config.json", "quantize_config.json", "spk_dict.pt",
    }  # fmt: skip
    for name in files:
        (served / name).parent.mkdir(exist_ok=True)
        (served / name).write_text(name)
    folder = Path(machine.omni("pull", repository).stdout.strip())
    assert {name for name in files if (folder / name).is_file() and (folder / name).read_text() == name} == files


def test_an_interrupted_pull_continues_with_the_files_that_are_missing(machine: Machine, repository: str) -> None:
    folder = Path(machine.omni("pull", repository).stdout.strip())
    missing = folder / "model-00002-of-00002.safetensors"
    missing.resolve().unlink()
    missing.unlink()
    before = machine.hub.sent
    assert machine.omni("pull", repository).returncode == 0
    assert missing.stat().st_size > WEIGHTS
    assert machine.hub.sent - before < 1.1 * WEIGHTS


def test_ctrl_c_ends_a_pull_at_once(machine: Machine, repository: str) -> None:
    with (machine.hub.repositories[repository] / "model-00001-of-00002.safetensors").open("ab") as shard:
        shard.truncate(2**30)
    machine.hub.seconds_per_piece = 0.1  # the shard takes two minutes
    pulling = machine.start("pull", repository)
    while machine.hub.sent < WEIGHTS + 4 * 2**20:
        assert pulling.poll() is None
        time.sleep(0.05)
    pulling.send_signal(signal.SIGINT)
    _, told = pulling.communicate(timeout=60)
    assert pulling.returncode == 130
    assert "Interrupted." in told


def test_a_revision_is_a_snapshot_of_its_own(machine: Machine, repository: str) -> None:
    main = machine.omni("pull", repository).stdout.strip()
    tagged = machine.omni("pull", repository, "--revision", "v1").stdout.strip()
    assert Path(tagged).name == Hub.commit(repository, "v1") != Path(main).name
    assert machine.listing(f"{repository}@v1", HF_HUB_OFFLINE="1").returncode == 0


@pytest.mark.parametrize(
    ("model", "environment", "words"),
    [
        ("owner/nothing", {}, "has no such repository, or a private one; check the name, or set HF_TOKEN"),
        ("owner/closed", {}, "access is granted by its owner: accept the terms"),
        ("owner/closed", {"HF_TOKEN": "wrong"}, "access is granted by its owner"),
        ("owner/parrot@gone", {}, "the repository has no such revision"),
        ("owner/empty", {}, "the repository has no config.json"),
        ("owner/parrot", {"HF_HUB_OFFLINE": "1"}, "not on this machine, and HF_HUB_OFFLINE is set"),
        ("parrot", {}, "parrot is no hub id of the form owner/name"),
    ],
)
def test_errors_are_one_line_that_says_what_to_do(
    machine: Machine, repository: str, tmp_path: Path, model: str, environment: dict[str, str], words: str
) -> None:
    (tmp_path / "empty").mkdir()
    machine.hub.repositories |= {
        "owner/closed": machine.hub.repositories[repository],
        "owner/empty": tmp_path / "empty",
    }
    machine.hub.gated["owner/closed"] = "secret"
    failed = machine.omni("pull", model, **environment)
    assert failed.returncode != 0
    assert words in failed.stderr
    assert "Traceback" not in failed.stderr
    assert len([line for line in failed.stderr.splitlines() if line.startswith("Error")]) == 1


@pytest.mark.parametrize("listens", [False, True])
def test_a_hub_that_does_not_answer_is_one_error_within_5_seconds(
    listens: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        if listens:
            silent.listen()
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", endpoint)
        assert client._REACHED_WITHIN <= 4.0
        monkeypatch.setattr(client, "_REACHED_WITHIN", 0.5)
        began = time.monotonic()
        with pytest.raises(ConfigError, match=rf"^owner/name: {endpoint} cannot be reached \(.+\); set HF_ENDPOINT"):
            client.config_folder("owner/name")
        assert time.monotonic() - began < 4
    assert not caplog.records


def test_a_model_that_is_here_needs_no_answer(machine: Machine, repository: str) -> None:
    pulled = machine.omni("pull", repository).stdout
    again = machine.omni("pull", repository, HF_ENDPOINT="http://127.0.0.1:9")
    assert (again.stdout, again.stderr) == (pulled, "owner/parrot: 6 MiB\n")
    (Path(pulled.strip()) / "model-00002-of-00002.safetensors").unlink()
    incomplete = machine.omni("pull", repository, HF_ENDPOINT="http://127.0.0.1:9")
    assert incomplete.stderr.startswith("Error: owner/parrot: http://127.0.0.1:9 cannot be reached (Connect")
    assert incomplete.stderr.count("\n") == 1


def test_a_token_opens_a_gated_repository(machine: Machine, repository: str) -> None:
    machine.hub.gated[repository] = "secret"
    assert machine.listing(repository, HF_TOKEN="secret").returncode == 0


def test_a_disk_that_is_too_small_is_refused_before_the_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr(client, "config_folder", lambda model, config="config.json": str(tmp_path))
    monkeypatch.setattr(client, "_unreachable", lambda: None)
    monkeypatch.setattr(client, "_sizes", lambda *_: {"model.safetensors": 70 * 2**30, "film.mp4": 2**50})
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(2**40, 0, 20 * 2**30))
    with pytest.raises(
        ConfigError, match=r"owner/name: 70\.0 GiB are to be downloaded, .* has 20\.0 GiB free.*HF_HOME"
    ):
        client.download("owner/name")


@pytest.mark.parametrize(
    ("model", "word"), [("/no/such/folder", "neither"), ("just-a-name", "neither"), (".", "no config.json")]
)
def test_a_model_that_is_not_there_is_named(
    model: str, word: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=word):
        client.config_folder(model)


def test_a_folder_is_a_checkpoint_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    write_shard(tmp_path / "model.safetensors", "layer")
    assert client.config_folder(str(tmp_path)) == client.download(str(tmp_path)) == str(tmp_path)
    found = client.listing(str(tmp_path))
    assert found.tensors == {"layer": TensorInfo("BF16", WEIGHTS // 2)}
    assert found.files["model.safetensors"] > WEIGHTS


def test_what_a_download_lacks_is_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text("{}")
    write_shard(tmp_path / "model.safetensors", "layer.1")
    remote = client.Listing({}, {"codec.pth": 5})
    monkeypatch.setattr(client, "config_folder", lambda model, config="config.json": str(tmp_path))
    monkeypatch.setattr(client, "_cache", lambda: tmp_path / "cache")
    monkeypatch.setattr(client, "_remote", lambda *_: remote)
    assert [*client.listing("owner/name").tensors] == ["layer.1"]
    assert client.listing("owner/name", needs=("codec.pth",)) == remote
    (tmp_path / "codec.pth").write_bytes(b"x")
    assert client.listing("owner/name", needs=("codec.pth",)).files["codec.pth"] == 1


def test_what_is_checked_against_the_disk_is_what_is_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def snapshot_download(*_: object, allow_patterns: list[str], **more: object) -> str:
        asked.append(allow_patterns)
        return str(tmp_path)

    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr(client, "_unreachable", lambda: None)
    monkeypatch.setattr(client, "config_folder", lambda model, config="config.json": str(tmp_path))
    monkeypatch.setattr(
        client, "_sizes", lambda *_: dict.fromkeys(("config.json", "a.safetensors", "original/a.safetensors"), 9)
    )
    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    client.download("owner/name")
    client.download("owner/name", ["original/*"])
    assert asked == [["config.json", "a.safetensors"], ["original/a.safetensors"]]


def test_the_home_of_no_user_is_named() -> None:
    for find in (client.config_folder, client.listing, client.download):
        with pytest.raises(ConfigError, match="~nosuchuser/model: this machine has no user 'nosuchuser'"):
            find("~nosuchuser/model")


@pytest.mark.parametrize("name", ["model.safetensors", "parts/a.safetensors"])
def test_headers_of_a_folder_are_read_again_when_a_file_has_changed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index may name files in other folders."""
    read = list[Path]()
    read_headers = client.read_headers
    monkeypatch.setattr(client, "read_headers", lambda folder: read.append(folder) or read_headers(folder))

    def write(values: int) -> None:
        header = json.dumps({"a": {"dtype": "F32", "shape": [values], "data_offsets": [0, 4 * values]}}).encode()
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(len(header).to_bytes(8, "little") + header + bytes(4 * values))

    (tmp_path / "config.json").write_text("{}")
    if "/" in name:
        (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": name}}))
    write(10)
    assert [client.listing(str(tmp_path)).tensors["a"].values for _ in range(3)] == [10, 10, 10]
    assert len(read) == 1
    write(99)
    assert client.listing(str(tmp_path)).tensors["a"].values == 99
    (tmp_path / name).unlink()
    with pytest.raises(ConfigError, match=r"missing|no weights"):
        client.listing(str(tmp_path))
