"""Peak memory of loading and of the longest step, each in its own process: the file, the KV cache and 10 %; the plan's
work buffers; and failed allocations."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as GgmlType

from ballast._core import kernels
from ballast.engine.startup.build import EngineSettings
from ballast.engine.startup.loading import load_runner
from ballast.errors import OutOfMemoryError
from ballast.host.machine import Memory
from ballast.model.metadata import read_spec
from ballast.model.spec import ModelSpec
from ballast.plan import Numbers, make_plan
from ballast.tiny import BUILT_IN
from ballast.weights.gguf import open_gguf
from devkit.models.changed_spec import changed
from devkit.models.gguf_files import shapes_of, write_model
from devkit.models.specs.deepseek import V3_SPEC

SPEC = changed(
    V3_SPEC,
    vocab_size=2048,
    hidden=1024,
    num_heads=8,
    dense_width=2048,
    kv_lora_rank=256,
    q_lora_rank=256,
    num_experts=16,
    width=512,
    num_layers=17,
)

STATUS = """
from pathlib import Path

def status_bytes(key):
    return int(Path("/proc/self/status").read_text().split(f"{key}:")[1].split()[0]) * 1024
"""

LOAD = """
import json, sys
from ballast.engine.startup.build import EngineSettings
from ballast.engine.startup.loading import load_runner
from ballast.model.kv_pool import num_kv_blocks
from ballast.model.metadata import read_spec
from ballast.plan.gpus.device import kv_row_bytes
from ballast.weights.gguf import open_gguf

gguf = open_gguf(Path(sys.argv[1]))
spec = read_spec(gguf, None)
settings = EngineSettings(cache_lens=4096, max_batch_size=4, max_new_tokens=64, chunk_size=64, prefill_chunk_size=64,
                          max_queue=4, cpu_threads=2, cpu_isa=sys.argv[2])
kv = (num_kv_blocks(4096, 32) + 1) * 32 * kv_row_bytes(spec, "fp32")
before = status_bytes("VmRSS")
runner = load_runner(gguf, spec, spec.vocab_size, settings)
print(json.dumps({"growth": status_bytes("VmHWM") - before, "kv": kv}))
"""

STEP = """
import json, sys
import numpy as np
from ballast.engine.startup.build import EngineSettings, scheduler_config
from ballast.engine.startup.loading import load_runner
from ballast.engine.core import EngineCore
from ballast.engine.request import Request, SamplingParams
from ballast.model.metadata import read_spec
from ballast.plan.gpus.device import kv_row_bytes
from ballast.weights.gguf import open_gguf

def serve(seq, num_tokens):
    ids = ((np.arange(num_tokens) * 7 + seq) % spec.vocab_size).astype(np.int32)
    core.add(seq, Request(str(seq), ids, SamplingParams(max_tokens=2, temperature=0.0)), 0)
    longest = 0
    while num := core.step().num_tokens:
        longest = max(longest, num)
    return longest

gguf = open_gguf(Path(sys.argv[1]))
spec = read_spec(gguf, None)
tokens = int(sys.argv[3])
settings = EngineSettings(cache_lens=2 * tokens, max_batch_size=4, max_new_tokens=64, chunk_size=tokens,
                          prefill_chunk_size=tokens, max_queue=4, cpu_threads=2, cpu_isa=sys.argv[2])
core = EngineCore(load_runner(gguf, spec, spec.vocab_size, settings), scheduler_config(settings))
serve(1, 40)  # what a first step alone brings in: code, and the embedding's file
Path("/proc/self/clear_refs").write_text("5")  # resets the peak
before = status_bytes("VmRSS")
longest = serve(2, tokens)
kv = tokens * kv_row_bytes(spec, "fp32")
print(json.dumps({"growth": status_bytes("VmHWM") - before - kv, "longest": longest}))
"""


def quantized(spec: ModelSpec) -> dict[str, GgmlType]:
    return {
        name: GgmlType.Q6_K if "down" in name else GgmlType.Q8_0 if "_b." in name else GgmlType.Q4_K
        for name, shape in shapes_of(spec).items()
        if len(shape) > 1 and "gate_inp" not in name
    }


def in_its_own_process(script: str, *arguments: object) -> dict[str, int]:
    command = [sys.executable, "-c", STATUS + script, *map(str, arguments)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    found: dict[str, int] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("isa", kernels.usable_isas())
def test_weights_are_never_in_memory_twice(tmp_path: Path, isa: str) -> None:
    file = write_model(tmp_path / "model.gguf", SPEC, types=quantized(SPEC))
    file_bytes = file.stat().st_size
    assert file_bytes > 150e6, "the file is too small compared with the program itself"
    found = in_its_own_process(LOAD, file, isa)
    assert found["growth"] <= 1.10 * file_bytes + found["kv"]


@pytest.mark.parametrize("isa", kernels.usable_isas())
def test_the_longest_step_takes_no_more_than_its_plan_says(tmp_path: Path, isa: str) -> None:
    num_tokens = 1024
    spec = changed(SPEC, num_layers=3)
    file = write_model(tmp_path / "model.gguf", spec, types=quantized(spec))
    found = in_its_own_process(STEP, file, isa, num_tokens)
    assert found["longest"] == num_tokens
    numbers = Numbers(
        cache_lens=2 * num_tokens,
        block_tokens=32,
        max_batch_size=4,
        chunk_size=num_tokens,
        prefill_chunk_size=num_tokens,
        isa=isa,
        threads_per_node=(2,),
    )
    plan = make_plan(open_gguf(file), spec, numbers, Memory(1 << 40, 1 << 40, None))
    [planned] = [row.num_bytes for row in plan.uses if row.name == "work buffers"]
    assert found["growth"] <= planned <= 2.5 * found["growth"]


def test_a_failed_allocation_has_its_own_exit_code() -> None:
    gguf = open_gguf(BUILT_IN.gguf)
    spec = read_spec(gguf, None)
    beyond_any_address = EngineSettings(
        cache_lens=1 << 50, max_batch_size=1, max_new_tokens=64, chunk_size=64, prefill_chunk_size=64, max_queue=1
    )
    with pytest.raises(OutOfMemoryError, match=r"refused memory while the model was loaded \(.*ulimit -v.*cache_lens"):
        load_runner(gguf, spec, spec.vocab_size, beyond_any_address)


def test_a_file_larger_than_the_address_space_is_reported_with_a_fix(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    with file.open("wb") as stream:
        stream.write(BUILT_IN.gguf.read_bytes())
        stream.truncate(1 << 40)  # a sparse file
    limited = (
        "import resource, sys; from ballast.cli import main; resource.setrlimit(resource.RLIMIT_AS, (1 << 38,) * 2); "
        f"sys.exit(main(['plan', '--gguf_path', {str(file)!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", limited], check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 4, done.stderr
    assert "does not map its 1099511627776 bytes; raise the limit" in done.stderr
