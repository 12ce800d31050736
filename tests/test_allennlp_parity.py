"""Every layer equals AllenNLP's, on random checkpoints of the published sizes (`make parity` brings AllenNLP)."""

import sys
from pathlib import Path

import pytest
import torch

from modeling_elmo import ElmoModel, ElmoTokenizer
from modeling_elmo.convert_elmo import convert_checkpoint

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import allennlp_peer
from random_checkpoint import write_random_checkpoint

# Relative to the largest value of a layer: both sides are float32.
TOLERANCE = 2e-5

pytestmark = pytest.mark.skipif(
    allennlp_peer.site() is None, reason="AllenNLP's files are not here: `make parity` installs them"
)

SENTENCES = [
    "The bank of the river is steep .".split(),
    ["x" * 60, "Donaudampfschifffahrtsgesellschaftskapitänsmützenabzeichen", "naïve"],
    ["日本語", "👩‍👩‍👧", "हिन्दी", "\ud800", "", "<S>", "</S>", "<UNK>"],
    ["one"],
    "It was the best of times , it was the worst of times".split() * 3,
]


@pytest.mark.parametrize("size", ["small", "original"])
def test_every_layer_equals_allennlps(size, tmp_path):
    options, weights = write_random_checkpoint(size, tmp_path / "original")
    convert_checkpoint(options, weights, tmp_path / "converted")
    model = ElmoModel.from_pretrained(tmp_path / "converted")
    inputs = ElmoTokenizer()(SENTENCES, is_split_into_words=True, padding=True, return_tensors="pt")
    with torch.no_grad():
        ours = model(**inputs, output_hidden_states=True).hidden_states
    theirs = allennlp_peer.AllenNlpElmo(options, weights).layers(SENTENCES)
    mask = inputs["attention_mask"].bool()
    for our_layer, their_layer in zip(ours, theirs, strict=True):
        difference = (our_layer - their_layer)[mask].abs().max() / their_layer[mask].abs().max()
        print(f"{size}: largest difference over largest value {difference:.1e}")
        assert difference <= TOLERANCE
