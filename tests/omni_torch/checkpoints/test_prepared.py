"""Prepared weights: a later start maps what the first one wrote, and everything that could make it wrong makes it new."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from omni_core.errors import ConfigError
from omni_torch.checkpoints import prepared, weight_cache, weight_files
from omni_torch.checkpoints.prepared import filled_on, load_prepared
from omni_torch.checkpoints.weights import Checkpoint, load_module
from omni_torch.operations import few_rows
from omni_torch.operations.few_rows import BFloat16Embedding, BFloat16Linear, matrix_of
from omni_torch.quantization import packed_linear
from omni_torch.quantization.packed_linear import pack_decoder, pack_linears
from omni_torch.quantization.quantized_linear import QUANTIZATIONS, _works, quantize_for
from omni_torch.quantization.scaled_linear import GPU_QUANTIZATIONS

MINE = [None, *(name for name, each in QUANTIZATIONS.items() if _works(each))]


class Network(nn.Module):
    """Two joined projections, a norm, and a head that is the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Linear(128, 192)
        self.norm = nn.Parameter(torch.empty(7))
        self.embedding = nn.Parameter(torch.empty(192, 64))
        self.head = nn.Parameter(torch.empty(192, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.both(x) @ self.head * self.norm.sum()
        return made


def drawn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def write(folder: Path, seed: int = 0) -> Path:
    folder.mkdir(exist_ok=True)
    tensors = {
        "a.weight": drawn(64, 128, seed=seed), "b.weight": drawn(128, 128, seed=seed + 1), "a.bias": drawn(64, seed=seed + 2),
        "b.bias": drawn(128, seed=seed + 3), "norm": drawn(7, seed=seed + 4), "embedding": drawn(192, 64, seed=seed + 5),
    }  # fmt: skip
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text("{}")
    return folder


def sources(name: str, shape: torch.Size) -> list[tuple[str, tuple[int, ...] | None]]:
    if name.startswith("both."):
        return [(f"{each}.{name.removeprefix('both.')}", None) for each in "ab"]
    return [("embedding" if name == "head" else name, tuple(shape))]


def load(
    checkpoint: Path, quantization: str | None = None, dtype: torch.dtype = torch.float32, read: list[Any] | None = None
) -> Network:
    """Load the network; ``read`` gets an entry if the checkpoint is read."""

    def make() -> Network:
        with torch.device("meta"):
            return Network()

    def fill(module: Network, kind: torch.dtype | None) -> Network:
        if read is not None:
            read.append(threading.get_ident())
        return load_module(module, Checkpoint(checkpoint), sources, dtype=kind)

    options = {"quantization": quantization}
    quantize = quantize_for(quantization, "cpu")
    made = load_prepared(make, fill, checkpoint, network="test", dtype=dtype, options=options, quantize=quantize)
    pack_linears(made, pack_decoder)
    return made


@pytest.mark.parametrize("name", GPU_QUANTIZATIONS)
def test_weights_of_a_gpu_are_rounded_on_the_cpu_and_kept(
    checkpoint: Path, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The device is one without memory: what is there has passed through the file."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    quantize, read = quantize_for(name, "cuda:0"), []

    def make() -> Network:
        with torch.device("meta"):
            return Network()

    def fill(module: Network, kind: torch.dtype | None) -> Network:
        read.append(filled_on(name, "meta"))
        return load_module(module, Checkpoint(checkpoint), sources, dtype=kind, device=read[-1])

    def loaded(device: str) -> Network:
        given: dict[str, Any] = {"dtype": torch.bfloat16, "options": {"quantization": name}, "quantize": quantize}
        return load_prepared(make, fill, checkpoint, network="test", device=device, **given)

    elsewhere, here = loaded("meta"), loaded("cpu")
    assert read == ["cpu"], "the second one is mapped"
    assert not caplog.records
    assert {each.device.type for each in elsewhere.state_dict().values()} == {"meta"}
    plain = load(checkpoint, dtype=torch.bfloat16).both
    layer = GPU_QUANTIZATIONS[name](plain.weight, plain.bias)
    assert torch.equal(here.both.matrix.weight.view(torch.uint8), layer.matrix.weight.view(torch.uint8))
    assert torch.equal(here.both.scales, layer.scales)
    x = drawn(3, 128, seed=1).bfloat16()
    assert torch.equal(here.both(x), layer(x))


@pytest.mark.parametrize("kept", [True, False])
def test_a_network_in_float32_keeps_what_is_stored_in_bfloat16(
    checkpoint: Path, kept: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The joined matrix, but not where a part of it is stored in float32; all else computes in float32, and all values are those stored."""
    monkeypatch.setattr(prepared.few_rows_linear, "replaced", lambda device, dtype: True)
    monkeypatch.setattr(packed_linear, "LEAST_VALUES", 0)
    tensors = {name: each.bfloat16() for name, each in load_file(checkpoint / "model.safetensors").items()}
    if not kept:
        tensors["a.weight"] = tensors["a.weight"].float() + 2.0**-20
    save_file(tensors, checkpoint / "model.safetensors")
    read: list[Any] = []
    for _ in range(3):
        made = load(checkpoint, read=read)
        assert isinstance(made.both, BFloat16Linear) == kept
        state = made.state_dict()
        assert {str(each.dtype) for name, each in state.items() if name != "both._weight"} == {"torch.float32"}
        joined = torch.cat([tensors["a.weight"].float(), tensors["b.weight"].float()])
        assert torch.equal(made.both.matrix.weight.float(), joined)
        assert state["head"].data_ptr() == state["embedding"].data_ptr()
        x = drawn(3, 128, seed=1)
        biases = torch.cat([tensors["a.bias"], tensors["b.bias"]]).float()
        torch.testing.assert_close(made.both(x), nn.functional.linear(x, joined, biases))
    assert len(read) == 1
    assert not caplog.records
    assert load(checkpoint, dtype=torch.bfloat16).both.matrix.weight.dtype == torch.bfloat16
    save_file({name: each.float() for name, each in tensors.items()}, checkpoint / "model.safetensors")
    assert not isinstance(load(checkpoint).both, BFloat16Linear), "a checkpoint in float32"


class Speaker(nn.Module):
    """Two embeddings, and a head that shares the memory of the first one."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.codes = nn.Embedding(192, 64), nn.Embedding(30, 64)
        self.head = nn.Linear(64, 192, bias=False)


@pytest.mark.parametrize("cache", ["on", "off"])
@pytest.mark.parametrize("codes", [torch.bfloat16, torch.float32])
def test_embeddings_keep_what_is_stored_in_bfloat16(
    checkpoint: Path, codes: torch.dtype, cache: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Rows are those of the same embeddings in float32; one that is stored in float32 stays so; a tied head is the embedding's memory, in
    the network and in the file.
    """
    monkeypatch.setattr(prepared.few_rows_linear, "replaced", lambda device, dtype: True)
    monkeypatch.setattr(packed_linear, "LEAST_VALUES", 0)
    if cache == "off":
        monkeypatch.setenv(weight_cache.VARIABLE, cache)
    stored = {"words.weight": drawn(192, 64, seed=1).bfloat16(), "codes.weight": drawn(30, 64, seed=2).to(codes)}
    save_file(stored, checkpoint / "model.safetensors")
    read: list[int] = []

    def make() -> Speaker:
        with torch.device("meta"):
            return Speaker()

    def fill(module: Speaker, kind: torch.dtype | None) -> Speaker:
        read.append(1)
        names = {"head.weight": "words.weight"}
        given = Checkpoint(checkpoint)
        return load_module(module, given, lambda name, shape: [(names.get(name, name), tuple(shape))], dtype=kind)

    def load_speaker(dtype: torch.dtype) -> Speaker:
        return load_prepared(make, fill, checkpoint, network="speaker", dtype=dtype, options={})

    ids = torch.tensor([[3, 0, 29], [7, 7, 1]])
    for _ in range(3):
        made = load_speaker(torch.float32)
        assert isinstance(made.words, BFloat16Embedding)
        assert isinstance(made.head, BFloat16Linear)
        assert made.head.matrix.weight.data_ptr() == made.words.matrix.weight.data_ptr()
        assert isinstance(made.codes, BFloat16Embedding) == (codes == torch.bfloat16)
        for name, layer in (("words", made.words), ("codes", made.codes)):
            rows = layer(ids)
            assert rows.dtype == torch.float32
            assert torch.equal(rows, nn.functional.embedding(ids, stored[f"{name}.weight"].float()))
            matrix = matrix_of(layer)
            assert matrix is not None
            assert torch.equal(matrix.weight, stored[f"{name}.weight"])
        x = drawn(3, 64, seed=3)
        torch.testing.assert_close(made.head(x), x @ stored["words.weight"].float().T)
    assert len(read) == (1 if cache == "on" else 3)
    if cache == "on":
        written = files()[0].read_bytes()
        header = 8 + int.from_bytes(written[:8], "little")
        assert len(written) - header == sum(map(nbytes, stored.values())), "no tensor is written twice"
    assert not caplog.records
    assert type(load_speaker(torch.bfloat16).words) is nn.Embedding
    save_file({name: each.float() for name, each in stored.items()}, checkpoint / "model.safetensors")
    assert type(load_speaker(torch.float32).words) is nn.Embedding, "a checkpoint in float32"


def nbytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def test_many_rows_are_multiplied_with_parts_of_a_widened_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(few_rows, "WIDENED", 1000)
    weight, bias = drawn(70, 130, seed=1).bfloat16(), drawn(70, seed=2)
    for given in (bias, None):
        layer = BFloat16Linear(weight, given)
        for shape in ((1, 130), (2, 32, 130), (65, 130), (3, 50, 130), (0, 130)):
            x = drawn(*shape, seed=3)
            torch.testing.assert_close(layer(x), nn.functional.linear(x, weight.float(), given))


def test_layers_that_share_a_parameter_still_do_after_a_conversion() -> None:
    """Memory that is freed meanwhile is taken again for others."""
    for _ in range(10):
        pairs = [(nn.Embedding(50, 64), nn.Linear(64, 50, bias=False)) for _ in range(8)]
        for embedding, head in pairs:
            head.weight = embedding.weight
        network = nn.ModuleList([each for pair in pairs for each in pair]).bfloat16()
        expected = [embedding.weight.detach().float() for embedding, _ in pairs]
        prepared.converted(network, torch.float32)
        for (embedding, head), right in zip(pairs, expected, strict=True):
            assert head.weight is embedding.weight
            assert torch.equal(head.weight, right)


@pytest.mark.skipif("bfloat16_lossless" not in MINE, reason="needs AVX2")
def test_weights_that_stay_as_they_are_are_kept_so(checkpoint: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Their exponents are too many for 12 bits: a message says it once, later starts map the same network."""
    fitting = load(checkpoint, "bfloat16_lossless", torch.bfloat16)
    tensors = load_file(checkpoint / "model.safetensors")
    tensors["b.weight"] = torch.exp2(torch.linspace(-60, 60, 128)).repeat(128, 1)
    save_file(tensors, checkpoint / "model.safetensors")
    read: list[Any] = []
    for _ in range(3):
        made = load(checkpoint, "bfloat16_lossless", torch.bfloat16, read)
        x = drawn(3, 128, seed=1).bfloat16()
        joined = torch.cat([tensors["a.weight"], tensors["b.weight"]]).bfloat16()
        right = nn.functional.linear(x.double(), joined.double())
        biases = torch.cat([tensors["a.bias"], tensors["b.bias"]]).bfloat16().double()
        assert (made.both(x).double() - biases - right).norm() < 0.01 * right.norm()
    assert len(read) == 1
    assert caplog.text.count("test: `quantization` does not fit the values of both, which stay as they are") == 1
    assert type(fitting.both) is not type(made.both)


def test_a_network_that_is_filled_with_other_dtypes_is_not_written(
    checkpoint: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def make() -> Network:
        with torch.device("meta"):
            return Network()

    def fill(module: Network, kind: torch.dtype | None) -> Network:
        made = load_module(module, Checkpoint(checkpoint), sources, dtype=kind)
        made.norm.data = made.norm.data.double()
        return made

    made = load_prepared(make, fill, checkpoint, network="test", dtype=torch.float32, options={})
    assert torch.equal(made.norm, drawn(7, seed=4).double())
    assert (
        "of test are made anew at every start: with values, `fill` and `quantize` give other dtypes or shapes"
        in caplog.text
    )
    assert not files()


class Four(nn.Module):
    """Of four layers the first is too narrow for 12 bits, and the third has values that do not fit."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(size, 128, bias=False) for size in (96, 128, 128, 128))


@pytest.mark.skipif("bfloat16_lossless" not in MINE, reason="needs AVX2")
def test_of_several_layers_those_that_fit_are_coded_at_each_start(checkpoint: Path) -> None:
    tensors = {f"layers.{number}.weight": drawn(128, 128, seed=number) for number in range(4)}
    tensors["layers.0.weight"] = drawn(128, 96, seed=9)
    tensors["layers.2.weight"] = torch.exp2(torch.linspace(-60, 60, 128)).repeat(128, 1)
    save_file(tensors, checkpoint / "model.safetensors")
    read: list[Any] = []

    def fill(module: Four, kind: torch.dtype | None) -> Four:
        read.append(1)
        return load_module(module, Checkpoint(checkpoint), lambda name, shape: [(name, None)], dtype=kind)

    def make() -> Four:
        with torch.device("meta"):
            return Four()

    kinds = []
    for _ in range(2):
        quantize = quantize_for("bfloat16_lossless", "cpu")
        made = load_prepared(
            make, fill, checkpoint, network="four", dtype=torch.bfloat16, options={}, quantize=quantize
        )
        kinds.append([type(each) is nn.Linear for each in made.layers])
        for number, layer in enumerate(made.layers):
            x = drawn(3, layer_size(number), seed=5).bfloat16()
            right = x.double() @ tensors[f"layers.{number}.weight"].bfloat16().double().T
            assert (layer(x).double() - right).norm() < 0.01 * right.norm()
    assert len(read) == 1
    assert kinds == [[True, False, True, False]] * 2


def layer_size(number: int) -> int:
    return 128 if number else 96


@pytest.mark.skipif("bfloat16_lossless" not in MINE, reason="needs AVX2")
@pytest.mark.parametrize("said", ["[1.5e", '"x"', "[[]]", "7", "[1e999]"])
def test_a_file_with_damaged_metadata_is_made_anew(
    checkpoint: Path, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    load(checkpoint, "bfloat16_lossless", torch.bfloat16)
    (path,) = files()
    metadata = weight_files.read_metadata(path)[0]
    tensors = {name: each.clone() for name, each in weight_files.map_tensors(path).items()}
    weight_files.write_tensors(path, tensors, metadata | {prepared.PLAIN: said})
    read: list[Any] = []
    load(checkpoint, "bfloat16_lossless", torch.bfloat16, read)
    assert len(read) == 1
    assert "is made anew: plain is" in caplog.text


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(weight_cache.VARIABLE, raising=False)
    monkeypatch.setattr(prepared, "LEAST_BYTES", 0)
    return write(tmp_path / "checkpoint")


def files() -> list[Path]:
    return sorted(weight_cache.folder().glob("*"))


@pytest.mark.parametrize("quantization", MINE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_later_start_maps_the_same_weights(
    checkpoint: Path, quantization: str | None, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(weight_cache.VARIABLE, "off")
    x = drawn(3, 128, seed=9).to(dtype)
    exact = load(checkpoint, quantization, dtype)(x)
    assert files() == []
    monkeypatch.delenv(weight_cache.VARIABLE)
    read: list[Any] = []
    for _ in range(3):
        assert torch.equal(load(checkpoint, quantization, dtype, read)(x), exact)
    assert len(read) == 1
    assert len(files()) == 1


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="reads /proc")
def test_weights_are_pages_of_the_file(checkpoint: Path) -> None:
    made = [load(checkpoint), load(checkpoint)]
    ranges = [
        [int(each, 16) for each in line.split()[0].split("-")]
        for line in Path("/proc/self/maps").read_text().splitlines()
        if str(files()[0]) in line
    ]
    for network in made:
        for name, tensor in network.state_dict().items():
            assert any(low <= tensor.data_ptr() < high for low, high in ranges), name
            assert tensor.data_ptr() % 4 == 0, name
        assert network.head.data_ptr() == network.embedding.data_ptr()
        assert network.head.data_ptr() % weight_files.ALIGNMENT == 0
    made[0].head.zero_()
    assert made[1].head.abs().max() > 0
    assert load(checkpoint).head.abs().max() > 0, "a write reached the file"


def test_the_file_is_one_of_the_format(checkpoint: Path) -> None:
    made = load(checkpoint)
    for name, tensor in load_file(files()[0]).items():
        assert torch.equal(made.state_dict()[name], tensor)


def test_other_weights_options_and_code_have_other_files(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load(checkpoint).norm.clone()
    (checkpoint / "model.safetensors").unlink()
    write(checkpoint, seed=20)  # of the same sizes and names
    read: list[Any] = []
    assert not torch.equal(load(checkpoint, read=read).norm, first)
    load(checkpoint, dtype=torch.bfloat16, read=read)
    (checkpoint / "config.json").write_text('{"changed": true}')
    load(checkpoint, read=read)
    monkeypatch.setattr(prepared, "_files_of", lambda package: [checkpoint / "config.json"])
    load(checkpoint, read=read)
    assert len(read) == 4
    assert len(files()) == 5


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _no_header(path: Path) -> None:
    path.write_bytes(b"\xff" * path.stat().st_size)


def _of_another_network(path: Path) -> None:
    key = path.name.removesuffix(weight_cache.SUFFIX)
    weight_files.write_tensors(path, {"norm": torch.zeros(7)}, {"key": key})


def _of_another_key(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(path.name[:32].encode(), b"0" * 32))


@pytest.mark.parametrize("damage", [_cut, _empty, _no_header, _of_another_network, _of_another_key])
def test_a_damaged_file_is_made_anew(
    checkpoint: Path, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    exact = {name: tensor.clone() for name, tensor in load(checkpoint).state_dict().items()}
    path = files()[0]
    damage(path)
    read: list[Any] = []
    for _ in range(2):
        made = load(checkpoint, read=read).state_dict()
        assert all(torch.equal(made[name], tensor) for name, tensor in exact.items())
    assert len(read) == 1
    assert [record.getMessage() for record in caplog.records if "made anew" in record.getMessage()]
    assert len(caplog.records) == 1


def test_without_a_folder_or_a_free_disk_weights_are_read(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    exact = load(checkpoint).state_dict()
    weight_cache.clear()
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        assert torch.equal(load(checkpoint).norm, exact["norm"])
    assert files() == [], "a part of a file is left"
    weight_cache.folder().rmdir()
    weight_cache.folder().write_text("no folder")
    assert torch.equal(load(checkpoint).norm, exact["norm"])
    assert ["No space left" in caplog.records[0].getMessage(), len(caplog.records)] == [True, 2]


def test_two_starts_at_once_do_not_disturb_one_another(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    together, made, write_tensors = threading.Barrier(2, timeout=20), [], weight_files.write_tensors

    def at_once(*given: Any) -> None:
        together.wait()
        write_tensors(*given)

    monkeypatch.setattr(prepared, "write_tensors", at_once)
    threads = [threading.Thread(target=lambda: made.append(load(checkpoint))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    one, other = (each.state_dict() for each in made)
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert len(files()) == 1


def test_the_folder_is_bounded_and_forgets_what_was_used_longest_ago(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = load(checkpoint)
    nbytes = files()[0].stat().st_size
    monkeypatch.setenv(weight_cache.VARIABLE, str(2 * nbytes + 1000))
    os.utime(files()[0], (time.time() - 100,) * 2)
    load(checkpoint, dtype=torch.bfloat16)
    for path in files():
        os.utime(path, (path.stat().st_mtime - 50,) * 2)
    load(checkpoint)  # used again, so that the other one is the oldest
    (checkpoint / "config.json").write_text('{"changed": true}')
    load(checkpoint)
    read: list[Any] = []
    (checkpoint / "config.json").write_text("{}")
    load(checkpoint, read=read)
    assert not read
    assert sum(each.stat().st_size for each in files()) <= 2 * nbytes + 1000
    weight_cache.clear()
    assert first.head.abs().max() > 0, "a process keeps what it has mapped"
    monkeypatch.setenv(weight_cache.VARIABLE, "1KiB")
    load(checkpoint)
    assert "are not kept" in caplog.records[-1].getMessage()
    monkeypatch.setenv(weight_cache.VARIABLE, "much")
    with pytest.raises(ConfigError, match="OMNI_WEIGHTS_CACHE: must be a size such as 20GiB"):
        load(checkpoint)


def test_all_code_that_rounds_or_reads_weights_is_part_of_the_key() -> None:
    package = Path(prepared.__file__).parents[1]
    modules = [str(each.relative_to(package).with_suffix("")) for each in package.rglob("*.py")]
    makers = {name for name in modules if "/quantized_" in name or name.endswith(("checkpoints", "_linear"))}
    assert "quantization/quantized_values" in makers
    assert set(prepared._CODE) <= set(modules)
    assert makers <= set(prepared._CODE)
