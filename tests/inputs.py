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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import h5py
import manylangs_peer
import pyarrow.parquet
import torch
import yaml
from damage import Packing
from safetensors import safe_open
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
from modeling_elmo.convert_allennlp import convert_allennlp
from modeling_elmo.convert_elmo import convert_checkpoint, export_checkpoint
from modeling_elmo.convert_manylangs import convert_manylangs
from modeling_elmo.corpus import open_corpus
from modeling_elmo.loading import load_folder
from modeling_elmo.neighbors import Uses
from training import evaluate, finetune, pretrain
from training.compare import Setting, make_table, run_once
from training.examples import LayerStore
from training.settings import TaskSettings, read_settings
from training.task_data import read_examples

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


@dataclass(frozen=True)
class Kind:
    """A kind of input: `make` writes its files into a folder, `read` returns what the package reads from there."""

    name: str
    make: Callable[[Path], None]
    read: Callable[[Path], Any]
    files: Sequence[str] = ("**/*",)  # patterns of those that are damaged
    is_slow: bool = False  # whether it is damaged more rarely than others
    is_sealed: bool = False  # whether damaged files give the same result or none
    also: Sequence[str] = ()  # places and types that a result may have beside those of the untouched files
    packings: Mapping[str, Packing] = field(default_factory=dict)

    def files_in(self, folder: Path) -> list[str]:
        """Return the names of the files that are damaged."""
        found = {path for pattern in self.files for path in folder.glob(pattern) if path.is_file()}
        return sorted(str(path.relative_to(folder)) for path in found)


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


def table_bytes(ending: str, rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Write rows as JSON lines, a JSON list, CSV, TSV or Parquet."""
    if ending == ".jsonl":
        return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    if ending == ".json":
        return json.dumps(list(rows), ensure_ascii=False, indent=1).encode()
    made = datasets.Dataset.from_list(list(rows))
    file = io.BytesIO()
    if ending == ".parquet":
        pyarrow.parquet.write_table(made.data.table, file, compression="none")  # so that damage reaches the text
    else:
        made.to_pandas().to_csv(file, index=False, sep="\t" if ending == ".tsv" else ",")
    return file.getvalue()


def make_corpus(folder: Path, ending: str, compression: str) -> None:
    content = "".join(f"{sentence}\n" for sentence in SENTENCES).encode()
    if ending != ".txt":
        content = table_bytes(ending, [{"id": 1, "text": sentence} for sentence in SENTENCES])
    packing = COMPRESSIONS[compression]
    (folder / f"data{ending}{compression}").write_bytes(packing.pack(content) if packing else content)


def own_cache(folder: Path) -> None:
    datasets.config.HF_DATASETS_CACHE = folder.parent / "cache"
    datasets.config.DOWNLOADED_DATASETS_PATH = folder.parent / "cache" / "downloads"


def read_corpus(folder: Path, file: str, **options: Any) -> list[Any]:
    own_cache(folder)
    return list(open_corpus(str(folder / file), column="text", **options))


def make_saved_dataset(folder: Path) -> None:
    datasets.Dataset.from_dict({"text": SENTENCES}).save_to_disk(folder / "saved")


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


# ------------------------------------------------------------------------------------------------------ data of tasks

COLUMNS = "-DOCSTART- -X- O O\n\nEU NNP I-NP I-ORG\nsaid VBZ I-VP O\n\nPeter NNP I-NP I-PER\n. . O O\n\n" * 4
CONLLU = (
    "# sent_id = 1\n1-2\tDon't" + "\t_" * 8 + "\n1\tDo\tdo\tAUX\tVB\t_\t3\taux\t_\t_\n"
    "2\tn't\tnot\tPART\tRB\t_\t3\tadvmod\t_\t_\n2.1\tever\tever\tADV" + "\t_" * 6 + "\n\n"
)
TREES = "(3 (2 It) (4 (2 works) (2 -LRB-)))\n(1 (2 It) (0 (1 1\\/2) (2 works)))\n"
SRL = "The DT - - (ARG0* *\ncat NN - - *) *\nate VBD eat eat.01 (V*) *\nfish NN fish fish.01 (ARG1*) (V*)\n\n"
CONLL_2012 = """#begin document (nw/x); part 000
nw/x 0 0 Anna NNP * - - - Speaker * (ARG0*) (0)
nw/x 0 1 met VBD * meet 01 1 Speaker * (V*) -
nw/x 0 2 Boris NNP * - - - Speaker * (ARG1*) (1)

nw/x 0 0 She PRP * - - - Speaker * (0|(2)
nw/x 0 1 smiled VBD * - - - Speaker * 0)

#end document
"""
COREF_ROW = {
    "doc_key": "a",
    "sentences": [["Anna", "met", "Boris"], ["She", "smiled"]],
    "clusters": [[[0, 0], [3, 3]]],
}
SQUAD = {
    "version": "1.1",
    "data": [
        {
            "title": "x",
            "paragraphs": [
                {
                    "context": "Anna met Boris in 北京 on Monday .",
                    "qas": [
                        {"id": "1", "question": "Who met Boris ?", "answers": [{"text": "Anna", "answer_start": 0}]},
                        {"id": "2", "question": "Where ?", "answers": [{"text": "北京", "answer_start": 18}] * 2},
                    ],
                }
            ],
        }
    ],
}
PAIRS = [
    {"sentence1": "A man, asleep.", "sentence2": 'He "sleeps".', "gold_label": "entailment"},
    {"sentence1": "Ein Mann schläft.", "sentence2": "He runs.", "gold_label": "contradiction"},
    {"sentence1": "A man.", "sentence2": "Who knows?", "gold_label": "-"},
] * 3
SICK = (
    "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n"
    '1\tA man is asleep\tHe "sleeps"\t4.5\tENTAILMENT\n2\tA dog runs\tNo dog runs\t2.0\tCONTRADICTION\n'
)
TEXTS = [
    {"text": "A good, long film .", "label": "pos"},
    {"text": 'A "bad" one', "label": "neg"},
    {"text": "Grüße", "label": "pos"},
] * 3
MANY_LABELS = [{"text": "a b", "labels": ["x", "y"]}, {"text": "c", "labels": []}]
TAGGED = [{"tokens": ["EU", "said"], "ner_tags": ["B-ORG", "O"]}, {"tokens": ["Peter"], "ner_tags": ["B-PER"]}] * 3
CHOICES = [{"context": "It rained .", "choice0": "He got wet .", "choice1": "He flew .", "label": 0}] * 3
QUESTIONS = [
    {"id": "1", "question": "Who ?", "context": "Anna met Boris .", "answers": {"text": ["Anna"], "answer_start": [0]}}
]

# The data of tasks, by the task and the name of the file.
TASK_FILES: dict[tuple[str, str], bytes] = {
    ("ner", "data.conll"): COLUMNS.encode(),
    ("pos", "data.conllu"): (CONLLU * 3).encode(),
    ("sst", "data.txt"): (TREES * 3).encode(),
    ("srl", "data.conll"): (SRL * 3).encode(),
    ("srl", "data.2012"): CONLL_2012.encode(),
    ("coref", "data.2012"): (CONLL_2012 * 2).encode(),
    ("coref", "data.jsonl"): table_bytes(".jsonl", [COREF_ROW] * 2),
    ("coref", "data.json"): table_bytes(".json", [COREF_ROW] * 2),
    ("squad", "data.json"): json.dumps(SQUAD).encode(),
    ("nli", "data.jsonl"): table_bytes(".jsonl", PAIRS),
    ("nli", "sick.txt"): (SICK * 1).encode(),
    **{("nli", f"data{ending}"): table_bytes(ending, PAIRS) for ending in (".tsv", ".csv", ".parquet")},
    **{
        ("text-classification", f"data{ending}"): table_bytes(ending, TEXTS)
        for ending in (".csv", ".tsv", ".jsonl", ".json", ".parquet")
    },
    ("text-classification", "labels.jsonl"): table_bytes(".jsonl", MANY_LABELS),
    ("text-classification", "labels.parquet"): table_bytes(".parquet", MANY_LABELS),
    ("ner", "data.parquet"): table_bytes(".parquet", TAGGED),
    ("ner", "data.json"): table_bytes(".json", TAGGED),
    ("choice", "data.csv"): table_bytes(".csv", CHOICES),
    ("choice", "data.jsonl"): table_bytes(".jsonl", CHOICES),
    ("squad", "data.parquet"): table_bytes(".parquet", QUESTIONS),
}


def read_task(folder: Path, task: str, name: str) -> list[Any]:
    """Return rows as they are before training: what examples are made of, too."""
    own_cache(folder)
    rows = read_examples(task, folder / name)
    settings = TaskSettings(task=task)
    chosen = finetune.TASKS[task].for_data(rows, None)
    rows = chosen.prepare(rows, settings, False, name)
    chosen.examples(rows, chosen.label_names(rows))
    return rows.to_list()


def write_file(folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)


def task_kinds() -> list[Kind]:
    kinds = []
    # Rows of a damaged file may lack roles, mentions or answers, or have some where the untouched file has none.
    also = ("[].text_pair: str", "[].label: str", "[].text: str", "[].own_lines[]: str", "[].windows[][]: number")
    for (task, name), content in TASK_FILES.items():
        make = partial(write_file, name=name, content=content)
        kinds.append(Kind(f"{task}-{name}", make, partial(read_task, task=task, name=name), also=also))
    return kinds


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
            ["model/*.index.json", "model/*.safetensors"],
            is_slow=True,
        ),
        Kind("bilm-tf", make_bilm, read_bilm, is_slow=True),
        Kind("allennlp", make_allennlp, read_allennlp, is_slow=True, packings=PACKINGS),
        Kind("manylangs", make_manylangs, read_manylangs),
        *corpus_kinds(),
        *task_kinds(),
        Kind("wic", make_wic, read_wic),
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
