"""The flow matching network of token2wav with what is constant over the steps of a request computed once.

The network is transformers' ``Qwen2_5OmniToken2WavDiTModel``; an evaluation of it runs the encoder of the voice's recording and embeds
the codes, which do not depend on the time. :meth:`MelNetwork.condition` keeps their share of the input projection. Attention is that of
:mod:`omni_qwen25.block_attention`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from attrs import frozen

from omni_qwen25 import block_attention
from omni_qwen25.config import OmniConfig
from omni_qwen25.networks import load_part
from omni_qwen25.voices import Voice


@frozen(eq=False)
class Condition:
    """Inputs that a request's mel frames follow.

    Attributes:
        rows: ``[1 or 2, frames, hidden]``, the constant share of the network's input: with the codes and the voice, and for guidance
            without.
    """

    rows: torch.Tensor


class MelNetwork:
    """Predicts the velocity of mel frames between noise and speech."""

    def __init__(self, model_path: str, config: OmniConfig, device: str = "cpu") -> None:
        network = load_part(model_path, config, "dit", dtype=torch.float32, device=device)
        network.config._attn_implementation = block_attention.NAME
        self._network, self.device = network, torch.device(device)
        self.mel_bins: int = network.mel_dim
        self.repeats: int = network.repeats
        self.most_frames: int = network.config.max_position_embeddings
        projection = network.input_embed.proj
        self._sample_weight = projection.weight[:, : self.mel_bins].contiguous()
        self._rest, self._bias = projection.weight[:, self.mel_bins :].contiguous(), projection.bias

    @torch.inference_mode()
    def condition(self, codes: torch.Tensor, voice: Voice, *, guided: bool) -> Condition:
        """Return the constant share of the input.

        Args:
            codes: ``[n]`` int64.
            guided: whether the share without codes and voice is wanted too.
        """
        frames = len(codes) * self.repeats
        codes = codes.to(self.device).unsqueeze(0)
        recording = voice.recording.to(self.device).unsqueeze(0)
        speaker = voice.embedding.to(self.device)
        rows = [self._joined(recording, self._embedded(codes), speaker, frames)]
        if guided:
            nothing = self._embedded(torch.zeros_like(codes))
            rows.append(self._joined(torch.zeros_like(recording), nothing, torch.zeros_like(speaker), frames))
        return Condition(torch.stack(rows))

    @torch.inference_mode()
    def velocity(self, samples: torch.Tensor, times: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Run the network.

        Args:
            samples: ``[B, frames, mel_bins]``.
            times: ``[B]``, 0 is noise and 1 is speech.
            rows: ``[B, frames, hidden]``, of conditions.

        Returns:
            ``[B, frames, mel_bins]``.
        """
        network = self._network
        x = F.linear(samples, self._sample_weight) + rows
        moment = network.time_embed(times)
        positions = torch.arange(x.shape[1], device=x.device).expand(len(x), -1)
        turns = network.rotary_embed(x, positions)
        for block in network.transformer_blocks:
            x = block(x, moment, position_embeddings=turns, block_diff=block_attention.NEIGHBOURS)
        return network.proj_out(network.norm_out(x, moment))

    def _embedded(self, codes: torch.Tensor) -> torch.Tensor:
        return self._network.text_embed(codes)[0]

    def _joined(self, recording: torch.Tensor, codes: torch.Tensor, speaker: torch.Tensor, frames: int) -> torch.Tensor:
        encoded = self._network.input_embed.spk_encoder(recording)[0]
        joined = torch.cat([encoded.expand(frames, -1), codes, speaker.expand(frames, -1)], -1)
        return F.linear(joined, self._rest, self._bias)


def step_times(points: int, sway: float) -> torch.Tensor:
    """Return the points in time between which a request is denoised: float32 ``[points]``, from 0 to 1.

    A negative ``sway`` puts more of them at the beginning (sway sampling of F5-TTS: Chen et al., 2024, arXiv:2410.06885).
    """
    times = torch.linspace(0, 1, points)
    return times + sway * (torch.cos(torch.pi / 2 * times) - 1 + times)


Velocity = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def runge_kutta(velocity: Velocity, sample: torch.Tensor, begin: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
    """Return samples after a step of the fourth order by the 3/8 rule (Kutta, 1901): four evaluations of ``velocity(samples, times)``.

    Args:
        sample: ``[B, frames, mel_bins]``.
        begin, end: ``[B]``, the times of each.
    """
    step = (end - begin).view(-1, 1, 1)
    third = (end - begin) / 3
    first = velocity(sample, begin)
    second = velocity(sample + step * first / 3, begin + third)
    later = velocity(sample + step * (second - first / 3), begin + 2 * third)
    last = velocity(sample + step * (first - second + later), end)
    return sample + (first + 3 * (second + later) + last) * step / 8
