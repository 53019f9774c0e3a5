"""The room for the media of one request: positions of the context, and bytes that the encoders can be sent. Checked before the work."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from attrs import define, field

from omni_media.api import Fits, MediaSource
from omni_qwen3.patches import PatchSettings, fitting_size

FLOAT_BYTES = 4


@define
class Room:
    """Counts what the media of a request take, piece by piece.

    Args:
        context: positions of a prompt.
        payload_bytes: by stage, the most that one payload can have; see :mod:`omni_core.stage.assembly`.
    """

    context: int
    payload_bytes: Mapping[str, int] = field(factory=dict)
    positions: int = 0
    picture_bytes: int = 0
    sound_bytes: int = 0

    def fits(self, source: MediaSource, settings: PatchSettings, bounds: tuple[int, int]) -> Fits:
        """Return the check of an image or a video, by its number of pictures, height and width.

        Args:
            bounds: the fewest and the most pixels of a resized picture.
        """

        def check(count: int, height: int, width: int) -> None:
            self._check_pictures(source, *_cost(settings, bounds, count, height, width))

        return check

    def take_pictures(self, source: MediaSource, settings: PatchSettings, grid: list[int]) -> None:
        """Count an image or a video of a grid ``[time, height, width]`` of patches."""
        time, height, width = grid
        positions, nbytes = _cost_of_patches(settings, time * height * width)
        self._check_pictures(source, positions, nbytes)
        self.positions += positions
        self.picture_bytes += nbytes

    def take_sound(self, source: MediaSource, positions: int, values: int) -> None:
        """Count a clip by its positions, and the values of its features.

        Raises:
            RequestTooLargeError: there is no room for it.
        """
        self.positions += positions
        self.sound_bytes += values * FLOAT_BYTES
        self._check(source, self.positions, self.sound_bytes, "audio_encoder", "sound")

    def _check_pictures(self, source: MediaSource, positions: int, nbytes: int) -> None:
        self._check(source, self.positions + positions, self.picture_bytes + nbytes, "image_encoder", "pictures")

    def _check(self, source: MediaSource, positions: int, nbytes: int, stage: str, kind: str) -> None:
        if positions >= self.context:
            raise source.too_large(
                f"up to it the media take {positions} positions of the prompt; the context holds {self.context}"
            )
        most = self.payload_bytes.get(stage)
        if most is not None and nbytes > most:
            raise source.too_large(
                f"up to it the {kind} of the request are {nbytes / 2**20:.1f} MiB for the model; the limit is {most / 2**20:.1f} MiB: "
                "send fewer, smaller or shorter ones"
            )


def _cost(settings: PatchSettings, bounds: tuple[int, int], count: int, height: int, width: int) -> tuple[int, int]:
    high, wide = fitting_size(height, width, settings.patch * settings.merge, *bounds)
    return _cost_of_patches(settings, ceil(count / settings.temporal) * high * wide // settings.patch**2)


def _cost_of_patches(settings: PatchSettings, patches: int) -> tuple[int, int]:
    """Return the positions of a prompt that patches take, and their bytes."""
    values = 3 * settings.temporal * settings.patch**2
    return patches // settings.merge**2, patches * values * FLOAT_BYTES
