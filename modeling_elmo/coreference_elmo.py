"""Coreference resolution by ranking spans of a document, end to end (Lee et al., 2017, 2018).

Shapes: B documents, N words of all documents, W maximum width of a span, K kept spans of a document, A antecedents
compared with each span, U hidden units, G features of a span.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from transformers.utils import ModelOutput
from transformers.utils.generic import can_return_tuple

from .bilm_elmo import eval_mode
from .configuration_elmo import ElmoConfig
from .heads_elmo import IGNORED, ElmoWordEncoder, flatten_rows
from .layers_elmo import Dropout, is_plain
from .tokenization_elmo import ElmoTokenizer

COREFERENCE_LAYERS = 1
# Dropout after the LSTMs as a fraction of that on words: 0.2 of 0.5 in the paper.
INNER_DROPOUT = 0.4
# Hidden units of the feed-forward networks, and size of the embeddings of widths and distances.
UNITS, FEATURE_DIM = 150, 20
# Lower bounds of the bins of distances, counted in kept spans.
DISTANCES = (1, 2, 3, 4, 5, 8, 16, 32, 64)
# What is processed at once, to bound memory: tokens to encode, words whose spans are scored, kept spans to compare.
TOKENS_AT_ONCE, WORDS_AT_ONCE, SPANS_AT_ONCE = 4096, 2048, 256


class DocumentWords(NamedTuple):
    """The words of some documents, one document after another."""

    features: Tensor  # (N, D), what the encoder read
    encoded: Tensor  # (N, H)
    sentence: Tensor  # (N,), the number of each word's sentence, unique across documents
    lengths: list[int]  # words of each document


class Ranking(NamedTuple):
    """The kept spans of a document, by position, and the scores of their links."""

    starts: Tensor  # (K,), words of the document
    ends: Tensor  # (K,), one past the last word
    mention_scores: Tensor  # (K,)
    antecedents: Tensor  # (K, A), numbers of kept spans
    links: Tensor  # (K, A), scores; -inf where a span has fewer spans before it


def _prefix_softmax(scores: Tensor) -> Tensor:
    """Compute the softmax over the first 1, 2, ... of W scores: (n, W) -> (n, W, W)."""
    width = scores.shape[-1]
    beyond = torch.ones(width, width, dtype=torch.bool, device=scores.device).triu(1)
    repeated = scores[:, None].expand(-1, width, -1)
    return torch.softmax(repeated.masked_fill(beyond, -torch.inf), dim=-1)


def within_sentences(sentence: Tensor, max_width: int) -> Tensor:
    """Mark the spans, by first word and width (N, W), that lie within one sentence."""
    words = torch.arange(len(sentence), device=sentence.device)
    last = words[:, None] + torch.arange(max_width, device=sentence.device)
    last_sentence = sentence[last.clamp(max=len(sentence) - 1)]
    return (last < len(sentence)) & (last_sentence == sentence[:, None])


@torch.no_grad()
def best_spans(scores: Tensor, allowed: Tensor, count: int) -> Tensor:
    """Choose at most `count` spans of highest score, no two of which cross: scores (N, W) -> sorted numbers (K,).

    A span's number is W * (its first word) + (its width - 1).
    """
    max_width = scores.shape[1]
    possible = allowed.flatten().nonzero().squeeze(1)
    order = scores.flatten()[possible].argsort(descending=True, stable=True)
    longest: dict[int, int] = {}  # last word of the longest chosen span, by first word
    earliest: dict[int, int] = {}  # first word of the longest chosen span, by last word
    chosen: list[int] = []
    for number in possible[order].tolist():
        if len(chosen) == count:
            break
        first, width = divmod(number, max_width)
        last = first + width
        if not _crosses(first, last, longest, earliest):
            longest[first] = max(last, longest.get(first, last))
            earliest[last] = min(first, earliest.get(last, first))
            chosen.append(number)
    return torch.tensor(sorted(chosen), dtype=torch.long).to(scores.device)


def _crosses(first: int, last: int, longest: dict[int, int], earliest: dict[int, int]) -> bool:
    """Return whether a chosen span starts inside this one and ends after it, or the other way round."""
    ends_inside = any(earliest.get(word, first) < first for word in range(first, last))
    return ends_inside or any(longest.get(word, last) > last for word in range(first + 1, last + 1))


class FeedForward(nn.Module):
    """Two hidden layers and a score, over features that come in parts.

    The first layer is linear, so each part is multiplied before the parts of many spans are combined. This gives the
    same numbers as their concatenation would, in a fraction of the time. A layer that is not plain is called instead.
    """

    def __init__(self, parts: Sequence[int], dropout: float, bias: bool = True) -> None:
        super().__init__()
        self.parts = list(parts)
        self.first = nn.Linear(sum(parts), UNITS)
        self.second = nn.Linear(UNITS, UNITS)
        self.output = nn.Linear(UNITS, 1, bias=bias)
        self.dropout = Dropout(dropout)

    def part(self, number: int, features: Tensor) -> Tensor:
        """Multiply one of the parts by its share of the first layer, if that is plain: (..., D) -> (..., U)."""
        if not is_plain(self.first):
            return features
        return F.linear(features, self.first.weight.split(self.parts, dim=1)[number])

    def forward(self, parts: Sequence[Tensor]) -> Tensor:
        """Score the parts that `part` returned, which are broadcast to each other: -> (...)."""
        if is_plain(self.first):
            summed = sum(parts[1:], start=parts[0]) + self.first.bias
        else:
            shape = torch.broadcast_shapes(*(part.shape[:-1] for part in parts))
            summed = self.first(torch.cat([part.expand(*shape, -1) for part in parts], dim=-1))
        hidden = self.dropout(F.relu(summed))
        hidden = self.dropout(F.relu(self.second(hidden)))
        return self.output(hidden).squeeze(-1)


class SpanRanking(nn.Module):
    """Mention scores of all spans, and links between the best of them.

    A span's head is the weighted sum of its words' features, of size `inputs`; `encoded` is the size of encoded words.
    """

    def __init__(self, inputs: int, encoded: int, config: ElmoConfig, dropout: float) -> None:
        super().__init__()
        self.max_width = config.max_span_width
        self.spans_per_word = config.spans_per_word
        self.max_antecedents = config.max_antecedents
        parts = (encoded, encoded, inputs, FEATURE_DIM)  # first word, last word, head, width
        span = sum(parts)
        self.width = nn.Embedding(self.max_width, FEATURE_DIM)
        self.distance = nn.Embedding(len(DISTANCES), FEATURE_DIM)
        self.attention = FeedForward([encoded], dropout, bias=False)  # a constant cancels in the softmax
        self.mention = FeedForward(parts, dropout)
        self.quick = nn.Linear(span, span, bias=False)
        self.pair = FeedForward((span, span, span, FEATURE_DIM), dropout)  # span, antecedent, product, distance

    def forward(self, words: DocumentWords) -> tuple[Tensor, Tensor, list[Ranking]]:
        """Return scores of all spans by first word and width (N, W), which exist, and a ranking per document."""
        attention = self.attention([self.attention.part(0, words.encoded)])
        allowed = within_sentences(words.sentence, self.max_width)
        scores = self._mention_scores(words, attention)
        rankings, begin = [], 0
        for length in words.lengths:
            end = begin + length
            count = int(self.spans_per_word * length + 1)
            kept = best_spans(scores[begin:end], allowed[begin:end], count)
            rankings.append(self._rank(words, attention, scores, begin, kept))
            begin = end
        return scores, allowed, rankings

    def _mention_scores(self, words: DocumentWords, attention: Tensor) -> Tensor:
        """Score every span as a mention: (N, W)."""
        steps = torch.arange(self.max_width, device=attention.device)
        first = self.mention.part(0, words.encoded)  # (N, U)
        last = self.mention.part(1, words.encoded)
        head = self.mention.part(2, words.features)
        width = self.mention.part(3, self.width(steps))  # (W, U)
        scores = [attention.new_zeros(0, self.max_width, dtype=torch.float)]
        for block in torch.arange(len(first), device=first.device).split(WORDS_AT_ONCE):
            index = (block[:, None] + steps).clamp(max=len(first) - 1)  # (n, W)
            weights = _prefix_softmax(attention[index])  # (n, W, W)
            parts = [first[block][:, None], last[index], weights @ head[index], width]
            scores.append(self.mention(parts).float())
        return torch.cat(scores)

    def _rank(self, words: DocumentWords, attention: Tensor, scores: Tensor, begin: int, kept: Tensor) -> Ranking:
        """Score the links between a document's kept spans, given by number. The document's first word is `begin`."""
        starts = kept // self.max_width
        widths = kept % self.max_width  # less 1
        first = begin + starts
        spans = self._span_features(words, attention, first, widths)  # (K, G)
        mention_scores = scores[first, widths]
        queries = self.quick(spans) * spans.shape[1] ** -0.5  # as small as the other scores at first
        antecedents = self._likely_antecedents(queries, spans, mention_scores)  # (K, A)
        distances = torch.tensor(DISTANCES).to(kept.device)
        of_span = self.pair.part(0, spans)
        of_antecedent = self.pair.part(1, spans)
        of_distance = self.pair.part(3, self.distance(torch.arange(len(distances), device=kept.device)))
        links = [mention_scores.new_zeros(0, antecedents.shape[1])]
        for block in torch.arange(len(kept), device=kept.device).split(SPANS_AT_ONCE):
            others = antecedents[block]
            before = spans[others]  # (k, A, G)
            of_product = self.pair.part(2, spans[block][:, None] * before)
            distance = block[:, None] - others
            bins = torch.bucketize(distance.clamp(min=1), distances, right=True) - 1
            pair = self.pair([of_span[block][:, None], of_antecedent[others], of_product, of_distance[bins]])
            quick = (before @ queries[block][..., None]).squeeze(-1)
            link = (pair + quick).float() + mention_scores[block][:, None] + mention_scores[others]
            links.append(link.masked_fill(distance <= 0, -torch.inf))
        return Ranking(starts, starts + widths + 1, mention_scores, antecedents, torch.cat(links))

    def _span_features(self, words: DocumentWords, attention: Tensor, first: Tensor, widths: Tensor) -> Tensor:
        """Concatenate the first and last word, the head and the width of spans: (K, G)."""
        steps = torch.arange(self.max_width, device=first.device)
        inside = steps <= widths[:, None]  # (K, W)
        index = first[:, None] + steps * inside
        weights = torch.softmax(attention[index].masked_fill(~inside, -torch.inf), dim=-1)
        head = (weights[:, None] @ words.features[index]).squeeze(1)
        last = words.encoded[first + widths]
        return torch.cat([words.encoded[first], last, head, self.width(widths)], dim=-1)

    @torch.no_grad()
    def _likely_antecedents(self, queries: Tensor, spans: Tensor, mention_scores: Tensor) -> Tensor:
        """Choose the likeliest antecedents of every span among the spans before it: numbers (K, A).

        The first spans have fewer before them. The rest of their numbers are not before them, to be masked out.
        """
        numbers = torch.arange(len(spans), device=spans.device)
        count = min(self.max_antecedents, max(len(spans) - 1, 0))
        chosen = [numbers.new_zeros(0, count)]
        for block in numbers.split(SPANS_AT_ONCE):
            quick = (queries[block] @ spans.T).float() + mention_scores
            is_after = numbers >= block[:, None]
            chosen.append(quick.masked_fill(is_after, -torch.inf).topk(count, dim=-1).indices)
        return torch.cat(chosen)


# -------------------------------------------------------------------------------------------------- loss and clusters


def _options(ranking: Ranking, singletons: bool) -> Tensor:
    """Return the scores of what a span may be: no mention, with singletons a new mention, or linked: (K, 1|2 + A).

    Without singletons, an unlinked span may be either of the first two, as in the paper.
    """
    unlinked = [torch.zeros_like(ranking.mention_scores)]
    if singletons:
        unlinked.append(ranking.mention_scores)
    return torch.cat([torch.stack(unlinked, dim=1), ranking.links], dim=1)


def coreference_loss(
    scores: Tensor,
    allowed: Tensor,
    rankings: Sequence[Ranking],
    lengths: Sequence[int],
    mentions: Sequence[tuple[Tensor, Tensor, Tensor]],
    singletons: bool,
) -> Tensor:
    """Compute -log p of the right options of each span, summed over spans and documents.

    The paper's loss is over the kept spans alone, so that a mention that is not kept never learns to be one. Here,
    spans that were not kept have two options: no mention, and a new mention.

    Args:
        scores, allowed, rankings: what SpanRanking returned.
        lengths: number of words of each document.
        mentions: first words, ends (one past the last word) and clusters of each document's mentions.
    """
    clusters = torch.full_like(scores, -1, dtype=torch.long)  # (N, W)
    left = allowed.clone()
    total, begin = scores.new_zeros(()), 0
    for ranking, length, (starts, ends, numbers) in zip(rankings, lengths, mentions, strict=True):
        widths = ends - starts
        short = widths <= scores.shape[1]  # longer mentions are not candidates
        clusters[begin + starts[short], widths[short] - 1] = numbers[short]
        kept = begin + ranking.starts, ranking.ends - ranking.starts - 1
        left[kept] = False
        total = total + _ranking_loss(ranking, clusters[kept], singletons)
        begin += length
    is_mention = (clusters[left] >= 0).to(scores.dtype)
    return total + F.binary_cross_entropy_with_logits(scores[left], is_mention, reduction="sum")


def _ranking_loss(ranking: Ranking, clusters: Tensor, singletons: bool) -> Tensor:
    """Compute -log p of the kept spans' right options by their clusters (K,), -1 for no mention."""
    links = (clusters[ranking.antecedents] == clusters[:, None]) & (clusters >= 0)[:, None]
    links &= ranking.links != -torch.inf
    is_first = (clusters >= 0) & ~links.any(1)
    unlinked = [clusters < 0, is_first] if singletons else [(clusters < 0) | is_first]
    right = torch.cat([torch.stack(unlinked, dim=1), links], dim=1)
    options = _options(ranking, singletons)
    right_options = options.masked_fill(~right, -torch.inf)
    return (options.logsumexp(1) - right_options.logsumexp(1)).sum()


Mentions = tuple[Tensor, Tensor, Tensor]


def decode_clusters(ranking: Ranking, singletons: bool) -> list[int]:
    """Return the cluster of each kept span by its best option, -1 for no mention."""
    unlinked = 2 if singletons else 1
    clusters: list[int] = []
    count = 0
    for span, option in enumerate(_options(ranking, singletons).argmax(1).tolist()):
        clusters.append(-1)
        if option >= unlinked:
            antecedent = int(ranking.antecedents[span, option - unlinked])
            if clusters[antecedent] < 0:  # being linked to makes it a mention
                clusters[antecedent] = count
                count += 1
            clusters[span] = clusters[antecedent]
        elif singletons and option == 1:
            clusters[span] = count
            count += 1
    return clusters


def _check_mentions(labels: Tensor, words: int) -> Mentions:
    """Split a document's labels (M, 3) into first words, ends and clusters, refusing what is not a span."""
    first, end, cluster = labels[(labels != IGNORED).any(1)].unbind(1)
    wrong = (first < 0) | (first >= end) | (end > words) | (cluster < 0)
    if wrong.any():
        mention = int(first[wrong][0]), int(end[wrong][0]), int(cluster[wrong][0])
        raise ValueError(
            f"`labels` must be (first word, end, cluster) of mentions in a document of {words} words; got {mention}"
        )
    return first, end, cluster


@dataclass
class ElmoCoreferenceOutput(ModelOutput):
    r"""
    Output of [`ElmoForCoreferenceResolution`].

    Args:
        loss (`torch.FloatTensor`, *optional*, with labels):
            -log p of the right antecedents, the mean over documents.
        spans (`torch.LongTensor` of shape `(B, K, 2)`):
            The spans that were compared with each other, by position: words of the document, the last one excluded.
            -100 where a document has fewer.
        mention_scores (`torch.FloatTensor` of shape `(B, K)`):
            How likely each is a mention. 0 where there is no span.
        predictions (`torch.LongTensor` of shape `(B, M, 3)`, *optional*, in eval mode):
            The mentions, by position, as the labels are: first word, last word excluded, and number of the cluster.
        hidden_states (`tuple(torch.FloatTensor)`, *optional*, with `output_hidden_states=True`):
            The biLM's layers of all sentences, L + 1 tensors of shape `(B, S, T, 2P)`.
    """

    loss: Tensor | None = None
    spans: Tensor | None = None
    mention_scores: Tensor | None = None
    predictions: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None


class ElmoForCoreferenceResolution(ElmoWordEncoder):
    """Coreference resolution: finds the spans of a document that mention the same thing (Lee et al., 2017, 2018).

    Unlike in the papers, there are no features of speakers and genres, which not all documents have; the character CNN
    has filters of one width, as in tagging; embeddings of widths and distances have no dropout. `max_antecedents` are
    chosen by a quick score (Lee et al., 2018), where the first paper compares the last 250 spans.
    """

    default_layers = COREFERENCE_LAYERS

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__(config)
        dropout = INNER_DROPOUT * self.head_dropout
        self.encoder_dropout = Dropout(dropout)
        self.encoded_size = self.encoder.size + self.elmo_size
        self.ranking = SpanRanking(self.input_size, self.encoded_size, config, dropout)
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
        output_hidden_states: bool | None = None,
    ) -> ElmoCoreferenceOutput:
        """Find the mentions in documents of S sentences. See [`ElmoTaskModel`] for the arguments.

        All have a dimension for the sentences after the first, `(B, S, T, ...)`; a shorter document is filled up with
        sentences without words. The labels `(B, M, 3)` are the mentions of each document: first word, last word
        excluded, counted through the document without sentence markers, and number of the cluster.
        """
        if char_ids is None or char_ids.dim() != 4:
            raise ValueError(
                "ElmoForCoreferenceResolution needs `char_ids` of (documents, sentences, words, characters)"
            )
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        layers = None
        if output_hidden_states and self.config.elmo_placement != "none":
            if bilm_layers is None:
                ids, mask = flatten_rows(input_ids, attention_mask)
                bilm_layers = self.bilm_layers(char_ids.flatten(0, 1), mask, None, ids)
                bilm_layers = bilm_layers.unflatten(0, char_ids.shape[:2])
            layers = self._split_layers(bilm_layers)
            bilm_layers = torch.cat([layers[0][..., : self.config.projection_dim], *layers[1:]], dim=-1)
        words = self._encode(input_ids, char_ids, attention_mask, token_type_ids, bilm_layers)
        scores, allowed, rankings = self.ranking(words)
        singletons = self.config.predict_singletons
        loss = None
        if labels is not None:
            mentions = []
            for rows, length in zip(labels.to(scores.device), words.lengths, strict=True):
                mentions.append(_check_mentions(rows, length))
            total = coreference_loss(scores, allowed, rankings, words.lengths, mentions, singletons)
            loss = total / max(len(rankings), 1)
        spans, predictions = [], []
        for ranking in rankings:
            document_spans = torch.stack([ranking.starts, ranking.ends], dim=1)
            spans.append(document_spans)
            if not self.training:
                clusters = torch.tensor(decode_clusters(ranking, singletons), dtype=torch.long)[:, None]
                clusters = clusters.to(document_spans.device)
                mentions_found = torch.cat([document_spans, clusters], dim=1)  # (K, 3)
                predictions.append(mentions_found[clusters[:, 0] >= 0])
        mention_scores = [ranking.mention_scores for ranking in rankings]
        return self._output(
            ElmoCoreferenceOutput,
            loss,
            spans=pad_sequence(spans, batch_first=True, padding_value=IGNORED),
            mention_scores=pad_sequence(mention_scores, batch_first=True),
            predictions=pad_sequence(predictions, batch_first=True, padding_value=IGNORED) if predictions else None,
            hidden_states=layers,
        )

    def _encode(
        self,
        input_ids: Tensor | None,
        char_ids: Tensor,
        attention_mask: Tensor | None,
        token_type_ids: Tensor | None,
        bilm_layers: Tensor | None,
    ) -> DocumentWords:
        """Encode all sentences, those of similar length together: memory grows with the words, not with padding."""
        documents, sentences, tokens = char_ids.shape[:3]
        if attention_mask is None:
            attention_mask = char_ids.any(-1)
        mask = attention_mask.flatten(0, 1).bool()
        rows = flatten_rows(input_ids, char_ids, attention_mask, token_type_ids, bilm_layers, None)
        lengths = mask.sum(1)
        order = lengths.argsort(descending=True, stable=True)
        order = order[lengths[order] > 0]
        # Begin with no words, so that documents may have none.
        features = [torch.zeros(0, self.input_size, dtype=self.dtype, device=mask.device)]
        encoded = [torch.zeros(0, self.encoded_size, dtype=self.dtype, device=mask.device)]
        places = [lengths[:0]]
        while len(order):
            count = max(TOKENS_AT_ONCE // int(lengths[order[0]]), 1)
            group, order = order[:count], order[count:]
            columns = mask[group].any(0).nonzero().squeeze(1)
            group_rows = [None if tensor is None else tensor[group][:, columns] for tensor in rows]
            (text,), _ = self._read(group_rows, False, False)
            states = self.encoder_dropout(self.encoder(text.features, text.mask).to(text.mask.device))
            features.append(text.features[text.mask])
            encoded.append(text.join_elmo(states)[text.mask])
            position = group[:, None] * tokens + columns
            places.append(position[text.chosen])
        place, in_order = torch.cat(places).sort()
        sentence = place // tokens
        counts = torch.bincount(sentence // sentences, minlength=documents)
        return DocumentWords(torch.cat(features)[in_order], torch.cat(encoded)[in_order], sentence, counts.tolist())

    @torch.no_grad()
    def clusters(self, sentences: Sequence[Sequence[str]], tokenizer: ElmoTokenizer) -> list[list[tuple[int, int]]]:
        """Find what the sentences of a document mention, each thing as a list of its mentions.

        A mention is a span of the document's words, numbered across sentences: its first word and one past its last.
        """
        rows = [list(sentence) for sentence in sentences]
        if not any(rows) or any(isinstance(sentence, str) for sentence in sentences):
            raise ValueError(f"`sentences` must be lists of words, not all empty; got {str(sentences)[:60]!r}")
        inputs = tokenizer(rows, is_split_into_words=True, padding=True, return_tensors="pt").to(self.device)
        with eval_mode(self):
            output = self(**{name: tensor[None] for name, tensor in inputs.items()}, return_dict=True)
        clusters: dict[int, list[tuple[int, int]]] = {}
        for first, end, cluster in output.predictions[0].tolist():
            clusters.setdefault(cluster, []).append((first, end))
        return list(clusters.values())
