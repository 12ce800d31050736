"""The softmax over words: its sampling, its losses and their gradients."""

import math

import pytest
import torch

from modeling_elmo import ElmoConfig, ElmoForPreTraining
from modeling_elmo.softmax_elmo import ElmoSoftmax, Negatives, _log_expected_count, draw_negatives

VOCABULARY, SIZE = 60, 5
# bfloat16 has 8 binary digits, of which sums of products keep about 7.
SIXTEEN_BITS = 2**-7
# Of a mean of samples from what it estimates, squared, in units of its variance.
LARGEST_DISTANCE = 2.0


def make_softmax(vocabulary: int = VOCABULARY, sparse: bool = False) -> ElmoSoftmax:
    torch.manual_seed(0)
    softmax = ElmoSoftmax(vocabulary, SIZE).double()
    with torch.no_grad():
        softmax.weight.normal_()
        softmax.bias.normal_()
    softmax.sparse = sparse
    return softmax


@pytest.fixture
def hidden() -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(40, SIZE, dtype=torch.float64, requires_grad=True)


@pytest.fixture
def targets() -> torch.Tensor:
    torch.manual_seed(2)
    return torch.randint(1, VOCABULARY, (40,))


def by_hand(softmax: ElmoSoftmax, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """-log p of the targets, word by word, among all words but padding."""
    logits = hidden @ softmax.weight.T + softmax.bias
    return torch.stack(
        [torch.logsumexp(row[1:], 0) - row[target] for row, target in zip(logits, targets, strict=True)]
    )


@pytest.mark.parametrize("logits_at_once", [7, 130, 1 << 23])
@pytest.mark.parametrize("words_at_once", [13, 1 << 14])
def test_the_full_loss_equals_the_one_by_hand_whatever_the_chunks(
    logits_at_once, words_at_once, hidden, targets, monkeypatch
):
    monkeypatch.setattr("modeling_elmo.softmax_elmo.LOGITS_AT_ONCE", logits_at_once)
    monkeypatch.setattr("modeling_elmo.softmax_elmo.WORDS_AT_ONCE", words_at_once)
    softmax = make_softmax()
    expected = by_hand(softmax, hidden, targets)
    torch.testing.assert_close(softmax.loss(hidden, targets), expected.sum())
    torch.testing.assert_close(-softmax.log_probabilities(hidden, targets), expected.detach())
    wanted = torch.autograd.grad(expected.sum(), [hidden, softmax.weight, softmax.bias])
    got = torch.autograd.grad(softmax.loss(hidden, targets), [hidden, softmax.weight, softmax.bias])
    torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("logits_at_once", [7, 1 << 23])
def test_the_sampled_loss_equals_the_one_by_hand_whatever_the_chunks(logits_at_once, hidden, targets, monkeypatch):
    monkeypatch.setattr("modeling_elmo.softmax_elmo.LOGITS_AT_ONCE", logits_at_once)
    softmax = make_softmax()
    negatives = draw_negatives(VOCABULARY, 20)
    parameters = [hidden, softmax.weight, softmax.bias]
    loss = hidden.new_zeros(())
    logits = hidden @ softmax.weight.T + softmax.bias
    for word in range(1, VOCABULARY):  # correct each logit for how often its word is sampled
        count = 1 - (1 - math.log(1 + 1 / word) / math.log(VOCABULARY)) ** negatives.tries
        logits = logits - torch.nn.functional.one_hot(torch.tensor(word), VOCABULARY) * math.log(count)
    for row, target in zip(logits, targets.tolist(), strict=True):
        others = [word for word in negatives.ids.tolist() if word != target]
        loss = loss + torch.logsumexp(row[[target, *others]], 0) - row[target]
    got = softmax.loss(hidden, targets, negatives)
    # The counts are float32, as the weights they correct are in training.
    torch.testing.assert_close(got, loss, rtol=1e-6, atol=0)
    torch.testing.assert_close(
        torch.autograd.grad(got, parameters), torch.autograd.grad(loss, parameters), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("count", [None, 20])
def test_under_autocast_the_loss_and_its_gradients_are_about_the_same(count, hidden, targets):
    softmax = make_softmax().float()
    hidden = hidden.detach().float().requires_grad_()
    negatives = None if count is None else draw_negatives(VOCABULARY, count)
    parameters = [hidden, softmax.weight, softmax.bias]
    exact = softmax.loss(hidden, targets, negatives)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = softmax.loss(hidden, targets, negatives)
    assert rounded.dtype == torch.float32
    assert rounded != exact  # 16 bits are really used
    torch.testing.assert_close(rounded, exact, rtol=SIXTEEN_BITS, atol=0)
    for got, wanted in zip(*(torch.autograd.grad(loss, parameters) for loss in (rounded, exact)), strict=True):
        assert (got - wanted).norm() < 2 * SIXTEEN_BITS * wanted.norm()


def test_sparse_gradients_are_the_dense_ones_and_hold_only_the_rows_read(hidden, targets):
    dense, sparse = make_softmax(), make_softmax(sparse=True)
    negatives = draw_negatives(VOCABULARY, 10)
    for softmax in (dense, sparse):
        softmax.loss(hidden, targets, negatives).backward()
    rows = set(negatives.ids.tolist()) | set(targets.tolist())
    for name, parameter in sparse.named_parameters():
        assert parameter.grad.is_sparse
        assert set(parameter.grad.coalesce().indices()[0].tolist()) == rows
        torch.testing.assert_close(parameter.grad.to_dense(), dense.get_parameter(name).grad)


def test_rows_that_other_processes_predict_get_gradients_of_zero(hidden, targets):
    softmax = make_softmax(sparse=True)
    negatives = draw_negatives(VOCABULARY, 10)
    everyones = torch.cat([targets, torch.arange(1, VOCABULARY)])
    alone = softmax.loss(hidden, targets, negatives)
    together = softmax.loss(hidden, targets, negatives.including(everyones))
    torch.testing.assert_close(together, alone)
    together.backward()
    assert len(softmax.weight.grad.coalesce().indices()[0]) == VOCABULARY - 1


def test_sampled_words_are_different_sorted_and_never_padding():
    for seed in range(20):
        ids, tries, _ = draw_negatives(1000, 300, torch.Generator().manual_seed(seed))
        assert len(ids) == 300 <= tries
        assert (ids[1:] > ids[:-1]).all()
        assert ids[0] >= 1
        assert ids[-1] < 1000


def test_words_are_sampled_as_often_as_expected():
    """By the formula, in samples that took the same number of tries."""
    draws = [draw_negatives(50, 12, torch.Generator().manual_seed(seed)) for seed in range(4000)]
    seen = torch.zeros(50, dtype=torch.float64)
    expected = torch.zeros(50, dtype=torch.float64)
    for ids, tries, _ in draws:
        seen[ids] += 1
        expected[1:] += _log_expected_count(torch.arange(1, 50), 50, tries).exp()
    # Given the tries the counts are not quite independent of them: a few per cent at this small size.
    torch.testing.assert_close(seen[1:] / len(draws), expected[1:] / len(draws), atol=0.02, rtol=0.05)


def test_the_same_seed_draws_the_same_words():
    first, second = (draw_negatives(500, 40, torch.Generator().manual_seed(7)) for _ in range(2))
    assert torch.equal(first.ids, second.ids)
    assert first.tries == second.tries


@pytest.mark.parametrize("corrected", [True, False])
def test_the_mean_of_sampled_gradients_is_the_full_gradient_within_sampling_error(corrected, monkeypatch):
    """Where words are predicted about as often as they are sampled. Without the correction for how often they are, the
    same comparison fails by far. (The estimate is consistent rather than unbiased: with many more repetitions than
    these a difference of a thousandth shows, which shrinks as more words are sampled.)
    """
    if not corrected:
        monkeypatch.setattr(
            "modeling_elmo.softmax_elmo._log_expected_count", lambda words, *_: torch.zeros(len(words))
        )
    vocabulary, repetitions = 2000, 100
    torch.manual_seed(0)
    softmax = ElmoSoftmax(vocabulary, 8).double()
    with torch.no_grad():
        softmax.weight.normal_(std=0.3)
        softmax.bias.copy_(-torch.log(torch.arange(vocabulary).clamp(min=1).double()))
    hidden = torch.randn(30, 8, dtype=torch.float64, requires_grad=True)
    targets = (torch.rand(30, dtype=torch.float64) * math.log(vocabulary)).exp().long()
    parameters = [hidden, softmax.weight, softmax.bias]
    full = torch.autograd.grad(softmax.loss(hidden, targets), parameters)
    samples: list[list[torch.Tensor]] = [[], [], []]
    for seed in range(repetitions):
        negatives = draw_negatives(vocabulary, 500, torch.Generator().manual_seed(seed))
        gradients = torch.autograd.grad(softmax.loss(hidden, targets, negatives), parameters)
        for kept, gradient in zip(samples, gradients, strict=True):
            kept.append(gradient)
    for number, (drawn, expected) in enumerate(zip(samples, full, strict=True)):
        drawn = torch.stack(drawn)
        variance_of_mean = (drawn.var(0) / repetitions).sum()
        # The squared distance of the mean, which is 1 on average for an estimate without bias.
        distance = (drawn.mean(0) - expected).square().sum() / variance_of_mean
        assert (distance < LARGEST_DISTANCE) == corrected, f"parameter {number}: {distance:.2f}"


def test_before_training_words_are_as_probable_as_they_are_sampled():
    """Where the output is 0; so the first loss is that of the words' frequencies."""
    model = ElmoForPreTraining(ElmoConfig(vocab_size=VOCABULARY, projection_dim=8, cell_dim=8, char_filters=[[1, 8]]))
    probabilities = model.softmax(torch.zeros(8)).softmax(0)
    expected = torch.tensor([math.log(1 + 1 / word) / math.log(VOCABULARY) for word in range(1, VOCABULARY)])
    torch.testing.assert_close(probabilities[1:], expected)


def test_logits_give_padding_no_chance():
    softmax = make_softmax()
    logits = softmax(torch.randn(3, SIZE, dtype=torch.float64))
    assert logits.shape == (3, VOCABULARY)
    assert (logits.softmax(-1)[:, 0] == 0).all()


def test_no_predictions_lose_nothing():
    softmax = make_softmax()
    nothing = torch.zeros(0, SIZE, dtype=torch.float64, requires_grad=True)
    none = torch.zeros(0, dtype=torch.long)
    for negatives in (None, Negatives(torch.tensor([1, 5, 9]), 4)):
        loss = softmax.loss(nothing, none, negatives)
        assert loss == 0
        loss.backward()
        assert (softmax.weight.grad == 0).all()
    assert len(softmax.log_probabilities(nothing, none)) == 0


@pytest.mark.parametrize("count", [None, 20])
def test_a_softmax_of_which_only_the_bias_trains_gets_its_gradient(count, hidden, targets):
    negatives = None if count is None else draw_negatives(VOCABULARY, count)
    whole, frozen = make_softmax(), make_softmax()
    frozen.weight.requires_grad_(False)
    for softmax in (whole, frozen):
        softmax.loss(hidden.detach(), targets, negatives).backward()
    assert frozen.weight.grad is None
    torch.testing.assert_close(frozen.bias.grad, whole.bias.grad)
