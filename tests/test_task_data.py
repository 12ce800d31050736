"""Data of the downstream tasks: the same rows from every kind of file, and one line for each error."""

import gzip
import itertools
import json
from pathlib import Path

import datasets
import pytest

from modeling_elmo.files import ElmoError
from training.tag_schemes import SCHEMES, detect_scheme, find_violation, to_scheme
from training.task_data import SENTIMENTS, hold_out, read_examples, read_hub_examples, sample_fraction

IOB1 = """-DOCSTART- -X- O O

EU NNP I-NP I-ORG
rejects VBZ I-VP O
German JJ I-NP I-MISC
British JJ I-NP B-MISC

-DOCSTART- -X- O O
Peter NNP I-NP I-PER
Blackburn NNP I-NP I-PER
"""
CONLLU = """# sent_id = 1
# text = Don't go
1-2\tDon't\t_\t_\t_\t_\t_\t_\t_\t_
1\tDo\tdo\tAUX\tVB\t_\t3\taux\t_\t_
2\tn't\tnot\tPART\tRB\t_\t3\tadvmod\t_\t_
2.1\tever\tever\tADV\tRB\t_\t_\t_\t_\t_
3\tgo\tgo\tVERB\tVB\t_\t0\troot\t_\t_
"""
TREES = "(3 (2 It) (4 (2 works) (2 -LRB-)))\n(1 (2 It) (0 (1 1\\/2) (2 works)))\n"
PAIRS = [("A man, asleep.", 'He "sleeps".', "entailment"), ("A man asleep.", "He runs.", "contradiction")]


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def write_table(path: Path, rows: list[dict]) -> Path:
    made = datasets.Dataset.from_list(rows)
    if path.suffix == ".csv":
        made.to_csv(path)
    elif path.suffix == ".tsv":
        made.to_csv(path, sep="\t")
    elif path.suffix == ".parquet":
        made.to_parquet(path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows, indent=1))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def fail(task: str, path: Path, **options) -> str:
    with pytest.raises(ElmoError) as caught:
        read_examples(task, path, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# -------------------------------------------------------------------------------------------------- tag schemes


def valid_sentences(length: int) -> list[tuple[str, ...]]:
    """Every sentence of BIO tags of two types."""
    sentences = itertools.product(["O", "B-A", "I-A", "B-B", "I-B"], repeat=length)
    return [
        tags
        for tags in sentences
        if all(
            tag[0] != "I" or before in (f"B{tag[1:]}", f"I{tag[1:]}")
            for before, tag in itertools.pairwise(("O", *tags))
        )
    ]


@pytest.mark.parametrize(("one", "other"), itertools.permutations(SCHEMES, 2))
def test_tags_turned_into_another_scheme_and_back_are_the_same(one, other):
    sentences = [list(tags) for length in range(5) for tags in valid_sentences(length)]
    begun = [to_scheme(tags, one) for tags in sentences]
    turned = [to_scheme(tags, other) for tags in begun]
    assert (detect_scheme(begun), detect_scheme(turned)) == (one, other)
    assert not any(find_violation(tags, other) for tags in turned)
    assert [to_scheme(tags, one) for tags in turned] == begun


def test_the_schemes_write_entities_as_they_should():
    bio = "B-A I-A B-A O B-B B-A I-A I-A".split()
    assert to_scheme(bio, "BIO") == bio
    assert to_scheme(bio, "IOB1") == "I-A I-A B-A O I-B I-A I-A I-A".split()
    assert to_scheme(bio, "BIOES") == "B-A E-A S-A O S-B B-A I-A E-A".split()


def test_types_may_hold_hyphens():
    assert to_scheme(["B-x-y", "I-x-y"], "BIOES") == ["B-x-y", "E-x-y"]


@pytest.mark.parametrize(
    ("tags", "scheme", "index", "message"),
    [
        ("O I-A", "BIO", 1, "'I-A' after 'O' violates the BIO"),
        ("B-B I-A", "BIO", 1, "'I-A' after 'B-B'"),
        ("B-A", "IOB1", 0, "'B-A' after 'O' violates the IOB1"),
        ("E-A", "BIOES", 0, "'E-A' after 'O' violates the BIOES"),
        ("B-A O", "BIOES", 1, "'O' after 'B-A'"),
        ("O B-A", "BIOES", 1, "'B-A' at the end of a sentence"),
        ("S-A", "BIO", 0, "'S-A' is not a tag of the BIO"),
        ("B-A L-A", "BIOES", 1, "'L-A' is not a tag"),
        ("B-", "BIO", 0, "'B-' is not a tag"),
    ],
)
def test_tags_that_break_their_scheme_are_found(tags, scheme, index, message):
    found, problem = find_violation(tags.split(), scheme)
    assert found == index
    assert problem.startswith(message)


# -------------------------------------------------------------------------------------------- CoNLL columns, trees


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("separator", [" ", "\t", "   "])
def test_conll_columns_are_sentences_with_tags_in_the_scheme_asked_for(separator, line_end, tmp_path):
    path = write(tmp_path / "eng.train", IOB1.replace(" ", separator).replace("\n", line_end))
    rows = read_examples("ner", path)
    assert rows["words"][:] == [["EU", "rejects", "German", "British"], ["Peter", "Blackburn"]]
    assert rows["tags"][:] == [["B-ORG", "O", "B-MISC", "B-MISC"], ["B-PER", "I-PER"]]
    assert read_examples("ner", path, scheme="BIOES")["tags"][1] == ["B-PER", "E-PER"]
    assert read_examples("ner", path, scheme="IOB1")["tags"][0] == ["I-ORG", "O", "I-MISC", "B-MISC"]
    assert read_examples("pos", path)["tags"][1] == ["NNP", "NNP"]


def test_a_word_and_its_tag_may_be_in_a_tsv(tmp_path):
    path = write(tmp_path / "train.tsv", "EU\tB-ORG\n\nUN\tB-ORG\n\n\n")
    assert read_examples("ner", path)["words"][:] == [["EU"], ["UN"]]


def test_words_may_hold_what_unicode_calls_a_space_or_line_end(tmp_path):
    path = write(tmp_path / "a.conll", "2\u00a01/2 O\na\u2028b O\n")
    assert read_examples("ner", path)["words"][:] == [["2\u00a01/2", "a\u2028b"]]


@pytest.mark.parametrize("name", ["a.conllu", "a.txt"])
def test_conll_u_gives_words_without_ranges_and_empty_nodes(name, tmp_path):
    path = write(tmp_path / name, CONLLU)
    assert list(read_examples("pos", path)) == [{"words": ["Do", "n't", "go"], "tags": ["AUX", "PART", "VERB"]}]


def test_trees_are_sentences(tmp_path):
    assert list(read_examples("sst", write(tmp_path / "dev.txt", TREES))) == [
        {"words": ["It", "works", "("], "label": "positive"},
        {"words": ["It", "1/2", "works"], "label": "negative"},
    ]


def test_trees_are_phrases_each_once_where_asked_for(tmp_path):
    rows = read_examples("sst", write(tmp_path / "train.txt", TREES), phrases=True)
    found = [(" ".join(row["words"]), row["label"]) for row in rows]
    assert sorted(found) == sorted(
        [
            ("It works (", "positive"),
            ("works (", "very positive"),
            ("(", "neutral"),
            ("works", "neutral"),
            ("It", "neutral"),
            ("It 1/2 works", "negative"),
            ("1/2 works", "very negative"),
            ("1/2", "negative"),
        ]
    )


# -------------------------------------------------------------------------------------------------------- tables


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".txt", ".json", ".jsonl", ".parquet"])
@pytest.mark.parametrize(
    "names", [("premise", "hypothesis", "label"), ("sentence1", "sentence2", "gold_label"), ("a", "b", "c")]
)
def test_pairs_are_the_same_from_every_table(names, suffix, tmp_path):
    path = write_table(tmp_path / f"pairs{suffix}", [dict(zip(names, pair, strict=True)) for pair in PAIRS])
    fields = ("premise", "hypothesis", "label")
    columns = dict(zip(fields, names, strict=True)) if names[0] == "a" else None
    assert list(read_examples("nli", path, columns=columns)) == [
        dict(zip(fields, pair, strict=True)) for pair in PAIRS
    ]


def test_quotation_marks_of_a_tsv_are_marks_unless_they_are_all_doubled(tmp_path):
    path = write(
        tmp_path / "a.tsv", 'premise\thypothesis\tlabel\n"Yes" she said "no"\t"A ""b"" c"\tneutral\n"\t"x"\tneutral\n'
    )
    rows = read_examples("nli", path)
    assert rows["premise"][:] == ['"Yes" she said "no"', '"']
    assert rows["hypothesis"][:] == ['A "b" c', '"x"']


def test_sick_is_read_by_its_header_and_in_lower_case(tmp_path):
    path = write(
        tmp_path / "SICK_train.txt",
        "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n1\tA b\tA c\t4.5\tNEUTRAL\n",
    )
    assert list(read_examples("nli", path)) == [{"premise": "A b", "hypothesis": "A c", "label": "neutral"}]


def test_pairs_without_a_gold_label_are_left_out_and_counted(tmp_path, caplog):
    rows = [{"sentence1": "a", "sentence2": "b", "gold_label": label} for label in ("-", "neutral", "-")]
    path = write_table(tmp_path / "snli.jsonl", rows)
    assert read_examples("nli", path)["label"][:] == ["neutral"]
    assert "snli.jsonl: 2 examples have no gold label" in caplog.text


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_texts_and_labels_are_read_for_sentiment(suffix, tmp_path):
    path = write_table(tmp_path / f"a{suffix}", [{"sentence": "It works", "label": 1, "id": 7}])
    assert list(read_examples("sst", path)) == [{"text": "It works", "label": "1"}]


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".parquet"])
def test_words_and_tags_are_read_as_lists(suffix, tmp_path):
    path = write_table(tmp_path / f"a{suffix}", [{"tokens": ["EU", "rejects"], "ner_tags": ["I-ORG", "O"]}])
    assert list(read_examples("ner", path)) == [{"words": ["EU", "rejects"], "tags": ["B-ORG", "O"]}]


def test_words_and_tags_of_a_csv_are_between_blanks(tmp_path):
    path = write(tmp_path / "a.csv", "words,tags\nIt works,PRON VERB\n")
    assert list(read_examples("pos", path)) == [{"words": ["It", "works"], "tags": ["PRON", "VERB"]}]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.jsonl", '{"context": "It is", "choices": ["hot", "red"], "label": 1}'),
        ("a.jsonl", '{"context": "It is", "ending0": "hot", "ending1": "red", "label": "1"}'),
        ("a.csv", "context,choice1,choice0,label\nIt is,red,hot,1\n"),
        ("a.csv", 'context,choices,label\nIt is,"[""hot"", ""red""]",1\n'),
    ],
)
def test_choices_are_a_list_or_numbered_columns(name, text, tmp_path):
    assert list(read_examples("choice", write(tmp_path / name, text))) == [
        {"context": "It is", "choices": ["hot", "red"], "label": 1}
    ]


def test_numbered_choices_are_in_the_order_of_their_numbers(tmp_path):
    row = {"context": "c", **{f"option_{number}": str(number) for number in reversed(range(12))}, "label": 11}
    path = write_table(tmp_path / "a.jsonl", [row])
    (read,) = read_examples("choice", path, columns={"choices": "option"})
    assert read["choices"][read["label"]] == "11"


def test_a_saved_data_set_is_read_with_the_names_of_its_classes(tmp_path):
    features = {
        "tokens": datasets.List(datasets.Value("string")),
        "ner_tags": datasets.List(datasets.ClassLabel(names=["O", "B-ORG", "I-ORG"])),
    }
    made = datasets.Dataset.from_dict(
        {"tokens": [["EU", "fell"]], "ner_tags": [[1, 0]]}, features=datasets.Features(features)
    )
    datasets.DatasetDict({"held": made}).save_to_disk(tmp_path / "set")
    made.to_parquet(tmp_path / "a.parquet")
    expected = [{"words": ["EU", "fell"], "tags": ["S-ORG", "O"]}]
    assert list(read_hub_examples("ner", str(tmp_path / "set"), split="held", scheme="BIOES")) == expected
    assert list(read_examples("ner", tmp_path / "a.parquet", scheme="BIOES")) == expected
    with pytest.raises(ElmoError, match="no split 'train'; its splits are held"):
        read_hub_examples("ner", str(tmp_path / "set"))
    with pytest.raises(ElmoError, match="no column `x` for `tags`; the columns are tokens, ner_tags"):
        read_hub_examples("ner", str(tmp_path / "set"), split="held", columns={"tags": "x"})


def test_a_folder_of_files_is_a_data_set(tmp_path):
    write_table(tmp_path / "train.jsonl", [{"q": "a", "hypothesis": "b", "label": "neutral"}])
    rows = read_hub_examples("nli", str(tmp_path), columns={"premise": "q"})
    assert list(rows) == [{"premise": "a", "hypothesis": "b", "label": "neutral"}]
    with pytest.raises(ElmoError) as caught:
        read_hub_examples("nli", str(tmp_path), split="nowhere")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("task", "label", "expected"), [("nli", -1, ["b"]), ("choice", 0, [0, 1])])
def test_classes_of_the_hub_are_names_but_of_a_choice_its_index(task, label, expected, tmp_path):
    features = datasets.Features(
        {name: datasets.Value("string") for name in ("premise", "hypothesis", "choice1", "choice2")}
        | {"label": datasets.ClassLabel(names=["a", "b"])}
    )
    texts = {name: ["x", "y"] for name in features if name != "label"}
    datasets.Dataset.from_dict({**texts, "label": [label, 1]}, features=features).save_to_disk(tmp_path / "set")
    columns = {"context": "premise"} if task == "choice" else None
    assert read_hub_examples(task, str(tmp_path / "set"), columns=columns)["label"][:] == expected


# -------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("task", "name", "text", "message"),
    [
        ("ner", "a.conll", "", "empty, there are no examples"),
        ("ner", "a.conll", "-DOCSTART- O\n\n", "empty, there are no examples"),
        ("ner", "a.conll", "EU B-ORG\nfell\n", "line 2: 1 columns where the lines before have 2"),
        ("ner", "a.conll", "EU\nfell\n", "line 1: there is no column for tags: 'EU'"),
        ("ner", "a.conll", "EU\tB-ORG\nfell\t\n", "line 2: a word or its tag is missing"),
        (
            "ner",
            "a.conll",
            "EU B-ORG\n\nA B-LOC\nB I-PER\n",
            "line 4: tag 'I-PER' after 'B-LOC' violates the BIO scheme",
        ),
        ("ner", "a.conll", "EU S-ORG\nB E-PER\n", "line 2: tag 'E-PER' after 'S-ORG' violates the BIOES scheme"),
        ("ner", "a.conll", "EU NNP\n", "line 1: tag 'NNP' is not a tag of the BIO scheme"),
        ("ner", "a.conll", b"EU O\n\xff\xfe O\n", "line 2 is not UTF-8"),
        ("ner", "a.conllu", CONLLU, "a CoNLL-U file has the tags of pos"),
        ("ner", "a.jsonl", '{"words": ["a"], "tags": ["O", "O"]}', "line 1: 1 words have 2 tags"),
        ("ner", "a.jsonl", '{"words": [], "tags": []}', "line 1: `words` is []; expected a list of strings"),
        ("ner", "a.jsonl", '{"words": ["a"], "tags": [3]}', "line 1: `tags` has 3; expected strings"),
        ("pos", "a.conllu", CONLLU.replace("VERB", "_"), "line 7: a word or its tag is missing"),
        ("sst", "a.txt", "(3 (2 It) (2 works))\n(3 (2 It)\n", "line 2: unbalanced brackets: 1 are not closed"),
        ("sst", "a.txt", "(3 (2 It)) (2 works))\n", "line 1: unbalanced brackets: '(' is outside of all brackets"),
        ("sst", "a.txt", "(3 It))\n", "line 1: unbalanced brackets: ')' is outside of all brackets"),
        ("sst", "a.txt", "(3 It)\nworks\n", "line 2: unbalanced brackets: 'works'"),
        ("sst", "a.txt", "(3 It)\n(5 It)\n", "line 2: a phrase has the label '5'"),
        ("sst", "a.txt", "(3 (2 ) (2 It))\n", "line 1: a phrase has no words"),
        ("sst", "a.txt", "It works .\n", "expected one of trees, .json"),
        ("sst", "a.csv", "text,label\nIt works,\n", "line 2: the label is missing"),
        ("sst", "a.csv", "text,label\n ,1\n", "line 2: `text` is ' '; expected text"),
        ("sst", "a.csv", "text,label\nIt,1,2\n", "line 2: more or fewer fields than in the header"),
        ("sst", "a.csv", 'text,label\n"It,1\n', "line 2: unexpected end of data"),
        ("sst", "a.csv", "phrase,label\nIt,1\n", "no column `text` or `sentence` for `text`; the columns are phrase"),
        ("nli", "a.txt", "just text\n", "expected one of .json"),
        ("nli", "a.tsv", "premise\thypothesis\tlabel\n", "empty, there are no examples"),
        ("nli", "a.jsonl", '{"premise": "a"}\n', "line 1: no column `hypothesis`"),
        ("nli", "a.jsonl", "{no json\n", "line 1: not JSON: Expecting property name"),
        ("nli", "a.jsonl", "3\n", "line 1: expected a JSON object, got int"),
        ("nli", "a.json", "[\n{},\nno]\n", "not JSON: Expecting value: line 3 column 1"),
        ("nli", "a.parquet", "no parquet", "a.parquet: "),
        ("choice", "a.jsonl", '{"context": "a", "choices": ["b", "c"], "label": 2}', "the label '2' is not a choice"),
        ("choice", "a.jsonl", '{"context": "a", "choices": ["b", ""], "label": 0}', "`choices` has ''; expected"),
        ("choice", "a.jsonl", '{"context": "a", "choices": ["b", "c"], "label": null}', "the label is missing"),
    ],
)
def test_a_bad_file_is_an_error_that_names_file_and_line(task, name, text, message, tmp_path):
    path = write(tmp_path / name, text)
    error = fail(task, path)
    assert error.startswith(str(path))
    assert message in error


def test_options_that_mean_nothing_are_refused(tmp_path):
    trees = write(tmp_path / "a.txt", TREES)
    columns = write(tmp_path / "a.conll", IOB1)
    table = write(tmp_path / "a.csv", "text,label\na,b\n")
    assert "no such file" in fail("sst", tmp_path / "nowhere.txt")
    for task, path, options, name in (
        ("sst", trees, {"columns": {"text": "a"}}, "text"),
        ("sst", table, {"columns": {"premise": "a"}}, "premise"),
        ("sst", table, {"phrases": True}, "phrases"),
        ("ner", columns, {"phrases": True}, "phrases"),
    ):
        assert f"{path}: `{name}` means nothing here; there is " in fail(task, path, **options)


# ------------------------------------------------------------------------------------------------------ sampling


def test_a_smaller_sample_is_within_a_larger_one_of_the_same_seed():
    rows = datasets.Dataset.from_dict({"number": list(range(50))})
    parts = {fraction: sample_fraction(rows, fraction, seed=1)["number"][:] for fraction in (0.001, 0.1, 0.25, 0.5, 1)}
    assert [len(part) for part in parts.values()] == [1, 5, 12, 25, 50]
    assert all(set(less) < set(more) for less, more in itertools.pairwise(parts.values()))
    assert sample_fraction(rows, 0.1, seed=1)["number"][:] == parts[0.1]
    assert sample_fraction(rows, 0.1, seed=2)["number"][:] != parts[0.1]


# ----------------------------------------------------------------------------------------------------- real data


@pytest.mark.parametrize(
    ("task", "file", "count"),
    [
        ("ner", "ner/eng.train", 14_041),
        ("ner", "ner/eng.testa", 3_250),
        ("pos", "pos/en_ewt-ud-train.conllu", 12_544),
        ("pos", "pos/en_ewt-ud-dev.conllu", 2_001),
        ("sst", "sst/train.txt", 8_544),
        ("sst", "sst/dev.txt", 1_101),
        ("nli", "nli/SICK_train.txt", 4_500),
        ("nli", "nli/SICK_trial.txt", 500),
        ("nli", "nli/snli_counterfactual.train.tsv", 8_330),
        ("nli", "nli/snli_counterfactual.dev.tsv", 1_000),
        ("nli", "nli/snli.dev.jsonl", 9_842),
    ],
)
def test_published_data_sets_have_as_many_examples_as_they_say(task, file, count, shared):
    rows = read_examples(task, shared / "data" / file)
    assert len(rows) == count
    if task == "nli":
        assert set(rows["label"]) == {"entailment", "neutral", "contradiction"}
    if task == "sst":
        assert set(rows["label"]) == set(SENTIMENTS)


def test_conll_2003_has_its_published_number_of_words_and_entities(shared):
    rows = read_examples("ner", shared / "data/ner/eng.train")
    tags = list(itertools.chain.from_iterable(rows["tags"]))
    assert len(tags) == 203_621
    entities = {kind: tags.count(f"B-{kind}") for kind in ("LOC", "MISC", "ORG", "PER")}
    assert entities == {"LOC": 7140, "MISC": 3438, "ORG": 6321, "PER": 6600}


def test_no_phrase_of_sst_has_two_labels(shared):
    rows = read_examples("sst", shared / "data/sst/dev.txt", phrases=True)
    assert len({tuple(words) for words in rows["words"]}) == len(rows) > 1_101


@pytest.mark.parametrize(
    ("task", "name", "text"),
    [("ner", "a.conll", IOB1), ("pos", "a.conllu", CONLLU), ("sst", "a.txt", TREES)],
)
def test_compressed_files_hold_the_same_examples(task: str, name: str, text: str, tmp_path: Path) -> None:
    plain = read_examples(task, write(tmp_path / name, text))
    compressed = read_examples(task, write(tmp_path / f"{name}.gz", gzip.compress(text.encode())))
    assert compressed.to_dict() == plain.to_dict()


def test_a_held_out_part_is_the_same_in_every_run_and_shares_no_row() -> None:
    rows = datasets.Dataset.from_dict({"label": list(range(20))})
    train, held_out = hold_out(rows, 0.1)
    assert len(held_out) == 2
    assert sorted([*train["label"], *held_out["label"]]) == list(range(20))
    assert hold_out(rows, 0.1)[1].to_dict() == held_out.to_dict()
    assert [len(part) for part in hold_out(rows, 0.001)] == [19, 1]
    assert [len(part) for part in hold_out(rows, 0.999)] == [1, 19]
    with pytest.raises(ElmoError, match="a single example"):
        hold_out(rows.select([0]), 0.5)
