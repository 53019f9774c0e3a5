"""The denoising loop as a step scheduler: requests of equal shape share steps, with guidance and adapters."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any, Protocol

import torch
from attrs import evolve, field, frozen

from omni_core.api import OmniError, StagePayload
from omni_diffusion.schedule import Schedule
from omni_torch.api import StepScheduler


@frozen(eq=False)
class Latents:
    """A request on its way from noise to latents. Nothing in it is changed in place.

    Attributes:
        sample: ``[images, positions, channels]``, as noisy as its step says.
        schedule: its noise levels.
        step: how many steps are done.
        conditions: ``[positions, width]`` for each role; ``positive`` is always there, ``negative`` with guidance, unless the
            scheduler's ``guide`` has roles of its own.
        guidance: the scale of classifier-free guidance (Ho and Salimans, 2022, arXiv:2207.12598); without ``negative`` it has no effect.
        shapes: ``(frames, height, width)`` in positions: of the image, then of each image that it is made from.
        given: ``[1, positions, channels]``, latents of the images that it is made from, or ``None``.
        adapter: the name of the adapter that it uses, or ``None``.
        previews: the steps after which a preview is streamed.
        wants_progress: whether steps are streamed at all.
        velocity: the newest output of the network, for previews.
        extra: plain data of the model for the stage after this one.
    """

    sample: torch.Tensor
    schedule: Schedule
    conditions: dict[str, torch.Tensor]
    guidance: float
    shapes: tuple[tuple[int, int, int], ...]
    given: torch.Tensor | None = None
    adapter: str | None = None
    previews: frozenset[int] = frozenset()
    wants_progress: bool = False
    step: int = 0
    velocity: torch.Tensor | None = None
    extra: dict[str, Any] = field(factory=dict)


class DiffusionModel(Protocol):
    """A model as the denoising loop sees it."""

    def begin(self, payload: StagePayload) -> Latents:
        """Return a request before its first step. Raises InvalidRequestError if the request is at fault."""
        ...

    def use_adapter(self, name: str | None) -> None:
        """Compute with an adapter from now on, or with none."""
        ...

    def predict(
        self,
        samples: torch.Tensor,
        timesteps: torch.Tensor,
        conditions: torch.Tensor,
        mask: torch.Tensor | None,
        shapes: Sequence[tuple[int, int, int]],
    ) -> torch.Tensor:
        """Run the network.

        Args:
            samples: ``[n, positions, channels]``, those of given images behind the image's.
            timesteps: float32 ``[n]``.
            conditions: ``[n, longest, width]``, padded with zeros.
            mask: int64 ``[n, longest]``, 1 where there is something; ``None``: everywhere.
            shapes: as in :class:`Latents`, equal for all.

        Returns:
            ``[n, positions, channels]``, at least of the image's positions.
        """
        ...


class DenoisingScheduler(StepScheduler[Latents]):
    """Denoises the requests of one model.

    A batch holds requests of equal shapes with one adapter; steps, numbers of steps, guidance and the lengths of prompts may differ. With
    guidance a request is twice as many rows. Where more requests run than a batch holds, those that are short for their age are the batch
    (:meth:`~omni_torch.loop.steps.StepScheduler.work`).

    Args:
        max_batch_size: requests that share a step at most.
        max_running: requests that are denoised at once.
    """

    def __init__(self, model: DiffusionModel, max_batch_size: int = 8, max_running: int | None = None) -> None:
        super().__init__(max_batch_size, max_running)
        self._model = model

    def begin(self, payload: StagePayload) -> Latents:
        return self._model.begin(payload)

    def key(self, state: Latents) -> Hashable:
        return state.shapes, state.adapter

    @torch.inference_mode()
    def step(self, states: list[Latents]) -> list[Latents]:
        self._model.use_adapter(states[0].adapter)
        velocities = iter(self._velocities(states))
        stepped = []
        for state in states:
            by_role = {role: next(velocities) for role in state.conditions}
            velocity = self.guide(state, by_role)
            sample = state.schedule.advance(state.sample, velocity, state.step)
            kept = velocity if state.step + 1 in state.previews else None
            stepped.append(evolve(state, sample=sample, step=state.step + 1, velocity=kept))
        return stepped

    def guide(self, state: Latents, velocities: dict[str, torch.Tensor]) -> torch.Tensor:
        """Combine the network's outputs of a state's roles; a model with guidance or roles of its own overrides it."""
        return guided(velocities, state.guidance)

    def is_done(self, state: Latents) -> bool:
        return state.step >= state.schedule.steps

    def work(self, state: Latents) -> float:
        """Return steps times positions of all rows."""
        positions = sum(math.prod(shape) for shape in state.shapes)
        return (state.schedule.steps - state.step) * len(state.sample) * len(state.conditions) * positions

    def progress(self, state: Latents) -> Any:
        if not state.wants_progress:
            return None
        preview = None
        if state.velocity is not None and not self.is_done(state):
            preview = state.schedule.clean(state.sample, state.velocity, state.step)
        return {"step": state.step, "steps": state.schedule.steps, "latents": preview, **state.extra}

    def finish(self, state: Latents) -> Any:
        if not bool(torch.isfinite(state.sample).all()):
            raise OmniError(
                "the latents are not finite: the network overflowed; try another dtype, such as float32, or less guidance"
            )
        return {"latents": state.sample, **state.extra}

    def _velocities(self, states: list[Latents]) -> list[torch.Tensor]:
        """Return the network's output, ``[images, positions, channels]``, for each state and role, in order.

        On a GPU all rows are one batch, in which shorter conditions are padded. On a CPU, where a larger batch gains little and a mask
        costs, rows of equal length are a batch each.
        """
        pairs = [(state, condition) for state in states for condition in state.conditions.values()]
        batches: dict[int, list[int]] = {}
        for index, (state, condition) in enumerate(pairs):
            batches.setdefault(len(condition) if state.sample.device.type == "cpu" else 0, []).append(index)
        found: dict[int, torch.Tensor] = {}
        for indices in batches.values():
            outputs = self._predicted([pairs[index] for index in indices])
            found |= dict(zip(indices, outputs, strict=True))
        return [found[index] for index in range(len(pairs))]

    def _predicted(self, pairs: list[tuple[Latents, torch.Tensor]]) -> list[torch.Tensor]:
        """Run the network once for states, each with one condition for all of its images."""
        first = pairs[0][0]
        longest = max(len(condition) for _, condition in pairs)
        sizes = [len(state.sample) for state, _ in pairs]
        conditions = torch.cat(
            [
                _padded(condition, longest).expand(size, -1, -1)
                for (_, condition), size in zip(pairs, sizes, strict=True)
            ]
        )
        mask = None
        if any(len(condition) < longest for _, condition in pairs):
            lengths = torch.tensor([len(condition) for _, condition in pairs]).repeat_interleave(torch.tensor(sizes))
            mask = (torch.arange(longest) < lengths[:, None]).long().to(conditions.device)
        samples = torch.cat([state.sample for state, _ in pairs])
        if first.given is not None:
            given = [state.given.expand(len(state.sample), -1, -1) for state, _ in pairs if state.given is not None]
            samples = torch.cat([samples, torch.cat(given)], 1)
        timesteps = torch.cat([state.schedule.timesteps[state.step].expand(len(state.sample)) for state, _ in pairs])
        output = self._model.predict(samples, timesteps.to(samples.device), conditions, mask, first.shapes)
        return list(torch.split(output[:, : first.sample.shape[1]], sizes))


def guided(velocities: dict[str, torch.Tensor], scale: float) -> torch.Tensor:
    """Combine the outputs with and without the prompt; each position keeps the length of the vector with the prompt.

    This is the "true" guidance of Qwen-Image (as in diffusers' ``QwenImagePipeline``): the combination is scaled back, so that high
    guidance does not saturate.
    """
    positive, negative = velocities["positive"], velocities.get("negative")
    if negative is None:
        return positive
    combined = negative + scale * (positive - negative)
    wanted = torch.linalg.vector_norm(positive, dim=-1, keepdim=True)
    return combined * (wanted / torch.linalg.vector_norm(combined, dim=-1, keepdim=True))


def _padded(condition: torch.Tensor, longest: int) -> torch.Tensor:
    missing = longest - len(condition)
    return torch.cat([condition, condition.new_zeros(missing, condition.shape[1])]) if missing else condition
