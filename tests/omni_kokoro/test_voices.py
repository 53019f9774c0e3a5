"""Voices: files, names, blends."""

from __future__ import annotations

import os
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from omni_core.api import ConfigError, InvalidRequestError
from omni_kokoro.checkpoint import voice_files
from omni_kokoro.voices import Voices

WIDTH = 16


def table(number: int, rows: int = 510) -> np.ndarray:
    return np.random.default_rng(number).standard_normal((rows, 1, WIDTH)).astype(np.float32)


@pytest.mark.parametrize("shape", [(510, 1, WIDTH), (511, 1, WIDTH), (510, WIDTH), (1, WIDTH), (WIDTH,)])
def test_every_shape_of_a_voice_is_read(tmp_path: Path, shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    torch.save(torch.from_numpy(values), tmp_path / "af_x.pt")
    voices = Voices(tmp_path, str(tmp_path), WIDTH)
    rows = values.reshape(-1, WIDTH)
    for count in (1, 7, 510):
        assert np.array_equal(voices.style([("af_x", 1.0)], count), rows[min(count, len(rows)) - 1])


def test_one_file_of_several_voices_and_raw_ones_are_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "voices.npz", af_a=table(0), bm_b=table(1))
    shutil.move(tmp_path / "voices.npz", tmp_path / "voices-v1.0.bin")  # as it is published
    (tmp_path / "voices").mkdir()
    table(2).tofile(tmp_path / "voices" / "ef_c.bin")
    voices = Voices(tmp_path, width=WIDTH)
    assert [*voices.tables] == ["af_a", "bm_b", "ef_c"]
    for number, name in enumerate(voices.tables):
        assert np.array_equal(voices.style([(name, 1.0)], 3), table(number)[2, 0])


def test_a_blend_is_the_weighted_mean(tmp_path: Path) -> None:
    np.savez(tmp_path / "v.npz", af_heart=table(0), af_bella=table(1))
    voices = Voices(tmp_path, width=WIDTH)
    for text, first in (
        ("af_heart(2)+af_bella(1)", 2 / 3),
        (" AF_Heart + af_bella ", 1 / 2),
        ("af_heart,af_bella(.5)", 2 / 3),
    ):
        expected = first * table(0)[4, 0] + (1 - first) * table(1)[4, 0]
        np.testing.assert_allclose(voices.style(voices.named(text), 5), expected, rtol=1e-5, atol=1e-6)
    assert voices.named(None) == voices.named("default") == [("af_heart", 1.0)]


def test_openais_names_mean_the_voices_that_servers_of_kokoro_give_them(tmp_path: Path) -> None:
    np.savez(tmp_path / "v.npz", af_heart=table(0), am_adam=table(1), am_echo=table(2))
    voices = Voices(tmp_path, width=WIDTH)
    named = {name: voices.named(name)[0][0] for name in ("alloy", "Echo", "nova")}
    assert named == {"alloy": "am_adam", "Echo": "am_echo", "nova": "af_heart"}


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("af_hart", "did you mean 'af_heart'"),
        ("af_heart+af_bela", "did you mean 'af_bella'"),
        ("af_heart(0)", "more than 0"),
        ("af_heart(-1)", "no voice"),
        ("af_heart(2", "no voice"),
        ("+", "no voice"),
        (" " * 10_000 + "(", "no voice"),
        ("af_heart(" + "9" * 100_000 + "x", "no voice"),
        ("+".join(["af_heart"] * 17), "at most 16"),
    ],
)
def test_a_voice_that_is_none_is_refused(tmp_path: Path, wanted: str, message: str) -> None:
    np.savez(tmp_path / "v.npz", af_heart=table(0), af_bella=table(1))
    with pytest.raises(InvalidRequestError, match=message):
        Voices(tmp_path, width=WIDTH).named(wanted)


class Harm:
    def __reduce__(self) -> Any:
        return (print, ("harm",))


def _pickled(path: Path) -> None:
    torch.save({"x": Harm()}, path / "af_x.pt")


def _swollen(path: Path) -> None:
    """Write 80 MB in a file of 80 kB."""
    with zipfile.ZipFile(path / "af_x.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("af_x.npy", bytes(80_000_000))


def _swollen_tensor(path: Path) -> None:
    with zipfile.ZipFile(path / "af_x.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("af_x/data/0", bytes(80_000_000))


@pytest.mark.parametrize(
    "write",
    [
        _pickled,
        lambda path: (path / "af_x.pt").write_bytes(b"nothing"),
        lambda path: torch.save({"a": torch.zeros(3)}, path / "af_x.pt"),
        lambda path: torch.save(torch.zeros(510, 1, 5), path / "af_x.pt"),
        lambda path: torch.save(torch.full((510, 1, WIDTH), torch.nan), path / "af_x.pt"),
        lambda path: torch.save(torch.tensor(1.0), path / "af_x.pt"),
        lambda path: torch.save(torch.zeros(1).expand(2_000_000, 1, WIDTH), path / "af_x.pt"),
        _swollen,
        _swollen_tensor,
        lambda path: os.mkfifo(path / "af_x.npz"),
        lambda path: os.mkfifo(path / "af_x.bin"),
        lambda path: np.savez(path / "af_x.npz", af_x=np.array(["a"] * WIDTH)),
        lambda path: (path / "af_x.npz").write_bytes(b"PK nothing"),
        lambda path: (path / "af_x.bin").write_bytes(b"abc"),
        lambda path: np.savez(path / "af_x.npz", af_x=np.array([object()], dtype=object)),
    ],
)
def test_a_bad_voice_file_is_named(tmp_path: Path, write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path)
    with pytest.raises(ConfigError, match="af_x"):
        Voices(tmp_path, str(tmp_path), WIDTH)
    assert "harm" not in capsys.readouterr().out


def test_a_folder_without_voices_is_named(tmp_path: Path) -> None:
    assert voice_files(tmp_path) == {}
    with pytest.raises(ConfigError, match="no voices"):
        Voices(tmp_path)
