"""Text classification and multiple choice.

By default the words of a text, or of each of a pair, go through one hidden layer and are pooled. The paper's models
are the biattentive classification network (McCann et al., 2017) of one text, and ESIM (Chen et al., 2017) of a pair.

Shapes: B batch, T words of a text, S words of another, D features of a word.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.modeling_outputs import MultipleChoiceModelOutput, SequenceClassifierOutput
from transformers.utils.generic import can_return_tuple

from .configuration_elmo import ElmoConfig
from .heads_elmo import (
    ElmoTaskModel,
    LayerMix,
    WordDropout,
    WordLstm,
    Words,
    attend,
    check_labels,
    flatten_rows,
    mean_loss,
    stack_words,
)
from .layers_elmo import Dropout, ElmoScalarMix

# Units where the config does not set `head_dim`.
CLASSIFIER_DIM = 300
MAXOUT_POOL = 4


class Maxout(nn.Module):
    """The largest of several linear maps, feature by feature."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs * MAXOUT_POOL)

    def forward(self, features: Tensor) -> Tensor:
        return self.linear(features).unflatten(-1, (-1, MAXOUT_POOL)).amax(-1)


def pooled(features: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the maximum, mean and minimum of each feature over real words: each (B, D), zero without words."""
    keep = mask[..., None]
    count = keep.sum(1)
    has_words = count > 0
    limits = torch.finfo(features.dtype)
    largest = features.masked_fill(~keep, limits.min).amax(1)
    smallest = features.masked_fill(~keep, limits.max).amin(1)
    mean = (features * keep).sum(1) / count.clamp(min=1)
    return largest * has_words, mean, smallest * has_words


class LayerStack(LayerMix):
    """The biLM's layers side by side, for a network whose first weights are a mix for each of its units."""

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__(config)
        self.scalar = None
        self.layer_norm = config.mix_layer_norm
        self.first_size = config.projection_dim
        self.size = self.first_size + config.num_hidden_layers * config.hidden_size

    def forward(self, layers: Sequence[Tensor], mask: Tensor | None = None) -> Tensor:
        """Concatenate layers, each (..., 2P), to (..., (2L + 1)P). Both halves of the first are the same."""
        if self.layer_norm:
            layers = [ElmoScalarMix.normalise(layer, mask) for layer in layers]
        return torch.cat([layers[0][..., : self.first_size], *layers[1:]], dim=-1)


class PooledNetwork(nn.Module):
    """A small network over one text or a pair: one hidden layer over each word, then the maximum over the words.

    Each text becomes a vector of its own, u and v: the maximum of each hidden unit, which the mean of the output's
    ELMo vectors joins. The scores are a linear map of u, to which a pair adds one of [v; |u - v|; u * v].
    """

    def __init__(self, inputs: int, elmo: int, units: int, dropout: float, outputs: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(inputs, units)
        self.output = nn.Linear(units + elmo, outputs)
        self.pair_output = nn.Linear(3 * (units + elmo), outputs, bias=False)
        self.dropout = Dropout(dropout)

    def forward(self, first: Words, second: Words) -> Tensor:
        """Return scores (B, outputs). The second text may be empty."""
        u, v = self.encode(first), self.encode(second)
        pair = torch.cat([v, (u - v).abs(), u * v], dim=-1) * second.mask.any(1, keepdim=True)
        return self.output(u) + self.pair_output(pair)

    def encode(self, text: Words) -> Tensor:
        """Return the vector of each text: (B, H + E)."""
        largest, _, _ = pooled(F.relu(self.hidden(text.features)), text.mask)  # (B, H)
        largest = self.dropout(largest)
        if text.elmo is None:
            return largest
        _, mean, _ = pooled(text.elmo.to(largest.device), text.mask)
        return torch.cat([largest, mean], dim=-1)


class BiattentiveNetwork(nn.Module):
    """The biattentive classification network of McCann et al. (2017) over one text, which attends to itself.

    A feed-forward layer, an encoding LSTM, attention, an integrating LSTM, four ways of pooling (maximum, mean,
    minimum and learned attention), two maxout layers and a linear one. ELMo joins the integrating LSTM's output.
    The paper has a third maxout layer instead of the linear one. Its batch normalization is left out: an example's
    gradient would depend on the rest of its batch.
    """

    def __init__(self, inputs: int, elmo: int, units: int, dropout: float, outputs: int) -> None:
        super().__init__()
        self.reduce = nn.Linear(inputs, units)
        self.encoder = WordLstm(units, units)
        self.integrator = WordLstm(3 * self.encoder.size, units)
        size = self.integrator.size + elmo
        self.attention = nn.Linear(size, 1)
        self.hidden = nn.ModuleList([Maxout(4 * size, 2 * units), Maxout(2 * units, units)])
        self.output = nn.Linear(units, outputs)
        self.dropout = Dropout(dropout)

    def forward(self, text: Words) -> Tensor:
        """Return scores (B, outputs)."""
        reduced = F.relu(self.reduce(text.features))
        encoded = self.encoder(self.dropout(reduced), text.mask)
        similarity = encoded @ encoded.transpose(1, 2)
        context = attend(similarity, text.mask) @ encoded
        compared = torch.cat([encoded, encoded - context, encoded * context], dim=-1)
        integrated = self.integrator(self.dropout(compared), text.mask)
        scores = self.attention(text.join_elmo(self.dropout(integrated))).transpose(1, 2)  # (B, 1, T)
        weights = attend(scores, text.mask)
        joined = text.join_elmo(integrated)
        largest, mean, smallest = pooled(joined, text.mask)
        attended = (weights @ joined).squeeze(1)
        features = torch.stack([largest, mean, smallest, attended], dim=1)
        features = self._drop_encoded(features, integrated.shape[-1]).flatten(1)
        for layer in self.hidden:
            features = self.dropout(layer(features))
        return self.output(features)

    def _drop_encoded(self, features: Tensor, size: int) -> Tensor:
        """Drop out the first `size` of features (..., size + E), not ELMo's, which have been dropped out already."""
        encoded, elmo = features.tensor_split([size], dim=-1)
        return torch.cat([self.dropout(encoded), elmo], dim=-1)


class Esim(nn.Module):
    """The enhanced sequential inference model of Chen et al. (2017) over a pair of texts.

    An encoding LSTM, soft alignment of the two texts, their comparison, a composing LSTM, pooling. ELMo joins the
    encoding LSTM's output, so that the alignment sees it.
    """

    def __init__(self, inputs: int, elmo: int, units: int, dropout: float, outputs: int) -> None:
        super().__init__()
        self.encoder = WordLstm(inputs, units)
        size = self.encoder.size + elmo
        self.compare = nn.Linear(4 * size, units)
        self.composer = WordLstm(units, units)
        self.hidden = nn.Linear(4 * self.composer.size, units)
        self.output = nn.Linear(units, outputs)
        self.word_dropout = WordDropout(dropout)
        self.dropout = Dropout(dropout)

    def forward(self, first: Words, second: Words) -> Tensor:
        """Return scores (B, outputs)."""
        # Both texts go through the LSTMs as one batch, which takes half the steps.
        both = stack_words(first, second)
        mask = both.mask  # (2B, max(T, S))
        encoded = both.join_elmo(self.encoder(both.features, mask))
        one, two = encoded.tensor_split(2)
        mask_one, mask_two = mask.tensor_split(2)
        scores = one @ two.transpose(1, 2)
        aligned_one = attend(scores, mask_two) @ two
        aligned_two = attend(scores.transpose(1, 2), mask_one) @ one
        aligned = torch.cat([aligned_one, aligned_two])
        compared = torch.cat([encoded, aligned, encoded - aligned, encoded * aligned], dim=-1)
        reduced = F.relu(self.compare(compared))
        composed = self.composer(self.word_dropout(reduced), mask)
        largest, mean, _ = pooled(composed, mask)
        pooled_one, pooled_two = torch.cat([mean, largest], dim=-1).tensor_split(2)
        features = torch.cat([pooled_one, pooled_two], dim=-1)
        hidden = torch.tanh(self.hidden(self.dropout(features)))
        return self.output(self.dropout(hidden))


NETWORKS = {"pooled": PooledNetwork, "bcn": BiattentiveNetwork, "esim": Esim}


class ElmoForSequenceClassification(ElmoTaskModel):
    """Classes, or a number, for a text or a pair of texts, by the network that `config.sequence_encoder` names."""

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__(config)
        network = NETWORKS[config.sequence_encoder]
        self.texts_per_row = 1 if network is BiattentiveNetwork else 2
        self.second_is_optional = network is PooledNetwork
        self.drops_by_row = network is Esim
        units = config.head_dim or CLASSIFIER_DIM
        self.network = network(self.input_size, self.elmo_size, units, self.head_dropout, config.num_labels)
        self.post_init()

    def _make_input_mix(self, config: ElmoConfig) -> LayerMix:
        is_learned = config.mix == "scalar"
        return LayerStack(config) if is_learned and config.sequence_encoder == "pooled" else LayerMix(config)

    def _dropouts(self, config: ElmoConfig) -> tuple[float, float]:
        return config.dropouts(pooled=config.sequence_encoder == "pooled")

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        char_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        bilm_layers: Tensor | None = None,
        labels: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
    ) -> SequenceClassifierOutput:
        """Score texts or pairs. See [`ElmoTaskModel`] for the arguments.

        The labels are classes `(B,)`, values if `config.problem_type` is `"regression"`, or `(B, num_labels)` of 0 and
        1 for several labels per text.
        """
        inputs = (input_ids, char_ids, attention_mask, token_type_ids, bilm_layers, inputs_embeds)
        texts, layers = self._read(inputs, output_hidden_states, output_attentions)
        logits = self.network(*texts).to(texts[0].mask.device)
        loss = None if labels is None else self._loss(logits, labels)
        return self._output(SequenceClassifierOutput, loss, logits=logits, hidden_states=layers)

    def _loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Compute the loss of the config's `problem_type`, which the first labels decide if it is not set."""
        config = self.config
        if config.problem_type is None:
            if config.num_labels == 1:
                config.problem_type = "regression"
            elif labels.dtype in (torch.long, torch.int):
                config.problem_type = "single_label_classification"
            else:
                config.problem_type = "multi_label_classification"
        if config.problem_type == "regression":
            return F.mse_loss(logits.view(labels.shape), labels.to(logits.dtype))
        if config.problem_type == "multi_label_classification":
            return F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype))
        check_labels(labels, config.num_labels)
        return mean_loss(logits, labels)


class ElmoForMultipleChoice(ElmoTaskModel):
    """A score for each of several endings of a text: ESIM over text and ending (Zellers et al., 2018)."""

    texts_per_row = 2
    drops_by_row = True

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__(config)
        units = config.head_dim or CLASSIFIER_DIM
        self.network = Esim(self.input_size, self.elmo_size, units, self.head_dropout, outputs=1)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        char_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        bilm_layers: Tensor | None = None,
        labels: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
    ) -> MultipleChoiceModelOutput:
        """Score the endings of each text. See [`ElmoTaskModel`] for the arguments.

        All have a dimension for the choices after the first, `(B, choices, T, ...)`; the rows are pairs of a text and
        one of its endings. The labels `(B,)` are the right choices.
        """
        if input_ids is None or char_ids is None:
            raise ValueError("ElmoForMultipleChoice needs `input_ids` and `char_ids` from ElmoTokenizer")
        batch, choices, words = input_ids.shape
        # The stock collator flattens what it does not know: characters come as (B, choices, T * C).
        char_ids = char_ids.reshape(batch, choices, words, self.config.max_characters_per_token)
        rows = flatten_rows(input_ids, char_ids, attention_mask, token_type_ids, bilm_layers, inputs_embeds)
        texts, layers = self._read(rows, output_hidden_states, output_attentions)
        logits = self.network(*texts).to(texts[0].mask.device).view(batch, choices)
        loss = None
        if labels is not None:
            check_labels(labels, choices)
            loss = mean_loss(logits, labels)
        return self._output(MultipleChoiceModelOutput, loss, logits=logits, hidden_states=layers)
