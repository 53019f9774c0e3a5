"""Qwen-Image (arXiv:2508.02324) as an omni pipeline: a text encoder, a denoising stage with continuous batching, a decoder.
The networks, their noise schedules and the checkpoint's layout are diffusers'; the stages are built of :mod:`omni_diffusion`.
``omni run qwen-image --text "..." --out image.png`` makes an image; with ``--image`` an editing checkpoint changes one.
"""
