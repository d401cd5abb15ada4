"""The molecule autoencoder: writing, network, training, weights, and GuacaMol's score."""

from __future__ import annotations

import gzip
import importlib.util
import itertools
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from duogp.bo.tasks import make
from duogp.data.benchmark import data_root
from duogp_tasks.molecules import MoleculeAutoencoder, autoencoder, corpus, load, scoring, training
from duogp_tasks.molecules.alphabet import END, PAD, START, Alphabet, smiles_to_symbols, symbols_to_smiles
from duogp_tasks.molecules.model import Architecture, SequenceVAE, divergence, shifted

needs_chemistry = pytest.mark.skipif(
    importlib.util.find_spec("rdkit") is None or importlib.util.find_spec("selfies") is None,
    reason="rdkit or selfies is not installed",
)
MOLECULES = ["CCO", "c1ccccc1F", "CC(=O)Nc1ccccc1", "C[C@@H](N)C(=O)O", "N#Cc1ccncc1", "O=C1CCCN1"]


def tiny_corpus(count: int = 48, seed: int = 0) -> corpus.Corpus:
    """Random rows of three to eight symbols; the last quarter is held out."""
    random = np.random.default_rng(seed)
    lengths = random.integers(3, 9, count)
    rows = random.integers(3, 15, (count, 8)).astype(np.uint8)
    rows[np.arange(8) >= lengths[:, None]] = PAD
    split = np.repeat(np.array([0, 0, 0, 0, 0, 0, 1, 2], dtype=np.int8), -(-count // 8))[:count]
    return corpus.Corpus(Alphabet(tuple(f"[{i}]" for i in range(12))), rows, lengths, split)


def tiny_model(longest: int = 9, vocabulary: int = 15, seed: int = 0) -> SequenceVAE:
    torch.manual_seed(seed)
    return SequenceVAE(
        Architecture(
            vocabulary, longest, latent=16, width=32, heads=2, channels=8, encoder_layers=1, plan_layers=1,
            causal_layers=2,
        )
    ).eval()  # fmt: skip


# --- writing ------------------------------------------------------------------------------------------------


def test_alphabet() -> None:
    alphabet = Alphabet.of([["[C]", "[O]"], ["[C]", "[=N]"]])
    assert alphabet.symbols == ("[=N]", "[C]", "[O]") and alphabet.size == 6
    ids = alphabet.encode(["[O]", "[C]"])
    assert ids.tolist() == [5, 4] and ids.dtype == np.uint8
    assert alphabet.decode([START, 5, 4, END, 3, PAD]) == ["[O]", "[C]"]
    with pytest.raises(ValueError, match=r"symbols \[S\] are not in the alphabet"):
        alphabet.encode(["[S]", "[C]"])


@needs_chemistry
def test_symbols_of_canonical_smiles() -> None:
    assert smiles_to_symbols("OCC") == smiles_to_symbols("CCO") == ["[C]", "[C]", "[O]"]
    for smiles in MOLECULES:
        canonical = symbols_to_smiles(smiles_to_symbols(smiles))
        assert symbols_to_smiles(smiles_to_symbols(canonical)) == canonical
    assert symbols_to_smiles([]) == symbols_to_smiles(["[Branch1]"]) == ""
    with pytest.raises(ValueError, match="RDKit cannot read 'C1CC'"):
        smiles_to_symbols("C1CC")


@needs_chemistry
def test_corpus_file(tmp_path: Path) -> None:
    smiles = tmp_path / "molecules.smi.gz"
    smiles.write_bytes(gzip.compress("\n".join([*MOLECULES, "OCC", "C1CC"]).encode()))  # a repeat, nonsense
    np.savez(tmp_path / "split.npz", split=np.array([1, 0, 0, 2, 0, 0, 0, 0], dtype=np.int8))
    corpus.prepare(smiles, tmp_path / "split.npz", tmp_path / "tokens.npz", workers=1)
    made = corpus.load(tmp_path / "tokens.npz")
    back = [symbols_to_smiles(made.alphabet.decode(row)) for row in made.rows]
    # Ethanol counts as training: its other writing is there.
    assert back == [symbols_to_smiles(smiles_to_symbols(s)) for s in [*MOLECULES[1:], "OCC"]]
    assert made.split.tolist() == [0, 0, 2, 0, 0, 0]
    assert ((made.rows != PAD).sum(1) == made.lengths).all() and made.longest == made.lengths.max()


# --- network ------------------------------------------------------------------------------------------------


def test_posterior_does_not_see_padding() -> None:
    model, rows = tiny_model(), torch.tensor([[3, 5, 7, END]])
    with torch.no_grad():
        short, long = model.posterior(rows), model.posterior(torch.nn.functional.pad(rows, (0, 5)))
    torch.testing.assert_close(short, long)


def test_decoder_is_causal_and_its_cache_exact() -> None:
    model = tiny_model()
    z = torch.randn(5, 16, generator=torch.Generator().manual_seed(0))
    rows = model.greedy(z)
    with torch.no_grad():
        again = model.logits(z, shifted(rows)).argmax(-1)
        changed = shifted(rows)
        changed[:, 6:] = 4
        same = model.logits(z, changed)[:, :6]
        torch.testing.assert_close(same, model.logits(z, shifted(rows))[:, :6])
    open_ = rows != PAD
    assert (again == rows)[open_].all()
    ended = (rows == END).cumsum(1) - (rows == END).long() > 0
    assert (rows[ended] == PAD).all() and (rows[~ended] >= END).all()


def test_matches_is_greedy_reconstruction() -> None:
    data = tiny_corpus()
    model = fitted(data, steps=40).model  # half trained: some rows match, others do not
    rows = torch.as_tensor(training.with_end(data.rows)).long()
    with torch.no_grad():
        quick = model.matches(rows)
        slow = (model.greedy(model.posterior(rows)[0]) == rows).all(1)
    torch.testing.assert_close(quick, slow)
    assert 0 < quick.double().mean() < 1


def test_divergence() -> None:
    mean, log_variance = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0)).unbind()
    expected = torch.distributions.kl_divergence(
        torch.distributions.Normal(mean, (0.5 * log_variance).exp()), torch.distributions.Normal(0.0, 1.0)
    ).sum(-1)
    torch.testing.assert_close(divergence(mean, log_variance), expected)


# --- training -----------------------------------------------------------------------------------------------


def fitted(
    data: corpus.Corpus, steps: int, state: training.State | None = None, checkpoint: Path | None = None
) -> training.State:
    schedule = training.Schedule(
        seconds=600, steps=steps, batch=36, learning_rate=1e-2, warm_up=10, beta_low=1e-3, beta_every=50
    )
    if state is None:
        state = training.start(tiny_model().architecture, schedule, torch.device("cpu"))
    training.train(state, data, schedule, checkpoint=checkpoint, say=lambda line: None)
    return state


def test_training_overfits() -> None:
    data = tiny_corpus()
    state = fitted(data, steps=150)
    rows = torch.as_tensor(training.with_end(data.part(corpus.TRAIN)))
    assert training.reconstruction(state.model, rows) > 0.95
    measured = training.report(state.model, data, samples=50)
    assert measured["train_exact"] > 0.95 and measured["prior_distinct"] > 0.5


def test_training_continues_from_a_checkpoint(tmp_path: Path) -> None:
    data, path = tiny_corpus(), tmp_path / "checkpoint.pt"
    first = fitted(data, steps=6, checkpoint=path)
    schedule = training.Schedule()
    again = training.load_checkpoint(path, schedule, torch.device("cpu"))
    assert (again.step, again.beta) == (6, first.beta) and again.elapsed > 0
    for name, value in first.model.state_dict().items():
        torch.testing.assert_close(again.model.state_dict()[name], value)
    fitted(data, steps=9, state=again)
    assert again.step == 9


def test_schedule() -> None:
    schedule = training.Schedule(seconds=100, warm_up=10, learning_rate=1.0, target=0.9)
    assert schedule.rate(4, 0.0) == pytest.approx(0.5) and schedule.rate(50, 0.5) == pytest.approx(0.5)
    assert schedule.progress(10**6, 25.0) == 0.25
    assert schedule.next_beta(0.1, 0.95) > 0.1 > schedule.next_beta(0.1, 0.85)
    assert schedule.next_beta(schedule.beta_low, 0.0) == schedule.beta_low


def test_batches_hold_every_row_once() -> None:
    lengths = np.random.default_rng(0).integers(3, 30, 1000)
    batches = training.endless_batches(lengths, 10, 30, np.random.default_rng(1), torch.device("cpu"))
    seen, cut = [], []
    for epoch, index, length in batches:
        if epoch == 1:
            break
        assert lengths[index].max() <= length <= 30
        seen += index.tolist()
        cut.append(length - lengths[index].mean())
    assert sorted(seen) == list(range(1000))
    assert np.mean(cut) < 6  # little padding


def test_long_rows_have_their_turn() -> None:
    lengths = np.arange(1, 101)
    batches = training.endless_batches(lengths, 32, 100, np.random.default_rng(0), torch.device("cpu"))
    first = itertools.takewhile(lambda batch: batch[0] < 12, batches)  # four of a hundred sit out each epoch
    assert set().union(*(index.tolist() for _, index, _ in first)) == set(range(100))


# --- files --------------------------------------------------------------------------------------------------


def chemical(tmp_path: Path) -> Path:
    """Weights of an untrained model with a real alphabet."""
    alphabet = Alphabet.of(smiles_to_symbols(s) for s in [*MOLECULES, scoring.RANOLAZINE])
    model = tiny_model(longest=60, vocabulary=alphabet.size)
    path = tmp_path / "weights" / "tiny.safetensors"
    MoleculeAutoencoder(model, alphabet).save(path)
    return path


@needs_chemistry
def test_saved_and_loaded(tmp_path: Path) -> None:
    path = chemical(tmp_path)
    loaded = load(path)
    z = loaded.encode(MOLECULES, batch=4)
    assert z.shape == (6, 16) and z.dtype == np.float64
    np.testing.assert_allclose(loaded.encode(MOLECULES[3:4]), z[3:4], atol=1e-6)
    assert loaded.encode([]).shape == (0, 16) and loaded.decode(np.zeros((0, 16))) == []
    drawn = np.random.default_rng(0).normal(size=(5, 16))
    assert loaded.decode(drawn, batch=2) == loaded.decode(drawn)
    with pytest.raises(TypeError, match="single string"):
        loaded.encode("CCO")
    with pytest.raises(ValueError, match=r"z: expected finite numbers \[n, 16\], got shape \(16,\)"):
        loaded.decode(np.zeros(16))
    with pytest.raises(ValueError, match="has 60 symbols, the model takes 59"):
        loaded.encode(["C" * 60])
    with pytest.raises(ValueError, match=r"\[Br\] are not in the alphabet"):
        loaded.encode(["CBr"])


def test_absent_weights_name_the_command(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"train_molecules\.py"):
        load(tmp_path / "nothing.safetensors")


@needs_chemistry
@pytest.mark.skipif(not autoencoder.WEIGHTS.is_file(), reason="no trained weights in the package")
def test_shipped_weights() -> None:
    from duogp_tasks.molecules.quality import acceptance

    assert autoencoder.WEIGHTS.stat().st_size <= 20e6
    shipped = load()
    assert shipped.latent == 256
    root = data_root()
    if root is None or not (root / "molecules" / "zinc250k.smi.gz").is_file():
        pytest.skip("ZINC-250k is not in DUOGP_DATA")
    text = gzip.decompress((root / "molecules" / "zinc250k.smi.gz").read_bytes()).decode()
    ids = [shipped.alphabet.encode(smiles_to_symbols(s)) for s in text.split()[:60]]  # test molecules
    rows = np.stack([np.pad(row, (0, 72 - len(row))) for row in ids])
    lengths = np.array([len(row) for row in ids])
    data = corpus.Corpus(shipped.alphabet, rows, lengths, np.full(60, corpus.TEST, dtype=np.int8))
    measured = acceptance(shipped, data, samples=60)
    assert measured["reconstructed"] >= 0.85  # 0.9 of all; sixty are few
    assert measured["prior_valid"] >= 0.95 and measured["prior_distinct"] >= 0.9


# --- Ranolazine MPO -----------------------------------------------------------------------------------------


def test_score_of_properties() -> None:
    found = scoring.Ranolazine(similarity=0.35, log_p=8.0, polar_surface=75.0, fluorines=3)
    assert found.parts == pytest.approx((0.5, 1.0, np.exp(-0.5), np.exp(-2.0)))
    assert found.score == pytest.approx((0.5 * np.exp(-2.5)) ** 0.25)
    assert scoring.Ranolazine(0.9, 7.0, 120.0, 1).score == 1.0


def atom_pairs(smiles: str) -> Counter[tuple]:
    """(element, neighbours, π electrons) of both ends and the distance, counted one by one."""
    from rdkit import Chem

    molecule = Chem.MolFromSmiles(smiles)
    kinds = []
    for atom in molecule.GetAtoms():
        orders = [bond.GetBondTypeAsDouble() for bond in atom.GetBonds()]
        pi = 1 if atom.GetIsAromatic() else sum(int(order) - 1 for order in orders)
        kinds.append((atom.GetSymbol(), len(orders), pi))
    distance = Chem.GetDistanceMatrix(molecule)
    pairs = itertools.combinations(range(len(kinds)), 2)
    return Counter((*sorted([kinds[i], kinds[j]]), distance[i, j]) for i, j in pairs if distance[i, j] <= 10)


@needs_chemistry
@pytest.mark.parametrize("smiles", [*MOLECULES, "Cc1cccc(C)c1NC(=O)CN1CCN(CCF)CC1", "CCCCCCCCCCCCCC(=O)O"])
def test_similarity_by_counting(smiles: str) -> None:
    from rdkit import Chem

    a, b = atom_pairs(smiles), atom_pairs(scoring.RANOLAZINE)
    expected = (a & b).total() / (a | b).total()
    assert scoring.describe(Chem.MolFromSmiles(smiles)).similarity == pytest.approx(expected, abs=1e-12)


@needs_chemistry
def test_scores_of_molecules() -> None:
    # Ranolazine itself: similarity 1, logP 2.308 (Crippen), TPSA 74.27 Å², no fluorine.
    expected = np.exp(-(4.69196**2) / 2) * np.exp(-((20.73 / 20) ** 2) / 2) * np.exp(-0.5)
    assert scoring.ranolazine_mpo(scoring.RANOLAZINE) == pytest.approx(expected**0.25, rel=1e-6)
    # Fluorobenzene: logP 1.8257, TPSA 0, one fluorine; similarity 1 / 27.
    expected = (1 / 27 / 0.7) * np.exp(-(5.1743**2) / 2) * np.exp(-(4.75**2) / 2)
    assert scoring.ranolazine_mpo("Fc1ccccc1") == pytest.approx(expected**0.25, rel=1e-6)
    assert scoring.ranolazine_mpo("") == scoring.ranolazine_mpo("C1CC") == 0.0


@pytest.mark.parametrize("absent", ["rdkit.Chem", "selfies"])
def test_absent_chemistry_is_named(absent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, absent, None)
    with pytest.raises(ImportError, match=r"pip install 'duogp-tasks\[molecules\]'"):
        make("ranolazine")


@needs_chemistry
def test_task_in_latent_space(tmp_path: Path) -> None:
    task = make("ranolazine", weights=chemical(tmp_path), radius=2.0)
    X = np.random.default_rng(0).random((6, task.dims))
    y = task(X)
    assert task.bounds[0, 0] == -2.0 and y.shape == (6,) and ((y >= 0) & (y <= 1)).all()
    assert y == pytest.approx([scoring.ranolazine_mpo(smiles) for smiles in task.molecules(X)])
    known = task.points([scoring.RANOLAZINE])
    assert known.shape == (1, task.dims) and ((known >= 0) & (known <= 1)).all()
