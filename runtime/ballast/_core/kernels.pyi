"""CPU kernels over GGUF weights: the plain reference over the file's blocks, and fast ones over blocks that were
packed for an instruction set.

Float arrays are float32, C-contiguous. Every row of every output is computed by the same sequence of float
operations for any number of rows and threads, so results do not depend on the rest of the batch.
Shapes: T tokens, D hidden, H heads. All calls release the GIL; wrong shapes and types raise ValueError naming the
argument. `out` must not share memory with an input unless a function says that it may.
"""

from collections.abc import Sequence
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from . import _F32 as F32
from . import _I32 as I32
from . import PybindObject, numa

class ThreadPool(PybindObject):
    @overload
    def __init__(self, num_threads: int) -> None:
        """num_threads (1…1024) counts the caller, who works too. Waiting threads spin for 100 µs, then sleep.
        Python threads may share a pool: their calls take turns."""
    @overload
    def __init__(self, placement: numa.Placement) -> None:
        """One thread an entry of the placement, pinned there where the system permits it."""
    @property
    def num_threads(self) -> int: ...
    @property
    def num_nodes(self) -> int: ...
    @property
    def pin_refusal(self) -> str:
        """Why the first thread that could not be pinned could not; empty when all could."""
    def adopt_caller(self) -> str:
        """Name and pin the calling thread as the pool's first, for good: only for a thread that makes all calls and
        starts no others. Returns what pin_refusal would say of it."""
    def start_recording(self) -> None:
        """Note the times of every loop that is shared with other threads, until stop_recording."""
    def stop_recording(self) -> list[tuple[float, float, float, float]]:
        """Times of each loop: its begin, when the first and the last thread other than the caller joined (0.0: none
        did), and its end, in seconds of time.monotonic()."""

class KeepAwake(PybindObject):
    """A context in which the pool's threads wait awake between loops, for up to 2 ms at a stretch instead of 100 µs;
    those that sleep when it begins are woken."""

    def __init__(self, pool: ThreadPool) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(self, *error: object) -> None: ...

class Matrix(PybindObject):
    """A row-major matrix in one of GGUF's types: seen in place (the buffer is kept alive, never copied), or packed."""

    def __init__(
        self, data: NDArray[Any], ggml_type: int, rows: int, cols: int, scales: Sequence[float] | F32 = ()
    ) -> None:
        """`data`: contiguous bytes. Products with the rows are multiplied by `scales`: nothing, one number, or for
        experts one for each of as many equal parts of the rows; weights that are read back are without them. Raises
        ValueError when the type is unknown, cols is no multiple of the type's block, the byte count does not match, or
        scales do not divide the rows."""
    @property
    def ggml_type(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def cols(self) -> int: ...
    @property
    def scales(self) -> F32:
        """Factors of products, as given; a copy."""
    @property
    def nbytes(self) -> int:
        """Size of the blocks in GGUF's format."""
    @property
    def packed_nbytes(self) -> int:
        """0 when it is seen in place."""
    @property
    def panels(self) -> NDArray[np.uint8]:
        """The bytes of a packed matrix [heads, panels, bytes of a panel], in the layout of csrc/cpu/panel_layout.h,
        which is the same for all instruction sets; floats if it was packed transposed. A read-only view. ValueError
        for a matrix that is not packed."""
    @property
    def isa(self) -> str:
        """Whose kernels multiply it; "reference" when it is seen in place."""
    @property
    def memory(self) -> list[numa.Range]:
        """The memory that its weights are read from."""

def measure_read_speed(pool: ThreadPool, num_bytes: int) -> float:
    """Bytes a second at which the pool's threads read memory: the best of a few passes over num_bytes, which should be
    well beyond the caches."""

class FastIsa(PybindObject):
    """An instruction set with kernels of its own, as csrc/cpu/isa_list.h lists them."""

    @property
    def name(self) -> str: ...
    @property
    def cpu_flags(self) -> list[str]:
        """The required CPU features, named as in /proc/cpuinfo."""
    @property
    def thread_flops(self) -> float:
        """A second, of one thread with some hundred tokens, roughly."""

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
    serves these heads alone: one head of all rows for linear. Products with it round
    activations to one byte or two, up to 256 with one scale, where the weights are quantised; None: as many as the
    format has by default.
    ValueError: unusable isa, already packed, heads that do not lie apart within the matrix, activation_bytes neither 1
    nor 2 nor None.
    `file` keeps the panels, of packed_nbytes bytes, or they come from it if it is filled; None: they are not kept.
    RuntimeError: that file is damaged, cannot be read, or there is no room for it."""

class PanelFile(PybindObject):
    """A file that keeps the panels of one matrix beyond the process."""

    def __init__(self, file: int, *, mapped: bool, checksum: int | None) -> None:
        """`file`: a descriptor of a file of panel_file_nbytes bytes, needed until the panels exist. `mapped`: the file
        is in memory and contains the panels themselves. `checksum`: of a filled file; None: the file is empty and is
        filled by packing if mapped, otherwise by the caller with `memory`."""
    @property
    def checksum(self) -> int: ...
    @property
    def memory(self) -> NDArray[np.uint8] | None:
        """The panels' whole pages, a read-only view; None before there are any."""

def panel_file_nbytes(num_bytes: int, unit: int) -> int:
    """How long a file for panels of num_bytes is: a multiple of `unit`, of which its memory is made."""

def checksum(data: NDArray[np.uint8]) -> int:
    """A 64-bit sum that tells damage, not forgery, at the speed at which memory is read. ValueError unless 8 divides
    the length and the address."""

PANEL_LAYOUT_VERSION: int
"""Version of the memory layout of panels."""

def packed_nbytes(ggml_type: int, *, num_heads: int = 1, num_rows: int, cols: int, transposed: bool = False) -> int:
    """Bytes that `pack` makes of `num_heads` heads of [num_rows, cols], for any instruction set but "reference".
    ValueError: negative sizes, or more than 2⁵⁶ weights."""

def experts_packed_nbytes(
    types: tuple[int, int, int], *, num_experts: int, hidden: int, width: int, threads_per_node: Sequence[int]
) -> tuple[int, int, int]:
    """Bytes that `Experts.packed` makes of gate, up and down of these types, on all nodes together."""

def unpack(matrix: Matrix) -> F32:
    """A packed matrix's weights, exactly as its type defines them, [heads, rows, cols]."""

class Grid(PybindObject):
    """The points that codes of a format are numbers of, each of eight or four weights."""

    @property
    def points(self) -> NDArray[np.int8]:
        """[points, weights of one]: multiples of the scale, 2 ** scale_log2 times too large; magnitudes, or where there
        are no signs what is moved by one to either side. A copy."""
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
        """flat: a half-precision scale a group; powers: a power of two a group; e4m3: a float of seven bits a
        sub-block, twice too large; nested: a half-precision scale for eight groups, times a byte a sub-block; nibbles:
        scale and minimum in the halves of that byte; block: that of eight groups alone; odd: the same times an odd
        number a sub-block, kept in nibbles or among codes."""
    @property
    def has_minimum(self) -> bool: ...
    @property
    def table(self) -> tuple[int, ...] | None:
        """The value of each code; None if codes are the numbers themselves."""
    @property
    def has_trits(self) -> bool:
        """Whether codes are kept five to a byte."""
    @property
    def grid(self) -> Grid | None:
        """The grid that codes index, if they do."""
    @property
    def group_bytes(self) -> int:
        """Bytes of the codes of 32 columns of 16 rows."""
    @property
    def sums_whole_blocks(self) -> bool:
        """Whether products of eight groups can be summed up in whole numbers before they are scaled. AMX does so: its
        sums are then formed in an order of their own."""
    @property
    def scale_stride(self) -> int:
        """Bytes of the scales of a group (flat, powers) or of eight."""

class Format(PybindObject):
    """One of GGUF's types, as csrc/cpu/format_list.h lists them."""

    @property
    def name(self) -> str:
        """As GGUF spells it."""
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
        """Bytes that activations are rounded to for it by default; None for floats, for which they are not."""

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
    keys: F32,
    values: F32,
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
    """Causal attention over paged keys and values, whose heads are shared by equal groups of query heads.

    query [T, H, K]; keys [slots, kv heads, K]; values [slots, kv heads, V]; out [T, H, V]. The tables are those of
    mla_attention. A token sees `window` positions, its own the last; 0 for all. sinks [H]: the score of one further
    position of each head, whose value is 0. ValueError when they would lead outside the cache, or when heads do not
    divide.
    """

def mla_attention(
    pool: ThreadPool,
    query: F32,
    kv_cache: F32,
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

    query [T, H, L] with L = kv_lora_rank + rope; kv_cache [slots, L]; the value is the first `value_dim`
    (kv_lora_rank) entries of a cache row; out [T, H, value_dim]. Token t of request r sees positions
    0…positions[t] through r's blocks kv_indices[kv_indptr[r]:kv_indptr[r + 1]] of block_tokens slots each.
    With chosen [T, K] and num_chosen [T], a token attends to the first num_chosen[t] positions of its row alone.
    ValueError when the tables would lead outside the cache, or a position is chosen that its token does not see.
    """

def choose_positions(
    pool: ThreadPool,
    query: F32,
    weights: F32,
    keys: F32,
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
    """Chooses the positions that each token attends to with an indexer (DeepSeek-V3.2-Exp): the visible positions with
    the highest sums over heads of weight · max(0, query · key).

    query [T, H, K]; weights [T, H]; keys [slots, K]; chosen [T, top_k], of which each token's first num_chosen [T] are
    written, ascending. All positions where a token sees top_k or fewer; of equal scores the lower positions. The tables
    are those of mla_attention. ValueError when they would lead outside the cache.
    """

def position_choice_nbytes(
    *, num_heads: int, key_width: int, num_tokens: int, num_positions: int, num_threads: int
) -> int:
    """Most bytes that a pool's calls of choose_positions use in addition to their arguments, for up to num_tokens per
    step and num_positions per sequence: 64 MiB, or one token's if larger, and each thread's scores in order."""

def attention_states_nbytes(
    *, num_heads: int, num_kv_heads: int, value_dim: int, num_tokens: int, num_positions: int, num_threads: int
) -> int:
    """Most bytes that a pool's calls of gqa_attention, or of mla_attention with one head in the cache, use in addition
    to their arguments, for up to num_tokens per step and num_positions per sequence: 256 MiB, or what one group of 32
    rows takes where that is more."""

def silu_mul(gate: F32, up: F32, out: F32) -> None:
    """out = silu(gate) * up, element by element; all [T, I]. out may be gate or up."""

def route(
    logits: F32,
    bias: F32 | None,
    *,
    sigmoid: bool,
    num_groups: int,
    num_groups_used: int,
    group_score_top2: bool,
    normalize: bool,
    scale: float,
    ids: I32,
    weights: F32,
) -> None:
    """Choose experts. logits [T, E]; ids, weights [T, k].

    Scores are sigmoid or softmax of the logits; selection uses score + bias; groups are ranked by the sum of
    their two best selection scores (group_score_top2, DeepSeek-V3) or their maximum (V2). Weights are unbiased
    scores, divided by their sum when `normalize`, times `scale`. Experts come in descending order of selection
    score; ties go to the lower index.
    """

class Experts(PybindObject):
    """The routed experts of one layer, over matrices seen in place, or packed. Matrices are stacked: gate and up
    [E * I, D], down [E * D, I]."""

    def __init__(self, gate: Matrix, up: Matrix, down: Matrix, num_experts: int) -> None: ...
    @staticmethod
    def fused(gate_up: Matrix, down: Matrix, num_experts: int) -> Experts:
        """gate_up [E * 2 I, D]: of each expert first gate's rows, then up's."""
    def with_biases(self, gate: F32, up: F32, down: F32) -> Experts:
        """The experts with these added to their products; gate and up [E, I], down [E, D]."""
    def with_clamped_swiglu(self, *, alpha: float, limit: float) -> Experts:
        """The experts with g · sigmoid(alpha g) · (u + 1) in place of silu(gate) * up, where g is min(gate, limit) and
        u is up within -limit and limit."""
    def with_clamped_silu(self, *, limit: float) -> Experts:
        """The experts with min(silu(gate), limit) · u in place of silu(gate) * up, where u is up within -limit and
        limit."""
    def packed(
        self,
        pool: ThreadPool,
        isa: str,
        *,
        activation_bytes: int | None,
    ) -> Experts:
        """The experts packed for `isa`, divided along I among the nodes of the pool: the threads of each node pack its
        range. The original buffers are not needed afterwards. Pools of `forward` have these nodes. For "reference" the
        experts themselves. ValueError as for `pack`. ExpertsPacking packs into files."""
    @property
    def memory(self) -> list[tuple[int, numa.Range]]:
        """The memory that its weights are read from, with the kernel's number of the node whose threads read it;
        UNKNOWN_NODE if any thread may."""
    @property
    def num_experts(self) -> int: ...
    @property
    def parts(self) -> list[tuple[Matrix, Matrix, Matrix]]:
        """Gate, up and down as each node holds them, packed with a head an expert: gate and up [E * I', D], down
        [E * D, I'], where the I' of all parts add up to I. The same memory, never copied; it lives as long as a matrix
        of it. Empty when they are seen in place."""
    @property
    def uses(self) -> NDArray[np.int64]:
        """[E], how many tokens each has computed so far, wherever `forward` was called; a copy."""
    def forward(self, pool: ThreadPool, x: F32, ids: I32, weights: F32, out: F32) -> None:
        """out [T, D] = Σ_k weights[t, k] · down_e(silu(gate_e x) * up_e x), e = ids[t, k]; x [T, D].
        Tokens are grouped by expert: each selected expert's weights are read once per call. A token's experts are
        added in ascending order of e; an id of -1 adds nothing. IndexError for any other id that is no expert."""

class ExpertsPacking(PybindObject):
    """Packs the experts of a layer as `Experts.packed` does, one projection after the other: "gate", "up" and "down".
    The buffer of a projection is not needed after it is packed."""

    def __init__(self, experts: Experts, pool: ThreadPool, isa: str, *, activation_bytes: int | None) -> None:
        """ValueError as for `pack`, and for "reference", which reads weights in place."""
    def nbytes(self, projection: str) -> list[int]:
        """Bytes of the panels of a projection on each node of the pool; 0 for a node that holds none."""
    def pack(self, projection: str, files: Sequence[PanelFile | None] = ()) -> None:
        """Packs one projection. `files`: one per node, as for `pack`; none: the panels are not kept. ValueError for
        another number of files. RuntimeError as for `pack`."""
    def finish(self) -> Experts:
        """The packed experts. RuntimeError unless all projections are packed."""
