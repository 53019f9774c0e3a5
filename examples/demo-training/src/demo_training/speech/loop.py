"""The training loop of all three trainings: seeded, logged, and resumed after an interruption."""

from __future__ import annotations

import csv
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

LOG_EVERY, SAVE_EVERY = 20, 50
_WARM_UP = 100

Losses = dict[str, torch.Tensor]
"""The report of a step; ``loss`` is minimised."""


def train(
    name: str,
    model: nn.Module,
    step_losses: Callable[[int], Losses],
    folder: Path,
    *,
    steps: int,
    rate: float,
    betas: tuple[float, float] = (0.9, 0.98),
    weight_decay: float = 0.0,
) -> None:
    """Minimise with AdamW under a cosine schedule.

    ``step_losses(step)`` must depend only on ``step`` and the weights, so that an interrupted training gives the same
    result as an uninterrupted one. Writes ``name.csv`` (losses) and ``name.pt`` (the checkpoint) to the folder.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=rate, betas=betas, weight_decay=weight_decay)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _pace(step, steps))
    checkpoint, begin = folder / f"{name}.pt", 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        schedule.load_state_dict(saved["schedule"])
        begin = saved["step"]
        print(f"{name}: goes on from step {begin}", flush=True)
    model.train()
    started = time.monotonic()
    with _log_until(folder / f"{name}.csv", begin).open("a", newline="") as file:
        log = csv.writer(file)
        for step in range(begin, steps):
            losses = step_losses(step)
            optimizer.zero_grad(set_to_none=True)
            losses["loss"].backward()
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            schedule.step()
            if (step + 1) % LOG_EVERY == 0:
                values = {key: float(value.detach()) for key, value in losses.items()}
                log.writerow([step + 1, *values.values()])
                file.flush()
                left = (time.monotonic() - started) / (step + 1 - begin) * (steps - step - 1) / 60
                shown = " ".join(f"{key} {value:.4f}" for key, value in values.items())
                print(f"{name}: step {step + 1}/{steps} {shown}, {left:.0f} min left", flush=True)
            if (step + 1) % SAVE_EVERY == 0 or step + 1 == steps:
                _save(checkpoint, model, optimizer, schedule, step + 1)
    model.eval()


def _log_until(path: Path, step: int) -> Path:
    """Drop the log lines that an interrupted training wrote after its checkpoint."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    path.write_text("".join(line for line in lines if int(line.split(",")[0]) <= step))
    return path


def _pace(step: int, steps: int) -> float:
    """Return the learning rate's factor: linear warm-up, then half a cosine down to a hundredth."""
    if step < _WARM_UP:
        return (step + 1) / _WARM_UP
    rest = (step - _WARM_UP) / max(1, steps - _WARM_UP)
    return 0.01 + 0.99 * 0.5 * (1 + float(torch.cos(torch.tensor(rest * torch.pi))))


def _save(
    path: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
    step: int,
) -> None:
    """Write atomically: an interruption leaves the old checkpoint or the new one."""
    fresh = path.with_suffix(".new")
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()}
    torch.save({**state, "step": step}, fresh)
    fresh.replace(path)


def standard_weights(model: nn.Module) -> None:
    """Initialise with PyTorch's defaults, mixtures of experts included: the released model's initialisation suits other
    sizes.
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.ConvTranspose1d):
            module.reset_parameters()
        elif name.endswith((".experts", ".mlp.gate")):
            for weight in module.parameters(recurse=False):
                nn.init.uniform_(weight, -(weight.shape[-1] ** -0.5), weight.shape[-1] ** -0.5)
