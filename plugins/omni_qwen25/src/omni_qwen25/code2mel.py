"""The code2mel stage: codes of speech to mel frames by flow matching, whose steps requests share.

A step of the scheduler is a step of the solver: four evaluations of the network. Requests of equal length share steps, whatever step
they are at and however many they have.
"""

from __future__ import annotations

from collections.abc import Hashable

import torch
from attrs import evolve, frozen

from omni_core.api import ConfigError, InvalidRequestError, OmniError, StagePayload
from omni_qwen25.config import read_config
from omni_qwen25.dit import MelNetwork, runge_kutta, step_times
from omni_qwen25.interface import TOKEN2WAV_DEFAULTS
from omni_qwen25.networks import check_dtype
from omni_qwen25.payloads import Mel, TalkerResult, token2wav_params
from omni_qwen25.voices import Voice, load_voices, voice_of
from omni_torch.api import StepScheduler, seeded_generator

LEAST_GUIDANCE = 1e-5
"""Less is no guidance, as in the reference."""


@frozen(eq=False)
class Denoising:
    """A speech on its way from noise to mel frames. Nothing in it is changed in place.

    Attributes:
        sample: ``[frames, mel_bins]``.
        times: ``[steps + 1]``.
        step: how many steps are done.
        rows: see :class:`omni_qwen25.dit.Condition`.
        guidance: the scale of guidance; without a second row it has no effect.
        codes: those of the request, if it wants them back.
        is_cut: a limit has ended them.
    """

    sample: torch.Tensor
    times: torch.Tensor
    rows: torch.Tensor
    guidance: float
    codes: torch.Tensor | None = None
    is_cut: bool = False
    step: int = 0


class MelScheduler(StepScheduler[Denoising]):
    """Denoises the mel frames of requests.

    Args:
        max_batch_size: requests that share a step at most.
        max_running: requests that are denoised at once.
    """

    def __init__(
        self, network: MelNetwork, voices: dict[str, Voice], max_batch_size: int = 8, max_running: int | None = None
    ) -> None:
        super().__init__(max_batch_size, max_running)
        self._network, self._voices = network, voices

    def begin(self, payload: StagePayload) -> Denoising:
        spoken: TalkerResult = payload.data
        codes, request = spoken["codes"], payload.request
        params = {**TOKEN2WAV_DEFAULTS, **token2wav_params(request.params)}
        voice = self._voices[voice_of(request, self._voices)]
        frames = len(codes) * self._network.repeats
        if frames > self._network.most_frames:
            raise InvalidRequestError(
                f"{len(codes)} codes of speech are {frames} mel frames; token2wav holds {self._network.most_frames}: "
                "lower params.talker.max_new_tokens"
            )
        guidance = float(params["guidance_scale"])
        seed = params["seed"]
        generator = seeded_generator(seed)
        noise = torch.randn(frames, self._network.mel_bins, generator=generator)
        times = step_times(params["num_steps"], params["sway_coefficient"])
        if not frames:
            return Denoising(noise, times[:1], noise, guidance, codes)
        condition = self._network.condition(codes, voice, guided=guidance >= LEAST_GUIDANCE)
        device = self._network.device
        wanted = codes if request.params.get("return_codes") else None
        is_cut = spoken["finish_reason"] == "length"
        return Denoising(noise.to(device), times.to(device), condition.rows, guidance, wanted, is_cut)

    def key(self, state: Denoising) -> Hashable:
        return len(state.sample)

    @torch.inference_mode()
    def step(self, states: list[Denoising]) -> list[Denoising]:
        samples = torch.stack([state.sample for state in states])
        begin, end = (torch.stack([state.times[state.step + later] for state in states]) for later in (0, 1))
        rows = torch.cat([state.rows for state in states])
        owners = [index for index, state in enumerate(states) for _ in state.rows]
        guidance = torch.tensor([state.guidance for state in states], device=samples.device).view(-1, 1, 1)
        followed = torch.tensor([owners.index(index) for index in range(len(states))], device=samples.device)
        # Rows without codes and voice, for guidance: that of the state itself where it has none, whose share is then 0.
        free = torch.tensor(
            [int(first) + len(state.rows) - 1 for first, state in zip(followed.tolist(), states, strict=True)],
            device=samples.device,
        )

        def velocity(samples: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
            found = self._network.velocity(samples[owners], times[owners], rows)
            return found[followed] + (found[followed] - found[free]) * guidance

        stepped = runge_kutta(velocity, samples, begin, end)
        return [
            evolve(state, sample=sample, step=state.step + 1) for state, sample in zip(states, stepped, strict=True)
        ]

    def is_done(self, state: Denoising) -> bool:
        return state.step >= len(state.times) - 1

    def finish(self, state: Denoising) -> Mel:
        if not bool(torch.isfinite(state.sample).all()):
            raise OmniError("the mel frames are not finite: token2wav overflowed; check for NaN in its weights")
        return Mel(mel=state.sample.T.contiguous().cpu(), codes=state.codes, is_cut=state.is_cut)


def create_code2mel(
    model_path: str,
    device: str = "cpu",
    dtype: str = "float32",
    max_batch_size: int = 8,
    max_running: int | None = None,
) -> MelScheduler:
    """Make the code2mel stage. See :class:`MelScheduler`.

    Raises:
        ConfigError: the checkpoint has no speech, its network or voices cannot be read, or ``dtype`` is not float32.
    """
    check_dtype(dtype)
    config = read_config(model_path)
    if config.talker is None:
        raise ConfigError("config.json.enable_audio_output: false; this checkpoint does not speak: use qwen25-text")
    return MelScheduler(MelNetwork(model_path, config, device), load_voices(model_path), max_batch_size, max_running)
