"""The tensors of one layer on a device, by role.

The host packs matrices in the type that they have in the file, and copies them to the device one by one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ballast._core import kernels
from ballast.model.hybrid.linear import (
    FloatLinear,
    Linear,
    Linears,
    MakeLinear,
    as_one,
    one_after_the_other,
    one_by_one,
)
from ballast.model.packed_tensors import LayerTensors


class DeviceTensors:
    """Loads the tensors that a layer requests."""

    def __init__(self, host: LayerTensors, make_linear: MakeLinear, device: torch.device) -> None:
        self.host = host
        self._make_linear = make_linear
        self._device = device

    def vector(self, role: str) -> torch.Tensor:
        return torch.tensor(self.host.vector(role), device=self._device)

    def optional_vector(self, role: str) -> torch.Tensor | None:
        """Returns None if the layer has no such tensor."""
        return self.vector(role) if role in self.host else None

    def linear(self, role: str) -> Linear:
        packed = self.host.matrix(role)
        return self._make_linear(packed, packed.rows, packed.cols)

    def head_linear(self, role: str) -> Linear:
        """One matrix per head."""
        packed = self.host.heads(role)
        return self._make_linear(packed.matrix, *packed.applied_shape, is_transposed=packed.transposed)

    def float_linear(self, role: str, bias: str | None = None) -> FloatLinear:
        """A matrix in float32, and the optional `bias` of its products."""
        packed = self.host.matrix(role)
        weight = torch.from_numpy(kernels.unpack(packed))
        if packed.scales.size:
            weight *= float(packed.scales[0])
        return FloatLinear(weight.to(self._device), None if bias is None else self.optional_vector(bias))

    def optional_linear(self, role: str) -> Linear | None:
        """Returns None if the layer has no such matrix."""
        return self.linear(role) if role in self.host else None

    def sliced_linears(self, role: str) -> Linears:
        """The matrices of which one consists."""
        return as_one(self.linear(role), [each.num_rows for each in self.host.slices(role)])

    def linears(self, *roles: str) -> Linears:
        """Matrices with the same input. Consecutive matrices of the same type are stacked into one product: published
        files often store values in a more precise type than queries and keys."""
        return one_after_the_other([self._run(run) for run in self._runs(roles)])

    def joined(self, *roles: str) -> Linear:
        """Matrices with the same input as one that gives all their rows. One product computes consecutive matrices of
        the same type, as in `linears`."""
        parts = [self._whole(run) for run in self._runs(roles)]
        return parts[0] if len(parts) == 1 else lambda x: torch.cat([part(x) for part in parts], -1)

    def _runs(self, roles: Sequence[str]) -> list[list[str]]:
        """Consecutive matrices of one type and width."""
        runs: list[list[str]] = []
        for role in roles:
            if runs and self.host.are_stackable((runs[-1][0], role)):
                runs[-1].append(role)
            else:
                runs.append([role])
        return runs

    def _run(self, roles: Sequence[str]) -> Linears:
        """Matrices of one type and width."""
        if len(roles) == 1:
            return one_by_one([self._whole(roles)])
        return as_one(self._whole(roles), [self.host.num_rows(role) for role in roles])

    def _whole(self, roles: Sequence[str]) -> Linear:
        """Matrices of one type and width, one below the other."""
        if len(roles) == 1:
            return self.linear(roles[0])
        whole = self.host.stacked(roles)
        return self._make_linear(whole, whole.rows, whole.cols)
