"""Fits from sources of chunks: as good as in memory, the same in any cut, clear errors for the rest."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import dataset, parquet

import duogp
from duogp.data.arrow_source import ArrowSource
from duogp.data.sources import ArraySource
from duogp.fitting.streamed import fit_source

SMALL = {"num_inducing": 15, "dtype": "float64"}


def table(n: int = 600, seed: int = 0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3)) * [1.0, 100.0, 1.0] + [0.0, 1e3, 0.0]
    y = 50 + 10 * (np.sin(2 * X[:, 0]) + X[:, 2]) + rng.normal(size=n)
    return X, y, rng


@pytest.mark.parametrize("method", ["svgp", "sgpr", "odsvgp"])
def test_a_streamed_fit_is_as_good_as_one_in_memory(method):
    X, y, _ = table()
    new, truth, _ = table(seed=1)
    gp = fit_source(ArraySource(X, y, chunk_rows=50), method, settings=dict(SMALL), sample_rows=200)
    memory = duogp.fit(X, y, method, solver="closed-form", **SMALL)
    ours, theirs = (float(np.sqrt(np.mean((g.predict(new).mean - truth) ** 2))) for g in (gp, memory))
    assert ours < 1.1 * theirs  # both are trained to a tolerance of the bound
    assert gp.history[-1].loss < memory.history[-1].loss + 0.02
    assert gp.history.solver == "closed-form" and any("600 rows" in note for note in gp.history.notes)
    np.testing.assert_allclose(gp.x_scaler.scale, memory.x_scaler.scale, rtol=1e-12)
    np.testing.assert_allclose(gp.y_scaler.shift, memory.y_scaler.shift, rtol=1e-12)


def test_the_sum_over_chunks_does_not_depend_on_how_they_are_read(tmp_path):
    """Chunks from memory and from files: the sample, and so the start, depends on their numbers alone."""
    X, y, _ = table(300)
    names = ["a", "b", "c"]
    columns = {name: X[:, i] for i, name in enumerate(names)} | {"y": y}
    parquet.write_table(pa.table(columns), tmp_path / "t.parquet")
    files = dataset.dataset(str(tmp_path / "t.parquet"))
    first = duogp.fit(files, target="y", method="svgp", epochs=5, **SMALL)
    second = duogp.fit(ArraySource(X, y), method="svgp", epochs=5, **SMALL)
    assert first.column_names == names
    np.testing.assert_allclose(first.predict(X).mean, second.predict(X).mean, rtol=1e-12)
    by_hand = duogp.fit(ArrowSource(files, "y", columns=["a", "c"]), method="svgp", epochs=2, **SMALL)
    assert by_hand.column_names == ["a", "c"]


def test_a_saved_streamed_model_is_read_again(tmp_path):
    X, y, _ = table(100)
    gp = duogp.fit(ArraySource(X, y, chunk_rows=30), method="svgp", epochs=2, **SMALL)
    duogp.save(gp, tmp_path / "model")
    again = duogp.load(tmp_path / "model")
    assert np.array_equal(again.predict(X).mean, gp.predict(X).mean)


def test_validation_rows_are_held_out_by_a_hash_of_their_values():
    X, y, _ = table()
    X, y = np.concatenate([X, X]), np.concatenate([y, y])  # equal rows are on one side
    settings = {**SMALL, "validation_fraction": 0.3, "epochs": 5}
    gp = duogp.fit(ArraySource(X, y, chunk_rows=70), method="svgp", **settings)
    held_out = next(int(note.split()[0]) for note in gp.history.notes if "held out" in note)
    trained = int(gp.model.num_data[0])
    assert held_out + trained == 1200 and held_out % 2 == 0
    assert abs(held_out / 2 - 180) < 6 * np.sqrt(600 * 0.3 * 0.7)
    assert np.isfinite(gp.history.validation_nll)
    order = np.random.default_rng(0).permutation(1200)
    again = duogp.fit(ArraySource(X[order], y[order], chunk_rows=31), method="svgp", **settings)
    assert int(again.model.num_data[0]) == trained
    np.testing.assert_allclose(again.x_scaler.shift, gp.x_scaler.shift, rtol=1e-12)


def test_noise_weights_and_constant_columns():
    X, y, rng = table(200)
    X = np.column_stack([X, np.full(200, 7.0)])
    weight = rng.uniform(0.5, 2.0, 200)
    weight[:20] = 0.0
    y[:20] = 1e6  # rows of no weight count nowhere
    source = ArraySource(X, y, noise=np.full(200, 1.0), sample_weight=weight, chunk_rows=64)
    gp = duogp.fit(source, method="svgp", epochs=5, **SMALL)
    assert gp.columns.tolist() == [True, True, True, False]
    assert int(gp.model.num_data[0]) == 180
    assert np.abs(gp.predict(X[20:]).mean - y[20:]).max() < 20


def test_several_outputs():
    X, y, _ = table(200)
    gp = duogp.fit(ArraySource(X, np.stack([y, -y], 1), chunk_rows=64), method="svgp", epochs=5, **SMALL)
    assert gp.predict(X).mean.shape == (200, 2)


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        ("auto", {}, "use 'svgp'"),
        ("exact", {}, "rows themselves"),
        ("svgp", {"mean": "trees"}, "cross-fitted"),
        ("deep-ensemble", {}, "source of chunks"),
        ("svgp", {"beta1": [0.5, 1.0], "validation_fraction": 0.1}, "lists of beta1"),
        ("dcsvgp", {"omega": "blocks"}, "partition"),
        ("dcsvgp", {"solver": "closed-form", "beta2": 1.0}, "Ω"),
        ("ppgpr-chol", {"solver": "closed-form"}, "not quadratic"),
        ("svgp", {"likelihood": "poisson"}, "whole numbers from 0"),
        ("svgp", {"likelihood": "classes"}, "no class labels"),
    ],
)
def test_what_is_not_streamed_is_refused(method, settings, message):
    X, y, _ = table(50)
    with pytest.raises(ValueError, match=message):
        duogp.fit(ArraySource(X, y), method=method, **settings)


@pytest.mark.parametrize(
    ("method", "settings", "solver"),
    [
        ("svgp", {"solver": "stochastic"}, "stochastic"),
        ("dcsvgp", {}, "stochastic"),
        ("orthnat", {}, "natural"),
        ("ppgpr-chol", {}, "stochastic"),
        ("svgp", {"likelihood": "student-t"}, "natural"),
    ],
)
def test_minibatches_of_a_source_are_as_good_as_those_of_a_table(method, settings, solver):
    X, y, _ = table()
    new, truth, _ = table(seed=1)
    given = {"batch_size": 100, "learning_rate": 0.05, "epochs": 40, "warm_start": 100}
    if solver == "natural":
        given.pop("warm_start")
    given |= SMALL | settings
    gp = fit_source(ArraySource(X, y, chunk_rows=50), method, settings=dict(given))
    memory = duogp.fit(X, y, method, solver=solver, **{k: v for k, v in given.items() if k != "solver"})
    assert gp.history.solver == memory.history.solver == solver
    ours, theirs = (float(np.sqrt(np.mean((g.predict(new).mean - truth) ** 2))) for g in (gp, memory))
    assert ours < 1.2 * theirs  # other batches, the same steps
    assert ours < 0.5 * truth.std()
    assert gp.history[-1].loss == pytest.approx(memory.history[-1].loss, abs=0.25)


def test_minibatches_by_default_start_from_a_closed_form_of_the_sample():
    X, y, _ = table(300)
    gp = duogp.fit(ArraySource(X, y, chunk_rows=50), method="dcsvgp", batch_size=100, **SMALL)
    assert gp.history.converged is not None  # the loss says when to stop
    assert np.sqrt(np.mean((gp.predict(X).mean - y) ** 2)) < 3


def test_networks_are_stopped_by_rows_held_out():
    X, y, _ = table()
    settings = {**SMALL, "widths": [8, 2], "epochs": 200, "patience": 2, "learning_rate": 0.05}
    gp = duogp.fit(ArraySource(X, y, chunk_rows=50), method="svgp-dkl", **settings)
    held_out = next(int(note.split()[0]) for note in gp.history.notes if "held out" in note)
    assert 30 < held_out < 100
    assert gp.history.stopped_early and gp.history.best_epoch < 200
    assert np.isfinite(gp.history.validation_nll)


def test_a_closed_form_that_needs_it_is_stopped_by_rows_held_out():
    X, y, _ = table(300)
    settings = {**SMALL, "solver": "closed-form", "epochs": 10}
    gp = duogp.fit(ArraySource(X, y, chunk_rows=50), method="dcsvgp", **settings)
    assert gp.history.solver == "closed-form" and gp.history.best_epoch is not None


@pytest.mark.parametrize("likelihood", ["classes", "softmax", "robust-max"])
def test_class_labels_are_those_of_the_whole_source(likelihood, tmp_path):
    """One of them stands in a few rows, and not in the sample that the fit starts from."""
    X, _, _ = table()
    labels = np.where(X[:, 2] > 0, "up", "down").astype(object)
    labels[-3:] = "rare"
    columns = {name: X[:, i] for i, name in enumerate("abc")} | {"y": labels}
    parquet.write_table(pa.table(columns), tmp_path / "t.parquet", row_group_size=100)
    settings = {**SMALL, "likelihood": likelihood, "epochs": 10, "batch_size": 100}
    files = ArrowSource(dataset.dataset(str(tmp_path / "t.parquet")), "y", labels=True)
    gp = fit_source(files, "svgp", settings=dict(settings), sample_rows=20)
    assert gp.classes.tolist() == ["down", "rare", "up"]
    probabilities = np.asarray(gp.predict(X).probabilities)
    assert probabilities.shape == (600, 3)
    right = gp.classes[probabilities.argmax(1)] == labels
    assert right.mean() > 0.85
    duogp.save(gp, tmp_path / "model")
    again = duogp.load(tmp_path / "model")
    assert np.array_equal(again.predict(X).probabilities, probabilities)


def test_labels_that_are_numbers_need_no_word():
    X, y, _ = table(200)
    settings = {**SMALL, "likelihood": "bernoulli", "epochs": 3}
    gp = duogp.fit(ArraySource(X, (y > 50) + 3.0, chunk_rows=50), method="svgp", **settings)
    assert gp.classes.tolist() == [3.0, 4.0]
    with pytest.raises(ValueError, match="only one class"):
        duogp.fit(ArraySource(X, np.ones(200)), method="svgp", **settings)


def test_a_fit_that_was_ended_goes_on(tmp_path):
    """The same bits, whether the checkpoint lies between epochs or within one."""
    X, y, _ = table(120)

    class Ended(Exception):
        pass

    def end(progression):
        if progression.epoch == 4:
            raise Ended

    for name, settings, steps in (
        ("dcsvgp", {"batch_size": 30, "epochs": 6}, 5),
        ("orthnat", {"batch_size": 30, "epochs": 6}, 5),
        ("svgp", {"epochs": 6}, 1),
    ):
        given = {"method": name, **SMALL, **settings}
        source = ArraySource(X, y, chunk_rows=32)
        whole = duogp.fit(source, **given)
        kept = {"checkpoint_dir": tmp_path / name, "checkpoint_steps": steps}
        with pytest.raises(Ended):
            duogp.fit(source, **given, **kept, callbacks=[end])
        assert list((tmp_path / name).iterdir())
        again = duogp.fit(source, **given, **kept)
        assert np.array_equal(again.predict(X).mean, whole.predict(X).mean)
        with pytest.raises(duogp.errors.CheckpointError, match="another fit"):
            duogp.fit(ArraySource(X, y + 1, chunk_rows=32), **given, **kept)


def test_methods_that_grow_learn_from_chunks():
    X, y, _ = table(400)
    gp = duogp.fit(ArraySource(X, y, chunk_rows=90), method="ivsgpr", epochs=3, batch_size=50)
    assert np.sqrt(np.mean((gp.predict(X).mean - y) ** 2)) < 5  # the targets vary by 12
    labels = ArraySource(X, np.where(X[:, 2] > 0, "a", "b"), chunk_rows=90, labels=True)
    gp = duogp.fit(labels, method="ivsgpr", likelihood="classes", steps=10, batch_size=50)
    assert gp.classes.tolist() == ["a", "b"]


def test_arguments_of_tables_are_refused():
    X, y, _ = table(50)
    source = ArraySource(X, y)
    with pytest.raises(ValueError, match="takes no y"):
        duogp.fit(source, y, "svgp")
    with pytest.raises(ValueError, match="takes no target"):
        duogp.fit(source, target="y", method="svgp")
    with pytest.raises(ValueError, match="give y"):
        duogp.fit(X, y, "svgp", target="y")
    with pytest.raises(ValueError, match="target="):
        duogp.fit(dataset.dataset(pa.table({"a": [1.0], "y": [1.0]})), method="svgp")
