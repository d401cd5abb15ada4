"""Saved models with objects of the user: extractors, kernels, priors, means."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import duogp
from duogp.io import SavedModelError, load
from duogp.kernels import RBF, Deep, Kernel, Matern52, Periodic, Scale
from duogp.means import ModuleMean
from duogp.numerics.networks import MLP
from duogp.numerics.parameters import Positive, Prior
from helpers.saving import Y, quick, round_trip


class Net(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(2, width), nn.Linear(width, 3)
        self.register_buffer("shift", torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(torch.tanh(self.a(x))) + self.shift


class OwnKernel(Kernel):
    """A kernel of somebody else's."""

    def __init__(self) -> None:
        super().__init__()
        self.width = Positive(1.0)

    def forward(self, x1: torch.Tensor, x2: torch.Tensor) -> torch.Tensor:
        return torch.exp(-torch.cdist(x1, x2).square() * self.width()[..., None, None].to(x1))

    def diag(self, x: torch.Tensor) -> torch.Tensor:
        return self.forward(x, x).diagonal(dim1=-2, dim2=-1)


class OwnPrior(Prior):
    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        return -value


def test_own_extractor(tmp_path):
    torch.manual_seed(0)
    model = quick("svgp-dkl", extractor=Net())
    model.save(tmp_path / "model")
    with pytest.raises(
        SavedModelError, match=r"'extractor' \(it was a .*Net\).*objects=\{'extractor': \.\.\.\}"
    ):
        load(tmp_path / "model")
    mine = Net()
    before = mine.a.weight.detach().clone()
    back = round_trip(model, tmp_path / "model", y=Y[:6], objects={"extractor": mine})
    assert torch.equal(mine.a.weight, before)  # what was handed over is left alone
    assert back.settings.extractor is mine
    for wrong in (Net(5), nn.Linear(2, 3), nn.Linear(7, 3), "net", object()):
        with pytest.raises(SavedModelError):
            load(tmp_path / "model", objects={"extractor": wrong})
    with pytest.raises(SavedModelError, match=r"'extracter', unknown to this model: .* extractor"):
        load(tmp_path / "model", objects={"extracter": mine})
    with pytest.raises(TypeError, match="objects must be a mapping"):
        load(tmp_path / "model", objects=[mine])


def test_two_extractors(tmp_path):
    model = quick("svgp-dcdkl", extractor=Net(), mean_extractor=Net(3))
    round_trip(model, tmp_path / "model", objects={"extractor": Net(), "mean_extractor": Net(3)})


def test_places_within_kernels_and_means(tmp_path):
    kernel = Scale(RBF(2)) + Scale(Deep(Net(), Matern52(3), 2, 3)) + Scale(OwnKernel())
    model = quick(kernel=kernel, mean=ModuleMean(nn.Linear(2, 1)))
    model.save(tmp_path / "model")
    places = {
        "kernel.1.kernel.extractor": Net(),
        "kernel.2.kernel": OwnKernel(),
        "mean.module": nn.Linear(2, 1),
    }
    manifest = json.loads((tmp_path / "model" / "manifest.json").read_text())
    assert manifest["objects"].keys() == places.keys()
    round_trip(model, tmp_path / "model", objects=places)
    del places["mean.module"]
    with pytest.raises(SavedModelError, match=r"'mean\.module' \(it was a torch\.nn.*\.Linear\)"):
        load(tmp_path / "model", objects=places)


def test_own_mean_of_a_deep_gp(tmp_path):
    model = quick("dgp", mean=nn.Linear(2, 1))
    round_trip(model, tmp_path / "model", objects={"mean": nn.Linear(2, 1)})


def test_gpytorch_kernels(tmp_path):
    gpytorch = pytest.importorskip("gpytorch")

    def kernel():
        return gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=2))

    model = quick(kernel=kernel())
    round_trip(model, tmp_path / "model", y=Y[:6], objects={"kernel": kernel()})
    model = quick(kernel=duogp.kernels.GPyTorchKernel(kernel()) + RBF(2))
    round_trip(model, tmp_path / "sum", y=Y[:6], objects={"kernel.0.kernel": kernel()})


def test_what_training_alone_needs_may_be_missing(tmp_path):
    def schedule(fraction: float) -> float:
        return 1.0 - fraction

    model = quick(kernel=RBF(2, prior=OwnPrior()), schedule=schedule)
    back = round_trip(model, tmp_path / "model")
    assert back.settings.schedule is None
    assert back.settings.kernel.lengthscale.prior is None
    network = quick("deep-ensemble", schedule=schedule)
    assert round_trip(network, tmp_path / "network").settings.schedule == "cosine"
    prior = OwnPrior()
    back = load(tmp_path / "model", objects={"schedule": schedule, "kernel.prior": prior})
    assert back.settings.schedule is schedule
    assert back.settings.kernel.lengthscale.prior is prior


def test_kernel_objects_come_back_as_they_were_given(tmp_path):
    kernel = Scale(RBF(2, lengthscale=[0.5, 2.0]), 3.0) + Periodic(2, ard=False, period=4.0)
    kernel.kernels[0].kernel.lengthscale.raw.requires_grad_(False)
    model = quick(kernel=kernel)
    model.save(tmp_path / "model")
    back = load(tmp_path / "model").settings.kernel
    assert repr(back) == repr(kernel)
    flags = [{name: p.requires_grad for name, p in k.named_parameters()} for k in (back, kernel)]
    assert flags[0] == flags[1]


def test_loading_leaves_the_random_numbers_of_the_process_alone(tmp_path):
    quick("svgp-dkl", extractor=MLP(2, [4, 2])).save(tmp_path / "model")
    state = torch.get_rng_state()
    load(tmp_path / "model")
    assert torch.equal(torch.get_rng_state(), state)
