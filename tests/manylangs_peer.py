"""ELMoForManyLangs itself beside a current torch, as a peer for parity.

Its package still imports, but for one decorator of a library that nothing else needs, and reads any folder in its own
format. `write_model` makes one of random weights.

    pip install --no-deps --target .venv/peers elmoformanylangs==0.0.4.post2
"""

import json
import os
import sys
import types
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

DEFAULT_SITE = Path(__file__).parents[1] / ".venv" / "peers"

# A small model of the format. No two sizes are equal, so that no transpose goes unnoticed; and the clips are tight, so
# that random weights reach them.
SETTINGS: dict[str, Any] = {
    "encoder": {"name": "elmo", "projection_dim": 11, "cell_clip": 0.6, "proj_clip": 0.4, "dim": 17, "n_layers": 2},
    "token_embedder": {
        "name": "cnn",
        "activation": "relu",
        "filters": [[1, 3], [2, 4], [3, 6], [5, 7]],
        "n_highway": 2,
        "word_dim": 9,
        "char_dim": 5,
        "max_characters_per_token": 50,
    },
    "classifier": {"name": "sampled_softmax", "n_samples": 8},
    "dropout": 0.1,
}


def settings_with(**changes: Any) -> dict[str, Any]:
    """The small settings, changed: keys of either part by their names."""
    settings: dict[str, Any] = json.loads(json.dumps(SETTINGS))
    for key, value in changes.items():
        settings["encoder" if key in settings["encoder"] else "token_embedder"][key] = value
    return settings


def random_state(settings: Mapping[str, Any], words: int, characters: int, seed: int = 0) -> dict[str, dict]:
    """The tensors of token_embedder.pkl and encoder.pkl.

    No gate is stuck and no layer fades, and the LSTMs are no more sensitive than trained ones are: where they are
    chaotic, a rounding error grows from word to word in any implementation.
    """
    random = torch.Generator().manual_seed(seed)
    embedder, encoder = settings["token_embedder"], settings["encoder"]
    features = sum(count for _, count in embedder["filters"])

    def values(*shape: int, scale: float) -> torch.Tensor:
        return torch.randn(*shape, generator=random) * scale

    state: dict[str, dict[str, torch.Tensor]] = {"token_embedder": {}, "encoder": {}}
    inner = state["token_embedder"]
    inputs = embedder["word_dim"]
    if embedder["word_dim"]:
        inner["word_emb_layer.embedding.weight"] = values(words, embedder["word_dim"], scale=0.5)
    if embedder["char_dim"]:
        inputs += features
        inner["char_emb_layer.embedding.weight"] = values(characters, embedder["char_dim"], scale=0.5)
        for index, (width, count) in enumerate(embedder["filters"]):
            inner[f"convolutions.{index}.weight"] = values(count, embedder["char_dim"], width, scale=0.5)
            inner[f"convolutions.{index}.bias"] = values(count, scale=0.2)
        for layer in range(embedder["n_highway"]):
            inner[f"highways._layers.{layer}.weight"] = values(2 * features, features, scale=features**-0.5)
            inner[f"highways._layers.{layer}.bias"] = values(2 * features, scale=0.5)
    size, cells = encoder["projection_dim"], encoder["dim"]
    inner["projection.weight"] = values(size, inputs, scale=inputs**-0.5)
    inner["projection.bias"] = values(size, scale=0.1)
    for layer in range(encoder["n_layers"]):
        for direction in ("forward", "backward"):
            name = f"{direction}_layer_{layer}"
            state["encoder"][f"{name}.input_linearity.weight"] = values(4 * cells, size, scale=0.6 * size**-0.5)
            state["encoder"][f"{name}.state_linearity.weight"] = values(4 * cells, size, scale=0.6 * size**-0.5)
            bias = values(4 * cells, scale=0.3)
            bias[cells : 2 * cells] += 1
            state["encoder"][f"{name}.state_linearity.bias"] = bias
            state["encoder"][f"{name}.state_projection.weight"] = values(size, cells, scale=1.2 * cells**-0.5)
    return state


def dictionary(special: Sequence[str], entries: Iterable[str]) -> dict[str, int]:
    return {entry: number for number, entry in enumerate([*special, *entries])}


def write_model(
    folder: Path, settings: Mapping[str, Any], words: Sequence[str], characters: Sequence[str], seed: int = 0
) -> Path:
    """A folder in the format of the original, with ids in its order: special words first, special characters last."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"config_path": "/home/someone/settings.json", "seed": 1}))
    (folder / "settings.json").write_text(json.dumps(settings))
    word_ids = dictionary(["<oov>", "<bos>", "<eos>", "<pad>"], words)
    character_ids = dictionary([], [*characters, "<bos>", "<eos>", "<oov>", "<pad>", "<bow>", "<eow>"])
    files = {"word.dic": word_ids, "char.dic": character_ids if settings["token_embedder"]["char_dim"] else {}}
    for name, ids in files.items():
        lines = (f"{entry}\t{number}\n" for entry, number in ids.items())
        (folder / name).write_bytes("".join(lines).encode())
    for name, state in random_state(settings, len(word_ids), len(character_ids), seed).items():
        torch.save(state, folder / f"{name}.pkl")
    return folder


def site() -> Path | None:
    """Where the package's files are, or None."""
    folder = Path(os.environ.get("MANYLANGS_SITE", DEFAULT_SITE))
    return folder if (folder / "elmoformanylangs" / "elmo.py").is_file() else None


def layers(folder: Path, sentences: Sequence[Sequence[str]]) -> list[np.ndarray]:
    """All layers (L + 1, T, 2P) of the words of each sentence, by the package's own `Embedder`."""
    found = site()
    if found is None:
        raise FileNotFoundError(f"elmoformanylangs is not in {DEFAULT_SITE}; install it as {__file__} says")
    if "overrides" not in sys.modules:
        stand_in = types.ModuleType("overrides")
        stand_in.overrides = lambda function: function  # type: ignore[attr-defined]
        sys.modules["overrides"] = stand_in
    sys.path.append(str(found))
    try:
        from elmoformanylangs import Embedder
    finally:
        sys.path.remove(str(found))
    embedder = Embedder(str(folder), batch_size=64)
    # It carries states from batch to batch: one batch from the start is what it says of each sentence on its own.
    assert len(sentences) <= embedder.batch_size
    with torch.no_grad():
        return embedder.sents2elmo([list(words) for words in sentences], output_layer=-2)
