"""Export ELMo or a task model as one graph, by `torch.export` or to ONNX, for any number of texts of any length."""

import logging
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from .files import ElmoError, StrPath, atomic_write, require
from .loading import architecture_of, find_model, load_folder, read_config
from .modeling_elmo import (
    ElmoForMultipleChoice,
    ElmoForPreTraining,
    ElmoForSequenceClassification,
    ElmoForTokenClassification,
    ElmoModel,
    ElmoPreTrainedModel,
)
from .traceable import TASK_OUTPUTS, TraceableElmo, TraceableTask, traceable

# Sizes of the inputs of an exported program, which ONNX does not keep. A text has two markers.
LARGEST_BATCH, MOST_CHOICES, LONGEST_TEXT, SHORTEST_PAIR = 4096, 4096, 65_536, 3

# Whose logits are of the config's labels.
LABELLED = (ElmoForSequenceClassification, ElmoForTokenClassification)


class Graph(NamedTuple):
    """The inputs and the outputs of an ONNX file: their shapes by their names."""

    inputs: dict[str, str]
    outputs: dict[str, str]


def load_exportable(folder: StrPath) -> Any:
    """Load the model of a folder by the class that it was saved from; refuse one that cannot be exported.

    Of a pretrained model with its softmax this is the biLM.
    """
    folder = find_model(folder)
    name = architecture_of(read_config(folder)) or ElmoModel.__name__
    classes: dict[str, type] = {kind.__name__: kind for kind in TASK_OUTPUTS}
    for kind in (ElmoModel, ElmoForPreTraining):
        classes[kind.__name__] = ElmoModel
    if name not in classes:
        raise ElmoError(f"{folder}: {name} cannot be exported; the model must be one of {', '.join(classes)}")
    return load_folder(folder, classes[name])[0]


def export_program(model: ElmoPreTrainedModel) -> torch.export.ExportedProgram:
    """Export a model as a program of those of the tokenizer's outputs that it reads, for any batch and length.

    They are `char_ids` and `attention_mask`, with word vectors `input_ids` too, for pairs `token_type_ids`. The
    program of a biLM takes them by place, that of a task model by name.
    """
    return _export(model, traceable(model))


def _export(model: ElmoPreTrainedModel, form: TraceableElmo | TraceableTask) -> torch.export.ExportedProgram:
    dims = _dims(model)
    shape = [*range(2, 1 + len(dims)), 5]  # all different, so that none is taken for another
    inputs, sizes = {}, {}
    for name in form.input_names:
        inputs[name] = torch.ones(shape, dtype=torch.long)
        sizes[name] = dict(enumerate(dims))
    inputs["char_ids"] = torch.ones(*shape, model.config.max_characters_per_token, dtype=torch.long)
    by_place: tuple[torch.Tensor, ...] = ()
    if isinstance(form, TraceableElmo):
        by_place, inputs = tuple(inputs.values()), {}
    return torch.export.export(form, by_place, inputs, dynamic_shapes=sizes, strict=False)


def _dims(model: ElmoPreTrainedModel) -> list[torch.export.Dim]:
    """Return the dimensions of a model's inputs that may change; multiple choice has one for the choices."""
    shortest = SHORTEST_PAIR if getattr(model, "texts_per_row", 1) == 2 else 1
    dims = [torch.export.Dim("batch", min=1, max=LARGEST_BATCH)]
    if isinstance(model, ElmoForMultipleChoice):
        dims.append(torch.export.Dim("choices", min=1, max=MOST_CHOICES))
    return [*dims, torch.export.Dim("words", min=shortest, max=LONGEST_TEXT)]


def export_onnx(model: ElmoPreTrainedModel, path: StrPath, int8: bool = False) -> Graph:
    """Write an ONNX file with the inputs of `export_program` and return what is in it.

    The outputs are a task model's `logits`, or `start_logits` and `end_logits`; the biLM's `last_hidden_state` and
    `layers`. With `int8`, matrices are stored in 8 bits and activations are quantised as they are computed: the file
    is smaller, the numbers less exact.
    """
    for module in ("onnx", "onnxscript"):
        require(module, "onnx")
    form = traceable(model)
    axes: dict[str, Any] = dict.fromkeys(form.input_names)  # for their names alone
    axes["char_ids"] = dict(enumerate(_dims(model)))  # the other inputs have the same
    with _quiet_exporter():
        program = torch.onnx.export(
            _export(model, form), dynamo=True, output_names=form.output_names, dynamic_shapes=axes, verbose=False
        )
    assert program is not None
    with atomic_write(path) as scratch:
        if int8:
            _quantise(program.model_proto, scratch)
        else:
            program.save(str(scratch), external_data=False)
    graph = program.model.graph
    return Graph(_shapes(graph.inputs), _shapes(graph.outputs))


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Leave out what torch's exporter says of itself: that torchvision is missing, and what it should not call."""
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*LeafSpec", category=FutureWarning)
            yield
    finally:
        logger.setLevel(level)


def describe_graph(model: ElmoPreTrainedModel, graph: Graph, int8: bool) -> list[str]:
    """Say in lines what an ONNX file holds."""
    precision = "matrices in 8 bits" if int8 else "float32"
    lines = [f"{type(model).__name__}, {precision}"]
    for place, shapes in zip(("inputs", "outputs"), graph, strict=True):
        lines.append(f"{place}: " + ", ".join(f"{name} {shape}" for name, shape in shapes.items()))
    if type(model) in LABELLED:
        labels = [model.config.id2label[number] for number in range(model.config.num_labels)]
        lines.append(f"labels of the logits: {', '.join(labels)}")
    return lines


def _shapes(values: Any) -> dict[str, str]:
    shapes = {}
    for value in values:
        sizes = [str(getattr(size, "value", size)) for size in value.shape]
        shapes[value.name] = f"({', '.join(sizes)})"
    return shapes


def _quantise(model: Any, target: Path) -> None:
    """Quantise matrix products, those of the recurrence included; convolutions, which lose most, stay as they are."""
    quantization = require("onnxruntime.quantization", "onnx")
    _remove_shapes(model.graph)
    _separate_weights(model.graph)
    quantization.quantize_dynamic(
        model,
        target,
        weight_type=quantization.QuantType.QInt8,
        op_types_to_quantize=["MatMul", "Gemm"],
        extra_options={"EnableSubgraph": True, "DefaultTensorType": require("onnx", "onnx").TensorProto.FLOAT},
    )


def _separate_weights(graph: Any) -> None:
    """Give each Gemm a weight of its own: the quantiser transposes it in its place, whatever else reads it."""
    weights = {tensor.name: tensor for tensor in graph.initializer}
    reads = Counter(name for node in graph.node for name in node.input)
    for node in graph.node:
        if node.op_type == "Gemm" and reads[node.input[1]] > 1 and node.input[1] in weights:
            own = graph.initializer.add()
            own.CopyFrom(weights[node.input[1]])
            own.name = f"{own.name}.{node.name}"
            node.input[1] = own.name


def _remove_shapes(graph: Any) -> None:
    """Remove the shapes of intermediate values, which quantisation changes and then finds inconsistent."""
    del graph.value_info[:]
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _remove_shapes(attribute.g)
