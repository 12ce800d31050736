"""What do lower precisions gain and lose on this machine?

    python benchmarks/precision.py [--size small]

float32 against bfloat16 weights and activations, on fresh sentences: words a second, and how far the vectors are off.
"""

import argparse
import statistics
from pathlib import Path

import torch
from harness import count_words, embed, fresh_batches, load, print_table, read_sentences, save, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="small", choices=["small", "medium", "original"])
    parser.add_argument("--repetitions", type=int, default=5, help="each with new sentences (default 5)")
    parser.add_argument("--sentences", type=Path, help="tokenised sentences, one a line")
    arguments = parser.parse_args()
    batches = list(fresh_batches(read_sentences(arguments.sentences), 32))[: arguments.repetitions + 1]
    exact, tokenizer = load(arguments.size)
    expected = embed(exact, tokenizer, batches[0])[-1]
    rows = []
    for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        model, _ = load(arguments.size, dtype=dtype)
        got = embed(model, tokenizer, batches[0])[-1].float()
        cosine = torch.cosine_similarity(got, expected, dim=-1)[expected.any(-1)]
        speeds = [
            count_words([batch]) / seconds(lambda model=model, batch=batch: embed(model, tokenizer, batch))
            for batch in batches[1:]
        ]
        rows.append(
            {
                "precision": name,
                "words/s": statistics.median(speeds),
                "largest difference": f"{(got - expected).abs().max().item():.1e}",
                "smallest cosine": f"{cosine.min().item():.6f}",
            }
        )
    print_table(rows)
    save(f"precision-{arguments.size}", rows)


if __name__ == "__main__":
    main()
