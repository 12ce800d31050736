"""Coreference resolution by ranking spans of a document, end to end (Lee et al., 2017, 2018).

Shapes: B documents, N words of all documents, W maximum width of a span, K kept spans of a document, A antecedents
compared with each span, U hidden units, G features of a span.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.utils import ModelOutput
from transformers.utils.generic import can_return_tuple

from .configuration_elmo import ElmoConfig
from .heads_elmo import IGNORED, ElmoWordEncoder
from .layers_elmo import Dropout
from .tokenization_elmo import ElmoTokenizer

COREFERENCE_LAYERS = 1
# Of coreference: dropout behind the LSTMs as a part of that on words, 0.2 of 0.5 in the paper; tokens of sentences of
# like length, padding included, that are read at once.
INNER_DROPOUT, TOKENS_AT_ONCE = 0.4, 4096

# Of the feed-forward networks, and of the features of a span's width and of the distance of two spans.
UNITS, FEATURE_DIM = 150, 20
# Where the bins of distances begin, counted in kept spans.
DISTANCES = (1, 2, 3, 4, 5, 8, 16, 32, 64)
# Words whose spans are scored at once, and kept spans that are compared with their antecedents at once.
WORDS_AT_ONCE, SPANS_AT_ONCE = 2048, 256


class DocumentWords(NamedTuple):
    """The words of some documents, one document after another."""

    features: Tensor  # (N, D), what the encoder read
    encoded: Tensor  # (N, H)
    sentence: Tensor  # (N,), the number of each word's sentence, other in every document
    lengths: list[int]  # words of each document


class Ranking(NamedTuple):
    """The kept spans of a document, by position, and what each may be linked to."""

    starts: Tensor  # (K,), words of the document
    ends: Tensor  # (K,), one past the last word
    mention_scores: Tensor  # (K,)
    antecedents: Tensor  # (K, A), numbers of kept spans
    links: Tensor  # (K, A), scores; -inf where there are not so many spans before


def _blocks(count: int, size: int, device: torch.device) -> Iterator[Tensor]:
    """The numbers up to `count`, some at a time."""
    yield from torch.arange(count, device=device).split(size) if count else ()


def _prefix_softmax(scores: Tensor) -> Tensor:
    """Softmax over the first 1, 2, ... of W scores: (n, W) -> (n, W, W)."""
    width = scores.shape[-1]
    beyond = torch.ones(width, width, dtype=torch.bool, device=scores.device).triu(1)
    return torch.softmax(scores[:, None].expand(-1, width, -1).masked_fill(beyond, -torch.inf), dim=-1)


def within_sentences(sentence: Tensor, max_width: int) -> Tensor:
    """Which spans, by first word and width (N, W), end in the sentence that they begin in."""
    words = torch.arange(len(sentence), device=sentence.device)
    last = words[:, None] + torch.arange(max_width, device=sentence.device)
    return (last < len(sentence)) & (sentence[last.clamp(max=len(sentence) - 1)] == sentence[:, None])


@torch.no_grad()
def best_spans(scores: Tensor, allowed: Tensor, count: int) -> Tensor:
    """The spans of highest score of which no two cross, at most `count`, by position: scores (N, W) -> (K,).

    A span's number is W times its first word, and its width less 1.
    """
    max_width = scores.shape[1]
    possible = allowed.flatten().nonzero().squeeze(1)
    best_first = possible[scores.flatten()[possible].argsort(descending=True, stable=True)].tolist()
    longest: dict[int, int] = {}  # of the chosen spans, the last word by the first one
    earliest: dict[int, int] = {}  # and the first word by the last one
    chosen: list[int] = []
    for number in best_first:
        if len(chosen) == count:
            break
        first, width = divmod(number, max_width)
        last = first + width
        crosses = any(
            longest.get(word + 1, -1) > last or earliest.get(word, first) < first for word in range(first, last)
        )
        if not crosses:
            longest[first] = max(last, longest.get(first, last))
            earliest[last] = min(first, earliest.get(last, first))
            chosen.append(number)
    return torch.tensor(sorted(chosen), dtype=torch.long, device=scores.device)


class FeedForward(nn.Module):
    """Two hidden layers and a score, over features that come in parts.

    The first layer is linear in its parts. Each is multiplied before the parts of many spans are brought together,
    which gives the same numbers as their concatenation would in a fraction of the time.
    """

    def __init__(self, parts: Sequence[int], dropout: float, bias: bool = True) -> None:
        super().__init__()
        self.parts = list(parts)
        self.first = nn.Linear(sum(parts), UNITS)
        self.second = nn.Linear(UNITS, UNITS)
        self.output = nn.Linear(UNITS, 1, bias=bias)
        self.dropout = Dropout(dropout)

    def part(self, number: int, features: Tensor) -> Tensor:
        """What the first layer makes of one of the parts: (..., D) -> (..., U)."""
        return F.linear(features, self.first.weight.split(self.parts, dim=1)[number])

    def forward(self, summed: Tensor) -> Tensor:
        """The sum of the parts (..., U) -> scores (...)"""
        hidden = self.dropout(F.relu(summed + self.first.bias))
        return self.output(self.dropout(F.relu(self.second(hidden)))).squeeze(-1)


class SpanRanking(nn.Module):
    """Mention scores of all spans, and links between the best of them.

    Args:
        inputs: size of the words' features, which a span's head is a weighted sum of.
        encoded: size of the encoded words.
        max_width: the most words of a span.
        spans_per_word: spans that are kept for each word of a document.
        max_antecedents: spans before a span that it is fully compared with.
        dropout: on the hidden layers.
    """

    def __init__(
        self,
        inputs: int,
        encoded: int,
        max_width: int,
        spans_per_word: float,
        max_antecedents: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.max_width, self.spans_per_word, self.max_antecedents = max_width, spans_per_word, max_antecedents
        parts = (encoded, encoded, inputs, FEATURE_DIM)  # first word, last word, head, width
        span = sum(parts)
        self.width = nn.Embedding(max_width, FEATURE_DIM)
        self.distance = nn.Embedding(len(DISTANCES), FEATURE_DIM)
        self.attention = FeedForward([encoded], dropout, bias=False)  # which a softmax would not feel
        self.mention = FeedForward(parts, dropout)
        self.quick = nn.Linear(span, span, bias=False)
        self.pair = FeedForward((span, span, span, FEATURE_DIM), dropout)  # span, antecedent, product, distance

    def forward(self, words: DocumentWords) -> tuple[Tensor, Tensor, list[Ranking]]:
        """Scores of all spans by first word and width (N, W), which of these are spans, and a ranking a document."""
        attention = self.attention(self.attention.part(0, words.encoded))
        allowed = within_sentences(words.sentence, self.max_width)
        scores = self._mention_scores(words, attention)
        rankings, begin = [], 0
        for length in words.lengths:
            end = begin + length
            kept = best_spans(scores[begin:end], allowed[begin:end], int(self.spans_per_word * length + 1))
            rankings.append(self._rank(words, attention, scores, begin, kept))
            begin = end
        return scores, allowed, rankings

    def _mention_scores(self, words: DocumentWords, attention: Tensor) -> Tensor:
        """(N, W)"""
        first, last = self.mention.part(0, words.encoded), self.mention.part(1, words.encoded)  # (N, U)
        head, width = self.mention.part(2, words.features), self.mention.part(3, self.width.weight)
        steps = torch.arange(self.max_width, device=first.device)
        scores = []
        for block in _blocks(len(first), WORDS_AT_ONCE, first.device):
            index = (block[:, None] + steps).clamp(max=len(first) - 1)  # (n, W)
            weights = _prefix_softmax(attention[index])  # (n, W, W)
            summed = first[block][:, None] + last[index] + weights @ head[index] + width
            scores.append(self.mention(summed).float())
        return torch.cat(scores) if scores else first.new_zeros(0, self.max_width)

    def _rank(self, words: DocumentWords, attention: Tensor, scores: Tensor, begin: int, kept: Tensor) -> Ranking:
        """The links of a document's kept spans, which are numbered by first word, from the document's, and width."""
        starts = kept.div(self.max_width, rounding_mode="floor")
        widths = kept % self.max_width  # less 1
        first = begin + starts
        # A span's features: its first and last word, its head, its width.
        steps = torch.arange(self.max_width, device=kept.device)
        inside = steps <= widths[:, None]  # (K, W)
        index = torch.where(inside, first[:, None] + steps, first[:, None])
        weights = torch.softmax(attention[index].masked_fill(~inside, -torch.inf), dim=-1)
        head = (weights[:, None] @ words.features[index]).squeeze(1)
        spans = torch.cat([words.encoded[first], words.encoded[first + widths], head, self.width(widths)], dim=-1)

        mention_scores = scores[first, widths]
        queries = self.quick(spans) * spans.shape[1] ** -0.5  # scores as small as the others in the beginning
        antecedents = self._likely_antecedents(queries, spans, mention_scores)  # (K, A)
        ours, theirs = self.pair.part(0, spans), self.pair.part(1, spans)  # (K, U)
        by_distance = self.pair.part(3, self.distance.weight)
        borders = torch.tensor(DISTANCES, device=kept.device)
        links = []
        for block in _blocks(len(kept), SPANS_AT_ONCE, kept.device):
            others = antecedents[block]
            before = spans[others]  # (k, A, G)
            product = spans[block][:, None] * before
            distance = (block[:, None] - others).clamp(min=1)
            bins = torch.bucketize(distance, borders, right=True) - 1
            summed = ours[block][:, None] + theirs[others] + self.pair.part(2, product) + by_distance[bins]
            quick = (before @ queries[block][..., None]).squeeze(-1)
            pair = (self.pair(summed) + quick).float() + mention_scores[block][:, None] + mention_scores[others]
            links.append(pair.masked_fill(others >= block[:, None], -torch.inf))
        ranked = torch.cat(links) if links else spans.new_zeros(0, 0)
        return Ranking(starts, starts + widths + 1, mention_scores, antecedents, ranked)

    @torch.no_grad()
    def _likely_antecedents(self, queries: Tensor, spans: Tensor, mention_scores: Tensor) -> Tensor:
        """For every span the numbers of the spans before it that are its likeliest antecedents, (K, A).

        The first spans have fewer before them; what they are given instead is none of those.
        """
        count = min(self.max_antecedents, max(len(spans) - 1, 0))
        chosen = []
        for block in _blocks(len(spans), SPANS_AT_ONCE, spans.device):
            quick = (queries[block] @ spans.T).float() + mention_scores
            after = torch.arange(len(spans), device=spans.device) >= block[:, None]
            chosen.append(quick.masked_fill(after, -torch.inf).topk(count, dim=-1).indices)
        return torch.cat(chosen) if chosen else mention_scores.new_zeros(0, 0, dtype=torch.long)


# -------------------------------------------------------------------------------------------------- loss and clusters


def _options(ranking: Ranking, singletons: bool) -> Tensor:
    """What a span may be, as scores: no mention, with singletons a mention of something new, or linked: (K, 1|2 + A).

    Without singletons a span that is not linked may be either, as in the paper.
    """
    none = torch.zeros_like(ranking.mention_scores)
    unlinked = [none, ranking.mention_scores] if singletons else [none]
    return torch.cat([torch.stack(unlinked, dim=1), ranking.links], dim=1)


def coreference_loss(
    scores: Tensor,
    allowed: Tensor,
    rankings: Sequence[Ranking],
    lengths: Sequence[int],
    mentions: Sequence[tuple[Tensor, Tensor, Tensor]],
    singletons: bool,
) -> Tensor:
    """-log p of what each span is, all right antecedents together, summed over spans and documents.

    The paper's is over the kept spans alone, so that a mention that is not kept never learns to be one. Here the spans
    that were not kept have two options, no mention and a mention of something new.

    Args:
        scores, allowed, rankings: what SpanRanking returned.
        lengths: words of each document.
        mentions: first words, one past the last words and clusters of each document's mentions.
    """
    clusters = torch.full_like(scores, -1, dtype=torch.long)  # (N, W)
    left = allowed.clone()
    total, begin = scores.new_zeros(()), 0
    for ranking, length, (starts, ends, numbers) in zip(rankings, lengths, mentions, strict=True):
        short = ends - starts <= scores.shape[1]  # longer ones are no candidates
        clusters[begin + starts[short], (ends - starts)[short] - 1] = numbers[short]
        kept = begin + ranking.starts, ranking.ends - ranking.starts - 1
        left[kept] = False
        total = total + _ranking_loss(ranking, clusters[kept], singletons)
        begin += length
    is_mention = (clusters[left] >= 0).to(scores.dtype)
    return total + F.binary_cross_entropy_with_logits(scores[left], is_mention, reduction="sum")


def _ranking_loss(ranking: Ranking, clusters: Tensor, singletons: bool) -> Tensor:
    """-log p of the kept spans' right options, by the cluster of each (K,), which is -1 where it is no mention."""
    links = (clusters[ranking.antecedents] == clusters[:, None]) & (clusters >= 0)[:, None]
    links &= ranking.links != -torch.inf
    is_first = (clusters >= 0) & ~links.any(1)
    unlinked = [clusters < 0, is_first] if singletons else [(clusters < 0) | is_first]
    right = torch.cat([torch.stack(unlinked, dim=1), links], dim=1)
    options = _options(ranking, singletons)
    return (options.logsumexp(1) - options.masked_fill(~right, -torch.inf).logsumexp(1)).sum()


def clusters_of(ranking: Ranking, singletons: bool) -> list[int]:
    """The cluster of each kept span by its best option, -1 where it is no mention."""
    unlinked = 2 if singletons else 1
    clusters: list[int] = []
    count = 0
    for span, option in enumerate(_options(ranking, singletons).argmax(1).tolist()):
        clusters.append(-1)
        if option >= unlinked:
            antecedent = int(ranking.antecedents[span, option - unlinked])
            if clusters[antecedent] < 0:  # what something is linked to is a mention
                clusters[antecedent] = count
                count += 1
            clusters[span] = clusters[antecedent]
        elif singletons and option == 1:
            clusters[span] = count
            count += 1
    return clusters


def _stack(rows: Sequence[Tensor], fill: float) -> Tensor:
    """Tensors (K, ...) of the documents of a batch as one, the shorter filled up: (B, K, ...)."""
    return nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=fill)


def _check_mentions(labels: Tensor, words: int) -> tuple[Tensor, Tensor, Tensor]:
    """First words, ends and clusters of a document's labels (M, 3), refusing spans that are none."""
    first, end, cluster = labels[(labels != IGNORED).any(1)].unbind(1)
    wrong = (first < 0) | (first >= end) | (end > words) | (cluster < 0)
    if bool(wrong.any()):
        start, stop, number = (int(column[wrong][0]) for column in (first, end, cluster))
        raise ValueError(
            f"`labels` must be mentions (first word, last word excluded, cluster) of a document of {words} words; got "
            f"({start}, {stop}, {number})"
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
    """

    loss: Tensor | None = None
    spans: Tensor | None = None
    mention_scores: Tensor | None = None
    predictions: Tensor | None = None


class ElmoForCoreferenceResolution(ElmoWordEncoder):
    """Which spans of a document mention the same thing: end-to-end span ranking (Lee et al., 2017, 2018).

    Speakers and genres, which the papers have features of, are left out: not all documents have them. Of antecedents
    `max_antecedents` are chosen by a quick score (Lee et al., 2018), where the first paper compares the last 250;
    characters have filters of one width, as in tagging; embeddings of widths and distances are not dropped out.
    """

    default_layers = COREFERENCE_LAYERS

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__(config)
        inner = INNER_DROPOUT * config.head_dropout
        self.encoder_dropout = Dropout(inner)
        self.ranking = SpanRanking(
            self.input_size,
            self.encoder.size + self.elmo_size,
            config.max_span_width,
            config.spans_per_word,
            config.max_antecedents,
            inner,
        )
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        char_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        bilm_layers: Tensor | None = None,
        labels: Tensor | None = None,
        return_dict: bool | None = None,
    ) -> ElmoCoreferenceOutput:
        r"""
        Args:
            input_ids, char_ids, attention_mask (`(B, S, T)`, characters `(B, S, T, C)`):
                What [`ElmoTokenizer`] makes of the S sentences of each document; a shorter document is filled up with
                sentences without words.
            bilm_layers (`(B, S, T, (2L + 1)P)`, *optional*):
                What [`ElmoTaskModel.bilm_layers`] returned for these sentences.
            labels (`(B, M, 3)`, *optional*):
                The mentions of each document: first word, last word excluded, counted through the document without
                sentence markers, and number of the cluster. Rows of -100 fill up.
        """
        if char_ids is None or char_ids.dim() != 4:
            found = "none" if char_ids is None else f"shape {tuple(char_ids.shape)}"
            raise ValueError(
                "ElmoForCoreferenceResolution needs `char_ids` of (documents, sentences, words, characters) from "
                f"ElmoTokenizer; got {found}"
            )
        words = self._words(input_ids, char_ids, attention_mask, bilm_layers)
        scores, allowed, rankings = self.ranking(words)
        loss = None
        if labels is not None:
            mentions = [_check_mentions(rows, length) for rows, length in zip(labels, words.lengths, strict=True)]
            loss = coreference_loss(scores, allowed, rankings, words.lengths, mentions, self.config.predict_singletons)
            loss = loss / max(len(rankings), 1) + self._penalty()
        return ElmoCoreferenceOutput(
            loss=loss,
            spans=_stack([torch.stack([found.starts, found.ends], dim=1) for found in rankings], IGNORED),
            mention_scores=_stack([found.mention_scores for found in rankings], 0.0),
            predictions=None if self.training else _stack([self._mentions(found) for found in rankings], IGNORED),
        )

    def _words(
        self, input_ids: Tensor | None, char_ids: Tensor, attention_mask: Tensor | None, bilm_layers: Tensor | None
    ) -> DocumentWords:
        """Reads all sentences, those of like length together: memory grows with the words, not with padding."""
        documents, sentences, tokens = char_ids.shape[:3]
        mask = char_ids.any(-1) if attention_mask is None else attention_mask.bool()
        given = {"input_ids": input_ids, "char_ids": char_ids, "attention_mask": mask, "bilm_layers": bilm_layers}
        rows = {name: tensor.flatten(0, 1) for name, tensor in given.items() if tensor is not None}
        lengths = rows["attention_mask"].sum(1)
        order = lengths.argsort(descending=True, stable=True)[: int((lengths > 0).sum())]
        features, encoded, places = [], [], []
        while len(order):
            count = max(TOKENS_AT_ONCE // int(lengths[order[0]]), 1)
            group, order = order[:count], order[count:]
            columns = rows["attention_mask"][group].any(0).nonzero().squeeze(1)
            some = {name: tensor[group][:, columns] for name, tensor in rows.items()}
            (text,), (position,) = self._read(
                some.get("input_ids"), some["char_ids"], some["attention_mask"], None, some.get("bilm_layers")
            )
            states = self.encoder_dropout(self.encoder(text.features, text.mask))
            if text.elmo is not None:
                states = torch.cat([states, text.elmo], dim=-1)
            features.append(text.features[text.mask])
            encoded.append(states[text.mask])
            places.append((group[:, None] * tokens + columns[position])[text.mask])
        if not places:
            nothing = self.ranking.width.weight.new_zeros
            empty = (nothing(0, self.input_size), nothing(0, self.encoder.size + self.elmo_size))
            return DocumentWords(*empty, lengths.new_zeros(0), [0] * documents)
        place, in_order = torch.cat(places).sort()
        sentence = place.div(tokens, rounding_mode="floor")
        counts = torch.bincount(sentence.div(sentences, rounding_mode="floor"), minlength=documents)
        return DocumentWords(torch.cat(features)[in_order], torch.cat(encoded)[in_order], sentence, counts.tolist())

    def _mentions(self, ranking: Ranking) -> Tensor:
        """The spans of a document that are in clusters: (M, 3)."""
        clusters = torch.tensor(clusters_of(ranking, self.config.predict_singletons), device=ranking.starts.device)
        found = torch.stack([ranking.starts, ranking.ends, clusters.long()], dim=1)
        return found[clusters >= 0]

    @torch.no_grad()
    def clusters(self, sentences: Sequence[Sequence[str]], tokenizer: ElmoTokenizer) -> list[list[tuple[int, int]]]:
        """What the sentences of a document mention, each thing as its mentions.

        A mention is a span of the words of all sentences, which are numbered through the document: its first word and
        one past its last.
        """
        if not sentences or not any(sentences) or any(isinstance(sentence, str) for sentence in sentences):
            raise ValueError(
                "`sentences` must be those of a document, each a list of words, and not all empty; got "
                f"{str(sentences)[:60]!r}"
            )
        encoded = tokenizer(
            [list(sentence) for sentence in sentences], is_split_into_words=True, padding=True, return_tensors="pt"
        )
        was_training = self.training
        self.eval()
        try:
            inputs = {name: tensor[None].to(self.device) for name, tensor in encoded.items()}
            found = self(**inputs).predictions[0].tolist()
        finally:
            self.train(was_training)
        clusters: dict[int, list[tuple[int, int]]] = {}
        for first, end, cluster in found:
            clusters.setdefault(cluster, []).append((first, end))
        return list(clusters.values())
