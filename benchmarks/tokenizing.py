"""How many words a second does the tokenizer encode?

    python benchmarks/tokenizing.py [--words 1000000] [--sentences FILE]

In batches of 32 to padded tensors, of words and of raw text; the file's lines are repeated until there are enough.
"""

import argparse
import itertools
from pathlib import Path

from harness import fresh_batches, print_table, read_sentences, save, seconds

from modeling_elmo import ElmoTokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--words", type=int, default=1_000_000)
    parser.add_argument("--sentences", type=Path, help="tokenised sentences, one a line")
    arguments = parser.parse_args()
    sentences, count = [], 0
    for sentence in itertools.cycle(read_sentences(arguments.sentences, shortest=1, longest=1000)):
        sentences.append(sentence)
        count += len(sentence)
        if count >= arguments.words:
            break
    tokenizer = ElmoTokenizer()
    rows = []
    for name, batches in (
        ("words", list(fresh_batches(sentences, 32))),
        ("raw text", list(fresh_batches([" ".join(words) for words in sentences], 32))),
    ):
        split = name == "words"
        time = seconds(
            lambda batches=batches, split=split: [
                tokenizer(batch, is_split_into_words=split, padding=True, return_tensors="pt") for batch in batches
            ]
        )
        rows.append({"input": name, "words": count, "seconds": time, "words/s": count / time})
    print_table(rows)
    save("tokenizing", rows)


if __name__ == "__main__":
    main()
