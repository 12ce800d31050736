"""How much faster than AllenNLP, on the same sentences in the same run, and with the same vectors?

    python benchmarks/versus_allennlp.py                  # batches of 32 and 1, `small` and `original`
    python benchmarks/versus_allennlp.py --corpus 12000   # a corpus instead, against AllenNLP's best batch size
    python benchmarks/versus_allennlp.py --simple-elmo PYTHON   # simple_elmo too, where that Python has it

Each repetition takes new sentences. AllenNLP comes from its PyPI package: `make bench` fetches it.
"""

import argparse
import statistics
from pathlib import Path

from allennlp_peer import AllenNlpElmo
from harness import checkpoint, count_words, embed, fresh_batches, load, print_table, read_sentences, save, seconds
from simple_elmo_peer import words_per_second

from modeling_elmo.embedding import ElmoEmbedder

CASES = [("original", 32), ("original", 1), ("small", 32), ("small", 1)]
# Sentences of one repetition, so that a repetition takes seconds on both sides.
SENTENCES = {"original": {32: 64, 1: 12}, "small": {32: 320, 1: 60}}
BATCH_SIZES = (8, 32, 64, 128)


def largest_difference(ours, theirs, batch) -> float:
    """Over every layer, relative to the layer's largest value."""
    worst = 0.0
    for our_layer, their_layer in zip(ours, theirs, strict=True):
        for row, words in enumerate(batch):
            length = len(words) + 2
            gap = (our_layer[row, :length] - their_layer[row, :length]).abs().max() / their_layer.abs().max()
            worst = max(worst, gap.item())
    return worst


def compare(size: str, batch_size: int, repetitions: int, sentences, simple_elmo: Path | None) -> dict:
    options, weights, _ = checkpoint(size)
    model, tokenizer = load(size)
    peer = AllenNlpElmo(options, weights)
    per_repetition = SENTENCES[size][batch_size] // batch_size
    batches = fresh_batches(sentences, batch_size)
    warm_up = next(batches)
    difference = largest_difference(embed(model, tokenizer, warm_up), peer.layers(warm_up), warm_up)
    ours, theirs, ratios, every = [], [], [], []
    for _ in range(repetitions):
        taken = [next(batches) for _ in range(per_repetition)]
        every.append([sentence for batch in taken for sentence in batch])
        words = count_words(taken)
        our_time = seconds(lambda taken=taken: [embed(model, tokenizer, batch) for batch in taken])
        their_time = seconds(lambda taken=taken: [peer.layers(batch) for batch in taken])
        ours.append(words / our_time)
        theirs.append(words / their_time)
        ratios.append(their_time / our_time)
    row = {
        "case": f"{size}, batch {batch_size}",
        "words/s": statistics.median(ours),
        "AllenNLP words/s": statistics.median(theirs),
        "times as fast": statistics.median(ratios),
        "from": min(ratios),
        "to": max(ratios),
        "largest difference": f"{difference:.1e}",
    }
    if simple_elmo is not None:
        row["simple_elmo words/s"] = statistics.median(
            words_per_second(simple_elmo, options.parent, batch_size, every)
        )
    return row


def compare_corpus(sentences, count: int) -> dict:
    """`small` over a whole corpus: our embedder against AllenNLP in batches of its best size."""
    options, weights, _ = checkpoint("small")
    model, tokenizer = load("small")
    peer = AllenNlpElmo(options, weights)
    trial = sentences[-256:]
    by_size = {
        size: seconds(lambda size=size: [peer.layers(batch) for batch in fresh_batches(trial, size)])
        for size in BATCH_SIZES
    }
    best = min(by_size, key=by_size.__getitem__)
    corpus = sentences[:count]
    count = len(corpus)
    words = sum(map(len, corpus))
    embedder = ElmoEmbedder(model, tokenizer, layers="all")
    our_time = seconds(lambda: [None for _ in embedder.embed(corpus)])
    # In reading order, as AllenNLP's command does.
    their_time = seconds(lambda: [peer.layers(corpus[start : start + best]) for start in range(0, count, best)])
    return {
        "case": f"small, {count:,} sentences (AllenNLP in batches of {best})",
        "words": words,
        "words/s": words / our_time,
        "AllenNLP words/s": words / their_time,
        "times as fast": their_time / our_time,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5, help="each with new sentences (default 5)")
    parser.add_argument("--corpus", type=int, default=0, help="instead, embed this many sentences with `small`")
    parser.add_argument("--sentences", type=Path, help="tokenised sentences, one a line")
    parser.add_argument("--simple-elmo", type=Path, help="a Python that has simple_elmo, to measure it too")
    arguments = parser.parse_args()
    if arguments.corpus:
        sentences = read_sentences(arguments.sentences, shortest=1, longest=1000)
        name, rows = "corpus-versus-allennlp", [compare_corpus(sentences, arguments.corpus)]
    else:
        sentences = read_sentences(arguments.sentences)
        name = "versus-allennlp"
        rows = [
            compare(size, batch_size, arguments.repetitions, sentences, arguments.simple_elmo)
            for size, batch_size in CASES
        ]
    print_table(rows)
    save(name, rows)


if __name__ == "__main__":
    main()
