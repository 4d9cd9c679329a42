"""Tensors of a file for the CPU kernels: matrices packed for the instruction set, norms as float32.

The pages of the mapped file are released once they are packed, so that one copy stays in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from ballast._core import kernels
from ballast.errors import ModelError
from ballast.families.architecture import ClampedSwiglu, Unit
from ballast.model.layers.tensor import HeadRows, Limits, RowSlice, Tensor, biases_of_experts, parts_of_experts
from ballast.model.tensors import scale_name
from ballast.weights.gguf import GgufModel
from ballast.weights.packed_panels import Packed, PackedPanels
from ballast.weights.panel_packing import Heads, OpenFile, Target, pack_experts, pack_matrix
from ballast.weights.read_ahead import ReadAhead

F32 = NDArray[np.float32]

_PLAIN_FLOATS = frozenset(
    {gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16, gguf.GGMLQuantizationType.BF16}
)


@dataclass(frozen=True, slots=True)
class HeadMatrix:
    """One matrix per head inside a larger one: head h owns rows from h * head_stride + row_offset."""

    matrix: kernels.Matrix
    num_rows: int
    """Rows per head in the larger matrix."""
    head_stride: int
    row_offset: int
    transposed: bool
    """Whether the head's matrix is applied transposed, as W_UK of the joint layout."""

    @property
    def applied_shape(self) -> tuple[int, int]:
        """Rows and columns of a head's matrix as it is applied."""
        shape = self.num_rows, self.matrix.cols
        return (shape[1], shape[0]) if self.transposed else shape


_NEXT_PART = {"gate": "up", "up": "down"}
"""In the order in which experts are packed."""


@dataclass(frozen=True, slots=True)
class Packing:
    """The threads and the instruction set for which matrices are packed. `activation_bytes`: bytes per activation with
    quantized weights; None: their type decides."""

    pool: kernels.ThreadPool
    isa: str
    activation_bytes: int | None
    kept: PackedPanels | None = None
    """Keeps panels beyond the process; None: they are not kept."""
    kept_tensors: Collection[str] = ()
    """Tensors whose panels are kept there."""

    @property
    def target(self) -> Target:
        return Target(self.pool, self.isa, self.activation_bytes)


class Tensors:
    """Tensors of a file by name, in the form that kernels need. Stacked tensors are one tall matrix."""

    def __init__(self, gguf_model: GgufModel, packing: Packing, ahead: ReadAhead | None = None) -> None:
        """`ahead` reads the next tensors while one is packed."""
        self._gguf = gguf_model
        self._packing = packing
        self._ahead = ahead

    def __contains__(self, name: str) -> bool:
        return name in self._gguf.tensors

    def view(self, name: str, num_rows: int | None = None) -> kernels.Matrix:
        """The tensor, or its first rows, in place."""
        info = self._gguf.tensors[name]
        cols = info.shape[-1]
        all_rows = int(np.prod(info.shape[:-1]))
        rows = all_rows if num_rows is None else num_rows
        data = self._gguf.data(name)[: info.num_bytes // all_rows * rows]
        return kernels.Matrix(data, int(info.ggml_type), rows, cols, self._scales(name))

    def _scales(self, name: str) -> F32 | tuple[()]:
        """The factors of products with a tensor."""
        scale = scale_name(name)
        return self.vector(scale) if scale in self else ()

    def matrix(self, name: str, num_rows: int | None = None) -> kernels.Matrix:
        """The tensor, or its first rows, packed as one matrix."""
        view = self.view(name, num_rows)
        return self._packed(name, view, Heads(1, view.rows, 0))

    def are_stackable(self, names: Sequence[str]) -> bool:
        """Whether tensors have one type and one number of columns, and none a scale of its own."""
        if any(scale_name(name) in self for name in names):
            return False
        return len({(self._gguf.tensors[name].ggml_type, self._gguf.tensors[name].shape[-1]) for name in names}) == 1

    def stacked(self, names: Sequence[str]) -> kernels.Matrix:
        """Tensors one below the other, packed as one matrix."""
        views = [self.view(name) for name in names]
        data = np.concatenate([self._gguf.data(name).reshape(-1) for name in names])
        whole = kernels.Matrix(data, views[0].ggml_type, sum(view.rows for view in views), views[0].cols)
        packed = self._packed(names[0], whole, Heads(1, whole.rows, 0))
        for name in names[1:]:
            self._gguf.release(name)
        return packed

    def row_slice(self, name: str, begin: int, num_rows: int) -> kernels.Matrix:
        """`num_rows` rows of the tensor from `begin` on, packed as one matrix."""
        whole = self.view(name)
        row_bytes = self._gguf.tensors[name].num_bytes // whole.rows
        data = self._gguf.data(name)[begin * row_bytes : (begin + num_rows) * row_bytes]
        view = kernels.Matrix(data, whole.ggml_type, num_rows, whole.cols, self._scales(name))
        return self._packed(name, view, Heads(1, num_rows, 0), f"{name} from row {begin}")

    def heads(self, name: str, rows: HeadRows) -> HeadMatrix:
        """One matrix per head out of the tensor, packed."""
        view = self.view(name)
        stride = view.rows // rows.num_heads
        heads = Heads(rows.num_heads, rows.num_rows, stride, rows.offset, rows.is_transposed)
        packed = self._packed(name, view, heads)
        return HeadMatrix(packed, rows.num_rows, stride, rows.offset, rows.is_transposed)

    def _packed(self, name: str, view: kernels.Matrix, heads: Heads, what: str = "") -> kernels.Matrix:
        """`what`: describes the matrix if it is not the whole tensor."""

        def pack(open_file: OpenFile | None) -> kernels.Matrix:
            return pack_matrix(self._packing.target, view, heads, what or name, open_file)

        packed = self._kept(name, pack)
        self._gguf.release(name)
        return packed

    def _kept(self, name: str, pack: Callable[[OpenFile | None], Packed]) -> Packed:
        """Calls `pack`, with files if the tensor's panels are kept."""
        self._begin(name)
        kept = self._packing.kept
        return pack(None) if kept is None or name not in self._packing.kept_tensors else kept.pack(pack)

    def _begin(self, name: str) -> None:
        if self._ahead is not None:
            self._ahead.begin(name)

    def vector(self, name: str) -> F32:
        """The numbers of a tensor one by one, such as a norm's. Raises ModelError for a NaN or an infinity."""
        info = self._gguf.tensors[name]
        if info.ggml_type == gguf.GGMLQuantizationType.I32:
            return self._gguf.data(name).reshape(-1).view(np.int32).astype(np.float32)
        values = gguf.quants.dequantize(self._gguf.data(name), info.ggml_type)
        self._check_finite(name, values)
        return np.ascontiguousarray(values, dtype=np.float32).reshape(-1)

    def check(self, name: str, limits: Limits | None) -> None:
        """Raises ModelError if a number is outside its limits. Only plain floats are checked to be finite."""
        if limits == "finite" and self._gguf.tensors[name].ggml_type in _PLAIN_FLOATS:
            self.vector(name)
        elif limits == "decay":
            self._check_decay(name)
        elif isinstance(limits, range):
            self._check_whole(name, limits)

    def _check_finite(self, name: str, values: NDArray[Any]) -> None:
        info, is_wrong = self._gguf.tensors[name], ~np.isfinite(values)
        if is_wrong.any():
            raise ModelError(
                info.file,
                f"{np.count_nonzero(is_wrong)} of {is_wrong.size} values are NaN or infinite; the file is damaged, "
                "download or convert it again",
                tensor=name,
            )

    def _check_whole(self, name: str, limits: range) -> None:
        values = self.vector(name)
        is_wrong = (values < limits.start) | (values >= limits.stop)
        if is_wrong.any():
            problem = f"has {int(values[is_wrong][0])}; expected whole numbers from {limits.start} to {limits[-1]}"
            raise ModelError(self._gguf.tensors[name].file, problem, tensor=name)

    def _check_decay(self, name: str) -> None:
        most = self.vector(name).max()
        if most > 0:
            problem = f"has {most}; expected -exp(A_log), which is at most 0, convert the model again"
            raise ModelError(self._gguf.tensors[name].file, problem, tensor=name)

    def experts(
        self,
        names: Mapping[str, str],
        num_experts: int,
        biases: Mapping[str, str] | None = None,
        unit: Unit | None = None,
    ) -> kernels.Experts:
        """Those of a layer, packed; `names`, `biases`: the tensor of each part."""
        if names["gate"] == names["up"]:
            experts = kernels.Experts.fused(self.view(names["gate"]), self.view(names["down"]), num_experts)
        else:
            gate, up, down = (self.view(names[part]) for part in ("gate", "up", "down"))
            experts = kernels.Experts(gate, up, down, num_experts)
        if biases is not None:
            experts = experts.with_biases(**self._expert_biases(biases))
        if isinstance(unit, ClampedSwiglu):
            experts = experts.with_clamped_swiglu(alpha=unit.alpha, limit=unit.limit)
        elif unit is not None:
            experts = experts.with_clamped_silu(limit=unit.limit, limits_input=unit.limits_input)

        def packed(part: str) -> None:
            self._gguf.release(names[part])
            if part in _NEXT_PART:
                self._begin(names[_NEXT_PART[part]])

        def pack(open_file: OpenFile | None) -> kernels.Experts:
            return pack_experts(self._packing.target, experts, names, packed, open_file)

        return self._kept(names["gate"], pack)

    def _expert_biases(self, names: Mapping[str, str]) -> dict[str, F32]:
        """Part → its biases, [experts, rows]."""
        found = {part: self.vector(name).reshape(self._gguf.tensors[name].shape) for part, name in names.items()}
        if names["gate"] == names["up"]:
            gate, up = np.split(found["gate"], 2, axis=1)
            found |= {"gate": np.ascontiguousarray(gate), "up": np.ascontiguousarray(up)}
        return found


class LayerTensors:
    """The tensors of one layer, by role. Raises ModelError if a tensor that must be finite is not."""

    def __init__(self, tensors: Tensors, declared: Sequence[Tensor]) -> None:
        self.file = tensors
        self._by_role = {each.role: each for each in declared}
        self._heads = {rows.role: (each.name, rows) for each in declared for rows in each.heads}
        self._experts = parts_of_experts(declared)
        self._biases = biases_of_experts(declared)
        for each in declared:
            tensors.check(each.name, each.limits)

    def __contains__(self, role: str) -> bool:
        return role in self._by_role

    def name(self, role: str) -> str:
        """The tensor's name in the file."""
        return self._by_role[role].name

    def vector(self, role: str) -> F32:
        return self.file.vector(self.name(role))

    def view(self, role: str) -> kernels.Matrix:
        """In place."""
        return self.file.view(self.name(role))

    def num_rows(self, role: str) -> int:
        return self._by_role[role].shape[0]

    def slices(self, role: str) -> Sequence[RowSlice]:
        """The matrices of which a tensor consists."""
        return self._by_role[role].slices

    def are_stackable(self, roles: Sequence[str]) -> bool:
        """See `Tensors.are_stackable`."""
        return self.file.are_stackable([self.name(role) for role in roles])

    def stacked(self, roles: Sequence[str]) -> kernels.Matrix:
        """Packed one below the other as one matrix."""
        return self.file.stacked([self.name(role) for role in roles])

    def matrix(self, role: str) -> kernels.Matrix:
        """Packed whole."""
        return self.file.matrix(self.name(role))

    def heads(self, role: str) -> HeadMatrix:
        """Packed by head."""
        return self.file.heads(*self._heads[role])

    def experts(self, role: str) -> kernels.Experts:
        """Packed together."""
        parts, biases = self._experts[role], self._biases.get(role)
        down = parts["down"]
        assert down.part_of is not None
        return self.file.experts(
            {part: each.name for part, each in parts.items()},
            down.num_experts,
            None if biases is None else {part: each.name for part, each in biases.items()},
            down.part_of.unit,
        )

    def all(self) -> dict[str, Any]:
        """All tensors that the layer declares, by role, in the form that the CPU computes with."""
        return dict(self._all())

    def _all(self) -> Iterator[tuple[str, Any]]:
        for role, each in self._by_role.items():
            if not each.is_packed:
                yield role, self.vector(role)
            elif each.slices:
                yield from self._slices(each)
            elif not each.heads and each.part_of is None:
                yield role, self.matrix(role)
        for role in self._heads:
            yield role, self.heads(role)
        for role in self._experts:
            yield role, self.experts(role)

    def _slices(self, tensor: Tensor) -> Iterator[tuple[str, kernels.Matrix]]:
        """The matrices of a tensor that consists of several."""
        begin = 0
        for each in tensor.slices:
            yield each.role, self.file.row_slice(tensor.name, begin, each.num_rows)
            begin += each.num_rows
