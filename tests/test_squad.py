"""Question answering: the reader's parts, its head, SQuAD's files and scores, and a run from files to answers."""

import itertools
import json
import os
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from clean_process import run_without_package
from huggingface_hub.errors import StrictDataclassError
from safetensors.torch import load_file
from test_heads import PLACEMENTS, SIZES, TOLERANCE, WORDS
from torch import nn
from transformers import (
    AutoModelForQuestionAnswering,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
)

from modeling_elmo import ElmoConfig, ElmoForQuestionAnswering, ElmoModel, ElmoTokenizer
from modeling_elmo.bilm_elmo import IGNORED
from modeling_elmo.files import ElmoError
from modeling_elmo.reading_elmo import WordGru, best_spans, windows_of
from modeling_elmo.tagging_elmo import IMPOSSIBLE
from training import finetune
from training.settings import TaskSettings
from training.squad import QuestionAnswering, answer_scores, best_answers, exact_match, word_f1
from training.task_data import read_part

QUESTIONS = ["who lends money ?", "where ?", "what is by the river"]
CONTEXTS = ["The bank lends money .", "river", "We sat by a river and the bank was closed , so we read ."]


@pytest.fixture
def tokenizer() -> ElmoTokenizer:
    return ElmoTokenizer(vocab=WORDS, lowercase_fallback=True)


def build(placement: str = "both", **changes) -> ElmoForQuestionAnswering:
    torch.manual_seed(0)
    return ElmoForQuestionAnswering(ElmoConfig(**{**SIZES, "elmo_placement": placement, **changes})).eval()


def encode(tokenizer: ElmoTokenizer, order=(0, 1, 2), **kwargs) -> dict[str, torch.Tensor]:
    texts = ([column[index] for index in order] for column in (QUESTIONS, CONTEXTS))
    return dict(tokenizer(*texts, padding=True, return_tensors="pt", **kwargs))


def in_context(tokenizer: ElmoTokenizer) -> list[slice]:
    """Where the contexts' words are in the rows."""
    pairs = zip(QUESTIONS, CONTEXTS, strict=True)
    return [slice(len(first.split()) + 3, len(first.split()) + 3 + len(second.split())) for first, second in pairs]


# ------------------------------------------------------------------------------------------------------------- parts


def test_the_gru_equals_torchs_in_values_and_gradients():
    torch.manual_seed(0)
    ours, theirs = WordGru(4, 3), nn.GRU(4, 3, batch_first=True, bidirectional=True)
    pairs = []
    for layer, suffix in ((ours.forward_layers[0], ""), (ours.backward_layers[0], "_reverse")):
        names = (("weight_ih", layer.input_gates.weight), ("bias_ih", layer.input_gates.bias))
        for name, parameter in (*names, ("weight_hh", layer.recurrent_gates.weight)):
            pairs.append((parameter, getattr(theirs, f"{name}_l0{suffix}")))
        with torch.no_grad():
            getattr(theirs, f"bias_hh_l0{suffix}").zero_()
    with torch.no_grad():
        for own, other in pairs:
            other.copy_(own)
    features = torch.randn(3, 6, 4, requires_grad=True)
    lengths = torch.tensor([6, 2, 4])
    mask = torch.arange(6) < lengths[:, None]
    packed = nn.utils.rnn.pack_padded_sequence(features, lengths, batch_first=True, enforce_sorted=False)
    expected, _ = nn.utils.rnn.pad_packed_sequence(theirs(packed)[0], batch_first=True)
    got = ours(features, mask)
    torch.testing.assert_close(got, expected)
    parameters = list(zip(*pairs, strict=True))
    found, wanted = (
        torch.autograd.grad(output.square().sum(), [features, *own])
        for output, own in ((got, parameters[0]), (expected, parameters[1]))
    )
    torch.testing.assert_close(found, wanted)
    with torch.no_grad():
        torch.testing.assert_close(ours(features, mask), got)
    assert ours(features, torch.zeros_like(mask)).abs().sum() == 0


def test_the_gru_runs_under_autocast():
    gru, features = WordGru(4, 3), torch.randn(2, 5, 4)
    mask = torch.ones(2, 5, dtype=torch.bool)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = gru(features, mask)
    torch.testing.assert_close(found, gru(features, mask), atol=0.05, rtol=0)  # bfloat16 has 8 bits
    found.sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in gru.parameters())


@pytest.mark.parametrize("is_training", [True, False])
def test_the_reader_runs_under_autocast(is_training, tokenizer):
    model = build().train(is_training)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = model(**encode(tokenizer))
    assert output.start_logits[:, in_context(tokenizer)[0]].isfinite().all()


def test_words_attend_to_like_words_before_anything_is_learned():
    model = build("both")
    similarity, elmo = model.reader.similarity, model.config.hidden_size
    assert similarity.product.tolist() == pytest.approx([1.0] * 12 + [elmo**-0.5] * elmo)
    assert torch.equal(model.reader.self_similarity.product, torch.ones(12))
    torch.manual_seed(0)
    words = torch.randn(1, 4, 12)
    with torch.no_grad():
        model.reader.self_similarity.second.weight.zero_()
        torch.testing.assert_close(model.reader.self_similarity(words, words), words @ words.transpose(1, 2))


def test_the_best_span_is_the_best_of_all_within_the_limit():
    torch.manual_seed(0)
    starts, ends = torch.randn(20, 9), torch.randn(20, 9)
    for longest in (1, 3, 50):
        found = torch.stack(best_spans(starts, ends, longest), dim=1)
        for row, (first, last, score) in enumerate(found.tolist()):
            allowed = [(i, j) for i in range(9) for j in range(i, min(i + longest, 9))]
            best = max(allowed, key=lambda span: starts[row, span[0]] + ends[row, span[1]])
            assert (first, last) == best
            assert score == pytest.approx((starts[row, best[0]] + ends[row, best[1]]).item())


@pytest.mark.parametrize(("words", "longest", "overlap"), [(1, 5, 2), (5, 5, 2), (6, 5, 2), (23, 5, 4), (20, 5, 0)])
def test_windows_cover_a_text_and_overlap(words, longest, overlap):
    windows = windows_of(words, longest, overlap)
    assert [word for first, last in windows for word in range(first, last)][-1] == words - 1
    assert windows[0][0] == 0
    assert all(first < last <= first + longest for first, last in windows)
    assert all(after[0] == before[1] - overlap for before, after in itertools.pairwise(windows))
    assert len(windows) == 1 + max(0, -(-(words - longest) // (longest - overlap)))  # no window too many


# -------------------------------------------------------------------------------------------------------------- head


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_and_batch_order_change_nothing(placement, side, tokenizer):
    model = build(placement)
    tokenizer.padding_side = side
    order = (2, 0, 1)
    with torch.no_grad():
        whole = model(**encode(tokenizer, order, pad_to_multiple_of=32))
        for row, index in enumerate(order):
            inputs = encode(tokenizer, (index,))
            alone = model(**inputs)
            width = inputs["input_ids"].shape[1]
            begin = 32 - width if side == "left" else 0
            for got, expected in ((whole.start_logits, alone.start_logits), (whole.end_logits, alone.end_logits)):
                torch.testing.assert_close(got[row, begin : begin + width], expected[0], atol=TOLERANCE, rtol=0)
            places = whole.predictions[row, :2] - begin
            assert places.tolist() == alone.predictions[0, :2].tolist()


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("frozen", [True, False])
def test_one_step_moves_every_trainable_parameter_and_no_other(placement, frozen, tokenizer):
    model = build(placement, freeze_bilm=frozen, train_word_vectors=not frozen, mix_l2=0.1).train()
    inputs, words = encode(tokenizer), in_context(tokenizer)
    positions = torch.tensor([place.start for place in words]), torch.tensor([place.stop - 1 for place in words])
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for _ in range(2):  # the mixes' first gradients are zero where all layers weigh the same
        optimizer.zero_grad()
        model(**inputs, start_positions=positions[0], end_positions=positions[1]).loss.backward()
        optimizer.step()
    still = {name for name, parameter in model.named_parameters() if torch.equal(parameter, before[name])}
    fixed = {name for name in before if name.startswith(("elmo.", "word_embeddings."))} if frozen else set()
    assert still == fixed


def test_layers_given_are_layers_computed(tokenizer):
    model, inputs = build(), encode(tokenizer)
    with torch.no_grad():
        layers = model.bilm_layers(inputs["char_ids"], inputs["attention_mask"], inputs["token_type_ids"])
        torch.testing.assert_close(model(**inputs, bilm_layers=layers).end_logits, model(**inputs).end_logits)


@pytest.mark.parametrize("placement", ["none", "both"])
def test_a_saved_heads_weights_are_the_same_bit_by_bit(placement, tokenizer, tmp_path):
    model = build(placement)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForQuestionAnswering.from_pretrained(tmp_path)
    assert type(loaded) is ElmoForQuestionAnswering
    for name, parameter in loaded.named_parameters():
        assert torch.equal(parameter, model.get_parameter(name)), name
        assert parameter.requires_grad == model.get_parameter(name).requires_grad, name
    with torch.no_grad():
        scores = (found(**encode(tokenizer)).start_logits for found in (loaded, model))
        torch.testing.assert_close(*scores, atol=TOLERANCE, rtol=0)


def test_scores_are_the_contexts_alone_and_the_loss_is_their_cross_entropy(tokenizer):
    model, inputs, words = build(), encode(tokenizer), in_context(tokenizer)
    wanted = torch.tensor([words[0].start + 1, IGNORED, words[2].stop - 1])
    output = model(**inputs, start_positions=wanted, end_positions=wanted)
    expected = 0.0
    for logits in (output.start_logits, output.end_logits):
        for row, place in enumerate(words):
            inside = torch.zeros(logits.shape[1], dtype=torch.bool)
            inside[place] = True
            assert (logits[row, ~inside] == IMPOSSIBLE).all()
            assert (logits[row, inside].abs() < 100).all()
            if row != 1:
                expected -= logits[row, place].log_softmax(0)[wanted[row] - place.start].item() / 4
    assert output.loss.item() == pytest.approx(expected, rel=1e-5)
    none = torch.full((3,), IGNORED)
    assert model(**inputs, start_positions=none, end_positions=none).loss == 0


def test_empty_texts_are_read(tokenizer):
    model = build()
    texts = [[], ["the"], []], [["the"], [], []]
    alone = model(**tokenizer([[]], [["the"]], is_split_into_words=True, padding=True, return_tensors="pt"))
    output = model(**tokenizer(*texts, is_split_into_words=True, padding=True, return_tensors="pt"))
    assert output.start_logits.isfinite().all()
    torch.testing.assert_close(output.start_logits[0, 3], alone.start_logits[0, 3], atol=TOLERANCE, rtol=0)
    assert output.predictions[:, 0].tolist() == [3, IGNORED, IGNORED]
    nothing = model(**tokenizer([[]], [[]], is_split_into_words=True, padding=True, return_tensors="pt"))
    assert nothing.predictions.tolist() == [[IGNORED] * 3]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, t: m(**t(["a"], return_tensors="pt")), "reads pairs"),
        (lambda m, t: m(**encode(t), **positions(1)), "`start_positions` must be positions of words of the context"),
        (lambda m, t: m(**encode(t), **positions(99)), "or -100; got 99"),
        (lambda m, t: m.answer(" ", "the bank", t), "`question` must have words, got ' '"),
        (lambda m, t: m.answer("who ?", "", t), "`context` must have words, got ''"),
    ],
)
def test_what_cannot_work_is_named(call, message, tokenizer):
    with pytest.raises(ValueError, match=message):
        call(build(), tokenizer)


def positions(place: int) -> dict[str, torch.Tensor]:
    return {name: torch.tensor([place, IGNORED, IGNORED]) for name in ("start_positions", "end_positions")}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_answer_words": 0}, "`max_answer_words` must be at least 1"),
        ({"max_context_words": 10, "context_overlap": 10}, "`context_overlap` must be below"),
    ],
)
def test_sizes_that_cannot_be_built_are_refused_by_name(changes, message):
    with pytest.raises(StrictDataclassError, match=message):
        ElmoConfig(**changes)


# ----------------------------------------------------------------------------------------------------------- answers

CONTEXT = "  Zoë’s café—the “Löwe”—isn't\tcheap:\n 5€ a cup… 🙂 (in 1999)."


def test_an_answer_is_the_text_at_its_characters(tokenizer):
    for limit in (1, 2, 17):
        model = build(max_answer_words=limit)
        found = model.answer("how much?", CONTEXT, tokenizer)
        assert found.answer == CONTEXT[found.start : found.end]
        assert 1 <= len(tokenizer.tokenize(found.answer)) <= limit
        inputs = tokenizer("how much?", CONTEXT, return_tensors="pt", return_offsets_mapping=True)
        offsets = inputs.pop("offset_mapping")[0]
        with torch.no_grad():
            output = model(**inputs)
        first, last = output.predictions[0, :2].long().tolist()
        assert (found.start, found.end) == (offsets[first][0], offsets[last][1])
        score = output.start_logits.softmax(1)[0, first] * output.end_logits.softmax(1)[0, last]
        assert found.score == pytest.approx(score.item(), rel=1e-4)


@pytest.mark.parametrize("side", ["right", "left"])
def test_the_best_window_of_a_long_context_wins(side, tokenizer):
    tokenizer.padding_side = side
    model = build(max_context_words=6, context_overlap=2, max_answer_words=3)
    context = " ".join(f"word{n} the bank {n}" for n in range(40))  # 39 windows: more than are read at once
    found = model.answer("who ?", context, tokenizer)
    words = context.split()
    best = (-1e9, "")
    for first, last in windows_of(len(words), 6, 2):
        window = words[first:last]
        with torch.no_grad():
            inputs = tokenizer(["who", "?"], window, is_split_into_words=True, return_tensors="pt")
            start, end, score = model(**inputs).predictions[0].tolist()
        best = max(best, (score, " ".join(window[int(start) - 5 : int(end) - 4])))
    assert found.answer == best[1] == context[found.start : found.end]
    assert 0 < found.score < 1


CLEAN_PROCESS = """
    import sys

    from transformers import AutoModelForQuestionAnswering, AutoTokenizer

    model = AutoModelForQuestionAnswering.from_pretrained(sys.argv[1], trust_remote_code=True)
    tokenizer = AutoTokenizer.from_pretrained(sys.argv[1], trust_remote_code=True)
    print(repr(tuple(model.answer(sys.argv[2], sys.argv[3], tokenizer))))
"""


def test_a_saved_head_answers_in_a_process_without_the_package(tokenizer, tmp_path):
    model = build()
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    printed = run_without_package(CLEAN_PROCESS, tmp_path / "model", "how much?", CONTEXT, folder=tmp_path)
    expected = model.answer("how much?", CONTEXT, tokenizer)
    answer, score, start, end = eval(printed)
    assert (answer, start, end) == (expected.answer, expected.start, expected.end)
    assert score == pytest.approx(expected.score, rel=1e-5)


# ------------------------------------------------------------------------------------------------------------ scores


@pytest.mark.parametrize(
    ("answer", "gold", "exact", "f1"),
    [
        ("Denver Broncos", ["Denver Broncos"], 1, 1),
        ("the Denver Broncos", ["Denver Broncos"], 1, 1),
        ("Denver Broncos.", ["denver broncos"], 1, 1),
        ("An apple a day", ["apple day"], 1, 1),
        ("Denver", ["Denver Broncos"], 0, 2 / 3),
        ("Carolina", ["Denver Broncos"], 0, 0),
        ("Levi's Stadium", ["Santa Clara, California", "Levi's Stadium"], 1, 1),
        ("in Santa Clara", ["Levi's Stadium", "Santa Clara, California"], 0, 2 / 3),
        ("U.S.", ["the US"], 1, 1),
        ("24-10", ["2410"], 1, 1),
        ("24–10", ["24-10"], 0, 0),  # of punctuation only ASCII's is removed
        ("1,000", ["1000"], 1, 1),
        ("  New \t York\n", ["new york"], 1, 1),
        ("theory", ["ory"], 0, 0),  # an article is a word
        ("cat", ["the cat, the cat"], 0, 2 / 3),
        ("to be or not to be", ["to be"], 0, 0.5),
        ("to be or not", ["be to"], 0, 2 / 3),
        ("Café", ["café"], 1, 1),
        ("cafe", ["café"], 0, 0),
        ("Vitamin A", ["vitamin"], 1, 1),
        ("", ["nothing"], 0, 0),
        ("the", ["a"], 1, 0),  # nothing is left of either, and nothing shared
        ("one two three four", ["five", "two three", "three four five six"], 0, 2 / 3),
    ],
)
def test_answers_are_scored_as_the_official_script_does(answer, gold, exact, f1):
    assert max(exact_match(answer, one) for one in gold) == exact
    assert max(word_f1(answer, one) for one in gold) == pytest.approx(f1)
    assert answer_scores({"q": answer}, {"q": gold}) == pytest.approx({"exact_match": exact, "f1": f1})


def test_scores_are_means_over_questions():
    gold = {"a": ["one", "two words"], "b": ["three"]}
    assert answer_scores({"a": "two", "b": "The three"}, gold) == pytest.approx({"exact_match": 0.5, "f1": 5 / 6})


# ----------------------------------------------------------------------------------------------------------- reading

TASK = QuestionAnswering("squad", ElmoForQuestionAnswering, metric="f1")
STORY = "Anna Smith-Jones paid $12.50 in Oslo. She left at noon."


def question(number: int = 0, text: str = "Where ?", answers=(("Oslo", 32),)) -> dict:
    given = [{"text": answer, "answer_start": start} for answer, start in answers]
    return {"id": f"q{number}", "question": text, "answers": given}


def squad_file(path: Path, questions: list[dict], context: str = STORY) -> Path:
    whole = {"version": "1.1", "data": [{"title": "t", "paragraphs": [{"context": context, "qas": questions}]}]}
    path.write_text(json.dumps(whole), encoding="utf-8")
    return path


def settings_with(**head: int) -> TaskSettings:
    return TaskSettings(task="squad", elmo_placement="none", head=head)


def read(path: Path, training: bool = True, **head: int):
    rows = read_part(TASK, settings_with(**head), training, path)
    return rows, TASK.examples(rows, [])


@pytest.mark.parametrize(
    ("answer", "start", "words"),
    [
        ("Oslo", 32, ["Oslo"]),
        ("Jones", 11, ["Smith-Jones"]),  # inside a word: the words that cover it
        ("12.5", 23, ["12.50"]),
        ("nna Smith", 1, ["Anna", "Smith-Jones"]),
        (" paid ", 16, ["paid"]),
        ("Oslo. She", 32, ["Oslo", ".", "She"]),
    ],
)
def test_an_answers_words_cover_it(answer, start, words, tmp_path):
    _, examples = read(squad_file(tmp_path / "a.json", [question(answers=[(answer, start)])]))
    (window,), ((question_words, context_words),) = examples.labels, examples.sequences
    assert question_words == ["Where", "?"]
    assert context_words[window.start - 5 : window.end - 4] == words
    assert window.text(window.start, window.end).split() == " ".join(words).replace("o .", "o.").split()


def test_batches_have_positions_in_their_rows(tmp_path):
    _, examples = read(squad_file(tmp_path / "a.json", [question(), question(1, "Who paid in Oslo ?", [("Anna", 0)])]))
    batch = finetune.Collator(ElmoTokenizer(), TASK.targets)([examples[0], examples[1]])
    assert batch["start_positions"].tolist() == [5 + 6, 8]
    rows = batch["char_ids"][range(2), batch["start_positions"]]
    assert [ElmoTokenizer().char_ids_to_word(row.tolist()) for row in rows] == ["Oslo", "Anna"]


def test_most_annotators_answer_is_learned_and_all_count(tmp_path):
    answers = [("Oslo", 32), ("in Oslo", 29), ("in Oslo", 29)]
    _, examples = read(squad_file(tmp_path / "a.json", [question(answers=answers)]))
    (window,) = examples.labels
    assert window.text(window.start, window.end) == "in Oslo"
    assert TASK.scores(examples, np.array([[11.0, 11.0, 0.5]])) == {"exact_match": 1.0, "f1": 1.0}


def test_windows_are_trained_where_the_answer_is_and_the_best_wins(tmp_path):
    path = squad_file(tmp_path / "a.json", [question()])
    rows, examples = read(path, training=True, max_context_words=5, context_overlap=2)
    assert rows["windows"] == [[[3, 8], [6, 11]]]
    assert [window.start for window in examples.labels] == [8, 5]
    rows, examples = read(path, training=False, max_context_words=5, context_overlap=2)
    assert rows["windows"] == [[[0, 5], [3, 8], [6, 11], [9, 13]]]
    assert [window.start for window in examples.labels] == [IGNORED, 8, 5, IGNORED]
    predicted = np.array([[5, 6, 0.1], [8, 8, 0.9], [6, 6, 0.5], [5, 5, 0.8]])
    assert best_answers(examples.labels, predicted) == {"q0": "Oslo"}


def test_a_hub_data_set_has_the_same_rows(tmp_path):
    path = squad_file(tmp_path / "a.json", [question(), question(1, "When ?", [("noon", 50), ("at noon", 47)])])
    rows, _ = read(path)
    flat = {
        "id": ["q0", "q1"],
        "title": ["t", "t"],
        "text": [STORY] * 2,
        "question": ["Where ?", "When ?"],
        "answers": [
            {"text": ["Oslo"], "answer_start": [32]},
            {"text": ["noon", "at noon"], "answer_start": [50, 47]},
        ],
    }
    datasets.DatasetDict({"train": datasets.Dataset.from_dict(flat)}).save_to_disk(str(tmp_path / "hub"))
    settings = settings_with()
    settings.dataset_name, settings.columns = str(tmp_path / "hub"), ["context=text"]
    assert read_part(TASK, settings, training=True).to_dict() == rows.to_dict()
    settings.columns = []
    with pytest.raises(ElmoError, match=r"hub, row 0: no column `context` for `context`; the columns are id, title"):
        read_part(TASK, settings, training=True)


def changed(**values: object) -> dict:
    return {**question(), **values}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([question(answers=[("Oslo", 33)])], "answer 'Oslo' to question q0 is not at character 33 of its context"),
        ([question(text=" ")], "question of question q0 is empty"),
        ([question(answers=[])], "question q0 has no answers"),
        ([question(answers=[("", 3)])], "the answer '' to question q0 is not at character 3"),
        ([question(answers=[("Oslo", "32")])], r"qas\[0\]: not the data of this task: TypeError"),
        ([question(), question()], "2 questions with the id 'q0'"),
        ([changed(answers="Oslo")], r"data\[0\].paragraphs\[0\].qas\[0\]: not the data of this task"),
        ([changed(answers=["Oslo"])], "not the data of this task"),
        ([changed(question=None)], "not the data of this task"),
        ([], "empty, there are no examples"),
        ('{"data": [{"paragraphs": [{"context": "", "qas": [0]}]}]}', "not the data of this task"),
        ('{"data": {}}', "empty, there are no examples"),
        ("[]", "not the data of this task"),
        ('{"data": [{}]}', "not the data of this task: KeyError..paragraphs"),
        ('{"data": [', "not JSON: .*line 1"),
    ],
)
def test_bad_data_is_one_clear_line_with_its_place(content, message, tmp_path):
    path = tmp_path / "bad.json"
    if isinstance(content, str):
        path.write_text(content)
    else:
        squad_file(path, content)
    with pytest.raises(ElmoError, match=message) as raised:
        read(path)
    assert str(raised.value).startswith(str(path))
    assert "\n" not in str(raised.value)


def test_an_empty_context_is_named(tmp_path):
    with pytest.raises(ElmoError, match="context of question q0 is empty: ' '"):
        read(squad_file(tmp_path / "bad.json", [question()], context=" "))


def test_the_real_data_is_read_and_every_answer_is_where_it_says(shared):
    rows, examples = read(shared / "data" / "squad" / "dev.json", training=False)
    assert len(rows) == 1302
    assert len(examples) >= 1302
    gold = np.array([[window.start, window.end, 0] for window in examples.labels if window.start != IGNORED])
    windows = [window for window in examples.labels if window.start != IGNORED]
    scores = answer_scores(best_answers(windows, gold), {window.question: window.answers for window in windows})
    # The words that cover an answer are it, but for answers that begin or end inside a word.
    assert scores["exact_match"] > 0.97
    assert scores["f1"] > 0.98


# ---------------------------------------------------------------------------------------------------------- training


def write_ten(path: Path) -> Path:
    """Ten questions about two stories."""
    names = ["Anna", "Boris", "Clara", "David", "Elsa"]
    towns = ["Oslo", "New York", "Rome", "Paris", "Bern"]
    paragraphs = []
    for number in range(2):
        facts = [(name, towns[(index + number) % 5]) for index, name in enumerate(names)]
        context = " ".join(f"{name} lives in {town}." for name, town in facts)
        asked = [
            question(10 * number + index, f"Where does {name} live?", [(town, context.index(town))])
            for index, (name, town) in enumerate(facts)
        ]
        paragraphs.append({"context": context, "qas": asked})
    path.write_text(json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}]}))
    return path


@pytest.fixture(scope="module")
def bilm(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("bilm")
    torch.manual_seed(0)
    sizes = {name: SIZES[name] for name in ("projection_dim", "cell_dim", "char_filters", "num_highway_layers")}
    ElmoModel(ElmoConfig(**sizes)).save_pretrained(folder)
    return folder


def arguments(data: Path, output: Path, *more: object) -> list[str]:
    fixed = ["--task", "squad", "--train_file", data, "--validation_file", data, "--output_dir", output]
    sizes = ["--head_overrides", "head_dim=16", "head_char_filters=16", "head_dropout=0", "elmo_dropout=0"]
    fixed += ["--per_device_train_batch_size", 5, "--learning_rate", 0.01, "--patience", 0, "--disable_tqdm", "true"]
    return [str(value) for value in (*fixed, *sizes, *more)]


def test_ten_questions_are_learned_by_heart_and_answered_from_the_folder(bilm, tmp_path):
    data, output = write_ten(tmp_path / "ten.json"), tmp_path / "out"
    more = ["--model_name_or_path", bilm, "--num_train_epochs", 40, "--eval_strategy", "no", "--save_strategy", "no"]
    results = finetune.finetune(arguments(data, output, *more, "--load_best_model_at_end", "false"))
    assert results["eval_f1"] >= 0.99
    assert results["eval_exact_match"] >= 0.99
    answers = json.loads((output / "predictions.json").read_text())
    assert len(answers) == 10
    assert answers["q1"] == "New York"
    model = AutoModelForQuestionAnswering.from_pretrained(output)
    context = json.loads(data.read_text())["data"][0]["paragraphs"][0]["context"]
    found = model.answer("Where does Boris live?", context, AutoTokenizer.from_pretrained(output))
    assert (found.answer, found.start, found.end) == ("New York", context.index("New York"), context.index("New") + 8)
    assert found.score > 0.5


def test_windows_kept_layers_and_resuming_give_the_same_weights(bilm, tmp_path):
    data = write_ten(tmp_path / "ten.json")
    more = ["--model_name_or_path", bilm, "--num_train_epochs", 3, "--save_strategy", "steps", "--save_steps", 1]
    more += ["--eval_strategy", "no", "--load_best_model_at_end", "false", "--save_total_limit", 50]
    windows = ["max_context_words=10", "context_overlap=4"]
    base = arguments(data, tmp_path / "whole", *more)
    base[base.index("head_dim=16") + 1 : base.index("head_dim=16") + 1] = windows
    finetune.finetune([*base, "--cache_dir", str(tmp_path / "cache")])
    assert list((tmp_path / "cache").glob("*.f32"))
    again = [str(tmp_path / "again") if part == str(tmp_path / "whole") else part for part in base]
    (tmp_path / "again").mkdir()
    os.rename(tmp_path / "whole" / "checkpoint-3", tmp_path / "again" / "checkpoint-3")
    finetune.finetune([*again, "--resume_from_checkpoint", "last", "--cache_gb", "0"])
    whole, resumed = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "again"))
    for name, tensor in whole.items():
        torch.testing.assert_close(tensor, resumed[name], atol=1e-5, rtol=0)


def test_a_plain_trainer_with_the_stock_collator_trains(tokenizer, tmp_path):
    words = in_context(tokenizer)
    rows = [
        {**tokenizer(first, second), "start_positions": place.start, "end_positions": place.stop - 1}
        for first, second, place in zip(QUESTIONS, CONTEXTS, words, strict=True)
    ]
    settings = TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=30,
        learning_rate=0.02,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    model = build(head_dropout=0.0, elmo_dropout=0.0)
    trainer = Trainer(
        model=model,
        args=settings,
        train_dataset=datasets.Dataset.from_list(rows),
        eval_dataset=datasets.Dataset.from_list(rows),
        data_collator=DataCollatorWithPadding(tokenizer),
    )
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < before / 2
    with torch.no_grad():
        found = model.eval()(**encode(tokenizer)).predictions[:, :2]
    assert found.tolist() == [[place.start, place.stop - 1] for place in words]


def test_bad_data_ends_a_run_in_one_line(tmp_path, capsys):
    data = squad_file(tmp_path / "bad.json", [question(answers=[("Oslo", 1)])])
    more = ["--elmo_placement", "none"]
    assert finetune.main(arguments(data, tmp_path / "out", *more)) == finetune.BAD_INPUT
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert "to question q0 is not at character 1" in lines[0]
