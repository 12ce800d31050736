"""The networks of the task models against the formulas of their papers, one text and one word at a time.

The formulas are in NumPy, float64, without padding, packing or masks, and share nothing with the package but the names
of the weights.

Shapes: T words of a text, S words of another, D features of a word, E of them ELMo's, H units of an LSTM or a GRU.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import pytest
import torch
from numpy_elmo import sigmoid
from torch import Tensor, nn

from modeling_elmo.classification_elmo import BiattentiveNetwork, Esim, PooledNetwork
from modeling_elmo.heads_elmo import Words
from modeling_elmo.reading_elmo import ParagraphReader

INPUTS, UNITS, OUTPUTS = 5, 3, 4
ELMO_SIZES = (0, 7)  # without ELMo at the output, and with it
LENGTHS = (4, 1, 6, 2)  # a single word too, which has no other to attend to
OTHER_LENGTHS = (7, 1, 3, 5)
# Both texts of a pair are now the longer, now the shorter one, in an example and in the batch.
PAIRS_OF_LENGTHS = ((LENGTHS, OTHER_LENGTHS), (OTHER_LENGTHS, LENGTHS))
# Sums of some dozen float64 products in another order differ by 2e-15 here; other formulas by far more.
TOLERANCE = 1e-10

Vector = np.ndarray
Weights = Mapping[str, np.ndarray]
Recurrence = Callable[[Weights, str, Sequence[Vector]], list[Vector]]


# ------------------------------------------------------------------------------------------------------------- parts


def linear(weights: Weights, name: str, x: Vector) -> Vector:
    return weights[f"{name}.weight"] @ x + weights.get(f"{name}.bias", 0.0)


def relu(x: Vector) -> Vector:
    return np.maximum(x, 0)


def attended(scores: Iterable[float], vectors: Sequence[Vector]) -> Vector:
    """The sum of the vectors, each as often as the softmax of its score says."""
    powers = np.exp(np.array(list(scores)))
    return sum(power / powers.sum() * vector for power, vector in zip(powers, vectors, strict=True))


def lstm(weights: Weights, name: str, words: Sequence[Vector]) -> list[Vector]:
    """T x (D,) in reading order -> T x (H,). Gates are stored as i, j, f, o, and f's bias without its 1."""
    h = c = np.zeros(UNITS)
    outputs = []
    for x in words:
        gates = linear(weights, f"{name}.input_gates", x) + linear(weights, f"{name}.recurrent_gates", h)
        i, j, f, o = np.split(gates, 4)
        c = sigmoid(f + 1) * c + sigmoid(i) * np.tanh(j)
        h = sigmoid(o) * np.tanh(c)
        outputs.append(h)
    return outputs


def gru(weights: Weights, name: str, words: Sequence[Vector]) -> list[Vector]:
    """T x (D,) in reading order -> T x (H,). Gates are stored as r, z, n; r acts on the state's share of n."""
    h = np.zeros(UNITS)
    outputs = []
    for x in words:
        r, z, n = np.split(linear(weights, f"{name}.input_gates", x), 3)
        u_r, u_z, u_n = np.split(linear(weights, f"{name}.recurrent_gates", h), 3)
        r, z = sigmoid(r + u_r), sigmoid(z + u_z)
        h = (1 - z) * np.tanh(n + r * u_n) + z * h
        outputs.append(h)
    return outputs


def both_ways(read: Recurrence, weights: Weights, name: str, words: Sequence[Vector]) -> list[Vector]:
    """T x (D,) -> T x (2H,), what was read from the left before what was read from the right."""
    forward = read(weights, f"{name}.forward_layers.0", words)
    backward = read(weights, f"{name}.backward_layers.0", words[::-1])[::-1]
    return [np.concatenate(sides) for sides in zip(forward, backward, strict=True)]


def beside(words: Sequence[Vector], elmo: Sequence[Vector] | None) -> list[Vector]:
    return list(words) if elmo is None else [np.concatenate(pair) for pair in zip(words, elmo, strict=True)]


# ---------------------------------------------------------------------------------------------------------- networks


class Text:
    """The real words of one text of a batch."""

    def __init__(self, words: Words, row: int) -> None:
        length = int(words.mask[row].sum())
        self.words = list(words.features[row, :length].numpy())
        self.elmo = None if words.elmo is None else list(words.elmo[row, :length].numpy())


def maxout(weights: Weights, name: str, x: Vector) -> Vector:
    """Each feature is the largest of four maps, which are stored next to each other."""
    maps = linear(weights, f"{name}.linear", x)
    return np.array([max(maps[first : first + 4]) for first in range(0, len(maps), 4)])


def pooled_vector(weights: Weights, text: Text) -> Vector:
    """The maximum of the words' hidden layers, beside the mean of the output's ELMo vectors; of no word."""
    if not text.words:
        return np.zeros(0)
    vector = np.max([relu(linear(weights, "hidden", x)) for x in text.words], axis=0)
    return vector if text.elmo is None else np.concatenate([vector, np.mean(text.elmo, axis=0)])


def pooled_scores(weights: Weights, first: Text, second: Text) -> Vector:
    """W u + b, and of a pair V [v; |u - v|; u * v] too -> (outputs,)."""
    u, v = pooled_vector(weights, first), pooled_vector(weights, second)
    scores = linear(weights, "output", u)
    if second.words:
        scores = scores + weights["pair_output.weight"] @ np.concatenate([v, np.abs(u - v), u * v])
    return scores


def biattentive_scores(weights: Weights, text: Text) -> Vector:
    """McCann et al. (2017), section 5, where the second sequence is the first: -> (outputs,)."""
    encoded = both_ways(lstm, weights, "encoder", [relu(linear(weights, "reduce", x)) for x in text.words])
    conditioned = []
    for x in encoded:
        context = attended((x @ y for y in encoded), encoded)
        conditioned.append(np.concatenate([x, x - context, x * context]))
    integrated = beside(both_ways(lstm, weights, "integrator", conditioned), text.elmo)
    itself = attended((linear(weights, "attention", x).item() for x in integrated), integrated)
    largest, mean, smallest = (pool(integrated, axis=0) for pool in (np.max, np.mean, np.min))
    joined = np.concatenate([largest, mean, smallest, itself])
    return linear(weights, "output", maxout(weights, "hidden.1", maxout(weights, "hidden.0", joined)))


def esim_scores(weights: Weights, premise: Text, hypothesis: Text) -> Vector:
    """Chen et al. (2017), section 3, of sequences and not of trees -> (outputs,)."""
    a, b = (beside(both_ways(lstm, weights, "encoder", text.words), text.elmo) for text in (premise, hypothesis))
    pools = []
    for own, other in ((a, b), (b, a)):
        enhanced = []
        for x in own:
            aligned = attended((x @ y for y in other), other)
            enhanced.append(np.concatenate([x, aligned, x - aligned, x * aligned]))
        composed = both_ways(lstm, weights, "composer", [relu(linear(weights, "compare", m)) for m in enhanced])
        pools += [np.mean(composed, axis=0), np.max(composed, axis=0)]
    return linear(weights, "output", np.tanh(linear(weights, "hidden", np.concatenate(pools))))


def reader_scores(weights: Weights, question: Text, context: Text) -> tuple[Vector, Vector]:
    """Clark and Gardner (2018): the scores of the context's words as beginnings (T,) and as ends (T,)."""
    q, h = (beside(both_ways(gru, weights, "encoder", text.words), text.elmo) for text in (question, context))
    # Bi-attention: a_ij = w_1 · h_i + w_2 · q_j + w_3 · (h_i * q_j)
    w_1, w_2 = weights["relevance.weight"][0], weights["similarity.second.weight"][0]
    w_3 = weights["similarity.product"]
    a = [[w_1 @ x + w_2 @ y + w_3 @ (x * y) for y in q] for x in h]
    q_c = attended((max(row) for row in a), h)
    merged = []
    for x, row in zip(h, a, strict=True):
        c = attended(row, q)
        merged.append(relu(linear(weights, "merge", np.concatenate([x, c, x * c, q_c * c]))))
    # Self-attention, in which no word attends to itself: what w_1 would add is the same for all words of a softmax.
    w_2, w_3 = weights["self_similarity.second.weight"][0], weights["self_similarity.product"]
    modelled = both_ways(gru, weights, "modeller", merged)
    read = []
    for place, (before, x) in enumerate(zip(merged, modelled, strict=True)):
        others = modelled[:place] + modelled[place + 1 :]
        c = attended((w_2 @ y + w_3 @ (x * y) for y in others), others) if others else np.zeros_like(x)
        read.append(before + relu(linear(weights, "self_merge", np.concatenate([x, c, x * c]))))
    starts = both_ways(gru, weights, "start_encoder", read)
    ends = both_ways(gru, weights, "end_encoder", beside(read, starts))
    return tuple(
        np.array([linear(weights, name, x).item() for x in found])
        for name, found in (("start", starts), ("end", ends))
    )


# ------------------------------------------------------------------------------------------------------------- tests


def prepared(network: nn.Module) -> tuple[nn.Module, Weights]:
    """The network, for float64, with every weight random, so that none is neutral; and its weights."""
    torch.manual_seed(0)
    network.double().eval()
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.5)
    return network, {name: tensor.numpy() for name, tensor in network.state_dict().items()}


def batch_of(lengths: Sequence[int], elmo: int) -> Words:
    """Random words, at padding as well, which must not count."""
    rows, words = len(lengths), max(lengths) + 1
    return Words(
        features=torch.randn(rows, words, INPUTS, dtype=torch.float64),
        elmo=torch.randn(rows, words, elmo, dtype=torch.float64) if elmo else None,
        mask=torch.arange(words) < torch.tensor(lengths)[:, None],
        chosen=torch.ones(rows, words, dtype=torch.bool),
    )


def assert_same(found: Tensor, expected: Vector) -> None:
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, torch.from_numpy(expected), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("second", [(2, 4, 1, 3), (0, 3, 0, 0)], ids=["pairs", "texts and a pair"])
@pytest.mark.parametrize("elmo", ELMO_SIZES)
@torch.no_grad()
def test_the_pooled_network_has_the_scores_of_its_formulas(elmo: int, second: Sequence[int]) -> None:
    network, weights = prepared(PooledNetwork(INPUTS, elmo, UNITS, dropout=0.5, outputs=OUTPUTS))
    texts = (batch_of(LENGTHS, elmo), batch_of(second, elmo))
    for row, scores in enumerate(network(*texts)):
        assert_same(scores, pooled_scores(weights, *(Text(batch, row) for batch in texts)))


@pytest.mark.parametrize("elmo", ELMO_SIZES)
@torch.no_grad()
def test_the_biattentive_network_has_the_scores_of_its_formulas(elmo: int) -> None:
    network, weights = prepared(BiattentiveNetwork(INPUTS, elmo, UNITS, dropout=0.5, outputs=OUTPUTS))
    batch = batch_of(LENGTHS, elmo)
    found = network(batch)
    assert found.shape == (len(LENGTHS), OUTPUTS)
    for row, scores in enumerate(found):
        assert_same(scores, biattentive_scores(weights, Text(batch, row)))


@pytest.mark.parametrize("lengths", PAIRS_OF_LENGTHS)
@pytest.mark.parametrize("elmo", ELMO_SIZES)
@torch.no_grad()
def test_esim_has_the_scores_of_its_formulas(elmo: int, lengths: tuple[Sequence[int], Sequence[int]]) -> None:
    network, weights = prepared(Esim(INPUTS, elmo, UNITS, dropout=0.5, outputs=OUTPUTS))
    first, second = (batch_of(own, elmo) for own in lengths)
    found = network(first, second)
    assert found.shape == (len(LENGTHS), OUTPUTS)
    for row, scores in enumerate(found):
        assert_same(scores, esim_scores(weights, Text(first, row), Text(second, row)))


@pytest.mark.parametrize("lengths", PAIRS_OF_LENGTHS)
@pytest.mark.parametrize("elmo", ELMO_SIZES)
@torch.no_grad()
def test_the_reader_has_the_scores_of_its_formulas(elmo: int, lengths: tuple[Sequence[int], Sequence[int]]) -> None:
    network, weights = prepared(ParagraphReader(INPUTS, elmo, UNITS, dropout=0.5))
    question, context = (batch_of(own, elmo) for own in lengths)
    exact: list[Tensor] = []  # the scores of both layers, which are returned in float32, as they were computed
    for layer in (network.start, network.end):
        layer.register_forward_hook(lambda module, inputs, output: exact.append(output.squeeze(-1)))
    returned = network(question, context)
    for scores, rounded in zip(exact, returned, strict=True):
        assert torch.equal(rounded, scores.float())
    for row, length in enumerate(lengths[1]):
        expected = reader_scores(weights, Text(question, row), Text(context, row))
        for scores, of_formula in zip(exact, expected, strict=True):
            assert_same(scores[row, :length], of_formula)
