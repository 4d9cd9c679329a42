"""Trains the built-in model on one GPU: `python -m tools.tiny_model.train OUT --tokenizer FILE`.

Writes OUT/weights.npz (every tensor under its GGUF name, float32, not yet rounded) and OUT/training.jsonl. The same
seed gives the same corpus in the same order, but sums on a GPU may differ in their last bits. With `--seconds`,
training ends after that time, so at a different step each time. `--shape larger` trains sizes other than the built-in
model's; weights.npz then contains them as `shape`. `--round_from 2` trains weights that are never rounded.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader

from ballast.tiny.model import rows_for
from ballast.tiny.shape import TinyShape
from tools.tiny_model.batches import Batches, Ints, most_documents
from tools.tiny_model.fake_quant import rounded
from tools.tiny_model.network import Network
from tools.tiny_model.shape import QUANT, SHAPE, SHAPES


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a training run."""

    steps: int = 9000
    tokens: int = 49_152
    """Tokens per step; conversations are packed end to end."""
    rate: float = 3e-3
    warm_up: int = 200
    decay_from: float = 0.45
    """Share of the steps after which the learning rate decreases linearly to zero."""
    round_from: float = 0.6
    """Share of the steps after which weights are rounded as in the file."""
    weight_decay: float = 0.1
    balance_step: float = 1e-3
    seed: int = 1
    seconds: float = 0.0
    """Time after which training ends. 0: it ends after its steps, however long they take."""

    def done(self, step: int, seconds: float) -> float:
        """The completed share of the training at the beginning of a step, `seconds` after the first one."""
        return max(step / self.steps, seconds / self.seconds if self.seconds else 0.0)

    def rate_at(self, step: int, done: float) -> float:
        falling = max(0.0, 1 - done) / (1 - self.decay_from)
        return self.rate * min(1.0, (step + 1) / self.warm_up, falling)

    def rounds_at(self, done: float) -> bool:
        return done >= self.round_from


class Training:
    """A network in training. On a GPU, a step is captured once and replayed, because most of its kernels are short."""

    def __init__(self, network: Network, settings: Settings, device: torch.device, *, compiled: bool) -> None:
        if device.type == "cuda":
            torch.cuda.set_stream(torch.cuda.Stream())  # a step cannot be captured on the default stream
        self._network, self._settings = network.to(device), settings
        self._batch = torch.zeros(4, settings.tokens, dtype=torch.int32, device=device)
        self._rate, self._balance = torch.zeros((), device=device), torch.zeros((), device=device)
        self._optimizer = torch.optim.AdamW(
            _groups(network, settings), lr=self._rate, betas=(0.9, 0.95), fused=True, capturable=device.type == "cuda"
        )
        self._loss = torch.compile(_loss) if compiled else _loss
        self._records = device.type == "cuda"
        self._recorded: dict[bool, tuple[torch.cuda.CUDAGraph, tuple[Tensor, Tensor]]] = {}
        self._seen = {False: 0, True: 0}

    def advance(self, step: int, batch: Tensor, seconds: float = 0.0) -> tuple[Tensor, Tensor]:
        """The step's loss and the load of every layer's experts. The next step may overwrite them. `seconds` is the
        time since the first step."""
        done = self._settings.done(step, seconds)
        rate, rounding = self._settings.rate_at(step, done), self._settings.rounds_at(done)
        self._batch.copy_(batch, non_blocking=True)
        self._rate.fill_(rate)
        self._balance.fill_(self._settings.balance_step * min(1.0, rate / self._settings.rate * 2))
        if not self._records or self._seen[rounding] < _BEFORE_RECORDING:
            self._seen[rounding] += 1
            return self._step(rounding)
        if rounding not in self._recorded:
            graph = torch.cuda.CUDAGraph()
            # The loader's thread pins memory meanwhile, which would end a capture that watches every thread.
            with torch.cuda.graph(graph, stream=torch.cuda.current_stream(), capture_error_mode="thread_local"):
                results = self._step(rounding)
            self._recorded[rounding] = graph, results
        graph, results = self._recorded[rounding]
        graph.replay()
        return results

    def _step(self, rounding: bool) -> tuple[Tensor, Tensor]:
        self._optimizer.zero_grad(set_to_none=True)
        loss, loads = self._loss(self._network, matrices(self._network, rounding=rounding), self._batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._network.parameters(), 1.0)
        self._optimizer.step()
        self._network.balance(loads, self._balance)
        return loss.detach(), loads


_BEFORE_RECORDING = 3
"""Runs steps without capture, so that everything is compiled and allocated."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--shape", choices=SHAPES, default="built-in")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--no_compile", action="store_true")
    parser.add_argument(
        "--workers", type=int, default=14, help="processes that generate text; the text does not depend on their number"
    )
    for item in fields(Settings):
        parser.add_argument(f"--{item.name}", type=type(item.default), default=item.default)
    options = parser.parse_args()
    settings = Settings(**{item.name: getattr(options, item.name) for item in fields(Settings)})
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / "training.jsonl").open("w") as log:

        def note(**values: Any) -> None:
            line = json.dumps(values)
            print(line, flush=True)
            log.write(f"{line}\n")
            log.flush()

        network = train(settings, options, note)
    save(network, options.out / "weights.npz")


def train(settings: Settings, options: argparse.Namespace, note: Callable[..., None]) -> Network:
    """The trained network, in float32 and not yet rounded."""
    device = torch.device(options.device)
    network = fresh_network(SHAPES[options.shape], settings, options.tokenizer)
    note(parameters=sum(value.numel() for value in network.parameters()), settings=str(settings))
    training = Training(network, settings, device, compiled=not options.no_compile)
    loader = batches(options.tokenizer, settings, options.workers, pinned=device.type == "cuda")
    started = last = time.monotonic()
    for step, batch in enumerate(loader):
        passed = time.monotonic() - started
        if settings.done(step, passed) >= 1:
            break
        loss, loads = training.advance(step, batch, passed)
        if step % 100 == 0 or step == settings.steps - 1:
            busiest = (loads.amax(1) / loads.mean(1)).max()
            values = {"step": step, "loss": round(loss.item(), 4), "busiest_expert": round(busiest.item(), 2)}
            now = time.monotonic()
            note(**values, seconds=round(now - started, 1), step_ms=round(1000 * (now - last) / 100, 1))
            last = now
    return network


def fresh_network(shape: TinyShape, settings: Settings, tokenizer: str) -> Network:
    torch.manual_seed(settings.seed)
    torch.set_float32_matmul_precision("high")
    return Network(shape, rows_for(tokenizers.Tokenizer.from_file(tokenizer).get_vocab_size()))


def batches(tokenizer: str, settings: Settings, workers: int, *, pinned: bool) -> DataLoader[Ints]:
    """Every step's batch, in order."""
    return DataLoader(
        Batches(tokenizer, settings.seed, settings.tokens, settings.steps),
        batch_size=None,
        num_workers=workers,
        prefetch_factor=16 if workers else None,
        pin_memory=pinned,
    )


def save(network: Network, file: Path) -> None:
    """With `shape`, as JSON, the sizes in which the network differs from the built-in model."""
    arrays: dict[str, Any] = {name: value.cpu().numpy() for name, value in network.state_dict().items()}
    own = {name: value for name, value in asdict(network.shape).items() if value != asdict(SHAPE)[name]}
    if own:
        arrays["shape"] = np.array(json.dumps(own))
    np.savez(file, **arrays)


def _loss(network: Network, weights: dict[str, Tensor], batch: Tensor) -> tuple[Tensor, Tensor]:
    ids, targets, positions, starts = batch.unbind()
    hidden, loads = network(ids, positions, starts[: most_documents(len(ids)) + 1], weights)
    logits = F.linear(hidden.to(weights["output.weight"].dtype), weights["output.weight"]).float()
    return F.cross_entropy(logits, targets.long(), ignore_index=-100), loads


def matrices(network: Network, *, rounding: bool) -> dict[str, Tensor]:
    """The matrices for the computation, in bfloat16. With `rounding`, they are rounded as in the file."""
    exact = network.matrices()
    used = rounded(exact, network.shape, QUANT) if rounding else exact
    return {name: value.bfloat16() for name, value in used.items()}


def _groups(network: Network, settings: Settings) -> list[dict[str, Any]]:
    matrix = [value for value in network.parameters() if value.ndim > 1]
    vector = [value for value in network.parameters() if value.ndim == 1]
    return [{"params": matrix, "weight_decay": settings.weight_decay}, {"params": vector, "weight_decay": 0.0}]


if __name__ == "__main__":
    main()
