"""Task models: what they read, learn and return, whatever the place of ELMo."""

import itertools

import pytest
import torch
from datasets import Dataset
from huggingface_hub.errors import StrictDataclassError
from torch import nn
from transformers import (
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    DataCollatorForMultipleChoice,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
    pipeline,
)

from modeling_elmo import (
    ElmoConfig,
    ElmoForMultipleChoice,
    ElmoForPreTraining,
    ElmoForSemanticRoleLabeling,
    ElmoForSequenceClassification,
    ElmoForTokenClassification,
    ElmoModel,
    ElmoTokenizer,
)
from modeling_elmo.bilm_elmo import IGNORED
from modeling_elmo.classification_elmo import pooled
from modeling_elmo.heads_elmo import WordLstm, attend
from modeling_elmo.layers_elmo import Dropout
from modeling_elmo.tagging_elmo import (
    LinearChainCrf,
    Scores,
    allowed_labels,
    best_labels,
    crf_loss,
    log_marginals,
    partition,
    restrict_to_scheme,
    without_transitions,
)

PLACEMENTS = ("none", "input", "output", "both")
WORDS = ["the", "bank", "river", "money", "."]
SIZES = {
    "vocab_size": 4 + len(WORDS),
    "projection_dim": 8,
    "cell_dim": 16,
    "char_filters": [[1, 4], [3, 12]],
    "num_highway_layers": 1,
    "word_vector_dim": 5,
    "head_dim": 6,
    "head_char_filters": 7,
    "num_labels": 3,
}
SENTENCES = ["The bank lends money .", "the river", "We sat on the bank of the river and read ."]
PREDICATES = [2, 1, 8]
SECOND = ["money .", "the river runs by a bank", "the"]
# Sums of a few hundred float32 products in another order.
TOLERANCE = 2e-6


@pytest.fixture
def tokenizer() -> ElmoTokenizer:
    return ElmoTokenizer(vocab=WORDS, lowercase_fallback=True)


def build(head: str, placement: str = "both", **changes):
    torch.manual_seed(0)
    config = ElmoConfig(**{**SIZES, "elmo_placement": placement, **changes})
    if head in ("pooled", "bcn", "esim"):
        config.sequence_encoder = head
    classes = {
        "pooled": ElmoForSequenceClassification,
        "bcn": ElmoForSequenceClassification,
        "esim": ElmoForSequenceClassification,
        "tagger": ElmoForTokenClassification,
        "choice": ElmoForMultipleChoice,
        "srl": ElmoForSemanticRoleLabeling,
    }
    return classes[head](config).eval()


def encode(head: str, tokenizer: ElmoTokenizer, order=(0, 1, 2), **kwargs):
    first, second = ([texts[index] for index in order] for texts in (SENTENCES, SECOND))
    if head in ("bcn", "tagger"):
        return dict(tokenizer(first, padding=True, return_tensors="pt", **kwargs))
    if head == "srl":
        inputs = dict(tokenizer(first, padding=True, return_tensors="pt", **kwargs))
        predicates = torch.tensor([PREDICATES[index] for index in order])
        return {**inputs, "predicate_index": inputs["attention_mask"].argmax(1) + 1 + predicates}
    inputs = tokenizer(first, second, padding=True, return_tensors="pt", **kwargs)
    return {name: tensor[:, None] if head == "choice" else tensor for name, tensor in inputs.items()}


def labels_for(head: str, inputs) -> torch.Tensor:
    if head in ("tagger", "srl"):
        words = inputs["special"] == 0
        return torch.where(words, torch.arange(words.shape[1]) % 3, IGNORED)
    return torch.tensor([0, 2, 1]) if head != "choice" else torch.zeros(3, dtype=torch.long)


HEADS = ("pooled", "bcn", "esim", "tagger", "choice", "srl")


# -------------------------------------------------------------------------------------------------------------- CRF


@pytest.fixture
def chain():
    """Scores of 3 sentences of up to 4 words, 3 labels; the second has 2 words, the last none."""
    torch.manual_seed(1)
    mask = torch.arange(4) < torch.tensor([[4], [2], [0]])
    return torch.randn(3, 4, 3), mask, Scores(torch.randn(3, 3), torch.randn(3), torch.randn(3))


def brute_force(emissions, length, scores):
    """Every label sequence of one sentence and its score."""
    for labels in itertools.product(range(3), repeat=length):
        score = scores.starts[labels[0]] + scores.ends[labels[-1]]
        score = score + sum(emissions[t, label] for t, label in enumerate(labels))
        yield labels, score + sum(scores.transitions[a, b] for a, b in itertools.pairwise(labels))


def test_the_partition_function_equals_the_sum_over_all_sequences(chain):
    emissions, mask, scores = chain
    found = partition(emissions, mask, scores)
    for row, length in ((0, 4), (1, 2)):
        expected = torch.stack([score for _, score in brute_force(emissions[row], length, scores)]).logsumexp(0)
        torch.testing.assert_close(found[row], expected)
    assert found[2] == 0


@pytest.mark.parametrize("scale", [1.0, 100.0, 5000.0], ids=["ordinary", "beyond float32", "beyond float64"])
def test_the_gradients_of_the_partition_function_are_those_of_the_sum_over_all_sequences(chain, scale):
    emissions, mask, scores = chain
    given = [(score * scale).requires_grad_() for score in (emissions, *scores)]
    found = torch.autograd.grad(partition(given[0], mask, Scores(*given[1:]))[:2] @ torch.tensor([1.0, 0.5]), given)
    sums = [
        torch.stack([score for _, score in brute_force(given[0][row], length, Scores(*given[1:]))]).logsumexp(0)
        for row, length in ((0, 4), (1, 2))
    ]
    expected = torch.autograd.grad(sums[0] + 0.5 * sums[1], given)
    torch.testing.assert_close(found, expected)


def test_viterbi_finds_the_best_of_all_sequences(chain):
    emissions, mask, scores = chain
    found = best_labels(emissions, mask, scores)
    for row, length in ((0, 4), (1, 2)):
        best, _ = max(brute_force(emissions[row], length, scores), key=lambda pair: pair[1])
        assert tuple(found[row, :length].tolist()) == best


def test_marginals_equal_the_sums_over_all_sequences(chain):
    emissions, mask, scores = chain
    found = log_marginals(emissions, mask, scores).exp()
    for row, length in ((0, 4), (1, 2)):
        sequences = list(brute_force(emissions[row], length, scores))
        weights = torch.stack([score for _, score in sequences]).softmax(0)
        expected = torch.zeros(length, 3)
        for (labels, _), weight in zip(sequences, weights, strict=True):
            for t, label in enumerate(labels):
                expected[t, label] += weight
        torch.testing.assert_close(found[row, :length], expected)


def test_the_loss_is_minus_log_p_and_unlabelled_words_may_be_anything(chain):
    emissions, mask, scores = chain
    crf = LinearChainCrf(3)
    crf.load_state_dict(scores._asdict())
    labels = torch.tensor([[0, IGNORED, 2, 1], [1, 2, IGNORED, IGNORED], [IGNORED] * 4])
    expected = 0.0
    for row, length in ((0, 4), (1, 2)):
        every = list(brute_force(emissions[row], length, scores))
        fitting = [
            score
            for found, score in every
            if all(want in (IGNORED, got) for want, got in zip(labels[row].tolist(), found, strict=False))
        ]
        total = torch.stack([score for _, score in every]).logsumexp(0)
        expected += (total - torch.stack(fitting).logsumexp(0)).item()
    loss = crf_loss(emissions, mask, labels, crf())
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in crf.parameters())


BIO_LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
BIOES_LABELS = ("O", *(f"{place}-{kind}" for kind in ("PER", "LOC") for place in "BIES"))


@pytest.mark.parametrize(
    ("labels", "scheme", "before", "after", "may"),
    [
        (BIO_LABELS, "BIO", "B-PER", "I-PER", True),
        (BIO_LABELS, "BIO", "B-PER", "I-LOC", False),
        (BIO_LABELS, "BIO", "O", "I-PER", False),
        (BIO_LABELS, "BIO", None, "I-PER", False),
        (BIO_LABELS, "IOB1", "O", "I-PER", True),
        (BIO_LABELS, "IOB1", "O", "B-PER", False),
        (BIO_LABELS, "IOB1", "I-PER", "B-PER", True),
        (BIO_LABELS, "IOB1", None, "B-PER", False),
        (BIOES_LABELS, "BIOES", "B-PER", "E-PER", True),
        (BIOES_LABELS, "BIOES", "B-PER", "O", False),
        (BIOES_LABELS, "BIOES", "E-PER", "I-PER", False),
        (BIOES_LABELS, "BIOES", "S-PER", "B-LOC", True),
        (BIOES_LABELS, "BIOES", "I-PER", None, False),
        (BIO_LABELS, None, "O", "I-PER", True),
    ],
)
def test_a_scheme_allows_what_it_defines(labels, scheme, before, after, may):
    allowed = allowed_labels(labels, scheme)
    if before is None:
        assert allowed.starts[labels.index(after)] == may
    elif after is None:
        assert allowed.ends[labels.index(before)] == may
    else:
        assert allowed.transitions[labels.index(before), labels.index(after)] == may


@pytest.mark.parametrize(("labels", "scheme"), [(BIO_LABELS, "BIO"), (BIO_LABELS, "IOB1"), (BIOES_LABELS, "BIOES")])
def test_decoding_never_breaks_the_scheme(labels, scheme):
    torch.manual_seed(0)
    emissions = torch.randn(50, 9, len(labels)) * 5
    mask = torch.arange(9) < torch.randint(1, 10, (50, 1))
    allowed = allowed_labels(labels, scheme)
    config = ElmoConfig(id2label=dict(enumerate(labels)))
    found = best_labels(emissions, mask, restrict_to_scheme(without_transitions(emissions), config, scheme))
    for row, keep in zip(found, mask, strict=True):
        path = row[keep].tolist()
        assert allowed.starts[path[0]]
        assert allowed.ends[path[-1]]
        assert all(allowed.transitions[a, b] for a, b in itertools.pairwise(path))


# --------------------------------------------------------------------------------------------------------- encoders


def test_the_task_lstm_equals_torchs_in_values_and_gradients():
    torch.manual_seed(0)
    ours, theirs = WordLstm(4, 3, layers=2), nn.LSTM(4, 3, 2, batch_first=True, bidirectional=True)

    def in_their_order(weight):  # i, j, f, o -> i, f, j, o
        i, j, f, o = weight.chunk(4)
        return torch.cat([i, f, j, o])

    for layers, suffix in ((ours.forward_layers, ""), (ours.backward_layers, "_reverse")):
        for number, layer in enumerate(layers):
            bias = layer.input_gates.bias.detach().clone()
            bias.chunk(4)[2].add_(1)  # the open forget gate
            with torch.no_grad():
                getattr(theirs, f"weight_ih_l{number}{suffix}").copy_(in_their_order(layer.input_gates.weight))
                getattr(theirs, f"weight_hh_l{number}{suffix}").copy_(in_their_order(layer.recurrent_gates.weight))
                getattr(theirs, f"bias_ih_l{number}{suffix}").copy_(in_their_order(bias))
                getattr(theirs, f"bias_hh_l{number}{suffix}").zero_()
    features = [torch.randn(2, 5, 4, requires_grad=True) for _ in range(1)] * 2
    mask = torch.ones(2, 5, dtype=torch.bool)
    outputs = ours(features[0], mask), theirs(features[1])[0]
    torch.testing.assert_close(*outputs)
    gradients = [torch.autograd.grad(output.square().sum(), features[0])[0] for output in outputs]
    torch.testing.assert_close(*gradients)
    with torch.no_grad():
        torch.testing.assert_close(ours(features[0], mask), outputs[0])


def test_attention_and_pooling_see_real_words_only_and_nothing_is_zero():
    features = torch.tensor([[[1.0, -2.0], [3.0, 4.0], [99.0, -99.0]], [[7.0, 7.0], [7.0, 7.0], [7.0, 7.0]]])
    mask = torch.tensor([[True, True, False], [False, False, False]])
    weights = attend(torch.zeros(2, 1, 3), mask)
    assert weights[0].tolist() == [[0.5, 0.5, 0.0]]
    largest, mean, smallest = pooled(features, mask)
    assert largest[0].tolist() == [3, 4]
    assert mean[0].tolist() == [2, 1]
    assert smallest[0].tolist() == [1, -2]
    assert not torch.cat([weights[1].flatten(), largest[1], mean[1], smallest[1]]).any()


# ------------------------------------------------------------------------------------------------------------ heads


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("head", HEADS)
def test_padding_and_batch_order_change_nothing(head, placement, tokenizer):
    model = build(head, placement)
    with torch.no_grad():
        expected = model(**encode(head, tokenizer)).logits
        other = model(**encode(head, tokenizer, order=(2, 0, 1), pad_to_multiple_of=32)).logits
    for row, index in enumerate((2, 0, 1)):
        got = other[row]
        if head in ("tagger", "srl"):
            got = got[: expected.shape[1]]
        torch.testing.assert_close(got, expected[index], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("head", ["tagger", "bcn", "srl"])
def test_the_padding_side_changes_nothing(head, tokenizer):
    model = build(head)
    tokenizer.padding_side = "left"
    left = encode(head, tokenizer)
    tokenizer.padding_side = "right"
    right = encode(head, tokenizer)
    with torch.no_grad():
        of_left, of_right = (model(**inputs).logits for inputs in (left, right))
    if head in ("tagger", "srl"):
        of_left, of_right = of_left[left["attention_mask"].bool()], of_right[right["attention_mask"].bool()]
    torch.testing.assert_close(of_left, of_right, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("frozen", [True, False])
def test_one_step_moves_every_trainable_parameter_and_no_other(head, placement, frozen, tokenizer):
    model = build(head, placement, freeze_bilm=frozen, train_word_vectors=not frozen, mix_l2=0.1).train()
    inputs = encode(head, tokenizer, return_special_tokens_mask=True)
    inputs["special"] = inputs.pop("special_tokens_mask")
    labels = labels_for(head, inputs)
    del inputs["special"]
    if head == "choice":  # one choice alone has nothing to learn from
        inputs = {name: torch.cat([tensor, tensor.roll(1, 0)], dim=1) for name, tensor in inputs.items()}
        if placement == "none":
            inputs["input_ids"] = inputs["input_ids"].roll(1, 0)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for _ in range(2):  # the mixes' first gradients are zero where all layers weigh the same
        optimizer.zero_grad()
        model(**inputs, labels=labels).loss.backward()
        optimizer.step()
    still = {name for name, parameter in model.named_parameters() if torch.equal(parameter, before[name])}
    fixed = {name for name in before if name.startswith("elmo.")} if frozen else set()
    fixed |= {"word_embeddings.weight"} if frozen else set()
    # The last bias of a choice shifts all scores alike, which changes nothing: what moves it is rounding.
    rounding = {"network.output.bias"} if head == "choice" else set()
    assert still - rounding == fixed


@pytest.mark.parametrize("head", HEADS)
def test_layers_given_are_layers_computed(head, tokenizer):
    model = build(head)
    inputs = encode(head, tokenizer)
    flat = {name: tensor.flatten(0, 1) if head == "choice" else tensor for name, tensor in inputs.items()}
    with torch.no_grad():
        layers = model.bilm_layers(flat["char_ids"], flat["attention_mask"], flat.get("token_type_ids"))
        assert layers.shape[-1] == 5 * SIZES["projection_dim"]
        layers = layers[:, None] if head == "choice" else layers
        torch.testing.assert_close(model(**inputs, bilm_layers=layers).logits, model(**inputs).logits)


@pytest.mark.parametrize("placement", ["none", "both"])
@pytest.mark.parametrize("head", HEADS)
def test_a_saved_head_gives_the_same_scores(head, placement, tokenizer, tmp_path):
    model = build(head, placement)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(
            loaded(**encode(head, tokenizer)).logits, model(**encode(head, tokenizer)).logits, atol=TOLERANCE, rtol=0
        )
    for name, parameter in loaded.named_parameters():
        assert torch.equal(parameter, model.get_parameter(name)), name
        assert parameter.requires_grad == model.get_parameter(name).requires_grad, name


@pytest.mark.parametrize("kind", ["biLM", "pretraining"])
@pytest.mark.parametrize("placement", ["none", "both"])
def test_a_folder_of_a_bilm_begins_a_head(kind, placement, tmp_path):
    torch.manual_seed(3)
    sizes = {name: SIZES[name] for name in ("projection_dim", "cell_dim", "char_filters", "num_highway_layers")}
    bilm = (ElmoModel if kind == "biLM" else ElmoForPreTraining)(ElmoConfig(**sizes, vocab_size=30))
    bilm.save_pretrained(tmp_path)
    head, loading = ElmoForTokenClassification.from_pretrained(
        tmp_path, num_labels=4, word_vector_dim=5, vocab_size=9, elmo_placement=placement, output_loading_info=True
    )
    assert not loading["unexpected_keys"]
    assert not any(name.startswith("elmo.") for name in loading["missing_keys"])
    assert all(parameter.isfinite().all() for parameter in head.parameters())
    assert head.classifier.weight.std() > 0
    if placement == "both":
        of_bilm = bilm if kind == "biLM" else bilm.elmo
        assert torch.equal(
            head.elmo.backward_lm.layers[1].projection.weight, of_bilm.backward_lm.layers[1].projection.weight
        )
        assert not any(parameter.requires_grad for parameter in head.elmo.parameters())


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ({"num_labels": 4}, "LABEL_0, LABEL_1, LABEL_2, LABEL_3"),
        ({"id2label": {0: "a", 1: "b"}}, "a, b"),
        ({"id2label": {0: "a", 1: "b", 2: "c"}}, "a, b, c"),
        ({"config": ElmoConfig(**{**SIZES, "num_labels": 4})}, "LABEL_0, LABEL_1, LABEL_2, LABEL_3"),
    ],
    ids=["number", "fewer", "other names", "config"],
)
def test_a_head_with_other_labels_is_not_loaded(given, asked, tmp_path):
    build("bcn").save_pretrained(tmp_path)
    with pytest.raises(RuntimeError, match=f"was trained for the labels LABEL_0, LABEL_1, LABEL_2, not for {asked}:"):
        ElmoForSequenceClassification.from_pretrained(tmp_path, **given)
    learned_anew = ElmoForSequenceClassification.from_pretrained(tmp_path, ignore_mismatched_sizes=True, **given)
    assert learned_anew.config.num_labels == len(learned_anew.network.output.bias)
    same = {"id2label": {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}}
    assert ElmoForSequenceClassification.from_pretrained(tmp_path, **same).config.num_labels == 3


def test_a_head_with_word_vectors_gets_no_tokenizer_without_its_words(tokenizer, tmp_path):
    build("tagger").save_pretrained(tmp_path)
    assert not (tmp_path / "tokenizer_config.json").exists()
    build("tagger", word_vector_dim=0).save_pretrained(tmp_path / "characters")
    assert (tmp_path / "characters" / "tokenizer_config.json").is_file()


def test_word_vectors_are_the_embedding_and_unknown_words_their_mean(tokenizer):
    model = build("tagger")
    vectors = torch.arange(25.0).view(5, 5)
    model.set_word_vectors(vectors)
    weight = model.word_embeddings.weight
    assert torch.equal(weight[tokenizer.convert_tokens_to_ids(WORDS)], vectors)
    assert torch.equal(weight[tokenizer.unk_token_id], vectors.mean(0))
    assert not weight[[0, 1, 2]].any()
    assert tokenizer.convert_tokens_to_ids(["River", "zebra"]) == [6, 3]
    with pytest.raises(ValueError, match="vectors of 5 words and size 5"):
        model.set_word_vectors(vectors[:, :4])


def test_the_penalty_of_the_mixes_is_in_the_training_loss_alone(tokenizer):
    inputs, labels = encode("bcn", tokenizer), torch.tensor([0, 1, 2])
    losses = {}
    for l2 in (0.0, 0.5):
        model = build("bcn", head_dropout=0.0, elmo_dropout=0.0, mix_l2=l2)
        with torch.no_grad():
            model.input_mix.scalar.scalar_weights.copy_(torch.tensor([1.0, 2.0, 0.0]))
        losses[l2] = (
            model.eval()(**inputs, labels=labels).loss.item(),
            model.train()(**inputs, labels=labels).loss.item(),
        )
    assert losses[0.5][0] == pytest.approx(losses[0.0][0])
    assert losses[0.5][1] - losses[0.0][1] == pytest.approx(0.5 * 5, rel=1e-4)


@pytest.mark.parametrize("mix", ["average", "last"])
def test_mixes_that_are_not_learned_have_no_weights(mix, tokenizer):
    model = build("tagger", mix=mix)
    assert not any("mix" in name for name, _ in model.named_parameters())
    assert model.mix_weights() == {}
    assert model(**encode("tagger", tokenizer)).logits.isfinite().all()


@pytest.mark.parametrize("layer_norm", [False, True])
def test_the_pooled_network_reads_all_layers_side_by_side(layer_norm, tokenizer):
    model = build("pooled", "input", word_vector_dim=0, mix_layer_norm=layer_norm)
    inputs = encode("bcn", tokenizer)
    read = []
    model.network.register_forward_pre_hook(lambda _, texts: read.append(texts[0]))
    with torch.no_grad():
        layers = model(**inputs, output_hidden_states=True).hidden_states
    mask = inputs["attention_mask"].bool()
    expected = []
    for layer, size in zip(layers, (8, 16, 16), strict=True):
        values = layer[mask]
        if layer_norm:
            values = (values - values.mean()) / values.std(correction=0)
        expected.append(values[:, :size])
    is_word = inputs["char_ids"][mask][:, 1] < 256  # rather than a marker of a sentence
    (text,) = read
    torch.testing.assert_close(text.features[text.mask], torch.cat(expected, dim=1)[is_word], atol=1e-5, rtol=0)
    assert not any("mix" in name for name, _ in model.named_parameters())


@pytest.mark.parametrize("mix", ["average", "last"])
def test_a_mix_that_is_not_learned_is_the_pooled_networks_too(mix, tokenizer):
    model = build("pooled", "input", word_vector_dim=0, mix=mix)
    read = []
    model.network.register_forward_pre_hook(lambda _, texts: read.append(texts[0]))
    inputs = encode("bcn", tokenizer, order=(0,))
    layers = model(**inputs, output_hidden_states=True).hidden_states
    expected = torch.stack(layers).mean(0) if mix == "average" else layers[-1]
    torch.testing.assert_close(read[0].features, expected[:, 1:-1])


def test_decode_gives_each_words_label_and_the_outputs_line_up(tokenizer):
    model = build(
        "tagger", id2label={0: "O", 1: "B-X", 2: "I-X"}, label2id={"O": 0, "B-X": 1, "I-X": 2}, tag_scheme="BIO"
    )
    inputs = encode("tagger", tokenizer)
    output = model(**inputs)
    decoded = model.decode(**inputs)
    assert [len(row) for row in decoded] == [5, 2, 11]
    for row, labels in zip(output.predictions.tolist(), decoded, strict=True):
        assert row[0] == IGNORED
        assert row[1 : len(labels) + 1] == labels
        assert set(row[len(labels) + 1 :]) == {IGNORED}
    torch.testing.assert_close(output.logits[0, 1:6].exp().sum(-1), torch.ones(5))


def test_without_a_crf_the_loss_is_the_mean_cross_entropy(tokenizer):
    model = build("tagger", use_crf=False)
    inputs = encode("tagger", tokenizer)
    labels = torch.where(inputs["attention_mask"].bool(), 1, IGNORED)
    labels[:, 0] = IGNORED
    labels[0, 6] = labels[1, 3] = labels[2, 12] = IGNORED
    output = model(**inputs, labels=labels)
    expected = nn.functional.cross_entropy(output.logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
    torch.testing.assert_close(output.loss, expected)


@pytest.mark.parametrize("head", HEADS)
def test_without_any_label_the_loss_is_zero(head, tokenizer):
    inputs = encode(head, tokenizer, return_special_tokens_mask=True)
    labels = torch.full_like(labels_for(head, {**inputs, "special": inputs.pop("special_tokens_mask")}), IGNORED)
    assert build(head)(**inputs, labels=labels).loss.item() == 0


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("head", HEADS)
def test_heads_train_and_evaluate_under_autocast(head, threads, tokenizer):
    inputs = encode(head, tokenizer, return_special_tokens_mask=True)
    labels = labels_for(head, {**inputs, "special": inputs.pop("special_tokens_mask")})
    model, before = build(head), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for is_training in (True, False):
            with torch.autocast("cpu", dtype=torch.bfloat16), torch.set_grad_enabled(is_training):
                loss = model.train(is_training)(**inputs, labels=labels).loss
            assert loss.isfinite()
            if is_training:
                loss.backward()
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("head", ["tagger", "srl"])
@pytest.mark.parametrize("sizes", [(2, 2), (1, 4)])
def test_under_trainer_accumulated_small_batches_of_words_equal_one_big_batch(head, sizes, tokenizer, tmp_path):
    rows = [{**row, "predicate_index": 1} if head == "srl" else row for row in tagged_rows(tokenizer)]
    found = []
    for batch, steps in ((4, 1), sizes):
        model = build(head, use_crf=False, head_dropout=0.0, elmo_dropout=0.0, dropout=0.0, mix_l2=0.1)
        settings = TrainingArguments(
            str(tmp_path),
            max_steps=1,
            learning_rate=1.0,
            optim="sgd",
            max_grad_norm=0,
            per_device_train_batch_size=batch,
            gradient_accumulation_steps=steps,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
        )
        collator = DataCollatorForTokenClassification(tokenizer)
        Trainer(model, settings, collator, Dataset.from_list(rows)).train()
        found.append(model.state_dict())
    for name, values in found[0].items():
        torch.testing.assert_close(values, found[1][name], atol=TOLERANCE, rtol=0, msg=name)


@pytest.mark.parametrize("head", [head for head in HEADS if head != "srl"])  # which has a predicate in every text
def test_empty_texts_are_read(head, tokenizer):
    model = build(head)
    empty = [[], ["the"]]
    if head in ("bcn", "tagger"):
        inputs = dict(tokenizer(empty, is_split_into_words=True, padding=True, return_tensors="pt"))
        only = dict(tokenizer([[]], is_split_into_words=True, padding=True, return_tensors="pt"))
    else:
        inputs = dict(tokenizer(empty, empty[::-1], is_split_into_words=True, padding=True, return_tensors="pt"))
        only = dict(tokenizer([[]], [[]], is_split_into_words=True, padding=True, return_tensors="pt"))
        if head == "choice":
            inputs, only = ({name: tensor[:, None] for name, tensor in batch.items()} for batch in (inputs, only))
    for batch in (inputs, only):
        assert model(**batch).logits.isfinite().all()


@pytest.mark.parametrize("head", ["pooled", "bcn"])
def test_kinds_of_problems_have_the_losses_of_other_heads(head, tokenizer):
    inputs = encode("bcn", tokenizer)
    numbers = torch.tensor([0.5, -1.0, 2.0])
    model = build(head, num_labels=1)
    output = model(**inputs, labels=numbers)
    torch.testing.assert_close(output.loss, nn.functional.mse_loss(output.logits[:, 0], numbers))
    several = torch.tensor([[1.0, 0, 1], [0, 0, 0], [1, 1, 1]])
    model = build(head)
    output = model(**inputs, labels=several)
    torch.testing.assert_close(output.loss, nn.functional.binary_cross_entropy_with_logits(output.logits, several))


def test_a_pooled_text_has_the_same_scores_beside_pairs_and_with_or_without_types(tokenizer):
    model = build("pooled")
    pairs, texts = encode("pooled", tokenizer), encode("bcn", tokenizer)
    of_pairs, of_texts = model(**pairs).logits, model(**texts).logits
    assert (of_pairs - of_texts).abs().amin() > TOLERANCE
    both = [(SENTENCES[0], SECOND[0]), SENTENCES[1]]
    rows = [tokenizer(*row) if isinstance(row, tuple) else tokenizer(row) for row in both]
    mixed = model(**tokenizer.pad(rows, return_tensors="pt")).logits
    torch.testing.assert_close(mixed, torch.stack([of_pairs[0], of_texts[1]]), atol=TOLERANCE, rtol=0)
    for inputs, expected in ((pairs, of_pairs), (texts, of_texts)):
        inputs.pop("token_type_ids")
        torch.testing.assert_close(model(**inputs).logits, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda t: build("esim")(**encode("bcn", t)), "reads pairs"),
        (lambda t: build("bcn")(**encode("esim", t)), "one text per row"),
        (lambda t: build("pooled", "output", word_vector_dim=0), "nothing to read"),
        (lambda t: build("bcn")(**encode("bcn", t), labels=torch.tensor([0, 1, 3])), "from 0 to 2"),
        (lambda t: build("tagger")(input_ids=torch.zeros(1, 2).long()), "needs `char_ids`"),
        (lambda t: build("bcn", "none", word_vector_dim=0), "nothing to read"),
    ],
)
def test_what_cannot_work_is_named(call, message, tokenizer):
    with pytest.raises(ValueError, match=message):
        call(tokenizer)


@pytest.mark.parametrize(("name", "value"), [("head_dim", 0), ("elmo_dropout", 1.0), ("head_layers", 0)])
def test_sizes_that_cannot_be_built_are_refused_by_name(name, value):
    with pytest.raises(StrictDataclassError, match=f"`{name}` must be"):
        ElmoConfig(**{name: value})


def test_heads_of_one_text_refuse_pairs(tokenizer):
    tagger = ElmoForTokenClassification(ElmoConfig(**SIZES))
    with pytest.raises(ValueError, match="reads one text per row"):
        tagger(**tokenizer(["a b"], ["c"], return_tensors="pt"))


@pytest.mark.parametrize("probability", [0.1, 0.5])
def test_dropout_loses_its_share_and_keeps_the_mean(probability):
    torch.manual_seed(0)
    noise = Dropout(probability)(torch.ones(1001, 301))
    assert noise.unique().tolist() == pytest.approx([0, 1 / (1 - probability)], rel=1e-4)
    assert (noise == 0).float().mean().item() == pytest.approx(probability, abs=0.005)
    assert noise.mean().item() == pytest.approx(1, abs=0.01)
    rows = noise.flatten()[:300_000].view(-1, 4)  # values that come from one random number are independent
    assert abs(torch.corrcoef(rows.T)[0, 1:]).max() < 0.02
    assert torch.equal(Dropout(probability).eval()(torch.ones(3)), torch.ones(3))


# ---------------------------------------------------------------------------------- Trainer, collators and pipelines

LABELS = {0: "O", 1: "B-LOC", 2: "I-LOC"}
# Sizes with which a few sentences are learned by heart in seconds.
EASY = {"head_dim": 16, "head_dropout": 0.0, "elmo_dropout": 0.0}


def tagged_rows(tokenizer: ElmoTokenizer) -> list[dict]:
    rows = []
    for words, labels in (
        (["We", "saw", "New", "York", "."], [0, 0, 1, 2, 0]),
        (["Paris", "is", "nice"], [1, 0, 0]),
        (["He", "left", "Oslo", "and", "Rome"], [0, 0, 1, 0, 1]),
        (["no", "town", "here", "."], [0, 0, 0, 0]),
    ):
        encoding = tokenizer(words, is_split_into_words=True)
        rows.append(
            {**encoding, "labels": [IGNORED if word is None else labels[word] for word in encoding.word_ids()]}
        )
    return rows


def arguments(folder) -> TrainingArguments:
    return TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=60,
        learning_rate=0.01,
        per_device_train_batch_size=2,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )


@pytest.fixture(scope="module")
def tagger_folder(tmp_path_factory):
    """A tagger trained by a plain Trainer with the stock collator, as its own code would be used."""
    folder = tmp_path_factory.mktemp("tagger")
    tokenizer = ElmoTokenizer(vocab=WORDS, lowercase_fallback=True)
    model = build(
        "tagger", **EASY, id2label=LABELS, label2id={name: number for number, name in LABELS.items()}, tag_scheme="BIO"
    )
    trainer = Trainer(
        model=model,
        args=arguments(folder / "run"),
        train_dataset=Dataset.from_list(tagged_rows(tokenizer)),
        data_collator=DataCollatorForTokenClassification(tokenizer),
        processing_class=tokenizer,
    )
    trainer.train()
    trainer.save_model(str(folder / "model"))
    return folder / "model"


def test_the_token_classification_pipeline_gives_words_spans_and_labels_of_raw_text(tagger_folder):
    find = pipeline("token-classification", model=str(tagger_folder), aggregation_strategy="simple")
    text = "We saw New York."
    (found,) = find(text)
    assert (found["entity_group"], found["word"]) == ("LOC", "New York")
    assert text[found["start"] : found["end"]] == "New York"
    assert found["score"] > 0.5
    each = pipeline("token-classification", model=str(tagger_folder))(text)
    assert [(one["word"], one["entity"], one["start"]) for one in each] == [("New", "B-LOC", 7), ("York", "I-LOC", 11)]


def test_the_token_classification_pipeline_takes_words(tagger_folder):
    find = pipeline("token-classification", model=str(tagger_folder), aggregation_strategy="simple")
    ((first, second),) = find([["He", "left", "Oslo", "and", "Rome"]], is_split_into_words=True)
    assert [(one["word"], one["start"], one["end"]) for one in (first, second)] == [("Oslo", 8, 12), ("Rome", 17, 21)]


def test_a_trained_tagger_loads_by_its_auto_class(tagger_folder):
    assert type(AutoModelForTokenClassification.from_pretrained(tagger_folder)) is ElmoForTokenClassification


@pytest.mark.parametrize(("head", "pairs"), [("pooled", False), ("pooled", True), ("bcn", False), ("esim", True)])
def test_the_text_classification_pipeline_gives_labels(head, pairs, tokenizer, tmp_path):
    texts = [("a fine bank", "money"), ("a poor river", "the"), ("fine money", "bank"), ("poor the", "river")]
    labels = [1, 0, 1, 0]
    model = build(
        head,
        **EASY,
        num_labels=2,
        id2label={0: "bad", 1: "good"},
        label2id={"bad": 0, "good": 1},
    )
    rows = [
        {**tokenizer(*(text if pairs else text[:1])), "label": label}
        for text, label in zip(texts, labels, strict=True)
    ]
    trainer = Trainer(
        model=model,
        args=arguments(tmp_path / "run"),
        train_dataset=Dataset.from_list(rows),
        data_collator=DataCollatorWithPadding(tokenizer),
        processing_class=tokenizer,
    )
    trainer.train()
    trainer.save_model(str(tmp_path / "model"))
    assert (
        type(AutoModelForSequenceClassification.from_pretrained(tmp_path / "model")) is ElmoForSequenceClassification
    )
    classify = pipeline("text-classification", model=str(tmp_path / "model"))
    inputs = [{"text": first, "text_pair": second} if pairs else first for first, second in texts]
    assert [found["label"] for found in classify(inputs)] == ["good", "bad", "good", "bad"]


def test_the_stock_collator_of_multiple_choice_trains(tokenizer, tmp_path):
    model = build("choice", **EASY)
    rows = []
    for context, choices, label in (
        ("the river", ["money", "the bank"], 1),
        ("money", ["the bank .", "river"], 0),
        ("the bank", ["river", "money"], 0),
    ):
        encoding = tokenizer([context] * 2, choices)
        rows.append({**encoding, "label": label})
    collator = DataCollatorForMultipleChoice(tokenizer)
    batch = collator([dict(row) for row in rows])
    assert model(**batch).logits.shape == (3, 2)
    trainer = Trainer(
        model=model, args=arguments(tmp_path), train_dataset=Dataset.from_list(rows), data_collator=collator
    )
    trainer.train()
    with torch.no_grad():
        assert model.eval()(**collator([dict(row) for row in rows])).logits.argmax(-1).tolist() == [1, 0, 0]
