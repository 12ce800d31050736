"""What share of the machine's matrix-product speed does embedding reach?

    python benchmarks/gemm_share.py [--size original] [--batch-words 4096]

Counted are the multiplications that the text needs: the LSTMs for every word and sentence marker, except that the
first layer's gates of a word's own vector count once for each distinct word of a batch; the characters of every word
not seen before, each of its windows once. The peak is a product of two 2048 x 2048 float32 matrices in the same run.
"""

import argparse
import statistics
from pathlib import Path

import torch
from harness import embed, load, print_table, read_sentences, save, seconds

from modeling_elmo import ElmoConfig


def macs_of_lstms(config: ElmoConfig, words: int, distinct: int) -> int:
    """Multiplications of both language models."""
    gates, projection = config.projection_dim * 4 * config.cell_dim, config.cell_dim * config.projection_dim
    per_direction = words * config.num_hidden_layers * (2 * gates + projection) - (words - distinct) * gates
    return 2 * per_direction


def macs_of_characters(config: ElmoConfig, word: str) -> int:
    """Multiplications of the character encoder for one distinct word."""
    length = min(len(word.encode()), config.max_characters_per_token - 2) + 2
    features = config.num_char_features
    windows = {width: min(length + 1, config.max_characters_per_token - width + 1) for width, _ in config.char_filters}
    convolutions = sum(
        windows[width] * width * config.char_embedding_dim * count for width, count in config.char_filters
    )
    return convolutions + config.num_highway_layers * 2 * features**2 + features * config.projection_dim


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="original", choices=["small", "medium", "original"])
    parser.add_argument("--batch-words", type=int, default=4096, help="words in a batch of sentences of like length")
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--sentences", type=Path, help="tokenised sentences, one a line")
    arguments = parser.parse_args()
    model, tokenizer = load(arguments.size)
    sentences = read_sentences(arguments.sentences)
    matrix = torch.randn(2048, 2048)
    embed(model, tokenizer, sentences[-32:])

    rows, seen, start = [], set(), 0
    for _ in range(arguments.batches):
        # A window of the corpus, of which one batch of like lengths is taken, as when embedding in bulk.
        window = sorted(sentences[start : start + 1000], key=len)
        start += 1000
        batch, words = [], 0
        for sentence in window[400:]:
            if words + len(sentence) + 2 > arguments.batch_words:
                break
            batch.append(sentence)
            words += len(sentence) + 2
        distinct = {word for sentence in batch for word in sentence}
        new = distinct - seen
        seen |= distinct
        macs = macs_of_lstms(model.config, words, len(distinct) + 2)
        macs += sum(macs_of_characters(model.config, word) for word in new)
        peak_before = min(seconds(lambda: matrix @ matrix) for _ in range(3))
        time = seconds(lambda batch=batch: embed(model, tokenizer, batch))
        peak_after = min(seconds(lambda: matrix @ matrix) for _ in range(3))
        peak = 2048**3 / statistics.mean((peak_before, peak_after))
        rows.append(
            {
                "sentences": len(batch),
                "words": words - 2 * len(batch),
                "words/s": (words - 2 * len(batch)) / time,
                "GMAC/s": macs / time / 1e9,
                "peak GMAC/s": peak / 1e9,
                "share of peak": macs / time / peak,
            }
        )
    print_table(rows)
    print(f"median share of peak: {statistics.median(row['share of peak'] for row in rows):.2f}")
    save(f"gemm-share-{arguments.size}", rows)


if __name__ == "__main__":
    main()
