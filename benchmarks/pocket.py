"""Pocket TTS by omni-transformers and by its authors' package ``pocket-tts``, with equal weights and noise: sound, and real-time factors.

    OMP_NUM_THREADS=1 python benchmarks/pocket.py [--quick] [--json FILE]

The network has the released sizes and random weights. Without the package (``pip install pocket-tts==4.0.1``) nothing is measured. The
package generates in one thread and decodes in another, ours does both in turn; CPU seconds are those of all threads.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import larger
import numpy as np
import torch
import transformers
import yaml
from first_sound import SEED, TEXTS, WARM, ask, started
from report import alone, compare, json_option, publish, quick_option

NAME = "PocketTTSForConditionalGeneration"

LAYER = {
    r"self_attn\.o_proj": "self_attn.out_proj",
    r"mlp\.fc(\d)\.weight": r"linear\1.weight",
    r"input_layernorm": "norm1",
    r"post_attention_layernorm": "norm2",
}
MODEL = {
    r"^(?=latent_std|latent_mean|eos_head|flow_head|model\.)": "flow_lm.",
    r"latent_(mean|std)$": r"emb_\1",
    r"eos_head": "out_eos",
    r"flow_head\.layers\.(\d+)\.norm": r"flow_net.res_blocks.\1.in_ln",
    r"flow_head\.layers\.(\d+)\.fc1": r"flow_net.res_blocks.\1.mlp.0",
    r"flow_head\.layers\.(\d+)\.fc2": r"flow_net.res_blocks.\1.mlp.2",
    r"flow_head\.layers": "flow_net.res_blocks",
    r"flow_head\.timestep_embeddings\.(\d)\.fc1": r"flow_net.time_embed.\1.mlp.0",
    r"flow_head\.timestep_embeddings\.(\d)\.fc2": r"flow_net.time_embed.\1.mlp.2",
    r"flow_head\.timestep_embeddings\.(\d)\.norm\.weight": r"flow_net.time_embed.\1.mlp.3.alpha",
    r"flow_head\.timestep_embeddings": "flow_net.time_embed",
    r"flow_head\.cond_proj": "flow_net.cond_embed",
    r"flow_head\.final_layer\.proj": "flow_net.final_layer.linear",
    r"flow_head": "flow_net",
    r"adaln_proj": "adaLN_modulation.1",
    r"model\.layers": "transformer.layers",
    r"model\.embed_tokens": "conditioner.embed",
    r"model\.bos_latent": "bos_emb",
    r"model\.norm": "out_norm",
    r"model\.audio_latent_proj": "input_linear",
    r"model\.audio_prompt_proj\.weight": "speaker_proj_weight",
    **LAYER,
}
CODEC = {
    r"^decoder\.upsample\.conv": "mimi.upsample.convtr.convtr",
    r"^decoder\.decoder_transformer": "mimi.decoder_transformer.transformer",
    r"^decoder\.decoder_seanet\.layers\.([258])\.conv": r"mimi.decoder.model.\1.convtr",
    r"^decoder\.decoder_seanet\.layers": "mimi.decoder.model",
    r"^latent_proj": "mimi.quantizer.output_proj",
    r"self_attn_layer_scale": "layer_scale_1",
    r"mlp_layer_scale": "layer_scale_2",
    **LAYER,
}
"""Replacements, in this order, in the names of transformers' weights, to have those of the package."""


def in_its_layout(state: dict[str, torch.Tensor], names: Mapping[str, str], heads: int) -> dict[str, torch.Tensor]:
    """Return weights in the package's layout: queries, keys and values in one, the pairs that are rotated side by side."""
    found: dict[str, torch.Tensor] = {}
    for name, value in state.items():
        if name.startswith(("loss_weighting", "latent_stats", "encoder")) or re.search(r"\.[kv]_proj\.", name):
            continue
        own, tensor = name, value
        if ".q_proj." in name:
            queries, keys, values = (state[name.replace(".q_proj.", f".{each}_proj.")] for each in "qkv")
            pairs = [each.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2) for each in (queries, keys)]
            own, tensor = name.replace(".q_proj.", ".in_proj."), torch.cat([*pairs, values])
        for old, new in names.items():
            own = re.sub(old, new, own)
        found[own] = tensor
    return found


def theirs(folder: Path) -> Any:
    """Return the package's model with the weights of a checkpoint."""
    import pocket_tts

    own = transformers.PocketTTSForConditionalGeneration.from_pretrained(folder)
    codec = transformers.PocketTTSAudioTokenizerModel.from_pretrained(folder / "audio_tokenizer")
    told = yaml.safe_load((Path(pocket_tts.__file__).parent / "config" / "english_2026-10.yaml").read_text())
    told = {name: value for name, value in told.items() if not name.startswith("weights_path")}
    tokenizer = folder / "tokenizer.json"
    count = transformers.AutoTokenizer.from_pretrained(folder).backend_tokenizer.get_vocab_size()
    told["flow_lm"]["lookup_table"] |= {"n_bins": count, "tokenizer_path": str(tokenizer)}
    (folder / "pocket.yaml").write_text(yaml.safe_dump(told))
    model = pocket_tts.TTSModel.load_model(
        config=folder / "pocket.yaml", temp=own.generation_config.temperature, eos_threshold=1e3
    )
    given = in_its_layout(own.state_dict(), MODEL, own.config.num_attention_heads)
    given |= in_its_layout(codec.state_dict(), CODEC, codec.config.num_attention_heads)
    missing, unexpected = model.load_state_dict(given, strict=False)
    unused = ("mimi.encoder", "mimi.downsample", "flow_lm.bos_before_voice")  # of voices
    assert not unexpected, unexpected
    assert all(each.startswith(unused) for each in missing), missing
    _draw_no_noise_for_texts(model.flow_lm)
    return model.eval()


def _draw_no_noise_for_texts(network: torch.nn.Module) -> None:
    """Let each frame have the noise that transformers draws for it: the package also draws some when it reads the text."""
    before: list[torch.Tensor] = []
    network.register_forward_pre_hook(lambda *_: before.append(torch.get_rng_state()))

    def restore(_: Any, args: Any, given: dict[str, Any], result: Any) -> None:
        state = before.pop()
        if not given["sequence"].shape[1]:
            torch.set_rng_state(state)

    network.register_forward_hook(restore, with_kwargs=True)


def spoken(model: Any, text: str) -> tuple[float, np.ndarray]:
    """Speak by the package; return the seconds to the first sound, and the sound."""
    from pocket_tts.modules.stateful_module import init_states

    torch.manual_seed(SEED)
    begin, first, pieces = time.monotonic(), 0.0, []
    for piece in model.generate_audio_stream(init_states(model.flow_lm, batch_size=1, sequence_length=1), text):
        first = first or time.monotonic() - begin
        pieces.append(piece.numpy())
    return first, np.concatenate(pieces)


def timed(call: Callable[[], tuple[float, np.ndarray]], rate: int) -> tuple[float, float, float, np.ndarray]:
    """Return the first sound in seconds, seconds and CPU seconds for one of sound, and the sound."""
    wall, cpu = time.monotonic(), time.process_time()
    first, samples = call()
    seconds = len(samples) / rate
    return first, (time.monotonic() - wall) / seconds, (time.process_time() - cpu) / seconds, samples


@click.command()
@quick_option
@json_option
def main(quick: bool, json_path: Path | None) -> None:
    """Compare, in turns."""
    if find_spec("pocket_tts") is None:
        click.echo("skipped: the package is not installed (pip install pocket-tts==4.0.1)")
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        larger.made(NAME, 10, folder)
        other = theirs(folder)
        torch.set_num_threads(1)
        text, rate = TEXTS[quick], 24_000
        with started(folder) as scheduler:
            ask(scheduler, text, WARM)
            sides: tuple[list[Any], list[Any]] = ([], [])
            for _ in range(1 if quick else 5):
                for side, call in zip(
                    sides,
                    (lambda: ask(scheduler, text, clock=time.monotonic)[::2], lambda: spoken(other, text)),
                    strict=True,
                ):
                    side.append(timed(call, rate))
    samples, its = sides[0][0][3], sides[1][0][3]
    assert len(samples) == len(its), f"{len(samples)} samples, and {len(its)} by the package"
    rows = [alone("sound", "s", [len(its) / rate]), alone("loudest sample", "", [float(np.abs(its).max())])]
    difference = float(np.abs(samples - its).max())
    assert difference < 1e-4, f"samples differ by {difference}"
    rows.append(alone("largest difference of a sample", "millionths", [1e6 * difference]))
    for number, (name, unit) in enumerate(
        [("first sound", "s"), ("real-time factor", "s for 1 s"), ("the same, all threads", "CPU s for 1 s")]
    ):
        ours, others = ([each[number] for each in side] for side in sides)
        rows.append(compare(name, unit, ours, others, "pocket-tts", higher_is_better=False))
    publish(rows, json_path)


if __name__ == "__main__":
    main()
