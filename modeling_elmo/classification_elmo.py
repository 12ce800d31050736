"""Text classification and multiple choice.

One text is read by the biattentive classification network (McCann et al., 2017), a pair by ESIM (Chen et al., 2017).

Shapes: B batch, T words of a text, S words of another, D features of a word.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.modeling_outputs import MultipleChoiceModelOutput, SequenceClassifierOutput
from transformers.utils.generic import can_return_tuple

from .configuration_elmo import ElmoConfig
from .heads_elmo import ElmoTaskModel, WordDropout, WordLstm, Words, attend, check_labels, mean_loss, stack_words
from .layers_elmo import Dropout

# Units where the config does not set `head_dim`.
CLASSIFIER_DIM = 300


class Maxout(nn.Module):
    """The largest of several linear maps, feature by feature."""

    def __init__(self, inputs: int, outputs: int, pool: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs * pool)
        self.pool = pool

    def forward(self, features: Tensor) -> Tensor:
        return self.linear(features).unflatten(-1, (-1, self.pool)).amax(-1)


def pooled(features: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the maximum, mean and minimum of each feature over real words: each (B, D), zero without words."""
    keep = mask[..., None]
    count = keep.sum(1)
    if not features.shape[1]:
        zeros = features.new_zeros(len(features), features.shape[2])
        return zeros, zeros, zeros
    largest = features.masked_fill(~keep, torch.finfo(features.dtype).min).amax(1)
    smallest = features.masked_fill(~keep, torch.finfo(features.dtype).max).amin(1)
    mean = (features * keep).sum(1) / count.clamp(min=1)
    return largest * (count > 0), mean, smallest * (count > 0)


class BiattentiveNetwork(nn.Module):
    """The biattentive classification network of McCann et al. (2017) over one text, which attends to itself.

    A feed-forward layer, an encoding LSTM, attention, an integrating LSTM, four ways of pooling (maximum, mean,
    minimum and learned attention), two maxout layers and a linear one. ELMo joins the integrating LSTM's output.
    The paper has a third maxout layer instead of the linear one. Its batch normalization is left out: an example's
    gradient would depend on the rest of its batch.
    """

    POOL = 4

    def __init__(self, inputs: int, elmo: int, units: int, dropout: float, outputs: int) -> None:
        super().__init__()
        self.reduce = nn.Linear(inputs, units)
        self.encoder = WordLstm(units, units)
        self.integrator = WordLstm(3 * self.encoder.size, units)
        size = self.integrator.size + elmo
        self.attention = nn.Linear(size, 1)
        self.hidden = nn.ModuleList([Maxout(4 * size, 2 * units, self.POOL), Maxout(2 * units, units, self.POOL)])
        self.output = nn.Linear(units, outputs)
        self.dropout = Dropout(dropout)

    def forward(self, text: Words) -> Tensor:
        """Return scores (B, outputs)."""
        encoded = self.encoder(self.dropout(F.relu(self.reduce(text.features))), text.mask)
        context = attend(encoded @ encoded.transpose(1, 2), text.mask) @ encoded
        compared = torch.cat([encoded, encoded - context, encoded * context], dim=-1)
        integrated = self.integrator(self.dropout(compared), text.mask)
        integrated = text.join_elmo(integrated)
        scores = self.attention(self.dropout(integrated)).transpose(1, 2)  # (B, 1, T)
        weights = attend(scores, text.mask)
        largest, mean, smallest = pooled(integrated, text.mask)
        attended = (weights @ integrated).squeeze(1)
        features = torch.cat([largest, mean, smallest, attended], dim=-1)
        for layer in self.hidden:
            features = layer(self.dropout(features))
        return self.output(self.dropout(features))


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
        one, two = encoded.chunk(2)
        mask_one, mask_two = mask.chunk(2)
        scores = one @ two.transpose(1, 2)
        aligned_one = attend(scores, mask_two) @ two
        aligned_two = attend(scores.transpose(1, 2), mask_one) @ one
        aligned = torch.cat([aligned_one, aligned_two])
        compared = torch.cat([encoded, aligned, encoded - aligned, encoded * aligned], dim=-1)
        composed = self.composer(self.word_dropout(F.relu(self.compare(compared))), mask)
        largest, mean, _ = pooled(composed, mask)
        pooled_one, pooled_two = torch.cat([mean, largest], dim=-1).chunk(2)
        features = torch.cat([pooled_one, pooled_two], dim=-1)
        hidden = torch.tanh(self.hidden(self.dropout(features)))
        return self.output(self.dropout(hidden))


class ElmoSequenceEncoder(ElmoTaskModel):
    """The base of text classification and multiple choice: scores of a text or a pair of texts."""

    def __init__(self, config: ElmoConfig, encoder: str, outputs: int) -> None:
        super().__init__(config)
        network = Esim if encoder == "esim" else BiattentiveNetwork
        units = config.head_dim or CLASSIFIER_DIM
        self.network = network(self.input_size, self.elmo_size, units, config.head_dropout, outputs)

    def _scores(
        self,
        input_ids: Tensor | None,
        char_ids: Tensor | None,
        attention_mask: Tensor | None,
        token_type_ids: Tensor | None,
        bilm_layers: Tensor | None,
    ) -> Tensor:
        """Compute scores (B, outputs)."""
        needs_pairs = isinstance(self.network, Esim)
        if needs_pairs and token_type_ids is None:
            raise ValueError(
                "sequence_encoder='esim' reads pairs: tokenizer(first, second), with their `token_type_ids`"
            )
        if not needs_pairs and token_type_ids is not None and bool(token_type_ids.any()):
            raise ValueError("sequence_encoder='bcn' reads one text per row; for pairs set sequence_encoder='esim'")
        count = 2 if needs_pairs else 1
        texts = self._read(input_ids, char_ids, attention_mask, token_type_ids, bilm_layers, texts=count)
        return self.network(*texts)


class ElmoForSequenceClassification(ElmoSequenceEncoder):
    """Classes, or a number, for a text (biattentive classification network) or a pair of texts (ESIM)."""

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__(config, config.sequence_encoder, config.num_labels)
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
        return_dict: bool | None = None,
    ) -> SequenceClassifierOutput:
        r"""
        Args:
            input_ids, char_ids, attention_mask, token_type_ids:
                What [`ElmoTokenizer`] makes of a text or, for ESIM, of a pair.
            bilm_layers (`(B, T, (2L + 1)P)`, *optional*):
                What [`ElmoTaskModel.bilm_layers`] returned for these texts.
            labels (`(B,)`, or `(B, num_labels)` for several labels per text, *optional*):
                Classes, or values if `config.problem_type` is `"regression"`.
        """
        logits = self._scores(input_ids, char_ids, attention_mask, token_type_ids, bilm_layers)
        loss = None
        if labels is not None:
            loss = self._loss(logits, labels) + self._penalty()
        return SequenceClassifierOutput(loss=loss, logits=logits)

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


class ElmoForMultipleChoice(ElmoSequenceEncoder):
    """A score for each of several endings of a text: ESIM over text and ending (Zellers et al., 2018)."""

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__(config, "esim", 1)
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
        return_dict: bool | None = None,
    ) -> MultipleChoiceModelOutput:
        r"""
        Args:
            input_ids, char_ids, attention_mask, token_type_ids (`(B, choices, T)`, characters `(B, choices, T, C)`):
                What [`ElmoTokenizer`] makes of the pairs of a text and each of its endings.
            bilm_layers (`(B, choices, T, (2L + 1)P)`, *optional*):
                What [`ElmoTaskModel.bilm_layers`] returned for these pairs.
            labels (`(B,)`, *optional*):
                The index of the right choice.
        """
        if input_ids is None or char_ids is None:
            raise ValueError("ElmoForMultipleChoice needs `input_ids` and `char_ids` from ElmoTokenizer")
        batch, choices, words = input_ids.shape
        # The stock collator flattens what it does not know: characters come as (B, choices, T * C).
        characters = char_ids.reshape(batch * choices, words, self.config.max_characters_per_token)
        rows = []
        for tensor in (input_ids, attention_mask, token_type_ids, bilm_layers):
            rows.append(None if tensor is None else tensor.flatten(0, 1))
        scores = self._scores(rows[0], characters, *rows[1:])
        logits = scores.view(batch, choices)
        loss = None
        if labels is not None:
            check_labels(labels, choices)
            loss = mean_loss(logits, labels) + self._penalty()
        return MultipleChoiceModelOutput(loss=loss, logits=logits)
