"""The model: a Llama writes seven codes for each frame, and a decoder of three levels makes the sound."""

import torch
from safetensors.torch import load_file

from omni_transformers.api import Frames, Loop, Speaker, Windows, chosen, load_processor, reach_of, reported

BOOKS = (0, 1, 2, 2, 1, 2, 2)
"""The level of each code of a frame: one for the whole, two for its halves, four for its quarters."""


class Codec(torch.nn.Module):
    def __init__(self, size, width, hop):
        super().__init__()
        self.size, self.hop = size, hop
        self.books = torch.nn.ModuleList(torch.nn.Embedding(size, width) for _ in range(3))
        self.sound = torch.nn.ConvTranspose1d(width, 1, 2 * hop, hop, padding=hop // 2)

    def forward(self, codes):
        """Return samples ``[4 * hop * frames]`` of codes ``[7, frames]``."""
        levels = []
        for level, book in enumerate(self.books):
            rows = codes[[place for place, its in enumerate(BOOKS) if its == level]]
            levels.append(book(rows.T.reshape(-1)).repeat_interleave(4 // len(rows), 0))
        return torch.tanh(self.sound(sum(levels).T[None])).reshape(-1)


class CodecLlama(Speaker):
    def __init__(self, loading):
        self.model, self.tokenizer = loading.model(), load_processor(loading.model_path, "AutoTokenizer")
        self.loop = Loop(self.model)  # several requests share its steps
        self.settings = loading.source.config["speech_codes"]
        self.codec = Codec(*(self.settings[name] for name in ("size", "width", "hop")))
        self.codec.load_state_dict(load_file(loading.source.folder / "codec.safetensors"))
        self.codec.eval().to(self.model.device)
        self.rate = self.settings["sample_rate"]

    def speak(self, asked):
        first, size = self.settings["first_token"], self.codec.size
        voice = asked.named(self.settings["voices"])
        ids = self.tokenizer(f"{voice}: {asked.text}", return_tensors="pt")["input_ids"].to(self.model.device)
        config = chosen(self.model, {"temperature": 1.0, "max_new_tokens": 700} | asked.given)
        config.eos_token_id = end = self.settings["end_token"]
        config.suppress_tokens = [token for token in range(first) if token != end]
        sound = Windows(self.codec, 4 * self.codec.hop, reach_of(self.codec))
        codes = []
        steps = reported(lambda: self.model.generate(ids, generation_config=config, streamer=Frames()))
        for number, token in enumerate(steps):
            if number and token.item() != end:  # the first is the prompt
                codes.append((token.item() - first) % size)
            if len(codes) < len(BOOKS):
                yield None
            else:
                yield sound.push(torch.tensor(codes, device=self.model.device))
                codes = []
        yield sound.finish()
