"""Images of ``omni run``: the files that they are written to, and what is refused before anything is computed."""

from __future__ import annotations

from pathlib import Path

import click
import numpy as np
import pytest

from omni_cli.request import out
from omni_cli.request.images import as_document, save_images
from omni_core.protocol.outputs import ImageResult


def pictures(count: int) -> np.ndarray:
    return np.zeros((count, 4, 6, 3), np.uint8)


def test_several_images_are_numbered_and_write_over_nothing_of_another_kind(tmp_path: Path) -> None:
    (tmp_path / "x-2.png").write_text("a note")
    assert [each.name for each in save_images(pictures(1), tmp_path / "x.png")] == ["x.png"]
    assert [each.name for each in save_images(pictures(2), tmp_path / "x.png")] == ["x-1.png", "x-3.png"]
    assert (tmp_path / "x-2.png").read_text() == "a note"


def test_a_document_tells_the_size_and_the_seeds() -> None:
    assert as_document(ImageResult(pictures(2), seeds=[7])) == {"width": 6, "height": 4, "images": 2, "seeds": [7]}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("-", "is for speech; name a file"),
        ("x.wav", r"images are written as \.png"),
        ("nowhere/x.png", "does not exist or cannot be written"),
        ("note.png", "exists and is no image"),
    ],
)
def test_a_place_where_no_image_can_be_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "note.png").write_text("a note")
    with pytest.raises(click.UsageError, match=text):
        out.check_image_out(Path(name))


def test_pillow_is_looked_for_before_anything_is_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(out, "find_spec", lambda name: None)
    with pytest.raises(click.UsageError, match="--out needs Pillow for images: pip install pillow"):
        out.check_image_out(tmp_path / "x.png")
