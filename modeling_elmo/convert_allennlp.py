"""Convert the ELMo inside a model that was trained with AllenNLP to a `save_pretrained` folder.

    model.tar.gz, a folder with weights.th, or weights.th  --convert_allennlp-->  config, tokenizer, model, code, card

An ELMo that was fine-tuned with its task is converted as it is, together with one of the mixes of its layers that were
learned. What belongs to the task is left out. `weight_table` says what becomes what. Sizes are read off the tensors;
what they do not show, such as the clips, is in an options.json or as in the published models.

Shapes: P projection, M memory cells, F filters of all widths, d size of a character.
"""

import io
import json
import os
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .configuration_elmo import ElmoConfig
from .convert_elmo import (
    Transform,
    Weight,
    check_file,
    check_output,
    fill_parameters,
    initial_mix,
    named,
    parse_options,
    read_options,
    read_tokenizer,
    write_model,
)
from .files import ElmoError, StrPath, first_line, read_json
from .tokenization_elmo import CHARACTER_PADDING

# The published ELMo is 370 MB and a task's word vectors may be as large again: more is no such archive.
LARGEST_WEIGHTS = 1 << 33
LARGEST_JSON = 1 << 24
MOST_MEMBERS = 10_000

# What the name of the character embedding ends in, after the name of its biLM.
CHARACTER_EMBEDDING = "_token_embedder._char_embedding_weights"
WEIGHTS, GAMMA = "scalar_mix.scalar_weights", "scalar_mix.gamma"
# Vectors of words that AllenNLP computed beforehand from their characters, as can be done again.
WORD_CACHE = "_word_embedding.weight"


class Converted(NamedTuple):
    """The folder, and in a few lines what was found and what was taken."""

    folder: Path
    notes: list[str]


# ---------------------------------------------------------------------------------------------------------- pickles


def read_state(file: Path | io.BytesIO, path: Path) -> dict[str, Tensor]:
    """Read the tensors of a torch pickle, called `path` in errors. One with more than plain data is never run."""
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
    # A broken pickle can end in nearly any exception, and torch explains a refused one in many lines.
    except Exception as error:
        reason = first_line(error)[:120]
        raise ElmoError(f"{path}: not a torch file of nothing but tensors, so it is refused: {reason}") from error
    if not isinstance(state, Mapping) or not all(isinstance(name, str) for name in state):
        raise ElmoError(f"{path}: holds a {type(state).__name__}; expected tensors by name")
    tensors: dict[str, Tensor] = {}
    for name, value in state.items():
        if not isinstance(value, Tensor) or value.layout != torch.strided or value.is_quantized:
            raise ElmoError(f"{path}: `{name}` is not a plain tensor")
        # A few stored numbers may claim to be repeated to any size.
        if value.numel() * value.element_size() > value.untyped_storage().nbytes():
            raise ElmoError(f"{path}: `{name}` has shape {tuple(value.shape)}, more than what is stored")
        tensors[name] = value.detach()
    return tensors


def _to_gates(stored: Tensor) -> Sequence[Tensor]:
    i, f, j, o = stored.chunk(4)
    return [torch.cat([i, j, f, o])]


def _to_bias(stored: Tensor) -> Sequence[Tensor]:
    i, f, j, o = stored.chunk(4)
    return [torch.cat([i, j, f - 1, o])]


def _to_highway(stored: Tensor) -> Sequence[Tensor]:
    transform, gate = stored.chunk(2)
    return [transform, -gate]


# (4M, ...): the gates i, f, j, o become i, j, f, o.
GATES = Transform(_to_gates)
# The same, less the 1 in the bias of f, which our cell adds itself.
BIAS = Transform(_to_bias)
# (2F, ...): the transform, then a gate that lets through what ours holds back, hence the sign.
HIGHWAY = Transform(_to_highway)


def lstm_table(config: ElmoConfig, prefix: str) -> Iterator[Weight]:
    """Yield the LSTMs of AllenNLP, on which ELMoForManyLangs is built too."""
    size, cells = config.projection_dim, config.cell_dim
    gates = (4 * cells, size)
    for direction in ("forward", "backward"):
        for layer in range(config.num_hidden_layers):
            source, target = f"{prefix}{direction}_layer_{layer}", f"{direction}_lm.layers.{layer}"
            yield Weight(f"{source}.input_linearity.weight", gates, (f"{target}.input_gates.weight",), GATES)
            yield Weight(f"{source}.state_linearity.weight", gates, (f"{target}.recurrent_gates.weight",), GATES)
            yield Weight(f"{source}.state_linearity.bias", gates[:1], (f"{target}.input_gates.bias",), BIAS)
            yield Weight(f"{source}.state_projection.weight", (size, cells), (f"{target}.projection.weight",))


def highway_table(config: ElmoConfig, prefix: str) -> Iterator[Weight]:
    """Yield the highway layers, each one matrix in the file."""
    features = config.num_char_features
    for layer in range(config.num_highway_layers):
        for kind, shape in (("weight", (2 * features, features)), ("bias", (2 * features,))):
            target = f"char_encoder.highways.{layer}"
            parameters = (f"{target}.transform.{kind}", f"{target}.carry.{kind}")
            yield Weight(f"{prefix}_layers.{layer}.{kind}", shape, parameters, HIGHWAY)


def linear_table(prefix: str, shape: tuple[int, ...], target: str) -> Iterator[Weight]:
    """Yield a weight, whose first dimension is that of its bias, and the bias."""
    yield Weight(f"{prefix}.weight", shape, (f"{target}.weight",))
    yield Weight(f"{prefix}.bias", shape[:1], (f"{target}.bias",))


def weight_table(config: ElmoConfig) -> Iterator[Weight]:
    """Yield what the biLM of an AllenNLP model holds, and where it goes."""
    encoder, target = "_token_embedder", "char_encoder"
    features, dim = config.num_char_features, config.char_embedding_dim
    yield Weight(CHARACTER_EMBEDDING, (config.char_vocab_size, dim), (f"{target}.char_embedding.weight",))
    for index, (width, count) in enumerate(config.char_filters):
        yield from linear_table(f"{encoder}.char_conv_{index}", (count, dim, width), f"{target}.convolutions.{index}")
    yield from highway_table(config, f"{encoder}._highways.")
    if config.has_projection:
        yield from linear_table(f"{encoder}._projection", (config.projection_dim, features), f"{target}.projection")
    yield from lstm_table(config, "_elmo_lstm.")


# --------------------------------------------------------------------------------------------------------- archives


class Archive(NamedTuple):
    """What is read of a model: its tensors, the config it was trained with, the options of its ELMo."""

    path: Path
    state: dict[str, Tensor]
    config: Any
    options: Any
    sources: list[Path]


def read_archive(source: Path) -> Archive:
    """Read a model.tar.gz, a folder with a weights.th, or a weights.th with a config.json beside it."""
    if source.name.endswith((".tar.gz", ".tgz", ".tar")):
        check_file(source)
        members = _read_members(source)
        if "weights.th" not in members:
            raise ElmoError(f"{source}: has no weights.th, so it is not an AllenNLP archive")
        state = read_state(io.BytesIO(members.pop("weights.th")), source / "weights.th")
        config = options = None
        for name, data in members.items():
            with named(source / name, "not a JSON file"):
                parsed = json.loads(data)
            if name == "config.json":
                config = parsed
            elif options is None:
                options = parsed
        return Archive(source, state, config, options, [source])
    weights = source
    if source.is_dir():
        found = [source / name for name in ("weights.th", "best.th") if (source / name).is_file()]
        if not found:
            raise ElmoError(f"{source}: has neither weights.th nor best.th")
        weights = found[0]
    check_file(weights)
    state = read_state(weights, weights)
    config_file = weights.parent / "config.json"
    if not config_file.is_file():
        return Archive(source, state, None, None, [weights])
    return Archive(source, state, read_json(config_file), None, [weights, config_file])


def _read_members(path: Path) -> dict[str, bytes]:
    """Read the files of an archive that a conversion needs, in memory: nothing is ever extracted."""
    members: dict[str, bytes] = {}
    with named(path, "not a readable tar archive"), tarfile.open(path, "r:*") as archive:
        for number, member in enumerate(archive, start=1):
            name = PurePosixPath(member.name)
            if number > MOST_MEMBERS:
                raise ElmoError(f"{path}: has more than {MOST_MEMBERS:,} members")
            if name.is_absolute() or ".." in name.parts:
                raise ElmoError(f"{path}: the member {member.name!r} would lie outside of the archive")
            if member.isdir():
                continue
            if not member.isreg() or member.issparse():
                raise ElmoError(f"{path}: the member {member.name!r} is a link or no plain file")
            limit = LARGEST_WEIGHTS if str(name) == "weights.th" else LARGEST_JSON
            is_options = name.parts[0] == "fta" and name.name.endswith("options_file")
            if str(name) not in ("weights.th", "config.json") and not is_options:
                continue
            if member.size > limit:
                raise ElmoError(f"{path}: the member {member.name!r} has {member.size:,} bytes, over {limit:,}")
            if str(name) in members:
                raise ElmoError(f"{path}: has the member {member.name!r} twice")
            file = archive.extractfile(member)
            assert file is not None
            members[str(name)] = file.read()
    return members


# -------------------------------------------------------------------------------------------------- what is in there


def _find_bilm(archive: Archive) -> str:
    """Return the prefix of the biLM's tensors."""
    prefixes = [name.removesuffix(CHARACTER_EMBEDDING) for name in archive.state if name.endswith(CHARACTER_EMBEDDING)]
    if not prefixes:
        raise ElmoError(f"{archive.path}: has no ELMo inside: no tensor's name ends in `{CHARACTER_EMBEDDING}`")
    if len(prefixes) > 1:
        raise ElmoError(
            f"{archive.path}: has {len(prefixes)} ELMos inside, at {' and '.join(map(repr, prefixes))}; expected one"
        )
    return prefixes[0]


def _read_mixes(archive: Archive, bilm: str) -> dict[int, dict[str, Tensor]]:
    """Return the learned mixes of the layers of the ELMo around a biLM, by number."""
    mixes: dict[int, dict[str, Tensor]] = {}
    if not bilm.endswith("_elmo_lstm."):
        return mixes
    elmo = bilm.removesuffix("_elmo_lstm.")
    while f"{elmo}scalar_mix_{len(mixes)}.gamma" in archive.state:
        prefix = f"{elmo}scalar_mix_{len(mixes)}."
        count = sum(name.startswith(prefix) for name in archive.state) - 1
        values = []
        for part in ("gamma", *(f"scalar_parameters.{number}" for number in range(count))):
            value = archive.state.get(prefix + part)
            if value is None or value.numel() != 1 or not value.isfinite().all():
                raise ElmoError(f"{archive.path}: `{prefix}{part}` must be one number of a mix of {count} layers")
            values.append(value.float().reshape(1))
        gamma, *weights = values
        mixes[len(mixes)] = {WEIGHTS: torch.cat([torch.zeros(0), *weights]), GAMMA: gamma}
    return mixes


def _describe_mixes(mixes: Mapping[int, Mapping[str, Tensor]], chosen: int) -> list[str]:
    lines = []
    for number, mix in mixes.items():
        weights = ", ".join(f"{weight:.3f}" for weight in mix[WEIGHTS].softmax(0).tolist())
        taken = " <- taken" if number == chosen else ""
        lines.append(f"mix {number}: weights {weights}, gamma {mix[GAMMA].item():.3f}{taken}")
    return lines or ["no learned mix of the layers: their average is taken"]


def _config_of_tensors(state: Mapping[str, Tensor], path: Path) -> ElmoConfig:
    """Return the config of a biLM as far as its tensors show it, and for the rest that of the published models."""

    def shape(name: str, rank: int) -> tuple[int, ...]:
        if name not in state or state[name].ndim != rank:
            found = "is missing" if name not in state else f"has shape {tuple(state[name].shape)}"
            raise ElmoError(f"{path}: `{name}` {found}; expected a tensor of {rank} dimensions")
        return tuple(state[name].shape)

    def count(pattern: str) -> int:
        number = 0
        while pattern.format(number) in state:
            number += 1
        return number

    encoder = "_token_embedder"
    rows, dim = shape(CHARACTER_EMBEDDING, 2)
    if rows != CHARACTER_PADDING + 1:
        raise ElmoError(f"{path}: `{CHARACTER_EMBEDDING}` has {rows} rows; expected {CHARACTER_PADDING + 1}")
    filters = []
    for index in range(count(f"{encoder}.char_conv_{{}}.weight")):
        filter_count, _, width = shape(f"{encoder}.char_conv_{index}.weight", 3)
        filters.append([width, filter_count])
    projection, cells = shape("_elmo_lstm.forward_layer_0.state_projection.weight", 2)
    with named(path, "not the sizes of an ELMo"):
        return ElmoConfig(
            char_embedding_dim=dim,
            char_filters=filters,
            num_highway_layers=count(f"{encoder}._highways._layers.{{}}.weight"),
            projection_dim=projection,
            cell_dim=cells,
            num_hidden_layers=count("_elmo_lstm.forward_layer_{}.state_projection.weight"),
        )


def _elmo_settings(config: Any) -> Iterator[dict[str, Any]]:
    """Yield the parts of a training config that make an ELMo: those that name its two files."""
    if isinstance(config, dict):
        if {"options_file", "weight_file"} <= config.keys():
            yield config
        config = list(config.values())
    if isinstance(config, list):
        for part in config:
            yield from _elmo_settings(part)


def _uses_layer_norm(archive: Archive) -> bool:
    values = {bool(settings.get("do_layer_norm", False)) for settings in _elmo_settings(archive.config)}
    if len(values) > 1:
        raise ElmoError(f"{archive.path}: config.json sets `do_layer_norm` of its ELMos to true and to false")
    return values == {True}


def convert_allennlp(
    source: StrPath,
    output_dir: StrPath,
    options_file: StrPath | None = None,
    mix: int = 0,
    vocab_file: StrPath | None = None,
    overwrite: bool = False,
) -> Converted:
    """Convert the ELMo inside an AllenNLP model to a folder for `from_pretrained`.

    Args:
        source: a model.tar.gz, a folder with a weights.th (or best.th), or a weights.th.
        output_dir: the folder to make, whole or not at all.
        options_file: the options.json of the ELMo, for what the tensors do not show: clips, activation, skip
            connections, characters per word. Without it they are as in the archive's copy or else as published.
        mix: which of the learned mixes of the layers becomes the model's, where there are several.
        vocab_file: words for the tokenizer, one per line; embedding needs none.
        overwrite: whether to replace a model that is already in `output_dir`.

    Raises:
        ElmoError: if there is no ELMo or anything in it is not as AllenNLP has it.
    """
    source, output_dir = Path(source), Path(output_dir).resolve()
    vocab_file = None if vocab_file is None else Path(vocab_file)
    more = [Path(path) for path in (options_file, vocab_file) if path is not None]
    for path in more:
        check_file(path)
    check_output(output_dir, overwrite, "config.json", [source, *more])
    archive = read_archive(source)
    prefix = _find_bilm(archive)
    state = {}
    for name, tensor in archive.state.items():
        if name.startswith(prefix):
            state[name.removeprefix(prefix)] = tensor
    mixes = _read_mixes(archive, prefix)
    if mix and mix not in mixes:
        known = ", ".join(map(str, mixes)) or "none"
        raise ElmoError(f"{source}: has no mix {mix}; there are {known}")
    notes = [f"ELMo found at `{prefix.rstrip('.') or 'the top'}`", *_describe_mixes(mixes, mix)]

    if options_file is not None:
        config, asker = read_options(options_file), f"the options in {os.fspath(options_file)}"
    elif archive.options is not None:
        config, asker = parse_options(archive.options, source / "fta"), "the options in the archive"
    else:
        config, asker = _config_of_tensors(state, source), "its other tensors"
        notes.append("clips, activation and skip connections as in the published models (--options says otherwise)")
    tokenizer = read_tokenizer(vocab_file, config.max_characters_per_token)
    config.vocab_size = tokenizer.vocab_size
    config.mix_layer_norm = bool(mixes) and _uses_layer_norm(archive)
    rest = len(archive.state) - len(state) - sum(len(found[WEIGHTS]) + 1 for found in mixes.values())
    if rest:
        notes.append(f"{rest:,} tensors of the task left out")
    if WORD_CACHE in state:
        count = len(state.pop(WORD_CACHE))
        notes.append(f"a cache of {count:,} words' vectors is left out: they follow from the characters")
    parameters = fill_parameters(weight_table(config), state, source, asker)
    chosen = mixes[mix] if mixes else initial_mix(config)
    layers = config.num_hidden_layers + 1
    if len(chosen[WEIGHTS]) != layers:
        raise ElmoError(f"{source}: mix {mix} is of {len(chosen[WEIGHTS])} layers; the ELMo has {layers}")
    sources = [*archive.sources, *more]
    origin = "the ELMo of an AllenNLP model"
    return Converted(write_model(output_dir, config, tokenizer, parameters | chosen, origin, sources), notes)
