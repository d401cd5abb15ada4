"""Folders of saved models: written all at once, read only whole and unchanged, and never executed."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import os
import shutil
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import duogp
from duogp.io import SavedModelError, folder, is_saved_model, load, read_folder, swap, write_folder
from duogp.io.folder import MANIFEST, TENSORS, checksum
from duogp.kernels import RBF, Scale
from duogp.numerics.networks import MLP

RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 2))
Y = np.sin(2 * X[:, 0]) + 0.1 * RNG.normal(size=30)
SMALL = {"num_inducing": 4, "epochs": 1}


def fit(method: str = "svgp", **settings):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", duogp.DataWarning)
        return duogp.fit(X, settings.pop("y", Y), method, **{**SMALL, **settings})


@pytest.fixture(scope="module")
def originals(tmp_path_factory) -> Path:
    """Folders that tests copy and then damage."""
    home = tmp_path_factory.mktemp("originals")
    fit().save(home / "svgp")
    fit("dgp").save(home / "dgp")
    fit("svgp", y=Y > 0, likelihood="classes").save(home / "classes")
    fit("svgp", kernel=Scale(RBF(2)) + 1.0, mean="linear").save(home / "kernel")
    fit("svgp-dkl", extractor=MLP(2, [3, 2])).save(home / "extractor")
    fit("svgp-dkl", widths=[3, 2]).save(home / "dkl")
    fit("mc-dropout", widths=[3, 2], passes=4).save(home / "mc-dropout")
    fit("exact", noise=np.full(30, 0.1)).save(home / "exact")
    fit("svgp", y=np.stack([Y, -Y, Y], 1), num_latents=2).save(home / "mixed")
    return home


@pytest.fixture
def model(originals, tmp_path) -> Path:
    return copied(originals, "svgp", tmp_path)


def copied(originals: Path, name: str, to: Path) -> Path:
    return Path(shutil.copytree(originals / name, to / name, dirs_exist_ok=True))


def manifest_of(path: Path) -> dict:
    return json.loads((path / MANIFEST).read_text())


def write_manifest(path: Path, manifest: dict, *, signed: bool = True) -> None:
    """As somebody would who knows how the checksum is made."""
    if signed:
        manifest["checksum"] = checksum(manifest)
    (path / MANIFEST).write_text(json.dumps(manifest))


def edit(path: Path, *place: str, to) -> None:
    """Change one entry of a manifest, checksum included."""
    manifest = manifest_of(path)
    part = manifest
    for name in place[:-1]:
        part = part[name]
    part[place[-1]] = to
    write_manifest(path, manifest)


def rewrite_tensors(path: Path, change) -> None:
    """Change the tensors, and let the manifest know."""
    manifest, tensors = manifest_of(path), load_file(path / TENSORS)
    kind = manifest["kind"]
    tensors = change(tensors) or tensors
    part = {k: v for k, v in manifest.items() if k not in folder.HEADER}
    assert part["kind"] == kind
    write_folder(path, part, tensors)


# -- writing -------------------------------------------------------------------------------------------------


def test_a_folder_of_two_files_that_can_be_read(model):
    assert sorted(p.name for p in model.iterdir()) == [MANIFEST, TENSORS]
    manifest = manifest_of(model)
    assert manifest["format"] == "duogp-model"
    assert manifest["format_version"] == "1.1"
    assert manifest["written_by"]["duogp"] == duogp.__version__
    assert (manifest["kind"], manifest["method"]) == ("gp", "svgp")
    assert manifest["settings"]["num_inducing"] == 4
    assert (model / MANIFEST).read_text().count("\n") < 160
    assert load_file(model / TENSORS).keys() == manifest["tensors"]["entries"].keys()


def test_parents_are_made_and_the_place_is_returned(tmp_path):
    path = fit().save(tmp_path / "a" / "b")
    assert path == (tmp_path / "a" / "b").resolve()
    assert load(str(path)).method.name == "svgp"


def test_saved_models_are_replaced_and_other_files_stay(model, originals):
    (model / "notes.txt").write_text("mine")
    (model / "pictures").mkdir()
    fit("map").save(model)
    assert load(model).method.name == "map"
    assert (model / "notes.txt").read_text() == "mine"
    assert (model / "pictures").is_dir()
    assert [p.name for p in model.parent.iterdir()] == ["svgp"]  # nothing is left beside it


def test_an_empty_folder_is_free(tmp_path):
    (tmp_path / "model").mkdir()
    fit().save(tmp_path / "model")
    assert is_saved_model(tmp_path / "model")


def test_what_is_no_saved_model_is_not_overwritten(tmp_path):
    thesis = tmp_path / "thesis"
    thesis.mkdir()
    (thesis / "chapter.tex").write_text("...")
    with pytest.raises(SavedModelError, match="is not a saved model: it will not be overwritten"):
        fit().save(thesis)
    (thesis / MANIFEST).write_text("{}")
    with pytest.raises(SavedModelError, match="is not a saved model"):
        fit().save(thesis)
    assert sorted(p.name for p in thesis.iterdir()) == ["chapter.tex", MANIFEST]
    (tmp_path / "file").write_text("...")
    with pytest.raises(SavedModelError, match="is a file"):
        fit().save(tmp_path / "file")


def test_a_link_to_a_folder_stays_a_link(model, tmp_path):
    (tmp_path / "latest").symlink_to(model, target_is_directory=True)
    fit("map").save(tmp_path / "latest")
    assert (tmp_path / "latest").is_symlink()
    assert load(model).method.name == "map"


@pytest.mark.parametrize("when", ["writing", "moving"])
def test_a_failure_leaves_what_was_there(model, monkeypatch, when):
    before = {p.name: p.read_bytes() for p in model.iterdir()}
    gp = fit("map")
    if when == "writing":
        monkeypatch.setattr(os, "fsync", _no_space)
    else:
        rename = os.rename
        monkeypatch.setattr(swap, "_exchange", lambda one, other: False)  # as on other systems
        monkeypatch.setattr(os, "rename", lambda a, b: _no_space() if ".new-" in str(a) else rename(a, b))
    with pytest.raises(OSError, match="no space"):
        gp.save(model)
    assert {p.name: p.read_bytes() for p in model.iterdir()} == before
    assert [p.name for p in model.parent.iterdir()] == ["svgp"]


@pytest.mark.parametrize("at_once", [True, False])
def test_files_of_a_model_are_replaced_with_it(at_once, tmp_path, monkeypatch):
    """And those of nobody, such as notes, stay."""
    if not at_once:
        monkeypatch.setattr(swap, "_exchange", lambda one, other: False)
    target = tmp_path / "model"
    write_folder(target, {"kind": "a"}, {}, {"table.json": b"first"})
    (target / "notes.txt").write_text("mine")
    assert folder.file_of(target, "table.json") == b"first"
    write_folder(target, {"kind": "a"}, {}, {"table.json": b"second"})
    assert folder.file_of(target, "table.json") == b"second"
    assert (target / "notes.txt").read_text() == "mine"
    (target / "table.json").write_bytes(b"first")
    with pytest.raises(SavedModelError, match=r"table\.json was changed after it was written"):
        folder.file_of(target, "table.json")
    write_folder(target, {"kind": "a"}, {})  # a model that has none
    assert sorted(p.name for p in target.iterdir()) == [MANIFEST, "notes.txt", TENSORS]
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


@pytest.mark.skipif(sys.platform != "linux", reason="folders change places at once on Linux only")
def test_readers_and_writers_at_the_same_time(tmp_path):
    """A reader finds one of the models, whole; a writer fails at nothing."""
    target = tmp_path / "model"
    contents = [({"kind": "a", "number": k}, {"t": torch.full((50,), float(k))}) for k in range(2)]
    write_folder(target, *contents[0])

    def write(k: int) -> None:
        for _ in range(40):
            write_folder(target, *contents[k], {"table.json": str(k).encode()})

    def read(_: int) -> None:
        for _ in range(80):
            manifest, tensors = read_folder(target)
            assert float(tensors["t"].mean()) == manifest["number"]

    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(work, k) for k in range(2) for work in (write, read)]
        for job in jobs:
            job.result()
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def _no_space(*_args) -> None:
    raise OSError("no space left")


def test_a_model_that_is_not_finite_is_not_saved(tmp_path):
    gp = fit()
    with torch.no_grad():
        gp.model.basis.inducing[0, 0, 0, 0] = float("nan")
    with pytest.raises(SavedModelError, match=r"not finite are not saved: basis\.inducing"):
        gp.save(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_manifests_of_other_kinds_keep_to_json(tmp_path):
    with pytest.raises(ValueError, match="kind"):
        write_folder(tmp_path / "model", {}, {})
    with pytest.raises(ValueError, match="written for every folder: checksum"):
        write_folder(tmp_path / "model", {"kind": "a", "checksum": "b"}, {})
    with pytest.raises((TypeError, ValueError)):
        write_folder(tmp_path / "model", {"kind": "a", "value": float("nan")}, {})
    with pytest.raises(TypeError):
        write_folder(tmp_path / "model", {"kind": "a", "value": object()}, {})
    assert list(tmp_path.iterdir()) == []
    shared = torch.arange(6.0).view(2, 3)
    given = {
        "a": shared,
        "b": shared.mT,
        "c": shared[:1].expand(4, 3),
        "d": torch.zeros(2, 0, dtype=torch.long),
    }
    write_folder(tmp_path / "model", {"kind": "a", "value": [1, {"b": None}]}, given)
    manifest, tensors = read_folder(tmp_path / "model")
    assert manifest["value"] == [1, {"b": None}]
    assert tensors.keys() == given.keys()
    assert all(torch.equal(tensors[name], value) for name, value in given.items())
    with pytest.raises(SavedModelError, match="unknown kind 'a'"):
        load(tmp_path / "model")


@pytest.mark.slow
def test_without_safetensors(originals):
    code = f"""
import sys
sys.modules["safetensors"] = None
import duogp
try:
    duogp.load({str(originals / "svgp")!r})
except ImportError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert "need the package safetensors: pip install" in done.stdout


# -- folders that are not what they should be ----------------------------------------------------------------


def test_missing_and_foreign_folders(tmp_path, model):
    for path, message in (
        (tmp_path / "nowhere", "no such folder"),
        (model / MANIFEST, "which is a folder"),
        (tmp_path, "it has no manifest.json"),
    ):
        with pytest.raises(SavedModelError, match=message) as found:
            load(path)
        assert str(path) in str(found.value)
    for text, message in (
        ("", "damaged"),
        ("[1, 2]", "no manifest"),
        ('{"name": "a web application"}', "written by something else"),
        ("[" * 100_000, "damaged"),
        ('{"format": NaN}', "damaged"),
        ('{"format": 1e999}', "damaged"),
        ('{"format": ' + "1" * 10_000 + "}", "damaged"),
    ):
        (model / MANIFEST).write_text(text)
        with pytest.raises(SavedModelError, match=message):
            load(model)
        assert not is_saved_model(model)
    (model / MANIFEST).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SavedModelError, match="damaged"):
        load(model)


def test_missing_and_damaged_tensors(model):
    data = (model / TENSORS).read_bytes()
    (model / TENSORS).unlink()
    with pytest.raises(SavedModelError, match=r"tensors\.safetensors is missing"):
        load(model)
    (model / TENSORS).write_bytes(data[:-8])
    with pytest.raises(SavedModelError, match="it is not complete"):
        load(model)
    (model / TENSORS).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(SavedModelError, match="wrong checksum"):
        load(model)
    for bad in (b"", b"\xff" * 8 + data[8:], data[: len(data) // 2], b"\x80\x04K\x01."):
        (model / TENSORS).write_bytes(bad)
        edit(model, "tensors", "bytes", to=len(bad))
        edit(model, "tensors", "sha256", to=hashlib.sha256(bad).hexdigest())
        with pytest.raises(SavedModelError, match="is damaged"):
            load(model)


def test_an_edited_manifest(model):
    manifest = manifest_of(model)
    manifest["outputs"]["scaler"]["scale"] = [2.0]
    write_manifest(model, manifest, signed=False)
    with pytest.raises(SavedModelError, match="was changed after it was written"):
        load(model)


def test_layout_is_no_change(model):
    text = (model / MANIFEST).read_text()
    (model / MANIFEST).write_text(json.dumps(json.loads(text), indent=7, sort_keys=True))
    assert load(model).method.name == "svgp"


@pytest.mark.parametrize(
    ("name", "place", "to", "message"),
    [
        ("svgp", ("method",), "svgq", "'svgq' is unknown"),
        ("svgp", ("method",), "mc-dropout", "no GP"),
        ("svgp", ("method",), None, "no GP"),
        ("svgp", ("method",), "odsvgp", "cannot be built"),
        ("svgp", ("method",), "ppgpr-mf", "basis.q.std|no place"),
        ("svgp", ("kind",), "os.system", "unknown kind 'os.system'"),
        ("svgp", ("kind",), "neural", "settings that are not possible"),
        ("mc-dropout", ("kind",), "gp", "no GP"),
        ("mc-dropout", ("model", "network"), "perceptron", "'perceptron'"),
        ("mc-dropout", ("settings", "passes"), 10**9, "different numbers of networks"),
        ("mc-dropout", ("settings", "heteroscedastic"), True, "no place|was saved as"),
        ("svgp", ("settings", "kernel"), {"class": "os.system", "command": "true"}, "class 'os.system'"),
        ("svgp", ("settings", "kernel"), {"class": "Module"}, "unknown class 'Module'"),
        ("svgp", ("settings", "kernel"), {"class": ["RBF"]}, "unknown class"),
        ("svgp", ("settings", "kernel"), {"object": "kernel"}, "does not list"),
        ("svgp", ("settings", "kernel"), {"class": "RBF", "dims": 10**10, "ard": True}, "far larger"),
        ("svgp", ("settings", "kernel"), {"class": "RBF", "dims": 2.5, "ard": True}, "no count"),
        ("svgp", ("settings", "kernel"), {"class": "RBF", "dims": 2, "lengthscale": -1.0}, "impossible RBF"),
        ("svgp", ("settings", "kernel"), {"class": "Scale", "kernel": "rbf"}, "no kernel"),
        ("svgp", ("settings", "kernel"), {"class": "Scale", "kernel": {"class": "Zero"}}, "no kernel"),
        ("svgp", ("settings", "kernel"), "no kernel", "unknown kernel"),
        ("svgp", ("settings", "kernel"), {"class": "Sum", "kernels": 5}, "no kernel"),
        ("svgp", ("settings", "kernel"), {"class": "Sum", "kernels": [{"class": "Zero"}]}, "no kernel"),
        ("svgp", ("settings", "kernel"), {"class": "RBF", "dims": 2, "ard": 1}, "no flag"),
        ("svgp", ("settings", "kernel"), {"class": "RBF", "dims": 2, "lengthscale": ["1"]}, "no number"),
        ("svgp", ("settings", "mean"), {"class": "RBF", "dims": 2, "ard": True}, "not saved"),
        ("svgp", ("settings", "likelihood"), {"class": "SoftmaxLikelihood", "classes": 10**8}, "far larger"),
        ("svgp", ("settings", "likelihood"), {"class": "PoissonLikelihood", "nodes": 10**6}, "far larger"),
        ("svgp", ("settings", "likelihood"), {"class": "BetaLikelihood", "nodes": 10**4}, "far larger"),
        ("svgp", ("settings", "likelihood"), {"class": "BetaLikelihood", "link": 3}, "no text"),
        (
            "svgp",
            ("settings", "likelihood"),
            {"class": "RobustMaxLikelihood", "classes": 2, "samples": 10**5},
            "far larger",
        ),
        ("extractor", ("settings", "extractor"), {"class": "MLP", "inputs": 2}, "impossible MLP"),
        ("svgp", ("settings", "likelihood"), "bernoulli", "class labels"),
        ("svgp", ("settings", "num_inducing"), -3, "not possible"),
        ("svgp", ("settings", "dtype"), "float16", "not possible"),
        ("svgp", ("settings", "dtype"), "float32", "float64"),
        ("svgp", ("settings", "num_latents"), 10**9, "latent functions"),
        ("svgp", ("settings",), [], "expected dict"),
        ("svgp", ("inputs", "used"), [True, False], "scales 2 columns"),
        ("svgp", ("inputs", "used"), [1, 1], "unexpected type"),
        ("svgp", ("inputs", "names"), ["a"], "a name for each"),
        ("svgp", ("inputs", "scaler", "scale"), [1.0, 0.0], "impossible 'scaler'"),
        ("svgp", ("inputs", "scaler", "scale"), ["1.0", 0.0], "unexpected type"),
        ("svgp", ("outputs", "scaler"), {"shift": [0.0, 0.0], "scale": [1.0, 1.0]}, "2 outputs"),
        ("svgp", ("outputs", "classes"), {"dtype": "bool", "values": [True, False]}, "class labels"),
        ("classes", ("outputs", "classes"), None, "needs classes"),
        ("classes", ("outputs", "classes"), {"dtype": "object", "values": [0, 1]}, "class labels"),
        ("classes", ("outputs", "classes"), {"dtype": "<U999999999", "values": ["a", "b"]}, "class labels"),
        ("classes", ("outputs", "classes"), {"dtype": "int64", "values": [1, 1]}, "different"),
        ("classes", ("outputs", "classes"), {"dtype": "int64", "values": list(range(5))}, "latent functions"),
        ("classes", ("outputs", "classes"), {"dtype": "int64", "values": list(range(10**4))}, "at most 1000"),
        ("svgp", ("history", "records", "loss"), [], "do not fit together"),
        ("svgp", ("history", "seconds"), "much", "'much'"),
        ("svgp", ("model", "positive", "likelihood.noise", "transform"), "eval", "impossible transform"),
        ("svgp", ("model", "positive", "likelihood.noise", "floor"), -1, "impossible transform"),
        ("svgp", ("model", "jitter"), -1.0, "jitter must be a positive number"),
        ("svgp", ("model", "num_data"), "40", "expected int"),
        ("dgp", ("settings", "num_layers"), 10**9, "layers"),
        ("dgp", ("settings", "hidden_width"), 10**9, "units"),
        ("dgp", ("settings", "num_samples"), 10**9, "far larger"),
        ("extractor", ("settings", "extractor", "widths"), [10**6, 10**6, 2], "far larger"),
        ("extractor", ("settings", "extractor", "activation"), "eval", "impossible MLP"),
        ("extractor", ("settings", "extractor"), None, "not saved"),
        ("mixed", ("settings", "num_latents"), None, "latent functions"),
        ("mixed", ("settings", "num_latents"), 3, "latent functions"),
        ("svgp", ("tensors", "entries", "basis.inducing", "shape"), [1, 1, 10**12, 2], "manifest says"),
        ("svgp", ("tensors", "entries", "basis.inducing", "dtype"), "float32", "manifest says"),
        ("svgp", ("tensors", "entries"), {}, "different tensors"),
        ("svgp", ("tensors", "bytes"), 10**15, "not complete"),
    ],
)  # fmt: skip
def test_manifests_that_are_wrong(name, place, to, message, originals, tmp_path):
    path = copied(originals, name, tmp_path)
    edit(path, *place, to=to)
    with pytest.raises(SavedModelError, match=message) as found:
        load(path)
    assert str(path) in str(found.value)


def test_settings_of_another_size_are_read_from_the_tensors(originals, tmp_path):
    """Widths that an edited manifest blows up are never built."""
    path = copied(originals, "dkl", tmp_path)
    edit(path, "settings", "widths", to=[10**7, 10**7])
    assert np.isfinite(load(path).predict(X).mean).all()


def remove(name):
    return lambda tensors: {key: value for key, value in tensors.items() if key != name}


def put(name, value):
    return lambda tensors: tensors | {name: value}


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("svgp", remove("basis.inducing"), "no points"),
        ("svgp", remove("basis.q.mean"), "no coefficients"),
        ("svgp", remove("likelihood.noise.raw"), "not saved: likelihood.noise.raw"),
        ("svgp", remove("beta1"), "cannot be built"),
        ("svgp", put("more", torch.ones(2)), "no place in the model: more"),
        ("svgp", put("basis.q.mean", torch.zeros(1, 1, 5, dtype=torch.float64)), "was saved as"),
        ("svgp", put("basis.q.mean", torch.zeros(1, 1, 4)), "float32"),
        ("svgp", put("basis.inducing", torch.zeros(1, 1, 10**5, 2, dtype=torch.float64)), "no covariance"),
        ("svgp", put("basis.inducing", torch.zeros(1, 1, 4, 3, dtype=torch.float64)), "points have 3"),
        ("svgp", put("basis.inducing", torch.zeros(4, 2, dtype=torch.float64)), "no points"),
        ("svgp", put("basis.q.mean", torch.full((1, 1, 4), torch.nan, dtype=torch.float64)), "not finite"),
        ("svgp", put("numerics.jitter", torch.full((1, 1), torch.inf, dtype=torch.float64)), "not finite"),
        ("svgp", put("beta1", torch.ones(10**6, dtype=torch.float64)), "cannot be built"),
        ("mc-dropout", remove("mask0"), "different numbers"),
        ("mc-dropout", remove("net.layers.0.weight"), "no networks"),
        ("mc-dropout", put("mask0", torch.zeros(10**4, 1, 3)), "different numbers"),
        ("dkl", put("basis.kernel.extractor.layers.1.weight", torch.zeros(1, 1, 9, 10**5)), "fit together"),
    ],
)  # fmt: skip
def test_tensors_that_are_wrong(name, change, message, originals, tmp_path):
    path = copied(originals, name, tmp_path)
    rewrite_tensors(path, change)
    with pytest.raises(SavedModelError, match=message):
        load(path)


def test_infinite_buffers_of_others_are_allowed_and_nothing_else(originals, tmp_path):
    path = copied(originals, "svgp", tmp_path)
    rewrite_tensors(path, put("basis.q.mean", torch.full((1, 1, 4), torch.nan, dtype=torch.float64)))
    edit(path, "model", "infinite", to=["basis.q.mean"])
    with pytest.raises(SavedModelError, match="not finite"):
        load(path)


def test_a_pickle_is_never_opened(model, tmp_path):
    """A file that would run a command, had it been unpickled."""
    ran = tmp_path / "ran"

    class Evil:
        def __reduce__(self):
            return os.system, (f"touch {ran}",)

    torch.save({"basis.inducing": Evil()}, model / TENSORS)
    with pytest.raises(SavedModelError):
        load(model)
    assert not ran.exists()


def test_random_damage(originals, tmp_path):
    """Flipped bytes and cut files: loaded as it was, or refused."""
    path = copied(originals, "kernel", tmp_path)
    rng = np.random.default_rng(1)
    for name in (MANIFEST, TENSORS):
        whole = (path / name).read_bytes()
        for _ in range(60):
            data = bytearray(whole)
            for _ in range(rng.integers(1, 4)):
                data[rng.integers(len(data))] = rng.integers(256)
            cut = len(data) if rng.random() < 0.7 else rng.integers(len(data))
            (path / name).write_bytes(bytes(data[:cut]))
            with contextlib.suppress(SavedModelError):
                load(path)
        (path / name).write_bytes(whole)
    assert load(path).method.name == "svgp"


STRANGE = [None, True, -1, 0, 3, 2.5, 10**12, "", "inf", "os.system", [], [1], [[1.0]]]
STRANGE += [{}, {"class": "RBF"}, {"class": "Sum", "kernels": []}, {"object": "a"}]
EDITED = ["svgp", "dgp", "classes", "kernel", "extractor", "mc-dropout", "exact", "mixed"]


@pytest.mark.parametrize("name", EDITED)
def test_random_edits(name, originals, tmp_path):
    """Every entry in turn replaced by something strange, or taken out: a model, or a clear refusal."""
    path = copied(originals, name, tmp_path)
    original, _ = read_folder(path)
    rng = np.random.default_rng(2)
    places = list(_places({k: v for k, v in original.items() if k not in folder.HEADER}))
    for place in places:
        manifest = copy.deepcopy(original)
        part = manifest
        for key in place[:-1]:
            part = part[key]
        if rng.random() < 0.2 and isinstance(part, dict):
            del part[place[-1]]
        else:
            part[place[-1]] = STRANGE[rng.integers(len(STRANGE))]
        write_manifest(path, manifest)
        with contextlib.suppress(SavedModelError):
            load(path)
    assert len(places) > 50


def _places(part, before=()):
    pairs = part.items() if isinstance(part, dict) else enumerate(part)
    for key, value in pairs:
        yield (*before, key)
        if isinstance(value, dict | list):
            yield from _places(value, (*before, key))


# -- versions ------------------------------------------------------------------------------------------------


def test_a_newer_minor_version_is_read_without_what_is_unknown(model):
    manifest = manifest_of(model)
    manifest["format_version"] = "1.7"
    manifest["colour"] = "green"
    manifest["settings"]["num_colours"] = 3
    manifest["history"]["colours"] = ["green"]
    manifest["history"]["records"]["colour"] = ["green"]
    manifest["model"]["colour"] = None
    write_manifest(model, manifest)
    assert np.isfinite(load(model).predict(X).mean).all()


def test_a_newer_major_version_is_refused(model):
    edit(model, "written_by", "duogp", to="9.1")
    edit(model, "format_version", to="2.0")
    with pytest.raises(SavedModelError, match=r"by duogp 9\.1 in format 2\.0; .* install a newer duogp"):
        load(model)
    for text in ("1", "one.two", "1.0.0", "-1.0"):
        edit(model, "format_version", to=text)
        with pytest.raises(SavedModelError, match="two numbers"):
            load(model)


def test_older_versions_are_brought_up_to_date(model, monkeypatch):
    manifest = manifest_of(model)
    manifest["format_version"] = "0.9"
    manifest["algorithm"] = manifest.pop("method")
    write_manifest(model, manifest)
    with pytest.raises(SavedModelError, match=r"format 0\.9, which is no longer read"):
        load(model)

    def upgrade(manifest, tensors):
        manifest = dict(manifest)
        manifest["method"] = manifest.pop("algorithm")
        return manifest, tensors

    monkeypatch.setitem(folder.UPGRADES, (0, 9), ((1, 0), upgrade))
    assert load(model).method.name == "svgp"


def test_settings_that_an_older_version_did_not_have(model):
    manifest = manifest_of(model)
    for name in ("num_layers", "hidden_width", "mean_rule"):
        del manifest["settings"][name]
    write_manifest(model, manifest)
    assert load(model).settings.mean_rule == "adam"


def test_files_of_other_writers_are_no_tensors_of_ours(model, tmp_path):
    save_file({"weight": torch.ones(3)}, model / TENSORS)
    with pytest.raises(SavedModelError):
        load(model)
