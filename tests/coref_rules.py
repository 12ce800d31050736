"""Coreference by two rules, which a learned model has to beat, over mentions that are found by rule too.

A mention is a pronoun, a name (capitalised words), or an article or possessive with up to two words and a noun that
ended such a mention in the training data. Nothing is known of the documents beside their words.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence

from training.coref import Clusters, Document, Mention

GENDERS = {
    "first": "i me my mine myself",
    "first plural": "we us our ours ourselves",
    "second": "you your yours yourself thou thee thy",
    "he": "he him his himself",
    "she": "she her hers herself",
    "they": "they them their theirs themselves",
}
PRONOUNS = {word: gender for gender, words in GENDERS.items() for word in words.split()}
NOUNS = {
    "he": "mr. mr sir lord king prince duke man boy gentleman father brother son husband uncle fellow master mister",
    "she": "mrs. mrs miss lady queen princess madame woman girl mother sister daughter wife aunt mistress madam",
    "they": "men boys women girls people children ladies gentlemen",
}
GENDER_OF_NOUN = {word: gender for gender, words in NOUNS.items() for word in words.split()}
ARTICLES = set("the a an this that these those my your his her its our their".split())
PUNCTUATION = set(".,;:!?\"'()-") | {"--", "``", "''", "“", "”", "’", "‘", "—"}
# How often a noun has to end a mention of the training data, and of its own occurrences at least how many.
TIMES, SHARE = 3, 0.5
# Words after a name in which a pronoun tells its gender.
NEAR = 15


def frequent_nouns(documents: Sequence[Document]) -> set[str]:
    """Words that mostly end a mention where they follow an article within three words."""
    ends: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for document in documents:
        words = [word.lower() for sentence in document.sentences for word in sentence]
        total.update(words)
        for mentions in document.clusters:
            ends.update(words[end - 1] for first, end in mentions if end - first > 1 and words[first] in ARTICLES)
    return {word for word, count in ends.items() if count >= TIMES and count >= SHARE * total[word]}


def find_mentions(sentences: Sequence[Sequence[str]], nouns: set[str]) -> list[Mention]:
    """Pronouns, names and short phrases with a known noun."""
    inside = {word for sentence in sentences for word in sentence[1:] if word[:1].isupper()}
    lower = {word for sentence in sentences for word in sentence if word[:1].islower()}
    found, begin = [], 0
    for sentence in sentences:
        is_name = [
            word[:1].isupper()
            and word.lower() not in PRONOUNS
            and word.lower() not in lower
            and not word.isupper()
            and (place > 0 or word in inside)
            for place, word in enumerate(sentence)
        ]
        place = 0
        while place < len(sentence):
            word = sentence[place].lower()
            if is_name[place]:
                end = place
                while end < len(sentence) and is_name[end]:
                    end += 1
                found.append((begin + place, begin + end))
                place = end
                continue
            if word in PRONOUNS:
                found.append((begin + place, begin + place + 1))
            if word in ARTICLES:
                for end in range(place + 1, min(place + 4, len(sentence))):
                    after = sentence[end].lower()
                    if after in PUNCTUATION or after in PRONOUNS or after in ARTICLES:
                        break
                    if after in nouns:
                        found.append((begin + place, begin + end + 1))
                        break
            place += 1
        begin += len(sentence)
    return sorted(found)


def same_head_word(document: Document, mentions: Sequence[Mention]) -> Clusters:
    """All mentions that end in the same word are of the same thing."""
    words = [word.lower() for sentence in document.sentences for word in sentence]
    clusters: defaultdict[str, list[Mention]] = defaultdict(list)
    for first, end in mentions:
        clusters[words[end - 1]].append((first, end))
    return list(clusters.values())


def previous_of_gender(document: Document, mentions: Sequence[Mention]) -> Clusters:
    """Each mention is linked to the last pronoun or name before it of the same gender, if there is one."""
    words = [word for sentence in document.sentences for word in sentence]
    near: defaultdict[str, Counter[str]] = defaultdict(Counter)  # gendered pronouns soon after each name
    for _, end in mentions:
        after = (PRONOUNS.get(word.lower()) for word in words[end : end + NEAR])
        near[words[end - 1]].update(gender for gender in after if gender in ("he", "she"))

    def gender_of(first: int, end: int) -> str | None:
        lower = [word.lower() for word in words[first:end]]
        if end - first == 1 and lower[0] in PRONOUNS:
            return PRONOUNS[lower[0]]
        for word in (lower[0], lower[-1]):
            if word in GENDER_OF_NOUN:
                return GENDER_OF_NOUN[word]
        if words[end - 1][:1].isupper() and near[words[end - 1]]:
            return near[words[end - 1]].most_common(1)[0][0]
        return None

    clusters: Clusters = []
    last: dict[str, list[Mention]] = {}  # the cluster of the last pronoun or name of each gender
    for first, end in mentions:
        gender = gender_of(first, end)
        cluster = last.get(gender) if gender else None
        if cluster is None:
            cluster = []
            clusters.append(cluster)
        cluster.append((first, end))
        if gender and (words[first].lower() in PRONOUNS or words[end - 1][:1].isupper()):
            last[gender] = cluster
    return clusters
