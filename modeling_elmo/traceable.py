"""Forms of ELMo and its task models that `torch.export` can trace, for any number of texts of any length.

The models themselves pack words, look up distinct ones and cache vectors, which no graph can do. These forms compute
the same numbers with plain tensors: the characters of every word, every recurrence as a `scan` over the positions, in
which padding leaves the states alone, and words at their places in the input rather than packed.

Shapes: B batch, T words, C characters per word, P projection, M memory cells, L LSTM layers, D features, H units,
K labels.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan
from torch.nn import functional as F

from .bilm_elmo import markers_of, word_mask
from .classification_elmo import ElmoForMultipleChoice, ElmoForSequenceClassification
from .files import ElmoError
from .heads_elmo import CharacterCnn, WordLstm, Words
from .layers_elmo import ElmoLanguageModel
from .modeling_elmo import ElmoModel, ElmoTaskModel
from .reading_elmo import ElmoForQuestionAnswering, TaskGruLayer
from .recurrence_elmo import FORGET_BIAS
from .tagging_elmo import ElmoForTokenClassification, Scores, allowed_labels

# Task models that have a traceable form, with the outputs of it.
TASK_OUTPUTS: dict[type[ElmoTaskModel], tuple[str, ...]] = {
    ElmoForSequenceClassification: ("logits",),
    ElmoForTokenClassification: ("logits",),
    ElmoForQuestionAnswering: ("start_logits", "end_logits"),
    ElmoForMultipleChoice: ("logits",),
}

# A step of a recurrence: the gates of the inputs and the states -> the new states, the first of which is the output.
Step = Callable[..., tuple[Tensor, ...]]

# ------------------------------------------------------------------------------------------------------- recurrences


def run_recurrence(
    step: Step, gates: Tensor, mask: Tensor, sizes: Sequence[int], reverse: bool, begins: Tensor | None = None
) -> Tensor:
    """Run a recurrence as a scan: gates (T, B, G), mask (T, B), sizes of the states -> outputs (T, B, sizes[0]).

    The states start from zeros, also where `begins` (T, B) is set, and stay as they are outside the mask.
    """

    def masked_step(states: tuple[Tensor, ...], inputs: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], Tensor]:
        step_gates, is_word, *is_first = inputs
        if is_first:
            states = tuple(state.masked_fill(is_first[0][:, None], 0.0) for state in states)
        new_states = step(step_gates, *states)
        keep = is_word[:, None]
        kept = tuple(torch.where(keep, new, old) for new, old in zip(new_states, states, strict=True))
        return kept, new_states[0] * keep

    zeros = tuple(gates.new_zeros(gates.shape[1], size) for size in sizes)
    inputs = (gates, mask) if begins is None else (gates, mask, begins)
    _, outputs = scan(masked_step, zeros, inputs, dim=0, reverse=reverse)
    return outputs


def _bilm_step(layer: Any) -> Step:
    recurrent, projection = layer.recurrent_gates.weight, layer.projection.weight
    cell_clip, projection_clip = layer.clips

    def step(gates: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, ...]:
        i, j, f, o = (gates + hidden @ recurrent.T).chunk(4, dim=-1)
        cell = torch.sigmoid(f + FORGET_BIAS) * cell + torch.sigmoid(i) * torch.tanh(j)
        if cell_clip is not None:
            cell = cell.clamp(-cell_clip, cell_clip)
        hidden = (torch.sigmoid(o) * torch.tanh(cell)) @ projection.T
        if projection_clip is not None:
            hidden = hidden.clamp(-projection_clip, projection_clip)
        return hidden, cell

    return step


def _lstm_step(layer: Any) -> Step:
    recurrent = layer.recurrent_gates.weight

    def step(gates: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, ...]:
        i, j, f, o = (gates + hidden @ recurrent.T).chunk(4, dim=-1)
        cell = torch.sigmoid(f + FORGET_BIAS) * cell + torch.sigmoid(i) * torch.tanh(j)
        return torch.sigmoid(o) * torch.tanh(cell), cell

    return step


def _gru_step(layer: Any) -> Step:
    recurrent = layer.recurrent_gates.weight

    def step(gates: Tensor, hidden: Tensor) -> tuple[Tensor, ...]:
        r, z, n = gates.chunk(3, dim=-1)
        u_r, u_z, u_n = (hidden @ recurrent.T).chunk(3, dim=-1)
        n = torch.tanh(n + torch.sigmoid(r + u_r) * u_n)
        return (torch.lerp(n, hidden, torch.sigmoid(z + u_z)),)

    return step


# ------------------------------------------------------------------------------------------------------------- biLM


class TraceableElmo(nn.Module):
    """char_ids (B, T, C) and attention_mask (B, T) -> last_hidden_state (B, T, 2P), every layer (B, L + 1, T, 2P)."""

    input_names = ("char_ids", "attention_mask")
    output_names = ("last_hidden_state", "layers")

    def __init__(self, model: ElmoModel) -> None:
        super().__init__()
        if model.config.word_embedding_dim:
            raise ElmoError(
                "a biLM with word embeddings (ELMoForManyLangs) cannot be exported: the graph reads only characters"
            )
        self.model = plain_copy(model)

    def forward(self, char_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        mask = attention_mask.bool()
        layers = self.read(char_ids, mask)
        if self.model.scalar_mix is not None:
            mixed = self.model.scalar_mix(layers, mask)
        elif self.model.mix == "average":
            mixed = torch.stack(layers).mean(0)
        else:
            mixed = layers[-1]
        return mixed, torch.stack(layers, dim=1)

    def read(self, char_ids: Tensor, mask: Tensor, token_type_ids: Tensor | None = None) -> list[Tensor]:
        """Compute the L + 1 layers, each (B, T, 2P). Where the token types change, a new sentence begins."""
        words = self._encode_words(char_ids) * mask[..., None]
        first = last = None
        if token_type_ids is not None:
            change = (token_type_ids[:, 1:] != token_type_ids[:, :-1]).T
            first, last = F.pad(change, (0, 0, 1, 0)), F.pad(change, (0, 0, 0, 1))
        by_position = words.transpose(0, 1), mask.T
        forward = _read(self.model.forward_lm, *by_position, reverse=False, begins=first)
        backward = _read(self.model.backward_lm, *by_position, reverse=True, begins=last)
        layers = [torch.cat([words, words], dim=-1)]
        for pair in zip(forward, backward, strict=True):
            layers.append(torch.cat(pair, dim=-1).transpose(0, 1))
        return layers

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


def _read(
    language_model: ElmoLanguageModel, words: Tensor, mask: Tensor, reverse: bool, begins: Tensor | None
) -> list[Tensor]:
    """Compute every layer of one language model: words (T, B, P), mask (T, B) -> L x (T, B, P)."""
    outputs: list[Tensor] = []
    layer: Any
    for layer in language_model.layers:
        step, sizes = _bilm_step(layer), layer.projection.weight.shape
        output = run_recurrence(step, layer.input_gates(words), mask, sizes, reverse, begins)
        words = output + words if language_model.use_skip_connections and outputs else output
        outputs.append(words)
    return outputs


def plain_copy(model: nn.Module) -> Any:
    """Copy a model for tracing, in float32 and eval mode; the original may still be trained."""
    return copy.deepcopy(model).float().eval().requires_grad_(False)


# ------------------------------------------------------------------------------------------------------ task models


class PlacedWords(Words):
    """The words of a text at their places in the input, where T' is T: none is moved."""

    def to_input(self, values: Tensor, fill: float) -> Tensor:
        absent = ~self.chosen
        return values.masked_fill(absent if values.ndim == 2 else absent[..., None], fill)


class TraceableCnn(nn.Module):
    """`CharacterCnn` of every word, rather than of the distinct ones: (B, T, C) -> (B, T, filters)."""

    def __init__(self, cnn: CharacterCnn) -> None:
        super().__init__()
        self.cnn = cnn

    def forward(self, char_ids: Tensor) -> Tensor:
        embedded = self.cnn.embedding(char_ids.flatten(0, 1)).transpose(1, 2)
        features = F.relu(self.cnn.convolution(embedded).amax(-1))
        return features.unflatten(0, char_ids.shape[:2])


class TraceableWordLstm(nn.Module):
    """`WordLstm` or `WordGru`: features (B, T, D), mask (B, T) -> (B, T, 2H)."""

    def __init__(self, lstm: WordLstm) -> None:
        super().__init__()
        self.forward_layers, self.backward_layers = lstm.forward_layers, lstm.backward_layers

    def forward(self, features: Tensor, mask: Tensor) -> Tensor:
        words, mask = features.transpose(0, 1), mask.T
        for forward_layer, backward_layer in zip(self.forward_layers, self.backward_layers, strict=True):
            forward = self._run(forward_layer, words, mask, reverse=False)
            backward = self._run(backward_layer, words, mask, reverse=True)
            words = torch.cat([forward, backward], dim=-1)
        return words.transpose(0, 1)

    @staticmethod
    def _run(layer: Any, words: Tensor, mask: Tensor, reverse: bool) -> Tensor:
        """Run the layer of one direction: (T, B, D) -> (T, B, H)."""
        is_gru = isinstance(layer, TaskGruLayer)
        step = _gru_step(layer) if is_gru else _lstm_step(layer)
        states = 1 if is_gru else 2
        return run_recurrence(step, layer.input_gates(words), mask, [layer.units] * states, reverse)


def scan_log_marginals(emissions: Tensor, mask: Tensor, scores: Scores) -> Tensor:
    """Compute `log_marginals` by scans: (B, T, K). The first word of a sentence may be at any position."""
    by_position, is_word = emissions.transpose(0, 1), mask.T  # (T, B, K), (T, B)
    is_first = is_word & (is_word.cumsum(0) == 1)

    def forward(alpha: Tensor, inputs: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        emission, keep, first = inputs[0], inputs[1][:, None], inputs[2][:, None]
        following = torch.logsumexp(alpha[:, :, None] + scores.transitions, dim=1)
        alpha = torch.where(keep, torch.where(first, scores.starts, following) + emission, alpha)
        return alpha, alpha.clone()

    def backward(beta: Tensor, inputs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        emission, keep = inputs[0], inputs[1][:, None]
        preceding = torch.logsumexp(scores.transitions + (emission + beta)[:, None], dim=2)
        return torch.where(keep, preceding, beta), beta.clone()

    zeros = emissions.new_zeros(emissions.shape[0], emissions.shape[2])
    _, prefixes = scan(forward, zeros, (by_position, is_word, is_first), dim=0)
    ends = zeros + scores.ends
    _, suffixes = scan(backward, ends, (by_position, is_word), dim=0, reverse=True)
    return torch.log_softmax(prefixes + suffixes, dim=-1).transpose(0, 1)


class TraceableTask(nn.Module):
    """A task model's logits: its own `forward`, with what cannot be traced replaced in a copy of it.

    These are its recurrences, its character CNN and its biLM, and `_read`, which lays out words by their number.
    """

    def __init__(self, model: ElmoTaskModel) -> None:
        super().__init__()
        config = model.config
        self.output_names = TASK_OUTPUTS[type(model)]
        if isinstance(model, ElmoForTokenClassification):
            # Fill the cache of this function, which must not keep what it returns while it is traced.
            allowed_labels(tuple(config.id2label[number] for number in range(config.num_labels)), config.tag_scheme)
        head = plain_copy(model)
        for name, module in list(head.named_modules()):
            if isinstance(module, WordLstm):
                head.set_submodule(name, TraceableWordLstm(module))
            elif isinstance(module, CharacterCnn):
                head.set_submodule(name, TraceableCnn(module))
        if config.elmo_placement != "none":
            head.elmo = TraceableElmo(head.elmo)
        head._read = self._read
        head.log_marginals = scan_log_marginals
        head.training = True  # of the head alone, not of its parts: without predictions, and the search for them
        self.head = head
        names = ["char_ids", "attention_mask"]
        if head.word_embeddings is not None:
            names.insert(0, "input_ids")
        if head.texts_per_row == 2:
            names.append("token_type_ids")
        self.input_names = tuple(names)

    def forward(
        self,
        char_ids: Tensor,
        attention_mask: Tensor,
        input_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        output = self.head(
            input_ids=attention_mask if input_ids is None else input_ids,  # for its shape, where it is not read
            char_ids=char_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            return_dict=True,
        )
        return tuple(output[name] for name in self.output_names)

    def _read(self, inputs: Sequence[Tensor], *_: bool | None) -> tuple[list[Words], None]:
        """Do what `ElmoTaskModel._read` does, for all positions rather than for the words alone."""
        input_ids, char_ids, attention_mask, token_type_ids, *_unused = inputs
        head = self.head
        mask = attention_mask.bool()
        words = word_mask(char_ids, mask, token_type_ids, markers_of(head.config))
        features, elmo = [], None
        if head.word_embeddings is not None:
            known = input_ids < head.word_embeddings.num_embeddings
            features.append(head.word_embeddings(input_ids.where(known, head.config.unk_token_id)))
        if head.character_cnn is not None and head.config.head_char_filters:
            features.append(head.get_submodule(head.character_cnn)(char_ids))
        if head.config.elmo_placement != "none":
            layers = head.elmo.read(char_ids, mask, token_type_ids)
            if head.input_mix is not None:
                features.append(head.input_mix(layers, mask))
            if head.output_mix is not None:
                elmo = head.output_mix(layers, mask)
        joined = torch.cat(features, dim=-1)
        texts: list[Words] = []
        for number in range(head.texts_per_row):
            chosen = words if token_type_ids is None else words & (token_type_ids == number)
            keep = chosen[..., None]
            texts.append(PlacedWords(joined * keep, None if elmo is None else elmo * keep, chosen, chosen))
        return texts, None


def traceable(model: nn.Module) -> TraceableElmo | TraceableTask:
    """Return the form of a model that can be traced."""
    if type(model) is ElmoModel:
        return TraceableElmo(model)
    if isinstance(model, ElmoTaskModel) and type(model) in TASK_OUTPUTS:
        return TraceableTask(model)
    names = [ElmoModel.__name__, *(kind.__name__ for kind in TASK_OUTPUTS)]
    raise ElmoError(f"{type(model).__name__} cannot be exported; the model must be one of {', '.join(names)}")
