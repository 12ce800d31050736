"""Convert a model of ELMoForManyLangs (Che et al., 2018; 44 languages) to a `save_pretrained` folder.

    config.json, its settings, char.dic, word.dic, token_embedder.pkl, encoder.pkl  --convert_manylangs-->
    config, tokenizer, model.safetensors, code, model card

These models spell words in Unicode characters by a dictionary, and read an embedding of each word beside them. The
LSTMs are AllenNLP's. `OPTIONS` and `WEIGHTS` say what becomes what.

The original swaps `<bow>` and `<eow>` when it spells a word, in training and ever after. So our begin of a word has
the embedding that the files call `<eow>`, and the end that of `<bow>`.
"""

import os
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from .configuration_elmo import ElmoConfig
from .convert_allennlp import HIGHWAY, HIGHWAY_BIASES, HIGHWAY_WEIGHTS, lstm_table, read_state
from .convert_elmo import (
    EMBEDDING,
    Option,
    Weight,
    check_files,
    check_output,
    fill_config,
    fill_model,
    named,
    write_model,
)
from .files import ElmoError, StrPath, read_json
from .tokenization_elmo import FIRST_CHARACTER, ElmoTokenizer

PADDING, SENTENCE_BEGIN, SENTENCE_END, UNKNOWN = "<pad>", "<bos>", "<eos>", "<oov>"
# In the order of our tokenizer's first ids: of words, and of characters, there with the swap.
SPECIAL_WORDS = (PADDING, SENTENCE_BEGIN, SENTENCE_END, UNKNOWN)
SPECIAL_CHARACTERS = (SENTENCE_BEGIN, SENTENCE_END, "<eow>", "<bow>", PADDING, UNKNOWN)
# A dictionary's line whose entry is blank stands for the one blank that the original gives it.
BLANK = "\u3000"

# The settings of all published models, which name this file and do not always have it.
PUBLISHED_NAMES = ("cnn_50_100_512_4096_sample.json", "cnn_0_100_512_4096_sample.json")
PUBLISHED_SETTINGS = {
    "encoder": {"name": "elmo", "projection_dim": 512, "cell_clip": 3, "proj_clip": 3, "dim": 4096, "n_layers": 2},
    "token_embedder": {
        "name": "cnn",
        "activation": "relu",
        "filters": [[1, 32], [2, 32], [3, 64], [4, 128], [5, 256], [6, 512], [7, 1024]],
        "n_highway": 2,
        "word_dim": 100,
        "char_dim": 50,
        "max_characters_per_token": 50,
    },
    "dropout": 0.1,
}


OPTIONS = (
    Option("encoder.name", None, allowed=("elmo",)),
    Option("encoder.projection_dim", "projection_dim"),
    Option("encoder.dim", "cell_dim"),
    Option("encoder.n_layers", "num_hidden_layers"),
    Option("encoder.cell_clip", "cell_clip", None),
    Option("encoder.proj_clip", "projection_clip", None),
    Option("token_embedder.name", None, allowed=("cnn",)),
    Option("token_embedder.word_dim", "word_embedding_dim"),
    Option("token_embedder.max_characters_per_token", "max_characters_per_token"),
)
CHARACTER_OPTIONS = (
    Option("token_embedder.char_dim", "char_embedding_dim"),
    Option("token_embedder.activation", "char_activation", "relu"),
    Option("token_embedder.filters", "char_filters"),
    Option("token_embedder.n_highway", "num_highway_layers", 0),
)
WEIGHTS = (
    Weight("token_embedder/word_emb_layer.embedding.weight", ("char_encoder.word_embedding.weight",)),
    Weight("token_embedder/char_emb_layer.embedding.weight", ("char_encoder.char_embedding.weight",), EMBEDDING),
    Weight("token_embedder/convolutions.#.weight", ("char_encoder.convolutions.#.weight",)),
    Weight("token_embedder/convolutions.#.bias", ("char_encoder.convolutions.#.bias",)),
    Weight("token_embedder/highways._layers.#.weight", HIGHWAY_WEIGHTS, HIGHWAY),
    Weight("token_embedder/highways._layers.#.bias", HIGHWAY_BIASES, HIGHWAY),
    Weight("token_embedder/projection.weight", ("char_encoder.projection.weight",)),
    Weight("token_embedder/projection.bias", ("char_encoder.projection.bias",)),
    *lstm_table("encoder/"),
)


def _read_settings(folder: Path) -> tuple[Any, Path]:
    """Return the settings that a folder's config.json names, and their file; nothing outside the folder is read."""
    config_file = folder / "config.json"
    config = read_json(config_file)
    config_path = config.get("config_path") if isinstance(config, dict) else None
    if not isinstance(config_path, str) or not PurePosixPath(config_path).name:
        raise ElmoError(f"{config_file}: `config_path` must name a file of settings, got {config_path!r}")
    relative = PurePosixPath(config_path)
    candidates = [folder / relative.name]
    if not relative.is_absolute() and ".." not in relative.parts:
        candidates.insert(0, folder / relative)
    for path in candidates:
        if os.path.isfile(path):
            return read_json(path), path
    if relative.name in PUBLISHED_NAMES:
        return PUBLISHED_SETTINGS, config_file
    raise ElmoError(f"{folder}: has no {relative.name}, which config.json names: copy it there")


def _read_config(folder: Path) -> ElmoConfig:
    """Read the config, except for the sizes of the dictionaries."""
    settings, path = _read_settings(folder)
    config = ElmoConfig(spelling="dictionary", char_filters=[[1, 1]], num_highway_layers=0)
    fill_config(config, settings, OPTIONS, path)
    if settings["token_embedder"].get("char_dim") != 0:
        return fill_config(config, settings, CHARACTER_OPTIONS, path)
    # There are no characters, whatever else the settings say of them.
    with named(path, "not settings of a model"):
        config.char_filters = []
        config.validate()
    return config


def read_dictionary(path: Path, special: Sequence[str]) -> dict[str, int]:
    """Read lines of an entry, a tab and its id. Return the special entries first, then the others by id."""
    with named(path, "cannot be read"):
        lines = path.read_bytes().decode("utf-8").removesuffix("\n").split("\n")
    ids: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        # As the original reads them: blanks around an entry are not part of it.
        *entry, index = line.strip().split("\t")
        name = entry[0] if entry else BLANK
        if len(entry) > 1 or not (index.isascii() and index.isdigit() and len(index) < 19):
            raise ElmoError(f"{path}: line {number} must be an entry, a tab and its id, got {line[:40]!r}")
        ids[name] = int(index)
    if sorted(ids.values()) != list(range(len(lines))):
        raise ElmoError(f"{path}: must hold every entry once, with ids from 0 to {len(lines) - 1}")
    for name in special:
        if name not in ids:
            raise ElmoError(f"{path}: lacks {name!r}")
    by_id = sorted(ids, key=ids.__getitem__)
    return {name: ids[name] for name in dict.fromkeys([*special, *by_id])}


def convert_manylangs(model_dir: StrPath, output_dir: StrPath, overwrite: bool = False) -> Path:
    """Convert a model of ELMoForManyLangs to a folder for `from_pretrained`; return the folder.

    Args:
        model_dir: the unpacked model: config.json, char.dic, word.dic, token_embedder.pkl, encoder.pkl.
        output_dir: the folder to make, whole or not at all.
        overwrite: whether to replace a model that is already in `output_dir`.
    """
    model_dir = Path(model_dir)
    config = _read_config(model_dir)
    word_file, character_file = model_dir / "word.dic", model_dir / "char.dic"
    sources = [model_dir / "token_embedder.pkl", model_dir / "encoder.pkl"]
    if config.char_filters:
        sources.append(character_file)
    # The words a model was trained to predict; it need not read them.
    if config.word_embedding_dim or word_file.is_file():
        sources.append(word_file)
    check_files(sources)
    output_dir = check_output(output_dir, overwrite, [model_dir])

    words = read_dictionary(word_file, SPECIAL_WORDS) if word_file in sources else {}
    characters = read_dictionary(character_file, SPECIAL_CHARACTERS) if config.char_filters else {}
    spelled = list(characters)[len(SPECIAL_CHARACTERS) :]
    for entry in spelled:
        if len(entry) != 1:
            raise ElmoError(f"{character_file}: {entry!r} is not one character")
    with named(word_file, "not a vocabulary"):
        tokenizer = ElmoTokenizer(
            vocab=list(words)[len(SPECIAL_WORDS) :] or None,
            max_characters_per_token=config.max_characters_per_token,
            characters="".join(spelled),
            pad_token=PADDING,
            bos_token=SENTENCE_BEGIN,
            eos_token=SENTENCE_END,
            unk_token=UNKNOWN,
        )
    config.vocab_size = tokenizer.vocab_size
    config.char_vocab_size = FIRST_CHARACTER + len(spelled)

    stored = {}
    for path in sources[:2]:
        for name, tensor in read_state(path, path).items():
            stored[f"{path.stem}/{name}"] = tensor
    model = fill_model(config, WEIGHTS, stored, model_dir, "the settings and dictionaries")
    orders = {}
    if config.word_embedding_dim:
        orders["word"] = list(words.values())
    if config.char_filters:
        orders["char"] = [0, *(row + 1 for row in characters.values())]  # 0 is a padded word
    for kind, order in orders.items():
        embedding = model.get_parameter(f"char_encoder.{kind}_embedding.weight")
        embedding.data = embedding.data[order]
    origin = "a model of ELMoForManyLangs (Che et al., 2018), whose text is split into words beforehand"
    return write_model(output_dir, model, tokenizer, origin, sources)
