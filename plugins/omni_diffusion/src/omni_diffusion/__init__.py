"""Images by diffusion: a step scheduler for networks of diffusers, their noise schedules, a cache of encoder outputs, and pixels.

A model's package writes a :class:`omni_diffusion.denoising.DiffusionModel` and its stages; the loop, the batching and guidance are here.
Networks, schedules and autoencoders are those of diffusers. Importing the package imports nothing heavy.
"""
