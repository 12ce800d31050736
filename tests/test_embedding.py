"""Embedding of sentences and whole corpora: the vectors are the model's own, in order, however the work is cut."""

import functools
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from datasets import Dataset, DatasetDict
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from modeling_elmo import ElmoConfig, ElmoModel, ElmoTokenizer
from modeling_elmo import embed_corpus as embed_corpus_module
from modeling_elmo.cli import app
from modeling_elmo.embed_corpus import embed_corpus, parts_folder
from modeling_elmo.embedding import DEFAULT_BATCH_WORDS, MARKERS, WINDOW_BATCHES, ElmoEmbedder

# Between batches of different composition, in float32.
TOLERANCE = 1e-6
HALF_TOLERANCE = 1e-3
BAD_INPUT = 2
INTERRUPTED = 130
LAYERS = ["all", "average", "top", "mix", "1", "0,2", (2, 0)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random model, the mix of its layers not their average."""
    torch.manual_seed(0)
    config = ElmoConfig(
        char_embedding_dim=4, char_filters=[[1, 4], [3, 8]], num_highway_layers=1, projection_dim=6, cell_dim=16
    )
    model = ElmoModel(config)
    with torch.no_grad():
        model.scalar_mix.scalar_weights.copy_(torch.tensor([0.5, -1.0, 2.0]))
        model.scalar_mix.gamma.fill_(1.5)
    path = tmp_path_factory.mktemp("embedding") / "model"
    model.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def model(folder: Path) -> ElmoModel:
    return ElmoModel.from_pretrained(folder).eval()


def some_sentences(count: int, seed: int = 0) -> list[list[str]]:
    """Of shuffled lengths, some empty."""
    chance = random.Random(seed)
    words = "the cat sat on a mat and saw dogs run naïve 日本 don't (well) extraordinarily".split()
    return [[chance.choice(words) for _ in range(chance.choice([0, 1, 2, 5, 9, 30]))] for _ in range(count)]


def expected(model: ElmoModel, words: list[str], layers: Any = "mix", pooling: str = "none") -> np.ndarray:
    """One sentence alone through the model."""
    mixed, hidden = run_alone(model, tuple(words))
    if layers == "mix":
        vectors = mixed
    elif layers == "average":
        vectors = hidden.mean(0)
    else:
        vectors = hidden[{"all": [0, 1, 2], "top": 2, "1": 1, "0,2": [0, 2], (2, 0): [2, 0]}[layers]]
    if pooling != "none":
        if not words:
            return np.zeros((*vectors.shape[:-2], vectors.shape[-1]), dtype=np.float32)
        vectors = vectors.mean(-2) if pooling == "mean" else vectors.amax(-2)
    return vectors.numpy()


@functools.cache
def run_alone(model: ElmoModel, words: tuple[str, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """The mix (T, D) and all layers (3, T, D)."""
    inputs = ElmoTokenizer()([list(words)], is_split_into_words=True, return_tensors="pt")
    with torch.no_grad():
        output = model(**inputs, output_hidden_states=True, keep_sentence_markers=False)
    return output.last_hidden_state[0], torch.stack(output.hidden_states)[:, 0]


def assert_same(actual: np.ndarray, wanted: np.ndarray, tolerance: float = TOLERANCE) -> None:
    assert actual.shape == wanted.shape
    np.testing.assert_allclose(actual, wanted, rtol=0, atol=tolerance)


# -------------------------------------------------------------------------------------------------------- in Python


@pytest.mark.parametrize("pooling", ["none", "mean", "max"])
@pytest.mark.parametrize("layers", LAYERS)
def test_vectors_are_those_of_each_sentence_alone_and_in_order(model: ElmoModel, layers: Any, pooling: str) -> None:
    sentences = some_sentences(40)
    embedder = ElmoEmbedder(model, ElmoTokenizer(), layers=layers, pooling=pooling, batch_words=50)
    vectors = list(embedder.embed(sentences))
    assert len(vectors) == len(sentences)
    for words, actual in zip(sentences, vectors, strict=True):
        assert actual.dtype == np.float32
        assert_same(actual, expected(model, words, layers, pooling))


def test_raw_text_is_split_by_the_tokenizer_and_comes_with_its_words(model: ElmoModel) -> None:
    text = "Don't panic (yet)."
    embedded = next(ElmoEmbedder(model, ElmoTokenizer()).embed_with_words([text]))
    assert embedded.words == ["Do", "n't", "panic", "(", "yet", ")", "."]
    assert_same(embedded.vectors, expected(model, embedded.words))


def test_given_words_stay_words(model: ElmoModel) -> None:
    words = ["New York", "don't", "<S>", "</S>"]
    embedded = next(ElmoEmbedder(model, ElmoTokenizer()).embed_with_words([words]))
    assert embedded.words == words
    assert_same(embedded.vectors, expected(model, words))


@pytest.mark.parametrize("layers", ["mix", "all"])
@pytest.mark.parametrize("length", [19, 38, 39, 201])
def test_a_sentence_longer_than_a_batch_has_the_vectors_of_one_pass(
    model: ElmoModel, layers: str, length: int
) -> None:
    words = [word for sentence in some_sentences(60) for word in sentence][:length]
    embedder = ElmoEmbedder(model, ElmoTokenizer(), layers=layers, batch_words=20)
    assert embedder.reads_in_pieces(words)
    before, long, after = embedder.embed([["a"], words, ["b"]])
    assert_same(before, expected(model, ["a"], layers))
    assert_same(long, expected(model, words, layers))
    assert_same(after, expected(model, ["b"], layers))


def test_no_call_of_the_model_is_larger_than_a_batch(model: ElmoModel, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    run = ElmoModel.forward

    def counting(self: ElmoModel, **inputs: Any) -> Any:
        sizes.append(int(inputs["attention_mask"].sum()))
        return run(self, **inputs)

    monkeypatch.setattr(ElmoModel, "forward", counting)
    list(ElmoEmbedder(model, ElmoTokenizer(), batch_words=40).embed([*some_sentences(60), ["long"] * 500]))
    assert max(sizes) == 40


def test_reads_ahead_no_more_than_a_window(model: ElmoModel) -> None:
    taken = 0

    def endless() -> Iterator[list[str]]:
        nonlocal taken
        while True:
            taken += 1
            yield ["two", "words"]

    vectors = ElmoEmbedder(model, ElmoTokenizer(), batch_words=20).embed(endless())
    assert taken == 0
    window = WINDOW_BATCHES * 20 // (2 + MARKERS)
    for number in range(3 * window):
        next(vectors)
        assert taken <= number + window


def test_a_mix_with_layer_norm_is_taken_sentence_by_sentence() -> None:
    config = ElmoConfig(
        char_filters=[[1, 4]], num_highway_layers=0, projection_dim=4, cell_dim=8, mix="scalar", mix_layer_norm=True
    )
    model = ElmoModel(config).eval()
    sentences = some_sentences(20)
    for words, actual in zip(sentences, ElmoEmbedder(model, ElmoTokenizer()).embed(sentences), strict=True):
        # Normalised vectors are larger than others.
        assert_same(actual, expected(model, words), 10 * TOLERANCE)


def test_float16_is_the_rounded_vector(model: ElmoModel) -> None:
    (vectors,) = ElmoEmbedder(model, ElmoTokenizer(), dtype="float16").embed([["a", "cat"]])
    assert vectors.dtype == np.float16
    assert_same(vectors.astype(np.float32), expected(model, ["a", "cat"]), HALF_TOLERANCE)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"layers": "3"}, "0 to 2"),
        ({"layers": (0, -1)}, "0 to 2"),
        ({"layers": "first"}, "'first'"),
        ({"layers": ()}, "0 to 2"),
        ({"pooling": "sum"}, "none, mean, max"),
        ({"dtype": "int8"}, "float32, float16"),
        ({"batch_words": 2}, "at least 3"),
    ],
)
def test_settings_that_make_no_sense_are_refused(model: ElmoModel, settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        ElmoEmbedder(model, ElmoTokenizer(), **settings)


def test_a_str_for_sentences_and_a_number_for_a_word_are_refused(model: ElmoModel) -> None:
    embedder = ElmoEmbedder(model, ElmoTokenizer())
    with pytest.raises(TypeError, match="an iterable of sentences"):
        next(embedder.embed("one sentence"))
    with pytest.raises(TypeError, match="a word must be a str, got 7"):
        list(embedder.embed([["a"], ["b", 7]]))  # type: ignore[list-item]


# ------------------------------------------------------------------------------------------------------ the command


def embed(source: object, folder: Path, output: Path, *more: object, stdin: bytes = b"") -> Any:
    arguments = ["embed", source, "--model", folder, "--output", output, *more]
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)


def read(output: Path) -> list[np.ndarray]:
    """The vectors of an output of any kind, by number."""
    if output.suffix in (".h5", ".hdf5"):
        with h5py.File(output) as file:
            return [file[str(number)][()] for number in range(len(file) - 1)]
    table = pyarrow.parquet.read_table(output)
    assert table.column("index").to_pylist() == list(range(len(table)))
    kind = table.schema.field("vectors").type
    axes = 0
    while not pa.types.is_fixed_size_list(kind):
        kind, axes = kind.value_type, axes + 1
    shape = {0: (12,), 1: (-1, 12), 2: (3, -1, 12)}[axes]
    dtype = kind.value_type.to_pandas_dtype()
    return [np.array(row, dtype).reshape(shape) for row in table.column("vectors").to_pylist()]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "sentences.txt"
    path.write_text("".join(" ".join(words) + "\n" for words in some_sentences(40)), encoding="utf-8")
    return path


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embed_corpus_module, "SHARD_WORDS", 60)
    monkeypatch.setattr(embed_corpus_module, "ROW_GROUP_BYTES", 2000)


@pytest.mark.usefixtures("small_shards")
@pytest.mark.parametrize(
    ("layers", "pooling", "dtype"),
    [("all", "none", "float32"), ("mix", "none", "float16"), ("all", "mean", "float16"), ("mix", "mean", "float32")],
)
@pytest.mark.parametrize("ending", [".hdf5", ".parquet"])
def test_every_output_reads_back_as_the_models_vectors(
    folder: Path, model: ElmoModel, corpus: Path, tmp_path: Path, ending: str, pooling: str, layers: str, dtype: str
) -> None:
    output = tmp_path / f"vectors{ending}"
    result = embed(corpus, folder, output, "--layers", layers, "--pooling", pooling, "--dtype", dtype)
    assert result.exit_code == 0, result.output
    vectors = read(output)
    sentences = some_sentences(40)
    assert len(vectors) == len(sentences)
    tolerance = TOLERANCE if dtype == "float32" else HALF_TOLERANCE * 3
    for words, actual in zip(sentences, vectors, strict=True):
        assert actual.dtype == np.dtype(dtype)
        assert_same(actual.astype(np.float32), expected(model, words, layers, pooling), tolerance)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sentences.txt", output.name]


def test_hdf5_has_the_layout_of_allennlps_elmo_command(folder: Path, tmp_path: Path) -> None:
    source, output = tmp_path / "sentences.txt", tmp_path / "vectors.h5"
    source.write_text("A cat  sat\n\nthe mat \nA cat  sat\n")
    assert embed(source, folder, output, "--layers", "all").exit_code == 0
    with h5py.File(output) as file:
        assert set(file) == {"0", "1", "2", "3", "sentence_to_index"}
        assert [file[str(number)].shape for number in range(4)] == [(3, 3, 12), (3, 0, 12), (3, 2, 12), (3, 3, 12)]
        assert file["0"].dtype == np.float32
        assert file["sentence_to_index"].shape == (1,)
        sentence_to_index = json.loads(file["sentence_to_index"][0])
    assert sentence_to_index == {"A cat  sat": "3", "the mat": "2"}


@pytest.mark.usefixtures("small_shards")
def test_parquet_holds_the_words_and_opens_as_a_dataset(folder: Path, corpus: Path, tmp_path: Path) -> None:
    output = tmp_path / "vectors.parquet"
    assert embed(corpus, folder, output).exit_code == 0
    assert pyarrow.parquet.ParquetFile(output).num_row_groups > 1
    dataset = Dataset.from_parquet(str(output), cache_dir=str(tmp_path / "cache"))
    assert dataset["words"][:] == some_sentences(40)
    assert np.array(dataset[next(i for i, words in enumerate(some_sentences(40)) if words)]["vectors"]).shape[1] == 12


def inputs(tmp_path: Path) -> dict[str, tuple[object, list[str]]]:
    """The same sentences in every kind of input, and the options that it needs."""
    sentences = [*some_sentences(11), ["end"]]
    texts = [" ".join(words) for words in sentences]
    table = pa.table({"id": list(range(12)), "line": texts, "tokens": sentences})
    (tmp_path / "plain").write_text("\n".join(texts), encoding="utf-8")
    (tmp_path / "windows.txt").write_bytes("\ufeff".encode() + "\r\n".join(texts).encode() + b"\r\n")
    (tmp_path / "lists.jsonl").write_text("".join(json.dumps({"tokens": words}) + "\n" for words in sentences))
    (tmp_path / "text.jsonl").write_text("".join(json.dumps({"text": text, "id": 1}) + "\n" for text in texts))
    (tmp_path / "line.csv").write_text("id,line\n" + "".join(f'{i},"{text}"\n' for i, text in enumerate(texts)))
    pyarrow.parquet.write_table(table, tmp_path / "table.parquet")
    dataset = Dataset(table)
    dataset.save_to_disk(tmp_path / "dataset")
    DatasetDict({"train": dataset.select([0]), "test": dataset}).save_to_disk(tmp_path / "splits")
    (tmp_path / "data_files").mkdir()
    pyarrow.parquet.write_table(table, tmp_path / "data_files" / "train.parquet")
    return {
        "plain": (tmp_path / "plain", []),
        "windows": (tmp_path / "windows.txt", []),
        "lists": (tmp_path / "lists.jsonl", ["--raw"]),
        "objects": (tmp_path / "text.jsonl", []),
        "csv": (tmp_path / "line.csv", ["--column", "line"]),
        "parquet text": (tmp_path / "table.parquet", ["--column", "line"]),
        "parquet words": (tmp_path / "table.parquet", ["--column", "tokens"]),
        "dataset": (tmp_path / "dataset", ["--column", "tokens"]),
        "split": (tmp_path / "splits", ["--column", "line", "--split", "test"]),
        "data files": (tmp_path / "data_files", ["--column", "tokens"]),
        "stdin": ("-", []),
    }


def test_every_input_gives_the_same_vectors(
    folder: Path, model: ElmoModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    sentences = [*some_sentences(11), ["end"]]
    for name, (source, options) in inputs(tmp_path).items():
        output = tmp_path / f"{name}.h5"
        stdin = "\n".join(" ".join(words) for words in sentences).encode()
        result = embed(source, folder, output, *options, stdin=stdin)
        assert result.exit_code == 0, (name, result.output)
        vectors = read(output)
        assert len(vectors) == len(sentences), name
        for words, actual in zip(sentences, vectors, strict=True):
            assert_same(actual, expected(model, words))


def test_raw_splits_off_punctuation_and_tokenized_does_not(folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "sentences.txt"
    source.write_text("Well, no.\n")
    for option, count in (("--raw", 4), ("--tokenized", 2)):
        output = tmp_path / f"{option}.h5"
        assert embed(source, folder, output, option).exit_code == 0
        assert len(read(output)[0]) == count


def test_the_summary_reports_what_is_unusual_and_how_to_read_the_result(folder: Path, tmp_path: Path) -> None:
    source, output = tmp_path / "sentences.txt", tmp_path / "vectors.h5"
    source.write_text(f"A cat\n\n \n{'x' * 49} {'ü' * 24} {'ü' * 25}\n{'long ' * 99}\n")
    result = embed(source, folder, output, "--batch-words", "100")
    assert f"Wrote {output}: 5 sentences, 104 words" in result.stdout
    assert "  2 empty" in result.stdout
    assert "  1 longer than 100 words" in result.stdout
    assert "  2 words too long" in result.stdout
    assert " words/s\n" in result.stdout
    scope: dict[str, Any] = {}
    exec("\n".join(line.strip() for line in result.stdout.split("in Python:\n")[1].splitlines()), scope)
    assert scope["vectors"].shape == (2, 12)


def test_help_shows_commands_to_copy_and_the_default_of_the_python_class() -> None:
    text = CliRunner().invoke(app, ["embed", "--help"]).stdout
    assert "  elmo embed sentences.txt" in text
    assert f"[default: {DEFAULT_BATCH_WORDS}]" in text


# ------------------------------------------------------------------------------------------ interrupted, and shared


def shard_files(output: Path) -> list[Path]:
    return sorted(parts_folder(output).glob("*.zip"))


def interrupt_after(monkeypatch: pytest.MonkeyPatch, shards: int, error: type[BaseException]) -> None:
    write = embed_corpus_module._write_shard

    def interrupted(path: Path, *more: Any) -> int:
        if len(list(path.parent.glob("*.zip"))) == shards:
            raise error
        return write(path, *more)

    monkeypatch.setattr(embed_corpus_module, "_write_shard", interrupted)


@pytest.mark.usefixtures("small_shards")
@pytest.mark.parametrize("ending", [".h5", ".parquet"])
def test_a_run_stopped_by_ctrl_c_goes_on_and_equals_an_uninterrupted_one(
    folder: Path, corpus: Path, tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, output = tmp_path / f"whole{ending}", tmp_path / f"vectors{ending}"
    assert embed(corpus, folder, whole).exit_code == 0
    with monkeypatch.context() as patch:
        interrupt_after(patch, 3, KeyboardInterrupt)
        result = embed(corpus, folder, output)
    assert result.exit_code == INTERRUPTED
    assert "run the same command again" in result.stderr
    assert not output.exists()
    kept = {path: path.stat().st_mtime_ns for path in shard_files(output)}
    assert len(kept) == 3
    with monkeypatch.context() as patch:
        interrupt_after(patch, 5, KeyboardInterrupt)
        embed(corpus, folder, output)
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert embed(corpus, folder, output).exit_code == 0
    assert not parts_folder(output).exists()
    for actual, wanted in zip(read(output), read(whole), strict=True):
        np.testing.assert_array_equal(actual, wanted)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _take_the_next(path: Path) -> None:
    following = path.with_name("00000001.zip")
    shutil.copy(following, path)
    shutil.copy(following.with_suffix(".json"), path.with_suffix(".json"))


def _lose_the_seal(path: Path) -> None:
    path.with_suffix(".json").unlink()


def _spoil_the_seal(path: Path) -> None:
    path.with_suffix(".json").write_bytes(b"\xff{")


@pytest.mark.usefixtures("small_shards")
@pytest.mark.parametrize("damage", [_cut, _flip, _take_the_next, _lose_the_seal, _spoil_the_seal])
def test_a_shard_that_is_not_as_it_was_written_is_made_again(
    damage: Any, folder: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, output = tmp_path / "whole.parquet", tmp_path / "vectors.parquet"
    assert embed(corpus, folder, whole).exit_code == 0
    with monkeypatch.context() as patch:
        interrupt_after(patch, 3, KeyboardInterrupt)
        embed(corpus, folder, output)
    first = shard_files(output)[0]
    damage(first)
    result = embed(corpus, folder, output)
    assert result.exit_code == 0
    assert f"{first}: incomplete, changed or moved: it is made again" in result.stderr
    assert pyarrow.parquet.read_table(output).equals(pyarrow.parquet.read_table(whole))


@pytest.mark.usefixtures("small_shards")
def test_a_shard_of_another_run_is_made_again(
    folder: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, output, other = (tmp_path / f"{name}.parquet" for name in ("whole", "vectors", "other"))
    assert embed(corpus, folder, whole).exit_code == 0
    with monkeypatch.context() as patch:
        interrupt_after(patch, 2, KeyboardInterrupt)
        embed(corpus, folder, output)
        embed(corpus, folder, other, "--layers", "top")
    for path in shard_files(other):
        shutil.copy(path, parts_folder(output))
        shutil.copy(path.with_suffix(".json"), parts_folder(output))
    report = embed_corpus(str(corpus), folder, output)
    assert report is not None
    assert report.remade == 2
    assert pyarrow.parquet.read_table(output).equals(pyarrow.parquet.read_table(whole))


@pytest.mark.usefixtures("small_shards")
@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff"])
def test_an_unfinished_run_without_its_settings_is_refused_until_restart(
    content: bytes, folder: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "vectors.h5"
    with monkeypatch.context() as patch:
        interrupt_after(patch, 1, KeyboardInterrupt)
        embed(corpus, folder, output)
    (parts_folder(output) / "manifest.json").write_bytes(content)
    assert_refused(embed(corpus, folder, output), "manifest.json", "--restart")
    assert embed(corpus, folder, output, "--restart").exit_code == 0


@pytest.mark.parametrize("ending", [".h5", ".parquet"])
def test_an_output_for_which_there_is_no_room_is_refused_and_the_shards_are_kept(
    ending: str, folder: Path, corpus: Path, tmp_path: Path
) -> None:
    """A limit on the size of files fails as a full disk does; libhdf5 would crash."""
    output = tmp_path / f"vectors{ending}"
    command = f"""
import resource
from modeling_elmo import embed_corpus
from modeling_elmo.cli import app
def limited(path, size, check=embed_corpus.check_space):
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
    check(path, size)
embed_corpus.check_space = limited
app(["embed", {str(corpus)!r}, "--model", {str(folder)!r}, "--output", {str(output)!r}])
"""
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, timeout=120)
    assert done.returncode == BAD_INPUT, done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith(f"error: {output}: cannot write ")
    assert not output.exists()
    assert len(shard_files(output)) == 1
    assert embed(corpus, folder, output).exit_code == 0


# The command with small shards, and slow ones, so that there is a middle to stop it in.
SLOW_RUN = """
import time
from modeling_elmo import embed_corpus
from modeling_elmo.cli import app

def slowly(*arguments, write=embed_corpus._write_shard):
    time.sleep(0.1)
    return write(*arguments)

embed_corpus.SHARD_WORDS, embed_corpus._write_shard = 60, slowly
app()
"""


def start(*arguments: object, **environment: str) -> subprocess.Popen:
    command = [sys.executable, "-c", SLOW_RUN, *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture
def _one_thread() -> Iterator[None]:
    """As `start` has it: how many threads share a sum can change its last bit."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("small_shards", "_one_thread")
def test_a_run_that_was_killed_goes_on_and_equals_an_uninterrupted_one(
    folder: Path, corpus: Path, tmp_path: Path
) -> None:
    whole, output = tmp_path / "whole.parquet", tmp_path / "vectors.parquet"
    assert embed(corpus, folder, whole).exit_code == 0
    process = start("embed", corpus, "--model", folder, "--output", output)
    while len(shard_files(output)) < 2 and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not output.exists()
    kept = len(shard_files(output))
    assert kept >= 2
    report = embed_corpus(str(corpus), folder, output)
    assert report is not None
    assert 0 < report.words_now < report.words
    assert pyarrow.parquet.read_table(output).equals(pyarrow.parquet.read_table(whole))


@pytest.mark.usefixtures("small_shards")
def test_two_processes_give_the_rows_of_one(
    folder: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, output = tmp_path / "whole.parquet", tmp_path / "vectors.parquet"
    assert embed(corpus, folder, whole).exit_code == 0
    interrupt_after(monkeypatch, 3, KeyboardInterrupt)  # they find shards of an earlier run
    embed(corpus, folder, output)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    processes = [
        start(
            *("embed", corpus, "--model", folder, "--output", output),
            **{"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port},
        )
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert "Wrote" in outputs[0][0]
    assert outputs[1] == ("", "")
    actual, wanted = pyarrow.parquet.read_table(output), pyarrow.parquet.read_table(whole)
    assert actual.drop(["vectors"]).equals(wanted.drop(["vectors"]))
    for row, other in zip(read(output), read(whole), strict=True):
        assert_same(row, other)
    assert not parts_folder(output).exists()


@pytest.mark.usefixtures("small_shards")
def test_an_unfinished_run_with_other_settings_is_refused_until_restart(
    folder: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "vectors.h5"
    with monkeypatch.context() as patch:
        interrupt_after(patch, 2, KeyboardInterrupt)
        embed(corpus, folder, output)
    assert_refused(
        embed(corpus, folder, output, "--layers", "all", "--pooling", "max"), "layers, pooling", "--restart"
    )
    with corpus.open("a") as file:
        file.write("one more\n")
    assert_refused(embed(corpus, folder, output), "input", parts_folder(output))
    assert embed(corpus, folder, output, "--layers", "all", "--restart").exit_code == 0
    assert read(output)[-1].shape == (3, 2, 12)


@pytest.mark.usefixtures("small_shards")
def test_interrupted_standard_input_leaves_nothing_and_says_so(
    folder: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_after(monkeypatch, 2, KeyboardInterrupt)
    result = embed("-", folder, tmp_path / "vectors.h5", stdin=corpus.read_bytes())
    assert result.exit_code == INTERRUPTED
    assert "cannot be read again" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == [corpus.name]


# -------------------------------------------------------------------------------------------------------- bad input


def assert_refused(result: Any, *named: object) -> None:
    """One line on stderr that names everything in `named`."""
    assert result.exit_code == BAD_INPUT, result.output
    assert result.stdout == ""
    last = result.stderr.splitlines()[-1]
    assert last.startswith("error: ")
    for name in named:
        assert str(name) in last


BAD_FILES = {
    "latin.txt": ("één\nGrüße\n".encode() + "Grüße\n".encode("latin-1"), [], ["latin.txt: line 3 is not UTF-8"]),
    "bad.jsonl": (b'{"text": "fine"}\n{"text"\n', [], ["bad.jsonl", "JSON parse error", "row 1"]),
    "number.jsonl": (b'{"text": 5}\n', [], ["row 0", "'5'"]),
    "keys.jsonl": (b'{"a": "x", "b": "y"}\n', [], ["--column", "a, b"]),
    "table.csv": (b"a,b\nx,y\n", ["--column", "c"], ["`c`", "a, b"]),
    "table.parquet": (b"PAR1", [], ["table.parquet", "Parquet"]),
    "empty.txt": (b"", [], ["the file is empty"]),
    "column.txt": (b"a\n", ["--column", "c"], ["no column `c`"]),
    "split.txt": (b"a\n", ["--split", "c"], ["--split"]),
    "layer.txt": (b"a\n", ["--layers", "3"], ["`layers`", "0 to 2", "'3'"]),
    "pooling.txt": (b"a\n", ["--pooling", "sum"], ["`pooling`", "none, mean, max"]),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_input_is_one_line_and_leaves_nothing(folder: Path, tmp_path: Path, name: str) -> None:
    content, options, named = BAD_FILES[name]
    (tmp_path / name).write_bytes(content)
    result = embed(tmp_path / name, folder, tmp_path / "vectors.h5", *options)
    assert_refused(result, *named)
    assert result.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_bad_standard_input_names_its_line(folder: Path, tmp_path: Path) -> None:
    result = embed("-", folder, tmp_path / "vectors.h5", stdin=b"fine\n\xff\n")
    assert_refused(result, "standard input: line 2 is not UTF-8")
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_lacks_weights_or_is_another_is_refused(folder: Path, corpus: Path, tmp_path: Path) -> None:
    output = tmp_path / "vectors.h5"
    damaged = Path(shutil.copytree(folder, tmp_path / "damaged"))
    weights = load_file(damaged / "model.safetensors")
    del weights["char_encoder.projection.bias"]
    save_file(weights, damaged / "model.safetensors", {"format": "pt"})
    assert_refused(embed(corpus, damaged, output), "missing weights, such as char_encoder.projection.bias")
    (damaged / "config.json").write_text('{"model_type": "bert"}')
    assert_refused(embed(corpus, damaged, output), "'bert'", "'elmo'")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("model.safetensors", b"\x08"),
        ("config.json", b"[]"),
        ("config.json", b'{"model_type": "elmo", "cell_dim": "x"}'),
    ],
)
def test_a_damaged_model_is_refused_in_one_line(
    folder: Path, corpus: Path, tmp_path: Path, name: str, content: bytes
) -> None:
    damaged = shutil.copytree(folder, tmp_path / "damaged")
    (damaged / name).write_bytes(content)
    assert_refused(embed(corpus, damaged, tmp_path / "vectors.h5"), str(damaged))


def test_names_that_do_not_fit_are_refused(folder: Path, corpus: Path, tmp_path: Path) -> None:
    output = tmp_path / "vectors.h5"
    assert_refused(embed(corpus, folder, tmp_path / "vectors.bin"), "vectors.bin", ".parquet")
    assert_refused(embed(corpus, tmp_path / "nothing", output), "nothing", "no such model")
    assert_refused(embed(tmp_path / "nothing.txt", folder, output), "nothing.txt", "no such file")
    assert_refused(embed(corpus, folder, tmp_path / "no" / "vectors.h5"), "no folder")
    DatasetDict({"a": Dataset.from_dict({"text": ["x"]}), "b": Dataset.from_dict({"text": ["y"]})}).save_to_disk(
        tmp_path / "splits"
    )
    assert_refused(embed(tmp_path / "splits", folder, output), "a, b", "--split")
    assert_refused(embed(tmp_path / "splits", folder, output, "--split", "c"), "a, b", "'c'")


def test_an_existing_output_is_replaced_only_when_asked(folder: Path, corpus: Path, tmp_path: Path) -> None:
    output = tmp_path / "vectors.h5"
    output.write_bytes(b"precious")
    assert_refused(embed(corpus, folder, output), output, "--overwrite")
    assert output.read_bytes() == b"precious"
    assert embed(corpus, folder, output, "--overwrite").exit_code == 0
    assert len(read(output)) == 40


def test_the_python_function_reports_what_the_command_prints(folder: Path, corpus: Path, tmp_path: Path) -> None:
    report = embed_corpus(str(corpus), folder, tmp_path / "vectors.h5")
    assert report is not None
    sentences = some_sentences(40)
    assert report.sentences == 40
    assert report.words == report.words_now == sum(map(len, sentences))
    assert report.empty == sum(not words for words in sentences)
