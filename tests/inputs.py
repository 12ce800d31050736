"""Every kind of file that the package reads: how a small one is made, and how it is read."""

import bz2
import gzip
import hashlib
import io
import json
import lzma
import shutil
import zipfile
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import h5py
import manylangs_peer
import torch
import yaml
from damage import Kind, Packing
from safetensors import safe_open
from task_inputs import own_cache, table_bytes, task_kinds, write_file
from transformers import AutoModel
from transformers.utils import logging as transformers_logging

from modeling_elmo import (
    ElmoConfig,
    ElmoForPreTraining,
    ElmoForTokenClassification,
    ElmoModel,
    ElmoTokenizer,
    embed_corpus,
    word_vectors,
)
from modeling_elmo.change_uses import read_lemmas, sample_table
from modeling_elmo.convert_allennlp import convert_allennlp
from modeling_elmo.convert_elmo import convert_checkpoint, export_checkpoint
from modeling_elmo.convert_manylangs import convert_manylangs
from modeling_elmo.corpus import open_corpus
from modeling_elmo.loading import load_folder
from modeling_elmo.neighbors import Uses
from training import evaluate, finetune, pretrain
from training.change import read_truth
from training.compare import Setting, make_table, run_once
from training.examples import LayerStore
from training.settings import TaskSettings, read_settings

transformers_logging.disable_progress_bar()
transformers_logging.set_verbosity_error()
datasets.disable_progress_bars()

# Numbers of all the values of a small model: (L, ...) as small as they can be.
SIZES: dict[str, Any] = {
    "char_embedding_dim": 2,
    "char_filters": [[1, 2], [2, 2]],
    "num_highway_layers": 1,
    "projection_dim": 3,
    "cell_dim": 4,
}
SENTENCES = [
    "The bank of the river was steep .",
    "",
    'A "bank", they say, lends 1.5 money !',
    "Grüße aus 北京 🏦 .",
    *(f"Sentence number {number} is about the bank ." for number in range(20)),
]
QUERY = "He sat on the [bank] of the river ."
COMPRESSIONS = {
    "": None,
    ".gz": Packing(gzip.decompress, partial(gzip.compress, mtime=0)),
    ".bz2": Packing(bz2.decompress, bz2.compress),
    ".xz": Packing(lzma.decompress, lzma.compress),
}


def unzip(data: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return archive.read(archive.namelist()[0])


def rezip(data: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("vectors.txt", data)
    return file.getvalue()


PACKINGS: dict[str, Packing] = {name: packing for name, packing in COMPRESSIONS.items() if packing is not None}
PACKINGS[".zip"] = Packing(unzip, rezip)


# -------------------------------------------------------------------------------------------------------------- models


def make_model(folder: Path, model_class: type = ElmoModel, **options: Any) -> Path:
    torch.manual_seed(0)
    tokenizer = ElmoTokenizer(vocab=["the", "bank", "Grüße", "北京"])
    model_class(ElmoConfig(**SIZES, vocab_size=len(tokenizer))).save_pretrained(folder, **options)
    tokenizer.save_pretrained(folder)
    return folder


def make_model_folder(folder: Path, **options: Any) -> None:
    make_model(folder / "model", **options)


def describe_model(model: Any, tokenizer: Any) -> list[Any]:
    """Return a digest of the weights, and the vocabulary."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().float().contiguous().numpy().tobytes())
    return [digest.hexdigest(), sorted(map(repr, tokenizer.get_vocab()))]


def read_model(folder: Path) -> list[Any]:
    return describe_model(*load_folder(folder / "model", AutoModel))


def read_model_to_finetune(folder: Path) -> list[Any]:
    settings = TaskSettings(task="ner", model_name_or_path=str(folder / "model"))
    task = finetune.TASKS["ner"]
    config, _ = finetune.read_config(task, settings)
    model, tokenizer = finetune.new_model(task, settings, config, ["O", "B-PER"], Counter())
    return describe_model(model.elmo, tokenizer)


def read_model_to_pretrain(folder: Path) -> list[Any]:
    path = str(folder / "model")
    tokenizer = pretrain.load_tokenizer(path)
    return describe_model(pretrain.tune_model(path, {}, tokenizer), tokenizer)


def read_folder_digest(folder: Path) -> list[Any]:
    """Return a digest of the tensors of a converted folder, and its vocabulary."""
    digest = hashlib.sha256()
    with safe_open(folder / "model.safetensors", "pt") as file:
        for name in sorted(file.keys()):
            digest.update(name.encode())
            digest.update(file.get_tensor(name).numpy().tobytes())
    words = (folder / "vocab.txt").read_bytes().decode("utf-8", "surrogatepass").split("\n")
    return [digest.hexdigest(), [repr(word) for word in words]]


def make_bilm(folder: Path) -> None:
    make_model(folder / "source")
    export_checkpoint(folder / "source", folder / "bilm")
    shutil.rmtree(folder / "source")


def read_bilm(folder: Path) -> list[Any]:
    bilm = folder / "bilm"
    return read_folder_digest(
        convert_checkpoint(bilm / "options.json", bilm / "weights.hdf5", folder / "out", bilm / "vocab.txt")
    )


def make_allennlp(folder: Path) -> None:
    from test_convert_families import allennlp_state, options_json, random_elmo, write_archive

    state = allennlp_state(random_elmo())
    folder.mkdir(exist_ok=True)
    write_archive(folder / "model.tar.gz", state, **{"fta/model.text_field_embedder.options_file": options_json()})


def read_allennlp(folder: Path) -> list[Any]:
    return read_folder_digest(convert_allennlp(folder / "model.tar.gz", folder / "out").folder)


def make_manylangs(folder: Path) -> None:
    settings = manylangs_peer.settings_with(projection_dim=4, dim=6, filters=[[1, 2], [2, 3]], char_dim=3, word_dim=2)
    manylangs_peer.write_model(folder / "model", settings, ["the", "北京"], list("abc北"))


def read_manylangs(folder: Path) -> list[Any]:
    return read_folder_digest(convert_manylangs(folder / "model", folder / "out"))


# --------------------------------------------------------------------------------------------------------------- texts


def make_corpus(folder: Path, ending: str, compression: str) -> None:
    content = "".join(f"{sentence}\n" for sentence in SENTENCES).encode()
    if ending != ".txt":
        content = table_bytes(ending, [{"id": 1, "text": sentence} for sentence in SENTENCES])
    packing = COMPRESSIONS[compression]
    (folder / f"data{ending}{compression}").write_bytes(packing.pack(content) if packing else content)


def read_corpus(folder: Path, file: str, **options: Any) -> list[Any]:
    own_cache(folder)
    return list(open_corpus(str(folder / file), column="text", **options))


def make_saved_dataset(folder: Path) -> None:
    datasets.Dataset.from_dict({"text": SENTENCES}).save_to_disk(folder / "saved")


def make_arrow(folder: Path) -> None:
    make_saved_dataset(folder)
    shutil.copy(folder / "saved" / "data-00000-of-00001.arrow", folder / "data.arrow")
    shutil.rmtree(folder / "saved")


def corpus_kinds() -> list[Kind]:
    kinds = []
    endings = [".txt", ".jsonl", ".csv", ".tsv"]
    for compression in COMPRESSIONS:
        for ending in endings if compression in ("", ".gz") else endings[:2]:
            file = f"data{ending}{compression}"
            make = partial(make_corpus, ending=ending, compression=compression)
            read = partial(read_corpus, file=file, streaming=True)
            also = ("[][]: str",) if "json" in ending else ()
            kinds.append(Kind(f"corpus{ending}{compression}", make, read, also=also, packings=PACKINGS))
    for ending in (".jsonl", ".csv", ".txt"):
        make = partial(make_corpus, ending=ending, compression="")
        read = partial(read_corpus, file=f"data{ending}", as_dataset=True)
        kinds.append(Kind(f"prepared{ending}", make, read, also=("[][]: str",) if "json" in ending else ()))
    make = partial(make_corpus, ending=".parquet", compression="")
    for name, options in (("corpus", {"streaming": True}), ("prepared", {})):
        kinds.append(Kind(f"{name}.parquet", make, partial(read_corpus, file="data.parquet", **options)))
    kinds.append(Kind("corpus.arrow", make_arrow, partial(read_corpus, file="data.arrow", streaming=True)))
    kinds.append(Kind("prepared.arrow", make_arrow, partial(read_corpus, file="data.arrow")))
    kinds.append(Kind("saved-dataset", make_saved_dataset, partial(read_corpus, file="saved")))
    return kinds


# -------------------------------------------------------------------------------------------------------- word vectors


def vector_text(is_word2vec: bool = False, end: str = "\n") -> bytes:
    words = ["the", "bank", "Grüße", "北京", "at name@domain.com", ".", *(f"w{number}" for number in range(30))]
    lines = [f"{word} {number}.5 -0.25 1e-3 0.{number}{end}" for number, word in enumerate(words)]
    if is_word2vec:
        lines.insert(0, f"{len(words)} 4{end}")
    return "".join(lines).encode()


def make_vectors(folder: Path, name: str) -> None:
    content = vector_text("word2vec" in name, " \n" if "fasttext" in name else "\n")
    packing = PACKINGS.get(Path(name).suffix)
    (folder / name).write_bytes(packing.pack(content) if packing else content)


def read_vectors(folder: Path, name: str) -> list[Any]:
    counts = {"the": 3, "Bank": 2, "北京": 1, "missing": 1}
    found = word_vectors.load_word_vectors(folder / name, counts, most_frequent=3)
    assert found.vectors.isfinite().all()
    assert found.vectors.shape[0] == len(found.words)
    return [found.words, found.vectors.tolist()]


# --------------------------------------------------------------------------------------------- evaluation, comparison

SENSES = {
    "tokens": [
        {"w": "The", "lemma": "the", "senses": []},
        {"w": "bank", "lemma": "bank", "senses": [["WordNet-eng30", "eng30-08420278-n"], ["x", "1;2"]]},
    ]
}
COMPARISON = [
    {
        "model": model,
        "placement": placement,
        "fraction": 1.0,
        "metric": "f1",
        "mean": 0.5,
        "standard deviation": 0.1,
        "scores": [0.4, 0.6],
        "seeds": 2,
        "minutes": 1.0,
        "mix": mix,
        "gammas": {},
    }
    for model, placement, mix in (
        ("without ELMo", "none", {}),
        ("ELMo at the input, λ = 0.001", "input", {"input": [0.2, 0.3, 0.5]}),
    )
]


def make_wic(folder: Path) -> None:
    lines = ["bank\tN\t1-2\tThe bank lends .\tOn the bank .", "bank\tN\t1-0\tA bank .\tbank money"] * 4
    (folder / "train.data.txt").write_text("".join(f"{line}\n" for line in lines))
    (folder / "train.gold.txt").write_text("T\nF\n" * 4)


def read_wic(folder: Path) -> list[Any]:
    return [list(map(str, part)) for part in evaluate.read_pairs(folder)]


def make_senses(folder: Path) -> None:
    (folder / "senses.jsonl.gz").write_bytes(gzip.compress(table_bytes(".jsonl", [SENSES] * 4), mtime=0))


def read_senses(folder: Path) -> list[Any]:
    return [[words, list(map(repr, uses))] for words, uses in evaluate.read_uses(folder / "senses.jsonl.gz")]


def make_uses(folder: Path) -> None:
    rows = ["lemma\tdate\tcontext\tstart\tend", "bank\t1850\tThe banks, then.\t4\t9", "bank\t1990\tA bank .\t2\t6"]
    (folder / "uses.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    (folder / "truth.tsv").write_text("bank\t0.5\ncat\t0\n")
    (folder / "lemmas.tsv").write_text("banks\tbank\nKüsse\tKuss\n", encoding="utf-8")


def read_dated_uses(folder: Path) -> list[Any]:
    sample = sample_table(str(folder / "uses.tsv"), ElmoTokenizer())
    return [sample.periods, sorted(map(repr, sample.uses.items()))]


def read_truth_file(folder: Path) -> list[Any]:
    return sorted(read_truth(folder / "truth.tsv").items())


def read_lemma_file(folder: Path) -> list[Any]:
    return sorted(read_lemmas(folder / "lemmas.tsv").items())


def make_comparison(folder: Path) -> None:
    (folder / "ner").mkdir()
    (folder / "ner" / "comparison.json").write_text(json.dumps(COMPARISON))


def read_comparison(folder: Path) -> list[Any]:
    """Return the tables of a comparison, as text."""
    compared = evaluate.read_comparisons([folder / "ner"])
    texts = []
    for name, rows in (("tasks", evaluate.tasks(compared)), ("mixes", evaluate.mixes(compared))):
        if rows:
            evaluate.write(rows, name, folder)
            texts.append((folder / f"{name}.md").read_text())
    evaluate.draw_tasks(compared, folder)
    return [" ".join(texts)]


def make_results(folder: Path) -> None:
    run = folder / "both-0.001-1-seed0"
    run.mkdir()
    results = {"eval_f1": 0.5, "test_f1": 0.25, "train_runtime": 12.5}
    (run / "all_results.json").write_text(json.dumps(results))
    (run / "mix_weights.json").write_text(json.dumps({"input": [0.2, 0.3, 0.5]}))


def read_results(folder: Path) -> list[Any]:
    setting = Setting("both", "0.001", 1.0)
    outcome = run_once(setting, 0, folder, "f1", ["--no-such-setting"])
    assert outcome is not None
    _, markdown = make_table({setting: [outcome]}, "f1")
    return [markdown]


RECIPE = """# A recipe
output_dir: out
train_file: [a.txt, b.txt]
max_steps: 10
lanes: 4
learning_rate: 0.2
config:
  cell_dim: 32
  char_filters: [[1, 4], [2, 4]]
"""
TASK_RECIPE = """task: ner
elmo_placement: none
train_file: a.txt
validation_file: b.txt
head: {head_dim: 20, head_dropout: 0.1}
learning_rate: 1.0e-3
num_train_epochs: 3
"""


def read_recipe(folder: Path, name: str) -> list[Any]:
    file = str(folder / name)
    if name.startswith("task"):
        task_settings, training = finetune.read_arguments([file, "--output_dir", str(folder / "out")])
        task_settings.head_config()
        return [str(task_settings), str(training.learning_rate)]
    settings = read_settings([file])
    settings.elmo_config()
    return [str(settings)]


# -------------------------------------------------------------------------------------------------------- what we keep


def small_parts() -> None:
    embed_corpus.SHARD_WORDS = 60
    embed_corpus.ROW_GROUP_BYTES = 1000


def write_sentences(folder: Path) -> Path:
    path = folder / "corpus.txt"
    path.write_text("".join(f"{sentence}\n" for sentence in SENTENCES), encoding="utf-8")
    return path


def make_shards(folder: Path) -> None:
    """Leave the folder of a run that stopped before its shards became the output."""
    small_parts()
    make_model(folder / "model")
    merge = embed_corpus._merge
    embed_corpus._merge = None
    try:
        embed_corpus.embed_corpus(str(write_sentences(folder)), folder / "model", folder / "out.h5")
    except TypeError:
        pass
    finally:
        embed_corpus._merge = merge
    assert len(list((folder / ".out.h5.parts").glob("*.zip"))) > 2


def read_shards(folder: Path) -> list[Any]:
    small_parts()
    embed_corpus.embed_corpus(str(folder / "corpus.txt"), folder / "model", folder / "out.h5")
    with h5py.File(folder / "out.h5") as file:
        return [hashlib.sha256(file[str(number)][()].tobytes()).hexdigest() for number in range(len(SENTENCES))]


def make_index(folder: Path) -> None:
    small_parts()
    make_model(folder / "model")
    Uses(write_sentences(folder), folder / "model")


def read_index(folder: Path) -> list[Any]:
    small_parts()
    return list(map(list, Uses(folder / "corpus.txt", folder / "model").nearest(QUERY, 5)))


def layer_store(folder: Path) -> LayerStore | None:
    model = ElmoForTokenClassification.from_pretrained(folder / "model", num_labels=2).eval()
    sequences = [(sentence.split(),) for sentence in SENTENCES]
    return LayerStore.make(sequences, model, ElmoTokenizer(), folder / "cache", limit=1)


def make_layers(folder: Path) -> None:
    make_model(folder / "model")
    layer_store(folder)


def read_layers(folder: Path) -> list[Any]:
    store = layer_store(folder)
    assert store is not None
    return [hashlib.sha256(store.values.tobytes()).hexdigest()]


# ----------------------------------------------------------------------------------------------------------- all kinds


def all_kinds() -> list[Kind]:
    """Return every kind of input."""
    model_files = ("model/*.json", "model/vocab.txt", "model/*.safetensors")
    shard_files = ("model/*.index.json", "model/*.safetensors")
    make_shard_files = partial(make_model_folder, max_shard_size="1KB")
    kinds = [
        Kind("shards", make_shards, read_shards, [".out.h5.parts/*"], is_slow=True, is_sealed=True),
        Kind("index", make_index, read_index, ["*.arrow", "*.sha256"], is_slow=True, is_sealed=True),
        Kind("layers", make_layers, read_layers, ["cache/*"], is_slow=True, is_sealed=True),
        Kind("model", make_model_folder, read_model, model_files, is_slow=True),
        Kind(
            "model-in-shards",
            make_shard_files,
            read_model,
            shard_files,
            is_slow=True,
        ),
        Kind("bilm-tf", make_bilm, read_bilm, is_slow=True),
        Kind("allennlp", make_allennlp, read_allennlp, is_slow=True, packings=PACKINGS),
        Kind("manylangs", make_manylangs, read_manylangs),
        *corpus_kinds(),
        *task_kinds(),
        Kind("wic", make_wic, read_wic),
        Kind("uses", make_uses, read_dated_uses, ["uses.tsv"]),
        Kind("truth", make_uses, read_truth_file, ["truth.tsv"]),
        Kind("lemmas", make_uses, read_lemma_file, ["lemmas.tsv"]),
        Kind("senses", make_senses, read_senses, packings=PACKINGS),
        Kind("comparison", make_comparison, read_comparison),
        Kind("results", make_results, read_results),
    ]
    recipes = {"recipe.yaml": RECIPE, "task-recipe.yaml": TASK_RECIPE}
    for name in ("recipe", "task-recipe"):  # JSON is YAML, and has its values damaged one by one
        recipes[f"{name}.json"] = json.dumps(yaml.safe_load(recipes[f"{name}.yaml"]))
    for name, content in recipes.items():
        make = partial(write_file, name=name, content=content.encode())
        kinds.append(Kind(name, make, partial(read_recipe, name=name)))
    make = partial(make_model_folder, model_class=ElmoForPreTraining)
    for name, read in (("finetune", read_model_to_finetune), ("pretrain", read_model_to_pretrain)):
        kinds.append(Kind(f"model-to-{name}", make, read, model_files, is_slow=True))
    for name in ("glove.txt", "glove.txt.gz", "glove.zip", "word2vec.txt", "fasttext.vec"):
        make, read = partial(make_vectors, name=name), partial(read_vectors, name=name)
        kinds.append(Kind(f"vectors-{name}", make, read, packings=PACKINGS))
    return kinds
