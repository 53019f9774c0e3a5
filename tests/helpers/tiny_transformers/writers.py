"""Models that write text of text."""

from __future__ import annotations

from pathlib import Path

import transformers as T

from tiny_transformers import maker
from tiny_transformers.tiny import save, tokenizer_of

SIZES = {
    "vocab_size": 264,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
IDS = {"pad_token_id": 256, "bos_token_id": 257, "eos_token_id": 258}


@maker("LlamaForCausalLM")
def llama(folder: Path) -> None:
    T.LlamaForCausalLM(T.LlamaConfig(num_key_value_heads=2, **SIZES, **IDS)).save_pretrained(folder)
    tokenizer_of({}).save_pretrained(folder)


def written(
    name: str,
    sizes: dict[str, object] | None = None,
    ids: dict[str, str] | None = None,
    template: bool = True,
    scale: float = 0.3,
) -> None:
    """Register the maker of an architecture."""

    @maker(name)
    def make(folder: Path) -> None:
        save(folder, name, tokenizer_of({} if template else None), sizes, ids, scale=scale)


for name in (
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "GemmaForCausalLM",
    "MistralForCausalLM",
    "Phi3ForCausalLM",
    "GraniteForCausalLM",
    "Olmo2ForCausalLM",
    "SmolLM3ForCausalLM",
    "HeliumForCausalLM",
    "GlmForCausalLM",
    "Glm4ForCausalLM",
    "CohereForCausalLM",
    "StableLmForCausalLM",
    "NemotronForCausalLM",
    "GPTNeoXForCausalLM",
    "Starcoder2ForCausalLM",
    "MixtralForCausalLM",
    "Qwen3MoeForCausalLM",
    "Qwen2MoeForCausalLM",
    "OlmoeForCausalLM",
    "SeedOssForCausalLM",
    "Ernie4_5ForCausalLM",
    "HunYuanDenseV1ForCausalLM",
    "Exaone4ForCausalLM",
    "ApertusForCausalLM",
    "ArceeForCausalLM",
):
    written(name, {"head_dim": 8, "num_key_value_heads": 4, "_own": ("head_dim", "num_key_value_heads")})
for name in ("Gemma2ForCausalLM", "Gemma3ForCausalLM", "GptOssForCausalLM"):
    written(name, {"sliding_window": 16})
for name in ("GPT2LMHeadModel", "OPTForCausalLM", "GPTJForCausalLM", "BloomForCausalLM", "GPTBigCodeForCausalLM"):
    written(name, {"word_embed_proj_dim": 32, "rotary_dim": 4}, template=False)
written("MambaForCausalLM", {"state_size": 4, "time_step_rank": 4, "intermediate_size": 64}, template=False)
written(
    "Mamba2ForCausalLM", {"state_size": 8, "num_heads": 8, "head_dim": 8, "n_groups": 2, "expand": 2}, template=False
)
written(
    "JambaForCausalLM",
    {
        "mamba_d_state": 4,
        "mamba_dt_rank": 4,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "use_mamba_kernels": False,
    },
    scale=0.1,
)
written(
    "BambaForCausalLM",
    {
        "mamba_n_heads": 8,
        "mamba_d_head": 8,
        "mamba_d_state": 8,
        "mamba_n_groups": 2,
        "attn_layer_indices": [1],
        "_own": ("attn_layer_indices",),
    },
)
written("FalconMambaForCausalLM", {"state_size": 4, "time_step_rank": 4, "intermediate_size": 64}, template=False)
written(
    "FalconH1ForCausalLM",
    {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 2, "mamba_d_ssm": 64},
)
written(
    "Lfm2ForCausalLM", {"block_multiple_of": 8, "layer_types": ["conv", "full_attention"], "_own": ("layer_types",)}
)
written(
    "GraniteMoeHybridForCausalLM",
    {
        "mamba_n_heads": 8,
        "mamba_d_head": 8,
        "mamba_d_state": 8,
        "mamba_n_groups": 2,
        "layer_types": ["mamba", "attention"],
        "_own": ("layer_types",),
    },
)
written(
    "Qwen3NextForCausalLM",
    {
        "layer_types": ["linear_attention", "full_attention"],
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
    },
)
written(
    "DeepseekV3ForCausalLM",
    {
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 4,
        "v_head_dim": 8,
        "n_group": 2,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "head_dim": 4,
    },
)
written(
    "RecurrentGemmaForCausalLM",
    {"lru_width": 32, "attention_window_size": 16, "block_types": ["recurrent", "attention"], "_own": ("block_types",)},
)
written("RwkvForCausalLM", {"attention_hidden_size": 32}, template=False)
# written by an encoder and a decoder
SEQ = {"decoder_start_token_id": "<pad>"}
for name in (
    "T5ForConditionalGeneration",
    "MT5ForConditionalGeneration",
    "UMT5ForConditionalGeneration",
    "BartForConditionalGeneration",
    "MBartForConditionalGeneration",
    "PegasusForConditionalGeneration",
    "MarianMTModel",
    "M2M100ForConditionalGeneration",
    "BlenderbotForConditionalGeneration",
    "BlenderbotSmallForConditionalGeneration",
    "LongT5ForConditionalGeneration",
    "SwitchTransformersForConditionalGeneration",
    "PegasusXForConditionalGeneration",
    "PLBartForConditionalGeneration",
    "MvpForConditionalGeneration",
    "T5GemmaForConditionalGeneration",
    "LEDForConditionalGeneration",
    "NllbMoeForConditionalGeneration",
    "BigBirdPegasusForConditionalGeneration",
):
    written(
        name,
        {"max_position_embeddings": 512, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1},
        SEQ,
        template=False,
    )
for name in [
    "Afmoe",
    "AriaText",
    "BioGpt",
    "BitNet",
    "Cohere2",
    "Cohere2Moe",
    "CpmAnt",
    "Cwm",
    "DeepseekV4",
    "DiffLlama",
    "Doge",
    "Ernie4_5_Moe",
    "ExaoneMoe",
    "Falcon",
    "Flint",
    "Gemma4Unified",
    "Glm4Moe",
    "Glm4MoeLite",
    "GPTNeoXJapanese",
    "GraniteSWA",
    "GraniteMoe",
    "GraniteMoeSWA",
    "GraniteMoeShared",
    "HYV3",
    "HyperCLOVAX",
    "Inkling",
    "Inkling2",
    "Jais2",
    "JetMoe",
    "Kolibri1",
    "Mellum",
    "MiMoV2Flash",
    "MiniMax",
    "MiniMaxM2",
    "MiniMaxM3VL",
    "Ministral3",
    "Mpt",
    "NanoChat",
    "NemotronH",
    "Olmo",
    "Olmo3",
    "Persimmon",
    "Phi",
    "Phimoe",
    "SolarOpen",
    "VaultGemma",
    "XGLM",
]:
    written(f"{name}ForCausalLM", template=False)
for name in ("HunYuanMoEV1ForCausalLM", "MinistralForCausalLM"):
    written(name, {"num_key_value_heads": 4, "head_dim": 8}, template=False)
for name in ("CTRLLMHeadModel", "OpenAIGPTLMHeadModel", "FSMTForConditionalGeneration"):
    written(name, None, SEQ, template=False)
