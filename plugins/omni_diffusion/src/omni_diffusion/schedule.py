"""The noise levels of one request, by diffusers' flow matching scheduler (Euler steps; Esser et al., 2024, arXiv:2403.03206)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from attrs import field, frozen

from omni_core.api import ConfigError, InvalidRequestError

SCHEDULER = "FlowMatchEulerDiscreteScheduler"


@frozen(eq=False)
class Schedule:
    """Noise levels of one request.

    Attributes:
        sigmas: float32 ``[steps + 1]``, falling, the last one 0.
        timesteps: float32 ``[steps]``, as the network gets them.
    """

    sigmas: torch.Tensor
    timesteps: torch.Tensor

    @property
    def steps(self) -> int:
        """The number of steps."""
        return len(self.timesteps)

    def advance(self, sample: torch.Tensor, velocity: torch.Tensor, step: int) -> torch.Tensor:
        """Return the sample after step number ``step``, in the velocity's dtype; computed in float32."""
        change = self.sigmas[step + 1] - self.sigmas[step]
        return (sample.float() + change * velocity).to(velocity.dtype)

    def clean(self, sample: torch.Tensor, velocity: torch.Tensor, step: int) -> torch.Tensor:
        """Return the sample without noise as step number ``step`` estimates it, for previews. float32."""
        return sample.float() - self.sigmas[step] * velocity.float()


@frozen
class Schedules:
    """Makes the schedules of requests from a checkpoint's ``scheduler_config.json``.

    Raises:
        ConfigError: another class of scheduler, or one that draws noise at every step.
    """

    config: dict[str, Any] = field()

    def __attrs_post_init__(self) -> None:
        name = self.config.get("_class_name", SCHEDULER)
        if name != SCHEDULER:
            raise ConfigError(f"scheduler_config.json: the scheduler {name} is not supported; {SCHEDULER} is")
        if self.config.get("stochastic_sampling"):
            raise ConfigError("scheduler_config.json: stochastic_sampling is not supported; set it to false")

    def make(self, steps: int, positions: int) -> Schedule:
        """Return the schedule of ``steps`` steps for an image of so many ``positions`` (tokens of the network).

        Raises:
            InvalidRequestError: one step, of a checkpoint whose schedule is stretched between its first and its last step.
        """
        if steps == 1 and self.config.get("shift_terminal"):
            raise InvalidRequestError(
                "params.steps: must be 2 or more: the checkpoint's noise levels are stretched (shift_terminal)"
            )
        from diffusers import FlowMatchEulerDiscreteScheduler

        scheduler = FlowMatchEulerDiscreteScheduler.from_config(self.config)
        scheduler.set_timesteps(sigmas=np.linspace(1.0, 1 / steps, steps), mu=self._shift(positions))
        return Schedule(scheduler.sigmas.float().clone(), scheduler.timesteps.float().clone())

    def _shift(self, positions: int) -> float:
        """Return the shift of the noise levels for a resolution: a line through two points of the config."""
        low, high = self.config.get("base_image_seq_len", 256), self.config.get("max_image_seq_len", 4096)
        least, most = self.config.get("base_shift", 0.5), self.config.get("max_shift", 1.15)
        slope = (most - least) / (high - low)
        return float(positions * slope + (least - slope * low))
