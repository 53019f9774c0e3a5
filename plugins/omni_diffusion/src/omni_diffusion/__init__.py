"""Denoising as a stage: a step scheduler for diffusion networks, noise schedules, a cache of encoder outputs, and pixels.
A model's distribution writes a :class:`DiffusionModel` and its stages; the loop, the batching and guidance are here.
Networks, schedules and autoencoders are those of diffusers.
"""

from omni_diffusion.content_cache import ContentCache
from omni_diffusion.denoising import DenoisingScheduler, DiffusionModel, Latents
from omni_diffusion.schedule import Schedule

__all__ = ["ContentCache", "DenoisingScheduler", "DiffusionModel", "Latents", "Schedule"]
