"""The whole path in a minute, on a model made on the spot: `make demo`.

Builds a small ELMo with random weights, writes it as an original checkpoint, converts that with the command line,
loads the folder through the auto classes and compares a word's vectors in several sentences. Random weights know
nothing of meaning; what the demo shows is that each step works and that a word's vector depends on its sentence.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from transformers import AutoModel, AutoTokenizer
from transformers.utils import logging

from modeling_elmo import ElmoConfig, ElmoModel
from modeling_elmo.convert_elmo import export_checkpoint

SENTENCES = [
    "The bank lends money to young farmers .",
    "The bank lends money to young farmers .",
    "They sat on the bank of the river and watched the boats .",
    "He robbed a bank .",
]


def main() -> None:
    logging.disable_progress_bar()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        model = ElmoModel(ElmoConfig(vocab_size=4, projection_dim=128, cell_dim=1024, num_highway_layers=1))
        millions = sum(parameter.numel() for parameter in model.parameters()) / 1e6
        print(f"1. a small ELMo with random weights: {millions:.1f} M parameters")
        model.save_pretrained(folder / "random")
        export_checkpoint(folder / "random", folder / "original")
        files = sorted(path.name for path in (folder / "original").iterdir())
        print(f"2. written as an original checkpoint: {', '.join(files)}")
        original, converted = folder / "original", folder / "converted"
        command = ["convert", original / "options.json", original / "weights.hdf5", converted]
        print("3. converted by: elmo convert options.json weights.hdf5 converted")
        subprocess.run(
            [sys.executable, "-m", "modeling_elmo.cli", *map(str, command)], check=True, capture_output=True
        )

        tokenizer = AutoTokenizer.from_pretrained(converted)
        model = AutoModel.from_pretrained(converted)
        inputs = tokenizer(SENTENCES, padding=True, return_tensors="pt")
        with torch.no_grad():
            output = model(**inputs, keep_sentence_markers=False, output_hidden_states=True)
        print(f"4. embedded: {len(SENTENCES)} sentences, vectors of {model.config.hidden_size} numbers\n")

    banks = [sentence.split().index("bank") for sentence in SENTENCES]
    rows = torch.arange(len(SENTENCES))
    print("how alike is 'bank' in the first sentence and in")
    for index in range(1, len(SENTENCES)):
        print(f"   {SENTENCES[index]}")
        for name, layer in zip(("characters", "layer 1", "layer 2"), output.hidden_states, strict=True):
            bank = layer[rows, banks]
            cosine = torch.cosine_similarity(bank[0], bank[index], dim=0)
            print(f"      {name:10s} {cosine:6.3f}")
    print("\nThe character layer sees the word alone; the LSTM layers see its sentence.")


if __name__ == "__main__":
    main()
