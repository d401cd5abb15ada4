"""Train the molecule autoencoder that `duogp_tasks.molecules.load()` reads, from ZINC-250k, in one command.

    python benchmarks/train_molecules.py --seconds 480 --output run/molecules

1. tokens: $DUOGP_DATA/molecules/zinc250k.smi.gz and its split become one array file (RDKit and SELFIES, four
   minutes on two cores); skipped where `--tokens` exists already, so a machine without either can train;
2. training for `--seconds`, on a GPU where there is one. A killed run continues from `--checkpoint`; a larger
   `--seconds` continues a finished one;
3. `autoencoder.safetensors` (float16, about 16 MB) and `report.json` in `--output`. To ship the weights, copy
   the former to packages/duogp-tasks/src/duogp_tasks/molecules/weights/;
4. where RDKit is installed, the acceptance measurements on the file as written: exact reconstruction of the
   test molecules, valid and distinct prior samples. `--measure FILE` does only this.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from duogp.data.benchmark import data_root
from duogp_tasks.molecules import corpus, training
from duogp_tasks.molecules.autoencoder import MoleculeAutoencoder, load
from duogp_tasks.molecules.model import Architecture


def main() -> None:
    as_written = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=as_written)
    parser.add_argument("--tokens", type=Path, default=Path("run/molecules/zinc_tokens.npz"))
    parser.add_argument("--output", type=Path, default=Path("run/molecules"))
    parser.add_argument("--checkpoint", type=Path, help="default: checkpoint.pt in --output")
    parser.add_argument("--seconds", type=float, default=training.Schedule.seconds)
    parser.add_argument("--batch", type=int, default=training.Schedule.batch)
    parser.add_argument("--learning-rate", type=float, default=training.Schedule.learning_rate)
    parser.add_argument("--target", type=float, default=training.Schedule.target)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tokens-only", action="store_true", help="stop after step 1")
    parser.add_argument("--measure", type=Path, metavar="FILE", help="only measure a weights file")
    arguments = parser.parse_args()

    if not arguments.tokens.is_file():
        prepare_tokens(arguments.tokens)
    if arguments.tokens_only:
        return
    molecules = corpus.load(arguments.tokens)
    if arguments.measure is None:
        weights = train(molecules, arguments)
        measure(weights, molecules, arguments.output / "acceptance.json")
    else:
        measure(arguments.measure, molecules, None)


def prepare_tokens(path: Path) -> None:
    root = data_root()
    if root is None:
        raise SystemExit(f"no tokens at {path}: set DUOGP_DATA to the folder that holds molecules/")
    folder = root / "molecules"
    corpus.prepare(folder / "zinc250k.smi.gz", folder / "zinc250k_split.npz", path)


def train(molecules: corpus.Corpus, arguments: argparse.Namespace) -> Path:
    schedule = training.Schedule(
        seconds=arguments.seconds,
        batch=arguments.batch,
        learning_rate=arguments.learning_rate,
        target=arguments.target,
    )
    device = torch.device(arguments.device)
    torch.set_float32_matmul_precision("high")
    arguments.output.mkdir(parents=True, exist_ok=True)
    checkpoint = arguments.checkpoint or arguments.output / "checkpoint.pt"
    if checkpoint.is_file():
        state = training.load_checkpoint(checkpoint, schedule, device)
        print(f"continuing at step {state.step}, {state.elapsed:.0f} s")
    else:
        architecture = Architecture(molecules.alphabet.size, molecules.longest + 1)
        state = training.start(architecture, schedule, device)
    count = sum(parameter.numel() for parameter in state.model.parameters())
    print(f"{count / 1e6:.2f} million parameters, {device}, {molecules.split.size} molecules")
    training.train(
        state, molecules, schedule, checkpoint=checkpoint, say=lambda line: print(line, flush=True)
    )
    weights = arguments.output / "autoencoder.safetensors"
    MoleculeAutoencoder(state.model, molecules.alphabet).save(weights)
    results = training.report(state.model, molecules) | {"steps": state.step, "seconds": state.elapsed}
    (arguments.output / "report.json").write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results, indent=1))
    return weights


def measure(weights: Path, molecules: corpus.Corpus, output: Path | None) -> None:
    try:
        import rdkit  # noqa: F401
        import selfies  # noqa: F401
    except ImportError:
        print(f"RDKit or SELFIES is missing; elsewhere: {Path(__file__).name} --measure {weights}")
        return
    from duogp_tasks.molecules.quality import acceptance

    results = acceptance(load(weights), molecules)
    print(json.dumps(results, indent=1))
    if output is not None:
        output.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
