"""Which prior should `substitutes` divide by: where does the true word rank?

    python benchmarks/substitutes.py litbank.heldout.txt [wikinews.heldout.txt …] [--raw wikinews.heldout.txt]

p(w | words before) * p(w | words after) / p(w)^exponent, at random places of sentences whose word the vocabulary has.
p(w) is the log-uniform distribution that the sampling of the softmax draws from, that of the softmax bias alone, or
the mean of what the model predicts at other places of the same text. Exponent 0 is the plain product.
"""

import argparse
import random
from collections.abc import Sequence
from pathlib import Path

import torch
from harness import Sentence, print_table, read_sentences, save
from torch import Tensor

from modeling_elmo import MINI, ElmoForPreTraining, ElmoTokenizer
from modeling_elmo.bilm_elmo import NUM_SPECIAL_WORDS

EXPONENTS = (0.0, 0.25, 0.5, 0.75, 1.0)
BATCH_SIZE = 32
# Places whose probabilities are in memory at once.
PLACES_AT_ONCE = 100


def choose_places(sentences: Sequence[Sentence], tokenizer: ElmoTokenizer, count: int) -> list[tuple[Sentence, int]]:
    """Return one random place of each sentence, until there are enough with a known word."""
    generator, known = random.Random(0), tokenizer.get_vocab()
    places = []
    for words in sentences:
        place = generator.randrange(len(words))
        if words[place] in known and len(places) < count:
            places.append((words, place))
    return places


@torch.inference_mode()
def read_contexts(
    model: ElmoForPreTraining, tokenizer: ElmoTokenizer, places: Sequence[tuple[Sentence, int]]
) -> tuple[Tensor, Tensor]:
    """Return what each language model makes of the words around each place: (N, P), forward and backward."""
    sides = []
    for start in range(0, len(places), BATCH_SIZE):
        batch = places[start : start + BATCH_SIZE]
        inputs = tokenizer([words for words, _ in batch], is_split_into_words=True, padding=True, return_tensors="pt")
        top = model.elmo(**inputs, output_hidden_states=True, keep_sentence_markers=True).hidden_states[-1]
        rows, columns = torch.arange(len(batch)), torch.tensor([place for _, place in batch])
        forward, backward = top.chunk(2, dim=-1)
        sides.append(torch.stack([forward[rows, columns], backward[rows, columns + 2]]))
    forward, backward = torch.cat(sides, dim=1)
    return forward, backward


def log_probabilities(model: ElmoForPreTraining, hidden: Tensor) -> Tensor:
    """Return log p of every word but the special ones."""
    return model.softmax(hidden)[:, NUM_SPECIAL_WORDS:].log_softmax(-1)


@torch.inference_mode()
def measure(
    model: ElmoForPreTraining, tokenizer: ElmoTokenizer, name: str, sentences: Sequence[Sentence], count: int
) -> list[dict]:
    places = choose_places(sentences, tokenizer, count)
    others = choose_places(sentences[::-1], tokenizer, count // 4)
    mean = torch.zeros(len(tokenizer) - NUM_SPECIAL_WORDS)
    for side in read_contexts(model, tokenizer, others):
        for hidden in side.split(PLACES_AT_ONCE):
            mean += log_probabilities(model, hidden).exp().sum(0) / (2 * len(side))
    priors = {
        "log-uniform": model.softmax.initial_bias()[NUM_SPECIAL_WORDS:],
        "softmax bias": model.softmax.bias[NUM_SPECIAL_WORDS:].log_softmax(0),
        "mean prediction": mean.log(),
    }
    ways = [("", 0.0)] + [(prior, exponent) for prior in priors for exponent in EXPONENTS[1:]]
    ranks: dict[tuple[str, float], list[Tensor]] = {way: [] for way in ways}
    ids = tokenizer.convert_tokens_to_ids([words[place] for words, place in places])
    targets = torch.tensor(ids)[:, None] - NUM_SPECIAL_WORDS
    sides = (side.split(PLACES_AT_ONCE) for side in read_contexts(model, tokenizer, places))
    for forward, backward, true in zip(*sides, targets.split(PLACES_AT_ONCE), strict=True):
        product = log_probabilities(model, forward) + log_probabilities(model, backward)
        for prior, exponent in ways:
            scores = product - exponent * priors[prior] if prior else product
            ranks[prior, exponent].append((scores > scores.gather(1, true)).sum(1) + 1)
    rows = []
    for prior, exponent in ways:
        rank = torch.cat(ranks[prior, exponent]).double()
        rows.append(
            {
                "text": name,
                "places": len(rank),
                "prior": prior or "none",
                "exponent": exponent,
                "top 1, %": 100 * (rank <= 1).double().mean().item(),
                "top 10, %": 100 * (rank <= 10).double().mean().item(),
                "mean reciprocal rank": (1 / rank).mean().item(),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", type=Path, nargs="*", help="tokenised sentences, one a line")
    parser.add_argument("--raw", type=Path, nargs="*", default=[], help="sentences to be split by the tokenizer")
    parser.add_argument("--model", default=MINI)
    parser.add_argument("--places", type=int, default=2000)
    arguments = parser.parse_args()
    tokenizer = ElmoTokenizer.from_pretrained(arguments.model)
    model = ElmoForPreTraining.from_pretrained(arguments.model).eval()
    rows = []
    for path in [*arguments.texts, *arguments.raw]:
        sentences = read_sentences(path, shortest=5, longest=60)[: 2 * arguments.places]
        if path in arguments.raw:
            sentences = [tokenizer.tokenize(" ".join(words)) for words in sentences]
        rows += measure(model, tokenizer, path.name, sentences, arguments.places)
    print_table(rows)
    save("substitutes", rows)


if __name__ == "__main__":
    main()
