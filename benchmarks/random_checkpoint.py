"""Published-size ELMo checkpoints with random weights in the original layout, for parity and speed.

python benchmarks/random_checkpoint.py {small,medium,original} OUT_DIR
"""

import argparse
from pathlib import Path

import torch

from modeling_elmo import ElmoConfig, ElmoModel
from modeling_elmo.convert_elmo import export_checkpoint

# Memory cells, projection and highway layers of the published English models.
SIZES = {"small": (1024, 128, 1), "medium": (2048, 256, 1), "original": (4096, 512, 2)}


def random_model(size: str, seed: int = 0) -> ElmoModel:
    """A model whose activations are as lively as a trained one's: no gate is stuck, no layer fades."""
    cell_dim, projection_dim, highways = SIZES[size]
    torch.manual_seed(seed)
    model = ElmoModel(
        ElmoConfig(vocab_size=4, cell_dim=cell_dim, projection_dim=projection_dim, num_highway_layers=highways)
    ).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "bias" in name:
                parameter.uniform_(-0.05, 0.05)
            elif "convolutions" in name:
                parameter.uniform_(-0.2, 0.2)
            elif "gates" in name:
                parameter.uniform_(-1, 1).mul_(parameter.shape[1] ** -0.5)
            elif "_lm." in name:
                parameter.uniform_(-2, 2).mul_(parameter.shape[1] ** -0.5)
    return model


def write_random_checkpoint(size: str, folder: Path, seed: int = 0) -> tuple[Path, Path]:
    """Writes the checkpoint into `folder`; returns its options and weights files."""
    saved = folder.parent / f"{folder.name}-hf"
    random_model(size, seed).save_pretrained(saved)
    export_checkpoint(saved, folder)
    return folder / "options.json", folder / "weights.hdf5"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("size", choices=SIZES)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    print(*write_random_checkpoint(arguments.size, arguments.folder), sep="\n")
