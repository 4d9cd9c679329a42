"""CPU kernels over GGUF weights: the plain reference over the file's blocks, and fast kernels over blocks that were
packed for an instruction set.

Float arrays are float32, C-contiguous; those of a cache may be float16. Every row of every output is computed by the
same sequence of float operations for any number of rows and threads, so results do not depend on the rest of the batch.
Shapes: T tokens, D hidden, H heads. All calls release the GIL; wrong shapes and types raise ValueError naming the
argument. `out` must not share memory with an input unless a function documents that it may.
"""

from collections.abc import Sequence
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from . import _F32 as F32
from . import _I32 as I32
from . import PybindObject, numa
from . import _Plane as Plane

class ThreadPool(PybindObject):
    @overload
    def __init__(self, num_threads: int) -> None:
        """num_threads (1…1024) includes the calling thread. Waiting threads spin for 100 µs, then sleep. Several Python
        threads may share a pool: their calls run one after another."""
    @overload
    def __init__(self, placement: numa.Placement) -> None:
        """One thread per entry of the placement, pinned there if the system permits it."""
    @property
    def num_threads(self) -> int: ...
    @property
    def num_nodes(self) -> int: ...
    @property
    def pin_refusal(self) -> str:
        """The reason why the first unpinned thread could not be pinned; empty if all threads are pinned."""
    def adopt_caller(self) -> str:
        """Name and permanently pin the calling thread as the pool's first thread. Only for a thread that makes all
        calls and starts no other threads. Returns the reason if the thread could not be pinned, as pin_refusal does."""
    def start_recording(self) -> None:
        """Record the times of every loop that is shared with other threads, until stop_recording."""
    def stop_recording(self) -> list[tuple[float, float, float, float]]:
        """Times of each loop in seconds of time.monotonic(): its begin, when the first and the last thread other than
        the caller joined (0.0 if none did), and its end."""

class KeepAwake(PybindObject):
    """A context in which the pool's threads stay awake between loops, for up to 2 ms at a time instead of 100 µs;
    sleeping threads are woken at its start."""

    def __init__(self, pool: ThreadPool) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(self, *error: object) -> None: ...

class Matrix(PybindObject):
    """A row-major matrix in one of GGUF's types: used in place (the buffer is kept alive, never copied), or packed."""

    def __init__(
        self, data: NDArray[Any], ggml_type: int, rows: int, cols: int, scales: Sequence[float] | F32 = ()
    ) -> None:
        """`data`: contiguous bytes. Products with the rows are multiplied by `scales`: none, one number, or for experts
        one number per equal part of the rows. Weights that are read back do not include the scales. Raises ValueError
        if the type is unknown, cols is not a multiple of the type's block, the byte count does not match, or the number
        of scales does not divide the rows."""
    @property
    def ggml_type(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def cols(self) -> int: ...
    @property
    def scales(self) -> F32:
        """Factors of products, as passed to the constructor; a copy."""
    @property
    def nbytes(self) -> int:
        """Size of the blocks in GGUF's format."""
    @property
    def packed_nbytes(self) -> int:
        """0 if the matrix is used in place."""
    @property
    def panels(self) -> NDArray[np.uint8]:
        """The bytes of a packed matrix [heads, panels, bytes per panel], in the layout of csrc/cpu/panel_layout.h,
        which is the same for all instruction sets; floats if it was packed transposed. A read-only view. Raises
        ValueError for a matrix that is not packed."""
    @property
    def isa(self) -> str:
        """The instruction set whose kernels multiply it; "reference" if the matrix is used in place."""
    @property
    def memory(self) -> list[numa.Range]:
        """The memory that contains its weights."""

def measure_read_speed(pool: ThreadPool, num_bytes: int) -> float:
    """The rate, in bytes per second, at which the pool's threads read memory: the best of a few passes over num_bytes,
    which should be much larger than the caches."""

class FastIsa(PybindObject):
    """An instruction set with its own kernels, as listed in csrc/cpu/isa_list.h."""

    @property
    def name(self) -> str: ...
    @property
    def cpu_flags(self) -> list[str]:
        """The required CPU features, named as in /proc/cpuinfo."""
    @property
    def thread_flops(self) -> float:
        """Approximate operations per second of one thread, for a few hundred tokens."""

def fast_isas() -> list[FastIsa]:
    """The instruction sets for which this build has packed kernels, best first, whether or not this machine supports
    them. Empty if it was built for an architecture other than x86-64."""

def usable_isas() -> list[str]:
    """The instruction sets that this machine and its system support, best first; the last is "reference"."""

def pack(
    pool: ThreadPool,
    matrix: Matrix,
    isa: str,
    *,
    num_heads: int = 1,
    head_stride: int = 0,
    row_offset: int = 0,
    num_rows: int | None = None,
    transposed: bool = False,
    activation_bytes: int | None,
    file: PanelFile | None = None,
) -> Matrix:
    """The matrix repacked for `isa`, on all threads of the pool; the original's buffer is not needed afterwards. For
    "reference" the matrix itself. Heads as in head_linear (or, transposed, as in head_linear_transposed); the result
    contains only these heads. Use one head of all rows for linear. If the weights are quantised, products round
    activations to `activation_bytes`, one or two, with one scale for up to 256 activations; None: the default of the
    format. Raises ValueError if isa is unusable, the matrix is already packed, heads overlap or exceed the matrix, or
    activation_bytes is not 1, 2 or None. `file` stores the packed_nbytes bytes of the panels, or provides them if it is
    already filled; None: they are not stored. Raises RuntimeError if the file is damaged or cannot be read, or if there
    is no space for it."""

class PanelFile(PybindObject):
    """A file that stores the panels of one matrix beyond the lifetime of the process."""

    def __init__(self, file: int, *, mapped: bool, checksum: int | None) -> None:
        """`file`: a descriptor of a file of panel_file_nbytes bytes, needed until the panels exist. `mapped`: the file
        is in memory and contains the panels themselves. `checksum`: of a filled file; None: the file is empty and is
        filled by packing if mapped, otherwise by the caller with `memory`."""
    @property
    def checksum(self) -> int: ...
    @property
    def memory(self) -> NDArray[np.uint8] | None:
        """The panels' whole pages, a read-only view; None before the panels exist."""

def panel_file_nbytes(num_bytes: int, unit: int) -> int:
    """The length of a file for panels of num_bytes: a multiple of `unit`, the allocation unit of its memory."""

def checksum(data: NDArray[np.uint8]) -> int:
    """A 64-bit sum that detects damage, not forgery, at memory read speed. Raises ValueError unless 8 divides the
    length and the address."""

PANEL_LAYOUT_VERSION: int
"""Version of the memory layout of panels."""

def packed_nbytes(ggml_type: int, *, num_heads: int = 1, num_rows: int, cols: int, transposed: bool = False) -> int:
    """Size in bytes of `num_heads` heads of [num_rows, cols] after `pack`, for any instruction set except "reference".
    Raises ValueError for negative sizes, or more than 2⁵⁶ weights."""

def experts_packed_nbytes(
    types: tuple[int, int, int], *, num_experts: int, hidden: int, width: int, threads_per_node: Sequence[int]
) -> tuple[int, int, int]:
    """Sizes in bytes of gate, up and down of these types after `Experts.packed`, on all nodes together."""

def unpack(matrix: Matrix) -> F32:
    """A packed matrix's weights, exactly as its type defines them, [heads, rows, cols]."""

class Grid(PybindObject):
    """The grid points that codes of a format index, each of eight or four weights."""

    @property
    def points(self) -> NDArray[np.int8]:
        """[points, weights per point]: multiples of the scale, 2 ** scale_log2 times too large. For grids with signs
        they are magnitudes; for grids without signs the kernel shifts each by one to either side. A copy."""
    @property
    def index_bits(self) -> int:
        """Bits per index of a grid point."""
    @property
    def sign_bits(self) -> int:
        """Sign bits per eight weights: 8; 7, if the eighth one follows from an even number of signs; or 0."""
    @property
    def high_bytes(self) -> int:
        """Bytes per 32 weights for the index bits above the lowest eight."""
    @property
    def scale_log2(self) -> int: ...

class QuantLayout(PybindObject):
    """Layout of a quantised format in packed memory; see csrc/cpu/panel_layout.h. A weight is scale *
    (code - offset), with a minimum added (flat) or subtracted (others), or scale * table[code]."""

    @property
    def bits(self) -> int:
        """Bits per code."""
    @property
    def subs_per_group(self) -> int:
        """Scales in a group of 32 columns."""
    @property
    def offset(self) -> int: ...
    @property
    def scales(
        self,
    ) -> Literal["flat", "powers", "e4m3", "nested", "nibbles", "block", "odd nibbles", "odd in codes"]:
        """flat: one half-precision scale per group; powers: one power of two per group; e4m3: one 7-bit float per
        sub-block, twice too large; nested: one half-precision scale per eight groups, times one byte per sub-block;
        nibbles: scale and minimum in the two halves of that byte; block: only the scale per eight groups; odd: that
        scale times one odd number per sub-block, stored in nibbles or among codes."""
    @property
    def has_minimum(self) -> bool: ...
    @property
    def table(self) -> tuple[int, ...] | None:
        """The value of each code; None if codes are the numbers themselves."""
    @property
    def has_trits(self) -> bool:
        """Whether five codes share a byte."""
    @property
    def grid(self) -> Grid | None:
        """The grid that codes index, if any."""
    @property
    def group_bytes(self) -> int:
        """Bytes of the codes of 32 columns of 16 rows."""
    @property
    def sums_whole_blocks(self) -> bool:
        """Whether products of eight groups can be summed as integers before they are scaled. AMX does so, and then sums
        in its own order."""
    @property
    def scale_stride(self) -> int:
        """Bytes of the scales of one group (flat, powers) or of eight groups."""

class Format(PybindObject):
    """One of GGUF's types, as listed in csrc/cpu/format_list.h."""

    @property
    def name(self) -> str:
        """The name in GGUF."""
    @property
    def ggml_type(self) -> int: ...
    @property
    def block_weights(self) -> int: ...
    @property
    def block_bytes(self) -> int: ...
    @property
    def layout(self) -> QuantLayout | None:
        """None for floats."""
    @property
    def activation_bytes(self) -> int | None:
        """Bytes to which activations are rounded by default for this format; None for floats, whose activations are not
        rounded."""

def formats() -> list[Format]:
    """The supported matrix formats, ordered by GGUF's type number."""

def dequantize(matrix: Matrix, row_begin: int, row_end: int) -> F32:
    """Rows row_begin…row_end of a matrix seen in place as float32 [row_end - row_begin, cols]. IndexError when
    outside the matrix."""

def embed(matrix: Matrix, ids: I32, out: F32) -> None:
    """out[t] = row ids[t]. IndexError when an id is outside the matrix."""

def linear(pool: ThreadPool, x: F32, weight: Matrix, out: F32) -> None:
    """out [T, rows] = x [T, cols] · weightᵀ."""

def head_linear(pool: ThreadPool, x: F32, weight: Matrix, head_stride: int, row_offset: int, out: F32) -> None:
    """Per head: out [T, H, N] with out[t, h] = W_h x[t, h], x [T, H, cols];
    W_h = weight rows h * head_stride + row_offset … + N."""

def head_linear_transposed(
    pool: ThreadPool, x: F32, weight: Matrix, head_stride: int, row_offset: int, out: F32
) -> None:
    """Per head: out [T, H, cols] with out[t, h] = W_hᵀ x[t, h], x [T, H, N]; W_h as in head_linear."""

def rms_norm(x: F32, weight: F32, eps: float, out: F32) -> None:
    """x, out [T, D]; weight [D]. out may be x."""

def rope_interleaved(x: F32, cos: F32, sin: F32) -> None:
    """Rotate pairs (2i, 2i+1) in place. x [T, H, R]; cos, sin [T, R / 2]."""

def rope_half_split(x: F32, cos: F32, sin: F32) -> None:
    """Rotate pairs (i, i + R / 2) of the first R entries of each head in place. x [T, H, width]; cos, sin
    [T, R / 2]."""

def gqa_attention(
    pool: ThreadPool,
    query: F32,
    keys: Plane,
    values: Plane,
    block_tokens: int,
    query_indptr: I32,
    positions: I32,
    kv_indptr: I32,
    kv_indices: I32,
    scale: float,
    out: F32,
    *,
    isa: str,
    window: int = 0,
    sinks: F32 | None = None,
) -> None:
    """Causal attention over paged keys and values; equal groups of query heads share the key and value heads.

    query [T, H, K]; keys [slots, kv heads, K]; values [slots, kv heads, V]; out [T, H, V]. The tables are those of
    mla_attention. A token attends to the last `window` positions up to its own; 0: to all. sinks [H]: the score of one
    additional position of each head, whose value is 0. Raises ValueError if the tables address memory outside the
    cache, or if the number of key and value heads does not divide the number of query heads.
    """

def mla_attention(
    pool: ThreadPool,
    query: F32,
    kv_cache: Plane,
    block_tokens: int,
    query_indptr: I32,
    positions: I32,
    kv_indptr: I32,
    kv_indices: I32,
    value_dim: int,
    scale: float,
    out: F32,
    *,
    isa: str,
    chosen: I32 | None = None,
    num_chosen: I32 | None = None,
) -> None:
    """Causal attention over the paged latent cache, in its absorbed form.

    query [T, H, L] with L = kv_lora_rank + rope; kv_cache [slots, L]; the value is the first `value_dim` (kv_lora_rank)
    entries of a cache row; out [T, H, value_dim]. Token t of request r sees positions 0…positions[t] through r's blocks
    kv_indices[kv_indptr[r]:kv_indptr[r + 1]] of block_tokens slots each. With chosen [T, K] and num_chosen [T], a token
    attends to the first num_chosen[t] positions of its row alone. Raises ValueError if the tables address memory
    outside the cache, or if a chosen position is not visible to its token.
    """

def choose_positions(
    pool: ThreadPool,
    query: F32,
    weights: F32,
    keys: Plane,
    block_tokens: int,
    query_indptr: I32,
    positions: I32,
    kv_indptr: I32,
    kv_indices: I32,
    chosen: I32,
    num_chosen: I32,
    *,
    isa: str,
) -> None:
    """Selects the positions that each token attends to with an indexer (DeepSeek-V3.2-Exp): the visible positions with
    the highest sums over heads of weight · max(0, query · key).

    query [T, H, K]; weights [T, H]; keys [slots, K]; chosen [T, top_k]; num_chosen [T]. For each token, the first
    num_chosen entries of its row in chosen are written, ascending: all positions if the token sees at most top_k; ties
    go to the lower position. The tables are those of mla_attention. Raises ValueError if they address memory outside
    the cache.
    """

def position_choice_nbytes(
    *, num_heads: int, key_width: int, num_tokens: int, num_positions: int, num_threads: int
) -> int:
    """Maximum bytes that a pool's calls of choose_positions use in addition to their arguments, for up to num_tokens
    per step and num_positions per sequence: 64 MiB (or one token's scores if larger), plus each thread's sorted
    scores."""

def attention_states_nbytes(
    *, num_heads: int, num_kv_heads: int, value_dim: int, num_tokens: int, num_positions: int, num_threads: int
) -> int:
    """Maximum bytes that a pool's calls of gqa_attention, or of mla_attention with one head in the cache, use in
    addition to their arguments, for up to num_tokens per step and num_positions per sequence: 256 MiB, or the memory of
    one group of 32 rows if larger."""

_StateArrays = tuple[I32, I32, I32, I32, I32]
"""The slots that each row reads [rows] and writes [rows]; and of further states that it leaves: their indptr
[rows + 1], how many of the row's tokens precede each, ascending, and their slots. Slot 0 reads as zeros and keeps
nothing."""

def delta_rule(
    pool: ThreadPool,
    *,
    queries: F32,
    keys: F32,
    values: F32,
    decays: F32,
    betas: F32,
    token_indptr: I32,
    slots: _StateArrays | None = None,
    states: F32,
    out: F32,
    heads_alternate: bool,
    isa: str,
) -> None:
    """The gated delta rule, token after token. queries, keys [T, key heads, K]; values, out [T, H, V]; decays [T, H],
    or [T, H, K] for the rows of states; betas [T, H]; states [slots, H, K, V]. Row r owns tokens
    token_indptr[r]:token_indptr[r + 1]. Head h has the key head h % key heads with heads_alternate, else
    h // (H / key heads). Raises IndexError or ValueError naming what does not fit."""

def short_conv(
    pool: ThreadPool,
    *,
    x: F32,
    weights: F32,
    token_indptr: I32,
    slots: _StateArrays | None = None,
    states: F32,
    out: F32,
    isa: str,
) -> None:
    """out[t] = silu(sum of weights[j] * x[t - taps + 1 + j]), within a row and its state; x, out [T, channels], weights
    [taps, channels], states [slots, taps - 1, channels], the last inputs. Raises as delta_rule does."""

def silu_mul(gate: F32, up: F32, out: F32) -> None:
    """out = silu(gate) * up, elementwise; all [T, I]. out may be gate or up."""

def route(
    logits: F32,
    bias: F32 | None,
    *,
    gating: str,
    num_groups: int,
    num_groups_used: int,
    group_score_top2: bool,
    normalize: bool,
    scale: float,
    ids: I32,
    weights: F32,
) -> None:
    """Choose experts. logits [T, E]; ids, weights [T, k].

    `gating` is softmax, sigmoid or sqrtsoftplus: what scores are of the logits. Selection uses score + bias; groups
    are ranked by the sum of their two best selection scores (group_score_top2, DeepSeek-V3) or their maximum (V2).
    Weights are unbiased scores, divided by their sum when `normalize`, times `scale`. Experts come in descending order
    of selection score; ties go to the lower index.
    """

class Experts(PybindObject):
    """The routed experts of one layer, over matrices used in place, or packed. Matrices are stacked: gate and up [E *
    I, D], down [E * D, I]."""

    def __init__(self, gate: Matrix, up: Matrix, down: Matrix, num_experts: int) -> None: ...
    @staticmethod
    def fused(gate_up: Matrix, down: Matrix, num_experts: int) -> Experts:
        """gate_up [E * 2 I, D]: for each expert first gate's rows, then up's."""
    def with_biases(self, gate: F32, up: F32, down: F32) -> Experts:
        """The experts with these biases added to their products; gate and up [E, I], down [E, D]."""
    def with_clamped_swiglu(self, *, alpha: float, limit: float) -> Experts:
        """The experts with g · sigmoid(alpha g) · (u + 1) instead of silu(gate) * up, where g is min(gate, limit) and u
        is up clamped to -limit … limit."""
    def with_clamped_silu(self, *, limit: float, limits_input: bool) -> Experts:
        """The experts with min(silu(gate), limit) · u instead of silu(gate) * up, or with silu(min(gate, limit)) · u if
        `limits_input`, where u is up clamped to -limit … limit."""
    def packed(
        self,
        pool: ThreadPool,
        isa: str,
        *,
        activation_bytes: int | None,
    ) -> Experts:
        """The experts packed for `isa`, divided along I among the nodes of the pool: the threads of each node pack its
        range. The original buffers are not needed afterwards. Pools passed to `forward` must have the same nodes. For
        "reference" the experts themselves. Raises ValueError as `pack` does. ExpertsPacking packs into files."""
    @property
    def memory(self) -> list[tuple[int, numa.Range]]:
        """The memory that contains its weights, with the kernel's number of the node whose threads read it;
        UNKNOWN_NODE if any thread may read it."""
    @property
    def num_experts(self) -> int: ...
    @property
    def parts(self) -> list[tuple[Matrix, Matrix, Matrix]]:
        """Gate, up and down on each node, packed with one head per expert: gate and up [E * I', D], down [E * D, I'],
        where the I' of all parts add up to I. The matrices share this memory, without copies, and keep it alive. Empty
        if the matrices are used in place."""
    @property
    def first_rows(self) -> list[int]:
        """The first row of gate and up of each part."""
    @property
    def biases(self) -> tuple[F32, F32, F32] | None:
        """Copies of the biases: gate and up [E, I], down [E, D]; None without any."""
    @property
    def clamped_unit(self) -> list[float | None]:
        """Alpha, which a clamped silu does not have, limit, and, which it alone has, the limit of silu(gate); empty for
        silu(gate) * up."""
    @property
    def uses(self) -> NDArray[np.int64]:
        """[E], the number of tokens that each expert has computed so far, over all calls of `forward`; a copy."""
    def forward(self, pool: ThreadPool, x: F32, ids: I32, weights: F32, out: F32) -> None:
        """out [T, D] = Σ_k weights[t, k] · down_e(silu(gate_e x) * up_e x), e = ids[t, k]; x [T, D]. Tokens are grouped
        by expert: each selected expert's weights are read once per call. A token's experts are added in ascending order
        of e; an id of -1 adds nothing. Raises IndexError for any other id outside 0…E-1."""

class ExpertsPacking(PybindObject):
    """Packs the experts of a layer as `Experts.packed` does, one projection after the other: "gate", "up" and "down".
    The buffer of a projection is not needed after it is packed."""

    def __init__(self, experts: Experts, pool: ThreadPool, isa: str, *, activation_bytes: int | None) -> None:
        """Raises ValueError as `pack` does, and for "reference", which reads weights in place."""
    def nbytes(self, projection: str) -> list[int]:
        """Bytes of the panels of a projection on each node of the pool; 0 for a node that holds none."""
    def pack(self, projection: str, files: Sequence[PanelFile | None] = ()) -> None:
        """Packs one projection. `files`: one per node, as for `pack`; none: the panels are not stored. Raises
        ValueError for another number of files, and RuntimeError as `pack` does."""
    def finish(self) -> Experts:
        """The packed experts. Raises RuntimeError unless all projections are packed."""
