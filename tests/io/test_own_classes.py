"""Kernels, likelihoods, means and methods of a user come back from a folder by ``classes=``."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import duogp
from duogp.io import SavedModelError, load
from duogp.io.common import _method_state, method_from_state
from duogp.io.specs import Reader, Writer
from duogp.kernels import RBF, Scale
from duogp.methods import Method
from duogp.numerics.parameters import GammaPrior, Prior
from helpers import own_parts as own
from helpers.saving import NEW, X, Y, answers, assert_equal, quick

TESTS = Path(__file__).parents[1]
MODELS = {
    "kernel": ({"kernel": own.Cauchy(2.0, power=2)}, "Cauchy"),
    "kernel within ours": ({"kernel": Scale(own.Cauchy(0.5)) + RBF(2)}, "Cauchy"),
    "nested kernels": ({"kernel": own.Blend(own.Cauchy(), Scale(RBF(2)), (0.3, 0.7))}, "Blend Cauchy"),
    "inherited constructor": ({"kernel": own.Squared(2, ard=False, prior=GammaPrior(2.0, 3.0))}, "Squared"),
    "inherited arguments": ({"kernel": own.Halved(RBF(2), 2.0)}, "Halved"),
    "likelihood": ({"likelihood": own.Tempered(temperature=2.0, floor=1e-4)}, "Tempered"),
    "mean": ({"mean": own.Ramp(0.5)}, "Ramp"),
    "mean with config": ({"mean": own.Configured(slope=0.5)}, "Configured"),
    "all, deep": ({"method": "dgp", "mean": own.Ramp(), "likelihood": own.Tempered()}, "Ramp Tempered"),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> dict:
    home = tmp_path_factory.mktemp("own")
    models = {}
    for i, (name, (given, _)) in enumerate(MODELS.items()):
        models[name] = quick(**given)
        models[name].save(home / str(i))
    return {name: (model, home / str(i)) for i, (name, model) in enumerate(models.items())}


def test_a_new_process_predicts_the_same(saved, tmp_path):
    code = """
        import json, sys
        import numpy as np
        import duogp
        sys.path.insert(0, sys.argv[1])
        from helpers import own_parts as own
        out = {}
        for name, (folder, classes) in json.loads(sys.argv[2]).items():
            gp = duogp.load(folder, classes=[getattr(own, c) for c in classes.split()])
            prediction = gp.predict(np.array(json.loads(sys.argv[3])))
            out[name] = [prediction.mean.tolist(), prediction.variance.tolist()]
        print(json.dumps(out))
    """
    folders = {name: (str(folder), MODELS[name][1]) for name, (_, folder) in saved.items()}
    command = [sys.executable, "-c", textwrap.dedent(code), str(TESTS), json.dumps(folders)]
    done = subprocess.run(
        [*command, json.dumps(NEW.tolist())], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    for name, found in json.loads(done.stdout).items():
        prediction = saved[name][0].predict(NEW)
        np.testing.assert_allclose(
            found, [prediction.mean, prediction.variance], rtol=1e-9, atol=1e-9, err_msg=name
        )


@pytest.mark.parametrize("name", list(MODELS))
def test_everything_comes_back(name, saved, tmp_path):
    model, folder = saved[name]
    classes = [getattr(own, c) for c in MODELS[name][1].split()]
    back = load(folder, classes=[*classes, own.Unknown])  # one that is not needed does no harm
    if not isinstance(getattr(model.settings, "kernel", None), own.Squared):  # has no random features
        assert_equal(answers(back), answers(model))
    back.save(tmp_path / "again")
    for file in ("manifest.json", "tensors.safetensors"):
        assert (folder / file).read_bytes() == (tmp_path / "again" / file).read_bytes()


def test_the_error_names_the_class_and_the_keyword(saved):
    _, folder = saved["nested kernels"]
    with pytest.raises(
        SavedModelError, match=r"'kernel' \(it was a .*\.Blend\).*load\(folder, classes=\[Blend\]\)"
    ):
        load(folder)
    with pytest.raises(SavedModelError, match=r"'kernel\.first' \(.*Cauchy\).*classes=\[Cauchy\]"):
        load(folder, classes=[own.Blend])


def test_objects_instead_of_classes(saved):
    model, folder = saved["nested kernels"]
    for given in (
        {"objects": {"kernel": own.Blend(own.Cauchy(), Scale(RBF(2)), (0.3, 0.7))}},
        {"objects": {"kernel.first": own.Cauchy()}, "classes": [own.Blend]},
    ):
        assert_equal(answers(load(folder, **given)), answers(model))


def test_frozen_parameters_stay_frozen(tmp_path):
    kernel = own.Cauchy()
    kernel.width.raw.requires_grad_(False)
    quick(kernel=kernel).save(tmp_path / "model")
    back = load(tmp_path / "model", classes=[own.Cauchy])
    assert not back.settings.kernel.width.raw.requires_grad
    assert not back.model.basis.kernel.width.raw.requires_grad


def test_arguments_that_are_not_known_need_the_object(tmp_path):
    model = quick(mean=own.Unknown(0.5))
    model.save(tmp_path / "model")
    with pytest.raises(
        SavedModelError, match=r"objects=\{'mean': \.\.\.\}.*no attribute 'slope'.*config\(\)"
    ):
        load(tmp_path / "model", classes=[own.Unknown])
    back = load(tmp_path / "model", objects={"mean": own.Unknown()})
    assert_equal(answers(back), answers(model))


def test_a_config_that_is_no_json_is_refused(tmp_path):
    model = quick(mean=own.Configured(slope=0.5))
    for wrong in (object(), {"a": 1}, float("nan"), lambda x: x):
        model.settings.mean._options["slope"] = wrong
        with pytest.raises(
            SavedModelError, match=r"Configured\.config\(\) cannot be saved: argument 'slope'"
        ):
            model.save(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_two_classes_of_one_name_are_refused(tmp_path):
    other = type("Cauchy", (own.Cauchy,), {})
    with pytest.raises(SavedModelError, match="are named 'Cauchy'"):
        quick(kernel=own.Blend(own.Cauchy(), other())).save(tmp_path / "model")
    with pytest.raises(ValueError, match="two different things named 'Cauchy'"):
        load(tmp_path / "model", classes=[own.Cauchy, other])


@pytest.mark.parametrize("classes", ["Cauchy", {"Cauchy": own.Cauchy}, [own.Cauchy()], 3])
def test_classes_is_a_list_of_classes(classes, saved):
    with pytest.raises(TypeError, match="classes must"):
        load(saved["kernel"][1], classes=classes)


def test_a_class_of_another_shape_is_refused(saved):
    class Cauchy(own.Cauchy):
        def __init__(self, width: float, power: int) -> None:
            super().__init__([width, width], power)

    with pytest.raises(SavedModelError, match="was saved as"):
        load(saved["kernel"][1], classes=[Cauchy])
    with pytest.raises(SavedModelError, match="impossible Cauchy"):
        load(saved["kernel"][1], classes=[type("Cauchy", (), {})])


def test_an_own_prior_comes_back_or_is_left_out(tmp_path):
    class Halving(Prior):
        def __init__(self, rate: float) -> None:
            self.rate = rate

        def __call__(self, value: torch.Tensor) -> torch.Tensor:
            return -self.rate * value

    quick(kernel=RBF(2, prior=Halving(3.0))).save(tmp_path / "model")
    assert load(tmp_path / "model").settings.kernel.lengthscale.prior is None
    assert load(tmp_path / "model", classes=[Halving]).settings.kernel.lengthscale.prior.rate == 3.0


def test_estimators(tmp_path):
    estimator = duogp.GPRegressor("svgp", kernel=own.Cauchy(), num_inducing=5, epochs=1, random_state=0)
    estimator.fit(X, Y).save(tmp_path / "model")
    with pytest.raises(SavedModelError, match=r"classes=\[Cauchy\]"):
        load(tmp_path / "model")
    back = load(tmp_path / "model", classes=[own.Cauchy])
    np.testing.assert_allclose(back.predict(NEW), estimator.predict(NEW), rtol=1e-12)
    assert isinstance(back.kernel, own.Cauchy)


# -- methods outside the registry ----------------------------------------------------------------------------


def test_a_method_of_known_parts(tmp_path):
    model = quick()
    model.method = replace(model.method, name="mine", own_settings=(("beta2", 0.5), ("widths", (3, 2))))
    model.save(tmp_path / "model")
    back = load(tmp_path / "model")
    assert back.method == model.method
    assert_equal(answers(back), answers(model))


class OwnBasis:
    pass


def own_objective() -> None: ...


def test_a_method_of_own_parts():
    method = Method("mine", OwnBasis, "full", own_objective, False, "zhu2023", "a sentence")
    writer = Writer()
    part = {"method": _method_state(method, writer), "settings": {}, "objects": writer.objects}
    part = json.loads(json.dumps(part))
    assert part["method"]["basis"] == {"named": "OwnBasis"}
    reader = Reader(part, 0, classes=[OwnBasis, own_objective])
    assert method_from_state(part, reader) == method
    with pytest.raises(SavedModelError, match=r"classes=\[OwnBasis, own_objective\]"):
        Reader(part, 0)
    with pytest.raises(SavedModelError, match="has no name to be saved by"):
        _method_state(replace(method, objective=lambda: None), Writer())
