"""Products on tensor cores: their kernels, where a GPU or Triton's interpreter is, and who calls them."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from duogp.numerics import products
from duogp.numerics import tensor_core_products as tensor_cores
from helpers.tensor_cores import stand_in

needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available() or not tensor_cores.available(torch.device("cuda")),
    reason="there is no GPU with Triton",
)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def check_kernels(device: str) -> None:
    """Shapes that are no multiples of a block, both orders of memory, all triangles, very different sizes."""
    for m, k, n in ((70, 130, 90), (64, 64, 64), (1, 200, 65)):
        A, B = normal(3, m, k) * 10.0 ** normal(3, m, k, seed=2), 1e-20 * normal(3, k, n, seed=1)
        for left_transposed in (False, True):
            for right_transposed in (False, True):
                left, right = (
                    (X.mT.contiguous().mT if transposed else X).to(device, torch.float32)
                    for X, transposed in ((A, left_transposed), (B, right_transposed))
                )
                found = tensor_cores.product(left, right).double().cpu()
                assert ((found - A @ B).abs() <= 1e-6 * (A.abs() @ B.abs())).all()
    full, add = normal(2, 150, 150), normal(2, 150, 150, seed=1)
    shapes = {"lower": full.tril(), "upper": full.triu(), "full": full}
    for left, A in shapes.items():
        for right, B in shapes.items():
            for lower in (False, True):
                on = [X.to(device, torch.float32) for X in (A, B, add)]
                found = tensor_cores.product(
                    on[0], on[1], left=left, right=right, lower=lower, add=on[2], sign=-1.0
                )
                expected, size = add - A @ B, add.abs() + A.abs() @ B.abs()
                expected = expected.tril() if lower else expected
                assert ((found.double().cpu() - expected).abs() <= 1e-6 * size).all()
                assert not lower or not found.triu(1).any()
    zeros = torch.zeros(1, 70, 70, dtype=torch.float32, device=device)
    assert not tensor_cores.product(zeros, zeros).any()
    broken = zeros.clone()
    broken[0, 3, 4] = torch.nan
    assert tensor_cores.product(broken, zeros + 1.0).isnan().any()


@needs_gpu
def test_kernels_on_a_gpu() -> None:
    check_kernels("cuda")
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        check_kernels("cuda")
    finally:
        torch.set_default_dtype(before)
    A = torch.randn(1000, 1000, device="cuda")
    assert tensor_cores.suits(A, A) and not tensor_cores.suits(A.double(), A.double())
    assert not tensor_cores.suits(A, A.clone().requires_grad_())  # autograd would not see the product


#: Run by Triton's interpreter, whose own errors (of versions that do not know this numpy) are no failures.
INTERPRETED = """
import sys
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from triton.runtime import errors
from test_tensor_core_products import check_kernels
try:
    check_kernels("cpu")
    torch.set_default_dtype(torch.float64)
    check_kernels("cpu")
except getattr(errors, "InterpreterError", ()) as error:
    sys.exit(f"interpreter: {error}")
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="there is no Triton")
@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels themselves can be tested")
def test_kernels_by_the_interpreter() -> None:
    """The same kernels without a GPU."""
    paths = [os.path.dirname(__file__), os.path.dirname(os.path.dirname(__file__)), *sys.path]
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    done = subprocess.run(
        [sys.executable, "-c", INTERPRETED], capture_output=True, text=True, env=environment, timeout=300
    )
    if done.stderr.startswith("interpreter: "):
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr


def test_none_on_a_cpu() -> None:
    A = torch.randn(1000, 1000)
    assert not tensor_cores.suits(A, A)
    with tensor_cores.sharing(A) as known:
        assert known is None


def test_a_matrix_is_split_once_until_it_is_written_to(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = stand_in(monkeypatch)
    A, B = normal(1, 5, 5), normal(1, 5, 7)
    known: tensor_cores.Known = {}
    with tensor_cores._Sharing(known):
        torch.testing.assert_close(tensor_cores.product(A, B), A @ B)
        torch.testing.assert_close(tensor_cores.product(A.mT, B), A.mT @ B)
        assert kernels.splits == 2
        A.mul_(2.0)
        torch.testing.assert_close(tensor_cores.product(A, B), A @ B)
        assert kernels.splits == 3
    with tensor_cores._Sharing(known):  # a later block that begins with what is known
        tensor_cores.product(A, B)
        assert kernels.splits == 3
    tensor_cores.product(A, B)
    assert kernels.splits == 5
    with torch.inference_mode(), tensor_cores._Sharing(known):
        C = A + 1.0
        torch.testing.assert_close(tensor_cores.product(C, B), C @ B)


def test_want_of_memory_is_no_answer_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    full = torch.OutOfMemoryError("full"), RuntimeError("Triton Error [CUDA]: out of memory")
    device, answers = torch.device("cuda", 7), [*full, True]

    def are_right(_: torch.device) -> bool:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(tensor_cores, "_available", {})
    monkeypatch.setattr(tensor_cores, "_is_for_products", lambda _: True)
    monkeypatch.setattr(tensor_cores, "_are_right", are_right)
    assert [tensor_cores.available(device) for _ in range(4)] == [False, False, True, True]


@pytest.mark.parametrize(("capability", "expected"), [((9, 0), True), ((8, 6), False), ((12, 0), False)])
def test_which_gpus_have_them(
    capability: tuple[int, int], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those whose tensor cores are many times as fast as their float32."""
    monkeypatch.setattr(tensor_cores, "_available", {})
    monkeypatch.setattr(tensor_cores, "_are_right", lambda _: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert tensor_cores.available(torch.device("cuda", 7)) == expected


@pytest.mark.parametrize("M", [9, 10])
def test_factorising_in_halves(M: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "substitutes", lambda _: False)
    root = normal(2, 1, M, M)
    K = root @ root.mT + torch.eye(M, dtype=torch.float64)
    expected = products.InHalves(K, torch.float64).finish()
    torch.testing.assert_close(expected[1:], products.factorised(K, torch.float64))
    monkeypatch.setattr(products, "HALVED", 4)
    for dtype in (torch.float64, torch.float32):
        found = products.InHalves(K.clone(), dtype).finish()
        torch.testing.assert_close(found[0], expected[0])
        torch.testing.assert_close(list(found[1:]), [expected[i].to(found[i].dtype) for i in (1, 2, 3)])
    assert products.InHalves(K.clone(), torch.float64).finish(with_L=False).L is None
    for at in (0, M - 1):  # not positive definite in the first half, and in the second
        bad = K.clone()
        bad[1, 0, at, at] = -1.0
        *_, info = products.InHalves(bad, torch.float64).finish()
        assert (info != 0).tolist() == [[False], [True]]


def test_halves_of_a_matrix_that_is_nearly_singular(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an inverse and no refinement the error is a thousand times as large, and the second half fails."""
    monkeypatch.setattr(products, "substitutes", lambda _: False)
    monkeypatch.setattr(products, "HALVED", 4)
    z = torch.linspace(0.0, 1.0, 200, dtype=torch.float64).unsqueeze(-1)
    for jitter in (1e-6, 1e-10, 1e-11):
        K = torch.exp(-0.5 * torch.cdist(z, z).square() / 0.01).unsqueeze(0)
        K.diagonal(dim1=-2, dim2=-1).add_(jitter)
        _, L, _, info = products.InHalves(K.clone(), torch.float64).finish()
        assert int(info) == 0
        assert float((L @ L.mT - K).abs().max()) < 2e-14


def test_code_that_is_traced_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recorded graph would not see what the kernels write."""
    device, seen = torch.device("cpu"), []
    monkeypatch.setattr(tensor_cores, "_available", {})
    monkeypatch.setattr(tensor_cores, "_are_right", lambda _: True)

    def traced(A: torch.Tensor) -> torch.Tensor:
        seen.append((tensor_cores.is_traced(), tensor_cores.available(device)))
        return A + 1.0

    make_fx(traced)(torch.ones(2))
    assert seen == [(True, False)]
    assert not tensor_cores.is_traced() and tensor_cores.available(device)  # it was not remembered


def test_of_a_forward_pass_only_what_is_saved_is_known() -> None:
    A, B = torch.ones(3, 4), torch.ones(3, 4)
    known = {"A": (A, 1), "of A": (A[:2], 2), "B": (B, 3)}
    assert set(tensor_cores.among(known, [A.mT]) or {}) == {"A", "of A"}
    assert tensor_cores.among(None, [A]) is None


@pytest.mark.parametrize("on_tensor_cores", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_sums_of_lower_triangles(
    shared: bool, on_tensor_cores: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "substitutes", lambda _: False)
    if on_tensor_cores:
        stand_in(monkeypatch)
    like = normal(1 if shared else 2, 6, 6)
    A, B, a, b = normal(2, 6, 3), normal(2, 6, 3, seed=1), normal(2, 6, 1, seed=2), normal(2, 6, 1, seed=3)
    L, R = normal(2, 6, 6, seed=4).tril(), normal(2, 6, 6, seed=5).tril()
    Outer = products.Outer
    found = products.lower_outers(like, Outer(A, B), Outer(L, R, -1.0, triangles=True), Outer(a, b, -1.0))
    expected = (A @ B.mT - L @ R.mT - a @ b.mT).sum_to_size(like.shape).tril()
    torch.testing.assert_close(found, expected)
