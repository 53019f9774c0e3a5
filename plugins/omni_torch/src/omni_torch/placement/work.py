"""The work of a stage in FLOPs, bytes and kernels, for estimates of its time on hardware that is not there. Plain arithmetic, no torch.

A pipeline whose ``placement_fn`` is ``package.memory:place`` may have a function ``works`` beside it, ``package.memory:works``:
``(PipelineConfig) -> PipelineWorks``; one without a ``placement_fn`` has it beside its ``fetch_fn``. ``omni plan --optimize
--devices`` asks it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from attrs import field, frozen


@frozen
class Counts:
    """The contents of a step.

    Attributes:
        decodes: requests that compute one position after their last token.
        prompts: requests of whose prompt a part is computed.
        positions: of prompts, or the patches and frames of a network without a cache.
        context: cached positions that are read, over all requests.
        pairs: over all positions, the positions that each attends to. A vocoder's streams are ``decodes`` too.
    """

    decodes: float = 0.0
    prompts: float = 0.0
    positions: float = 0.0
    context: float = 0.0
    pairs: float = 0.0


@frozen
class Demand:
    """The demand of a step on one device. ``exchanged``: bytes that each rank sends to the others. ``exchanges``: how often."""

    flops: float = 0.0
    nbytes: float = 0.0
    kernels: float = 0.0
    exchanged: float = 0.0
    exchanges: float = 0.0

    def plus(self, other: Demand, times: float = 1.0) -> Demand:
        """Return the sum with so many of another."""
        return Demand(
            self.flops + times * other.flops,
            self.nbytes + times * other.nbytes,
            self.kernels + times * other.kernels,
            self.exchanged + times * other.exchanged,
            self.exchanges + times * other.exchanges,
        )


@frozen
class DecoderWork:
    """The work of a decoder, in values.

    Attributes:
        layers, hidden_size: of it.
        shared: weights that every position is multiplied with.
        head: weights of the output layer, which the last position of a request is multiplied with.
        expert: weights of one expert, all layers together.
        experts, chosen: of each layer, and of them those that a position takes.
        cached: keys and values of a position.
        heads: query heads times their size.
        kernels: of a layer.
        inner: a decoder that makes ``inner_steps`` steps for every token, one after the other.
        inner_heads: its output layers beside the first; ``None``: one for each step.
        embeddings: weights of which a position reads a row; ``None``: as many as of ``head``.
        ranks: the numbers of tensor parallel ranks that can share it, as its stage takes them.
    """

    layers: int
    hidden_size: int
    shared: int
    head: int
    cached: int
    heads: int
    expert: int = 0
    experts: int = 0
    chosen: int = 0
    kernels: int = 12
    inner: DecoderWork | None = None
    inner_steps: int = 0
    inner_heads: int | None = None
    embeddings: int | None = None
    ranks: tuple[int, ...] = (1,)

    def demand(self, counts: Counts, item_bytes: int, ranks: int = 1, weight_bytes: int | None = None) -> Demand:
        """Return what a step asks of each of so many ranks. ``weight_bytes``: of a weight; ``None``: as of all values."""
        stored = item_bytes if weight_bytes is None else weight_bytes
        tokens, rows = counts.decodes + counts.positions, counts.decodes + counts.prompts
        weights = self.shared + self.head + self.expert * self.touched(tokens)
        made = Demand(
            (
                2 * (self.shared + self.expert * self.chosen) * tokens
                + 2 * self.head * rows
                + 4 * self.layers * self.heads * counts.pairs
            )
            / ranks,
            (stored * weights + item_bytes * self.cached * (counts.context + tokens)) / ranks,
            self.kernels * self.layers,
            *(
                (2 * self.layers * tokens * self.hidden_size * item_bytes * 2 * (ranks - 1) / ranks, 2 * self.layers)
                if ranks > 1
                else ()
            ),
        )
        if self.inner is not None and rows:
            half = self.inner_steps / 2
            made = made.plus(
                self.inner.demand(Counts(decodes=rows, context=rows * half, pairs=rows * half), item_bytes, 1, stored),
                self.inner_steps,
            )
        return made

    def touched(self, tokens: float) -> float:
        """Return how many experts of a layer so many tokens use, if each takes its own at random."""
        return self.experts * (1 - (1 - self.chosen / self.experts) ** tokens) if self.experts else 0.0


@frozen
class PassWork:
    """The work of a network without a cache: an encoder, a vocoder.

    Attributes:
        weights: values read by a pass.
        flops: of one position, which is a patch, a mel frame, a codec frame or a latent.
        values: read and written for it, beside the weights.
        kernels: of a pass.
        again: positions before its own that a pass computes again for each stream.
        pair: FLOPs of a position and one that it attends to, of a network in which all attend to all.
        unread: values of weights that are in memory too, which a pass does not read.
    """

    weights: int
    flops: float
    values: float = 0.0
    kernels: int = 0
    again: int = 0
    pair: float = 0.0
    unread: int = 0

    def demand(self, counts: Counts, item_bytes: int, ranks: int = 1, weight_bytes: int | None = None) -> Demand:
        """Return what a pass asks of the device. ``weight_bytes``: as of :meth:`DecoderWork.demand`."""
        stored = item_bytes if weight_bytes is None else weight_bytes
        positions = counts.positions + self.again * counts.decodes
        flops = self.flops * positions + self.pair * counts.pairs
        return Demand(flops, stored * self.weights + item_bytes * self.values * positions, self.kernels)

    def plus(self, other: PassWork) -> PassWork:
        """Return the work of this network and then another one, for the same positions."""
        return PassWork(
            self.weights + other.weights,
            self.flops + other.flops,
            self.values + other.values,
            self.kernels + other.kernels,
            self.again,
            self.pair + other.pair,
            self.unread + other.unread,
        )


def sound_decoder(width: int, rates: Sequence[int], rows: int) -> PassWork:
    """Return the work of a convolutional decoder of sound as in DAC (Kumar et al., 2023, arXiv:2306.06546).

    At each rate a transposed convolution, whose kernel is twice the rate, halves the channels, and three residual units follow, of a
    convolution with a kernel of 7 and one of 1.

    Args:
        width: channels before it.
        rows: of a position before it.
    """
    weights, multiplied, values = 0, 0.0, 0.0
    for rate in rates:
        rows, narrow = rows * rate, width // 2
        weights += 2 * rate * width * narrow + 3 * 8 * narrow**2
        multiplied += (2 * width * narrow + 3 * 8 * narrow**2) * rows
        values += 3 * 6 * narrow * rows
        width = narrow
    return PassWork(weights, 2 * multiplied, values, 12 * len(rates) * 3)


Work = DecoderWork | PassWork
"""Work of a stage for a request."""


@frozen
class Ask:
    """A request as far as its costs depend on it.

    Attributes:
        text: tokens of its text, the whole conversation before included.
        pixels: of its images.
        audio: seconds of its sound.
        reply: tokens of the answer.
        speech: seconds of the answer's speech; 0: it is a text.
        drawn: pixels of the image that it makes, and steps of denoising; 0: the pipeline's defaults, of one that makes images.
    """

    text: int = 200
    pixels: int = 0
    audio: float = 0.0
    reply: int = 60
    speech: float = 0.0
    drawn: int = 0
    steps: int = 0


@frozen
class StageWork:
    """The part that a stage has in a request.

    Attributes:
        positions: of its prompt, or its patches and frames.
        outputs: tokens; of a network without a cache, passes over all positions, one after the other (0: one).
        hidden: values that it hands on with each position or token.
    """

    positions: int = 0
    outputs: int = 0
    hidden: int = 0


@frozen
class PipelineWorks:
    """The work of a pipeline.

    Attributes:
        stages: by name, of those with a network.
        visits: the stages that take part in a request, in the order of the config.
        kinds: of stages without a network: ``function`` or ``stream``.
        vocoders: by stage, the seconds of sound of a frame.
        sounding: of stages that make sound of a whole payload, the seconds of a position, and the positions of a chunk of sound.
        admit_after: by stage, the messages of a request that come before it computes.
    """

    stages: Mapping[str, Work]
    visits: Callable[[Ask], dict[str, StageWork]]
    kinds: Mapping[str, str] = field(factory=dict)
    vocoders: Mapping[str, float] = field(factory=dict)
    sounding: Mapping[str, tuple[float, int]] = field(factory=dict)
    admit_after: Mapping[str, int] = field(factory=dict)
