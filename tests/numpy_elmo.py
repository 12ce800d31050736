"""ELMo's forward pass in NumPy, float64, one word and one gate at a time: the equations of the paper and of the
original code written out, with nothing shared with the package but the names of the weights.

Shapes: T words, C characters, d character size, P projection, M memory cells.
"""

import numpy as np


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def word_vector(weights: dict[str, np.ndarray], config, characters: np.ndarray) -> np.ndarray:
    """Characters (C,) -> context-free vector (P,)."""
    embedded = weights["char_encoder.char_embedding.weight"][characters]  # (C, d)
    features = []
    for index, (width, count) in enumerate(config.char_filters):
        kernel = weights[f"char_encoder.convolutions.{index}.weight"]  # (count, d, width)
        bias = weights[f"char_encoder.convolutions.{index}.bias"]
        for channel in range(count):
            values = [
                (embedded[start : start + width].T * kernel[channel]).sum()
                for start in range(len(characters) - width + 1)
            ]
            features.append(max(values) + bias[channel])
    x = np.array(features)
    x = np.maximum(x, 0) if config.char_activation == "relu" else np.tanh(x)
    for index in range(config.num_highway_layers):
        name = f"char_encoder.highways.{index}"
        gate = sigmoid(weights[f"{name}.carry.weight"] @ x + weights[f"{name}.carry.bias"])
        new = np.maximum(weights[f"{name}.transform.weight"] @ x + weights[f"{name}.transform.bias"], 0)
        x = gate * new + (1 - gate) * x
    if "char_encoder.projection.weight" in weights:
        x = weights["char_encoder.projection.weight"] @ x + weights["char_encoder.projection.bias"]
    return x


def clip(x: np.ndarray, bound: float | None) -> np.ndarray:
    return x if bound is None else np.minimum(np.maximum(x, -bound), bound)


def lstm_layer(
    weights: dict[str, np.ndarray], name: str, config, inputs: list[np.ndarray], m: np.ndarray, c: np.ndarray
) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """Inputs T x (P,) in reading order -> outputs T x (P,), last output, last cell."""
    outputs = []
    for x in inputs:
        gates = (
            weights[f"{name}.input_gates.weight"] @ x
            + weights[f"{name}.recurrent_gates.weight"] @ m
            + weights[f"{name}.input_gates.bias"]
        )
        i, j, f, o = np.split(gates, 4)
        c = clip(sigmoid(f + 1) * c + sigmoid(i) * np.tanh(j), config.cell_clip)
        m = clip(weights[f"{name}.projection.weight"] @ (sigmoid(o) * np.tanh(c)), config.projection_clip)
        outputs.append(m)
    return outputs, m, c


def elmo_layers(weights: dict[str, np.ndarray], config, sentence: np.ndarray) -> list[np.ndarray]:
    """Characters of one sentence (T, C), its markers included -> L + 1 layers, each (T, 2P)."""
    words = [word_vector(weights, config, characters) for characters in sentence]
    layers = [[np.concatenate([word, word]) for word in words]]
    by_direction = []
    for direction in ("forward_lm", "backward_lm"):
        inputs = words if direction == "forward_lm" else words[::-1]
        stacked = []
        for layer in range(config.num_hidden_layers):
            m, c = np.zeros(config.projection_dim), np.zeros(config.cell_dim)
            outputs, _, _ = lstm_layer(weights, f"{direction}.layers.{layer}", config, inputs, m, c)
            if config.use_skip_connections and layer > 0:
                outputs = [output + x for output, x in zip(outputs, inputs, strict=True)]
            inputs = outputs
            stacked.append(outputs if direction == "forward_lm" else outputs[::-1])
        by_direction.append(stacked)
    for forward, backward in zip(*by_direction, strict=True):
        layers.append([np.concatenate(pair) for pair in zip(forward, backward, strict=True)])
    return [np.array(layer) for layer in layers]
