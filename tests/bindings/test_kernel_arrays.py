"""The interface between NumPy and the kernels: shapes, types, lifetimes, the GIL, exceptions."""

import gc
import sys
import threading
import weakref

import numpy as np
import pytest
from gguf import GGMLQuantizationType

from ballast._core import kernels

F32, Q8_0 = GGMLQuantizationType.F32, GGMLQuantizationType.Q8_0


def f32(*shape):
    return np.zeros(shape, np.float32)


def i32(*values):
    return np.array(values, np.int32)


def matrix(rows, cols):
    return kernels.Matrix(f32(rows, cols), F32, rows, cols)


@pytest.fixture(scope="module")
def pool():
    return kernels.ThreadPool(2)


@pytest.mark.parametrize(
    ("x", "out", "message"),
    [
        (f32(2, 5), f32(2, 3), r"x is float32 \[2, 5\]; expected float32 \[T, cols = 4\]"),
        (f32(4), f32(1, 3), r"x is float32 \[4\]; expected float32 \[T, cols = 4\]"),
        (np.zeros((2, 4)), f32(2, 3), r"x is float64 \[2, 4\]; expected float32"),
        (np.zeros((2, 4), ">f4"), f32(2, 3), r"x is >f4 \[2, 4\]; expected float32"),
        (f32(4, 4)[::2], f32(2, 3), r"x is float32 \[2, 4\], not C-contiguous; expected"),
        (f32(4, 2).T, f32(2, 3), r"x is float32 \[2, 4\], not C-contiguous; expected"),
        (np.zeros(33, np.uint8)[1:].view(np.float32).reshape(2, 4), f32(2, 3), "x is .* not aligned; expected"),
        (f32(2, 4), f32(3, 3), r"out is float32 \[3, 3\]; expected float32 \[T = 2, rows = 3\]"),
        (f32(2, 4), f32(2, 4), r"out is float32 \[2, 4\]; expected float32 \[T = 2, rows = 3\]"),
        (f32(2, 4), np.zeros((2, 3), np.int32), r"out is int32 \[2, 3\]; expected float32"),
        (f32(2, 4), np.broadcast_to(np.float32(0), (2, 3)), "out is .* not C-contiguous"),
    ],
)
def test_wrong_arrays_are_refused_naming_argument_and_expectation(pool, x, out, message):
    with pytest.raises(ValueError, match=message):
        kernels.linear(pool, x, matrix(3, 4), out)


def test_a_read_only_output_is_refused(pool):
    out = f32(2, 3)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="out is read-only"):
        kernels.linear(pool, f32(2, 4), matrix(3, 4), out)


def test_an_output_in_its_input_is_refused(pool):
    memory = f32(4, 4)
    with pytest.raises(ValueError, match="out shares memory with x"):
        kernels.linear(pool, memory[:2], matrix(4, 4), memory[1:3])


@pytest.mark.parametrize(
    ("data", "ggml_type", "rows", "cols", "message"),
    [
        (np.zeros(34, np.uint8), 99, 1, 32, r"ggml_type is 99; supported are 0 \(F32\)"),
        (
            np.zeros(34, np.uint8),
            Q8_0,
            1,
            31,
            "Q8_0 matrix of 1 rows and 31 cols: cols must be a multiple of the block, 32",
        ),
        (np.zeros(33, np.uint8), Q8_0, 1, 32, "data has 33 bytes, expected 34"),
        (np.zeros(34, np.uint8), Q8_0, -1, 32, "rows must be 0 or more"),
        (np.zeros(0, np.uint8), Q8_0, 1, 0, "cols 1 or more"),
        (np.zeros(34, np.uint8), Q8_0, 2**60, 32, "beyond 64 bits"),
        (np.zeros(68, np.uint8)[::2], Q8_0, 1, 32, "data is uint8 .* expected C-contiguous bytes"),
    ],
)
def test_inconsistent_matrices_are_rejected(data, ggml_type, rows, cols, message):
    with pytest.raises(ValueError, match=message):
        kernels.Matrix(data, ggml_type, rows, cols)


def test_rows_and_ids_outside_a_matrix_are_index_errors():
    with pytest.raises(IndexError, match="rows 2 to 4 asked of a matrix that has 3"):
        kernels.dequantize(matrix(3, 4), 2, 4)
    for bad in (3, -1):
        with pytest.raises(IndexError, match=rf"ids\[1\] is {bad}; expected 0 to 2"):
            kernels.embed(matrix(3, 4), i32(0, bad), f32(2, 4))


@pytest.mark.parametrize(("stride", "offset"), [(3, 0), (2, 1), (-1, 0), (0, 0), (2, -1), (2**62, 0), (2, 2**62)])
def test_heads_that_reach_beyond_the_matrix_are_refused(pool, stride, offset):
    weight = matrix(4, 5)
    with pytest.raises(ValueError, match="weight has 4 rows; 2 heads of 2 rows"):
        kernels.head_linear(pool, f32(1, 2, 5), weight, stride, offset, f32(1, 2, 2))
    with pytest.raises(ValueError, match="weight has 4 rows; 2 heads of 2 rows"):
        kernels.head_linear_transposed(pool, f32(1, 2, 2), weight, stride, offset, f32(1, 2, 5))


@pytest.mark.parametrize(
    "heads",
    [
        {"num_heads": -1},
        {"num_rows": -1},
        {"num_heads": 2, "head_stride": 2**62, "num_rows": -1},
        {"num_heads": 2**62, "head_stride": 1, "num_rows": 0},
        {"num_heads": 2**62, "num_rows": 4},
        {"num_rows": 2**63 - 1, "row_offset": 1},
    ],
)
@pytest.mark.parametrize("isa", kernels.usable_isas())
def test_no_heads_beyond_the_matrix_are_packed(pool, heads, isa):
    with pytest.raises(ValueError, match=r"weight has 4 rows; .* do not lie apart within them"):
        kernels.pack(pool, matrix(4, 32), isa, activation_bytes=2, **heads)


@pytest.mark.parametrize(
    "sizes",
    [
        {"num_heads": -1, "num_rows": 4, "cols": 32},
        {"num_rows": -4, "cols": 32},
        {"num_heads": 2**40, "num_rows": 2**20, "cols": 2**20},
        {"num_heads": 0, "num_rows": 1, "cols": 2**57},
    ],
)
def test_sizes_that_no_memory_has_are_refused(sizes):
    with pytest.raises(ValueError, match=r"expected sizes of 0 or more, and 2\^56 weights at most"):
        kernels.packed_nbytes(Q8_0, **sizes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"query_indptr": i32(0, 1, 1)}, r"query_indptr\[2\] is 1; expected 2"),
        ({"query_indptr": i32(1, 1, 2)}, r"query_indptr\[0\] is 1; expected 0"),
        ({"query_indptr": i32(0, 3, 2)}, r"query_indptr\[2\] is 2; expected at least the entry before it, 3"),
        ({"query_indptr": i32()}, "query_indptr is empty"),
        ({"kv_indptr": i32(0, 1, 3)}, r"kv_indptr\[2\] is 3; expected 2"),
        ({"kv_indptr": i32(0, 2)}, r"kv_indptr is int32 \[2\]; expected int32 \[requests \+ 1 = 3\]"),
        ({"kv_indices": i32(0, 3)}, r"kv_indices\[1\] is 3; expected 0 to 2"),
        ({"kv_indices": i32(-1, 0)}, r"kv_indices\[0\] is -1"),
        ({"positions": i32(0, 2)}, r"positions\[1\] is 2; expected 0 to 1, what the blocks of request 1 hold"),
        ({"positions": i32(-1, 0)}, r"positions\[0\] is -1"),
        ({"block_tokens": 0}, "block_tokens is 0"),
        ({"value_dim": 9}, "value_dim is 9; expected 1 to query's L, 8"),
    ],
)
def test_attention_never_reads_outside_the_cache(pool, changes, message):
    arguments = {
        "query": f32(2, 1, 8),
        "kv_cache": f32(6, 8),
        "block_tokens": 2,
        "query_indptr": i32(0, 1, 2),
        "positions": i32(0, 1),
        "kv_indptr": i32(0, 1, 2),
        "kv_indices": i32(0, 2),
        "value_dim": 6,
        "scale": 1.0,
        "out": f32(2, 1, 6),
        "isa": kernels.usable_isas()[0],
    }
    kernels.mla_attention(pool, **arguments)
    with pytest.raises(ValueError, match=message):
        kernels.mla_attention(pool, **{**arguments, **changes, "out": f32(2, 1, changes.get("value_dim", 6))})


def test_a_matrix_keeps_its_buffer_alive_and_does_not_copy_it(pool):
    data = np.arange(12, dtype=np.float32).reshape(3, 4)
    alive = weakref.ref(data)
    weight = kernels.Matrix(data, F32, 3, 4)
    data[0, 0] = 100.0
    del data
    gc.collect()

    assert alive() is not None
    np.testing.assert_array_equal(kernels.dequantize(weight, 0, 1), [[100, 1, 2, 3]])
    del weight
    gc.collect()
    assert alive() is None


def test_experts_keep_their_matrices_buffers_alive(pool):
    buffers = [np.ones((2, 2), np.float32) for _ in range(3)]
    alive = [weakref.ref(data) for data in buffers]
    experts = kernels.Experts(*(kernels.Matrix(data, F32, 2, 2) for data in buffers), 1)
    del buffers
    gc.collect()

    assert all(ref() is not None for ref in alive)
    del experts
    gc.collect()
    assert all(ref() is None for ref in alive)


def test_a_read_only_memory_map_is_read_in_place(tmp_path):
    path = tmp_path / "weights"
    np.arange(8, dtype=np.float32).tofile(path)
    mapped = np.memmap(path, np.uint8, mode="r")
    got = kernels.dequantize(kernels.Matrix(mapped, F32, 2, 4), 1, 2)
    np.testing.assert_array_equal(got, [[4, 5, 6, 7]])


def test_other_python_threads_run_while_a_kernel_does(pool):
    """Automatic switching is disabled, so the main thread gets the GIL only if a kernel releases it."""
    x, weight, out = f32(64, 256), matrix(256, 256), f32(64, 256)
    started, seen = threading.Event(), threading.Event()
    was_seen = []

    def work():
        started.set()
        for _ in range(500):
            kernels.linear(pool, x, weight, out)
            if seen.is_set():
                break
        was_seen.append(seen.is_set())

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    try:
        thread = threading.Thread(target=work)
        thread.start()
        started.wait(timeout=60)
        seen.set()
        thread.join(timeout=60)
    finally:
        sys.setswitchinterval(interval)
    assert was_seen == [True]


def test_two_python_threads_may_share_a_pool(pool):
    rng = np.random.default_rng(1)
    weights = rng.standard_normal((64, 64), dtype=np.float32)
    weight = kernels.Matrix(weights, F32, 64, 64)
    inputs = [rng.standard_normal((9, 64), dtype=np.float32) for _ in range(4)]
    outputs = [np.empty((9, 64), np.float32) for _ in inputs]

    def work(x, out):
        for _ in range(50):
            out[:] = np.nan
            kernels.linear(pool, x, weight, out)

    threads = [threading.Thread(target=work, args=pair) for pair in zip(inputs, outputs, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    for x, out in zip(inputs, outputs, strict=True):
        np.testing.assert_allclose(out, x @ weights.T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("num_threads", [0, -1, 1025])
def test_a_pool_of_no_sensible_size_is_refused(num_threads):
    with pytest.raises(ValueError, match=rf"num_threads is {num_threads}; expected 1 to 1024"):
        kernels.ThreadPool(num_threads)
