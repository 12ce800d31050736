"""Put a pretrained model into the package, where `modeling_elmo.MINI` finds it.

    python -m training.pretrain mini --train_file litbank.train.txt masc.train.txt \
        --validation_file litbank.heldout.txt --output_dir runs/elmo-mini
    python -m training.bundle runs/elmo-mini

Weights are saved as float16, those of the softmax in 8 bits (float8_e4m3fn), and loaded as float32. The folder holds
no code, since the package does. Vectors and scores are compared before and after.
"""

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers.utils import logging as transformers_logging

from modeling_elmo import MINI, ElmoForPreTraining, ElmoTokenizer
from modeling_elmo.files import BAD_INPUT, ElmoError, atomic_write
from modeling_elmo.loading import load_folder

# To keep the wheel small.
LARGEST_MB = 27
# float16 keeps three decimal digits of a weight.
SMALLEST_COSINE = 0.9999
# 8 bits change a word's log-probability at random: by less than a thousandth in the mean over a text.
LARGEST_LOSS = 0.02
# Marks a folder that may be replaced.
MARK = ".bundled"
KEPT = ("README.md", "all_results.json", "perplexity.png")
SENTENCES = ["The bank of the river was green .", "She put her money into the bank .", "Naïve 42 XYZZY !"]


def embed_layers(model: ElmoForPreTraining, tokenizer: ElmoTokenizer) -> Tensor:
    """Return every layer of every word of some sentences: (words, layers, 2P)."""
    inputs = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    with torch.no_grad():
        layers = model.elmo(**inputs, output_hidden_states=True).hidden_states
    return torch.stack(layers, dim=2)[inputs["attention_mask"].bool()]


def mean_log_probability(model: ElmoForPreTraining, tokenizer: ElmoTokenizer) -> float:
    """Return log p of a word of the same sentences, the mean of all words and both directions."""
    scores = model.score([tokenizer.tokenize(sentence) for sentence in SENTENCES], tokenizer)
    both = torch.cat([torch.cat([score.forward, score.backward]) for score in scores])
    return both.mean().item()


def bundle(folder: Path, target: Path) -> None:
    """Write the model of a folder to the target, which is replaced."""
    if target.exists() and not (target / MARK).is_file():
        raise ElmoError(f"{target} exists and was not written by this program: choose another --output_dir")
    model, tokenizer = load_folder(folder, ElmoForPreTraining)
    expected = embed_layers(model, tokenizer)
    expected_score = mean_log_probability(model, tokenizer)
    target.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(target) as scratch:
        tokenizer.save_pretrained(scratch)
        softmax_rows = model.softmax.weight.data.to(torch.float8_e4m3fn)
        model.half().softmax.weight.data = softmax_rows
        model.save_pretrained(scratch)
        model.config.dtype = "float32"
        model.config.save_pretrained(scratch)
        for code in scratch.glob("*.py"):
            code.unlink()
        for name in KEPT:
            if (folder / name).is_file():
                shutil.copyfile(folder / name, scratch / name)
        (scratch / MARK).touch()
        for file in scratch.iterdir():
            file.chmod(0o644)  # safetensors writes files that only their owner can read
        bundled = load_folder(scratch, ElmoForPreTraining)
        cosine = torch.cosine_similarity(embed_layers(*bundled), expected, dim=-1).min().item()
        if cosine < SMALLEST_COSINE:
            raise ElmoError(f"{folder}: float16 changes its vectors: a cosine of {cosine:.6f}")
        loss = abs(mean_log_probability(*bundled) - expected_score)
        if not loss <= LARGEST_LOSS:  # nor NaN
            raise ElmoError(f"{folder}: 8 bits change its scores: log p of a word by {loss:.4f}")
        size = sum(file.stat().st_size for file in scratch.iterdir()) / 1e6
        if size > LARGEST_MB:
            raise ElmoError(f"{folder}: {size:.1f} MB are too many for the package, which takes {LARGEST_MB}")
    print(f"Wrote {target}: {size:.1f} MB. Before and after, the cosine of a vector is {cosine:.6f} or more,", end=" ")
    print(f"and log p of a word differs by {loss:.4f}")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="training.bundle", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="the output of training.pretrain")
    parser.add_argument("--output_dir", type=Path, default=Path(MINI), help="by default, that of the package")
    chosen = parser.parse_args(list(arguments))
    transformers_logging.set_verbosity_error()
    try:
        bundle(chosen.folder, chosen.output_dir)
    except (ElmoError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
