"""Defines the dimensions of the codec. Imports no torch."""

from __future__ import annotations

from attrs import frozen


@frozen
class CodecConfig:
    """The codec's dimensions. The defaults are the released codec's; a checkpoint's are read from its tensors.

    Attributes:
        encoder_dim: channels after the first convolution; they double at each of ``encoder_rates``.
        encoder_layers: transformer layers after each downsampling of the encoder.
        decoder_dim: channels before the first upsampling; they halve at each of ``decoder_rates``.
        factors: further downsampling between encoder and quantiser.
        semantic_codebook, residual_codebook: entries of the first codebook and of each of the ``residuals`` others.
        codebook_dim: width of an entry.
        layers, intermediate: of the transformers around the quantiser.
        convnext: inner width of the blocks around the quantiser.
    """

    encoder_dim: int = 64
    encoder_rates: tuple[int, ...] = (2, 4, 8, 8)
    encoder_layers: tuple[int, ...] = (0, 0, 0, 4)
    latent: int = 1024
    decoder_dim: int = 1536
    decoder_rates: tuple[int, ...] = (8, 8, 4, 2)
    factors: tuple[int, ...] = (2, 2)
    semantic_codebook: int = 4096
    residual_codebook: int = 1024
    residuals: int = 9
    codebook_dim: int = 8
    layers: int = 8
    intermediate: int = 3072
    convnext: int = 4096

    @property
    def codebooks(self) -> int:
        return 1 + self.residuals

    @property
    def samples_per_frame(self) -> int:
        product = 1
        for rate in (*self.encoder_rates, *self.factors):
            product *= rate
        return product
