"""Time kt-kernel's routed experts of one layer. `ktransformers.py` runs this with an interpreter that has kt-kernel and
torch; it imports nothing of Ballast.

python ktransformers_layer.py METHOD THREADS NUM_EXPERTS CHOSEN HIDDEN WIDTH DOWN_TYPE TOKENS...

Prints one JSON object: milliseconds per call by number of tokens, and the version. METHOD is a name of METHODS.
DOWN_TYPE is ggml's number of the down projection's type, for `gguf`.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from importlib.metadata import version
from typing import Any

import torch
from kt_kernel import kt_kernel_ext as kt

Q4_K, BF16 = 12, 30
BLOCKS = {8: (32, 34), 12: (256, 144), 14: (256, 210)}
"""Weights and bytes of a block, by ggml's number of the type."""
METHODS = {"gguf": "MOE", "int4": "AMXInt4_MOE", "int8": "AMXInt8_MOE", "bf16": "AMXBF16_MOE"}
"""The class for converted weights; `gguf` computes with the file's blocks. The others need AVX-512 or AMX."""
DRAWS = 64
BUDGET_S = 0.5


def main() -> None:
    method, (threads, num_experts, chosen, hidden, width, down_type) = sys.argv[1], map(int, sys.argv[2:8])
    torch.manual_seed(0)
    workers = kt.WorkerPoolConfig()
    workers.subpool_count, workers.subpool_numa_map, workers.subpool_thread_count = 1, [0], [threads]
    queue = kt.CPUInfer(workers)
    on_gpu = torch.zeros(num_experts, dtype=torch.bool)
    order = torch.arange(num_experts, dtype=torch.int64)
    config = kt.moe.MOEConfig(num_experts, chosen, hidden, width, on_gpu.data_ptr())
    config.pool, config.max_len, config.physical_to_logical_map = queue.backend_, 4096, order.data_ptr()
    size = num_experts * hidden * width
    if method == "gguf":
        config.m_block, config.group_min_len, config.group_max_len = 32, 10, 4096
        config.gate_type = config.up_type = Q4_K
        config.down_type, config.hidden_type = down_type, BF16
        weights = [blocks(Q4_K, size), blocks(Q4_K, size), blocks(down_type, size)]
    else:
        some = (torch.randn(hidden * width) * 0.02).to(torch.bfloat16)  # the time does not depend on the values
        weights = [some.repeat(num_experts) for _ in range(3)]
    config.gate_proj, config.up_proj, config.down_proj = (tensor.data_ptr() for tensor in weights)
    experts = getattr(kt.moe, METHODS[method])(config)
    try:
        task = experts.load_weights_task(order.data_ptr())
    except TypeError:  # the class for GGUF blocks takes no order
        task = experts.load_weights_task()
    queue.submit(task)
    queue.sync()
    if method != "gguf":
        weights.clear()  # it has made its own
    measured = {
        tokens: milliseconds(queue, experts, tokens, num_experts, chosen, hidden) for tokens in map(int, sys.argv[8:])
    }
    print(json.dumps({"version": version("kt-kernel"), "ms": measured}))


def blocks(type_number: int, size: int) -> torch.Tensor:
    """Random blocks whose scales are small numbers."""
    num_weights, num_bytes = BLOCKS[type_number]
    made = torch.randint(0, 255, (size // num_weights, num_bytes), dtype=torch.uint8)
    scale = torch.tensor([1e-4], dtype=torch.float16).view(torch.uint8)
    if type_number == Q4_K:
        made[:, :4] = scale.repeat(2)
    elif type_number == 8:
        made[:, :2] = scale
    else:
        made[:, 208:] = scale
    return made


def milliseconds(queue: Any, experts: Any, tokens: int, num_experts: int, chosen: int, hidden: int) -> float:
    """Median time of a call, after one warm-up call; each call has other experts."""
    ids = torch.rand(DRAWS, tokens, num_experts).argsort(-1)[..., :chosen].contiguous()
    weights = torch.full((tokens, chosen), 1 / chosen)
    x = torch.randn(tokens, hidden, dtype=torch.bfloat16)
    out = torch.empty_like(x)
    count = torch.tensor([tokens], dtype=torch.int32)
    times: list[float] = []
    calls = 0
    while len(times) < 4 or sum(times) < BUDGET_S:
        begin = time.perf_counter()
        chosen_now = ids[calls % DRAWS]
        pointers = (tensor.data_ptr() for tensor in (chosen_now, weights, x, out))
        queue.submit(experts.forward_task(count.data_ptr(), chosen, *pointers, False))
        queue.sync()
        times.append(time.perf_counter() - begin)
        calls += 1
    return statistics.median(times[1:]) * 1e3


if __name__ == "__main__":
    main()
