"""Numbers rounded to the rows of a cache in 8 bits, by torch's operations."""

from __future__ import annotations

import torch

from ballast.model.layers.short_rows import LARGEST_CODE, SMALLEST_SCALE, ShortRows


def rounded_rows(rows: torch.Tensor, layout: ShortRows) -> torch.Tensor:
    """float32 [N, numbers] → uint8 [N, row_bytes]."""
    made = torch.zeros((len(rows), layout.row_bytes), dtype=torch.uint8, device=rows.device)
    scales = []
    for part in layout.parts:
        numbers = rows[:, part]
        exact = (numbers.abs().amax(1).double() / LARGEST_CODE).clamp(min=SMALLEST_SCALE)
        mantissa, exponent = torch.frexp(exact)  # a mantissa of 0.5 … 1
        scale = torch.ldexp(torch.ones_like(exact), exponent - (mantissa == 0.5).int()).float()
        scale = torch.where(exact.isnan(), torch.nan, scale)
        made[:, part] = (numbers / scale[:, None]).to(torch.float8_e4m3fn).view(torch.uint8)
        scales.append(scale)
    made[:, layout.scales_at : layout.wide_at] = torch.stack(scales, 1).view(torch.uint8)
    wide = rows[:, layout.scales_at :].to(torch.bfloat16).contiguous().view(torch.uint8)
    made[:, layout.wide_at : layout.wide_at + wide.shape[1]] = wide
    return made
