"""Write a page of senses: one HTML file with a corpus and an ELMo in plain JavaScript, for any browser, offline.

The page's own files are in the folder `web`. Behind them come blocks of data: the biLM's weights in float16, the
sentences, the vectors of the prepared words in 8 bits, and as many rows of the softmax as there is room for. A block
is gzip, written in 91 printable characters, of which two hold 13 bits. A biLM of 3 M parameters then takes 6.4 MB,
where base64 of gzip takes 6.9 and base64 alone 8.0.
"""

import base64
import gzip
import hashlib
import html
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from . import __version__
from .bilm_elmo import NUM_SPECIAL_WORDS
from .configuration_elmo import ElmoConfig
from .embedding import ElmoEmbedder
from .files import ElmoError, StrPath, atomic_write
from .loading import architecture_of, find_model, read_config
from .page_corpus import LONGEST_SENTENCE, PageCorpus, WordUses, find_uses, parse_words, read_page_corpus
from .scoring import is_typed_tokenized, load_scorer

WEB = Path(__file__).parent / "web"
# In the order in which they need each other. The first ones are the engine.
ENGINE = ("packing", "tokenizer", "bilm", "softmax", "clusters", "uses", "engine")
INTERFACE = ("client", "text", "map", "panels", "app")
STYLES = ("theme.css", "page.css")
BILM_PARTS = ("char_encoder.", "forward_lm.", "backward_lm.")

# What a page should have at most: it opens at once, and fits an e-mail.
PAGE_BYTES = 15_000_000
# Of these, for stored vectors: at least and at most. The uses of further words are computed in the page.
VECTOR_ROOM, MOST_VECTOR_ROOM = 700_000, 3_000_000
# How many words of the softmax a page counts: the most that fit.
SOFTMAX_SIZES = (20_000, 15_000, 10_000, 7_500, 5_000, 3_000)

# Two characters hold 13 bits, since 91 * 91 = 8281. No character is `<`, which could end a script.
ALPHABET = np.frombuffer(bytes([*range(35, 60), *range(61, 127)]), dtype=np.uint8)
BITS_PER_PAIR = 13
BYTES_AT_ONCE = BITS_PER_PAIR << 16


class Block(NamedTuple):
    """A block of data of a page: its text, and how many bytes of gzip that holds."""

    text: str
    size: int


@dataclass
class PageReport:
    """What a page holds, for who wrote it."""

    size: int
    sentences: int
    words: int
    too_long: int
    total: int
    stored: list[WordUses]
    left: list[WordUses]
    softmax_words: int
    has_softmax: bool


def describe_page(report: PageReport) -> Iterator[str]:
    """Yield lines that say what a page holds and what it does not."""
    drawn = f", drawn from {report.total:,}" if report.sentences < report.total - report.too_long else ""
    yield f"{report.sentences:,} sentences, {report.words:,} words{drawn}"
    if report.too_long:
        yield f"sentences of more than {LONGEST_SENTENCE} words, left out: {report.too_long:,}"
    listed = ", ".join(f"{word.word} ({word.total:,})" for word in report.stored)
    yield f"uses at hand: {listed or 'none'}"
    if report.left:
        listed = ", ".join(word.word for word in report.left)
        yield f"uses that the page computes when asked, for want of room: {listed}"
    if report.softmax_words:
        yield f"surprise and substitutes count the {report.softmax_words:,} most frequent words"
    elif report.has_softmax:
        yield f"no surprise and no substitutes: the softmax does not fit into {PAGE_BYTES / 1e6:.0f} MB with the rest"
    else:
        yield "no surprise and no substitutes: the model has no softmax"
    if report.size > PAGE_BYTES:
        yield f"note: more than {PAGE_BYTES / 1e6:.0f} MB, most of it the model; it opens slowly, above all on a phone"


# ------------------------------------------------------------------------------------------------------------ blocks


def pack_bytes(content: bytes) -> Block:
    """Pack bytes as gzip in printable characters."""
    packed = gzip.compress(content, mtime=0)
    parts = []
    powers = np.exp2(np.arange(BITS_PER_PAIR - 1, -1, -1, dtype=np.float32))
    for start in range(0, len(packed), BYTES_AT_ONCE):
        bits = np.unpackbits(np.frombuffer(packed[start : start + BYTES_AT_ONCE], dtype=np.uint8))
        groups = np.pad(bits, (0, -len(bits) % BITS_PER_PAIR)).reshape(-1, BITS_PER_PAIR)
        pairs = (groups.astype(np.float32) @ powers).astype(np.int64)
        parts.append(ALPHABET[np.stack(divmod(pairs, len(ALPHABET)), axis=1)].tobytes().decode("ascii"))
    return Block("".join(parts), len(packed))


def pack_json(value: Any) -> Block:
    return pack_bytes(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace"))


def pack_float16(tensors: Sequence[Tensor], name: str) -> Block:
    """Pack tensors in float16, all high bytes before all low bytes: of them gzip finds more alike."""
    numbers = torch.cat([tensor.detach().float().flatten() for tensor in tensors]).half().numpy()
    if not np.isfinite(numbers).all():
        raise ElmoError(f"{name}: not every number of it fits into 16 bits")
    return pack_bytes(numbers.view(np.uint8).reshape(-1, 2)[:, ::-1].T.tobytes())


# ------------------------------------------------------------------------------------------------------------- model


def check_family(folder: Path, config: ElmoConfig) -> None:
    """Refuse a model that the page's JavaScript does not compute."""
    if config.spelling != "bytes":
        raise ElmoError(
            f"{folder}: spells words in the characters of a dictionary, as ELMoForManyLangs does; a page runs models "
            "that spell them in bytes"
        )
    if config.mix == "scalar" and config.mix_layer_norm:
        raise ElmoError(f"{folder}: its mix normalises layers over a batch (mix_layer_norm), which a page has not")


def describe_model(name: str, embedder: ElmoEmbedder, tokenized: bool | None) -> dict[str, Any]:
    """Return the facts that the page's engine reads: sizes, tokenizer, and the mix as weights before their softmax."""
    model, tokenizer = embedder.model, embedder.tokenizer
    config = model.config
    layers = config.num_hidden_layers + 1
    mix, gamma = [0.0] * layers, 1.0
    if model.scalar_mix is not None:
        mix, gamma = model.scalar_mix.scalar_weights.tolist(), model.scalar_mix.gamma.item()
    elif config.mix == "last":
        mix = [-10.0] * (layers - 1) + [10.0]
    special = sorted(tokenizer.added_tokens_encoder, key=len, reverse=True)
    return {
        "model": {"name": name, "parameters": sum(parameter.numel() for parameter in _weights(model).values())},
        "config": {
            "charEmbeddingDim": config.char_embedding_dim,
            "charFilters": config.char_filters,
            "charActivation": config.char_activation,
            "numHighwayLayers": config.num_highway_layers,
            "hasProjection": config.has_projection,
            "projectionDim": config.projection_dim,
            "cellDim": config.cell_dim,
            "numHiddenLayers": config.num_hidden_layers,
            "cellClip": config.cell_clip,
            "projectionClip": config.projection_clip,
            "useSkipConnections": config.use_skip_connections,
        },
        "tokenizer": {
            "maxCharacters": tokenizer.max_characters_per_token,
            "begin": str(tokenizer.bos_token),
            "end": str(tokenizer.eos_token),
            "special": special,
            "splitsAtWhitespace": is_typed_tokenized(tokenizer, tokenized),
        },
        "mix": {"weights": mix, "gamma": gamma},
    }


def _weights(model: Any) -> dict[str, Tensor]:
    return {name: weight for name, weight in model.state_dict().items() if name.startswith(BILM_PARTS)}


def embed_uses(uses: Sequence[WordUses], corpus: PageCorpus, embedder: ElmoEmbedder) -> tuple[bytes, bytes]:
    """Compute layers 1 to L of uses; return them in 8 bits and their scales: by word, by layer, by use."""
    numbers = sorted({number for word in uses for number, _ in word.places})
    vectors = dict(zip(numbers, embedder.embed([corpus.sentences[number] for number in numbers]), strict=True))
    codes, scales = [], []
    for word in uses:
        own = np.stack([vectors[number][:, position] for number, position in word.places], axis=1)  # (L, uses, D)
        scale = np.abs(own).max(-1, keepdims=True) / 127
        scale[scale == 0] = 1
        codes.append(np.round(own / scale).astype(np.int8).tobytes())
        scales.append(scale.astype("<f4").tobytes())
    return b"".join(codes), b"".join(scales)


def split_by_room(uses: Sequence[WordUses], bytes_per_use: int, room: int) -> tuple[list[WordUses], list[WordUses]]:
    """Return the words whose vectors there is room for in a page, in their order, and the others."""
    stored: list[WordUses] = []
    left: list[WordUses] = []
    room = room * BITS_PER_PAIR // 16
    for word in uses:
        size = len(word.places) * bytes_per_use
        (left if size > room else stored).append(word)
        room -= size if size <= room else 0
    return stored, left


def pack_softmax(folder: Path, room: int) -> tuple[dict[str, Block], dict[str, int] | None]:
    """Pack the softmax over the most frequent words, as many as there is room for; return its facts too."""
    model, tokenizer = load_scorer(folder)
    total = len(tokenizer)
    for size in SOFTMAX_SIZES:
        count = min(size, total)
        rows = model.softmax.weight[:count].detach().to(torch.float8_e4m3fn)
        if not rows.float().isfinite().all():
            raise ElmoError(f"{folder}: not every number of the softmax fits into 8 bits")
        blocks = {
            "softmax": pack_bytes(rows.view(torch.uint8).numpy().tobytes()),
            "bias": pack_float16([model.softmax.bias[:count]], f"{folder}: the softmax's bias"),
            "vocabulary": pack_json(tokenizer.convert_ids_to_tokens(range(count))),
        }
        if sum(len(block.text) for block in blocks.values()) <= room:
            return blocks, {"words": count, "special": NUM_SPECIAL_WORDS, "total": total}
    return {}, None


# -------------------------------------------------------------------------------------------------------------- page


def write_page(
    source: str,
    output: StrPath,
    model: str,
    words: str | None = None,
    examples: Sequence[str] = (),
    sample: int | None = None,
    tokenized: bool | None = None,
    column: str | None = None,
) -> PageReport:
    """Write the page of a corpus and a model.

    Args:
        source: a file of text or a table, as for `elmo embed`; or a .tsv file with words, senses and sentences.
        output: the .html file.
        model: the folder of a model or its name.
        words: words whose uses the page has at hand, separated by commas; by default, frequent ones.
        examples: sentences that the page offers.
        sample: how many sentences to draw; by default all.
        tokenized, column: as for [`open_corpus`].
    """
    wanted = parse_words(words)
    folder = find_model(model)
    embedder = load_embedder(folder)
    config, tokenizer = embedder.model.config, embedder.tokenizer
    corpus = read_page_corpus(source, tokenizer, wanted, sample, tokenized, column)
    uses = find_uses(corpus, tokenizer, wanted)
    name = folder.name if Path(model).exists() else model
    facts = describe_model(name, embedder, tokenized)
    weights = _weights(embedder.model)
    facts |= {
        "version": __version__,
        "tensors": [[key, weight.numel()] for key, weight in weights.items()],
        "corpus": {
            "name": corpus.name,
            "sentences": len(corpus.sentences),
            "words": corpus.word_count,
            "total": corpus.total,
            "tooLong": corpus.too_long,
            "senses": sorted(set(corpus.senses.values())),
        },
        "words": [{"word": word.word, "total": word.total} for word in uses],
        "examples": list(examples),
    }
    blocks = {"weights": pack_float16(list(weights.values()), str(folder))}
    has_softmax = architecture_of(read_config(folder)) == "ElmoForPreTraining"
    room = PAGE_BYTES - len(assemble(facts, blocks)) - len(pack_json(corpus.sentences).text)
    facts["softmax"] = None
    if has_softmax:
        softmax_blocks, facts["softmax"] = pack_softmax(folder, room - VECTOR_ROOM)
        blocks |= softmax_blocks
        room -= sum(len(block.text) for block in softmax_blocks.values())
    room = min(max(room, VECTOR_ROOM), MOST_VECTOR_ROOM)
    stored, left = split_by_room(uses, config.num_hidden_layers * config.hidden_size, room)
    codes, scales = embed_uses(stored, corpus, embedder)
    senses = [[number, position, sense] for (number, position), sense in corpus.senses.items()]
    table = {"sentences": corpus.sentences, "senses": senses, "uses": [word._asdict() for word in stored]}
    blocks |= {"corpus": pack_json(table), "vectors": pack_bytes(codes), "scales": pack_bytes(scales)}
    page = assemble(facts, blocks).encode()
    with atomic_write(output) as scratch:
        scratch.write_bytes(page)
    return PageReport(
        size=len(page),
        sentences=len(corpus.sentences),
        words=corpus.word_count,
        too_long=corpus.too_long,
        total=corpus.total,
        stored=stored,
        left=left,
        softmax_words=facts["softmax"]["words"] if facts["softmax"] else 0,
        has_softmax=has_softmax,
    )


def load_embedder(folder: Path) -> ElmoEmbedder:
    """Load a model to compute its layers 1 to L, if it is of a family that a page can run."""
    embedder = ElmoEmbedder.from_pretrained(folder, layers="all")
    check_family(folder, embedder.model.config)
    embedder.layers = tuple(range(1, embedder.model.config.num_hidden_layers + 1))
    return embedder


def assemble(facts: dict[str, Any], blocks: dict[str, Block]) -> str:
    """Return the page: the files of `web`, and the facts and blocks as scripts that no browser runs."""
    style = "\n".join((WEB / name).read_text(encoding="utf-8") for name in STYLES)
    scripts = {name: (WEB / f"{name}.js").read_text(encoding="utf-8") for name in (*ENGINE, *INTERFACE)}
    facts = {**facts, "sizes": {name: block.size for name, block in blocks.items()}}
    data = json.dumps(facts).replace("<", "\\u003c")
    parts = [f'<script type="application/json" id="facts">{data}</script>']
    for name, block in blocks.items():
        parts.append(f'<script type="application/octet-stream" id="block-{name}">{block.text}</script>')
    for name, script in scripts.items():
        parts.append(f'<script id="script-{name}">{script}</script>')
    policy = (
        f"default-src 'none'; script-src {_hashes(scripts.values())}; style-src {_hashes([style])}; "
        "worker-src blob:; img-src data:; base-uri 'none'; form-action 'none'"
    )
    page = (WEB / "page.html").read_text(encoding="utf-8")
    values = {
        "title": html.escape(f"Senses in {facts['corpus']['name']}"),
        "policy": policy,
        "style": f"<style>{style}</style>",
        "scripts": "\n".join(parts),
    }
    for name, value in values.items():  # the last one holds text of the corpus
        page = page.replace(f"<!-- {name} -->", value)
    return page


def _hashes(texts: Iterable[str]) -> str:
    """Return what the policy says of scripts or styles: that these may run, and no others."""
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts]
    return " ".join(f"'sha256-{digest}'" for digest in digests)
