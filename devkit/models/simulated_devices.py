"""Several devices that are really the CPU's memory: torch.device("cpu", 0), torch.device("cpu", 1) and so on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_OWNER = "_simulated_owner"
"""The attribute of a tensor that holds the number of its device."""

CROSSING = (torch.Tensor.to, torch.Tensor.copy_, torch.Tensor.cpu)
"""The operations that may take a tensor of another device."""


_DEVICE_OF = torch.Tensor.device.__get__
_PLAIN = frozenset({int, float, bool, str, type(None), slice, torch.dtype, torch.device, torch.Size})
"""Types of values that hold no tensors."""


class SimulatedDevices(TorchFunctionMode):
    """A context in which each tensor knows its device. An operation on tensors of two devices raises RuntimeError, as
    it does on GPUs. Tensors in host memory, which have no index, may be combined with any: weights of tests are there.
    """

    def __init__(self) -> None:
        super().__init__()
        self.crossings: list[tuple[int, int, tuple[int, ...]]] = []
        """Of each copy between two devices: the source, the destination, the shape."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        values = (*args, *kwargs.values())
        owners: set[int] = set()
        _add_owners(values, owners)
        if function == _DEVICE_OF:
            return torch.device("cpu", *owners)
        named = next((each for each in values if type(each) is torch.device), None)
        if function in CROSSING:
            return self._copied(function, _tensors(values), named, args, kwargs)
        if len(owners) > 1:
            raise RuntimeError(f"{function.__name__} got tensors of devices {sorted(owners)}; expected one device")
        owner = named.index if named is not None else next(iter(owners), None)
        result = function(*args, **kwargs)
        if type(result) is torch.Tensor:
            _set_owner(result, owner)
        elif type(result) not in _PLAIN:
            for tensor in _tensors((result,)):
                _set_owner(tensor, owner)
        return result

    def _copied(
        self, function: Any, tensors: list[torch.Tensor], named: torch.device | None, args: Any, kwargs: Any
    ) -> Any:
        result = function(*args, **kwargs)
        if function is torch.Tensor.copy_:
            source, target = owner_of(tensors[1]), owner_of(tensors[0])
        else:
            source = target = owner_of(tensors[0])
            if function is torch.Tensor.cpu or named is not None:
                target = None if named is None else named.index
            if target != source and result is tensors[0]:
                result = result.clone()
        _set_owner(result, target)
        if source is not None and target is not None and source != target:
            self.crossings.append((source, target, tuple(result.shape)))
        return result


def owner_of(tensor: torch.Tensor) -> int | None:
    """The index of a tensor's device; None: the tensor is in host memory."""
    owner: int | None = getattr(tensor, _OWNER, None)
    return owner


def _set_owner(tensor: torch.Tensor, owner: int | None) -> None:
    setattr(tensor, _OWNER, owner)


def _add_owners(values: Iterable[Any], owners: set[int]) -> None:
    """Adds the devices of all tensors in `values`. Nearly all values are tensors and numbers, tens for each operation:
    this takes a large part of a test's time."""
    for value in values:
        kind = type(value)
        if kind is torch.Tensor:
            owner = value.__dict__.get(_OWNER)
            if owner is not None:
                owners.add(owner)
        elif kind not in _PLAIN:
            owners.update(owner for tensor in _tensors((value,)) if (owner := owner_of(tensor)) is not None)


def _tensors(values: Iterable[Any]) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, tuple | list):
            found += _tensors(value)
    return found
