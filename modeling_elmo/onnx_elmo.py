"""ELMo as one graph, for `torch.export` and ONNX: any number of sentences of any number of words.

The model itself packs words, looks distinct ones up and keeps vectors, which no graph can. `TraceableElmo` computes
the same vectors with plain tensors: the characters of every word, and the recurrence as a `scan` over the positions,
in which padded words leave the states alone.

Shapes: B batch, T words, C characters a word, P projection, M memory cells, L LSTM layers.
"""

import copy
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan

from .layers_elmo import ElmoLanguageModel, ElmoLstmLayer
from .modeling_elmo import ElmoModel
from .recurrence_elmo import FORGET_BIAS, States

INSTALL = "pip install 'modeling-elmo[onnx]'"
# Of the graph's inputs; ONNX keeps no upper bound.
LARGEST_BATCH, LONGEST_SENTENCE = 4096, 65_536


class TraceableElmo(nn.Module):
    """char_ids (B, T, C) and attention_mask (B, T) -> last_hidden_state (B, T, 2P), every layer (B, L + 1, T, 2P)."""

    def __init__(self, model: ElmoModel) -> None:
        super().__init__()
        if model.config.word_embedding_dim:
            raise ValueError("a model with word embeddings cannot be exported: the graph reads characters alone")
        self.model = copy.deepcopy(model).eval().requires_grad_(False)  # the model itself may be trained on

    def forward(self, char_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        mask = attention_mask.bool()
        words = self._words(char_ids) * mask[..., None]
        by_position, real = words.transpose(0, 1), mask.transpose(0, 1)
        forward = self._read(self.model.forward_lm, by_position, real, reverse=False)
        backward = self._read(self.model.backward_lm, by_position, real, reverse=True)
        layers = [torch.cat([words, words], dim=-1)]
        layers += [torch.cat(pair, dim=-1).transpose(0, 1) for pair in zip(forward, backward, strict=True)]
        if self.model.scalar_mix is not None:
            mixed = self.model.scalar_mix(layers, mask)
        else:
            mixed = torch.stack(layers).mean(0) if self.model.mix == "average" else layers[-1]
        return mixed, torch.stack(layers, dim=1)

    def _words(self, char_ids: Tensor) -> Tensor:
        """Context-free vectors: (B, T, C) -> (B, T, P)."""
        encoder = self.model.char_encoder
        embedded = encoder.char_embedding(char_ids.flatten(0, 1)).transpose(1, 2)
        features = torch.cat([convolution(embedded).amax(-1) for convolution in encoder.convolutions], dim=-1)
        features = encoder.activation(features)
        for highway in encoder.highways:
            features = highway(features)
        if encoder.projection is not None:
            features = encoder.projection(features)
        return features.unflatten(0, char_ids.shape[:2])

    @staticmethod
    def _read(language_model: ElmoLanguageModel, words: Tensor, real: Tensor, reverse: bool) -> list[Tensor]:
        """Every layer of one language model: words (T, B, P), real (T, B) -> L x (T, B, P)."""
        outputs = []
        for number, layer in enumerate(language_model.layers):
            assert isinstance(layer, ElmoLstmLayer)
            gates = layer.input_gates(words)  # (T, B, 4M)
            recurrent, projection = layer.recurrent_gates.weight, layer.projection.weight
            cell_clip, projection_clip = layer.clips

            def step(
                states: States,
                inputs: tuple[Tensor, Tensor],
                recurrent: Tensor = recurrent,
                projection: Tensor = projection,
                cell_clip: float | None = cell_clip,
                projection_clip: float | None = projection_clip,
            ) -> tuple[States, Tensor]:
                hidden, cell = states
                gates_of_input, is_word = inputs[0], inputs[1][:, None]
                i, j, f, o = (gates_of_input + hidden @ recurrent.T).chunk(4, dim=-1)
                new_cell = torch.sigmoid(f + FORGET_BIAS) * cell + torch.sigmoid(i) * torch.tanh(j)
                if cell_clip is not None:
                    new_cell = new_cell.clamp(-cell_clip, cell_clip)
                new_hidden = (torch.sigmoid(o) * torch.tanh(new_cell)) @ projection.T
                if projection_clip is not None:
                    new_hidden = new_hidden.clamp(-projection_clip, projection_clip)
                kept = torch.where(is_word, new_hidden, hidden), torch.where(is_word, new_cell, cell)
                return kept, new_hidden * is_word

            zeros = [gates.new_zeros(gates.shape[1], size) for size in projection.shape]
            _, output = scan(step, (zeros[0], zeros[1]), (gates, real), dim=0, reverse=reverse)
            words = output + words if language_model.use_skip_connections and number > 0 else output
            outputs.append(words)
        return outputs


def export_program(model: ElmoModel) -> torch.export.ExportedProgram:
    """The model as an `ExportedProgram` of `char_ids` and `attention_mask`, both of any batch and length."""
    config = model.config
    char_ids = torch.ones(2, 3, config.max_characters_per_token, dtype=torch.long)
    batch = torch.export.Dim("batch", min=1, max=LARGEST_BATCH)
    words = torch.export.Dim("words", min=1, max=LONGEST_SENTENCE)
    sizes = {0: batch, 1: words}
    return torch.export.export(
        TraceableElmo(model),
        (char_ids, torch.ones(2, 3, dtype=torch.long)),
        dynamic_shapes={"char_ids": sizes, "attention_mask": sizes},
        strict=False,
    )


def export_onnx(model: ElmoModel, path: str | os.PathLike[str], int8: bool = False) -> None:
    """Writes an ONNX file with the inputs `char_ids` and `attention_mask` and the outputs `last_hidden_state` and
    `layers`. With `int8` its matrices are stored in 8 bits and activations quantised as they come: smaller, and less
    exact.
    """
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ImportError(f"ONNX needs onnx and onnxscript: {INSTALL}") from error
    path = Path(path)
    with TemporaryDirectory(dir=path.resolve().parent) as scratch:
        whole, small = Path(scratch, "model.onnx"), Path(scratch, "int8.onnx")
        program = torch.onnx.export(
            export_program(model), dynamo=True, output_names=["last_hidden_state", "layers"], verbose=False
        )
        assert program is not None
        program.save(str(whole), external_data=False)
        if int8:
            _quantise(whole, small)
        os.replace(small if int8 else whole, path)


def _quantise(source: Path, target: Path) -> None:
    """Matrix products in 8 bits, those of the recurrence included; convolutions, which lose most, stay as they are."""
    import onnx

    try:
        from onnxruntime.quantization import QuantType, quantize_dynamic
    except ImportError as error:
        raise ImportError(f"int8 needs onnxruntime: {INSTALL}") from error
    model = onnx.load(source)
    _forget_shapes(model.graph)
    onnx.save(model, source)
    quantize_dynamic(
        source,
        target,
        weight_type=QuantType.QInt8,
        op_types_to_quantize=["MatMul", "Gemm"],
        extra_options={"EnableSubgraph": True},
    )


def _forget_shapes(graph: Any) -> None:
    """Drops the shapes of intermediate values, which quantising changes and then finds contradicted."""
    del graph.value_info[:]
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _forget_shapes(attribute.g)


__all__ = ["TraceableElmo", "export_onnx", "export_program"]
