"""Convert a model of ELMoForManyLangs (Che et al., 2018; 44 languages) to a `save_pretrained` folder.

    config.json, its settings, char.dic, word.dic, token_embedder.pkl, encoder.pkl  --convert_manylangs-->
    config, tokenizer, model.safetensors, code, model card

These models spell words in Unicode characters by a dictionary, and read an embedding of each word beside them. The
LSTMs are AllenNLP's. `OPTIONS` and `embedder_table` say what becomes what.

The original swaps `<bow>` and `<eow>` when it spells a word, in training and ever after. So our begin of a word has
the embedding that the files call `<eow>`, and the end that of `<bow>`.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from torch.nn import functional as F

from .configuration_elmo import ElmoConfig
from .convert_allennlp import highway_table, linear_table, lstm_table, read_state
from .convert_elmo import (
    ACTIVATION,
    CHARACTERS_PER_WORD,
    CLIP,
    COUNT,
    FILTERS,
    SIZE,
    Kind,
    Option,
    Transform,
    Weight,
    check_file,
    check_output,
    config_values,
    fill_parameters,
    initial_mix,
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


def _only(name: str) -> Kind:
    return Kind(f'"{name}", the only one supported', lambda value: isinstance(value, str) and value.lower() == name)


OPTIONS = (
    Option("encoder.name", None, _only("elmo")),
    Option("encoder.projection_dim", "projection_dim", SIZE),
    Option("encoder.dim", "cell_dim", SIZE),
    Option("encoder.n_layers", "num_hidden_layers", SIZE),
    Option("encoder.cell_clip", "cell_clip", CLIP, None),
    Option("encoder.proj_clip", "projection_clip", CLIP, None),
    Option("token_embedder.name", None, _only("cnn")),
    Option("token_embedder.word_dim", "word_embedding_dim", COUNT),
    Option("token_embedder.char_dim", "char_embedding_dim", COUNT),
    Option("token_embedder.max_characters_per_token", "max_characters_per_token", CHARACTERS_PER_WORD),
    Option("token_embedder.activation", "char_activation", ACTIVATION, "relu"),
    Option("token_embedder.filters", "char_filters", FILTERS, []),
    Option("token_embedder.n_highway", "num_highway_layers", COUNT, 0),
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
        if path.is_file():
            return read_json(path), path
    if relative.name in PUBLISHED_NAMES:
        return PUBLISHED_SETTINGS, config_file
    raise ElmoError(f"{folder}: has no {relative.name}, which config.json names: copy it there")


def _read_config(folder: Path) -> ElmoConfig:
    """Read the config, except for the sizes of the dictionaries."""
    settings, path = _read_settings(folder)
    values = config_values(settings, OPTIONS, path)
    if not values["char_embedding_dim"]:  # there are no characters, whatever else the settings say of them
        del values["char_embedding_dim"]
        values |= {"char_filters": [], "num_highway_layers": 0}
    elif not values["char_filters"]:
        raise ElmoError(f"{path}: `token_embedder.filters` is missing")
    with named(path, "not settings of a model"):
        return ElmoConfig(spelling="dictionary", **values)


class Dictionary(NamedTuple):
    """The entries of a .dic file without the special ones, and the rows of the file's embedding in our order."""

    entries: list[str]
    rows: list[int]


def read_dictionary(path: Path, special: Sequence[str]) -> Dictionary:
    """Read lines of an entry, a tab and its id. The special entries come first, the others by id."""
    with named(path, "cannot be read"):
        lines = path.read_bytes().decode("utf-8").split("\n")
    if not lines[-1]:
        lines.pop()
    ids: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        # As the original reads them: blanks around an entry are not part of it.
        *entry, index = line.strip().split("\t")
        name = entry[0] if entry else BLANK
        if len(entry) > 1 or not (index.isascii() and index.isdigit()):
            raise ElmoError(f"{path}: line {number} must be an entry, a tab and its id, got {line[:40]!r}")
        if name in ids:
            raise ElmoError(f"{path}: line {number} holds {name!r} a second time")
        ids[name] = int(index)
    if sorted(ids.values()) != list(range(len(ids))):
        raise ElmoError(f"{path}: the ids of {len(ids)} entries must be the numbers from 0 to {len(ids) - 1}")
    for name in special:
        if name not in ids:
            raise ElmoError(f"{path}: lacks {name!r}")
    ordinary = sorted(ids.keys() - set(special), key=ids.__getitem__)
    return Dictionary(ordinary, [ids[name] for name in (*special, *ordinary)])


def embedder_table(config: ElmoConfig, words: Dictionary | None, characters: Dictionary | None) -> Iterator[Weight]:
    """Yield what token_embedder.pkl holds, and where it goes."""
    target = "char_encoder"
    if config.word_embedding_dim:
        assert words is not None
        reorder = Transform(lambda stored: [stored[words.rows]])
        shape = (len(words.rows), config.word_embedding_dim)
        yield Weight("word_emb_layer.embedding.weight", shape, (f"{target}.word_embedding.weight",), reorder)
    if config.char_filters:
        assert characters is not None
        # Our row 0 is a padded word.
        reorder = Transform(lambda stored: [F.pad(stored[characters.rows], (0, 0, 1, 0))])
        dim = config.char_embedding_dim
        shape = (len(characters.rows), dim)
        yield Weight("char_emb_layer.embedding.weight", shape, (f"{target}.char_embedding.weight",), reorder)
        for index, (width, count) in enumerate(config.char_filters):
            yield from linear_table(f"convolutions.{index}", (count, dim, width), f"{target}.convolutions.{index}")
        yield from highway_table(config, "highways.")
    features = config.word_embedding_dim + config.num_char_features
    yield from linear_table("projection", (config.projection_dim, features), f"{target}.projection")


def convert_manylangs(model_dir: StrPath, output_dir: StrPath, overwrite: bool = False) -> Path:
    """Convert a model of ELMoForManyLangs to a folder for `from_pretrained`; return the folder.

    Args:
        model_dir: the unpacked model: config.json, char.dic, word.dic, token_embedder.pkl, encoder.pkl.
        output_dir: the folder to make, whole or not at all.
        overwrite: whether to replace a model that is already in `output_dir`.

    Raises:
        ElmoError: if anything in the files is not as the format has it, or the folder cannot be written.
    """
    model_dir, output_dir = Path(model_dir), Path(output_dir).resolve()
    config = _read_config(model_dir)
    sources = [model_dir / "token_embedder.pkl", model_dir / "encoder.pkl"]
    if config.char_filters:
        sources.append(model_dir / "char.dic")
    # The words a model was trained to predict; it need not read them.
    if config.word_embedding_dim or (model_dir / "word.dic").is_file():
        sources.append(model_dir / "word.dic")
    for path in sources:
        check_file(path)
    check_output(output_dir, overwrite, "config.json", [model_dir])

    words = characters = None
    if model_dir / "word.dic" in sources:
        words = read_dictionary(model_dir / "word.dic", SPECIAL_WORDS)
    if config.char_filters:
        characters = read_dictionary(model_dir / "char.dic", SPECIAL_CHARACTERS)
        for entry in characters.entries:
            if len(entry) != 1:
                raise ElmoError(f"{model_dir / 'char.dic'}: {entry!r} is not one character")
    spelled = characters.entries if characters is not None else []
    with named(model_dir / "word.dic", "not a vocabulary"):
        tokenizer = ElmoTokenizer(
            vocab=words.entries if words is not None else None,
            max_characters_per_token=config.max_characters_per_token,
            characters="".join(spelled),
            pad_token=PADDING,
            bos_token=SENTENCE_BEGIN,
            eos_token=SENTENCE_END,
            unk_token=UNKNOWN,
        )
    config.vocab_size = tokenizer.vocab_size
    config.char_vocab_size = FIRST_CHARACTER + len(spelled)

    embedder, encoder, *_ = sources
    asker = "the settings and dictionaries"
    table = embedder_table(config, words, characters)
    parameters = fill_parameters(table, read_state(embedder, embedder), embedder, asker)
    parameters |= fill_parameters(lstm_table(config, ""), read_state(encoder, encoder), encoder, "the settings")
    origin = "a model of ELMoForManyLangs (Che et al., 2018), whose text is split into words beforehand"
    return write_model(output_dir, config, tokenizer, parameters | initial_mix(config), origin, sources)
