"""Puts a pretrained model into the package, where `modeling_elmo.MINI` finds it.

    python -m training.pretrain mini --train_file litbank.train.txt masc.train.txt \
        --validation_file litbank.heldout.txt --output_dir runs/elmo-mini
    python -m training.bundle runs/elmo-mini

The weights, those of the softmax included, go to disk in float16 and are float32 again when they are loaded. The
package has the code, so the folder has none. Vectors are compared before and after.
"""

import argparse
import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor
from transformers.utils import logging as transformers_logging

from modeling_elmo import MINI, ElmoForPreTraining, ElmoTokenizer
from modeling_elmo.files import BAD_INPUT, ElmoError, load_folder

# A wheel should stay small.
LARGEST_MB = 20
# Half precision keeps three decimal digits of a weight.
SMALLEST_COSINE = 0.9999
# Tells a folder that may be replaced from any other.
MARK = ".bundled"
KEPT = ("README.md", "all_results.json", "perplexity.png")
SENTENCES = ["The bank of the river was green .", "She put her money into the bank .", "Naïve 42 XYZZY !"]


def layers_of(model: ElmoForPreTraining, tokenizer: ElmoTokenizer) -> Tensor:
    """Every layer of every word of some sentences: (words, layers, 2P)"""
    inputs = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    with torch.no_grad():
        layers = model.elmo(**inputs, output_hidden_states=True).hidden_states
    return torch.stack(layers, dim=2)[inputs["attention_mask"].bool()]


def bundle(folder: Path, target: Path) -> float:
    """Writes the model of a folder to the target, which is replaced; returns the smallest cosine of a vector."""
    if target.exists() and not (target / MARK).is_file():
        raise ElmoError(f"{target}: it is there and was not written by this program: name another --output_dir")
    model, tokenizer = load_folder(folder, ElmoForPreTraining)
    expected = layers_of(model, tokenizer)
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=target.parent) as scratch:
        made = Path(scratch) / target.name
        tokenizer.save_pretrained(made)
        model.half().save_pretrained(made)
        settings = json.loads((made / "config.json").read_text(encoding="utf-8"))
        settings["dtype"] = "float32"
        (made / "config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
        for code in made.glob("*.py"):
            code.unlink()
        for name in KEPT:
            if (folder / name).is_file():
                shutil.copyfile(folder / name, made / name)
        (made / MARK).touch()
        for file in made.iterdir():
            file.chmod(0o644)  # safetensors writes files for their owner alone
        found = layers_of(*load_folder(made, ElmoForPreTraining))
        cosine = torch.cosine_similarity(found, expected, dim=-1).min().item()
        if found.dtype != expected.dtype or cosine < SMALLEST_COSINE:
            raise ElmoError(f"{folder}: float16 changes its vectors: a cosine of {cosine:.6f}, {found.dtype}")
        size = sum(file.stat().st_size for file in made.iterdir()) / 1e6
        if size > LARGEST_MB:
            raise ElmoError(f"{folder}: {size:.1f} MB are too many for the package, which takes {LARGEST_MB}")
        if target.exists():
            os.replace(target, Path(scratch) / "old")  # which goes with the scratch folder
        os.replace(made, target)
    return cosine


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="training.bundle", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="what training.pretrain wrote")
    parser.add_argument("--output_dir", type=Path, default=Path(MINI), help="by default, the package's own")
    chosen = parser.parse_args(list(arguments))
    transformers_logging.set_verbosity_error()
    try:
        cosine = bundle(chosen.folder, chosen.output_dir)
    except (ElmoError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    size = sum(file.stat().st_size for file in chosen.output_dir.iterdir()) / 1e6
    print(f"Wrote {chosen.output_dir}: {size:.1f} MB; the cosine of a vector before and after is {cosine:.6f} or more")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
