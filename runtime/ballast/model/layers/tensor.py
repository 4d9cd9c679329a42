"""Declarations of tensors. Checks, sizes, placement, loading and tiny models derive from them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from ballast.families.architecture import Unit

Group = Literal[
    "embedding", "attention", "router", "routed experts", "shared experts", "dense feed-forward", "norms", "output"
]
GROUPS: tuple[Group, ...] = get_args(Group)
"""The groups by which reports sum tensors, in order."""

ExpertPart = Literal["gate", "up", "down"]

Limits = Literal["finite", "decay"] | range
"""Finite numbers, also in a matrix: a wrong one would change a selection that no logit shows. Rates of decay, none of
which is above 0: with such a rate, a state grows with each token. Whole numbers from 0 (I32), such as experts."""


@dataclass(frozen=True, slots=True)
class HeadRows:
    """One matrix per head within a tensor: head h owns `num_rows` rows from h * (rows per head) + offset."""

    role: str
    """The forward pass's name for the matrices."""
    num_heads: int
    num_rows: int
    offset: int = 0
    is_transposed: bool = False
    """Whether each head's matrix is applied transposed."""


@dataclass(frozen=True, slots=True)
class RowSlice:
    """One of the matrices that lie one below another in a tensor."""

    role: str
    """The forward pass's name for the matrix."""
    num_rows: int


@dataclass(frozen=True, slots=True)
class PartOf:
    """The experts that a tensor belongs to. Their three parts are packed together."""

    role: str
    """The forward pass's name for the experts."""
    parts: tuple[ExpertPart, ...]
    """More than one if a tensor has several parts of each expert, one after another."""
    unit: Unit | None = None
    """What they compute of gate and up. None: silu(g) · u."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor that a model reads from its file."""

    role: str
    """The forward pass's name for it, unique within a layer."""
    name: str
    """Its name in the file. The declaration of a layer leaves out the prefix `blk.N.`."""
    shape: tuple[int, ...]
    """Row-major."""
    group: Group
    module: str
    """The module for placement rules, named as in the publisher's code. The declaration of a layer leaves out the
    prefix `model.layers.N.`."""
    classes: tuple[str, ...] = ("Linear",)
    """The classes of that module; `{family}` stands for the prefix of the family's own classes."""
    option: str | None = None
    """The option of the mixer that the tensor belongs to; None: every file must have the tensor."""
    heads: tuple[HeadRows, ...] = ()
    """The matrices per head that it is split into; empty: it is used whole."""
    slices: tuple[RowSlice, ...] = ()
    """The matrices that it consists of, from its first row on; empty: it is one."""
    part_of: PartOf | None = None
    is_exact: bool = False
    """Whether its products select experts or positions. It stays float32 on a GPU and in generated files."""
    is_flat: bool = False
    """Whether its numbers are used one by one, row after row, and not as a matrix."""
    has_ones: bool = False
    """Whether files may give it further dimensions of 1."""
    may_be_short: bool = False
    """Whether files may store it in 16 bits although it has one dimension."""
    read_in_place: Literal["all rows", "few rows"] | None = None
    """Which rows tokens read from the mapped file, so that it is not packed. Plans count no memory for few. None: it is
    loaded."""
    limits: Limits | None = None
    """The limits of its numbers, which loading checks. None: numbers that are used one by one must be finite."""
    is_added: bool = False
    """Whether it is added to a vector: biases, but no matrix or norm."""

    @property
    def cols(self) -> int:
        return self.shape[-1]

    @property
    def is_packed(self) -> bool:
        """Whether it is used as matrices, which are packed."""
        return len(self.shape) > 1 and not self.is_flat

    @property
    def below(self) -> int:
        """Its numbers are whole ones below this; 0: it has other numbers."""
        return self.limits.stop if isinstance(self.limits, range) else 0

    @property
    def num_experts(self) -> int:
        """The number of experts in a part of experts; 1 for any other tensor."""
        return self.shape[0] if self.part_of is not None and len(self.shape) == 3 else 1


def matrix(role: str, stem: str, shape: tuple[int, ...], module: str, **more: Any) -> Tensor:
    """A matrix or a stack of matrices; in the group of attention by default."""
    return Tensor(role, f"{stem}.weight", shape, **{"group": "attention", "module": module, **more})


def norm(role: str, stem: str, width: int, module: str, **more: Any) -> Tensor:
    """The factors of an RMS norm."""
    return Tensor(
        role,
        f"{stem}.weight",
        (width,),
        **{"group": "norms", "module": module, "classes": ("{family}RMSNorm",), **more},
    )


def bias(role: str, stem: str, width: int, module: str, **more: Any) -> Tensor:
    """Numbers that are added to a vector; in the group of attention by default."""
    return Tensor(role, f"{stem}.bias", (width,), **{"group": "attention", "module": module, "is_added": True, **more})


def vector(role: str, stem: str, width: int, module: str, **more: Any) -> Tensor:
    """Other numbers; in the group of attention by default."""
    return Tensor(role, f"{stem}.weight", (width,), **{"group": "attention", "module": module, **more})


def parts_of_experts(tensors: Iterable[Tensor]) -> dict[str, dict[ExpertPart, Tensor]]:
    """Role of experts → the matrices of each of their parts."""
    return _by_part(tensor for tensor in tensors if not tensor.is_added)


def biases_of_experts(tensors: Iterable[Tensor]) -> dict[str, dict[ExpertPart, Tensor]]:
    """Role of experts that have biases → those of each of their parts."""
    return _by_part(tensor for tensor in tensors if tensor.is_added)


def _by_part(tensors: Iterable[Tensor]) -> dict[str, dict[ExpertPart, Tensor]]:
    found: dict[str, dict[ExpertPart, Tensor]] = {}
    for tensor in tensors:
        if tensor.part_of is not None:
            found.setdefault(tensor.part_of.role, {}).update(dict.fromkeys(tensor.part_of.parts, tensor))
    return found
