"""Dropout of what task models read: ELMo is dropped once where it enters, at its own rate, by the mask of its paper.

The mixes and the word vectors are made to be ones, so that a dropped feature is 0 and a kept one is 1 / (1 - rate):
dropped twice, it would have another value.
"""

from pathlib import Path

import pytest
import torch
import yaml
from test_head_adapters import build
from torch import Tensor, nn

from modeling_elmo import ElmoConfig
from modeling_elmo.heads_elmo import LayerMix, PairDropout, WordLstm
from modeling_elmo.roles_elmo import HighwayLstm

ELMO_RATE, REST_RATE = 0.5, 0.2
KEPT_ELMO, KEPT_REST = 2.0, 1.25
RECIPES = Path(__file__).parents[1] / "training" / "recipes"

# The modules that read the features of words, and those that read the encoder's output with ELMo after it.
ENTRANCES = {
    "bcn": "network.reduce",
    "esim": "network.encoder",
    "choice": "network.encoder",
    "tagger": "encoder",
    "srl": "encoder",
    "reader": "reader.encoder",
    "coref": "encoder",
}
EXITS = {
    "bcn": "network.attention",
    "esim": "network.compare",
    "choice": "network.compare",
    "tagger": "classifier",
    "srl": "role_classifier",
    "reader": "reader.merge",
}
HEADS = tuple(ENTRANCES)
HEADS_OF_PAIRS = ("esim", "choice", "reader")


@pytest.fixture(autouse=True)
def ones(monkeypatch):
    """Make the mixes of layers ones."""
    monkeypatch.setattr(LayerMix, "forward", lambda mix, layers, mask=None: torch.ones_like(layers[0]))


def run(head: str, *modules: str) -> tuple[nn.Module, list[tuple]]:
    """Train a model for a batch; return it and what it passed to each of the modules."""
    model, inputs = build(head, elmo_dropout=ELMO_RATE, head_dropout=REST_RATE)
    nn.init.ones_(model.word_embeddings.weight)
    received: dict[str, tuple] = {}
    for name in modules:
        model.get_submodule(name).register_forward_pre_hook(
            lambda module, arguments, name=name: received.setdefault(name, arguments)
        )
    torch.manual_seed(5)
    model.train()(**inputs)
    return model, [received[name] for name in modules]


def values(features: Tensor) -> set[float]:
    return {round(value, 4) for value in features.unique().tolist()}


@pytest.mark.parametrize("head", HEADS)
def test_elmo_and_word_vectors_are_dropped_once_at_the_input(head):
    model, [(features, *_)] = run(head, ENTRANCES[head])
    size = model.config.hidden_size
    assert values(features[..., model.input_size - size : model.input_size]) == {0.0, KEPT_ELMO}
    assert values(features[..., : model.config.word_vector_dim]) == {0.0, KEPT_REST}


@pytest.mark.parametrize("head", EXITS)
def test_elmo_is_dropped_once_at_the_output(head):
    model, [(joined,)] = run(head, EXITS[head])
    encoder = next(module for module in model.modules() if isinstance(module, (WordLstm, HighwayLstm)))
    elmo = joined[..., encoder.size : encoder.size + model.config.hidden_size]
    assert values(elmo) == {0.0, KEPT_ELMO}


def test_elmo_is_dropped_once_in_the_spans_of_coreference():
    model, [(words,)] = run("coref", "ranking")
    size = model.config.hidden_size
    assert values(words.features[:, -size:]) == values(words.encoded[:, -size:]) == {0.0, KEPT_ELMO}


def test_the_biattentive_network_does_not_drop_elmo_again_after_pooling():
    model, [(features,)] = run("bcn", "network.hidden.0")
    size = model.config.hidden_size
    largest, mean, smallest, _ = features.unflatten(1, (4, -1))[..., -size:].unbind(1)
    assert values(largest) | values(smallest) <= {0.0, KEPT_ELMO}
    assert values(mean[1]) == {0.0, KEPT_ELMO / 2, KEPT_ELMO}  # of a sentence of two words


@pytest.mark.parametrize("head", HEADS_OF_PAIRS)
def test_both_texts_of_a_pair_lose_the_same_features_at_every_word(head):
    model, [(features, mask)] = run(head, ENTRANCES[head])
    size = model.config.hidden_size
    columns = [*range(model.config.word_vector_dim), *range(model.input_size - size, model.input_size)]
    rows = len(mask) // 2
    kept = []
    for row in range(rows):
        words = torch.cat([features[row, mask[row]], features[row + rows, mask[row + rows]]])[:, columns]
        assert torch.equal(words, words[:1].expand_as(words))
        kept.append(words[0])
    assert not torch.equal(kept[0], kept[1])  # every row has a mask of its own


@pytest.mark.parametrize("head", ["tagger", "srl", "coref"])
def test_the_words_of_a_sentence_lose_different_features(head):
    model, [(features, mask)] = run(head, ENTRANCES[head])
    elmo = features[..., model.input_size - model.config.hidden_size : model.input_size]
    first = elmo[0, mask[0]]
    assert len(first.unique(dim=0)) == len(first)


def test_pair_dropout_is_the_same_in_both_texts():
    torch.manual_seed(0)
    dropped = PairDropout(0.5)(torch.ones(6, 4, 30))  # three pairs
    assert values(dropped) == {0.0, 2.0}
    assert torch.equal(dropped[:3], dropped[3:])
    assert torch.equal(dropped, dropped[:, :1].expand_as(dropped))
    assert len(dropped[:3, 0].unique(dim=0)) == 3


@pytest.mark.parametrize(
    ("task", "rate"),
    [
        ("ner", 0.5),
        ("pos", 0.5),
        ("sst", 0.5),
        ("nli", 0.5),
        ("choice", 0.5),
        ("srl", 0.1),
        ("squad", 0.5),
        ("coref", 0.5),
    ],
)
def test_recipes_drop_elmo_at_the_rate_of_the_papers_code(task, rate):
    head = yaml.safe_load((RECIPES / f"{task}.yaml").read_text()).get("head", {})
    assert ElmoConfig(**head).dropouts()[0] == rate
