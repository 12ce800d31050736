"""Convert the ELMo inside a model that was trained with AllenNLP to a `save_pretrained` folder.

    model.tar.gz, a folder with weights.th, or weights.th  --convert_allennlp-->  config, tokenizer, model, code, card

An ELMo that was fine-tuned with its task is converted as it is, together with one of the mixes of its layers that were
learned. What belongs to the task is left out. `WEIGHTS` says what becomes what. Sizes are read off the tensors; what
they do not show, such as the clips, is in an options.json or as in the published models.
"""

import io
import itertools
import json
import tarfile
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .configuration_elmo import ElmoConfig
from .convert_elmo import (
    Transform,
    Weight,
    check_files,
    check_output,
    fill_model,
    named,
    parse_options,
    read_options,
    read_tokenizer,
    write_model,
)
from .files import ElmoError, StrPath, read_json
from .recurrence_elmo import FORGET_BIAS

# The published ELMo is 370 MB and a task's word vectors may be as large again: more is no such archive.
LARGEST_WEIGHTS = 1 << 33
LARGEST_JSON = 1 << 24
MOST_MEMBERS = 10_000

# What the name of the character embedding ends in, after the name of its biLM.
CHARACTER_EMBEDDING = "_token_embedder._char_embedding_weights"
# Vectors of words that AllenNLP computed beforehand from their characters, as can be done again.
WORD_CACHE = "_word_embedding.weight"


class Converted(NamedTuple):
    """The folder, and in a few lines what was found and what was taken."""

    folder: Path
    notes: list[str]


# ---------------------------------------------------------------------------------------------------------- weights


def _reorder_gates(forget_bias: float) -> Transform:
    """Return i, f, j, o -> i, j, f, o; `forget_bias` is what our cell adds to f itself."""

    def to_model(stored: Tensor) -> Sequence[Tensor]:
        i, f, j, o = stored.chunk(4)
        return [torch.cat([i, j, f - forget_bias, o])]

    def to_file(parameters: Sequence[Tensor]) -> Tensor:
        i, j, f, o = parameters[0].chunk(4)
        return torch.cat([i, f + forget_bias, j, o])

    return Transform(to_model, to_file)


def _to_highway(stored: Tensor) -> Sequence[Tensor]:
    transform, gate = stored.chunk(2)
    return [transform, -gate]


def _from_highway(parameters: Sequence[Tensor]) -> Tensor:
    transform, carry = parameters
    return torch.cat([transform, -carry])


GATES = _reorder_gates(0)
BIAS = _reorder_gates(FORGET_BIAS)
# (2F, ...): the transform, then a gate that lets through what ours holds back, hence the sign.
HIGHWAY = Transform(_to_highway, _from_highway)
HIGHWAY_WEIGHTS = ("char_encoder.highways.#.transform.weight", "char_encoder.highways.#.carry.weight")
HIGHWAY_BIASES = ("char_encoder.highways.#.transform.bias", "char_encoder.highways.#.carry.bias")


def lstm_table(prefix: str) -> list[Weight]:
    """Return the table of AllenNLP's LSTMs, which ELMoForManyLangs uses too."""
    rows = []
    for direction in ("forward", "backward"):
        source, layer = f"{prefix}{direction}_layer_#", f"{direction}_lm.layers.#"
        rows += [
            Weight(f"{source}.input_linearity.weight", (f"{layer}.input_gates.weight",), GATES),
            Weight(f"{source}.state_linearity.weight", (f"{layer}.recurrent_gates.weight",), GATES),
            Weight(f"{source}.state_linearity.bias", (f"{layer}.input_gates.bias",), BIAS),
            Weight(f"{source}.state_projection.weight", (f"{layer}.projection.weight",)),
        ]
    return rows


WEIGHTS = (
    Weight(CHARACTER_EMBEDDING, ("char_encoder.char_embedding.weight",)),
    Weight("_token_embedder.char_conv_#.weight", ("char_encoder.convolutions.#.weight",)),
    Weight("_token_embedder.char_conv_#.bias", ("char_encoder.convolutions.#.bias",)),
    Weight("_token_embedder._highways._layers.#.weight", HIGHWAY_WEIGHTS, HIGHWAY),
    Weight("_token_embedder._highways._layers.#.bias", HIGHWAY_BIASES, HIGHWAY),
    Weight("_token_embedder._projection.weight", ("char_encoder.projection.weight",)),
    Weight("_token_embedder._projection.bias", ("char_encoder.projection.bias",)),
    *lstm_table("_elmo_lstm."),
)
MIX_WEIGHTS = (
    Weight("mix.weights", ("scalar_mix.scalar_weights",)),
    Weight("mix.gamma", ("scalar_mix.gamma",)),
)


# --------------------------------------------------------------------------------------------------------- archives


class Archive(NamedTuple):
    """What is read of a model: its tensors, the config it was trained with, the options of its ELMo."""

    state: dict[str, Tensor]
    config: Any
    options: Any
    files: list[Path]


def read_state(file: Path | io.BytesIO, path: Path) -> dict[str, Tensor]:
    """Read the tensors of a torch pickle, called `path` in errors. One with more than plain data is never run."""
    with named(path, "not a torch file of nothing but tensors, so it is refused"):
        state = torch.load(file, map_location="cpu", weights_only=True)
    if not isinstance(state, Mapping):
        raise ElmoError(f"{path}: holds a {type(state).__name__}; expected tensors by name")
    for name, value in state.items():
        if not isinstance(value, Tensor) or value.layout != torch.strided or value.is_quantized:
            raise ElmoError(f"{path}: `{name}` is not a plain tensor")
        # A few stored numbers may claim to be repeated to any size.
        if value.nbytes > value.untyped_storage().nbytes():
            raise ElmoError(f"{path}: `{name}` has shape {tuple(value.shape)}, more than what is stored")
    return {str(name): value for name, value in state.items()}


def read_archive(source: Path) -> Archive:
    """Read a model.tar.gz, a folder with a weights.th, or a weights.th with a config.json beside it."""
    if source.name.endswith((".tar.gz", ".tgz", ".tar")):
        check_files([source])
        members = _read_members(source)
        if "weights.th" not in members:
            raise ElmoError(f"{source}: has no weights.th, so it is not an AllenNLP archive")
        state = read_state(io.BytesIO(members.pop("weights.th")), source / "weights.th")
        with named(source, "holds JSON that cannot be read"):
            parsed = {name: json.loads(data) for name, data in members.items()}
        config = parsed.pop("config.json", None)
        return Archive(state, config, next(iter(parsed.values()), None), [source])
    weights = source
    if source.is_dir():
        weights = source / ("weights.th" if (source / "weights.th").is_file() else "best.th")
    check_files([weights])
    state = read_state(weights, weights)
    config_file = weights.with_name("config.json")
    if not config_file.is_file():
        return Archive(state, None, None, [weights])
    return Archive(state, read_json(config_file), None, [weights, config_file])


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
            is_options = fnmatchcase(str(name), "fta/*options_file")
            if str(name) not in ("weights.th", "config.json") and not is_options:
                continue
            limit = LARGEST_WEIGHTS if name.suffix == ".th" else LARGEST_JSON
            if member.size > limit:
                raise ElmoError(f"{path}: the member {member.name!r} has {member.size:,} bytes, over {limit:,}")
            if str(name) in members:
                raise ElmoError(f"{path}: has the member {member.name!r} twice")
            file = archive.extractfile(member)
            assert file is not None
            members[str(name)] = file.read()
    return members


# -------------------------------------------------------------------------------------------------- what is in there


def _find_bilm(state: Mapping[str, Tensor], path: Path) -> str:
    """Return the prefix of the biLM's tensors."""
    prefixes = [name.removesuffix(CHARACTER_EMBEDDING) for name in state if name.endswith(CHARACTER_EMBEDDING)]
    if len(prefixes) != 1:
        raise ElmoError(f"{path}: has {len(prefixes)} ELMos inside, tensors `…{CHARACTER_EMBEDDING}`; expected one")
    return prefixes[0]


def _read_mixes(state: Mapping[str, Tensor], elmo: str) -> list[dict[str, Tensor]]:
    """Return the learned mixes of the layers of an ELMo, as tensors for `MIX_WEIGHTS`."""
    mixes: list[dict[str, Tensor]] = []
    while (gamma := state.get(f"{elmo}scalar_mix_{len(mixes)}.gamma")) is not None:
        weights = [torch.zeros(0)]
        for layer in itertools.count():
            weight = state.get(f"{elmo}scalar_mix_{len(mixes)}.scalar_parameters.{layer}")
            if weight is None:
                break
            weights.append(weight.float().reshape(-1))
        mixes.append({"mix.weights": torch.cat(weights), "mix.gamma": gamma.reshape(-1)})
    return mixes


def _describe_mixes(mixes: Sequence[Mapping[str, Tensor]], chosen: int) -> list[str]:
    lines = []
    for number, mix in enumerate(mixes):
        weights = ", ".join(f"{weight:.3f}" for weight in mix["mix.weights"].softmax(0).tolist())
        taken = " <- taken" if number == chosen else ""
        lines.append(f"mix {number}: weights {weights}, gamma {mix['mix.gamma'].sum():.3f}{taken}")
    return lines or ["no learned mix of the layers: their average is taken"]


def _config_of_tensors(state: Mapping[str, Tensor], path: Path) -> ElmoConfig:
    """Return the config of a biLM as far as its tensors show it, and for the rest that of the published models."""

    def shapes(pattern: str) -> list[torch.Size]:
        names = map(pattern.format, itertools.count())
        return [state[name].shape for name in itertools.takewhile(state.__contains__, names)]

    with named(path, "not the tensors of an ELMo"):
        projection, cells = state["_elmo_lstm.forward_layer_0.state_projection.weight"].shape
        filters = [[width, count] for count, _, width in shapes("_token_embedder.char_conv_{}.weight")]
        return ElmoConfig(
            char_embedding_dim=state[CHARACTER_EMBEDDING].shape[1],
            char_filters=filters,
            num_highway_layers=len(shapes("_token_embedder._highways._layers.{}.weight")),
            projection_dim=projection,
            cell_dim=cells,
            num_hidden_layers=len(shapes("_elmo_lstm.forward_layer_{}.state_projection.weight")),
        )


def _uses_layer_norm(config: Any) -> bool:
    """Return whether a training config has an ELMo whose mix normalises the layers."""
    parts = [config]
    while parts:
        part = parts.pop()
        if isinstance(part, dict):
            if "weight_file" in part and part.get("do_layer_norm"):
                return True
            parts.extend(part.values())
        elif isinstance(part, list):
            parts.extend(part)
    return False


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
    """
    source = Path(source)
    more = [Path(path) for path in (options_file, vocab_file) if path is not None]
    check_files(more)
    output_dir = check_output(output_dir, overwrite, [source, *more])
    archive = read_archive(source)
    prefix = _find_bilm(archive.state, source)
    elmo = prefix.removesuffix("_elmo_lstm.")
    mixes = _read_mixes(archive.state, elmo)
    if mix and mix >= len(mixes):
        raise ElmoError(f"{source}: has no mix {mix}, only {len(mixes)}")
    notes = [f"ELMo found at `{prefix.rstrip('.') or 'the top'}`", *_describe_mixes(mixes, mix)]

    state, left_out = {}, 0
    for name, tensor in archive.state.items():
        if name.startswith(prefix):
            state[name.removeprefix(prefix)] = tensor
        elif not name.startswith(f"{elmo}scalar_mix_"):
            left_out += 1
    if left_out:
        notes.append(f"{left_out:,} tensors of the task left out")
    if WORD_CACHE in state:
        words = len(state.pop(WORD_CACHE))
        notes.append(f"a cache of {words:,} words' vectors is left out: they follow from the characters")

    asker = "the options"
    if options_file is not None:
        config = read_options(options_file)
    elif archive.options is not None:
        config = parse_options(archive.options, source / "fta")
    else:
        config, asker = _config_of_tensors(state, source), "its other tensors"
        notes.append("clips, activation and skip connections as in the published models (--options says otherwise)")
    tokenizer = read_tokenizer(vocab_file, config)
    table = WEIGHTS
    if mixes:
        table += MIX_WEIGHTS
        state |= mixes[mix]
        config.mix_layer_norm = _uses_layer_norm(archive.config)
    model = fill_model(config, table, state, source, asker)
    sources = [*archive.files, *more]
    return Converted(write_model(output_dir, model, tokenizer, "the ELMo of an AllenNLP model", sources), notes)
