"""The original checkpoint format (bilm-tf, AllenNLP, SeqVec) to a `save_pretrained` folder, and back.

    options.json + weights.hdf5  --convert_checkpoint-->  config, tokenizer, model.safetensors, code, model card
                                 <--export_checkpoint---

Two tables, each read in both directions, say what becomes what: OPTIONS and `weight_table`. Weights are only moved,
never computed with, so a round trip gives back every bit. The softmax over words is not part of the format.

Other families of checkpoints have a module each, convert_allennlp.py and convert_manylangs.py, and share from here how
options are read and folders are written.
"""

import json
import logging
import math
import os
import reprlib
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor
from torch.nn import functional as F
from tqdm import tqdm

from .card import conversion_card
from .configuration_elmo import ElmoConfig
from .files import ElmoError
from .modeling_elmo import ElmoModel
from .tokenization_elmo import CHARACTER_PADDING, ElmoTokenizer

try:
    import h5py
    from h5py import h5l, h5o
except ImportError as error:
    raise ImportError("the original format is HDF5, which needs h5py: pip install 'modeling-elmo[convert]'") from error

logger = logging.getLogger(__name__)

# Padding, sentence begin and end, and the unknown word come first in a tokenizer's vocabulary.
SPECIAL_WORDS = 4

StrPath = str | os.PathLike[str]


# ---------------------------------------------------------------------------------------------------------- options


class Kind(NamedTuple):
    """What an option may be: in words, and as a test."""

    wanted: str
    allows: Callable[[Any], bool]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def is_count(value: Any, least: int = 1) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def is_filters(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) > 0
        and all(isinstance(pair, list) and len(pair) == 2 and all(map(is_count, pair)) for pair in value)
    )


SIZE = Kind("a whole number of at least 1", is_count)
CLIP = Kind(
    "a positive number, or null for no bound", lambda value: value is None or (_is_number(value) and value > 0)
)
SWITCH = Kind("true or false", lambda value: isinstance(value, bool))
REQUIRED = object()


class Option(NamedTuple):
    """One key of options.json and the config field it becomes; `field` is None for a key that is only checked."""

    key: str
    field: str | None
    kind: Kind
    default: Any = REQUIRED


# The defaults are those of bilm-tf. Other keys, such as the settings of its training, have no part in the model.
OPTIONS = (
    Option("bidirectional", None, Kind("true: ELMo reads both ways", lambda value: value is True), True),
    Option("lstm.dim", "cell_dim", SIZE),
    Option("lstm.projection_dim", "projection_dim", SIZE),
    Option("lstm.n_layers", "num_hidden_layers", SIZE, 1),
    Option("lstm.cell_clip", "cell_clip", CLIP, None),
    Option("lstm.proj_clip", "projection_clip", CLIP, None),
    Option("lstm.use_skip_connections", "use_skip_connections", SWITCH, False),
    Option("char_cnn.embedding.dim", "char_embedding_dim", SIZE),
    Option("char_cnn.filters", "char_filters", Kind("a list of [width, count] pairs of whole numbers", is_filters)),
    Option(
        "char_cnn.activation",
        "char_activation",
        Kind('"relu" or "tanh"', lambda value: isinstance(value, str) and value in ("relu", "tanh")),
    ),
    Option(
        "char_cnn.max_characters_per_token",
        "max_characters_per_token",
        Kind("a whole number of at least 3", lambda value: is_count(value, least=3)),
    ),
    # The stored embedding has 261 rows. Options for training say so; those for inference count padding in.
    Option(
        "char_cnn.n_characters",
        None,
        Kind(
            f"{CHARACTER_PADDING} or {CHARACTER_PADDING + 1}",
            lambda value: is_count(value) and value in (CHARACTER_PADDING, CHARACTER_PADDING + 1),
        ),
        CHARACTER_PADDING + 1,
    ),
    Option(
        "char_cnn.n_highway",
        "num_highway_layers",
        Kind("a whole number of at least 0", lambda value: is_count(value, least=0)),
        0,
    ),
    Option(
        "dropout",
        "dropout",
        Kind("a number from 0 up to, not including, 1", lambda value: _is_number(value) and 0 <= value < 1),
        0.1,
    ),
)


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ElmoError(f"{path}: cannot be read: {one_line(error)}") from error
    except (ValueError, RecursionError) as error:
        raise ElmoError(f"{path}: not a JSON file: {one_line(error)}") from error


def read_option(options: Any, option: Option, path: Path) -> Any:
    value = options
    parents: list[str] = []
    for part in option.key.split("."):
        if not isinstance(value, dict):
            where = f"`{'.'.join(parents)}`" if parents else "the whole file"
            raise ElmoError(f"{path}: {where} must be an object with keys, got {reprlib.repr(value)}")
        value = value.get(part)
        parents.append(part)
        if value is None:
            if option.default is REQUIRED:
                raise ElmoError(f"{path}: `{'.'.join(parents)}` is missing")
            return option.default
    if not option.kind.allows(value):
        raise ElmoError(f"{path}: `{option.key}` must be {option.kind.wanted}, got {reprlib.repr(value)}")
    return value


def read_options(path: StrPath) -> ElmoConfig:
    """The config that an options.json describes."""
    return config_of_options(read_json(Path(path)), Path(path))


def config_of_options(options: Any, path: Path) -> ElmoConfig:
    """The config that options describe; `path` is where they are from."""
    values = {option.key: read_option(options, option, path) for option in OPTIONS}
    widest, characters = max(values["char_cnn.filters"])[0], values["char_cnn.max_characters_per_token"]
    if widest > characters:
        raise ElmoError(
            f"{path}: `char_cnn.filters` has a width of {widest}, more than the {characters} characters of "
            "`char_cnn.max_characters_per_token`"
        )
    return ElmoConfig(**{option.field: values[option.key] for option in OPTIONS if option.field is not None})


def _options_of(config: ElmoConfig) -> dict[str, Any]:
    """The options.json of a config. What the format leaves to a default is written out."""
    options: dict[str, Any] = {}
    for option in OPTIONS:
        *parents, last = option.key.split(".")
        inner = options
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[last] = option.default if option.field is None else getattr(config, option.field)
    return options


# ---------------------------------------------------------------------------------------------------------- weights


class Transform(NamedTuple):
    """An invertible rearrangement: a stored tensor to the parameters it becomes, and back."""

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
GATES = Transform(
    lambda stored: [half.T for half in stored.chunk(2)],
    lambda parameters: torch.cat([half.T for half in parameters]),
)


class Weight(NamedTuple):
    """One dataset of the file, its shape there, and the parameters it becomes."""

    dataset: str
    shape: tuple[int, ...]
    parameters: tuple[str, ...]
    transform: Transform


def weight_table(config: ElmoConfig) -> Iterator[Weight]:
    """What a file for `config` holds, and where it goes."""
    # A generator, so that an absurd number of layers fails at the first dataset that is missing.
    dim, features, projection, cells = (
        config.char_embedding_dim,
        config.num_char_features,
        config.projection_dim,
        config.cell_dim,
    )
    encoder = "char_encoder"
    yield Weight("char_embed", (config.char_vocab_size - 1, dim), (f"{encoder}.char_embedding.weight",), EMBEDDING)
    for index, (width, count) in enumerate(config.char_filters or ()):
        name = f"{encoder}.convolutions.{index}"
        yield Weight(f"CNN/W_cnn_{index}", (1, width, dim, count), (f"{name}.weight",), CONVOLUTION)
        yield Weight(f"CNN/b_cnn_{index}", (count,), (f"{name}.bias",), SAME)
    for index in range(config.num_highway_layers):
        for gate in ("carry", "transform"):
            name = f"{encoder}.highways.{index}.{gate}"
            yield Weight(f"CNN_high_{index}/W_{gate}", (features, features), (f"{name}.weight",), TRANSPOSED)
            yield Weight(f"CNN_high_{index}/b_{gate}", (features,), (f"{name}.bias",), SAME)
    if features != projection:
        name = f"{encoder}.projection"
        yield Weight("CNN_proj/W_proj", (features, projection), (f"{name}.weight",), TRANSPOSED)
        yield Weight("CNN_proj/b_proj", (projection,), (f"{name}.bias",), SAME)
    for direction, model in enumerate(("forward_lm", "backward_lm")):
        for layer in range(config.num_hidden_layers):
            cell = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            name = f"{model}.layers.{layer}"
            gates = (f"{name}.input_gates.weight", f"{name}.recurrent_gates.weight")
            yield Weight(f"{cell}/W_0", (2 * projection, 4 * cells), gates, GATES)
            yield Weight(f"{cell}/B", (4 * cells,), (f"{name}.input_gates.bias",), SAME)
            yield Weight(f"{cell}/W_P_0", (cells, projection), (f"{name}.projection.weight",), TRANSPOSED)


def initial_mix(config: ElmoConfig) -> dict[str, Tensor]:
    """The mix of the layers, which the format does not have: their average."""
    return {
        "scalar_mix.scalar_weights": torch.zeros(config.num_hidden_layers + 1),
        "scalar_mix.gamma": torch.ones(1),
    }


def one_line(error: BaseException) -> str:
    """What went wrong, without the path that an OSError repeats."""
    reason = isinstance(error, OSError) and error.strerror
    return " ".join(str(reason or error).split()) or type(error).__name__


@contextmanager
def named(path: Path, trouble: str) -> Iterator[None]:
    """Turns whatever is raised over a file into one line that names the file."""
    try:
        yield
    except ElmoError:
        raise
    # libhdf5 and from_pretrained answer broken files with nearly every built-in exception and a few of their own.
    except Exception as error:
        raise ElmoError(f"{path}: {trouble}: {one_line(error)}") from error


def progress(weights: Iterable[Weight], what: str) -> "tqdm[Weight]":
    return tqdm(list(weights), desc=what, unit="tensor", leave=False, disable=None)


def _find_datasets(file: h5py.File, path: Path) -> dict[str, h5py.Dataset]:
    """Every dataset of a file by name. Links that lead elsewhere are refused without being followed."""
    datasets: dict[str, h5py.Dataset] = {}
    visited = set()
    groups: list[tuple[str, h5py.Group]] = [("", file)]
    while groups:
        prefix, group = groups.pop()
        address = h5o.get_info(group.id).addr
        if address in visited:
            raise ElmoError(f"{path}: the group {prefix!r} is linked twice; expected plain groups and datasets")
        visited.add(address)
        for key in map(str, group):
            name = prefix + key
            # h5py's `in` and `get(getlink=True)` would open the target of an external link.
            if group.id.links.get_info(key.encode("utf-8", "surrogateescape")).type != h5l.TYPE_HARD:
                raise ElmoError(f"{path}: {name!r} is a link; expected plain groups and datasets")
            item = group[key]
            if isinstance(item, h5py.Group):
                groups.append((f"{name}/", item))
            elif isinstance(item, h5py.Dataset):
                datasets[name] = item
            else:
                raise ElmoError(f"{path}: {name!r} is a named type; expected plain groups and datasets")
    return datasets


def _check_dataset(dataset: h5py.Dataset, weight: Weight, path: Path) -> None:
    """Refuses, before any of its data is read, a dataset that is not the one in the table."""
    name = f"{path}: `{weight.dataset}`"
    if dataset.shape != weight.shape:
        raise ElmoError(f"{name} has shape {dataset.shape} where the options ask for {weight.shape}")
    if dataset.dtype.kind != "f":
        raise ElmoError(f"{name} holds {dataset.dtype}; expected floating-point numbers")
    if dataset.is_virtual or dataset.external is not None:
        raise ElmoError(f"{name} keeps its data in other files")
    if dataset.id.get_storage_size() == 0:
        raise ElmoError(f"{name} was never written")


def read_weights(path: StrPath, config: ElmoConfig) -> dict[str, Tensor]:
    """The parameters of an `ElmoModel` for `config`, in float32, from a weights file."""
    path = Path(path)
    parameters: dict[str, Tensor] = {}
    with named(path, "not a readable HDF5 file"), h5py.File(path, "r") as file:
        datasets = _find_datasets(file, path)
        names = set()
        for weight in weight_table(config):
            if weight.dataset not in datasets:
                raise ElmoError(f"{path}: `{weight.dataset}` is missing, which the options ask for")
            _check_dataset(datasets[weight.dataset], weight, path)
            names.add(weight.dataset)
        if left_over := sorted(datasets.keys() - names):
            raise ElmoError(f"{path}: {left_over[0]!r} is left over: the options have no place for it")
        # The largest first: a tensor and its rearranged copy are both in memory, while little else is.
        by_size = sorted(weight_table(config), key=lambda weight: math.prod(weight.shape), reverse=True)
        for weight in progress(by_size, "reading"):
            stored = np.empty(weight.shape, dtype=np.float32)
            datasets[weight.dataset].read_direct(stored)
            if not np.isfinite(stored).all():
                raise ElmoError(f"{path}: `{weight.dataset}` holds values that are not finite")
            tensors = weight.transform.to_model(torch.from_numpy(stored))
            for name, tensor in zip(weight.parameters, tensors, strict=True):
                parameters[name] = tensor.contiguous()
    return parameters


def write_weights(path: StrPath, config: ElmoConfig, parameters: Mapping[str, Tensor]) -> None:
    """Writes a weights file: the inverse of `read_weights`. Parameters that the format does not have are left out."""
    with h5py.File(path, "x") as file:
        for weight in progress(weight_table(config), "writing"):
            stored = weight.transform.to_file([parameters[name] for name in weight.parameters])
            file.create_dataset(weight.dataset, data=stored.contiguous().numpy())


# ---------------------------------------------------------------------------------------------------------- folders


def find_sources(paths: Sequence[Path]) -> tuple[str, list[Path]]:
    """The family of a checkpoint, by the look of what is given, and what to read of it.

    `bilm-tf` is read from two files, options and weights; `AllenNLP` and `ELMoForManyLangs` from one file or folder.
    """
    if len(paths) == 2:
        return "bilm-tf", list(paths)
    path = paths[0]
    if len(paths) > 2:
        raise ElmoError(f"{paths[2]}: one path too many; a checkpoint is one path, or options.json weights.hdf5")
    if not path.exists():
        raise ElmoError(f"{path}: no such file or folder")
    if path.is_file():
        if path.name.endswith((".tar.gz", ".tgz", ".tar", ".th")):
            return "AllenNLP", [path]
        if path.suffix in (".json", ".hdf5", ".h5"):
            raise ElmoError(f"{path}: is half of a checkpoint; give both, options.json weights.hdf5")
        raise ElmoError(f"{path}: not a checkpoint; expected a folder, model.tar.gz, weights.th, or two files")
    files = {entry.name for entry in path.iterdir()}
    if files & {"encoder.pkl", "token_embedder.pkl"}:
        return "ELMoForManyLangs", [path]
    if files & {"weights.th", "best.th"}:
        return "AllenNLP", [path]
    if "model.safetensors" in files:
        raise ElmoError(f"{path}: holds a model.safetensors: it is converted already")
    weights = sorted(path / name for name in files if name.endswith((".hdf5", ".h5")))
    options = sorted(path / name for name in files if name.endswith("options.json"))
    if len(weights) == len(options) == 1:
        return "bilm-tf", [options[0], weights[0]]
    raise ElmoError(
        f"{path}: not a checkpoint: has neither encoder.pkl and token_embedder.pkl, nor weights.th, nor one "
        "options.json and one .hdf5 file"
    )


def check_file(path: Path) -> None:
    """Refuses what is not a plain file: a pipe, for one, could be read but once."""
    with named(path, "cannot be read"):
        if not stat.S_ISREG(path.stat().st_mode):
            raise ElmoError(f"{path}: is not a file")


def check_output(output_dir: Path, overwrite: bool, marker: str, inputs: Sequence[Path]) -> None:
    """Refuses an output folder that is in use, except to overwrite an earlier result, which has a file `marker`."""
    with named(output_dir, "cannot be used"):
        if not output_dir.exists() or (output_dir.is_dir() and not any(output_dir.iterdir())):
            return
    if not output_dir.is_dir():
        raise ElmoError(f"{output_dir}: exists and is not a folder")
    if not overwrite:
        raise ElmoError(f"{output_dir}: exists and is not empty; choose another folder, or pass --overwrite")
    if not (output_dir / marker).is_file():
        raise ElmoError(f"{output_dir}: has no {marker}, so it is not an earlier result to overwrite")
    for path in inputs:
        if path.resolve().is_relative_to(output_dir):
            raise ElmoError(f"{path}: lies in the folder to overwrite, {output_dir}")


@contextmanager
def new_folder(output_dir: Path) -> Iterator[Path]:
    """A folder to fill that becomes `output_dir` when it is complete. On an error nothing is left or changed."""
    missing = [parent for parent in output_dir.parents if not parent.exists()]
    try:
        output_dir.parent.mkdir(parents=True, exist_ok=True)
        # Inside the temporary folder, which only its owner may read: the result has ordinary permissions.
        with tempfile.TemporaryDirectory(prefix=f".{output_dir.name}-", dir=output_dir.parent) as scratch:
            new, old = Path(scratch, "new"), Path(scratch, "old")
            new.mkdir()
            yield new
            if output_dir.exists():
                output_dir.rename(old)
            try:
                new.rename(output_dir)
            except OSError:
                if old.exists():
                    old.rename(output_dir)
                raise
    except BaseException as error:
        for parent in missing:
            with suppress(OSError):
                parent.rmdir()
        if isinstance(error, (OSError, SafetensorError)):
            raise ElmoError(f"{output_dir}: cannot be written: {one_line(error)}") from error
        raise


def convert_checkpoint(
    options_file: StrPath,
    weights_file: StrPath,
    output_dir: StrPath,
    vocab_file: StrPath | None = None,
    overwrite: bool = False,
) -> Path:
    """Converts an original checkpoint to a folder for `from_pretrained`; returns the folder.

    Args:
        options_file: the checkpoint's options.json.
        weights_file: its weights, an HDF5 file.
        output_dir: the folder to make, whole or not at all.
        vocab_file: the words of the checkpoint's softmax, one a line; embedding needs none.
        overwrite: whether to replace a model that is already in `output_dir`.

    Raises:
        ElmoError: if anything in the files is not as the format has it, or the folder cannot be written.
    """
    options_file, weights_file, output_dir = Path(options_file), Path(weights_file), Path(output_dir).resolve()
    vocab_file = None if vocab_file is None else Path(vocab_file)
    sources = [path for path in (options_file, weights_file, vocab_file) if path is not None]
    for path in sources:
        check_file(path)
    check_output(output_dir, overwrite, "config.json", sources)

    config = read_options(options_file)
    tokenizer = read_tokenizer(vocab_file, config.max_characters_per_token)
    config.vocab_size = tokenizer.vocab_size
    parameters = read_weights(weights_file, config)
    origin = "a checkpoint in the original bilm-tf format"
    return write_model(output_dir, config, tokenizer, parameters | initial_mix(config), origin, sources)


def write_model(
    output_dir: Path,
    config: ElmoConfig,
    tokenizer: ElmoTokenizer,
    parameters: Mapping[str, Tensor],
    origin: str,
    sources: Sequence[Path],
) -> Path:
    """Writes a converted model with its tokenizer and a card, whole or not at all; returns the folder."""
    with torch.device("meta"):
        model = ElmoModel(config)
    # Strict: a parameter that a table forgot is an error, not a random initial value.
    model.load_state_dict(parameters, strict=True, assign=True)
    with named(sources[0], "cannot be read"):
        card = conversion_card(model, tokenizer, origin, sources)

    with new_folder(output_dir) as folder:
        tokenizer.save_pretrained(folder)
        model.save_pretrained(folder)
        (folder / "README.md").write_text(card, encoding="utf-8")
    return output_dir


def export_checkpoint(model_dir: StrPath, output_dir: StrPath, overwrite: bool = False) -> Path:
    """Writes the biLM of a `save_pretrained` folder in the original format; returns the folder.

    Args:
        model_dir: a folder with an ELMo model, on its own or in a task model.
        output_dir: the folder to make, whole or not at all: options.json, weights.hdf5 and, if the tokenizer has a
            vocabulary, vocab.txt.
        overwrite: whether to replace a checkpoint that is already in `output_dir`.

    Raises:
        ElmoError: if the folder does not hold an ELMo model, or the checkpoint cannot be written.
    """
    model_dir, output_dir = Path(model_dir), Path(output_dir).resolve()
    config = _read_config(model_dir)
    check_output(output_dir, overwrite, "options.json", [model_dir])

    with named(model_dir, "cannot be loaded"):
        loaded: Any = ElmoModel.from_pretrained(
            model_dir,
            config=config,
            dtype=torch.float32,
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
        )
        words = []
        if (model_dir / "vocab.txt").is_file():
            tokenizer = ElmoTokenizer.from_pretrained(model_dir, local_files_only=True)
            words = tokenizer.convert_ids_to_tokens(range(SPECIAL_WORDS, tokenizer.vocab_size))
    model, loading = loaded
    if missing := sorted(loading["missing_keys"]):
        raise ElmoError(f"{model_dir}: the weights lack `{missing[0]}`")
    parameters = model.state_dict()
    for name, tensor in parameters.items():
        if not np.isfinite(tensor.numpy()).all():
            raise ElmoError(f"{model_dir}: `{name}` holds values that are not finite")
    if _mixes_otherwise(config, parameters):
        logger.warning("The format has no mix of the layers: that of %s is left out.", model_dir)

    with new_folder(output_dir) as folder:
        (folder / "options.json").write_text(json.dumps(_options_of(config), indent=2) + "\n", encoding="utf-8")
        with named(output_dir / "weights.hdf5", "cannot be written"):
            write_weights(folder / "weights.hdf5", config, parameters)
        if words:
            _write_vocabulary(folder / "vocab.txt", words)
    return output_dir


def _read_config(model_dir: Path) -> ElmoConfig:
    path = model_dir / "config.json"
    values = read_json(path)
    if not isinstance(values, dict) or values.get("model_type") != "elmo":
        raise ElmoError(f'{path}: not the config of an ELMo model: `model_type` must be "elmo"')
    with named(path, "not a config"):
        config: ElmoConfig = ElmoConfig.from_pretrained(model_dir, local_files_only=True)
    if config.spelling != "bytes":
        raise ElmoError(f'{path}: the format has no `spelling` but "bytes", got {config.spelling!r}')
    if config.char_vocab_size != CHARACTER_PADDING + 1:
        raise ElmoError(
            f"{path}: `char_vocab_size` must be {CHARACTER_PADDING + 1}, the characters of the format, got "
            f"{config.char_vocab_size}"
        )
    return config


def _mixes_otherwise(config: ElmoConfig, parameters: Mapping[str, Tensor]) -> bool:
    """Whether the layers are mixed otherwise than in a model that was just converted."""
    if config.mix != "scalar" or config.mix_layer_norm:
        return True
    return any(not torch.equal(parameters[name], value) for name, value in initial_mix(config).items())


def read_tokenizer(vocab_file: Path | None, max_characters_per_token: int) -> ElmoTokenizer:
    try:
        return ElmoTokenizer(vocab_file=vocab_file, max_characters_per_token=max_characters_per_token)
    except (UnicodeDecodeError, OSError) as error:
        raise ElmoError(f"{vocab_file}: not a readable list of words: {one_line(error)}") from error
    except ValueError as error:
        raise ElmoError(one_line(error)) from error


def _write_vocabulary(path: Path, words: Sequence[str]) -> None:
    """One word a line, as bilm-tf has it: its three special words first, under its names, and no padding."""
    lines = ["<S>", "</S>", "<UNK>", *words]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", errors="surrogatepass", newline="\n")
