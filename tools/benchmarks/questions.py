"""The tables of docs/benchmarks.md and docs/measurements.md, in order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tools.benchmarks.question import Column, Highlight, Page, Question, Row

_OURS = Column("Ballast, tok/s", "ours_tokens_per_s", spread=True, charted=True)
_MEMORY_SHARE = Column("Ballast, % of memory bandwidth", "share_of_memory_speed", scale=100)


def _streams(batch: int) -> str:
    return "1 stream" if batch == 1 else f"{batch} streams"


_STREAMS = tuple((batch, _streams(batch)) for batch in (1, 4, 16))
_R1_CUT = "R1, 8 of 61 layers"

_LLAMA_CPP = Column("llama.cpp, tok/s", "theirs_tokens_per_s", spread=True, charted=True)
_MEDIAN_OF_RATIOS = Column("Median of ratios", "median_of_ratios", digits=2)
_WITH_LLAMA_CPP = (_OURS, _LLAMA_CPP, Column("Ratio", "ratio_of_medians", digits=2))
_WITH_IK_LLAMA_CPP = (_OURS, replace(_LLAMA_CPP, title="ik_llama.cpp, tok/s"), _MEDIAN_OF_RATIOS, _MEMORY_SHARE)

ALL_ON_GPU_PAIR = Question(
    name="all-on-gpu-compared",
    title="Every expert in GPU memory, compared with llama.cpp",
    about=(
        "The whole shape of DeepSeek-V2-Lite in GPU memory, three alternating rounds. llama.cpp is faster with short "
        "prompts and with 4 streams."
    ),
    file="peers_llama_cpp.jsonl",
    rows=tuple(
        Row(label, f"v2-lite.gguf, experts in gpu memory: {case}")
        for label, case in (
            *((f"prompt of {tokens:,}", f"prefill {tokens}") for tokens in (512, 4096, 32768)),
            *((streams, f"decode B={batch}, sampled") for batch, streams in _STREAMS),
        )
    ),
    columns=_WITH_LLAMA_CPP,
    command="MODEL_DIR=FOLDER LLAMA_BIN=FOLDER SHAPES=v2-lite PLACES=gpu tools/gpu.sh peers",
    peer="llama.cpp b12032, with the options of the tables above without `-ncmoe`.",
)

KT_KERNEL = Question(
    name="kt-kernel",
    title="Experts of one layer on a CPU, compared with kt-kernel",
    about=(
        "R1's shape with 64 experts in Q4_K, three alternating rounds. Ballast reads Q4_K in each row. kt-kernel's "
        "`gguf` does too; its `int8` weights are twice as many bytes, which AMX computes without unpacking: it is "
        "faster with 512 tokens."
    ),
    file="ktransformers.jsonl",
    rows=tuple(
        Row(f"{method}, {tokens} {'token' if tokens == 1 else 'tokens'}", f"R1's shape, {method}: {tokens} tokens")
        for method in ("gguf", "int8")
        for tokens in (1, 4, 16, 512)
    ),
    columns=(
        Column("Ballast, ms", "ours_ms", digits=1, spread=True),
        Column("kt-kernel, ms", "theirs_ms", digits=1, spread=True),
        Column("Times faster", "ratio_of_medians", digits=2),
    ),
    command="python benchmarks/peers/ktransformers.py KT_PYTHON --threads 15 --methods gguf int8",
    peer="kt-kernel 0.7.2 with AMX; both with 15 threads.",
)

PROMPTS_BESIDE = Question(
    name="prompts-beside",
    title="A prompt that arrives while others decode",
    about=(
        "Three streams decode with 8 of the 61 layers of R1's shape, and prompts of 4,096 tokens arrive one after "
        "another. The GPU computes a prompt while the CPU computes the experts of the streams that decode."
    ),
    file="engine_prompts_beside.jsonl",
    rows=(
        Row("H100", "r1-8.gguf: 3 decode, 3 prompts of 4096"),
        Row("H200", "r1-8.gguf: 3 decode, 2 prompts of 4096"),
    ),
    columns=(
        Column("decode speed, % of alone", "share_of_alone", scale=100),
        Column("ITL p99, ms", "itl_p99_ms"),
        Column("TTFT of the prompt, s", "ttft_s", digits=2),
        Column("TTFT / alone", "ttft_over_alone", digits=2),
    ),
    command="python benchmarks/engine/prompts_beside.py MODEL.gguf --device cuda:0 --prompt 4096",
)


def _prompt_and_streams(*batches: int, sampled: str = "") -> tuple[tuple[str, str], ...]:
    """Labels and cases: a prompt of 512 tokens, and decode for each number of streams."""
    streams = ((f"{_streams(batch)}{sampled}", f"decode B={batch}{sampled}") for batch in batches)
    return (("prompt of 512", "prefill 512"), *streams)


CPU_ALONE = Question(
    name="cpu-alone",
    title="A CPU alone, compared with ik_llama.cpp",
    about=(
        "V2-Lite's whole shape, Q4_K_M, on two cores, alternating runs. Memory bandwidth is what both cores read of a "
        "large buffer right after each run of Ballast; it changes between the two, here by half."
    ),
    file="engine_beside_ik_llama.jsonl",
    rows=tuple(
        Row(label, f"v2lite-27.gguf: {case}", {"activation_bytes": 2})
        for label, case in _prompt_and_streams(1, 4, 8, 16)
    ),
    columns=_WITH_IK_LLAMA_CPP,
    peer=(
        "ik_llama.cpp of ik-llama-cpp-python 0.1.5, each program with the options that make it fastest: `llama-bench "
        "-mla 3 -fa 1 -fmoe 1 -rtr 0` for the prompt, the same with `-rtr 1` for 1 stream, `llama-batched-bench -npp "
        "64 -rtr -fa off`, fed random tokens, for more."
    ),
    command="python benchmarks/peers/ik_llama_cpp.py MODEL.gguf IK_BUILD_BIN --rounds 7",
    axis="tokens per second, all streams together",
)


_FILES = (
    ("V2-Lite, Q4_K_M", "lite8-q4km"),
    ("V2-Lite, experts in MXFP4", "lite8-mxfp4"),
    ("V2-Lite, experts in Q3_K", "lite8-q3_k"),
    ("V2-Lite, experts in Q2_K", "lite8-q2_k"),
    ("V2-Lite, experts in IQ2_XXS", "lite8-iq2_xxs"),
    ("V2-Lite, experts in IQ3_XXS", "lite8-iq3_xxs"),
    ("Qwen3-30B, Q4_K_M", "qwen8"),
)

CPU_TYPES = Question(
    name="cpu-types",
    title="A CPU alone: types of file",
    about=(
        "Eight layers of each shape on two cores, alternating with ik_llama.cpp. Activations are rounded by each "
        "type's default. Rows of V2-Lite's down projections are not multiples of 256 weights; files of low-bit types "
        "have IQ4_NL there, as published files do. The last column compares what decoding reads, if experts are "
        "chosen at random, with the bandwidth that both cores reach right after."
    ),
    file="engine_beside_ik_llama.jsonl",
    rows=tuple(
        Row(f"{label}: {named}", f"{file}.gguf: {case}")
        for label, file in _FILES
        for named, case in _prompt_and_streams(1, 16)
    ),
    columns=_WITH_IK_LLAMA_CPP,
    peer="ik_llama.cpp, with [the commands of the comparison](benchmarks.md#a-cpu-alone-compared-with-ik_llamacpp).",
    command=(
        "python tools/synthetic_model.py lite8-q2_k.gguf --layers 8 --experts Q2_K\n"
        "python benchmarks/peers/ik_llama_cpp.py lite8-q2_k.gguf IK_BUILD_BIN"
    ),
)


def _resident(name: str, case: str, tokens: int) -> Row:
    return Row(
        f"{name}, {tokens} {'token' if tokens == 1 else 'tokens'}", f"{case}, {tokens} tokens", {"gpu": "NVIDIA H200"}
    )


RESIDENT = Question(
    name="resident-experts",
    title="Experts in GPU memory: read speed by type",
    about=(
        "One MoE layer of R1's shape with 256 experts. The first type is that of gate and up, the second that of down."
    ),
    file="resident_experts.jsonl",
    rows=tuple(
        _resident(name, case, tokens)
        for name, case in (
            ("Q4_K, Q6_K", "r1, Q4_K and Q6_K"),
            ("MXFP4", "r1-mxfp4, MXFP4 and MXFP4"),
            ("IQ3_XXS, IQ3_S", "r1-iq3, IQ3_XXS and IQ3_S"),
            ("IQ2_XXS, IQ3_XXS", "r1-iq2, IQ2_XXS and IQ3_XXS"),
            ("TQ2_0", "r1-tq2, TQ2_0 and TQ2_0"),
        )
        for tokens in (1, 16)
    ),
    columns=(Column("GB/s of weights", "weights_gb_per_s", charted=True), Column("µs per layer", "us", digits=0)),
    command="python benchmarks/hybrid/resident_experts.py",
    axis="GB/s of packed weights: one layer of R1",
)

_SECOND = "r1.gguf, second start: "
_WHOLE_GPU = "r1.gguf, all of the GPU: "
_READ = Column("read from host memory, GB/s", "host_gb_per_s")

WHOLE_R1 = Question(
    name="whole-r1",
    title="The whole of DeepSeek-R1's shape inside 24 GiB of GPU memory",
    about=(
        "All 61 layers, 58 of them with 256 experts in Q2_K, 225 GB: the real shape with random weights; attention by "
        "flashinfer. The last rows have no limit: 3,966 of 14,848 experts are in the GPU's 80 GB. The last column is "
        "what a step reads from host memory, by the CPU and across PCIe, divided by its whole time: with several "
        "streams all of the memory bandwidth in the next table, so no kernel could be faster."
    ),
    file="engine_whole_model.jsonl",
    rows=(
        *(Row(f"decode, {streams}", f"{_SECOND}decode B={batch}, sampled") for batch, streams in _STREAMS),
        *(
            Row(f"decode, {streams}, all of the GPU", f"{_WHOLE_GPU}decode B={batch}, sampled")
            for batch, streams in _STREAMS
        ),
    ),
    columns=(Column("tok/s", "tokens_per_s", digits=1), _READ),
    command="tools/gpu.sh build whole",
)

READ_SPEED = Question(
    name="read-speed",
    title="Memory bandwidth of that machine",
    about=(
        "Threads only read a buffer, twice. Small ones are partly in the last-level cache; the largest is the limit "
        "for weights."
    ),
    file="read_speed.jsonl",
    rows=tuple(
        Row(f"{gib} GiB, {threads} threads", f"{gib} GiB, {threads} threads", {"cores": 32})
        for threads in (32, 16)
        for gib in (1, 48)
    ),
    columns=(Column("GB/s", "gb_per_s", spread=True),),
    command="python benchmarks/kernels/read_speed.py --threads 32",
)

_Q4_K = "whole-r1.gguf, Q4_K, "

WHOLE_R1_Q4_K = Question(
    name="whole-r1-q4-k",
    title="The whole of DeepSeek-R1 in Q4_K, inside 24 GiB of GPU memory",
    about=(
        "All 61 layers with experts in Q4_K, a file of 378 GB, on 64 virtual cores and 512 GiB of host memory: the "
        "real shape with random weights. KTransformers' balance_serve, with which this project began, reports 17 and "
        "40 tokens per second for 1 and 4 streams at 845 GB/s, of which this file's experts would take 23 % and 52 %. "
        "This machine has about a quarter of that, by a buffer of 2 GiB that is partly in the last-level cache."
    ),
    file="engine_whole_model.jsonl",
    rows=tuple(
        Row(f"{streams}, {where}", f"{_Q4_K}{case}: decode B={batch}, sampled")
        for where, case in (
            ("32 threads, 24 GiB", "32 threads"),
            ("64 threads, 24 GiB", "64 threads"),
            ("64 threads, all of the GPU", "64 threads, all of the GPU"),
        )
        for batch, streams in _STREAMS
        if (batch, case) != (16, "64 threads, all of the GPU")
    ),
    columns=(
        Column("tok/s", "tokens_per_s", digits=1),
        _READ,
        Column("memory bandwidth (2 GiB buffer), GB/s", "memory_gb_per_s"),
    ),
    command='EXPERTS=Q4_K THREADS="32 64" tools/gpu.sh build whole',
)

WHOLE_R1_START = Question(
    name="whole-r1-start",
    title="Start time of a whole R1",
    about=(
        "The first start packs the weights into a folder in memory (`--packed_dir`); the second maps them. After the "
        "weights, the server measures and compiles for the GPU."
    ),
    file="engine_whole_model.jsonl",
    rows=(
        Row("Q4_K, first start, 32 threads, nothing kept", f"{_Q4_K}32 threads: start"),
        Row("Q4_K, first start, 64 threads", f"{_Q4_K}64 threads: start"),
        Row("Q4_K, second start, 64 threads", f"{_Q4_K}64 threads, second start: start"),
        Row("Q2_K, first start, 32 threads", "r1.gguf, first start, packed kept: start"),
        Row("Q2_K, second start, 32 threads", f"{_SECOND}start"),
        Row("Q2_K, first start with all of the GPU, 32 threads", f"{_WHOLE_GPU}start"),
    ),
    columns=(Column("weights, s", "weights_s"), Column("whole start, s", "start_s")),
    command="EXPERTS=Q4_K PACKED=/mnt/packed tools/gpu.sh build whole",
)

EXPERT_TYPES = Question(
    name="expert-types",
    title="A CPU with AMX: read speed of expert types",
    about=(
        "One MoE layer of R1's shape, activations of one byte. Memory bandwidth is what the same threads read of a "
        "large buffer just before and after. Codes of the IQ types are points of grids, which are looked up before "
        "they are multiplied, so the cores are the limit there; larger grids are slower."
    ),
    file="packed_experts.jsonl",
    rows=tuple(
        Row(
            f"{kind}, {tokens} {'token' if tokens == 1 else 'tokens'}",
            f"r1, {kind}, amx, 1 bytes an activation, {tokens} tokens",
            {"threads": 16},
        )
        for kind in ("Q2_K", "Q3_K", "Q4_K", "MXFP4", "TQ2_0", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S")
        for tokens in (1, 16)
    ),
    columns=(
        Column("GB/s", "gb_per_s"),
        Column("% of memory bandwidth", "share", scale=100),
        Column("memory bandwidth, GB/s", "memory_gb_per_s"),
    ),
    command="python benchmarks/kernels/packed_experts.py --shape r1 --type Q2_K Q4_K --tokens 1 16 --threads 16",
)

_TTFT = (
    Column("TTFT p50, s", "first_token_p50_s", digits=2),
    Column("p99, s", "first_token_p99_s", digits=2),
)

CONVERSATIONS = Question(
    name="conversations",
    title="Conversations that return",
    about=(
        "8 layers of R1's shape, experts in Q4_K. Four conversations take 20 turns each and grow by 2,000 tokens per "
        "turn to 40,000; one more request decodes all the time. The cache holds 49,152 tokens. With a KV cache in host "
        "memory, a turn computes only its new tokens; without it, the whole conversation. Every prompt transfers "
        "all experts across PCIe once, which takes 0.6 s here. The other rows "
        "have three conversations of 8 turns that start with 20,000 tokens."
    ),
    file="conversations.jsonl",
    rows=tuple(
        Row(f"{label}, {label_kept}", f"{case}, beside the cache: {kept}", {"gpu": "NVIDIA H100 80GB HBM3"})
        for label, case in (
            ("20 turns, flashinfer", "4 conversations of 20 turns to 40000 tokens"),
            ("8 turns, own kernels", "3 conversations of 8 turns from 20000 to 40000 tokens"),
        )
        for label_kept, kept in (("kept in host memory", "host"), ("computed again", "none"))
    ),
    columns=(
        *_TTFT,
        Column("ITL of the other request, ms", "others_token_p50_ms", digits=1),
        Column("prompt tokens from the cache, %", "cached_share", scale=100),
    ),
    command="python benchmarks/serving/conversations.py --conversations 4 --tiers host,none -- --gguf_path MODEL.gguf",
)

OVERLOAD = Question(
    name="overload",
    title="More requests than the server can answer",
    about=(
        "The built-in model, requests of mixed lengths at random times. Goodput counts the replies whose first token "
        "came within two seconds. The predicted queue time is limited to one second (`--max_queue_wait_s 1`, in the "
        "records `auto`). Requests above the limit are rejected immediately, so goodput does not fall as arrivals grow."
    ),
    file="overload.jsonl",
    rows=tuple(
        Row(f"{rate} arrivals/s", f"{rate}/s, --max_queue_wait_s auto", {"options": "--max_queue_wait_s auto"})
        for rate in (4, 8, 20, 40)
    ),
    columns=(
        Column("goodput per s", "goodput_per_s", digits=1, charted=True),
        Column("rejected, %", "refused_share", scale=100),
        *_TTFT,
    ),
    command="python benchmarks/serving/overload.py --rates 4,8,20,40 --seconds 30",
    axis="replies in time per second",
)

_OURS_OF: dict[str, object] = {"server": "ballast"}
_THEIRS_OF: dict[str, object] = {"server": "llama"}
_R1_PAIR, _R1_OF_16, _QWEN3_PAIR = ({"commit": commit} for commit in ("38d377eed015", "9cdf3a31ad3e", "c5fff94793fb"))
"""The commits that were measured on the machine of llama.cpp's measurements."""
_R1_BURSTS = tuple(
    (f"{_R1_CUT}, {users}: prompt {prompt:,}, reply {reply}", f"r1:8, batch 16: {case}, prompt {prompt}, reply {reply}")
    for users, case, prompt, reply in (
        ("1 user", "1 together", 64, 1),
        ("8 users", "8 together", 64, 1),
        ("8 users", "8 together", 1000, 1),
        ("16 users", "16 together", 64, 1),
        ("16 users", "16 together", 200, 1),
    )
)
_QWEN3_BURSTS = tuple(
    (
        f"Qwen3, {users} users: prompt {prompt}, reply 1",
        f"qwen3-30b, batch 16: {users} together, prompt {prompt}, reply 1",
    )
    for users, prompt in ((16, 64), (16, 200))
)
_LLAMA_SERVER = (
    "llama-server b11434, built with CUDA: prompts in steps of up to 4,096 tokens, flash attention, no mmap, no prompt "
    "cache, all experts on the CPU. With some experts on the GPU it was not measured."
)

MANY_AT_ONCE = Question(
    name="many-concurrent-users",
    title="Many concurrent users, compared with llama-server",
    about=(
        "8 of the 61 layers of R1's shape and the whole shape of Qwen3-30B-A3B, with 16 slots. All users together send "
        "different prompts over HTTP. The table shows when the last of them has a first token, and the tokens of all "
        "replies per second. Ballast fills the rest of 24 GiB of GPU memory with experts. Both servers ran on one "
        "machine in turn. With 16 users of R1, [llama-batched-bench](measurements.md#many-users-newer-commits) "
        "computed all prompts together, without HTTP."
    ),
    file="arrivals.jsonl",
    rows=(
        *(Row(label, case, _R1_OF_16 if "16 users" in label else _R1_PAIR) for label, case in _R1_BURSTS),
        *(Row(label, case, _QWEN3_PAIR) for label, case in _QWEN3_BURSTS),
    ),
    columns=(
        Column("slowest first token, s: Ballast", "first_token_slowest_s", 2, spread=True, charted=True, of=_OURS_OF),
        Column("llama-server", "first_token_slowest_s", 2, spread=True, charted=True, of=_THEIRS_OF),
        Column("tok/s: Ballast", "tokens_per_s", 1, spread=True, of=_OURS_OF),
        Column("llama-server", "tokens_per_s", 1, spread=True, of=_THEIRS_OF),
    ),
    command="MODEL_DIR=FOLDER LLAMA_SERVER=PATH BATCHES=16 tools/gpu.sh arrivals",
    axis="seconds until the last user has a first token",
    peer=_LLAMA_SERVER,
    shows_servers=True,
)

MANY_AT_ONCE_NEWER = Question(
    name="many-users-newer",
    title="Many users: newer commits",
    about=(
        "The requests of [the comparison with "
        "llama-server](benchmarks.md#many-concurrent-users-compared-with-llama-server), with newer commits "
        "on other machines, without llama-server."
    ),
    file="arrivals.jsonl",
    rows=(
        *(Row(label, case) for label, case in _R1_BURSTS if "prompt 1,000" in label),
        Row(f"{_R1_CUT}, 16 users: prompt 64, reply 64", "r1:8, batch 16: 16 together, prompt 64, reply 64"),
        *(Row(label, case) for label, case in _QWEN3_BURSTS),
        *(
            Row(
                f"Qwen3, 256 slots, {users} users: prompt {prompt}, reply 1",
                f"qwen3-30b, batch 256: {users} together, prompt {prompt}, reply 1",
            )
            for users, prompt in ((16, 64), (16, 200))
        ),
    ),
    columns=(
        Column("slowest first token, s", "first_token_slowest_s", 2, spread=True, of=_OURS_OF),
        Column("tok/s", "tokens_per_s", 1, spread=True, of=_OURS_OF),
    ),
    command=(
        "MODEL_DIR=FOLDER BATCHES=16 tools/gpu.sh arrivals\n"
        "# instead of llama-server, with 16 users of R1:\n"
        "llama-batched-bench -m r1-8.gguf -ngl 99 -ncmoe 99 --load-mode none -fit off -fa auto -b 4096 -ub 4096 -t 16 "
        "-c 8704 -npp 64,200 -ntg 1 -npl 16,16,16"
    ),
)

MANY_ON_A_CPU = Question(
    name="many-users-cpu",
    title="Many users: a CPU alone",
    about=(
        "Eight layers of V2-Lite's and of Qwen3-30B's shape on two cores, with 16 slots. All users send a request over "
        "HTTP at the same time; replies have 10 tokens. For comparison, one user sends the tokens of all users in one "
        "prompt. With an unlimited stall (`--max_stall_ms 100000`), prompts may take whole steps while replies wait."
    ),
    file="arrivals.jsonl",
    rows=tuple(
        Row(
            f"{label}, {f'{users} users' if users > 1 else '1 user'}: prompt {prompt}{stall}",
            f"{shape}:8, CPU, 2 cores, batch 16{stall}: {users} together, prompt {prompt}, reply 10",
        )
        for label, shape in (("V2-Lite", "v2-lite"), ("Qwen3", "qwen3-30b"))
        for users, prompt, stall in (
            (1, 64, ""),
            (16, 64, ""),
            (1, 1024, ""),
            (16, 64, ", unlimited stall"),
            (16, 20, ""),
            (1, 320, ""),
        )
    ),
    columns=(
        Column("slowest first token, s", "first_token_slowest_s", 2, spread=True, charted=True),
        Column("median first token, s", "first_token_median_s", 2, spread=True),
        Column("tok/s", "tokens_per_s", 1, spread=True),
    ),
    command=(
        "python tools/synthetic_model.py v2-lite-8.gguf --shape v2-lite --layers 8 --vocabulary\n"
        "ballast serve --gguf_path v2-lite-8.gguf --port 18090 --device cpu --max_new_tokens 128 --cache_lens 32768 "
        "--max_batch_size 16\n"
        "python benchmarks/serving/arrivals.py together:16:64:10 together:1:1024:10 --port 18090"
    ),
    axis="seconds until the last user has a first token: 8 of 27 layers of V2-Lite, 8 of 48 of Qwen3",
)

_ARRIVING = "first token within 2 s"

MANY_ARRIVING = Question(
    name="many-users-arriving",
    title="Users who arrive at random times, compared with llama-server",
    about=(
        "The same models and servers; prompts of 50 to 2,000 tokens, replies of 20 to 200. "
        "Goodput counts the replies whose first token came within 2 s, per second of the whole run."
    ),
    file="arrivals.jsonl",
    rows=(
        *(
            Row(f"{_R1_CUT}, {rate}/s for 30 s", f"r1:8, batch 16: {rate}/s for 30 s, {_ARRIVING}", _R1_PAIR)
            for rate in (1, 2)
        ),
        Row("Qwen3, 2/s for 20 s", f"qwen3-30b, batch 16: 2/s for 20 s, {_ARRIVING}", _QWEN3_PAIR),
    ),
    columns=(
        Column("first token p50, s: Ballast", "first_token_p50_s", 2, of=_OURS_OF),
        Column("llama-server", "first_token_p50_s", 2, of=_THEIRS_OF),
        Column("goodput per s: Ballast", "goodput_per_s", 2, of=_OURS_OF),
        Column("llama-server", "goodput_per_s", 2, of=_THEIRS_OF),
        Column("ITL p50, ms: Ballast", "itl_p50_ms", of=_OURS_OF),
        Column("llama-server", "itl_p50_ms", of=_THEIRS_OF),
    ),
    command="MODEL_DIR=FOLDER LLAMA_SERVER=PATH BATCHES=16 CASES=poisson:2:20 tools/gpu.sh arrivals",
    peer="llama-server b11434, with the command of the table above.",
)

MANY_ARRIVING_NEWER = Question(
    name="many-users-arriving-newer",
    title="Users who arrive at random times: more slots, newer commits",
    about=(
        "The load of [the comparison with "
        "llama-server](benchmarks.md#users-who-arrive-at-random-times-compared-with-llama-server), with newer "
        "commits. A run that lasts much longer than its window had more load than the server "
        "sustains. A larger cache leaves less GPU memory for experts."
    ),
    file="arrivals.jsonl",
    rows=tuple(
        Row(
            f"{label}, {slots} slots, {rate}/s for {seconds} s",
            f"{shape}, batch {slots}: {rate}/s for {seconds} s, {_ARRIVING}",
            _OURS_OF,
        )
        for label, shape, slots, rate, seconds in (
            (_R1_CUT, "r1:8", 16, 1, 30),
            (_R1_CUT, "r1:8", 16, 2, 30),
            (_R1_CUT, "r1:8", 64, 2, 30),
            ("Qwen3", "qwen3-30b", 16, 2, 30),
            ("Qwen3", "qwen3-30b", 16, 6, 30),
            ("Qwen3", "qwen3-30b", 128, 6, 12),
            ("Qwen3", "qwen3-30b", 256, 6, 30),
        )
    ),
    columns=(
        Column("arrived", "arrived"),
        Column("run, s", "wall_s"),
        Column("first token p50, s", "first_token_p50_s", 2),
        Column("p90, s", "first_token_p90_s", 2),
        Column("goodput per s of the window", "goodput_in_window_per_s", 2),
        Column("of the run", "goodput_per_s", 2),
        Column("ITL p50, ms", "itl_p50_ms"),
    ),
    command="MODEL_DIR=FOLDER BATCHES=16 CASES=poisson:2:20 tools/gpu.sh arrivals",
)

HTTP = Question(
    name="http",
    title="HTTP overhead",
    about=(
        "An engine that produces tokens without computing, so that only the server works; each stream has 1,000 tokens."
    ),
    file="http_overhead.jsonl",
    rows=(
        Row("1 stream", "1 streams of 1000 tokens"),
        Row("4 streams", "4 streams of 1000 tokens"),
        Row("16 streams", "16 streams of 1000 tokens"),
    ),
    columns=(
        Column("tok/s", "tokens_per_s"),
        Column("CPU per token, µs", "server_cpu_us_per_token"),
        Column("bytes per token", "bytes_per_token"),
    ),
    command="python benchmarks/serving/http_overhead.py",
)

CHAT_PAGE = Question(
    name="chat-page",
    title="The chat page while a long reply streams",
    about=(
        "Frames per second that Chromium draws while 5,000 tokens arrive at 250 per second, without a graphics card, "
        "on the machine that serves them. The screen requests 60."
    ),
    file="chat_page.jsonl",
    rows=tuple(
        Row(label, f"5000 tokens at 250/s, {label}") for label in ("prose, code and tables", "one block of code")
    ),
    columns=(
        Column("frames per second", "frames_per_s", digits=1, spread=True),
        Column("in the worst second", "worst_second_frames", spread=True),
        Column("longest pause, ms", "longest_gap_ms", spread=True),
    ),
    command="python benchmarks/serving/chat_page.py",
)

WAKE = Question(
    name="wake",
    title="Waking a service from zero",
    about=(
        "Time from a request to the first token of a service at zero, which KEDA's HTTP add-on wakes. The model has "
        "eight layers of V2-Lite's shape in Q4_K_M; its file of 3.3 GB is in the page cache. The control plane and "
        "KEDA share the 2 cores. Pods are processes here, without containers and images. Most of a later start is "
        "KEDA, the operator, the program's start and its measurement of steps. [Scale to "
        "zero](kubernetes/scale-to-zero.md) describes the setup."
    ),
    file="operator_wake.jsonl",
    rows=tuple(
        Row(name, "v2-lite-8.gguf: request to first token", {"kept_in": kind})
        for name, kind in (
            ("no packed weights", "nothing"),
            ("packed weights on a disk", "disk"),
            ("packed weights in a tmpfs", "tmpfs"),
        )
    ),
    columns=(
        Column("first start, s", "first_s", digits=1),
        Column("later starts, s", "later_s", digits=1, spread=True),
        Column("awake, s", "awake_s", digits=2),
    ),
    command="python benchmarks/operator/wake.py v2-lite-8.gguf\n"
    "python benchmarks/operator/wake.py v2-lite-8.gguf --disk DIR\n"
    "python benchmarks/operator/wake.py v2-lite-8.gguf --memory /dev/shm/packed",
)

OPERATOR = Question(
    name="operator",
    title="The operator under faults",
    about=(
        "Seconds from the end of a fault of the API server until the child objects of every service are as desired "
        "again. No pod was restarted in any case."
    ),
    file="operator_faults.jsonl",
    rows=tuple(
        Row(case, case)
        for case in (
            "stalled watches",
            "410 for watches",
            "409 for writes",
            "429 with Retry-After",
            "500 for everything",
            "401 for everything",
            "resets within bodies",
            "a write that is never answered",
            "API server restart",
            "permissions taken and given back",
        )
    ),
    columns=(
        Column("Seconds to converge", "seconds_to_converge", digits=1, charted=True),
        Column("restarts", "restarts"),
    ),
    command="python benchmarks/operator/faults.py",
    axis="seconds",
)

SPARSE_ATTENTION = Question(
    name="sparse-attention",
    title="Sparse attention, compared with dense attention",
    about=(
        "Attention of one token in one layer of DeepSeek V3.2's shape, on two cores with AVX-512: to all positions, or "
        "to the 2,048 that the indexer selects, including its scores and the selection. Projections are the same for "
        "both and are left out."
    ),
    file="sparse_attention.jsonl",
    rows=tuple(
        Row(f"{length:,} tokens", f"a token at the end of {length}", {"isa": "avx512"})
        for length in (4096, 32768, 131072)
    ),
    columns=(
        Column("dense, ms", "dense_seconds", digits=1, scale=1000),
        Column("sparse, ms", "sparse_seconds", digits=1, scale=1000),
        Column("scores and selection in it, ms", "index_seconds", digits=1, scale=1000),
        Column("times faster", "times_faster", digits=1),
        Column("scores, GFLOP/s", "index_gflops"),
    ),
    command="python benchmarks/kernels/sparse_attention.py",
)

CPU_CACHE = Question(
    name="cpu-cache",
    title="A CPU alone: KV cache in half precision",
    about="One token in one layer, CPU time with AVX-512: 32 heads that share 4, or DeepSeek's latents.",
    file="attention.jsonl",
    rows=tuple(
        Row(f"{label}, {length:,} tokens", f"{heads} heads, 1 x 1 tokens at the end of {length}", {"isa": "avx512"})
        for label, heads in (("heads", "32/4"), ("latents", "16"))
        for length in (512, 32768, 131072)
    ),
    columns=(
        Column("fp32, ms", "fp32_cpu_ms", digits=2),
        Column("fp16, ms", "fp16_cpu_ms", digits=2),
        Column("times faster", "ratio_of_best", digits=2),
    ),
    command="python benchmarks/kernels/attention.py --isa avx512 --threads 2",
)

SPARSE_ATTENTION_GPU = Question(
    name="sparse-attention-gpu",
    title="Sparse attention, compared with dense attention, on a GPU",
    about=(
        "Attention in one layer of DeepSeek V3.2's shape, with a cache in half precision: for tokens that are decoded "
        "together, each at the end of its own context, and for the last 1,024 tokens of a prompt. Dense attention uses "
        "Ballast's own kernels in the latent space. Sparse attention has three parts, measured separately: scores of "
        "all positions, selection of 2,048, and attention to these. Projections are left out."
    ),
    file="hybrid_sparse_attention.jsonl",
    rows=tuple(
        Row(f"{label}, {length:,}", f"{case} of {length}")
        for length in (32768, 131072)
        for label, case in (
            ("1 token", "1 tokens at the end"),
            ("16 tokens", "16 tokens at the end"),
            ("1,024 of a prompt", "the last 1024 tokens"),
        )
    ),
    columns=(
        Column("dense, µs", "dense_us"),
        Column("sparse, µs", "sparse_us"),
        Column("scores", "scores_us"),
        Column("selection", "choice_us"),
        Column("attention", "attention_us"),
        Column("times faster", "times_faster", digits=1),
    ),
    command="python benchmarks/hybrid/sparse_attention.py",
)

_HOST_MODELS = ((_R1_CUT, "r1-8"), ("Qwen3-30B", "qwen3-30b"), ("V2-Lite", "v2-lite"))

PROMPTS_LLAMA_CPP = Question(
    name="prompts-llama-cpp",
    title="Prompts, compared with llama.cpp",
    about=(
        "One prompt of random tokens, with all experts in host memory: one file and machine, two or three "
        "alternating runs; one with V2-Lite, on an H200."
    ),
    file="peers_llama_cpp.jsonl",
    rows=tuple(
        Row(f"{label}: {tokens:,} tokens", f"{model}.gguf, experts in host memory: prefill {tokens}")
        for label, model in _HOST_MODELS
        for tokens in (512, 4096, 32768)
    ),
    columns=_WITH_LLAMA_CPP,
    command="MODEL_DIR=FOLDER LLAMA_BIN=FOLDER PLACES=host BATCHES= tools/gpu.sh peers",
    peer=(
        "llama.cpp b11434, built with CUDA: `llama-batched-bench -ngl 99 -ncmoe 99 --load-mode none -fit off -fa auto "
        "-b 4096 -ub 4096 -t 16 -c 33024 -npp 512,4096,32768 -ntg 1 -npl 1`."
    ),
)

DECODE_LLAMA_CPP = Question(
    name="decode-llama-cpp",
    title="Decoding, compared with llama.cpp",
    about=(
        "Replies of 200 tokens after prompts of 64: three rounds with Qwen3, two with R1, one with V2-Lite. Ballast "
        "samples (temperature 0.6, top_p 0.95); llama-batched-bench does not."
    ),
    file="peers_llama_cpp.jsonl",
    rows=tuple(
        Row(f"{label}: {_streams(batch)}", f"{model}.gguf, experts in host memory: decode B={batch}, sampled")
        for label, model in _HOST_MODELS
        for batch in (1, 4, 16)
    ),
    columns=_WITH_LLAMA_CPP,
    command="MODEL_DIR=FOLDER LLAMA_BIN=FOLDER PLACES=host PREFILL= tools/gpu.sh peers",
    peer="llama.cpp b12032, with the options above, `-c 8192 -npp 64 -ntg 200 -npl 1,1,4,16`.",
)

HOLLOW_LLAMA_CPP = Question(
    name="hollow-llama-cpp",
    title="Hollow files, compared with llama.cpp",
    about=(
        "Most weights are zeros, except in the 18 layers of gpt-oss-120b: llama.cpp's CPU kernel for MXFP4 is slow "
        "with zeros. Experts cross PCIe for prompts; with 4,096 tokens the link is the limit: 61 GB in 1.1 s with "
        "gpt-oss-120b. Rows with a spread have two rounds, the others one. Those and "
        "gpt-oss-120b's are greedy, with 24 GiB; in the others, Ballast alone samples. With some experts in GPU "
        "memory, Ballast held 1,036 and llama.cpp 11 "
        "layers. Missed are the aims of 2 for gpt-oss's prompts, 1.6 for MiniMax-M2's, and 2.2 "
        "for 16 streams (Qwen3.5-35B, Coder-Next, R1): R1 reads host memory at full speed, the others at about three "
        "quarters."
    ),
    file="peers_llama_cpp.jsonl",
    rows=(
        *(
            Row(f"{label}: {named}", f"{model}, experts in host memory: {case}")
            for label, model, batches in (
                (_R1_CUT, "r1-8.gguf, hollow", (1, 4, 16)),
                ("Qwen3.5-35B", "qwen3.5-35b.gguf", (1, 4, 16)),
                ("Qwen3-Coder-Next", "qwen3-coder-next.gguf", ()),
            )
            for named, case in (
                *((f"prompt of {tokens:,}", f"prefill {tokens}") for tokens in (4096, 32768)),
                *((_streams(batch), f"decode B={batch}, sampled") for batch in batches),
            )
        ),
        Row("gpt-oss-120b: prompt of 4,096", "gpt-oss-120b.gguf, host: prefill 4096"),
        Row("gpt-oss-120b, some experts in GPU memory: the same", "gpt-oss-120b.gguf, GPU full: prefill 4096"),
        Row("gpt-oss-120b: prompt of 32,768", "gpt-oss-120b.gguf, host: prefill 32768"),
        Row("MiniMax-M2, 16 of 62 layers: prompt of 4,096", "minimax-m2-16.gguf, host: prefill 4096"),
        *(
            Row(f"{label}: {_streams(batch)}", f"{model}.gguf, host: decode B={batch}")
            for label, model in (
                ("gpt-oss-120b, 18 of 36 layers", "gpt-oss-120b-18"),
                ("MiniMax-M2, 16 of 62 layers", "minimax-m2-16"),
                ("Qwen3-Coder-Next", "coder-next"),
            )
            for batch in (1, 4, 16)
        ),
    ),
    columns=_WITH_LLAMA_CPP,
    command=(
        'MODEL_DIR=FOLDER LLAMA_BIN=FOLDER SHAPES="r1:8 qwen3.5-35b" PREFILL="4096 32768" ROUNDS=1 PLACES=host '
        "HOLLOW=1 tools/gpu.sh peers\n"
        'MODEL_DIR=FOLDER LLAMA_BIN=FOLDER SHAPES=qwen3-coder-next PREFILL="4096 32768" BATCHES= ROUNDS=1 '
        "PLACES=host HOLLOW=1 tools/gpu.sh peers\n"
        "python tools/synthetic_model.py minimax-m2-16.gguf --shape minimax-m2 --layers 16 --hollow --vocabulary\n"
        "python benchmarks/peers/llama_cpp.py minimax-m2-16.gguf LLAMA_BIN --rounds 2 --case host --prefill 4096 "
        "--steps 100 --device cuda:0 --vram_limit 24GiB --kv_host_bytes 0 --gpu_experts 0 --only greedy\n"
        "# the same with gpt-oss-120b.gguf --shape gpt-oss-120b (--prefill 4096 32768 --batch), the same with "
        "--case 'GPU full', without --gpu_experts, with --peer_options '-ngl 99 -ncmoe 25 --load-mode none -fit off "
        "-fa auto -b 4096 -ub 4096', and with gpt-oss-120b-18.gguf --layers 18 without --hollow (--prefill)\n"
        "python tools/synthetic_model.py coder-next.gguf --shape qwen3-coder-next --hollow --vocabulary\n"
        "python benchmarks/peers/llama_cpp.py coder-next.gguf LLAMA_BIN --rounds 2 --case host --prefill --steps 100 "
        "--device cuda:0 --vram_limit 24GiB --kv_host_bytes 0 --gpu_experts 0 --only greedy"
    ),
    peer=(
        "llama.cpp b12032: `llama-batched-bench -ngl 99 -ncmoe 99 --load-mode none -fit off -fa auto -b 4096 -ub 4096 "
        "-t 16`. The records hold both commands of each row."
    ),
)

EXPERT_CACHE_LLAMA_CPP = Question(
    name="expert-cache-llama-cpp",
    title="Experts that follow use, compared with llama.cpp",
    about=(
        "Eight layers of R1's shape, mostly zeros, whose routers prefer some experts (synthetic, `--skew`). With "
        "0.03, half of a layer's experts get about 80 % of the choices if activations are random. With 0.2, they get "
        "all. Both engines have 24 GiB and decode greedily, in two rounds, with 0.2 for 300 tokens. llama.cpp computes "
        "512 tokens at a time and keeps 18 GiB of experts. Ballast reserves memory for steps of 16,384 tokens and "
        "keeps 8.6 GiB, 27 % of the experts. llama.cpp is faster with one stream."
    ),
    file="peers_llama_cpp.jsonl",
    rows=tuple(
        Row(f"skew of {skew}: {_streams(batch)}", f"r1-8-skew.gguf, skew of {skew}: decode B={batch}")
        for skew in ("0.03", "0.2")
        for batch in (1, 4)
    ),
    columns=_WITH_LLAMA_CPP,
    command=(
        "python tools/synthetic_model.py r1-8-skew.gguf --shape r1 --layers 8 --hollow --vocabulary --skew 0.03\n"
        "python benchmarks/peers/llama_cpp.py r1-8-skew.gguf LLAMA_BIN --rounds 2 --case 'skew of 0.03' --prefill "
        "--batch 1 4 --steps 400 --device cuda:0 --vram_limit 24GiB --gpu_experts_update on --kv_host_bytes 0 "
        "--only greedy --peer_options '-ngl 99 -ncmoe 99 --moe-cache-mib 18432 --load-mode none -fit off -fa auto "
        "-b 512 -ub 512'"
    ),
    peer="llama.cpp b12032.",
)

CPU_LLAMA_CPP = Question(
    name="cpu-llama-cpp",
    title="A CPU alone, compared with llama.cpp",
    about=(
        "8 layers of DeepSeek-V2-Lite's and 12 of Qwen3.5-35B-A3B's and gpt-oss-20b's shapes, random weights, two "
        "cores, two or three alternating rounds. Ballast samples. A CPU without AVX-512 has not been measured."
    ),
    file="peers_llama_cpp.jsonl",
    rows=tuple(
        Row(f"{label}: {named}", f"{file}.gguf, 2 CPU cores{isa}: {case}")
        for label, file, isa, batches in (
            ("V2-Lite", "v2-lite-8", "", (1, 4, 16)),
            ("V2-Lite, AVX2", "v2-lite-8", ", AVX2", (1, 4, 16)),
            ("Qwen3.5-35B, EPYC", "q35-12", "", (1, 4, 16)),
            ("Qwen3.5-35B, Xeon", "q35-12", ", Intel", (1, 4, 16)),
            ("gpt-oss-20b", "oss20-12", "", (1, 16)),
        )
        for named, case in _prompt_and_streams(*batches)
        for case in (case if case.startswith("prefill") else f"{case}, sampled",)
    ),
    columns=_WITH_LLAMA_CPP,
    command=(
        "python tools/synthetic_model.py v2-lite-8.gguf --layers 8\n"
        "python tools/synthetic_model.py q35-12.gguf --shape qwen3.5-35b --layers 12\n"
        "python tools/synthetic_model.py oss20-12.gguf --shape gpt-oss-20b --layers 12\n"
        "python benchmarks/peers/llama_cpp.py v2-lite-8.gguf LLAMA_BUILD_BIN --case '2 CPU cores' --prefill 512 "
        '--steps 48 --device cpu --peer_options "--load-mode none -fa auto -b 2048 -ub 512"\n'
        "# the same with q35-12.gguf, with oss20-12.gguf, --rounds 2 and --batch 1 16, and with BALLAST_CPU_ISA=avx2, "
        "v2-lite-8.gguf, an AVX2 build and --case '2 CPU cores, AVX2'"
    ),
    peer=(
        "llama.cpp b12032, built for this CPU (GGML_NATIVE), or with GGML_AVX2 alone and BALLAST_CPU_ISA=avx2: "
        "`llama-batched-bench --load-mode none -fa auto -b 2048 -ub 512 -t 2`. Its `src/models/deepseek2.cpp` knows "
        "V2-Lite by its number of layers; 8 was added."
    ),
)

GREEDY_TEXTS = Question(
    name="greedy-texts",
    title="Texts of small random models, compared with llama.cpp's",
    about=(
        "Equal greedy texts. With float32 weights, all architectures give equal texts. With Q8_0, Ballast rounds "
        "activations to 16 bits, while llama.cpp b12032 has the same weights in float32. Rounding can change a choice "
        "between nearly equal experts or positions. Models whose tokens take them all give equal texts. Not shown are "
        "differences by near ties alone (`quantised_near_ties`): two texts of MiniMax-M2, one each of Qwen3 and V2. "
        "Where llama.cpp computes something else than the authors, shapes or keys are changed (`adjusted`): gpt-oss, "
        "Kimi K2, Laguna, V2, V2-Lite, Mistral Small 4."
    ),
    file="greedy_text.jsonl",
    rows=tuple(
        Row(label, arch)
        for label, arch in (
            ("GLM-5", "glm5"),
            ("DeepSeek-V2-Lite", "v2lite"),
            ("DeepSeek-V3", "v3"),
            ("DeepSeek-V3.2", "v32"),
            ("MiMo-V2", "mimov2"),
            ("GLM-4.5", "glm45"),
            ("Qwen3.8-Flash-Next", "qwen38flashnext"),
        )
    ),
    columns=(
        Column("float32", "equal"),
        Column("Q8_0", "quantised_equal"),
        Column("Q8_0 without choices", "unchosen_equal"),
    ),
    command="python benchmarks/peers/greedy_text.py LLAMA_BUILD_BIN",
)

AGENTS = Question(
    name="agents",
    title="Agents' conversations with Qwen3-Coder-Next's shape",
    about=(
        "20 turns with tool results and questions grow to 40,000 tokens, so that each adds about 2,000. Turns 2 to 20 "
        "continue from snapshots of the recurrent state, inside 24 GiB of GPU memory. The same prompts were also sent "
        "with another first word, which no cache can serve. For each turn, about 40 GB of experts cross PCIe once. "
        "Another request decodes meanwhile. With a cache for one of four conversations, the others wait and are then "
        "fetched from host memory. The aim was a share of 0.15 for one and 0.2 for four conversations, and 5 % more "
        "for the other request, which shares the bandwidth of host memory with the copies; none of these is reached."
    ),
    file="agents.jsonl",
    rows=tuple(
        Row(label, f"qwen3-coder-next{cache}, 20 turns to 40000 tokens")
        for label, cache in (
            ("1 conversation", ": 1 at once"),
            ("4 conversations", ", cache of 200000: 4 at once"),
            ("4 conversations, cache for one", ": 4 at once"),
        )
    ),
    columns=(
        Column("first token p50, s", "first_token_p50_s", digits=2),
        Column("without the cache, s", "again_p50_s", digits=2),
        Column("share", "share_of_again", digits=2),
        Column("prompt tokens from the cache, %", "cached_share", scale=100),
        Column("ITL of the other request, ms", "others_itl_p50_ms", digits=1),
        Column("alone, ms", "others_alone_itl_p50_ms", digits=1),
    ),
    command="MODEL_DIR=FOLDER SERVERS=ballast tools/gpu.sh agent\n"
    "MODEL_DIR=FOLDER SERVERS=ballast CONVERSATIONS=4 CACHE=200000 tools/gpu.sh agent",
)

STARTS = Question(
    name="starts",
    title="First and later starts of a server",
    about=(
        "Seconds until the server is ready, and its phases. Before the first start, nothing was compiled or measured; "
        "a later one finds both in the kernel folder. The file is in the page cache. The aims of 25 s and 5 s after "
        "the weights are missed."
    ),
    file="starts.jsonl",
    rows=tuple(Row(f"{_R1_CUT}: {which}", f"r1:8: {which}") for which in ("first start", "later start")),
    columns=(
        Column("ready, s", "ready_s"),
        Column("weights, s", "weights_s"),
        Column("kernels, s", "kernels_s"),
        Column("measured, s", "measured_s"),
        Column("graphs, s", "graphs_s", digits=1),
    ),
    command="MODEL_DIR=FOLDER SHAPES=r1:8 LATERS=1 tools/gpu.sh starts",
)

TWO_GPUS = Question(
    name="two-gpus",
    title="Two GPUs",
    about=(
        "R1's whole shape with experts in Q2_K, weights of zeros, tok/s. Two GPUs with all their memory hold every "
        "expert. Measured before such GPUs computed different parts of a prompt at the same time."
    ),
    file="engine_whole_model.jsonl",
    rows=(
        *(Row(f"prompt of {tokens:,}", f"whole-r1.gguf, *: prefill {tokens}") for tokens in (4096, 32768)),
        *(Row(streams, f"whole-r1.gguf, *: decode B={batch}") for batch, streams in _STREAMS),
    ),
    columns=tuple(
        Column(title, "tokens_per_s", digits=1, case=case)
        for title, case in (
            ("one, 24 GiB", "one GPU, 24 GiB"),
            ("two, 24 GiB each", "two GPUs, 24 GiB each"),
            ("one, all memory", "one GPU"),
            ("two, all memory", "two GPUs"),
        )
    ),
    command="PACKED=/mnt/packed ROUNDS=2 tools/gpu.sh build pair",
)

TWO_GPUS_LLAMA_CPP = Question(
    name="two-gpus-llama-cpp",
    title="Two GPUs, compared with llama.cpp",
    about=(
        "Qwen3-235B-A22B's shape in Q4_K, all of it in the memory of two GPUs; weights of zeros, one round, greedy. "
        "Parts of prompts had 2,048 tokens. Later, with 4,096 and other changes, they took 0.86 to 0.89 of this time."
    ),
    file="peers_llama_cpp.jsonl",
    rows=tuple(
        Row(named, f"qwen3-235b.gguf, two GPUs: {case}")
        for named, case in (
            *((f"prompt of {tokens:,}", f"prefill {tokens}") for tokens in (4096, 32768)),
            *((_streams(batch), f"decode B={batch}") for batch in (1, 16)),
        )
    ),
    columns=_WITH_LLAMA_CPP,
    command=(
        "python tools/synthetic_model.py qwen3-235b.gguf --shape qwen3-235b --hollow\n"
        "python benchmarks/peers/llama_cpp.py qwen3-235b.gguf LLAMA_BIN --rounds 1 --case 'two GPUs' --prefill 4096 "
        "32768 --batch 1 16 --device cuda:0,cuda:1 --only greedy "
        "--peer_options '-ngl 99 --load-mode none -fit off -fa auto -b 4096 -ub 2048'"
    ),
    peer=(
        "llama.cpp b12032 with steps of 2,048 tokens, its fastest: llama-bench read 4,096 tokens with 2,624 tok/s; "
        "with steps of 512, 1,024 and 4,096 tokens, 1,633, 2,321 and 2,349."
    ),
)

WHOLE_SHAPES = Question(
    name="whole-shapes",
    title="DeepSeek V4-Flash's and GLM-5.3-Flash's shapes",
    about=(
        "Experts in MXFP4, or in Q4_K and Q6_K (187 GB); weights of zeros, 24 GiB of GPU memory, one run. "
        "[FreeToken](https://github.com/FlashML-org/FreeToken) publishes 24.5 to 26.9 tok/s for one stream of V4-Flash "
        "on an RTX 5090 with 8 channels of DDR4, "
        "[glm-flash-lite](https://github.com/sybil-solutions/glm-flash-lite) 28.2 for GLM-5.3-Flash in 125 GB on an "
        "RTX 3090 with the same memory, with prompts of 32,768 at 951."
    ),
    file="engine_whole_model.jsonl",
    rows=(
        *(Row(f"prompt of {tokens:,}", f"*.gguf, one GPU, 24 GiB: prefill {tokens}") for tokens in (4096, 32768)),
        *(Row(streams, f"*.gguf, one GPU, 24 GiB: decode B={batch}") for batch, streams in _STREAMS),
    ),
    columns=tuple(
        Column(f"{title}, tok/s", "tokens_per_s", digits=1, case=case)
        for title, case in (("V4-Flash", "v4-flash"), ("GLM-5.3-Flash", "glm-5.3-flash"))
    ),
    command=(
        "python tools/synthetic_model.py v4-flash.gguf --shape v4-flash --hollow\n"
        "python benchmarks/engine/whole_model.py v4-flash.gguf --case 'one GPU, 24 GiB' --once --only greedy "
        "--batch 1 4 16 --prefill 4096 32768 --steps 48 --device cuda:0 --vram_limit 24GiB --max_batch_size 16 "
        "--cache_lens 34816\n"
        "# the same with --shape glm-5.3-flash"
    ),
)

FP8_CACHE = Question(
    name="fp8-cache",
    title="8-bit KV cache",
    about="Attention of one layer, µs, with Ballast's kernels: R1's latents (128 heads), and Qwen3-30B's heads (32).",
    file="hybrid_attention.jsonl",
    rows=tuple(
        Row(f"{label}: {named}", f"{case}, {heads}*, ours")
        for label, heads in (("R1", "128 heads"), ("Qwen3", "32 heads in 4 groups"))
        for named, case in (
            *(
                (f"{_streams(batch)}, {context:,}", f"decode B={batch} context {context}")
                for batch in (1, 4)
                for context in (2048, 32768, 131072)[batch > 1 :]
            ),
            ("prompt, 4,096", "prompt of 4096"),
        )
    ),
    columns=(Column("16 bits", "us_per_layer"), Column("8 bits", "us_per_layer", case=", 8 bits")),
    command="python benchmarks/hybrid/attention.py --heads 128 --groups 32/4 --batch 1 4 --contexts 2048 32768 131072",
)

_FOLLOWING = (
    "--device cuda:0 --vram_limit 24GiB --gpu_experts 2048 --gpu_experts_update on --cache_lens 8192 "
    "--max_batch_size 4 --cpu_threads 15 --chunk_size 512 --prefill_chunk_size 512 --stream_from_tokens 0"
)

FOLLOWING = Question(
    name="following",
    title="Experts that follow use",
    about=(
        "Qwen3-30B's shape with a third of the experts in GPU memory and tokens that prefer some experts, which change "
        "halfway; the profile is from before. Two servers ran at the same time with 15 threads each, one of them with "
        "`--gpu_experts_update on`."
    ),
    file="hybrid_expert_use.jsonl",
    rows=(
        Row("off: whole layers", "qwen3-30b.gguf: static, *", {"hits": 0.0}),
        Row("on, none moved yet", "qwen3-30b.gguf: static, *", {"options": _FOLLOWING}),
        Row("on, adapting", "qwen3-30b.gguf: adapting"),
        Row("on, profile", "qwen3-30b.gguf: profile, *"),
        Row("on, following", "qwen3-30b.gguf: following, *"),
        Row("off, uniform use", "qwen3-30b.gguf: uniform, staying, *", {"hits": 0.0}),
        Row("on, uniform use", "qwen3-30b.gguf: uniform, following, *"),
    ),
    columns=(
        *(
            Column(f"{_streams(batch)}, tok/s", "tokens_per_s", of={"batch": batch}, case=f"B={batch}")
            for batch in (1, 4)
        ),
        Column("slowest step / median", "most_over_median", digits=2, of={"batch": 4}, case="B=4"),
    ),
    command=f"python benchmarks/hybrid/expert_use.py MODEL.gguf --steps 48 --adapt 300 {_FOLLOWING}",
)

COMPARED = (
    MANY_AT_ONCE,
    MANY_ARRIVING,
    PROMPTS_LLAMA_CPP,
    DECODE_LLAMA_CPP,
    CPU_ALONE,
    ALL_ON_GPU_PAIR,
)

MEASURED = (
    HOLLOW_LLAMA_CPP,
    EXPERT_CACHE_LLAMA_CPP,
    AGENTS,
    PROMPTS_BESIDE,
    WHOLE_R1,
    READ_SPEED,
    WHOLE_R1_Q4_K,
    TWO_GPUS,
    TWO_GPUS_LLAMA_CPP,
    WHOLE_SHAPES,
    FP8_CACHE,
    FOLLOWING,
    STARTS,
    WHOLE_R1_START,
    CPU_TYPES,
    CPU_LLAMA_CPP,
    GREEDY_TEXTS,
    KT_KERNEL,
    RESIDENT,
    EXPERT_TYPES,
    CPU_CACHE,
    SPARSE_ATTENTION,
    SPARSE_ATTENTION_GPU,
    CONVERSATIONS,
    OVERLOAD,
    MANY_AT_ONCE_NEWER,
    MANY_ARRIVING_NEWER,
    MANY_ON_A_CPU,
    HTTP,
    CHAT_PAGE,
    WAKE,
    OPERATOR,
)

PAGES = (
    Page(
        Path("docs/benchmarks.md"),
        """# Benchmarks

Ballast compared with other servers on the same machine. [Measurements](measurements.md) has the other tables, such as a
[whole R1](measurements.md#the-whole-of-deepseek-r1-in-q4_k-inside-24-gib-of-gpu-memory).

- Every figure comes from a record in `benchmarks/results` with machine, commit and time: of several
  measurements the median, with the lowest and highest in brackets. A `+` after a commit means uncommitted changes.
- The models have real shapes and types, and random weights: their text is noise.
- The machines are shared and virtual. Their memory bandwidth changes by a third within minutes, so compare only within
  a table.""",
        COMPARED,
    ),
    Page(
        Path("docs/measurements.md"),
        """# Measurements

The tables that are not in [Benchmarks](benchmarks.md), which explains how to read the figures.""",
        MEASURED,
    ),
)

_SECONDS = Column("s", "first_token_slowest_s", 2, spread=True)

_TOKENS = Column("tok/s", "tokens_per_s")
_OUR_TOKENS = Column("tok/s", "ours_tokens_per_s", spread=True)
_THEIR_TOKENS = Column("tok/s", "theirs_tokens_per_s", spread=True)
_CUT_ON_H100 = f"{_R1_CUT}, H100"
_V2_LITE_ON_A_CPU = "V2-Lite on 2 CPU cores without a GPU"

HIGHLIGHTS = (
    Highlight("Replies: whole R1, H100 limited to 24 GiB, 64 cores, 1 request", WHOLE_R1_Q4_K, 0, _TOKENS),
    Highlight("Replies: the same, 16 requests in total", WHOLE_R1_Q4_K, 2, _TOKENS),
    *(
        Highlight(f"Replies: {label}", question, row, _OUR_TOKENS, _THEIR_TOKENS, peer)
        for label, question, row, peer in (
            ("Qwen3-30B, experts in host memory, H200, 1 request", DECODE_LLAMA_CPP, 3, "llama.cpp"),
            ("the same, 16 requests in total", DECODE_LLAMA_CPP, 5, "llama.cpp"),
            (f"{_V2_LITE_ON_A_CPU}, 1 request", CPU_ALONE, 1, "ik_llama.cpp"),
            ("the same, 16 requests in total", CPU_ALONE, 4, "ik_llama.cpp"),
            ("V2-Lite, all experts in GPU memory, H200, 4 requests", ALL_ON_GPU_PAIR, 4, "llama.cpp"),
            ("Qwen3-235B in the memory of two H200, 1 request", TWO_GPUS_LLAMA_CPP, 2, "llama.cpp"),
            ("the same, 16 requests in total", TWO_GPUS_LLAMA_CPP, 3, "llama.cpp"),
        )
    ),
    Highlight(
        "Prompt of 4,096 tokens: whole R1 in Q2_K, H200 limited to 24 GiB, 32 cores",
        TWO_GPUS,
        0,
        replace(_TOKENS, case="one GPU, 24 GiB"),
    ),
    Highlight(
        "Prompt of 4,096 tokens: the same, two H200",
        TWO_GPUS,
        0,
        replace(_TOKENS, case="two GPUs, 24 GiB each"),
    ),
    Highlight(f"Prompt of 4,096 tokens: {_CUT_ON_H100}", PROMPTS_LLAMA_CPP, 1, _OUR_TOKENS, _THEIR_TOKENS, "llama.cpp"),
    Highlight("Prompt of 512 tokens: Qwen3-30B, H100", PROMPTS_LLAMA_CPP, 3, _OUR_TOKENS, _THEIR_TOKENS, "llama.cpp"),
    *(
        Highlight(
            f"Wait for a first token, the slowest of {label}",
            MANY_AT_ONCE,
            row,
            replace(_SECONDS, of=_OURS_OF),
            replace(_SECONDS, of=_THEIRS_OF),
            peer,
        )
        for label, row, peer in (
            (f"8 users with 64 tokens: {_CUT_ON_H100}", 1, "llama-server"),
            ("16 users with 200 tokens: the same, H200", 4, "llama-batched-bench"),
        )
    ),
    Highlight(
        "Replies that start within 2 s, when 2 requests per second arrive: Qwen3-30B, H100",
        MANY_ARRIVING,
        2,
        Column("per s", "goodput_per_s", 2, of=_OURS_OF),
        Column("per s", "goodput_per_s", 2, of=_THEIRS_OF),
    ),
)
