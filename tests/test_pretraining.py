"""ElmoForPreTraining: two language models that see one side each, a softmax for both, and what is made of them."""

import copy
import itertools
import json
import math
import shutil

import pytest
import torch
from transformers import AutoModel, AutoModelForPreTraining, Trainer, TrainingArguments
from typer.testing import CliRunner

from modeling_elmo import ElmoConfig, ElmoForPreTraining, ElmoModel, ElmoTokenizer
from modeling_elmo.cli import app
from modeling_elmo.softmax_elmo import draw_negatives
from training.data import encode_window, lay_out

WORDS = "the bank of river is steep lends money a to he sat on ! .".split()
SENTENCES = [
    "the bank of the river is steep .".split(),
    ["he", "sat"],
    "a zebra lends money to the bank !".split(),
]
SIZES = {
    "char_embedding_dim": 4,
    "char_filters": [[1, 4], [2, 8]],
    "num_highway_layers": 1,
    "projection_dim": 6,
    "cell_dim": 8,
    "dropout": 0.0,
}
# Sums of a few hundred float32 numbers in another order.
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def tokenizer() -> ElmoTokenizer:
    return ElmoTokenizer(vocab=WORDS)


def make_model(tokenizer: ElmoTokenizer, **changes) -> ElmoForPreTraining:
    torch.manual_seed(0)
    return ElmoForPreTraining(ElmoConfig(**{**SIZES, "vocab_size": len(tokenizer), **changes})).eval()


@pytest.fixture
def model(tokenizer) -> ElmoForPreTraining:
    return make_model(tokenizer)


def encode(tokenizer, sentences=SENTENCES, **kwargs):
    return tokenizer(sentences, is_split_into_words=True, padding=True, return_tensors="pt", **kwargs)


def by_hand(model: ElmoForPreTraining, tokenizer: ElmoTokenizer, words: list[str]) -> tuple[list[float], list[float]]:
    """-log p of each prediction of each language model, from the layers and the softmax's weights, one at a time."""
    inputs = encode(tokenizer, [words])
    with torch.no_grad():
        top = model.elmo(**inputs, output_hidden_states=True).hidden_states[-1][0].double()
    ids = inputs["input_ids"][0].tolist()
    weight, bias = model.softmax.weight.detach().double(), model.softmax.bias.detach().double()
    size = model.config.projection_dim

    def loss(vector: torch.Tensor, target: int) -> float:
        logits = [(weight[word] @ vector + bias[word]).item() for word in range(1, len(weight))]
        return math.log(sum(map(math.exp, logits))) - logits[target - 1]

    forward = [loss(top[t, :size], ids[t + 1]) for t in range(len(ids) - 1)]
    backward = [loss(top[t, size:], ids[t - 1]) for t in range(1, len(ids))]
    return forward, backward


def lanes_of(sentences, tokenizer):
    """Sentences as lanes, each language model's in the order in which it reads."""
    window = encode_window([lay_out(words, tokenizer) for words in sentences], tokenizer)
    return {"char_ids": window.char_ids, "word_index": window.word_index, "labels": window.labels}


# ------------------------------------------------------------------------------------------------------------ losses


def test_losses_equal_those_computed_by_hand(model, tokenizer):
    parts = [by_hand(model, tokenizer, words) for words in SENTENCES]
    inputs = encode(tokenizer)
    with torch.no_grad():
        output = model(**inputs, labels=inputs["input_ids"])
    for got, side in ((output.forward_loss, 0), (output.backward_loss, 1)):
        losses = [loss for part in parts for loss in part[side]]
        assert got.item() == pytest.approx(sum(losses) / len(losses), abs=TOLERANCE)
    assert output.loss.item() == pytest.approx((output.forward_loss + output.backward_loss).item() / 2, abs=1e-6)


@pytest.mark.parametrize("padding_side", ["left", "right"])
def test_padding_changes_no_loss(padding_side, model, tokenizer):
    losses = []
    for extra in (None, 20):
        padded = copy.deepcopy(tokenizer)
        padded.padding_side = padding_side
        inputs = padded(
            SENTENCES,
            is_split_into_words=True,
            padding=True if extra is None else "max_length",
            max_length=extra,
            return_tensors="pt",
        )
        losses.append(model(**inputs, labels=inputs["input_ids"]).loss.item())
    assert losses[0] == pytest.approx(losses[1], abs=TOLERANCE)


def test_lanes_have_the_losses_of_the_same_sentences(model, tokenizer):
    inputs = encode(tokenizer)
    sentences = model(**inputs, labels=inputs["input_ids"])
    lanes = model(**lanes_of(SENTENCES, tokenizer))
    for name in ("loss", "forward_loss", "backward_loss"):
        torch.testing.assert_close(lanes[name], sentences[name], atol=TOLERANCE, rtol=0)


def test_windows_with_carried_states_are_one_long_window(model, tokenizer):
    sentence = ["the bank of the river is steep .".split()] * 3
    whole = lanes_of(sentence, tokenizer)
    all_at_once = model(**whole)
    states, total = None, 0.0
    for start in (0, 3, 7):
        end = {0: 3, 3: 7, 7: 9}[start]
        part = {**whole, **{name: whole[name][..., start:end] for name in ("word_index", "labels")}}
        output = model(**part, states=states, num_items_in_batch=1)
        states, total = output.states, total + output.loss.item()
    assert total / 27 == pytest.approx(all_at_once.loss.item(), abs=TOLERANCE)
    for got, expected in zip(states, all_at_once.states, strict=True):
        torch.testing.assert_close(got, expected, atol=TOLERANCE, rtol=0)


def test_a_lane_that_has_ended_keeps_its_states(model, tokenizer):
    window = lanes_of(SENTENCES, tokenizer)
    output = model(**window)
    alone = model(**lanes_of([SENTENCES[1]], tokenizer))
    for got, expected in zip(output.states, alone.states, strict=True):
        torch.testing.assert_close(got[:, :, 1:2], expected, atol=TOLERANCE, rtol=0)


def test_the_segments_of_a_lane_are_sentences_of_their_own(model, tokenizer):
    """The first goes on from the states, the next begin from zeros, and the last one's states are carried on."""
    states = model(**lanes_of(SENTENCES[1:], tokenizer)).states
    parts = [lanes_of(sentences, tokenizer) for sentences in (SENTENCES[:2], SENTENCES[1:], SENTENCES[:2])]
    one_by_one = [
        model(**part, states=None if number else states, num_items_in_batch=1) for number, part in enumerate(parts)
    ]
    rows = torch.tensor([len(part["char_ids"]) for part in parts])
    indices = [part["word_index"] + first for part, first in zip(parts, rows.cumsum(0) - rows, strict=True)]
    widths = torch.tensor([index.shape[2] for index in indices])
    lanes = {
        "char_ids": torch.cat([part["char_ids"] for part in parts]),
        "word_index": torch.cat(indices, dim=2),
        "labels": torch.cat([part["labels"] for part in parts], dim=2),
        "segments": torch.arange(3).repeat_interleave(widths).expand(2, -1),
    }
    output = model(**lanes, states=states, num_items_in_batch=1)
    for name in ("forward_loss", "backward_loss"):
        expected = sum(part[name].item() for part in one_by_one)
        assert output[name].item() == pytest.approx(expected, rel=TOLERANCE)
    for got, expected in zip(output.states, one_by_one[-1].states, strict=True):
        torch.testing.assert_close(got, expected, atol=TOLERANCE, rtol=0)


def test_a_lane_that_begins_with_a_new_segment_forgets_its_states_and_an_ended_one_keeps_them(model, tokenizer):
    states = model(**lanes_of(SENTENCES[1:], tokenizer)).states
    window = lanes_of(SENTENCES[:2], tokenizer)
    window["labels"][:, 1] = -100  # the second lane has ended
    segments = torch.tensor([[1], [0]]).expand(2, window["labels"].shape[2])
    output = model(**window, segments=segments, states=states)
    alone = model(**lanes_of(SENTENCES[:1], tokenizer))
    assert output.loss.item() == pytest.approx(alone.loss.item(), abs=TOLERANCE)
    for got, new, old in zip(output.states, alone.states, states, strict=True):
        torch.testing.assert_close(got[:, :, :1], new, atol=TOLERANCE, rtol=0)
        assert torch.equal(got[:, :, 1:], old[:, :, 1:])


def test_the_forward_language_model_sees_no_later_word_and_the_backward_one_no_earlier(model, tokenizer):
    first, second = (model(**encode(tokenizer, [words])) for words in ("the bank of".split(), "the river of".split()))
    changed = 2  # of <S> the _ of </S>
    assert torch.equal(first.forward_logits[:, :changed], second.forward_logits[:, :changed])
    assert torch.equal(first.backward_logits[:, changed + 1 :], second.backward_logits[:, changed + 1 :])
    assert not torch.equal(first.forward_logits[:, changed], second.forward_logits[:, changed])
    assert not torch.equal(first.backward_logits[:, changed], second.backward_logits[:, changed])


def test_logits_are_those_the_loss_is_made_of(model, tokenizer):
    inputs = encode(tokenizer, [SENTENCES[0]])
    logits = model(**inputs).forward_logits[0, :-1]
    expected = torch.nn.functional.cross_entropy(logits[:, 1:], inputs["input_ids"][0, 1:] - 1)
    loss = model(**inputs, labels=inputs["input_ids"]).forward_loss
    torch.testing.assert_close(loss, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("num_negatives", [0, 8])
def test_one_step_moves_every_parameter(num_negatives, tokenizer):
    model = make_model(tokenizer, num_negatives=num_negatives, dropout=0.2).train()
    before = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for seed in range(20):  # so that every word is sampled
        torch.manual_seed(seed)
        model(**lanes_of(SENTENCES, tokenizer)).loss.backward()
        optimizer.step()
    for name, tensor in model.state_dict().items():
        assert not torch.equal(tensor, before[name]), name
    assert torch.equal(model.softmax.weight[0], before["softmax.weight"][0])  # padding is never predicted


def test_training_samples_and_evaluation_does_not(tokenizer):
    model = make_model(tokenizer, num_negatives=5)
    window = lanes_of(SENTENCES, tokenizer)
    full = model(**window).loss
    assert torch.equal(model(**window).loss, full)
    model.train()
    losses = {model(**window).loss.item() for _ in range(5)}
    assert len(losses) == 5
    negatives = draw_negatives(len(tokenizer), 5)
    assert len({model(**window, negatives=negatives).loss.item() for _ in range(3)}) == 1


def test_dropout_is_drawn_from_the_seed_alone(tokenizer):
    """Both directions run at the same time; which is first must not matter."""
    model = make_model(tokenizer, num_negatives=0, dropout=0.5).train()
    gradients = []
    for _ in range(5):
        torch.manual_seed(3)
        model.zero_grad()
        model(**lanes_of(SENTENCES, tokenizer)).loss.backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    assert all(torch.equal(a, b) for other in gradients[1:] for a, b in zip(gradients[0], other, strict=True))


def test_threads_side_by_side_give_the_gradients_of_one_after_the_other(tokenizer, monkeypatch):
    model = make_model(tokenizer, dropout=0.3).train()
    results = []
    for is_parallel in (True, False):
        if not is_parallel:
            monkeypatch.setattr("modeling_elmo.bilm_elmo.can_train_in_parallel", lambda *_: False)
        torch.manual_seed(3)
        model.zero_grad()
        output = model(**lanes_of(SENTENCES, tokenizer))
        output.loss.backward()
        results.append([output.loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())])
    torch.testing.assert_close(*results, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": torch.full((2, 3, 9), 99)}, "word ids from 1 to 18"),
        ({"labels": torch.zeros(2, 3, 9, dtype=torch.long)}, "word ids from 1"),
    ],
)
def test_bad_inputs_are_refused(changes, message, model, tokenizer):
    with pytest.raises(ValueError, match=message):
        model(**{**lanes_of(SENTENCES, tokenizer), **changes})


# ---------------------------------------------------------------------------------------------------- saving, loading


def test_a_saved_model_loads_bit_for_bit_and_as_a_plain_one(model, tokenizer, tmp_path):
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoModelForPreTraining.from_pretrained(tmp_path)
    assert type(loaded) is ElmoForPreTraining
    assert all(
        torch.equal(a, b) for a, b in zip(model.state_dict().values(), loaded.state_dict().values(), strict=True)
    )
    plain = AutoModel.from_pretrained(tmp_path)
    assert type(plain) is ElmoModel
    inputs = encode(tokenizer)
    expected = model.elmo(**inputs, output_hidden_states=True).hidden_states
    for got, layer in zip(plain(**inputs, output_hidden_states=True).hidden_states, expected, strict=True):
        torch.testing.assert_close(got, layer, atol=1e-6, rtol=0)


def test_trainer_trains_it_on_sentences(tokenizer, tmp_path):
    model = make_model(tokenizer, num_negatives=8)

    def collate(examples):
        inputs = encode(tokenizer, [example["words"] for example in examples])
        return {**inputs, "labels": inputs["input_ids"]}

    arguments = TrainingArguments(
        str(tmp_path),
        max_steps=60,
        learning_rate=0.05,
        per_device_train_batch_size=3,
        gradient_accumulation_steps=2,
        remove_unused_columns=False,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        logging_steps=10,
        save_strategy="no",
    )
    examples = [{"words": words} for words in SENTENCES] * 8
    trainer = Trainer(model, arguments, data_collator=collate, train_dataset=examples)
    inputs = collate(examples[:3])
    before = model.eval()(**inputs).loss.item()
    trainer.train()
    assert model.eval()(**inputs).loss.item() < before / 2


# --------------------------------------------------------------------------------------------- scoring, substitutes


def test_a_word_that_reads_like_padding_is_scored_as_unknown(model, tokenizer):
    padding, unknown = model.score([["<pad>", "."], ["<UNK>", "."]], tokenizer)
    assert padding.forward[0] == unknown.forward[0]
    assert padding.backward[1] == unknown.backward[1]


def test_scores_are_the_log_probabilities_by_hand(model, tokenizer):
    for batch_size in (1, 2, 32):
        scores = model.train().score(SENTENCES, tokenizer, batch_size)
        assert model.training  # as it was
        for words, score in zip(SENTENCES, scores, strict=True):
            forward, backward = by_hand(model, tokenizer, words)
            assert (-score.forward).tolist() == pytest.approx(forward, abs=TOLERANCE)
            assert (-score.backward).tolist() == pytest.approx(backward[0:], abs=TOLERANCE)
            total = -(sum(forward) + sum(backward)) / 2
            assert score.log_probability == pytest.approx(total, abs=1e-4)
            assert score.perplexity == pytest.approx(math.exp(-total / (len(words) + 1)), rel=1e-5)


def test_texts_and_empty_sentences_can_be_scored(model, tokenizer):
    text, words, empty = model.score(["the bank.", ["the", "bank", "."], []], tokenizer)
    assert text.log_probability == pytest.approx(words.log_probability, abs=1e-5)
    assert len(empty.forward) == 1
    assert model.score([], tokenizer) == []


def test_substitutes_do_not_depend_on_the_word_that_is_there(model, tokenizer):
    words = SENTENCES[0]
    found = model.substitutes(words, 1, tokenizer, count=5)
    assert found == model.substitutes([words[0], "zebra", *words[2:]], 1, tokenizer, count=5)
    probabilities = [substitute.probability for substitute in found]
    assert probabilities == sorted(probabilities, reverse=True)
    everything = model.substitutes(words, 1, tokenizer, count=1000)
    assert {substitute.word for substitute in everything} == set(WORDS)
    assert sum(substitute.probability for substitute in everything) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("divide_by_prior", [True, False])
def test_substitutes_have_the_highest_product_over_their_frequency_or_by_itself(divide_by_prior, model, tokenizer):
    words = SENTENCES[0]
    output = model(**encode(tokenizer, [words]))
    joint = output.forward_logits[0, 3].log_softmax(-1) + output.backward_logits[0, 5].log_softmax(-1)
    frequency = torch.log1p(1 / torch.arange(4, len(tokenizer))) / math.log(len(tokenizer))
    expected, ids = (joint[4:] - divide_by_prior * frequency.log()).softmax(0).sort(descending=True)
    found = model.substitutes(words, 3, tokenizer, count=1000, divide_by_prior=divide_by_prior)
    assert [substitute.word for substitute in found] == tokenizer.convert_ids_to_tokens((ids + 4).tolist())
    assert [substitute.probability for substitute in found] == pytest.approx(expected.tolist(), abs=TOLERANCE)
    few = model.substitutes(words, 3, tokenizer, count=2, divide_by_prior=divide_by_prior)
    assert few == found[:2]
    assert sum(substitute.probability for substitute in few) < 1


def test_dividing_by_the_prior_moves_no_word_above_a_rarer_one(model, tokenizer):
    orders = []
    for divide_by_prior in (False, True):
        found = model.substitutes(SENTENCES[0], 3, tokenizer, count=1000, divide_by_prior=divide_by_prior)
        orders.append([substitute.word for substitute in found])
    for frequent, rare in itertools.combinations(WORDS, 2):  # in the order of the vocabulary
        if orders[0].index(rare) < orders[0].index(frequent):
            assert orders[1].index(rare) < orders[1].index(frequent)


@pytest.mark.parametrize("position", [-1, 8])
def test_a_position_outside_the_sentence_is_refused(position, model, tokenizer):
    with pytest.raises(ValueError, match="`position` must be from 0 to 7"):
        model.substitutes(SENTENCES[0], position, tokenizer)


@pytest.fixture
def folder(model, tokenizer, tmp_path):
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")


def test_the_score_command_prints_a_line_a_sentence_and_the_perplexity_of_all(folder, model, tokenizer, tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n".join(" ".join(words) for words in [*SENTENCES, []]) + "\n")
    result = CliRunner().invoke(app, ["score", str(path), "--model", folder, "--per-word"])
    assert result.exit_code == 0, result.stderr
    scores = model.score(SENTENCES, tokenizer)
    assert f"{scores[0].log_probability:.3f}\t{scores[0].perplexity:.2f}\t0\tthe bank of" in result.stdout
    assert f"  bank\tforward {scores[0].forward[1]:.3f}\tbackward {scores[0].backward[2]:.3f}" in result.stdout
    predictions = sum(len(score.forward) for score in scores)
    perplexity = math.exp(-sum(score.log_probability for score in scores) / predictions)
    assert f"3 sentences, perplexity {perplexity:.2f}" in result.stderr
    lines = CliRunner().invoke(app, ["score", str(path), "--model", folder, "--json"]).stdout.splitlines()
    assert [json.loads(line)["words"] for line in lines] == SENTENCES


def test_unknown_words_are_marked_and_their_share_is_in_the_summary(folder, tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("the zyxwv <pad>\nthe bank\n")
    result = CliRunner().invoke(app, ["score", str(path), "--model", folder, "--per-word"])
    columns = [line.split("\t") for line in result.stdout.splitlines()]
    marked = {fields[0].strip(): fields[-1] == "<UNK>" for fields in columns if fields[0].startswith("  ")}
    assert marked == {"the": False, "zyxwv": True, "<pad>": True, "bank": False}
    assert [fields[2] for fields in columns if len(fields) == 4 and fields[0][0] != " "] == ["unknown", "2", "0"]
    as_json = CliRunner().invoke(app, ["score", str(path), "--model", folder, "--json"])
    assert [json.loads(line)["unknown"] for line in as_json.stdout.splitlines()] == [[1, 2], []]
    for output in (result, as_json):
        assert output.stderr.endswith(", 40.0% of 5 words unknown\n")


def test_tables_are_scored_as_the_text_in_them(folder, tmp_path):
    (tmp_path / "a.txt").write_text("the bank\n")
    (tmp_path / "a.csv").write_text("id,said\n1,the bank\n")
    (tmp_path / "a.jsonl").write_text('{"id": 1, "said": "the bank"}\n')
    expected = CliRunner().invoke(app, ["score", str(tmp_path / "a.txt"), "--model", folder]).stdout
    for name in ("a.csv", "a.jsonl"):
        arguments = ["score", str(tmp_path / name), "--model", folder]
        assert CliRunner().invoke(app, [*arguments, "--column", "said"]).stdout == expected
        refused = CliRunner().invoke(app, arguments)
        assert (refused.exit_code, refused.stdout) == (2, "")
        assert "--column: id, said" in refused.stderr


def test_commands_split_text_as_the_training_text_was(folder, tmp_path):
    tokenizer = ElmoTokenizer.from_pretrained(folder)
    path = str(shutil.copytree(folder, tmp_path / "copy"))
    for training_text, words in (("raw", ["the", "bank", "."]), ("whitespace", ["the", "bank."])):
        tokenizer.training_text = training_text
        tokenizer.save_pretrained(path)
        arguments = ["score", "-", "--model", path, "--json"]
        result = CliRunner().invoke(app, arguments, input="the bank.\n")
        assert json.loads(result.stdout)["words"] == words
        assert result.stderr.count("\n") == 1  # the summary alone
        contradiction = "--tokenized" if training_text == "raw" else "--raw"
        contradicted = CliRunner().invoke(app, [*arguments, contradiction], input="the bank.\n")
        assert json.loads(contradicted.stdout)["words"] != words
        assert contradicted.stderr.startswith("warning: ")
        assert contradiction in contradicted.stderr


def test_substitutes_of_several_words_to_the_model_come_with_a_note(folder):
    arguments = ["substitutes", "the [don't] of the river .", "--model", folder, "--count", "1"]
    assert CliRunner().invoke(app, arguments).stderr.count("\n") == 1
    assert "'do' and \"n't\"" in CliRunner().invoke(app, arguments).stderr
    assert CliRunner().invoke(app, [*arguments, "--tokenized"]).stderr == ""


def test_the_score_command_takes_standard_input_and_says_when_it_is_empty(folder):
    result = CliRunner().invoke(app, ["score", "-", "--model", folder, "--raw"], input="The bank lends.\n")
    assert "The bank lends ." in result.stdout
    assert "empty" in CliRunner().invoke(app, ["score", "-", "--model", folder], input="\n").stderr
    marked = CliRunner().invoke(app, ["score", "-", "--model", folder, "--raw"], input="\ufeffThe bank lends.\n")
    assert marked.stdout == result.stdout
    latin = CliRunner().invoke(app, ["score", "-", "--model", folder], input=b"a\ncaf\xe9\n")
    assert latin.exit_code == 2
    assert "line 2" in latin.stderr


def test_ctrl_c_in_the_score_command_does_not_deny_the_lines_that_it_printed(folder, monkeypatch):
    score = ElmoForPreTraining.score

    def interrupted(self, sentences, *more):
        if sentences[0] == ["last"]:
            raise KeyboardInterrupt
        return score(self, sentences, *more)

    monkeypatch.setattr(ElmoForPreTraining, "score", interrupted)
    result = CliRunner().invoke(app, ["score", "-", "--model", folder], input="the bank\n" * 32 + "last\n")
    assert result.exit_code == 130
    assert result.stdout.count("the bank") == 32
    assert result.stderr == "interrupted: the sentences after these were not scored\n"


def test_the_substitutes_command_lists_words(folder, model, tokenizer):
    arguments = ["substitutes", "the [bank] of the river .", "--model", folder, "--count", "3"]
    lines = CliRunner().invoke(app, arguments).stdout.splitlines()
    assert len(lines) == 3
    assert all(line.split("\t")[1] in WORDS for line in lines)
    assert json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout.splitlines()[0])["probability"] > 0
    for options in ([], ["--plain-product"]):
        lines = CliRunner().invoke(app, [*arguments, *options]).stdout.splitlines()
        found = model.substitutes("the bank of the river .".split(), 1, tokenizer, 3, divide_by_prior=not options)
        assert [line.split("\t")[1] for line in lines] == [substitute.word for substitute in found]


@pytest.mark.parametrize("sentence", ["the bank", "the [ ] of", "[a] [b]", "[a", "a]"])
def test_a_sentence_without_one_marked_word_is_refused(sentence, folder):
    result = CliRunner().invoke(app, ["substitutes", sentence, "--model", folder])
    assert result.exit_code == 2
    assert result.stderr.startswith("error: mark one word")


def test_a_model_without_its_softmax_is_refused(model, tokenizer, tmp_path):
    model.elmo.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    result = CliRunner().invoke(app, ["score", "-", "--model", str(tmp_path)], input="a\n")
    assert result.exit_code == 2
    assert (
        "holds a biLM without its softmax (ElmoModel); this needs a language model with its softmax" in result.stderr
    )
    roles = CliRunner().invoke(app, ["roles", "the [bank]", "--model", str(tmp_path)])
    assert roles.exit_code == 2
    assert "holds a biLM without its softmax (ElmoModel); this needs a labeler of semantic roles" in roles.stderr
    assert CliRunner().invoke(app, ["score", "-", "--model", "nowhere"], input="a\n").exit_code == 2
