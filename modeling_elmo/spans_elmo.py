"""Coreference as a ranking of spans (Lee et al., 2017): which spans of a document are mentions, and of the same thing.

Every span of a sentence up to a width has a score of being a mention. The best ones are kept, and each is linked to
one kept before it, or to none. Which of those are worth a full comparison a quick bilinear score says (Lee et al.,
2018), so that memory, and all time but that of one matrix product, grow with a document's length, not its square.

The words of all documents of a batch lie one after another, without padding.

Shapes: N words, W span widths, D features of a word, H features of an encoded word, G of a span, U units of a
feed-forward layer, K kept spans of a document, A antecedents.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .layers_elmo import Dropout

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


__all__ = ["DocumentWords", "Ranking", "SpanRanking", "clusters_of", "coreference_loss"]
