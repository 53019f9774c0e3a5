"""The training loop of the three networks: Muon for matrices, AdamW for the rest, a moving average of the weights, a log."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

_WARM_UP, _LOG_EVERY = 50, 100


def train(
    name: str,
    network: nn.Module,
    loss_of: Callable[[int], torch.Tensor],
    folder: Path,
    *,
    steps: int,
    rate: float,
    others: nn.Module | None = None,
    seconds: float | None = None,
) -> None:
    """Minimise ``loss_of(step)``, computed in bfloat16 where that is faster, and leave the weights' moving average in the network.

    Writes ``name.pt``; if that is there already, it is loaded, and nothing is trained. Without it, a training begins with the weights
    that an interrupted one has left (``name.partial.pt``).

    Args:
        rate: of Muon, relative to a matrix's spectral norm; AdamW's is a tenth.
        others: further weights to train that are thrown away afterwards.
        seconds: stop with the schedule of the steps done compressed into this time; ``None``: all steps.
    """
    saved = folder / f"{name}.pt"
    if saved.exists():
        network.load_state_dict(torch.load(saved, weights_only=True))
        network.eval()
        return
    if (partial := folder / f"{name}.partial.pt").exists():
        network.load_state_dict(torch.load(partial, weights_only=True))
        print(f"{name}: goes on from the weights of an interrupted training", flush=True)
    weights = [*network.named_parameters(), *(others.named_parameters() if others else ())]
    matrices = [each for key, each in weights if each.ndim == 2 and "blocks" in key]
    rest = [each for key, each in weights if not (each.ndim == 2 and "blocks" in key)]
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(rest, lr=rate / 10, betas=(0.9, 0.98), weight_decay=0.0)
    ]
    if matrices:
        optimizers.append(torch.optim.Muon(matrices, lr=rate, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"))
    rates = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
    average = copy.deepcopy(network)
    started, total, done = time.monotonic(), 0.0, 0.0
    network.train()
    with (folder / f"{name}.csv").open("a") as log:
        step = 0
        while done < 1:
            done = (
                (step + 1) / steps
                if seconds is None
                else max((step + 1) / steps, (time.monotonic() - started) / seconds)
            )
            pace = min(1.0, (step + 1) / _WARM_UP) * min(1.0, max(0.0, (1 - done) / 0.4) + 0.01)
            for optimizer, base in zip(optimizers, rates, strict=True):
                optimizer.param_groups[0]["lr"] = base * pace
            with torch.autocast("cpu", torch.bfloat16):
                loss = loss_of(step)
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            decay = min(0.998, step / (step + 10))
            with torch.no_grad():
                for kept, now in zip(average.parameters(), network.parameters(), strict=True):
                    kept.lerp_(now, 1 - decay)
            total += float(loss.detach())
            step += 1
            if step % _LOG_EVERY == 0:
                log.write(f"{step},{total / _LOG_EVERY:.6f}\n")
                log.flush()
                print(
                    f"{name}: step {step}, {done:.1%}, loss {total / _LOG_EVERY:.5f}, {time.monotonic() - started:.0f} s",
                    flush=True,
                )
                total = 0.0
                torch.save(average.state_dict(), partial)
    network.load_state_dict(average.state_dict())
    network.eval()
    torch.save(network.state_dict(), saved)
