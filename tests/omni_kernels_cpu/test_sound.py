"""A vocoder's convolutions on every instruction set: float64, chunks, batches, threads, odd sizes, poison, NaN."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from omni_kernels_cpu import sound
from omni_torch.operations import sound_stack
from omni_torch.operations.comparison import BOUNDS, relative_error
from omni_torch.operations.sound_stack import ConvNeXt, Convolution, Residual, Snake, SoundStack

FLOATS = [torch.float32, torch.bfloat16]

pytestmark = pytest.mark.usefixtures("instruction_set")


def generator(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def arguments(dtype: torch.dtype, seed: int = 1, **changed: Any) -> Any:
    given = {"widths": (26, 13, 7), "hidden": 18, "columns": 37, "batch": 3}
    return sound_stack.example(dtype, generator(seed), **{**given, **changed})


def decode(x: torch.Tensor, stack: SoundStack, sizes: list[int]) -> torch.Tensor:
    """Decode chunk by chunk."""
    memory, made = stack.new_memory(len(x), x), []
    for number, chunk in enumerate(x.split(sizes, dim=2)):
        made.append(sound.decode_sound(chunk, memory, number > 0, stack))
    return torch.cat(made, dim=2)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_sizes_that_are_multiples_of_nothing(dtype: torch.dtype) -> None:
    """Whatever is left over of outputs, of pairs of channels, of vectors and of tiles."""
    for number, (widths, hidden, columns) in enumerate(
        [((1, 1), 1, 2), ((33, 31), 5, 9), ((6, 12, 18), 2, 17), ((35, 1), 65, 33), ((17, 16), 31, 70)]
    ):
        given = sound_stack.example(
            dtype, generator(number), widths=widths, hidden=hidden, columns=columns, batch=1 + number % 2,
            begun=number % 2 == 1, logarithms=number != 2,
        )  # fmt: skip
        error = relative_error(sound_stack.decode_sound, sound.decode_sound, given)
        assert error <= BOUNDS[str(dtype).removeprefix("torch.")], number


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_chunks_batches_and_threads_give_the_same_bits(dtype: torch.dtype, threads: None) -> None:
    x, _, _, stack = arguments(dtype)
    torch.set_num_threads(1)
    whole = decode(x, stack, [37])
    for sizes in ([1] * 37, [2, 3, 31, 1], [36, 1]):
        assert torch.equal(decode(x, stack, sizes), whole), sizes
    for row in range(3):
        assert torch.equal(decode(x[row : row + 1], stack, [37]), whole[row : row + 1])
    for count in (2, 3):
        torch.set_num_threads(count)
        assert torch.equal(decode(x, stack, [7, 30]), whole)
    flipped = decode(x.flip(2).contiguous().flip(2), stack, [37])  # not contiguous
    assert torch.equal(flipped, whole)


def test_a_long_chunk_is_computed_in_pieces_with_the_same_bits() -> None:
    x, _, _, stack = arguments(torch.float32, widths=(48, 96, 96), columns=300, batch=1)
    assert x.shape[2] * 2 * 96 * 5 > 2 * 96 * 1024, "longer than a piece"
    assert torch.equal(decode(x, stack, [300]), decode(x, stack, [10] * 30))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_nan_stays_in_its_stream_and_behind_its_column(dtype: torch.dtype) -> None:
    x, _, _, stack = arguments(dtype, columns=40)
    right = decode(x, stack, [40])
    x[1, 3, 20] = float("nan")
    made = decode(x, stack, [40])
    assert torch.equal(made[[0, 2]], right[[0, 2]])
    begins = stack.samples(19, False)  # an upsampling's output may depend on the column behind it
    assert torch.equal(made[1, :, :begins], right[1, :, :begins])
    assert made[1, :, stack.samples(21, False) :].isnan().any()
    assert torch.equal(decode(x.nan_to_num(), stack, [40])[[0, 2]], right[[0, 2]]), "scratch memory keeps nothing"


def test_nothing_beyond_the_tensors_is_read() -> None:
    """NaN lies behind the inputs, the memory, and every weight."""

    def poisoned(tensor: torch.Tensor) -> torch.Tensor:
        flat = torch.cat([tensor.detach().flatten(), torch.full((64,), float("nan"), dtype=tensor.dtype)])
        return flat[: tensor.numel()].view(tensor.shape)

    x, memory, _, stack = arguments(torch.float32, begun=True)
    right = sound.decode_sound(x, memory.clone(), True, stack)
    fields = {Convolution: ("weight", "bias"), ConvNeXt: ("weight", "gamma", "narrow"), Snake: ("alpha", "beta")}
    for layer in stack.layers:
        parts = [layer.first, layer.second] if isinstance(layer, Residual) else [layer]
        for part in (*parts, *(each.before for each in parts if getattr(each, "before", None))):
            for name in fields.get(type(part), ("weight", "bias")):
                setattr(part, name, poisoned(getattr(part, name)))
    again = SoundStack(stack.layers)
    given = poisoned(x), poisoned(memory)
    assert torch.equal(sound.decode_sound(*given, True, again), right)


def test_a_first_chunk_without_samples_is_an_error() -> None:
    x, memory, _, stack = arguments(torch.float32)
    stack = SoundStack([layer for layer in stack.layers if getattr(layer, "trims", True)])
    memory = stack.new_memory(3, x)
    for decode_sound in (sound.decode_sound, sound_stack.decode_sound.reference):
        with pytest.raises(ValueError, match="a first chunk of 1 columns has no samples"):
            decode_sound(x[..., :1], memory, False, stack)


def test_a_memory_in_float64_goes_to_the_reference() -> None:
    x, memory, _, stack = arguments(torch.float32)
    exact = memory.double()
    made = sound.decode_sound(x, exact, False, stack)
    assert torch.equal(made, sound_stack.decode_sound.reference(x, memory, False, stack))
    assert torch.equal(exact, memory.double())
    assert exact.abs().sum() > 0
