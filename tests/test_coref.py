"""Coreference: spans and their ranking, the task model, files in and out, scores, and what rules alone reach."""

import bisect
import io
import itertools
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from clean_process import run_without_package
from coref_rules import find_mentions, frequent_nouns, previous_of_gender, same_head_word
from datasets import Dataset
from huggingface_hub.errors import StrictDataclassError
from torch.nn import functional as F

from modeling_elmo import ElmoConfig, ElmoForCoreferenceResolution, ElmoTokenizer
from modeling_elmo.bilm_elmo import IGNORED
from modeling_elmo.coreference_elmo import (
    DocumentWords,
    Ranking,
    SpanRanking,
    best_spans,
    coreference_loss,
    decode_clusters,
    within_sentences,
)
from modeling_elmo.files import ElmoError
from training import finetune
from training.coref import (
    Document,
    coreference_scores,
    cut_document,
    predicted_clusters,
    to_document,
    without_singletons,
    write_document,
)
from training.examples import Collator
from training.settings import TaskSettings
from training.task_data import read_examples, read_part

TASK = finetune.TASKS["coref"]
PLACEMENTS = ("none", "input", "output", "both")
VOCABULARY = ["the", "bank", "river", "he", "she", "it", "."]
SIZES = {
    "vocab_size": 4 + len(VOCABULARY),
    "projection_dim": 8,
    "cell_dim": 16,
    "char_filters": [[1, 4], [3, 12]],
    "num_highway_layers": 1,
    "word_vector_dim": 5,
    "head_dim": 6,
    "head_layers": 1,
    "head_char_filters": 7,
    "max_span_width": 3,
}
DOCUMENTS = [
    Document(
        "one", "0", [["The", "bank", "lends", "."], ["It", "is", "the", "old", "bank"]], [[(0, 2), (4, 5), (6, 9)]]
    ),
    Document(
        "two", "0", [["He", "left", "her"], [], ["She", "saw", "him", "go", "."]], [[(0, 1), (5, 6)], [(2, 3), (3, 4)]]
    ),
    Document("three", "0", [["It", "rains", "."]], [[(0, 1)]]),
]
# Sums of a few hundred float32 products in another order.
TOLERANCE = 5e-6


@pytest.fixture
def tokenizer() -> ElmoTokenizer:
    return ElmoTokenizer(vocab=VOCABULARY, lowercase_fallback=True)


def build(placement: str = "both", **changes) -> ElmoForCoreferenceResolution:
    torch.manual_seed(0)
    config = {**SIZES, "elmo_placement": placement, "predict_singletons": True, **changes}
    return ElmoForCoreferenceResolution(ElmoConfig(**config)).eval()


def read_documents(path: Path, columns: dict[str, str] | None = None) -> list[Document]:
    return [to_document(row) for row in read_examples("coref", path, columns=columns)]


def examples_of(documents):
    return TASK.examples(Dataset.from_list([document._asdict() for document in documents]), [])


def batch_of(documents, tokenizer):
    examples = examples_of(documents)
    return Collator(tokenizer, TASK.targets)([examples[number] for number in range(len(examples))])


# ------------------------------------------------------------------------------------------------------------- spans


def test_spans_end_in_their_sentence():
    allowed = within_sentences(torch.tensor([0, 0, 2, 2, 2]), 3)
    assert allowed.int().tolist() == [[1, 1, 0], [1, 0, 0], [1, 1, 1], [1, 1, 0], [1, 0, 0]]


def cross(one, other):
    (a, b), (c, d) = sorted([one, other])
    return a < c < b < d


def test_kept_spans_are_the_best_that_do_not_cross():
    torch.manual_seed(0)
    allowed = within_sentences(torch.tensor([0] * 7 + [1] * 6), 4)
    for count in (1, 6, 100):
        scores = torch.randn(13, 4)
        expected: list[tuple[int, int]] = []
        for number in scores.masked_fill(~allowed, -100).flatten().argsort(descending=True).tolist():
            span = (number // 4, number // 4 + number % 4 + 1)
            if (
                allowed.flatten()[number]
                and len(expected) < count
                and not any(cross(span, other) for other in expected)
            ):
                expected.append(span)
        kept = best_spans(scores, allowed, count).tolist()
        assert [(number // 4, number // 4 + number % 4 + 1) for number in kept] == sorted(expected)


def test_scores_in_parts_are_those_of_whole_span_features():
    """The paper's formulas, one span and one pair at a time."""
    torch.manual_seed(0)
    config = ElmoConfig(max_span_width=3, spans_per_word=2.0, max_antecedents=4)
    network = SpanRanking(5, 6, config, dropout=0.0)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    words = DocumentWords(torch.randn(7, 5), torch.randn(7, 6), torch.tensor([0, 0, 0, 1, 1, 1, 1]), [7])
    scores, _, (ranking,) = network(words)

    def feed_forward(layers, features):
        for layer in (layers.first, layers.second):
            features = F.relu(layer(features))
        return layers.output(features).squeeze(-1)

    def features(first, end):
        weights = torch.softmax(feed_forward(network.attention, words.encoded[first:end]), dim=0)
        head = (weights[:, None] * words.features[first:end]).sum(0)
        return torch.cat([words.encoded[first], words.encoded[end - 1], head, network.width.weight[end - first - 1]])

    spans = list(zip(ranking.starts.tolist(), ranking.ends.tolist(), strict=True))
    assert len(spans) > 6
    for number, (first, end) in enumerate(spans):
        own = features(first, end)
        mention = feed_forward(network.mention, own)
        torch.testing.assert_close(scores[first, end - first - 1], mention)
        for antecedent, link in zip(ranking.antecedents[number].tolist(), ranking.links[number], strict=True):
            if antecedent >= number:
                assert link == -torch.inf
                continue
            other = features(*spans[antecedent])
            bin_of = bisect.bisect([1, 2, 3, 4, 5, 8, 16], number - antecedent) - 1
            pair = feed_forward(network.pair, torch.cat([own, other, own * other, network.distance.weight[bin_of]]))
            quick = other @ network.quick(own) / own.numel() ** 0.5
            torch.testing.assert_close(link, mention + feed_forward(network.mention, other) + quick + pair)


@pytest.mark.parametrize("singletons", [False, True])
def test_the_loss_is_minus_log_p_of_all_right_options(singletons):
    scores = torch.tensor([[0.5, -1.0], [1.5, 0.3], [-0.2, 9.0]])  # the last span is none
    allowed = torch.tensor([[True, True], [True, True], [True, False]])
    ranking = Ranking(  # words 0, 1 and 2 were kept, the spans of two words were not
        torch.tensor([0, 1, 2]),
        torch.tensor([1, 2, 3]),
        scores[:, 0],
        torch.tensor([[1, 2], [0, 2], [0, 1]]),
        torch.tensor([[-torch.inf, -torch.inf], [0.7, -torch.inf], [0.1, -0.4]]),
    )
    mentions = [(torch.tensor([0, 2]), torch.tensor([1, 3]), torch.tensor([7, 7]))]
    loss = coreference_loss(scores, allowed, [ranking], [3], mentions, singletons)
    e = torch.tensor([0.5, 1.5, 0.7, -0.2, 0.1, -0.4]).exp().tolist()
    if singletons:  # no mention, new, links
        options = [(e[0], 1 + e[0]), (1, 1 + e[1] + e[2]), (e[4], 1 + e[3] + e[4] + e[5])]
    else:
        options = [(1, 1), (1, 1 + e[2]), (e[4], 1 + e[4] + e[5])]
    options += [(1, 1 + torch.tensor(left).exp().item()) for left in (-1.0, 0.3)]  # what was not kept is no mention
    expected = -sum(torch.tensor(right / every).log().item() for right, every in options)
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_clusters_follow_the_best_links():
    no = -torch.inf
    ranking = Ranking(
        torch.arange(4),
        torch.arange(4) + 1,
        torch.tensor([-1.0, 2.0, 0.5, 1.0]),
        torch.tensor([[1], [0], [0], [1]]),
        torch.tensor([[no], [1.0], [3.0], [0.9]]),
    )
    assert decode_clusters(ranking, singletons=True) == [1, 0, 1, 2]
    assert decode_clusters(ranking, singletons=False) == [0, 0, 0, 0]


# -------------------------------------------------------------------------------------------------------------- head


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_padding_and_batch_order_change_nothing(placement, tokenizer):
    model = build(placement)
    with torch.no_grad():
        alone = [model(**batch_of([document], tokenizer)) for document in DOCUMENTS]
        for order in ((0, 1, 2), (2, 0, 1)):
            batch = batch_of([DOCUMENTS[number] for number in order], tokenizer)
            wider = {name: F.pad(batch[name], (0, 3, 0, 2)) for name in ("input_ids", "attention_mask")}
            wider["char_ids"] = F.pad(batch["char_ids"], (0, 0, 0, 3, 0, 2))
            together = model(**wider, labels=batch["labels"])
            assert together.loss.item() == pytest.approx(sum(one.loss.item() for one in alone) / 3, rel=1e-5)
            for row, number in enumerate(order):
                count = alone[number].spans.shape[1]
                assert torch.equal(together.spans[row, :count], alone[number].spans[0])
                torch.testing.assert_close(
                    together.mention_scores[row, :count], alone[number].mention_scores[0], atol=TOLERANCE, rtol=0
                )
                found = together.predictions[row].numpy()
                assert predicted_clusters(found) == predicted_clusters(alone[number].predictions[0].numpy())
                assert (together.spans[row, count:] == IGNORED).all()


def test_sentences_read_in_groups_are_sentences_read_together(tokenizer, monkeypatch):
    model = build()
    batch = batch_of(DOCUMENTS, tokenizer)
    with torch.no_grad():
        expected = model(**batch)
        monkeypatch.setattr("modeling_elmo.coreference_elmo.TOKENS_AT_ONCE", 1)
        monkeypatch.setattr("modeling_elmo.coreference_elmo.WORDS_AT_ONCE", 2)
        monkeypatch.setattr("modeling_elmo.coreference_elmo.SPANS_AT_ONCE", 2)
        found = model(**batch)
    assert torch.equal(found.predictions, expected.predictions)
    torch.testing.assert_close(found.loss, expected.loss)


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("frozen", [True, False])
def test_one_step_moves_every_trainable_parameter_and_no_other(placement, frozen, tokenizer):
    model = build(placement, freeze_bilm=frozen, train_word_vectors=not frozen, mix_l2=0.1, spans_per_word=1.0).train()
    long = Document("long", "0", [["He", "left", "her", "at", "the", "bank"]] * 20, [[(0, 1), (6, 7), (108, 109)]])
    batch = batch_of([*DOCUMENTS, long], tokenizer)  # long enough for every bin of distances
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(2):  # the mixes' first gradients are zero where all layers weigh the same
        optimizer.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()
    still = {name for name, parameter in model.named_parameters() if torch.equal(parameter, before[name])}
    fixed = {name for name in before if name.startswith("elmo.")} if frozen else set()
    assert still == fixed | ({"word_embeddings.weight"} if frozen else set())


@pytest.mark.parametrize("singletons", [False, True])
def test_gradients_go_through_the_spans_that_were_chosen(singletons, tokenizer):
    model = build("none", predict_singletons=singletons).train()
    model(**batch_of(DOCUMENTS[:2], tokenizer)).loss.backward()
    for name in ("char_cnn.convolution.weight", "encoder.forward_layers.0.input_gates.weight"):
        assert model.get_parameter(name).grad.abs().sum() > 0
    for name in ("ranking.mention.first.weight", "ranking.pair.first.weight", "ranking.quick.weight"):
        assert (model.get_parameter(name).grad.abs().sum(0) > 0).float().mean() > 0.9  # all parts of the features


def test_layers_given_are_layers_computed(tokenizer):
    model = build()
    batch = batch_of(DOCUMENTS, tokenizer)
    with torch.no_grad():
        flat = {name: batch[name].flatten(0, 1) for name in ("char_ids", "attention_mask")}
        layers = model.bilm_layers(**flat).unflatten(0, batch["input_ids"].shape[:2])
        torch.testing.assert_close(model(**batch, bilm_layers=layers).loss, model(**batch).loss)


@pytest.mark.parametrize("placement", ["none", "both"])
def test_a_saved_head_has_the_same_weights_and_clusters(placement, tokenizer, tmp_path):
    model = build(placement)
    model.save_pretrained(tmp_path)
    loaded = ElmoForCoreferenceResolution.from_pretrained(tmp_path)
    for name, parameter in loaded.named_parameters():
        assert torch.equal(parameter, model.get_parameter(name)), name
    batch = batch_of(DOCUMENTS, tokenizer)
    with torch.no_grad():
        found, expected = loaded(**batch), model(**batch)
    assert torch.equal(found.predictions, expected.predictions)
    torch.testing.assert_close(found.mention_scores, expected.mention_scores, atol=TOLERANCE, rtol=0)


CLEAN_PROCESS = """
    import json
    import sys

    folder, sentences = sys.argv[1], json.loads(sys.argv[2])

    from transformers import AutoTokenizer
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    head = get_class_from_dynamic_module("modeling_elmo.ElmoForCoreferenceResolution", folder)
    model = head.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    print(json.dumps(model.clusters(sentences, tokenizer)))
"""


def test_a_folder_loads_by_its_own_code_in_a_process_without_the_package(tokenizer, tmp_path):
    model, sentences = build(), DOCUMENTS[0].sentences
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    printed = run_without_package(CLEAN_PROCESS, tmp_path / "model", json.dumps(sentences), folder=tmp_path)
    found = [[tuple(mention) for mention in mentions] for mentions in json.loads(printed)]
    assert found == model.clusters(sentences, tokenizer)


def test_clusters_are_spans_of_the_documents_words(tokenizer):
    model = build().train()
    clusters = model.clusters(DOCUMENTS[1].sentences, tokenizer)
    assert model.training
    mentions = [mention for mentions in clusters for mention in mentions]
    assert len(set(mentions)) == len(mentions) > 0
    for first, end in mentions:
        assert 0 <= first < end <= 3 or 3 <= first < end <= 8
    assert not any(cross(*pair) for pair in itertools.combinations(mentions, 2))


@pytest.mark.parametrize("sentences", [[], [[], []], ["He left .", "She saw him ."]], ids=str)
def test_what_is_no_document_of_words_is_refused(sentences, tokenizer):
    with pytest.raises(ValueError, match="`sentences` must be lists of words, not all empty"):
        build().clusters(sentences, tokenizer)


def test_a_batch_may_have_a_document_without_words(tokenizer):
    model = build()
    batch = batch_of(DOCUMENTS[:1], tokenizer)
    inputs = {name: torch.cat([batch[name], torch.zeros_like(batch[name])]) for name in batch if name != "labels"}
    labels = torch.cat([batch["labels"], torch.full_like(batch["labels"], IGNORED)])
    output = model(**inputs, labels=labels)
    assert output.loss.isfinite()
    assert (output.predictions[1] == IGNORED).all()
    empty = {name: torch.zeros_like(batch[name]) for name in batch if name != "labels"}
    assert model(**empty).predictions.shape == (1, 0, 3)


def test_sentences_without_their_document_are_refused(tokenizer):
    inputs = tokenizer(["He left .", "She did not ."], padding=True, return_tensors="pt")
    with pytest.raises(ValueError, match=r"\(documents, sentences, words, characters\)"):
        build()(**inputs)


@pytest.mark.parametrize("mention", [(0, 0, 1), (8, 10, 0), (-1, 2, 0), (0, 1, -5)])
def test_mentions_that_are_none_are_refused(mention, tokenizer):
    batch = batch_of(DOCUMENTS[:1], tokenizer)
    batch["labels"] = torch.tensor([[mention]])
    with pytest.raises(ValueError, match=r"`labels` must be .* mentions in a document of 9 words; got \("):
        build()(**batch)


@pytest.mark.parametrize(("name", "value"), [("max_span_width", 0), ("spans_per_word", 0.0), ("max_antecedents", 0)])
def test_sizes_that_cannot_be_built_are_refused_by_name(name, value):
    with pytest.raises(StrictDataclassError, match=f"`{name}` must be"):
        ElmoConfig(**{name: value})


# Peak memory of reading documents of several lengths, beyond what the process had before, in megabytes.
PEAK_MEMORY = """
    import resource

    import torch

    from modeling_elmo import ElmoConfig, ElmoForCoreferenceResolution, ElmoTokenizer

    model = ElmoForCoreferenceResolution(
        ElmoConfig(elmo_placement="none", head_dim=10, head_layers=1, head_char_filters=20, max_antecedents=10)
    ).eval()
    tokenizer = ElmoTokenizer()
    peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    model.clusters([["He", "left"]] * 100, tokenizer)
    before = peak()
    for sentences in (100, 400):
        inputs = tokenizer([["He", "left"] * 20] * sentences, is_split_into_words=True, return_tensors="pt")
        with torch.no_grad():
            model(**{name: tensor[None] for name, tensor in inputs.items()})
        print(peak() - before)
"""


def test_memory_grows_with_the_length_of_a_document_not_with_its_square():
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PEAK_MEMORY)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    short, long = map(float, done.stdout.split())
    assert long < 4.5 * max(short, 30), f"4,000 words took {short:.0f} MB, 16,000 words {long:.0f} MB"


# --------------------------------------------------------------------------------------------------------- learning


def write_documents(path: Path) -> Path:
    """Ten documents in which someone comes back as a pronoun, a place as its name, and a friend does not."""
    people = [("Anna", "she"), ("Boris", "he"), ("Clara", "she"), ("David", "he"), ("Emma", "she")]
    with path.open("w") as file:
        for number, ((name, pronoun), town) in enumerate(itertools.product(people, ("Oslo", "Rome"))):
            sentences = [f"{name} lives in New {town} .", f"There {pronoun} met a friend .", f"New {town} is old ."]
            clusters = [[(0, 1), (7, 8)], [(3, 5), (12, 14)], [(9, 11)]]
            words = [sentence.split() for sentence in sentences]
            write_document(file, Document(f"document {number}", "0", words, clusters))
    return path


@pytest.mark.parametrize("singletons", [True, False])
def test_ten_documents_are_learned_by_heart(singletons, tmp_path):
    data = write_documents(tmp_path / "data.conll")
    if not singletons:
        documents = [
            document._replace(clusters=without_singletons(document.clusters)) for document in read_documents(data)
        ]
        with data.open("w") as file:
            for document in documents:
                write_document(file, document)
    vectors = tmp_path / "vectors.txt"
    words = "lives in new there he she met a friend is old oslo rome .".split()
    vectors.write_text("".join(f"{word} {n % 3} {n % 4} {n % 5}\n" for n, word in enumerate(words)))
    results = finetune.finetune(
        [
            *f"--task coref --elmo_placement none --train_file {data} --validation_file {data}".split(),
            *f"--word_vectors {vectors} --output_dir {tmp_path / 'out'} --num_train_epochs 12".split(),
            *"--learning_rate 0.005 --disable_tqdm true --head_overrides head_dim=16 head_dropout=0.1".split(),
            *f"head_char_filters=16 spans_per_word=0.8 predict_singletons={singletons}".split(),
        ]
    )
    assert results is not None
    assert results["eval_conll_f1"] >= 0.99
    assert results["eval_without_singletons_conll_f1"] >= 0.99
    # The file of predictions is one of the data's own format.
    gold, found = read_documents(data), read_documents(tmp_path / "out" / "predictions.conll")
    assert [document.sentences for document in found] == [document.sentences for document in gold]
    scores = coreference_scores([document.clusters for document in gold], [document.clusters for document in found])
    assert scores["conll_f1"] == pytest.approx(results["eval_conll_f1"])
    tokenizer = ElmoTokenizer.from_pretrained(tmp_path / "out")
    model = ElmoForCoreferenceResolution.from_pretrained(tmp_path / "out")
    clusters = model.clusters(
        [["Emma", "lives", "in", "New", "Oslo", "."], ["There", "she", "met", "a", "friend", "."]], tokenizer
    )
    assert [(0, 1), (7, 8)] in clusters


def test_batches_of_documents_have_their_sentences_side_by_side(tokenizer):
    batch = batch_of(DOCUMENTS, tokenizer)
    assert batch["input_ids"].shape == (3, 3, 7)
    assert batch["char_ids"].shape == (3, 3, 7, 50)
    assert batch["attention_mask"].sum(-1).tolist() == [[6, 7, 0], [5, 2, 7], [5, 0, 0]]
    assert batch["labels"].tolist()[2] == [[0, 1, 0], *[[IGNORED] * 3] * 3]
    assert examples_of(DOCUMENTS).lengths() == [7, 7, 5]
    assert batch_of(DOCUMENTS[2:], tokenizer)["input_ids"].shape == (1, 1, 5)


# ------------------------------------------------------------------------------------------------------------- files

ONTONOTES = """\
#begin document (bc/cctv/00/cctv_0000); part 003
bc/cctv/00/cctv_0000   3   0    The   DT   (NP*   -   -   -   Speaker   *   -   (1|(0
bc/cctv/00/cctv_0000   3   1   bank   NN       *   -   -   -   Speaker   *   -      0)
bc/cctv/00/cctv_0000   3   2     's   PO      *)   -   -   -   Speaker   *   -      -
bc/cctv/00/cctv_0000   3   3   head   NN      *)   -   -   -   Speaker   *   -      1)

bc/cctv/00/cctv_0000   3   0     He   PR   (NP*)   -   -   -   Speaker   *   -   (1)|(2)
bc/cctv/00/cctv_0000   3   1     is   VB   (VP*)   -   -   -   Speaker   *   -     -

#end document
"""


def test_nested_mentions_and_several_in_a_cell_are_read(tmp_path):
    path = tmp_path / "data.conll"
    path.write_text(ONTONOTES.replace("(1)|(2)", "(1)"))
    (document,) = read_documents(path)
    assert document.name == "bc/cctv/00/cctv_0000"
    assert document.part == "003"
    assert document.sentences == [["The", "bank", "'s", "head"], ["He", "is"]]
    assert document.clusters == [[(0, 2)], [(0, 4), (4, 5)]]


def test_tabs_and_an_empty_last_column_are_read(tmp_path):
    path = tmp_path / "data.conll"
    rows = [("my", "(1|(0)"), ("no-break\u00a0space", ""), ("landlord", "1)")]
    lines = ["\t".join(["x", "0", str(n), word, *"_" * 8, cell]) for n, (word, cell) in enumerate(rows)]
    path.write_text("#begin document (x); part 0\n" + "\n".join(lines) + "\n#end document\n", encoding="utf-8")
    (document,) = read_documents(path)
    assert document.sentences == [["my", "no-break\u00a0space", "landlord"]]
    assert document.clusters == [[(0, 1)], [(0, 3)]]


def test_documents_written_are_documents_read(tmp_path):
    nested = Document("n", "1", [["a", "b", "c"], ["d"]], [[(0, 1), (0, 3), (1, 2)], [(0, 2)], [(1, 3), (3, 4)]])
    documents = [
        *(document._replace(sentences=[s for s in document.sentences if s]) for document in DOCUMENTS),
        nested,
    ]
    file = io.StringIO()
    for document in documents:
        write_document(file, document)
    (tmp_path / "data.conll").write_text(file.getvalue())
    again = read_documents(tmp_path / "data.conll")
    assert [document._replace(clusters=sorted(document.clusters)) for document in documents] == again


def conll(*cells: str, end: str = "#end document\n") -> str:
    rows = "".join(f"x 0 {number} word - - - - - - - - {cell}\n" for number, cell in enumerate(cells))
    return f"#begin document (x); part 0\n{rows}{end}"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (conll("(1", "-"), "line 1: `(1` begins a mention that never ends"),
        (conll("(1", "1)", "1)"), "line 4: `1)` ends a mention of cluster 1 that has not begun"),
        (conll("(1", "(2", "2)", "(3"), "line 1: `(1` begins"),
        (conll("(1", "2)"), "line 3: `2)` ends a mention of cluster 2 that has not begun"),
        (conll("1"), "line 2: not brackets of mentions: '1'"),
        (conll("(1(2"), "line 2: not brackets of mentions: '(1(2'"),
        (conll("(1)|"), "line 2: not brackets of mentions: '(1)|'"),
        (conll(), "line 1: the document 'x' is empty"),
        (conll("-", end=""), "the document that begins in line 1 has no `#end document`"),
        (conll("-", end="") + conll("-"), "line 3: expected words between `#begin document` and `#end document`"),
        ("x 0 0 word - -\n", "line 1: expected words between `#begin document`"),
        ("#end document\n", "line 1: expected words between `#begin document`"),
        ("#begin document (x); part 0\nx 0 word\n#end document\n", "line 2: 3 columns; expected document, part"),
        ("", "empty, there are no examples"),
    ],
)
def test_bad_files_are_one_clear_line_with_its_place(content, message, tmp_path, capsys):
    path = tmp_path / "bad.conll"
    path.write_text(content)
    arguments = f"--task coref --elmo_placement none --train_file {path} --validation_file {path} --output_dir x"
    assert finetune.main(arguments.split()) == finetune.BAD_INPUT
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert str(path) in line
    assert message in line


RECORD = {"doc_key": "x", "sentences": [["He", "left"], ["his", "old", "bank"]], "clusters": [[[0, 0], [2, 2]]]}


@pytest.mark.parametrize("clusters", [[[[0, 0], [2, 2]], [[2, 4]]], []])
def test_json_lines_have_the_last_words_of_mentions(clusters, tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text(json.dumps({**RECORD, "clusters": clusters}) + "\n")
    (document,) = read_documents(path)
    assert document.sentences == RECORD["sentences"]
    assert document.clusters == ([[(0, 1), (2, 3)], [(2, 5)]] if clusters else [])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clusters": [[[0, 9]]]}, "words 0 to 9 are not words of a document of 5"),
        ({"clusters": [[[1, 0]]]}, "words 1 to 0 are not words"),
        ({"clusters": [[0, 1]]}, "line 2: not the data of this task: TypeError"),
        ({"sentences": [[]]}, "the document 'x' is empty"),
        ({"sentences": [[1]]}, "`sentences` must be lists of words"),
    ],
)
def test_bad_records_are_one_clear_line_with_their_place(change, message, tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text(json.dumps(RECORD) + "\n" + json.dumps({**RECORD, **change}) + "\n")
    with pytest.raises(ElmoError) as error:
        read_documents(path)
    assert f"{path}, line 2: " in str(error.value)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_mentions_of_two_clusters_that_cross_are_read_and_said(tmp_path, caplog):
    (tmp_path / "data.conll").write_text(conll("(1", "(2", "1)", "2)"))
    (document,) = read_documents(tmp_path / "data.conll")
    assert document.clusters == [[(0, 3)], [(1, 4)]]
    assert "mentions cross, at least one of which is not learned: words 0 to 2 and words 1 to 3" in caplog.text


def test_a_data_set_of_the_hub_has_the_columns_of_json_lines(tmp_path):
    Dataset.from_list([{"sentences": RECORD["sentences"], "chains": RECORD["clusters"]}]).save_to_disk(
        tmp_path / "data"
    )
    settings = TaskSettings(task="coref", dataset_name=str(tmp_path / "data"), columns=["clusters=chains"])
    (row,) = read_part(TASK, settings, training=True)
    assert row["clusters"] == [[[0, 1], [2, 3]]]
    with pytest.raises(ElmoError, match="row 0: no column `clusters` for `clusters`; the columns are sentences"):
        read_part(TASK, TaskSettings(task="coref", dataset_name=str(tmp_path / "data")), training=True)


def test_parts_of_documents_keep_their_sentences_and_mentions(tmp_path):
    document = Document(
        "x", "0", [["a", "b"], ["c"], ["d", "e", "f", "g"], ["h"]], [[(0, 2), (2, 3), (4, 6)], [(7, 8)]]
    )
    parts = list(cut_document(document, 3))
    assert [part.sentences for part in parts] == [[["a", "b"], ["c"]], [["d", "e", "f", "g"]], [["h"]]]
    assert [part.clusters for part in parts] == [[[(0, 2), (2, 3)]], [[(1, 3)]], [[(0, 1)]]]
    assert list(cut_document(document, 100)) == [document]
    path = write_documents(tmp_path / "data.conll")
    settings = TaskSettings(task="coref", document_words=12)
    assert len(read_part(TASK, settings, True, path)) == 20
    assert len(read_part(TASK, settings, False, path)) == 10


# ------------------------------------------------------------------------------------------------------------ scores


def clusters_from(text: str) -> list[list[tuple[int, int]]]:
    """`abc de`: a letter is a mention, a group a cluster."""
    return [[(ord(letter), ord(letter) + 1) for letter in group] for group in text.split()]


@pytest.mark.parametrize(
    ("metric", "gold", "predicted", "recall", "precision"),
    [
        # Vilain et al. (1995): links that are missing, and links that are too many.
        ("muc", "abcd", "ab cd", 2 / 3, 1),
        ("muc", "ab cd", "abcd", 1, 2 / 3),
        ("muc", "abc", "ac", 1 / 2, 1),
        # Bagga and Baldwin (1998), figures 1 to 3: MUC finds one wrong link as bad as the other.
        ("muc", "12345 67 89ABC", "12345 6789ABC", 1, 9 / 10),
        ("muc", "12345 67 89ABC", "1234589ABC 67", 1, 9 / 10),
        ("b_cubed", "12345 67 89ABC", "12345 6789ABC", 1, 16 / 21),
        ("b_cubed", "12345 67 89ABC", "1234589ABC 67", 1, 7 / 12),
        # Luo (2005), table 1: the same, all mentions in one cluster, and each in its own.
        ("ceaf", "12345 67 89ABC", "12345 6789ABC", (1 + 10 / 12) / 3, (1 + 10 / 12) / 2),
        ("ceaf", "12345 67 89ABC", "1234589ABC 67", (10 / 15 + 1) / 3, (10 / 15 + 1) / 2),
        ("ceaf", "12345 67 89ABC", "123456789ABC", 10 / 17 / 3, 10 / 17),
        ("ceaf", "12345 67 89ABC", "1 2 3 4 5 6 7 8 9 A B C", 4 / 3 / 3, 4 / 3 / 12),
        # Pradhan et al. (2014), figure 1, of the CoNLL scorer: mentions that only one side has.
        ("muc", "abc defg", "ab cd fghi", 2 / 5, 2 / 5),
        ("b_cubed", "abc defg", "ab cd fghi", 35 / 84, 4 / 8),
        ("ceaf", "abc defg", "ab cd fghi", 1.3 / 2, 1.3 / 3),
        ("mention", "abc defg", "ab cd fghi", 6 / 7, 6 / 8),
        ("b_cubed", "abc", "", 0, 0),
    ],
)
def test_scores_are_those_of_the_papers_examples(metric, gold, predicted, recall, precision):
    scores = coreference_scores([clusters_from(gold)], [clusters_from(predicted)])
    assert scores[f"{metric}_recall"] == pytest.approx(recall)
    assert scores[f"{metric}_precision"] == pytest.approx(precision)
    f1 = 2 * recall * precision / (recall + precision) if recall + precision else 0
    assert scores[f"{metric}_f1"] == pytest.approx(f1)


def test_the_mean_is_of_three_metrics_and_documents_count_together():
    gold, predicted = ["abc defg", "ab"], ["ab cd fghi", "ab"]
    scores = coreference_scores(*([clusters_from(text) for text in side] for side in (gold, predicted)))
    assert scores["muc_recall"] == pytest.approx(3 / 6)
    assert scores["b_cubed_recall"] == pytest.approx((35 / 12 + 2) / 9)
    assert scores["ceaf_recall"] == pytest.approx(2.3 / 3)
    assert scores["conll_f1"] == pytest.approx((scores["muc_f1"] + scores["b_cubed_f1"] + scores["ceaf_f1"]) / 3)


# ------------------------------------------------------------------------------------------------------------- rules

# Mean F1 of the rules on LitBank's development part: over mentions found by rule, and over the true ones, which a
# system that reads text does not have.
RULES = {
    ("same_head_word", "found"): 0.441,
    ("previous_of_gender", "found"): 0.480,
    ("same_head_word", "true"): 0.636,
    ("previous_of_gender", "true"): 0.688,
}


@pytest.mark.parametrize("mentions", ["found", "true"])
@pytest.mark.parametrize("rule", [same_head_word, previous_of_gender])
def test_rules_on_litbank(rule, mentions, shared):
    folder = shared / "data" / "coref"
    if not folder.is_dir():
        pytest.skip(f"{folder} not found")
    nouns = frequent_nouns(read_documents(folder / "litbank.train.conll"))
    documents = read_documents(folder / "litbank.dev.conll")
    found = [
        rule(
            document,
            find_mentions(document.sentences, nouns)
            if mentions == "found"
            else sorted(itertools.chain(*document.clusters)),
        )
        for document in documents
    ]
    scores = coreference_scores([document.clusters for document in documents], found)
    print(f"\n{rule.__name__}, mentions {mentions}: " + ", ".join(f"{n} {v:.3f}" for n, v in scores.items()))
    assert scores["conll_f1"] == pytest.approx(RULES[rule.__name__, mentions], abs=5e-4)


def test_clusters_that_share_a_mention_are_one_and_no_mention_is_there_twice(tmp_path, caplog):
    (tmp_path / "a.conll").write_text(conll("(1)|(2)", "(1)", "(2)", "(3)|(3)"))
    (document,) = read_documents(tmp_path / "a.conll")
    assert document.clusters == [[(0, 1), (1, 2), (2, 3)], [(3, 4)]]
    assert "words 0 to 0 are a mention of two clusters, which become one" in caplog.text


def test_data_sets_are_cut_for_training_alone_and_texts_are_no_sentences(tmp_path):
    words = [["a", "b", "."], ["c", "d", "."]]
    Dataset.from_list([{"sentences": words, "clusters": [[[0, 0], [3, 3]]]}]).save_to_disk(tmp_path / "data")
    settings = TaskSettings(task="coref", dataset_name=str(tmp_path / "data"), document_words=3)
    assert len(read_part(TASK, settings, training=True)) == 2
    assert len(read_part(TASK, settings, training=False)) == 1
    (tmp_path / "b.jsonl").write_text(json.dumps({"tokens": ["The cat ."], "clusters": []}) + "\n")
    with pytest.raises(ElmoError, match="`sentences` must be lists of words"):
        read_documents(tmp_path / "b.jsonl", {"sentences": "tokens"})
