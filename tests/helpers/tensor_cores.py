"""A stand-in for the kernels of `duogp.numerics.tensor_core_products`, by plain products on any device."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import duogp.numerics
from duogp.numerics import tensor_core_products

MODULE = "tensor_core_products_triton"


class Kernels(SimpleNamespace):
    """`split` copies, `product` multiplies; factors that are said to be triangles must be."""

    def __init__(self) -> None:
        super().__init__(splits=0)

    def split(self, A: Tensor) -> Tensor:
        self.splits += 1
        return A.clone()

    def product(
        self,
        A: Tensor,
        B: Tensor,
        size: tuple[int, int, int],
        transposed: tuple[bool, bool],
        triangles: tuple[bool, bool, bool, bool, bool],
        add: Tensor | None,
        sign: float,
    ) -> Tensor:
        A, B = (X.mT if t else X for X, t in zip((A, B), transposed, strict=True))
        assert (A.shape[-2], B.shape[-1], A.shape[-1]) == size
        lower_a, upper_a, lower_b, upper_b, lower = triangles
        for X, below, above in ((A, lower_a, upper_a), (B, lower_b, upper_b)):
            assert not below or torch.equal(X, X.tril())
            assert not above or torch.equal(X, X.triu())
        out = sign * (A @ B) + (0.0 if add is None else add)
        return out.tril() if lower else out


def stand_in(monkeypatch: pytest.MonkeyPatch) -> Kernels:
    """Let products be made by these kernels wherever batches agree, and matrices be split once a step."""

    def suits(A: Tensor, B: Tensor) -> bool:
        return A.shape[:-2] == B.shape[:-2] and A.dtype == B.dtype

    kernels: Any = Kernels()
    monkeypatch.setattr(tensor_core_products, "suits", suits)
    monkeypatch.setattr(tensor_core_products, "_shares", lambda _: True)
    monkeypatch.setitem(sys.modules, f"duogp.numerics.{MODULE}", kernels)
    monkeypatch.setattr(duogp.numerics, MODULE, kernels, raising=False)
    return kernels
