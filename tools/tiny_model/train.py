"""Trains the built-in model on one GPU: `python -m tools.tiny_model.train OUT --tokenizer FILE`.

Writes OUT/weights.npz (every tensor under its GGUF name, float32, not yet rounded) and OUT/training.jsonl. The same
seed gives the same corpus in the same order; sums on a GPU may still differ in their last bits.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
import torch.nn.functional as F
from tools.tiny_model.fake_quant import rounded
from tools.tiny_model.network import Network
from tools.tiny_model.rows import Rows
from tools.tiny_model.shape import QUANT, SHAPE
from torch import Tensor
from torch.utils.data import DataLoader

from ballast.tiny.model import rows_for


@dataclass(frozen=True, slots=True)
class Settings:
    """The course of a training."""

    steps: int
    rows: int
    rate: float = 3e-3
    warm_up: int = 200
    decay_from: float = 0.45
    """Share of the steps after which the rate falls, in a line, to nothing."""
    round_from: float = 0.6
    """Share of the steps after which weights are rounded as in the file."""
    weight_decay: float = 0.1
    balance_step: float = 1e-3
    workers: int = 14
    seed: int = 1

    def rate_at(self, step: int) -> float:
        falling = (self.steps - step) / (self.steps * (1 - self.decay_from))
        return self.rate * min(1.0, (step + 1) / self.warm_up, falling)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--no_compile", action="store_true")
    for name, default in (("steps", 6000), ("rows", 48), ("workers", 14), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    for name, number in (("rate", 3e-3), ("decay_from", 0.45), ("round_from", 0.6)):
        parser.add_argument(f"--{name}", type=float, default=number)
    parser.add_argument("--start", type=Path, help="go on from an earlier OUT/weights.npz")
    parser.add_argument(
        "--seconds", type=float, default=math.inf, help="stop early after so many, for trying things out"
    )
    options = parser.parse_args()
    settings = Settings(**{item.name: getattr(options, item.name) for item in fields(Settings) if item.name in options})
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / "training.jsonl").open("w") as log:

        def note(**values: Any) -> None:
            line = json.dumps(values)
            print(line, flush=True)
            log.write(f"{line}\n")
            log.flush()

        backend = tokenizers.Tokenizer.from_file(options.tokenizer)
        network = train(settings, options, rows_for(backend.get_vocab_size()), note)
        np.savez(
            options.out / "weights.npz", **{name: value.cpu().numpy() for name, value in network.state_dict().items()}
        )


def train(settings: Settings, options: argparse.Namespace, num_rows: int, note: Callable[..., None]) -> Network:
    """The trained network, in float32 and not yet rounded."""
    torch.manual_seed(settings.seed)
    torch.set_float32_matmul_precision("high")
    device = torch.device(options.device)
    network = Network(SHAPE, num_rows)
    if options.start:
        with np.load(options.start) as file:
            network.load_state_dict({name: torch.from_numpy(file[name].astype(np.float32)) for name in file.files})
    network.to(device)
    note(parameters=sum(value.numel() for value in network.parameters()), settings=str(settings))
    loader = DataLoader(
        Rows(options.tokenizer, settings.seed, settings.rows),
        batch_size=None,
        num_workers=settings.workers,
        prefetch_factor=8 if settings.workers else None,
        pin_memory=device.type == "cuda",
    )
    loss_of: Callable[..., tuple[Tensor, Tensor]] = _loss if options.no_compile else torch.compile(_loss)
    optimizer = torch.optim.AdamW(_groups(network, settings), lr=settings.rate, betas=(0.9, 0.95), fused=True)
    batches: Iterator[Tensor] = iter(loader)
    started = last = time.monotonic()
    waited = 0.0
    for step in range(settings.steps):
        asked = time.monotonic()
        batch = next(batches).to(device, non_blocking=True)
        waited += time.monotonic() - asked
        for group in optimizer.param_groups:
            group["lr"] = settings.rate_at(step)
        weights = matrices(network, rounding=step >= settings.round_from * settings.steps)
        loss, loads = loss_of(network, weights, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        network.balance(loads, settings.balance_step * min(1.0, settings.rate_at(step) / settings.rate * 2))
        if step % 100 == 0 or step == settings.steps - 1:
            now = time.monotonic()
            busiest = (loads.amax(1) / loads.mean(1)).max()
            note(
                step=step,
                loss=round(loss.item(), 4),
                seconds=round(now - started, 1),
                step_ms=round(1000 * (now - last) / 100, 1),
                wait_ms=round(1000 * waited / 100, 1),
                busiest_expert=round(busiest.item(), 2),
            )
            last, waited = now, 0.0
            if now - started > options.seconds:
                break
    return network


def _loss(network: Network, weights: dict[str, Tensor], batch: Tensor) -> tuple[Tensor, Tensor]:
    ids, targets, positions, documents = batch.unbind()
    hidden, loads = network(ids, positions, documents, weights)
    logits = F.linear(hidden.to(weights["output.weight"].dtype), weights["output.weight"]).float()
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100), loads


def matrices(network: Network, *, rounding: bool) -> dict[str, Tensor]:
    """The matrices to compute with, in bfloat16; with `rounding` as the file will hold them."""
    exact = network.matrices()
    return {name: value.bfloat16() for name, value in (rounded(exact, SHAPE, QUANT) if rounding else exact).items()}


def _groups(network: Network, settings: Settings) -> list[dict[str, Any]]:
    matrix = [value for value in network.parameters() if value.ndim > 1]
    vector = [value for value in network.parameters() if value.ndim == 1]
    return [{"params": matrix, "weight_decay": settings.weight_decay}, {"params": vector, "weight_decay": 0.0}]


if __name__ == "__main__":
    main()
