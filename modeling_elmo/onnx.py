"""Export ELMo as one graph, by `torch.export` or to ONNX, for any number of sentences of any number of words.

The model itself packs words, looks up distinct ones and caches vectors, which no graph can do. `TraceableElmo`
computes the same vectors with plain tensors: the characters of every word, and the recurrence as a `scan` over the
positions, in which padding leaves the states alone.

Shapes: B batch, T words, C characters per word, P projection, M memory cells, L LSTM layers.
"""

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan

from .files import ElmoError, StrPath, atomic_write, require
from .layers_elmo import ElmoLanguageModel
from .modeling_elmo import ElmoModel
from .recurrence_elmo import FORGET_BIAS, States

# Of the inputs of an exported program; ONNX keeps no upper bound.
LARGEST_BATCH, LONGEST_SENTENCE = 4096, 65_536


class TraceableElmo(nn.Module):
    """char_ids (B, T, C) and attention_mask (B, T) -> last_hidden_state (B, T, 2P), every layer (B, L + 1, T, 2P)."""

    def __init__(self, model: ElmoModel) -> None:
        super().__init__()
        if model.config.word_embedding_dim:
            raise ElmoError("a model with word embeddings cannot be exported: the graph reads only characters")
        self.model = copy.deepcopy(model).eval().requires_grad_(False)  # the original may still be trained

    def forward(self, char_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        mask = attention_mask.bool()
        words = self._encode_words(char_ids) * mask[..., None]
        by_position, mask_by_position = words.transpose(0, 1), mask.transpose(0, 1)
        forward = _read(self.model.forward_lm, by_position, mask_by_position, reverse=False)
        backward = _read(self.model.backward_lm, by_position, mask_by_position, reverse=True)
        layers = [torch.cat([words, words], dim=-1)]
        for pair in zip(forward, backward, strict=True):
            layers.append(torch.cat(pair, dim=-1).transpose(0, 1))
        if self.model.scalar_mix is not None:
            mixed = self.model.scalar_mix(layers, mask)
        elif self.model.mix == "average":
            mixed = torch.stack(layers).mean(0)
        else:
            mixed = layers[-1]
        return mixed, torch.stack(layers, dim=1)

    def _encode_words(self, char_ids: Tensor) -> Tensor:
        """Compute context-free vectors: (B, T, C) -> (B, T, P)."""
        encoder = self.model.char_encoder
        embedded = encoder.char_embedding(char_ids.flatten(0, 1)).transpose(1, 2)
        features = torch.cat([convolution(embedded).amax(-1) for convolution in encoder.convolutions], dim=-1)
        features = encoder.activation(features)
        for highway in encoder.highways:
            features = highway(features)
        if encoder.projection is not None:
            features = encoder.projection(features)
        return features.unflatten(0, char_ids.shape[:2])


def _read(language_model: ElmoLanguageModel, words: Tensor, mask: Tensor, reverse: bool) -> list[Tensor]:
    """Compute every layer of one language model: words (T, B, P), mask (T, B) -> L x (T, B, P)."""
    outputs: list[Tensor] = []
    for layer in language_model.layers:
        output = _run_layer(layer, words, mask, reverse)
        words = output + words if language_model.use_skip_connections and outputs else output
        outputs.append(words)
    return outputs


def _run_layer(layer: Any, words: Tensor, mask: Tensor, reverse: bool) -> Tensor:
    """Compute one LSTM layer as a scan: (T, B, P) -> (T, B, P)."""
    gates = layer.input_gates(words)  # (T, B, 4M)
    recurrent, projection = layer.recurrent_gates.weight, layer.projection.weight
    cell_clip, projection_clip = layer.clips

    def step(states: States, inputs: tuple[Tensor, Tensor]) -> tuple[States, Tensor]:
        hidden, cell = states
        input_gates, is_word = inputs[0], inputs[1][:, None]
        i, j, f, o = (input_gates + hidden @ recurrent.T).chunk(4, dim=-1)
        new_cell = torch.sigmoid(f + FORGET_BIAS) * cell + torch.sigmoid(i) * torch.tanh(j)
        if cell_clip is not None:
            new_cell = new_cell.clamp(-cell_clip, cell_clip)
        new_hidden = (torch.sigmoid(o) * torch.tanh(new_cell)) @ projection.T
        if projection_clip is not None:
            new_hidden = new_hidden.clamp(-projection_clip, projection_clip)
        new_states = torch.where(is_word, new_hidden, hidden), torch.where(is_word, new_cell, cell)
        return new_states, new_hidden * is_word

    projection_size, cell_size = projection.shape
    zeros = gates.new_zeros(gates.shape[1], projection_size), gates.new_zeros(gates.shape[1], cell_size)
    _, output = scan(step, zeros, (gates, mask), dim=0, reverse=reverse)
    return output


def export_program(model: ElmoModel) -> torch.export.ExportedProgram:
    """Export a model as a program of `char_ids` and `attention_mask`, for any batch and length."""
    char_ids = torch.ones(2, 3, model.config.max_characters_per_token, dtype=torch.long)
    attention_mask = torch.ones(2, 3, dtype=torch.long)
    sizes = {
        0: torch.export.Dim("batch", min=1, max=LARGEST_BATCH),
        1: torch.export.Dim("words", min=1, max=LONGEST_SENTENCE),
    }
    return torch.export.export(
        TraceableElmo(model),
        (char_ids, attention_mask),
        dynamic_shapes={"char_ids": sizes, "attention_mask": sizes},
        strict=False,
    )


def export_onnx(model: ElmoModel, path: StrPath, int8: bool = False) -> None:
    """Write an ONNX file with the inputs `char_ids`, `attention_mask` and the outputs `last_hidden_state`, `layers`.

    With `int8`, matrices are stored in 8 bits and activations are quantised as they are computed: the file is smaller,
    the vectors less exact.
    """
    for module in ("onnx", "onnxscript"):
        require(module, "onnx")
    program = torch.onnx.export(
        export_program(model), dynamo=True, output_names=["last_hidden_state", "layers"], verbose=False
    )
    assert program is not None
    with atomic_write(path) as scratch:
        if int8:
            _quantise(program.model_proto, scratch)
        else:
            program.save(str(scratch), external_data=False)


def _quantise(model: Any, target: Path) -> None:
    """Quantise matrix products, those of the recurrence included; convolutions, which lose most, stay as they are."""
    quantization = require("onnxruntime.quantization", "onnx")
    _remove_shapes(model.graph)
    quantization.quantize_dynamic(
        model,
        target,
        weight_type=quantization.QuantType.QInt8,
        op_types_to_quantize=["MatMul", "Gemm"],
        extra_options={"EnableSubgraph": True},
    )


def _remove_shapes(graph: Any) -> None:
    """Remove the shapes of intermediate values, which quantisation changes and then finds inconsistent."""
    del graph.value_info[:]
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _remove_shapes(attribute.g)
