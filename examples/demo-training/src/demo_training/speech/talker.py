"""Trains the talker with its code predictor: transformers' own modules on the row layout that the pipeline feeds them.

The speech must follow from the reply's text alone, whatever the prompt contains (other questions, pictures, sounds). So
the rows of the prompt are drawn at random, and every step trains every reply.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoTokenizer
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeTalkerForConditionalGeneration

from demo_training.speech.loop import Losses, standard_weights, train
from demo_training.speech.questions import KNOWN, something_else
from demo_training.speech.shape import SHAPE, config
from demo_training.speech.speech import GROUPS, Utterance, utterances
from omni_testing.tiny.qwen3_config import codec_ids

STEPS = 450
_IGNORED = -100


class SpeakingRows(nn.Module):
    """The talker, and the layout of its inputs in training.

    Args:
        thinker_embedding: ``[vocabulary, hidden]`` of the trained thinker; not trained here.
    """

    def __init__(
        self, talker: Qwen3OmniMoeTalkerForConditionalGeneration, thinker_embedding: torch.Tensor, files: Path
    ) -> None:
        super().__init__()
        self.talker = talker
        self._embedding = thinker_embedding
        self._tokenizer = AutoTokenizer.from_pretrained(files)
        self._ids = config()
        self._codec = codec_ids(SHAPE)
        self._speakers = list(config().talker_config.speaker_id.values())

    def losses(self, random: np.random.Generator) -> Losses:
        """Compute the losses of one step over all replies."""
        spoken = utterances()
        rows, first_rows = [], []
        for utterance in spoken:
            prompt = torch.cat([self._user_rows(random), self._assistant_rows(utterance, random)])
            rows.append(torch.cat([prompt, self._frame_rows(utterance)]))
            first_rows.append(len(prompt) - 1)
        mask = pad_sequence([torch.ones(len(each), dtype=torch.long) for each in rows], batch_first=True)
        hidden = self.talker.model(inputs_embeds=pad_sequence(rows, batch_first=True), attention_mask=mask)[0]
        states = torch.cat([hidden[i, first : len(rows[i])] for i, first in enumerate(first_rows)])
        targets = torch.cat([self._targets(utterance) for utterance in spoken])
        code = F.cross_entropy(self.talker.codec_head(states), targets)
        frames = torch.cat([utterance.codes for utterance in spoken])
        residual = self._residual_loss(states[targets != self._codec["codec_eos_token_id"]], frames)
        return {"loss": code + residual, "code": code, "residual": residual}

    def _text(self, ids: list[int]) -> torch.Tensor:
        """Project thinker tokens with the text projection, ``[n, hidden]``."""
        projected: torch.Tensor = self.talker.text_projection(self._embedding[torch.tensor(ids)])
        return projected

    def _codes(self, ids: list[int]) -> torch.Tensor:
        embedded: torch.Tensor = self.talker.model.codec_embedding(torch.tensor(ids))
        return embedded

    def _user_rows(self, random: np.random.Generator) -> torch.Tensor:
        """Return a random prompt: a question, sometimes earlier ones, and random features in place of a picture or a
        sound.
        """
        turns = 1 if random.random() < 0.75 else int(random.integers(2, 5))
        asked = [
            str(random.choice(list(KNOWN))) if random.random() < 0.7 else something_else(random) for _ in range(turns)
        ]
        text = "".join(f"<|im_start|>user\n{each}<|im_end|>\n" for each in asked)
        rows = [self._text(self._tokenizer(text)["input_ids"])]
        if random.random() < 0.4:
            generator = torch.Generator().manual_seed(int(random.integers(2**31)))
            features = torch.randn(int(random.integers(4, 21)), SHAPE.hidden, generator=generator)
            rows.insert(0, self.talker.hidden_projection(features * float(10 ** random.uniform(-0.5, 1.5))))
        return torch.cat(rows)

    def _assistant_rows(self, utterance: Utterance, random: np.random.Generator) -> torch.Tensor:
        """Return the nine rows that open speech, for a random speaker; all speakers sound alike."""
        ids, codec = self._ids, self._codec
        opening = self._tokenizer("<|im_start|>assistant\n")["input_ids"]
        text = [*opening, *[ids.tts_pad_token_id] * 4, ids.tts_bos_token_id, self._tokens(utterance)[0]]
        markers = [codec["codec_nothink_id"], codec["codec_think_bos_id"], codec["codec_think_eos_id"]]
        markers += [int(random.choice(self._speakers)), codec["codec_pad_id"], codec["codec_bos_id"]]
        return self._text(text) + F.pad(self._codes(markers), (0, 0, len(opening), 0))

    def _frame_rows(self, utterance: Utterance) -> torch.Tensor:
        """Return the input row after each frame: the sum of its code embeddings, plus the next text token while there is one."""
        text = [*self._tokens(utterance)[1:], self._ids.tts_eos_token_id]
        text += [self._ids.tts_pad_token_id] * (len(utterance.codes) - len(text))
        rows = self._codes(utterance.codes[:, 0].tolist())
        for group, embedding in enumerate(self.talker.code_predictor.model.codec_embedding):
            rows = rows + embedding(utterance.codes[:, group + 1])
        return rows + self._text(text)

    def _tokens(self, utterance: Utterance) -> list[int]:
        ids: list[int] = self._tokenizer(utterance.text)["input_ids"]
        return ids

    def _targets(self, utterance: Utterance) -> torch.Tensor:
        """Return the loss of the first codes and the end."""
        return torch.cat([utterance.codes[:, 0], torch.tensor([self._codec["codec_eos_token_id"]])])

    def _residual_loss(self, states: torch.Tensor, frames: torch.Tensor) -> torch.Tensor:
        """Return the loss of each frame's other codes, from the talker's state and the codes before."""
        predictor = self.talker.code_predictor
        rows = [states, self._codes(frames[:, 0].tolist())]
        rows += [predictor.model.codec_embedding[group](frames[:, group + 1]) for group in range(GROUPS - 2)]
        hidden = predictor.model(inputs_embeds=torch.stack(rows, dim=1)).last_hidden_state
        losses = [
            F.cross_entropy(predictor.lm_head[group](hidden[:, group + 1]), frames[:, group + 1])
            for group in range(GROUPS - 1)
        ]
        return torch.stack(losses).sum()


def train_talker(
    folder: Path, files: Path, thinker_embedding: torch.Tensor, steps: int = STEPS
) -> Qwen3OmniMoeTalkerForConditionalGeneration:
    """Train the talker. ``files``: the checkpoint folder so far. ``thinker_embedding``: see :class:`SpeakingRows`."""
    torch.manual_seed(2)
    talker = Qwen3OmniMoeTalkerForConditionalGeneration(config().talker_config)
    standard_weights(talker)
    for module in talker.modules():
        if isinstance(module, nn.Embedding):  # of the scale of the text that they are added to
            nn.init.normal_(module.weight, std=0.3)
    rows = SpeakingRows(talker, thinker_embedding, files)
    train(
        "talker",
        talker,
        lambda step: rows.losses(np.random.default_rng(step)),
        folder,
        steps=steps,
        rate=2e-3,
        weight_decay=0.02,
    )
    return talker
