"""Convert the original checkpoint format (bilm-tf, AllenNLP, SeqVec) to a `save_pretrained` folder, and back.

    options.json + weights.hdf5  --convert_checkpoint-->  config, tokenizer, model.safetensors, code, model card
                                 <--export_checkpoint---

Two tables, each read in both directions, say what becomes what: OPTIONS and WEIGHTS. Weights are only moved,
never computed with, so a round trip gives back every bit. The softmax over words is not part of the format.

The other families, convert_allennlp.py and convert_manylangs.py, have tables of their own and share the rest.
"""

import itertools
import json
import logging
import math
import os
import reprlib
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from torch import Tensor
from torch.nn import functional as F

from .card import conversion_card
from .configuration_elmo import ElmoConfig
from .files import ElmoError, StrPath, atomic_write, check_space, read_json, require
from .loading import find_model, load_folder
from .modeling_elmo import ElmoModel
from .tokenization_elmo import CHARACTER_PADDING, ElmoTokenizer

h5py = require("h5py", "convert")

logger = logging.getLogger(__name__)

# Padding, sentence begin and end, and the unknown word come first in a tokenizer's vocabulary.
SPECIAL_WORDS = 4
# What a dataset takes in an HDF5 file beside its numbers, at most.
DATASET_BYTES = 1 << 12
# Of an HDF5 file.
WEIGHTS_SUFFIXES = (".hdf5", ".h5")
# Trained numbers hardly compress. A dataset of more than so many bytes, or a chunk of it, is not larger than this
# many times what is stored.
SMALL_DATASET = 1 << 20
MOST_COMPRESSED = 16


@contextmanager
def named(path: Path, trouble: str) -> Iterator[None]:
    """Turn whatever is raised over a file into one line that names the file."""
    try:
        yield
    except ElmoError:
        raise
    # libhdf5, tarfile, torch.load and from_pretrained answer broken files with nearly every built-in exception.
    except Exception as error:
        raise ElmoError(f"{path}: {trouble}: {_shorten(error)}") from error


def _shorten(error: BaseException) -> str:
    """Return an error's message in one line, without the path that an OSError repeats."""
    reason = error.strerror if isinstance(error, OSError) else None
    return textwrap.shorten(str(reason or error), 200) or type(error).__name__


# ---------------------------------------------------------------------------------------------------------- options

REQUIRED = object()
# The stored embedding has 261 rows. Options for training say so; those for inference count padding in.
ALPHABET = (CHARACTER_PADDING + 1, CHARACTER_PADDING)


class Option(NamedTuple):
    """One key of a file of options, and the config field it becomes or, for a key that is only checked, its values."""

    key: str
    field: str | None
    default: Any = REQUIRED
    allowed: tuple[Any, ...] = ()


# The defaults are those of bilm-tf. Other keys, such as the settings of its training, have no part in the model.
OPTIONS = (
    Option("bidirectional", None, True, (True,)),
    Option("lstm.dim", "cell_dim"),
    Option("lstm.projection_dim", "projection_dim"),
    Option("lstm.n_layers", "num_hidden_layers", 1),
    Option("lstm.cell_clip", "cell_clip", None),
    Option("lstm.proj_clip", "projection_clip", None),
    Option("lstm.use_skip_connections", "use_skip_connections", False),
    Option("char_cnn.embedding.dim", "char_embedding_dim"),
    Option("char_cnn.max_characters_per_token", "max_characters_per_token"),
    Option("char_cnn.filters", "char_filters"),
    Option("char_cnn.activation", "char_activation"),
    Option("char_cnn.n_characters", None, ALPHABET[0], ALPHABET),
    Option("char_cnn.n_highway", "num_highway_layers", 0),
    Option("dropout", "dropout", 0.1),
)


def read_option(options: Any, option: Option, path: Path) -> Any:
    """Return the value of one option, or its default where it is missing or null."""
    value = options
    for part in option.key.split("."):
        if not isinstance(value, dict):
            raise ElmoError(f"{path}: `{option.key}` is not in an object: got {reprlib.repr(value)}")
        value = value.get(part)
        if value is None:
            break
    if value is None:
        value = option.default
    if value is REQUIRED:
        raise ElmoError(f"{path}: `{option.key}` is missing")
    if option.allowed and value not in option.allowed:
        allowed = " or ".join(map(json.dumps, option.allowed))
        raise ElmoError(f"{path}: `{option.key}` must be {allowed}, got {reprlib.repr(value)}")
    return value


def fill_config(config: ElmoConfig, options: Any, table: Iterable[Option], path: Path) -> ElmoConfig:
    """Set the fields that options describe, which the config checks; `path` is where the options are from."""
    for option in table:
        value = read_option(options, option, path)
        if isinstance(value, (int, float)) and abs(value) > sys.float_info.max:
            raise ElmoError(f"{path}: `{option.key}` is too large")
        if option.field is None:
            continue
        try:
            setattr(config, option.field, value)
            config.validate()
        except StrictDataclassError as error:
            raise ElmoError(f"{path}: `{option.key}`: {_shorten(error.__cause__ or error)}") from error
    return config


def parse_options(options: Any, path: Path) -> ElmoConfig:
    """Return the config that the contents of an options.json describe."""
    # The default filters may be wider than the words of other options are long.
    return fill_config(ElmoConfig(char_filters=[[1, 1]]), options, OPTIONS, path)


def read_options(path: StrPath) -> ElmoConfig:
    """Read the config that an options.json describes."""
    return parse_options(read_json(path), Path(path))


def _make_options(config: ElmoConfig) -> dict[str, Any]:
    """Return the options.json of a config. What the format leaves to a default is written out."""
    options: dict[str, Any] = {}
    for option in OPTIONS:
        *parents, last = option.key.split(".")
        inner = options
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[last] = getattr(config, option.field) if option.field else option.default
    return options


# ---------------------------------------------------------------------------------------------------------- weights


class Transform(NamedTuple):
    """A rearrangement of a stored tensor to the parameters it becomes, and back."""

    to_model: Callable[[Tensor], Sequence[Tensor]]
    to_file: Callable[[Sequence[Tensor]], Tensor]


SAME = Transform(lambda stored: [stored], lambda parameters: parameters[0])
TRANSPOSED = Transform(lambda stored: [stored.T], lambda parameters: parameters[0].T)
# (characters, d), to which our row 0 adds a padded word.
EMBEDDING = Transform(lambda stored: [F.pad(stored, (0, 0, 1, 0))], lambda parameters: parameters[0][1:])
# (1, width, d, count) is an image one pixel high; ours is (count, d, width).
CONVOLUTION = Transform(
    lambda stored: [stored[0].permute(2, 1, 0)], lambda parameters: parameters[0].permute(2, 1, 0)[None]
)
# (2P, 4M): the rows of the input, then those of the recurrent state. The gates' order i, j, f, o is kept.
GATES = Transform(lambda stored: stored.T.chunk(2, dim=1), lambda parameters: torch.cat(list(parameters), dim=1).T)


class Weight(NamedTuple):
    """One stored tensor and the parameters it becomes; `#` in the names is the number of a filter or a layer."""

    name: str
    parameters: tuple[str, ...]
    transform: Transform = SAME


WEIGHTS = (
    Weight("char_embed", ("char_encoder.char_embedding.weight",), EMBEDDING),
    Weight("CNN/W_cnn_#", ("char_encoder.convolutions.#.weight",), CONVOLUTION),
    Weight("CNN/b_cnn_#", ("char_encoder.convolutions.#.bias",)),
    Weight("CNN_high_#/W_carry", ("char_encoder.highways.#.carry.weight",), TRANSPOSED),
    Weight("CNN_high_#/b_carry", ("char_encoder.highways.#.carry.bias",)),
    Weight("CNN_high_#/W_transform", ("char_encoder.highways.#.transform.weight",), TRANSPOSED),
    Weight("CNN_high_#/b_transform", ("char_encoder.highways.#.transform.bias",)),
    Weight("CNN_proj/W_proj", ("char_encoder.projection.weight",), TRANSPOSED),
    Weight("CNN_proj/b_proj", ("char_encoder.projection.bias",)),
    Weight(
        "RNN_0/RNN/MultiRNNCell/Cell#/LSTMCell/W_0",
        ("forward_lm.layers.#.input_gates.weight", "forward_lm.layers.#.recurrent_gates.weight"),
        GATES,
    ),
    Weight("RNN_0/RNN/MultiRNNCell/Cell#/LSTMCell/B", ("forward_lm.layers.#.input_gates.bias",)),
    Weight("RNN_0/RNN/MultiRNNCell/Cell#/LSTMCell/W_P_0", ("forward_lm.layers.#.projection.weight",), TRANSPOSED),
    Weight(
        "RNN_1/RNN/MultiRNNCell/Cell#/LSTMCell/W_0",
        ("backward_lm.layers.#.input_gates.weight", "backward_lm.layers.#.recurrent_gates.weight"),
        GATES,
    ),
    Weight("RNN_1/RNN/MultiRNNCell/Cell#/LSTMCell/B", ("backward_lm.layers.#.input_gates.bias",)),
    Weight("RNN_1/RNN/MultiRNNCell/Cell#/LSTMCell/W_P_0", ("backward_lm.layers.#.projection.weight",), TRANSPOSED),
)


def expand_table(table: Iterable[Weight], parameters: Mapping[str, Tensor]) -> dict[str, Weight]:
    """Return the rows of a table, with numbers for `#`, whose parameters a model has, by stored name."""
    rows = {}
    for weight, number in itertools.product(table, map(str, range(len(parameters)))):
        targets = tuple(parameter.replace("#", number) for parameter in weight.parameters)
        if targets[0] in parameters:
            name = weight.name.replace("#", number)
            rows[name] = Weight(name, targets, weight.transform)
    return rows


def fill_model(
    config: ElmoConfig,
    table: Iterable[Weight],
    stored: Mapping[str, Any],
    path: Path,
    asker: str,
    read: Callable[[Any], Tensor] = Tensor.detach,
) -> ElmoModel:
    """Make a model, in float32, of stored tensors: of all of them, and of nothing else but a mix that averages.

    Nothing is read before all names and shapes are right. For errors, `path` is where the tensors or datasets are from
    and `asker` where the sizes are; `read` makes a tensor of a dataset.
    """
    if max(len(config.char_filters), config.num_highway_layers, config.num_hidden_layers) > len(stored):
        raise ElmoError(f"{path}: has {len(stored)} tensors, too few for the layers that {asker} ask for")
    with named(path, f"cannot have the sizes that {asker} ask for"), torch.device("meta"):
        model = ElmoModel(config)
    expected = model.state_dict()
    weights = expand_table(table, expected)
    for name, weight in weights.items():
        if name not in stored:
            raise ElmoError(f"{path}: `{name}` is missing, which {asker} ask for")
        shape = tuple(weight.transform.to_file([expected[parameter] for parameter in weight.parameters]).shape)
        found = stored[name].shape  # an HDF5 dataset may have none
        if found != shape:
            raise ElmoError(f"{path}: `{name}` has shape {found and tuple(found)} where {asker} ask for {shape}")
    left_over = sorted(stored.keys() - weights)
    if left_over:
        raise ElmoError(f"{path}: {left_over[0]!r} is left over: {asker} have no place for it")

    parameters = {
        "scalar_mix.scalar_weights": torch.zeros(config.num_hidden_layers + 1),
        "scalar_mix.gamma": torch.ones(1),
    }
    for name, weight in weights.items():
        tensor = read(stored[name])
        if not tensor.is_floating_point() or not tensor.float().isfinite().all():
            raise ElmoError(f"{path}: `{name}` must hold finite floating-point numbers")
        for parameter, value in zip(weight.parameters, weight.transform.to_model(tensor.float()), strict=True):
            parameters[parameter] = value.clone(memory_format=torch.contiguous_format)
    # Strict: a parameter that a table forgot is an error, not a random initial value.
    model.load_state_dict(parameters, strict=True, assign=True)
    return model


def _find_datasets(file: Any, path: Path) -> dict[str, Any]:
    """Return every dataset of a file by name. Links that lead elsewhere are refused without being followed."""
    datasets: dict[str, Any] = {}
    visited = set()
    groups = [("", file)]
    while groups:
        prefix, group = groups.pop()
        address = h5py.h5o.get_info(group.id).addr
        if address in visited:
            raise ElmoError(f"{path}: the group {prefix!r} is linked twice")
        visited.add(address)
        for key in map(str, group):
            name = prefix + key
            # h5py's `in` and `get(getlink=True)` would open the target of an external link.
            link = group.id.links.get_info(key.encode("utf-8", "surrogateescape"))
            if link.type != h5py.h5l.TYPE_HARD:
                raise ElmoError(f"{path}: {name!r} is a link")
            item = group[key]
            if isinstance(item, h5py.Group):
                groups.append((f"{name}/", item))
            elif isinstance(item, h5py.Dataset):
                datasets[name] = item
            else:
                raise ElmoError(f"{path}: {name!r} is a named type")
    return datasets


def read_weights(path: Path, config: ElmoConfig) -> ElmoModel:
    """Make a model of an HDF5 file."""
    with named(path, "not a readable HDF5 file"), h5py.File(path, "r") as file:
        datasets = _find_datasets(file, path)
        for name, dataset in datasets.items():
            if dataset.is_virtual or dataset.external is not None:
                raise ElmoError(f"{path}: `{name}` keeps its data in other files")
            if dataset.shape and dataset.id.get_storage_size() == 0:
                raise ElmoError(f"{path}: `{name}` was never written")
            stored = dataset.id.get_storage_size()
            for size in (dataset.nbytes, math.prod(dataset.chunks or ()) * dataset.dtype.itemsize):
                if size > max(SMALL_DATASET, MOST_COMPRESSED * stored):
                    raise ElmoError(f"{path}: `{name}` would have {size:,} bytes, but only {stored:,} are stored")
            if dataset.dtype.kind != "f":
                raise ElmoError(f"{path}: `{name}` holds {dataset.dtype}; expected floating-point numbers")

        def read(dataset: Any) -> Tensor:
            return torch.from_numpy(dataset.astype(np.float32)[...])

        return fill_model(config, WEIGHTS, datasets, path, "the options", read)


def write_weights(path: Path, parameters: Mapping[str, Tensor]) -> None:
    """Write an HDF5 file: the inverse of `read_weights`. Parameters that the format does not have are left out."""
    with h5py.File(path, "x") as file:
        for name, weight in expand_table(WEIGHTS, parameters).items():
            stored = weight.transform.to_file([parameters[parameter] for parameter in weight.parameters])
            file[name] = stored.contiguous().numpy()


# ---------------------------------------------------------------------------------------------------------- folders


def find_sources(paths: Sequence[Path]) -> tuple[str, list[Path]]:
    """Return the family of a checkpoint, judged by its files, and what to read of it.

    `bilm-tf` is read from two files, options and weights; `AllenNLP` and `ELMoForManyLangs` from one file or folder.
    """
    if len(paths) == 2:
        return "bilm-tf", sorted(paths, key=lambda path: path.suffix.lower() in WEIGHTS_SUFFIXES)
    if len(paths) > 2:
        raise ElmoError(f"{paths[2]}: one path too many; a checkpoint is one path, or options.json weights.hdf5")
    path = paths[0]
    if path.name.endswith((".tar.gz", ".tgz", ".tar", ".th")):
        return "AllenNLP", [path]
    if not os.path.isdir(path):
        trouble = "not a checkpoint" if os.path.exists(path) else "no such file or folder"
        raise ElmoError(f"{path}: {trouble}; expected a folder, model.tar.gz, weights.th, or two files")
    files = {entry.name for entry in path.iterdir()}
    if files & {"encoder.pkl", "token_embedder.pkl"}:
        return "ELMoForManyLangs", [path]
    if files & {"weights.th", "best.th"}:
        return "AllenNLP", [path]
    if "model.safetensors" in files:
        raise ElmoError(f"{path}: holds a model.safetensors: it is converted already")
    options = sorted(path.glob("*options.json"))
    weights = sorted(file for file in path.iterdir() if file.suffix.lower() in WEIGHTS_SUFFIXES)
    if len(options) == len(weights) == 1:
        return "bilm-tf", options + weights
    if options and weights:
        names = ", ".join(file.name for file in options + weights)
        raise ElmoError(f"{path}: several files to choose from: give one options.json and one of weights, of {names}")
    raise ElmoError(f"{path}: not a checkpoint: has no encoder.pkl, no weights.th, and no options.json and .hdf5 file")


def check_files(paths: Iterable[Path]) -> None:
    """Refuse what is not a plain file: a pipe, for one, can be read only once."""
    for path in paths:
        with named(path, "cannot be read"):
            path.stat()
        if not path.is_file():
            raise ElmoError(f"{path}: is not a file")


def check_output(output_dir: StrPath, overwrite: bool, inputs: Iterable[Path], marker: str = "config.json") -> Path:
    """Refuse an output folder that is in use, except to overwrite an earlier result, which has a file `marker`."""
    output_dir = Path(output_dir).resolve()
    with named(output_dir, "cannot be used"):
        if not output_dir.exists() or not any(output_dir.iterdir()):
            return output_dir
    if not overwrite:
        raise ElmoError(f"{output_dir}: exists and is not empty; choose another folder, or pass --overwrite")
    if not (output_dir / marker).is_file():
        raise ElmoError(f"{output_dir}: has no {marker}, so it is not an earlier result to overwrite")
    for path in inputs:
        if path.resolve().is_relative_to(output_dir):
            raise ElmoError(f"{path}: lies in the folder to overwrite, {output_dir}")
    return output_dir


@contextmanager
def new_folder(output_dir: Path, model: ElmoModel) -> Iterator[Path]:
    """Yield a folder for a model that becomes `output_dir` when it is complete.

    On an error nothing is left or changed; without room for the weights nothing is begun.
    """
    size = sum(tensor.nbytes for tensor in model.state_dict().values())
    missing = [parent for parent in output_dir.parents if not parent.exists()]
    try:
        with atomic_write(output_dir, size) as folder:
            folder.mkdir(parents=True)
            yield folder
    except BaseException as error:
        for parent in missing:
            with suppress(OSError):
                parent.rmdir()
        if isinstance(error, (OSError, SafetensorError)):
            raise ElmoError(f"{output_dir}: cannot be written: {_shorten(error)}") from error
        raise


def read_tokenizer(vocab_file: StrPath | None, config: ElmoConfig) -> ElmoTokenizer:
    """Make the tokenizer of a model that spells in bytes, with the words of a file if there is one."""
    with named(Path(vocab_file or "vocab.txt"), "not a readable list of words"):
        return ElmoTokenizer(vocab_file=vocab_file, max_characters_per_token=config.max_characters_per_token)


def write_model(
    output_dir: Path, model: ElmoModel, tokenizer: ElmoTokenizer, origin: str, sources: Sequence[Path]
) -> Path:
    """Write a converted model with its tokenizer and a card, whole or not at all; return the folder."""
    model.config.vocab_size = tokenizer.vocab_size
    with named(sources[0], "cannot be read"):
        card = conversion_card(model, tokenizer, origin, sources)
    with new_folder(output_dir, model) as folder:
        tokenizer.save_pretrained(folder)
        model.save_pretrained(folder)
        (folder / "README.md").write_text(card, encoding="utf-8")
    return output_dir


def convert_checkpoint(
    options_file: StrPath,
    weights_file: StrPath,
    output_dir: StrPath,
    vocab_file: StrPath | None = None,
    overwrite: bool = False,
) -> Path:
    """Convert an original checkpoint to a folder for `from_pretrained`; return the folder.

    Args:
        options_file: the checkpoint's options.json.
        weights_file: its weights, an HDF5 file.
        output_dir: the folder to make, whole or not at all.
        vocab_file: the words of the checkpoint's softmax, one per line; embedding needs none.
        overwrite: whether to replace a model that is already in `output_dir`.
    """
    sources = [Path(path) for path in (options_file, weights_file, vocab_file) if path is not None]
    check_files(sources)
    output_dir = check_output(output_dir, overwrite, sources)
    config = read_options(options_file)
    tokenizer = read_tokenizer(vocab_file, config)
    model = read_weights(Path(weights_file), config)
    return write_model(output_dir, model, tokenizer, "a checkpoint in the original bilm-tf format", sources)


def export_checkpoint(model_dir: StrPath, output_dir: StrPath, overwrite: bool = False) -> Path:
    """Write the biLM of a `save_pretrained` folder in the original format; return the folder.

    Args:
        model_dir: a folder with an ELMo model, on its own or in a task model.
        output_dir: the folder to make, whole or not at all: options.json, weights.hdf5 and, if the tokenizer has a
            vocabulary, vocab.txt.
        overwrite: whether to replace a checkpoint that is already in `output_dir`.
    """
    model_dir = find_model(model_dir)
    output_dir = check_output(output_dir, overwrite, [model_dir], marker="options.json")
    config_file = model_dir / "config.json"
    with named(config_file, "not the config of an ELMo model"):
        config = ElmoConfig.from_pretrained(model_dir, local_files_only=True)
    for field, value in (("spelling", "bytes"), ("char_vocab_size", ALPHABET[0])):
        if getattr(config, field) != value:
            raise ElmoError(f"{config_file}: the format has no `{field}` but {value!r}")
    model, tokenizer = load_folder(model_dir, ElmoModel)
    parameters = model.float().state_dict()
    for name, tensor in parameters.items():
        if not tensor.isfinite().all():
            raise ElmoError(f"{model_dir}: `{name}` holds values that are not finite")
    mix = model.scalar_mix
    if mix is None or mix.layer_norm or mix.scalar_weights.any() or mix.gamma != 1:
        logger.warning("The format has no mix of the layers: that of %s is left out.", model_dir)

    with new_folder(output_dir, model) as folder:
        (folder / "options.json").write_text(json.dumps(_make_options(config), indent=2) + "\n", encoding="utf-8")
        size = sum(tensor.nbytes for tensor in parameters.values()) + DATASET_BYTES * len(parameters)
        with named(output_dir / "weights.hdf5", "cannot be written"):
            check_space(output_dir / "weights.hdf5", size, folder)
            write_weights(folder / "weights.hdf5", parameters)
        if tokenizer.vocab_size > SPECIAL_WORDS:
            words = tokenizer.convert_ids_to_tokens(range(SPECIAL_WORDS, tokenizer.vocab_size))
            # As bilm-tf does: its three special words first, under its names, and no padding.
            text = "\n".join(["<S>", "</S>", "<UNK>", *words, ""])
            (folder / "vocab.txt").write_text(text, encoding="utf-8", errors="surrogatepass", newline="\n")
    return output_dir
