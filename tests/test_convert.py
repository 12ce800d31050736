"""Conversion between the original format and `save_pretrained` folders moves every bit to where it belongs."""

import hashlib
import json
import logging
import os
import re
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from modeling_elmo import ElmoConfig, ElmoModel, ElmoPreTrainedModel, ElmoTokenizer
from modeling_elmo.convert_elmo import convert_checkpoint, export_checkpoint, read_options
from modeling_elmo.files import ElmoError

# bilm-tf's own vectors were computed in float32 by TensorFlow: sums are taken in another order there.
REFERENCE_TOLERANCE = 1e-6
# Weights mapped from a file are aligned otherwise than those made in memory, and are summed by other kernels.
ALIGNMENT_TOLERANCE = 1e-7
RANDOM_DAMAGE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


class Sizes(NamedTuple):
    """What a test checkpoint looks like. No two sizes are equal, so that no transpose goes unnoticed."""

    layers: int = 2
    filters: tuple[tuple[int, int], ...] = ((1, 3), (2, 4), (4, 6))
    dim: int = 2
    highways: int = 2
    projection: int = 5
    cells: int = 8
    activation: str = "relu"
    skip: bool = True
    n_characters: int = 262

    @property
    def features(self) -> int:
        return sum(count for _, count in self.filters)


VARIANTS = {
    "like the published": Sizes(),
    "one layer": Sizes(layers=1),
    "three layers": Sizes(layers=3),
    "no skip connections": Sizes(skip=False),
    "one filter": Sizes(filters=((3, 7),)),
    "tanh": Sizes(activation="tanh"),
    "no projection of characters": Sizes(projection=13),
    "261 characters": Sizes(n_characters=261),
    "no highway": Sizes(highways=0),
}

sizes = st.builds(
    Sizes,
    layers=st.integers(1, 3),
    filters=st.lists(st.tuples(st.integers(1, 6), st.integers(1, 5)), min_size=1, max_size=4).map(tuple),
    dim=st.integers(1, 3),
    highways=st.integers(0, 2),
    projection=st.integers(1, 6),
    cells=st.integers(1, 5),
    activation=st.sampled_from(["relu", "tanh"]),
    skip=st.booleans(),
    n_characters=st.sampled_from([261, 262]),
)


class Checkpoint(NamedTuple):
    options: Path
    weights: Path


def options_of(sizes: Sizes) -> dict[str, Any]:
    return {
        "lstm": {
            "cell_clip": 3,
            "proj_clip": 3,
            "dim": sizes.cells,
            "projection_dim": sizes.projection,
            "n_layers": sizes.layers,
            "use_skip_connections": sizes.skip,
        },
        "char_cnn": {
            "embedding": {"dim": sizes.dim},
            "filters": [list(pair) for pair in sizes.filters],
            "n_highway": sizes.highways,
            "n_characters": sizes.n_characters,
            "max_characters_per_token": 50,
            "activation": sizes.activation,
        },
    }


def random_weights(sizes: Sizes, seed: int = 0) -> dict[str, np.ndarray]:
    """Datasets in the original layout, with the extremes of float32 among them."""
    random = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {"char_embed": (261, sizes.dim)}
    for index, (width, count) in enumerate(sizes.filters):
        shapes[f"CNN/W_cnn_{index}"], shapes[f"CNN/b_cnn_{index}"] = (1, width, sizes.dim, count), (count,)
    for index in range(sizes.highways):
        for gate in ("carry", "transform"):
            shapes[f"CNN_high_{index}/W_{gate}"] = (sizes.features, sizes.features)
            shapes[f"CNN_high_{index}/b_{gate}"] = (sizes.features,)
    if sizes.features != sizes.projection:
        shapes["CNN_proj/W_proj"], shapes["CNN_proj/b_proj"] = (sizes.features, sizes.projection), (sizes.projection,)
    for direction in range(2):
        for layer in range(sizes.layers):
            cell = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            shapes[f"{cell}/B"] = (4 * sizes.cells,)
            shapes[f"{cell}/W_0"] = (2 * sizes.projection, 4 * sizes.cells)
            shapes[f"{cell}/W_P_0"] = (sizes.cells, sizes.projection)
    weights = {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    limits = np.finfo(np.float32)
    weights["char_embed"].flat[:4] = -0.0, limits.smallest_subnormal, limits.max, limits.min
    return weights


def write_checkpoint(folder: Path, sizes: Sizes, weights: dict[str, np.ndarray] | None = None) -> Checkpoint:
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint = Checkpoint(folder / "options.json", folder / "weights.hdf5")
    checkpoint.options.write_text(json.dumps(options_of(sizes)))
    with h5py.File(checkpoint.weights, "w") as file:
        for name, values in (random_weights(sizes) if weights is None else weights).items():
            file[name] = values
    return checkpoint


def read_tensors(weights_file: Path) -> dict[str, tuple[tuple[int, ...], bytes]]:
    """Every dataset of a file as its shape and the bits of its float32 values."""
    found = {}

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            assert item.dtype == np.float32
            found[name] = (item.shape, item[...].tobytes())

    with h5py.File(weights_file, "r") as file:
        file.visititems(visit)
    return found


def same_bits(tensor: torch.Tensor, values: np.ndarray) -> bool:
    return tuple(tensor.shape) == values.shape and tensor.detach().numpy().tobytes() == values.tobytes()


# ------------------------------------------------------------------------------------------------------ where it goes


@pytest.mark.parametrize("sizes", VARIANTS.values(), ids=VARIANTS.keys())
def test_every_tensor_lands_where_it_belongs(tmp_path: Path, sizes: Sizes) -> None:
    stored = random_weights(sizes)
    checkpoint = write_checkpoint(tmp_path / "original", sizes, stored)
    folder = convert_checkpoint(checkpoint.options, checkpoint.weights, tmp_path / "converted")
    model = ElmoModel.from_pretrained(folder)

    encoder = model.char_encoder
    padding = np.zeros((1, sizes.dim), dtype=np.float32)
    assert same_bits(encoder.char_embedding.weight, np.concatenate([padding, stored.pop("char_embed")]))
    for index, convolution in enumerate(encoder.convolutions):
        assert same_bits(
            convolution.weight, np.ascontiguousarray(stored.pop(f"CNN/W_cnn_{index}")[0].transpose(2, 1, 0))
        )
        assert same_bits(convolution.bias, stored.pop(f"CNN/b_cnn_{index}"))
    for index, highway in enumerate(encoder.highways):
        for gate in ("carry", "transform"):
            linear = getattr(highway, gate)
            assert same_bits(linear.weight, np.ascontiguousarray(stored.pop(f"CNN_high_{index}/W_{gate}").T))
            assert same_bits(linear.bias, stored.pop(f"CNN_high_{index}/b_{gate}"))
    if encoder.projection is not None:
        assert same_bits(encoder.projection.weight, np.ascontiguousarray(stored.pop("CNN_proj/W_proj").T))
        assert same_bits(encoder.projection.bias, stored.pop("CNN_proj/b_proj"))
    for direction, lm in enumerate((model.forward_lm, model.backward_lm)):
        for index, layer in enumerate(lm.layers):
            cell = f"RNN_{direction}/RNN/MultiRNNCell/Cell{index}/LSTMCell"
            gates = stored.pop(f"{cell}/W_0").T
            assert same_bits(layer.input_gates.weight, np.ascontiguousarray(gates[:, : sizes.projection]))
            assert same_bits(layer.recurrent_gates.weight, np.ascontiguousarray(gates[:, sizes.projection :]))
            assert same_bits(layer.input_gates.bias, stored.pop(f"{cell}/B"))
            assert same_bits(layer.projection.weight, np.ascontiguousarray(stored.pop(f"{cell}/W_P_0").T))
    assert not stored
    assert not model.scalar_mix.scalar_weights.any()
    assert model.scalar_mix.gamma == 1


@pytest.mark.parametrize("sizes", VARIANTS.values(), ids=VARIANTS.keys())
def test_every_option_lands_in_the_config(tmp_path: Path, sizes: Sizes) -> None:
    config = read_options(write_checkpoint(tmp_path, sizes).options)
    assert config.char_filters == [list(pair) for pair in sizes.filters]
    assert (config.char_vocab_size, config.char_embedding_dim) == (262, sizes.dim)
    assert (config.num_highway_layers, config.char_activation) == (sizes.highways, sizes.activation)
    assert (config.projection_dim, config.cell_dim, config.num_hidden_layers) == (
        sizes.projection,
        sizes.cells,
        sizes.layers,
    )
    assert (config.cell_clip, config.projection_clip, config.use_skip_connections) == (3, 3, sizes.skip)


def test_options_left_out_have_the_defaults_of_bilm_tf(tmp_path: Path) -> None:
    options = options_of(Sizes(layers=1, highways=0, skip=False))
    for key in ("cell_clip", "proj_clip", "n_layers", "use_skip_connections"):
        del options["lstm"][key]
    for key in ("n_highway", "n_characters"):
        del options["char_cnn"][key]
    (tmp_path / "options.json").write_text(json.dumps(options))
    config = read_options(tmp_path / "options.json")
    assert (config.cell_clip, config.projection_clip, config.num_hidden_layers) == (None, None, 1)
    assert (config.use_skip_connections, config.num_highway_layers, config.dropout) == (False, 0, 0.1)


@pytest.mark.parametrize("dtype", [np.float16, np.float64, ">f4"])
def test_other_float_types_are_read_as_float32(tmp_path: Path, dtype: Any) -> None:
    stored = random_weights(Sizes())
    stored["char_embed"] = np.linspace(-1, 1, 522).reshape(261, 2).astype(dtype)
    checkpoint = write_checkpoint(tmp_path / "original", Sizes(), stored)
    folder = convert_checkpoint(checkpoint.options, checkpoint.weights, tmp_path / "converted")
    weight = ElmoModel.from_pretrained(folder).char_encoder.char_embedding.weight
    assert same_bits(weight[1:], stored["char_embed"].astype(np.float32))


def test_the_vocabulary_becomes_the_tokenizers_and_comes_back(tmp_path: Path) -> None:
    words = ["<S>", "</S>", "<UNK>", "the", "café", "##", "\u2028"]
    vocab = tmp_path / "vocab.txt"
    vocab.write_text("".join(f"{word}\n" for word in words), encoding="utf-8", newline="\n")
    checkpoint = write_checkpoint(tmp_path / "original", Sizes())
    folder = convert_checkpoint(checkpoint.options, checkpoint.weights, tmp_path / "converted", vocab_file=vocab)
    tokenizer = ElmoTokenizer.from_pretrained(folder)
    assert tokenizer.convert_ids_to_tokens(range(tokenizer.vocab_size)) == ["<pad>", *words]
    assert ElmoConfig.from_pretrained(folder).vocab_size == len(words) + 1
    assert (export_checkpoint(folder, tmp_path / "back") / "vocab.txt").read_bytes() == vocab.read_bytes()


def test_without_a_vocabulary_the_config_counts_the_special_words(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "original", Sizes())
    folder = convert_checkpoint(checkpoint.options, checkpoint.weights, tmp_path / "converted")
    assert ElmoConfig.from_pretrained(folder).vocab_size == len(ElmoTokenizer.from_pretrained(folder)) == 4
    assert not (export_checkpoint(folder, tmp_path / "back") / "vocab.txt").exists()


# -------------------------------------------------------------------------------------------------------- round trips


@settings(max_examples=12)
@given(sizes=sizes)
def test_hdf5_to_folder_to_hdf5_to_folder_keeps_every_bit(
    tmp_path_factory: pytest.TempPathFactory, sizes: Sizes
) -> None:
    base = tmp_path_factory.mktemp("round-trip")
    original = write_checkpoint(base / "original", sizes)
    first = convert_checkpoint(original.options, original.weights, base / "first")
    back = export_checkpoint(first, base / "back")
    assert read_tensors(back / "weights.hdf5") == read_tensors(original.weights)
    second = convert_checkpoint(back / "options.json", back / "weights.hdf5", base / "second")
    assert (second / "model.safetensors").read_bytes() == (first / "model.safetensors").read_bytes()
    assert (second / "config.json").read_bytes() == (first / "config.json").read_bytes()


def test_a_model_built_here_comes_back_from_an_export(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = ElmoConfig(
        char_filters=[[1, 3], [3, 4]], projection_dim=5, cell_dim=6, cell_clip=None, projection_clip=2.5, dropout=0.0
    )
    model = ElmoModel(config).eval()
    model.save_pretrained(tmp_path / "model")
    exported = export_checkpoint(tmp_path / "model", tmp_path / "exported")
    assert not caplog.records
    folder = convert_checkpoint(exported / "options.json", exported / "weights.hdf5", tmp_path / "back")
    back = ElmoModel.from_pretrained(folder)
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in back.state_dict().items())
    inputs = ElmoTokenizer()(["Colourless green ideas .", "Sleep !"], padding=True, return_tensors="pt")
    with torch.no_grad():
        difference = back(**inputs).last_hidden_state - model(**inputs).last_hidden_state
    assert difference.abs().max() <= ALIGNMENT_TOLERANCE


def test_the_bilm_inside_another_model_is_exported(tmp_path: Path) -> None:
    class Tagger(ElmoPreTrainedModel):
        def __init__(self, config: ElmoConfig) -> None:
            super().__init__(config)
            self.elmo = ElmoModel(config, add_mix=False)
            self.output = torch.nn.Linear(config.hidden_size, 3)
            self.post_init()

    tagger = Tagger(ElmoConfig(char_filters=[[1, 3]], projection_dim=5, cell_dim=6))
    tagger.save_pretrained(tmp_path / "model")
    exported = export_checkpoint(tmp_path / "model", tmp_path / "exported")
    folder = convert_checkpoint(exported / "options.json", exported / "weights.hdf5", tmp_path / "back")
    back = ElmoModel.from_pretrained(folder).state_dict()
    assert all(torch.equal(back[name], value) for name, value in tagger.elmo.state_dict().items())


@pytest.mark.parametrize("own", ["gamma", "scalar_weights", "last"])
def test_export_says_that_a_mix_of_its_own_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, own: str
) -> None:
    config = ElmoConfig(char_filters=[[1, 3]], projection_dim=5, cell_dim=6, mix="last" if own == "last" else "scalar")
    model = ElmoModel(config)
    if own != "last":
        getattr(model.scalar_mix, own).data += 0.5
    model.save_pretrained(tmp_path / "model")
    export_checkpoint(tmp_path / "model", tmp_path / "exported")
    assert ["mix" in record.message for record in caplog.records if record.levelno == logging.WARNING] == [True]


# ------------------------------------------------------------------------------------------------- reference vectors


def test_carried_states_reproduce_the_vectors_of_bilm_tf(tmp_path: Path, shared: Path) -> None:
    reference = shared / "fixtures" / "bilm-tf"
    folder = convert_checkpoint(
        reference / "options.json", reference / "lm_weights.hdf5", tmp_path / "converted", reference / "vocab_test.txt"
    )
    model, tokenizer = ElmoModel.from_pretrained(folder), ElmoTokenizer.from_pretrained(folder)
    lanes = json.loads((reference / "lm_embeddings_sentences.json").read_text())
    vectors = []
    for lane in range(len(lanes)):
        with h5py.File(reference / f"lm_embeddings_{lane}.hdf5", "r") as file:
            vectors.append([file[str(index)][...] for index in range(len(file))])
    states, compared = None, 0
    for index, batch in enumerate(zip(*lanes, strict=True)):
        words = [sentence.split() for sentence in batch]
        inputs = tokenizer(words, is_split_into_words=True, padding=True, return_tensors="pt")
        with torch.no_grad():
            outputs = model(
                **inputs, states=states, use_cache=True, output_hidden_states=True, keep_sentence_markers=False
            )
        states = outputs.states
        for lane, sentence in enumerate(words):
            # The reference has the directions on an axis of their own: (2, words, P).
            ours = torch.stack(outputs.hidden_states[-1][lane, : len(sentence)].chunk(2, dim=-1)).numpy()
            np.testing.assert_allclose(ours, vectors[lane][index], rtol=0, atol=REFERENCE_TOLERANCE)
            compared += 1
    assert compared == 30


# --------------------------------------------------------------------------------------------------------- model card


def test_the_code_of_the_model_card_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = write_checkpoint(tmp_path / "original", Sizes())
    folder = convert_checkpoint(checkpoint.options, checkpoint.weights, tmp_path / "converted")
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\nlibrary_name: transformers\n")
    (code,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    # As the card says, the package stands in for the folder's code. tests/test_auto_classes.py runs that.
    exec(code.replace("path/to/this/folder", str(folder)).replace(", trust_remote_code=True", ""), {})
    assert capsys.readouterr().out == "torch.Size([2, 9, 10])\n3\n"


def test_the_model_card_tells_the_files_it_came_from(tmp_path: Path) -> None:
    sizes = Sizes()
    checkpoint = write_checkpoint(tmp_path / "original", sizes)
    folder = convert_checkpoint(checkpoint.options, checkpoint.weights, tmp_path / "converted")
    card = (folder / "README.md").read_text(encoding="utf-8")
    for path in checkpoint:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        assert f"| `{path.name}` | {path.stat().st_size:,} | `{digest}` |" in card
    assert f"{sum(values.size for values in random_weights(sizes).values()):,}" in card


# ---------------------------------------------------------------------------------------------- whole or not at all


def test_the_folders_above_the_output_are_made(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "original", Sizes())
    folder = convert_checkpoint(checkpoint.options, checkpoint.weights, tmp_path / "a" / "b" / "c")
    assert folder == tmp_path / "a" / "b" / "c"
    assert [path.name for path in folder.parent.iterdir()] == ["c"]


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "original", Sizes(cells=512))
    folder = convert_checkpoint(checkpoint.options, checkpoint.weights, tmp_path / "converted")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Larger than every file but the weights.
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(ElmoError, match=r"a/converted: cannot write [\d.]+ MB: File too large"):
            convert_checkpoint(checkpoint.options, checkpoint.weights, tmp_path / "a" / "converted")
        with pytest.raises(ElmoError, match=r"a/exported/weights.hdf5: cannot write [\d.]+ MB: File too large"):
            export_checkpoint(folder, tmp_path / "a" / "exported")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert {path.name for path in tmp_path.iterdir()} == {"original", "converted"}


def test_an_interrupt_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    checkpoint = write_checkpoint(tmp_path / "original", Sizes())
    monkeypatch.setattr(ElmoModel, "save_pretrained", interrupt)
    with pytest.raises(KeyboardInterrupt):
        convert_checkpoint(checkpoint.options, checkpoint.weights, tmp_path / "a" / "converted")
    assert [path.name for path in tmp_path.iterdir()] == ["original"]


def test_an_overwrite_replaces_the_folder_only_once_the_new_one_is_complete(tmp_path: Path) -> None:
    old = write_checkpoint(tmp_path / "old", Sizes())
    new = write_checkpoint(tmp_path / "new", Sizes(layers=1))
    folder = convert_checkpoint(old.options, old.weights, tmp_path / "converted")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(ElmoError):
        convert_checkpoint(old.options, new.weights, folder, overwrite=True)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    (folder / "notes.txt").write_text("of the old model")
    convert_checkpoint(new.options, new.weights, folder, overwrite=True)
    assert {path.name for path in folder.iterdir()} == set(before)
    assert ElmoConfig.from_pretrained(folder).num_hidden_layers == 1
    assert {path.name for path in tmp_path.iterdir()} == {"old", "new", "converted"}


def test_an_overwrite_that_fails_at_the_last_step_gives_the_old_folder_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = write_checkpoint(tmp_path / "original", Sizes())
    folder = convert_checkpoint(checkpoint.options, checkpoint.weights, tmp_path / "converted")
    (folder / "notes.txt").write_text("of the old model")
    replace = os.replace

    def fail_for_the_new_folder(path: Path, target: Path) -> None:
        if path.name.endswith(".tmp") and target == folder:
            raise OSError("no")
        replace(path, target)

    monkeypatch.setattr(os, "replace", fail_for_the_new_folder)
    with pytest.raises(ElmoError, match="cannot be written: no"):
        convert_checkpoint(checkpoint.options, checkpoint.weights, folder, overwrite=True)
    assert (folder / "notes.txt").is_file()
    assert {path.name for path in tmp_path.iterdir()} == {"original", "converted"}


# ------------------------------------------------------------------------------------------------------ random damage


def converts_or_refuses(checkpoint: Checkpoint, output: Path) -> None:
    """The whole contract over a broken file: a folder that loads, or a one-line ElmoError and no folder."""
    before = set(output.parent.iterdir())
    try:
        convert_checkpoint(checkpoint.options, checkpoint.weights, output, overwrite=True)
    except ElmoError as error:
        message = str(error)
    else:
        ElmoModel.from_pretrained(output)
        return
    assert message.startswith(f"{checkpoint.weights}: ")
    assert "\n" not in message
    assert set(output.parent.iterdir()) == before


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Checkpoint, bytes]:
    """A small checkpoint to break, and its intact weights."""
    checkpoint = write_checkpoint(tmp_path_factory.mktemp("damaged"), Sizes(layers=1, highways=1))
    return checkpoint, checkpoint.weights.read_bytes()


@settings(RANDOM_DAMAGE, max_examples=100)
@given(data=st.data())
def test_a_truncated_file_is_refused(damaged: tuple[Checkpoint, bytes], data: st.DataObject) -> None:
    checkpoint, intact = damaged
    checkpoint.weights.write_bytes(intact[: data.draw(st.integers(0, len(intact) - 1))])
    output = checkpoint.weights.parent / "truncated"
    converts_or_refuses(checkpoint, output)
    assert not output.exists()


@settings(RANDOM_DAMAGE, max_examples=40)
@given(data=st.data())
def test_flipped_bits_convert_to_a_folder_that_loads_or_are_refused(
    damaged: tuple[Checkpoint, bytes], data: st.DataObject
) -> None:
    checkpoint, intact = damaged
    # Most of a small HDF5 file is empty space; what is not zero is structure and values.
    used = np.flatnonzero(np.frombuffer(intact, dtype=np.uint8)).tolist()
    broken = bytearray(intact)
    for position, bit in data.draw(
        st.lists(st.tuples(st.sampled_from(used), st.integers(0, 7)), min_size=1, max_size=8)
    ):
        broken[position] ^= 1 << bit
    checkpoint.weights.write_bytes(broken)
    converts_or_refuses(checkpoint, checkpoint.weights.parent / "flipped")


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.just(10**400) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(RANDOM_DAMAGE, max_examples=80)
@given(section=st.sampled_from(["lstm", "char_cnn", None]), data=st.data(), value=JSON_VALUES)
def test_any_value_of_any_option_is_read_or_refused(
    tmp_path: Path, section: str | None, data: st.DataObject, value: Any
) -> None:
    options = options_of(Sizes())
    part = options if section is None else options[section]
    part[data.draw(st.sampled_from([*part, "dropout", "bidirectional"]))] = value
    path = tmp_path / "options.json"
    path.write_text(json.dumps(options))
    try:
        read_options(path)
    except ElmoError as error:
        message = str(error)
    else:
        return
    assert message.startswith(f"{path}: `")
    assert "\n" not in message


# ------------------------------------------------------------------------------------------- files that lead elsewhere


def link_outside(file: h5py.File, secret: Path) -> None:
    del file["char_embed"]
    file["char_embed"] = h5py.ExternalLink(secret, "/char_embed")


def link_inside(file: h5py.File, secret: Path) -> None:
    file.move("char_embed", "elsewhere")
    file["char_embed"] = h5py.SoftLink("/elsewhere")


def link_in_a_circle(file: h5py.File, secret: Path) -> None:
    file["CNN/again"] = file["CNN"]


def store_outside(file: h5py.File, secret: Path) -> None:
    del file["char_embed"]
    file.create_dataset("char_embed", (261, 2), np.float32, external=[(secret, 0, 261 * 2 * 4)])


def store_virtually(file: h5py.File, secret: Path) -> None:
    del file["char_embed"]
    layout = h5py.VirtualLayout((261, 2), np.float32)
    layout[:] = h5py.VirtualSource(secret, "char_embed", (261, 2))
    file.create_virtual_dataset("char_embed", layout)


@pytest.mark.parametrize(
    "lead_elsewhere", [link_outside, link_inside, link_in_a_circle, store_outside, store_virtually]
)
def test_a_file_that_leads_elsewhere_is_refused_and_nothing_else_is_opened(
    tmp_path: Path, lead_elsewhere: Callable[[h5py.File, Path], None]
) -> None:
    checkpoint = write_checkpoint(tmp_path / "original", Sizes())
    # A pipe that no one writes to: to open it would be to wait until the alarm ends the process.
    secret = tmp_path / "secret"
    os.mkfifo(secret)
    with h5py.File(checkpoint.weights, "r+") as file:
        lead_elsewhere(file, secret)
    signal.alarm(20)
    try:
        with pytest.raises(ElmoError, match=r"is a link|is linked twice|keeps its data in other files") as refusal:
            convert_checkpoint(checkpoint.options, checkpoint.weights, tmp_path / "converted")
    finally:
        signal.alarm(0)
    assert str(refusal.value).startswith(f"{checkpoint.weights}: ")
    assert {path.name for path in tmp_path.iterdir()} == {"original", "secret"}
