"""How much faster than AllenNLP's modules is a training step: forward, backward and update?

    python benchmarks/training_step.py [--size small] [--lanes 64] [--window 20]

The same biLM on the same running text, the same sampled softmax and optimizer on top of both. AllenNLP shipped no
training for its ELMo; this is what its character encoder and LSTM would have given. It comes from its PyPI package:
`make bench` fetches it.
"""

import argparse
import statistics
from pathlib import Path

import torch
from allennlp_peer import AllenNlpElmo
from datasets import Dataset
from harness import checkpoint, load, print_table, read_sentences, save, seconds

from modeling_elmo import ElmoForPreTraining, ElmoTokenizer
from modeling_elmo.corpus import Corpus
from modeling_elmo.softmax_elmo import draw_negatives
from training.data import BlockReader, LaneWindows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="small", choices=["small", "medium", "original"])
    parser.add_argument("--lanes", type=int, default=64)
    parser.add_argument("--window", type=int, default=20)
    parser.add_argument("--negatives", type=int, default=8192)
    parser.add_argument("--vocabulary", type=int, default=50_000)
    parser.add_argument("--steps", type=int, default=5, help="of each, in turn (default 5)")
    parser.add_argument("--sentences", type=Path, help="tokenised sentences, one a line")
    arguments = parser.parse_args()
    torch.sparse.check_sparse_tensor_invariants.disable()
    lanes, window = arguments.lanes, arguments.window

    sentences = read_sentences(arguments.sentences, shortest=1, longest=1000)
    words = sorted({word for sentence in sentences for word in sentence})[: arguments.vocabulary - 4]
    tokenizer = ElmoTokenizer(vocab=[*words, *(f"_{n}" for n in range(arguments.vocabulary - 4 - len(words)))])
    bilm, _ = load(arguments.size)
    bilm.config.update({"vocab_size": len(tokenizer), "num_negatives": arguments.negatives, "dropout": 0.0})
    ours = ElmoForPreTraining(bilm.config).train()
    ours.elmo.load_state_dict({k: v for k, v in bilm.state_dict().items() if not k.startswith("scalar_mix")})
    ours.softmax.sparse = True
    our_optimizer = torch.optim.Adagrad(ours.parameters(), lr=0.01)

    options, weights, _ = checkpoint(arguments.size)
    peer = AllenNlpElmo(options, weights, requires_grad=True)
    peer.bilm.train()
    peer_softmax = ElmoForPreTraining(bilm.config).softmax
    peer_softmax.sparse = True
    peer_optimizer = torch.optim.Adagrad([*peer.bilm.parameters(), *peer_softmax.parameters()], lr=0.01)

    text = Corpus(Dataset.from_dict({"text": sentences}))  # each row the words of a sentence
    steps = iter(LaneWindows(BlockReader(text, tokenizer, shuffle=False), lanes, window))
    states = None

    def our_step() -> None:
        nonlocal states
        output = ours(
            char_ids=batch.char_ids,
            word_index=batch.word_index,
            labels=batch.labels,
            states=states,
            negatives=negatives,
        )
        output.loss.backward()
        our_optimizer.step()
        our_optimizer.zero_grad()
        states = tuple(state.detach() for state in output.states)

    def peer_step() -> None:
        # Its encoder adds two markers to a row itself.
        char_ids = batch.char_ids[batch.word_index[0, :, : window - 2]]
        top = peer.bilm(char_ids)["activations"][-1]  # (lanes, window, 2P)
        halves = zip(top.chunk(2, dim=-1), batch.labels, strict=True)
        losses = [peer_softmax.loss(half.flatten(0, 1), labels.flatten(), negatives) for half, labels in halves]
        (sum(losses) / (2 * lanes * window)).backward()
        peer_optimizer.step()
        peer_optimizer.zero_grad()

    ours_seconds, peer_seconds, ratios = [], [], []
    for step in range(arguments.steps + 1):
        (batch,) = next(steps).windows
        negatives = draw_negatives(len(tokenizer), arguments.negatives)
        taken = seconds(our_step), seconds(peer_step)
        if step:  # the first warms up
            ours_seconds.append(taken[0])
            peer_seconds.append(taken[1])
            ratios.append(taken[1] / taken[0])
    count = lanes * window
    rows = [
        {
            "case": f"{arguments.size}, window {window}, {lanes} lanes, {arguments.negatives:,} negatives",
            "words/s": count / statistics.median(ours_seconds),
            "AllenNLP's modules words/s": count / statistics.median(peer_seconds),
            "times as fast": statistics.median(ratios),
            "from": min(ratios),
            "to": max(ratios),
        }
    ]
    print_table(rows)
    save(f"training-step-{arguments.size}", rows)


if __name__ == "__main__":
    main()
