"""ElmoForPreTraining: one softmax on top of both language models, which predict the next and the previous word.

Shapes: B sentences or lanes, T words, C characters per word, U distinct words, P projection, V words of the softmax.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from transformers.utils import ModelOutput
from transformers.utils.generic import can_return_tuple

from .bilm_elmo import IGNORED, NUM_SPECIAL_WORDS, ElmoModel, ElmoPreTrainedModel, Packing, eval_mode
from .configuration_elmo import ElmoConfig
from .layers_elmo import Dropout
from .recurrence_elmo import States
from .softmax_elmo import ElmoSoftmax, Negatives, draw_negatives
from .tokenization_elmo import ElmoTokenizer


@dataclass
class ElmoForPreTrainingOutput(ModelOutput):
    r"""
    Output of [`ElmoForPreTraining`].

    Args:
        loss (`torch.FloatTensor`, *optional*, with labels):
            The mean of the two language models' losses.
        forward_loss, backward_loss (`torch.FloatTensor`, *optional*, with labels):
            Each one's mean of -log p over its predictions; in training mode, with negatives, an estimate.
        forward_scores, backward_scores (`torch.FloatTensor` of shape `(B, T)`, *optional*, with labels):
            In eval mode and without gradients, log p of the word at each position, given the words before it and given
            the words after it; 0 where nothing is to be predicted.
        forward_logits, backward_logits (`torch.FloatTensor` of shape `(B, T, V)`, *optional*, without labels):
            What the forward language model expects after each position, and the backward one before it.
        hidden_states, states (*optional*):
            As in [`ElmoModelOutput`].
    """

    loss: Tensor | None = None
    forward_loss: Tensor | None = None
    backward_loss: Tensor | None = None
    forward_scores: Tensor | None = None
    backward_scores: Tensor | None = None
    forward_logits: Tensor | None = None
    backward_logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    states: States | None = None


class SentenceScore(NamedTuple):
    """What the language models make of a sentence of T words.

    forward: log p of each word and of the end, given the words before: (T + 1,).
    backward: log p of the beginning and of each word, given the words after: (T + 1,).
    """

    forward: Tensor
    backward: Tensor

    @property
    def log_probability(self) -> float:
        """Return the mean of what the two language models give the sentence."""
        return (self.forward.double().sum() + self.backward.double().sum()).item() / 2

    @property
    def perplexity(self) -> float:
        return math.exp(-self.log_probability / len(self.forward))


class Substitute(NamedTuple):
    """A word that may stand at a place, and how probable the two language models together find it."""

    word: str
    probability: float


def _pair_outputs(top: Tensor, ids: Tensor, mask: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return each language model's outputs (N, P) beside the words that they predict (N,).

    The forward language model at t predicts the word at t + 1; the backward one at t + 1 the word at t.
    """
    forward, backward = top.chunk(2, dim=-1)
    both = mask[:, 1:] & mask[:, :-1]
    return [(forward[:, :-1][both], ids[:, 1:][both]), (backward[:, 1:][both], ids[:, :-1][both])]


class ElmoForPreTraining(ElmoPreTrainedModel):
    """The biLM with the softmax that it is trained with, shared by both directions.

    In training mode the softmax is sampled, with `config.num_negatives` words; otherwise, and where the vocabulary has
    no more words than that, it is full.

    Under `Trainer`, batches that make a step together count alike, whatever their numbers of words. Under
    training.pretrain, words do.
    """

    # Trainer counts labels; there is one prediction less in every sentence.
    accepts_loss_kwargs = False

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__(config)
        self.elmo = ElmoModel(config, add_mix=False)
        self.dropout = Dropout(config.dropout)
        self.softmax = ElmoSoftmax(config.vocab_size, config.projection_dim)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        char_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        states: States | None = None,
        word_index: Tensor | None = None,
        segments: Tensor | None = None,
        packing: Packing | None = None,
        negatives: Negatives | None = None,
        num_items_in_batch: Tensor | float | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> ElmoForPreTrainingOutput:
        r"""
        Sentences, or lanes of running text when there is a `word_index`.

        Args:
            input_ids (`(B, T)`, for lanes `(U,)`, *optional*):
                Ids of the words, which only a model with word embeddings reads. What is to be predicted is `labels`.
            char_ids (`(B, T, C)`, for lanes `(U, C)`):
                Characters of the words of sentences with their markers; for lanes, of the distinct words.
            attention_mask (`(B, T)`, *optional*):
                1 for real words. Of sentences, by default, the words whose characters are not all 0; of lanes, those
                with a label.
            token_type_ids (`(B, T)`, *optional*):
                Zeros, as the tokenizer returns them: a row is one sentence.
            labels (`(B, T)`, for lanes `(2, B, T)`, *optional*):
                Ids of the words, -100 where nothing is to be predicted. Sentences have a word's own id at each
                position; lanes the id to predict there, forward before backward.
            states (`tuple`, *optional*):
                The `.states` of the lanes' last window, or of an earlier batch of sentences.
            word_index (`(2, B, T)`, *optional*):
                Which row of `char_ids` each word of each lane is, forward before backward, each in the order in which
                its language model reads.
            segments (`(B, T)`, *optional*):
                Of lanes, how often states are set to zero up to a word: 0 where it continues from `states`.
            packing ([`Packing`], *optional*):
                Of lanes, `pack(attention_mask, segments)`, if it is already made; its words all have labels, which are
                not checked. Then nothing of the mask and the labels has to be waited for, where a device has them.
            negatives ([`Negatives`], *optional*):
                The sampled words; by default, in training mode, new ones are drawn.
            num_items_in_batch (`float`, *optional*):
                What to divide the summed losses by, instead of the number of predictions: that of a whole step, when
                it is made of several batches, divided by the number of processes whose gradients are averaged.
            use_cache (`bool`, *optional*):
                Whether to return the final states. Lanes always do.
            output_hidden_states (`bool`, *optional*):
                Whether to return every layer. Lanes never do.
        """
        if word_index is not None:
            assert char_ids is not None
            assert labels is not None
            mask = (labels[0] != IGNORED) if attention_mask is None else attention_mask.bool()
            is_checked = packing is not None
            hidden, packing, states = self.elmo.read_lanes(
                char_ids, word_index, mask, states, input_ids, segments, packing
            )
            targets = labels.flatten(1)[:, packing.forward_index]
            losses = self._losses(zip(hidden, targets, strict=True), negatives, num_items_in_batch, is_checked)
            return ElmoForPreTrainingOutput(*losses, states=states)

        if token_type_ids is not None and bool(token_type_ids.any()):
            raise ValueError("ElmoForPreTraining reads one sentence per row, not pairs")
        output = self.elmo(
            input_ids=input_ids,
            char_ids=char_ids,
            attention_mask=attention_mask,
            states=states,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            output_attentions=output_attentions,
            output_hidden_states=True,
            keep_sentence_markers=True,
            return_dict=True,
        )
        keeps_layers = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        rest = {"hidden_states": output.hidden_states if keeps_layers else None, "states": output.states}
        assert char_ids is not None  # or the biLM has refused it
        top = output.hidden_states[-1]
        if labels is None:
            forward_logits, backward_logits = (self.softmax(self.dropout(half)) for half in top.chunk(2, dim=-1))
            return ElmoForPreTrainingOutput(forward_logits=forward_logits, backward_logits=backward_logits, **rest)
        mask = char_ids.any(-1) if attention_mask is None else attention_mask.bool()
        pairs = _pair_outputs(top, labels, mask)
        if self.training or torch.is_grad_enabled():
            return ElmoForPreTrainingOutput(*self._losses(pairs, negatives, num_items_in_batch), **rest)
        return ElmoForPreTrainingOutput(*self._score_labels(pairs, mask, num_items_in_batch), **rest)

    def _losses(
        self,
        pairs: Iterable[tuple[Tensor, Tensor]],
        negatives: Negatives | None,
        num_items_in_batch: Tensor | float | None,
        is_checked: bool = False,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the mean of the two language models' losses, and each, from outputs (N, P) and targets (N,)."""
        if negatives is None and self.training:
            negatives = self.draw_negatives()
        losses = []
        for outputs, words in pairs:
            outputs = self.dropout(outputs)
            if not is_checked:
                kept = words != IGNORED
                outputs, words = outputs[kept], words[kept]
                self._check_words(words)
            count = max(len(words), 1) if num_items_in_batch is None else num_items_in_batch
            losses.append(self.softmax(outputs, words, negatives) / count)
        return (losses[0] + losses[1]) / 2, losses[0], losses[1]

    def _score_labels(
        self, pairs: Iterable[tuple[Tensor, Tensor]], mask: Tensor, num_items_in_batch: Tensor | float | None
    ) -> tuple[Tensor, ...]:
        """Return the losses as `_losses` does, then log p of the word at each position (B, T), 0 without a label."""
        predicted = mask[:, 1:] & mask[:, :-1]
        losses, scores = [], []
        for is_backward, (outputs, words) in enumerate(pairs):
            kept = words != IGNORED
            self._check_words(words[kept])
            log_p = -self.softmax(outputs, words.where(kept, 1), reduction="none").to(kept.device) * kept
            score = log_p.new_zeros(mask.shape)
            places = score[:, :-1] if is_backward else score[:, 1:]
            places[predicted] = log_p
            scores.append(score)
            count = kept.sum().clamp(min=1) if num_items_in_batch is None else num_items_in_batch
            losses.append(-log_p.sum() / count)
        return (losses[0] + losses[1]) / 2, *losses, *scores

    def _check_words(self, words: Tensor) -> None:
        if len(words) and not 0 < int(words.min()) <= int(words.max()) < self.config.vocab_size:
            raise ValueError(f"`labels` must be word ids from 1 to {self.config.vocab_size - 1}, or {IGNORED}")

    def draw_negatives(
        self, generator: torch.Generator | None = None, targets: Tensor | None = None
    ) -> Negatives | None:
        """Draw words for the sampled softmax of one step; None where the full softmax is no more work.

        With `targets`, on the CPU, all words that the step predicts, its losses need not find out which these are.
        """
        vocab_size, count = self.config.vocab_size, self.config.num_negatives
        if not 0 < count < vocab_size - 1:
            return None
        negatives = draw_negatives(vocab_size, count, generator)
        if targets is not None:
            negatives = negatives.including(targets)
        return negatives.to(self.softmax.weight.device)

    def score(
        self, sentences: Sequence[str | Sequence[str]], tokenizer: ElmoTokenizer, batch_size: int = 32
    ) -> list[SentenceScore]:
        """Score sentences, each a text or its words, and each by itself.

        A word outside the vocabulary counts as `<UNK>`. The softmax is full and dropout is off, even in training mode.
        """
        scores: list[SentenceScore] = []
        for start in range(0, len(sentences), batch_size):
            scores += self.score_batch(sentences[start : start + batch_size], tokenizer)[0]
        return scores

    @torch.no_grad()
    def score_batch(
        self, sentences: Sequence[str | Sequence[str]], tokenizer: ElmoTokenizer, states: States | None = None
    ) -> tuple[list[SentenceScore], States]:
        """Score one batch, starting from given states; return the states after it too."""
        words = []
        for sentence in sentences:
            words.append(tokenizer.tokenize(sentence) if isinstance(sentence, str) else list(sentence))
        with eval_mode(self):
            inputs = tokenizer(words, is_split_into_words=True, padding=True, return_tensors="pt").to(self.device)
            options = {"output_hidden_states": True, "keep_sentence_markers": True, "return_dict": True}
            output = self.elmo(**inputs, states=states, use_cache=True, **options)
            ids = inputs["input_ids"]
            ids = ids.where(ids != tokenizer.pad_token_id, tokenizer.unk_token_id)  # a word of the text may read so
            # One product with the softmax for all words of the batch.
            pairs = _pair_outputs(output.hidden_states[-1], ids, inputs["attention_mask"].bool())
            left, right = (-self.softmax(outputs, words, reduction="none").cpu() for outputs, words in pairs)
        lengths = [len(sentence) + 1 for sentence in words]
        scores = [SentenceScore(*pair) for pair in zip(left.split(lengths), right.split(lengths), strict=True)]
        return scores, output.states

    @torch.no_grad()
    def substitutes(
        self,
        words: Sequence[str],
        position: int,
        tokenizer: ElmoTokenizer,
        count: int = 10,
        divide_by_prior: bool = True,
    ) -> list[Substitute]:
        """Return the words that may stand at a position of a sentence, the most probable first.

        The forward language model reads what is before the position and the backward one what is after it; neither
        sees the word that is there. The product of their probabilities counts twice how frequent a word is, so it is
        divided by p(word), unless `divide_by_prior` is False. Of frequencies only their order is known, that of the
        vocabulary: p is the log-uniform distribution that the sampling draws from.
        """
        if not 0 <= position < len(words):
            raise ValueError(f"`position` must be from 0 to {len(words) - 1}, got {position}")
        with eval_mode(self):
            inputs = tokenizer([list(words)], is_split_into_words=True, return_tensors="pt").to(self.device)
            options = {"output_hidden_states": True, "keep_sentence_markers": True, "return_dict": True}
            top = self.elmo(**inputs, **options).hidden_states[-1][0]
            forward, backward = top.chunk(2, dim=-1)
            # `<S>` is at 0, so the word is at position + 1, between its neighbours.
            logits = self.softmax(forward[position]) + self.softmax(backward[position + 2])
            if divide_by_prior:
                logits = logits - self.softmax.initial_bias()
            logits[[tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id]] = -math.inf
            best = logits.softmax(0).topk(min(count, len(tokenizer) - NUM_SPECIAL_WORDS))
        substitutes = tokenizer.convert_ids_to_tokens(best.indices.tolist())
        return [Substitute(word, value) for word, value in zip(substitutes, best.values.tolist(), strict=True)]
