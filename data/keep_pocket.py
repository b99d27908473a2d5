"""Take a finished training run of the pocket model into the repository.

``python data/keep_pocket.py RUN NAME [--step N] [--curves FOLDER]`` copies the run's model (or its checkpoint after N
steps) to ``data/pocket/NAME`` with ``training.json``, the record of the run: its manifest, and what its evaluations
found. ``--curves`` copies the run's tables to ``figures/laptop/training/FOLDER``, where the notebooks find them.
"""

import argparse
import csv
import json
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODEL = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
TABLES = ("metrics.csv", "eval.csv", "timings.csv", "manifest.json")


def main() -> None:
    """Copy what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("name", nargs="?", help="of the model in data/pocket; without it only tables are taken")
    parser.add_argument("--step", type=int, help="a checkpoint instead of the last model")
    parser.add_argument("--curves", help="a folder below figures/laptop/training")
    args = parser.parse_args()
    manifest = json.loads((args.run / "manifest.json").read_text(encoding="utf-8"))
    with (args.run / "eval.csv").open(encoding="utf-8", newline="") as file:
        evaluations = list(csv.DictReader(file))
    steps = manifest["settings"]["steps"] if args.step is None else args.step
    if args.name:
        source = args.run / ("model" if args.step is None else f"checkpoints/step-{args.step:06d}")
        place = ROOT / "data" / "pocket" / args.name
        if not (source / "model.safetensors").exists():
            parser.error(f"{source} holds no model")
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        for file in (*MODEL, "chat_template.jinja"):
            shutil.copyfile(source / file, place / file)
        found = [row for row in evaluations if int(row["step"]) == steps]
        record = {"steps": steps, "evaluation": found, "run": manifest}
        (place / "training.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    if args.curves:
        place = ROOT / "figures" / "laptop" / "training" / args.curves
        place.mkdir(parents=True, exist_ok=True)
        for table in TABLES:
            shutil.copyfile(args.run / table, place / table)


if __name__ == "__main__":
    main()
