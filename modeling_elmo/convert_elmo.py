"""Convert the original checkpoint format (bilm-tf, AllenNLP, SeqVec) to a `save_pretrained` folder, and back.

    options.json + weights.hdf5  --convert_checkpoint-->  config, tokenizer, model.safetensors, code, model card
                                 <--export_checkpoint---

Two tables, each read in both directions, say what becomes what: OPTIONS and `weight_table`. Weights are only moved,
never computed with, so a round trip gives back every bit. The softmax over words is not part of the format.

The other families, convert_allennlp.py and convert_manylangs.py, have tables of their own and share the rest.
"""

import json
import logging
import math
import reprlib
import sys
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
from .files import ElmoError, StrPath, atomic_write, read_json
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


@contextmanager
def named(path: Path, trouble: str) -> Iterator[None]:
    """Turn whatever is raised over a file into one line that names the file."""
    try:
        yield
    except ElmoError:
        raise
    # libhdf5, tarfile, torch.load and from_pretrained answer broken files with nearly every built-in exception.
    except Exception as error:
        raise ElmoError(f"{path}: {trouble}: {one_line(error)}") from error


def one_line(error: BaseException) -> str:
    """Return the whole message in one line, without the path that an OSError repeats."""
    reason = error.strerror if isinstance(error, OSError) else None
    return " ".join(str(reason or error).split()) or type(error).__name__


# ---------------------------------------------------------------------------------------------------------- options


class Kind(NamedTuple):
    """What an option may be: in words, and as a test."""

    description: str
    allows: Callable[[Any], bool]


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def at_least(least: int) -> Kind:
    def allows(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and value >= least

    return Kind(f"a whole number of at least {least}", allows)


def one_of(description: str, *values: Any) -> Kind:
    # The type is compared as well: True == 1.
    return Kind(description, lambda value: any(value == v and type(value) is type(v) for v in values))


def is_filters(value: Any) -> bool:
    return isinstance(value, list) and len(value) > 0 and all(map(is_filter, value))


def is_filter(pair: Any) -> bool:
    return isinstance(pair, list) and len(pair) == 2 and all(map(SIZE.allows, pair))


SIZE, COUNT = at_least(1), at_least(0)
CHARACTERS_PER_WORD = at_least(3)
CLIP = Kind("a positive number, or null for no bound", lambda value: is_number(value) and value > 0)
DROPOUT = Kind("a number from 0 up to, not including, 1", lambda value: is_number(value) and 0 <= value < 1)
FILTERS = Kind("a list of [width, count] pairs of whole numbers", is_filters)
ACTIVATION = one_of('"relu" or "tanh"', "relu", "tanh")
REQUIRED = object()


class Option(NamedTuple):
    """One key of a file of options and the config field it becomes; `field` is None for a key that is only checked."""

    key: str
    field: str | None
    kind: Kind
    default: Any = REQUIRED


# The stored embedding has 261 rows. Options for training say so; those for inference count padding in.
ALPHABET = (CHARACTER_PADDING, CHARACTER_PADDING + 1)
# The defaults are those of bilm-tf. Other keys, such as the settings of its training, have no part in the model.
OPTIONS = (
    Option("bidirectional", None, one_of("true: ELMo reads both ways", True), True),
    Option("lstm.dim", "cell_dim", SIZE),
    Option("lstm.projection_dim", "projection_dim", SIZE),
    Option("lstm.n_layers", "num_hidden_layers", SIZE, 1),
    Option("lstm.cell_clip", "cell_clip", CLIP, None),
    Option("lstm.proj_clip", "projection_clip", CLIP, None),
    Option("lstm.use_skip_connections", "use_skip_connections", one_of("true or false", True, False), False),
    Option("char_cnn.embedding.dim", "char_embedding_dim", SIZE),
    Option("char_cnn.filters", "char_filters", FILTERS),
    Option("char_cnn.activation", "char_activation", ACTIVATION),
    Option("char_cnn.max_characters_per_token", "max_characters_per_token", CHARACTERS_PER_WORD),
    Option("char_cnn.n_characters", None, one_of(f"{ALPHABET[0]} or {ALPHABET[1]}", *ALPHABET), ALPHABET[1]),
    Option("char_cnn.n_highway", "num_highway_layers", COUNT, 0),
    Option("dropout", "dropout", DROPOUT, 0.1),
)


def read_option(options: Any, option: Option, path: Path) -> Any:
    """Return the value of one option, or its default where it is missing or null."""
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
        raise ElmoError(f"{path}: `{option.key}` must be {option.kind.description}, got {reprlib.repr(value)}")
    return value


def config_values(options: Any, table: Sequence[Option], path: Path) -> dict[str, Any]:
    """Check all options of a table and return the config's fields."""
    values = {}
    for option in table:
        value = read_option(options, option, path)
        if option.field is not None:
            values[option.field] = value
    return values


def read_options(path: StrPath) -> ElmoConfig:
    """Read the config that an options.json describes."""
    return parse_options(read_json(path), Path(path))


def parse_options(options: Any, path: Path) -> ElmoConfig:
    """Return the config that options describe; `path` is where they are from."""
    values = config_values(options, OPTIONS, path)
    widest, characters = max(values["char_filters"])[0], values["max_characters_per_token"]
    if widest > characters:
        raise ElmoError(
            f"{path}: `char_cnn.filters` has a width of {widest}, more than the {characters} characters of "
            "`char_cnn.max_characters_per_token`"
        )
    return ElmoConfig(**values)


def _make_options(config: ElmoConfig) -> dict[str, Any]:
    """Return the options.json of a config. What the format leaves to a default is written out."""
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
    """A rearrangement of a stored tensor to the parameters it becomes, and back where the format is written too."""

    to_model: Callable[[Tensor], Sequence[Tensor]]
    to_file: Callable[[Sequence[Tensor]], Tensor] | None = None


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
    """One stored tensor, its shape in the file, and the parameters it becomes."""

    name: str
    shape: tuple[int, ...]
    parameters: tuple[str, ...]
    transform: Transform = SAME


def weight_table(config: ElmoConfig) -> Iterator[Weight]:
    """Yield what a file for `config` holds, and where it goes."""
    # A generator, so that an absurd number of layers fails at the first dataset that is missing.
    dim, features = config.char_embedding_dim, config.num_char_features
    size, cells = config.projection_dim, config.cell_dim
    encoder = "char_encoder"
    yield Weight("char_embed", (config.char_vocab_size - 1, dim), (f"{encoder}.char_embedding.weight",), EMBEDDING)
    for index, (width, count) in enumerate(config.char_filters or ()):
        target = f"{encoder}.convolutions.{index}"
        yield Weight(f"CNN/W_cnn_{index}", (1, width, dim, count), (f"{target}.weight",), CONVOLUTION)
        yield Weight(f"CNN/b_cnn_{index}", (count,), (f"{target}.bias",))
    for index in range(config.num_highway_layers):
        for gate in ("carry", "transform"):
            target = f"{encoder}.highways.{index}.{gate}"
            yield Weight(f"CNN_high_{index}/W_{gate}", (features, features), (f"{target}.weight",), TRANSPOSED)
            yield Weight(f"CNN_high_{index}/b_{gate}", (features,), (f"{target}.bias",))
    if features != size:
        yield Weight("CNN_proj/W_proj", (features, size), (f"{encoder}.projection.weight",), TRANSPOSED)
        yield Weight("CNN_proj/b_proj", (size,), (f"{encoder}.projection.bias",))
    for direction, model in enumerate(("forward_lm", "backward_lm")):
        for layer in range(config.num_hidden_layers):
            source = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            target = f"{model}.layers.{layer}"
            gates = (f"{target}.input_gates.weight", f"{target}.recurrent_gates.weight")
            yield Weight(f"{source}/W_0", (2 * size, 4 * cells), gates, GATES)
            yield Weight(f"{source}/B", (4 * cells,), (f"{target}.input_gates.bias",))
            yield Weight(f"{source}/W_P_0", (cells, size), (f"{target}.projection.weight",), TRANSPOSED)


def fill_parameters(
    table: Iterable[Weight],
    stored: Mapping[str, Any],
    path: Path,
    asker: str,
    read: Callable[[Any], Tensor] = Tensor.float,
) -> dict[str, Tensor]:
    """Return the parameters, in float32, that a table makes of stored tensors: of all of them, and of nothing else.

    Args:
        table: what is expected.
        stored: what there is: tensors or datasets by name. None is read before all have the right shapes.
        path: where it is from.
        asker: what the expected shapes are from.
        read: reads one of them as float32.
    """
    weights = []
    for weight in table:
        if weight.name not in stored:
            raise ElmoError(f"{path}: `{weight.name}` is missing, which {asker} ask for")
        shape = stored[weight.name].shape  # an HDF5 dataset may have none
        if shape != weight.shape:
            shape = shape and tuple(shape)
            raise ElmoError(f"{path}: `{weight.name}` has shape {shape} where {asker} ask for {weight.shape}")
        weights.append(weight)
    left_over = sorted(stored.keys() - {weight.name for weight in weights})
    if left_over:
        raise ElmoError(f"{path}: {left_over[0]!r} is left over: {asker} have no place for it")
    # The largest first: a tensor and its rearranged copy are both in memory, while little else is.
    weights.sort(key=lambda weight: math.prod(weight.shape), reverse=True)
    parameters: dict[str, Tensor] = {}
    for weight in tqdm(weights, desc="reading", unit="tensor", leave=False, disable=None):
        dtype = stored[weight.name].dtype
        if not (dtype.is_floating_point if isinstance(dtype, torch.dtype) else dtype.kind == "f"):
            raise ElmoError(f"{path}: `{weight.name}` holds {dtype}; expected floating-point numbers")
        tensor = read(stored[weight.name])
        if not tensor.isfinite().all():
            raise ElmoError(f"{path}: `{weight.name}` holds values that are not finite")
        for name, parameter in zip(weight.parameters, weight.transform.to_model(tensor), strict=True):
            parameters[name] = parameter.clone(memory_format=torch.contiguous_format)
    return parameters


def initial_mix(config: ElmoConfig) -> dict[str, Tensor]:
    """Return the mix of a model without a learned one: the average of the layers."""
    return {
        "scalar_mix.scalar_weights": torch.zeros(config.num_hidden_layers + 1),
        "scalar_mix.gamma": torch.ones(1),
    }


def _find_datasets(file: h5py.File, path: Path) -> dict[str, h5py.Dataset]:
    """Return every dataset of a file by name. Links that lead elsewhere are refused without being followed."""
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


def read_weights(path: StrPath, config: ElmoConfig) -> dict[str, Tensor]:
    """Read the parameters of an `ElmoModel` for `config`, in float32, from an HDF5 file."""
    path = Path(path)

    def read(dataset: h5py.Dataset) -> Tensor:
        values = np.empty(dataset.shape, dtype=np.float32)
        dataset.read_direct(values)
        return torch.from_numpy(values)

    with named(path, "not a readable HDF5 file"), h5py.File(path, "r") as file:
        datasets = _find_datasets(file, path)
        for name, dataset in datasets.items():
            if dataset.is_virtual or dataset.external is not None:
                raise ElmoError(f"{path}: `{name}` keeps its data in other files")
            if dataset.shape and dataset.id.get_storage_size() == 0:
                raise ElmoError(f"{path}: `{name}` was never written")
        return fill_parameters(weight_table(config), datasets, path, "the options", read)


def write_weights(path: StrPath, config: ElmoConfig, parameters: Mapping[str, Tensor]) -> None:
    """Write an HDF5 file: the inverse of `read_weights`. Parameters that the format does not have are left out."""
    weights = list(weight_table(config))
    with h5py.File(path, "x") as file:
        for weight in tqdm(weights, desc="writing", unit="tensor", leave=False, disable=None):
            assert weight.transform.to_file is not None
            stored = weight.transform.to_file([parameters[name] for name in weight.parameters])
            file.create_dataset(weight.name, data=stored.contiguous().numpy())


# ---------------------------------------------------------------------------------------------------------- folders


def find_sources(paths: Sequence[Path]) -> tuple[str, list[Path]]:
    """Return the family of a checkpoint, judged by its files, and what to read of it.

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
    """Refuse what is not a plain file: a pipe, for one, can be read only once."""
    with named(path, "cannot be read"):
        path.stat()
    if not path.is_file():
        raise ElmoError(f"{path}: is not a file")


def check_output(output_dir: Path, overwrite: bool, marker: str, inputs: Sequence[Path]) -> None:
    """Refuse an output folder that is in use, except to overwrite an earlier result, which has a file `marker`."""
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
    """Yield a folder to fill that becomes `output_dir` when it is complete. On an error nothing is left or changed."""
    missing = [parent for parent in output_dir.parents if not parent.exists()]
    try:
        with atomic_write(output_dir) as folder:
            folder.mkdir(parents=True)
            yield folder
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
    """Convert an original checkpoint to a folder for `from_pretrained`; return the folder.

    Args:
        options_file: the checkpoint's options.json.
        weights_file: its weights, an HDF5 file.
        output_dir: the folder to make, whole or not at all.
        vocab_file: the words of the checkpoint's softmax, one per line; embedding needs none.
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
    """Write a converted model with its tokenizer and a card, whole or not at all; return the folder."""
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
    """Write the biLM of a `save_pretrained` folder in the original format; return the folder.

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
    missing = sorted(loading["missing_keys"])
    if missing:
        raise ElmoError(f"{model_dir}: the weights lack `{missing[0]}`")
    parameters = model.state_dict()
    for name, tensor in parameters.items():
        if not np.isfinite(tensor.numpy()).all():
            raise ElmoError(f"{model_dir}: `{name}` holds values that are not finite")
    if _has_learned_mix(config, parameters):
        logger.warning("The format has no mix of the layers: that of %s is left out.", model_dir)

    with new_folder(output_dir) as folder:
        (folder / "options.json").write_text(json.dumps(_make_options(config), indent=2) + "\n", encoding="utf-8")
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


def _has_learned_mix(config: ElmoConfig, parameters: Mapping[str, Tensor]) -> bool:
    """Return whether the layers are mixed differently from a model that was just converted."""
    if config.mix != "scalar" or config.mix_layer_norm:
        return True
    return any(not torch.equal(parameters[name], value) for name, value in initial_mix(config).items())


def read_tokenizer(vocab_file: Path | None, max_characters_per_token: int) -> ElmoTokenizer:
    with named(vocab_file or Path("vocab.txt"), "not a readable list of words"):
        return ElmoTokenizer(vocab_file=vocab_file, max_characters_per_token=max_characters_per_token)


def _write_vocabulary(path: Path, words: Sequence[str]) -> None:
    """Write one word per line as bilm-tf does: its three special words first, under its names, and no padding."""
    lines = ["<S>", "</S>", "<UNK>", *words]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", errors="surrogatepass", newline="\n")
