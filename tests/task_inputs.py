"""Small data of every task, in every format, and how it is read."""

import io
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import pyarrow.parquet
from damage import Kind

from training import finetune
from training.settings import TaskSettings
from training.task_data import read_examples


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


def own_cache(folder: Path) -> None:
    datasets.config.HF_DATASETS_CACHE = folder.parent / "cache"
    datasets.config.DOWNLOADED_DATASETS_PATH = folder.parent / "cache" / "downloads"


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
