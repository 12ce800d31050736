"""What do lower precisions gain and lose on this machine?

    python benchmarks/precision.py [--size small]

float32 against bfloat16 weights and activations, and against ONNX files in float32 and with 8-bit matrices, on fresh
sentences: words a second, how far the vectors are off, and the size of the file.
"""

import argparse
import statistics
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from harness import (
    CHECKPOINTS,
    Sentence,
    checkpoint,
    count_words,
    embed,
    fresh_batches,
    load,
    print_table,
    read_sentences,
    save,
    seconds,
)
from onnxruntime import InferenceSession
from torch import Tensor

from modeling_elmo import ElmoModel, ElmoTokenizer
from modeling_elmo.onnx import export_onnx


def top_layer(model: ElmoModel, tokenizer: ElmoTokenizer, batch: Sequence[Sentence]) -> Tensor:
    return embed(model, tokenizer, batch)[-1].float()


def top_layer_by_onnx(session: InferenceSession, tokenizer: ElmoTokenizer, batch: Sequence[Sentence]) -> Tensor:
    inputs = tokenizer(list(batch), is_split_into_words=True, padding=True, return_tensors="np")
    feed = {name: inputs[name] for name in ("char_ids", "attention_mask")}
    return torch.from_numpy(session.run(["layers"], feed)[0][:, -1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="small", choices=["small", "medium", "original"])
    parser.add_argument("--repetitions", type=int, default=5, help="each with new sentences (default 5)")
    parser.add_argument("--sentences", type=Path, help="tokenised sentences, one a line")
    arguments = parser.parse_args()
    batches = list(fresh_batches(read_sentences(arguments.sentences), 32))[: arguments.repetitions + 1]
    exact, tokenizer = load(arguments.size)
    expected = embed(exact, tokenizer, batches[0])[-1]
    weights = {
        "float32": checkpoint(arguments.size)[2] / "model.safetensors",
        "ONNX, float32": CHECKPOINTS / f"{arguments.size}.onnx",
        "ONNX, int8": CHECKPOINTS / f"{arguments.size}-int8.onnx",
    }
    ways = {"float32": partial(top_layer, exact, tokenizer)}
    ways["bfloat16"] = partial(top_layer, load(arguments.size, dtype=torch.bfloat16)[0], tokenizer)
    for name in ("ONNX, float32", "ONNX, int8"):
        export_onnx(exact, weights[name], int8=name.endswith("int8"))
        ways[name] = partial(top_layer_by_onnx, InferenceSession(weights[name]), tokenizer)
    rows = []
    for name, way in ways.items():
        got = way(batches[0])
        cosine = torch.cosine_similarity(got, expected, dim=-1)[expected.any(-1)]
        speeds = [count_words([batch]) / seconds(lambda way=way, batch=batch: way(batch)) for batch in batches[1:]]
        rows.append(
            {
                "precision": name,
                "words/s": statistics.median(speeds),
                "largest difference": f"{(got - expected).abs().max().item():.1e}",
                "smallest cosine": f"{cosine.min().item():.6f}",
                "file, MB": f"{weights[name].stat().st_size / 1e6:.1f}" if name in weights else "",
            }
        )
    print_table(rows)
    save(f"precision-{arguments.size}", rows)


if __name__ == "__main__":
    main()
