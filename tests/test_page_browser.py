"""The page of senses in a real browser, opened from its file: it computes what Python does, and it can be used.

Where there is no Chromium these tests are skipped; `.ci/run` installs it.
"""

import base64
import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from browser import CHROMIUM, Browser

from modeling_elmo import MINI, ElmoConfig, ElmoEmbedder, ElmoForPreTraining, ElmoModel, ElmoTokenizer
from modeling_elmo.neighbors import Uses
from modeling_elmo.page import write_page
from training.demo import SAMPLE

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium: apt-get install chromium")

# Weights of 16 bits, of a model that has them in 16 bits: what is left is the order of sums.
TOLERANCE = 1e-3
# Of cosines, which the index of `elmo neighbors` computes from float16.
COSINE_TOLERANCE = 2e-4
LONGEST_SENTENCE_MS = 150
CONTRAST, GRAPHIC_CONTRAST = 4.5, 3.0
PHONE = (390, 844)

EXAMPLES = ["He sat on the [bank] of the river and fished .", "She took all her money out of the [bank] ."]
# Separated by spaces. What no editor should touch is written as an escape.
PIECES = """
The bank of the river , n't don't can't she'll they’ve ‘tis 'tis cannot Gonna U.S. Ph.D. Mr. e.g. J.R.R.
3,000.50 -12 $5 50% 10:30 '90s rock'n'roll state-of-the-art AT&T C++ #tag @home a_b x=y ... -- --- `` '' A I
https://example.org/a?b=c, (www.Example.com) e-mail@example.com "quoted" [sic] {x} <b> </S> <S> <pad> i.e.
😀 👍🏽 👩‍👩‍👧 🇫🇷 🏴󠁧󠁢󠁥󠁮󠁧󠁿 ✊🏿! ☺️ naïve Straße İstanbul it'ſ ŒUVRE Ωμέγα привет שלום مرحبا नमस्ते ไทย 한국어
東京都は日本の首都です。 我们在河岸上。 「漢字」 ﬁne x² ½ № ™ ٣٤ Ⅷ
""".split(" ")
PIECES += [
    "y" * 60,
    "Donaudampfschifffahrtsgesellschaftskapitän" * 2,
    "é" * 30,
    "a" * 48,
    "b" * 47,
    "\u200b",
    "z\u0301",
]
PIECES += ["\x1f", "a\u00a0b", "c\u3000d", "e\x85f", "\ufeffg", "h\u2028i", "\ud7ff"]


def odd_sentences(count: int) -> list[str]:
    chooser = random.Random(0)
    sentences = [" ".join(PIECES[start::7]) for start in range(7)]
    while len(sentences) < count:
        sentence = ""
        for piece in chooser.choices(PIECES, k=9):
            sentence += chooser.choice(["", " ", " ", "  "]) + piece
        sentences.append(sentence)
    return sentences


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as made:
        yield made


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page as `make demo` makes it."""
    path = tmp_path_factory.mktemp("page") / "senses.html"
    write_page(str(SAMPLE / "senses.tsv"), path, MINI, examples=EXAMPLES)
    return path


@pytest.fixture
def opened(browser: Browser, page: Path) -> Iterator[Browser]:
    """The page on a desktop, as it opens."""
    browser.resize(1280, 900)
    browser.prefer("light")
    browser.logged.clear()
    browser.requested.clear()
    browser.open(page)
    yield browser
    assert_quiet(browser)


@pytest.fixture
def engine(browser: Browser, page: Path) -> Iterator[Browser]:
    """The page, for questions to its engine: it may be open already."""
    if browser.evaluate("location.href") != page.as_uri():
        browser.open(page)
    yield browser
    assert_quiet(browser)


def assert_quiet(browser: Browser) -> None:
    """The page has logged nothing and has asked the network for nothing, whatever a test did to it."""
    assert browser.logged == []
    assert all(address.startswith(("file:///", "blob:null/", "data:,")) for address in browser.requested)


def layers_in(browser: Browser, text: str | list[str]) -> tuple[list[str], np.ndarray]:
    """The words of a text and their layers (layers, T, D), as the page computes them."""
    code = """elmo.ask({ kind: "layers", text: %s }).then(({ words, layers }) => ({
        words,
        layers: layers.map((layer) => btoa(String.fromCharCode(...new Uint8Array(layer.buffer)))),
    }))"""
    answer = browser.evaluate(code % json.dumps(text))
    layers = [np.frombuffer(base64.b64decode(layer), dtype="<f4") for layer in answer["layers"]]
    return answer["words"], np.stack(layers).reshape(len(layers), len(answer["words"]), -1)


def assert_same_vectors(found: np.ndarray, expected: np.ndarray) -> None:
    """No number of a vector is off by more than the tolerance, relative to the vector's largest."""
    assert found.shape == expected.shape
    assert (np.abs(found - expected).max(-1) <= TOLERANCE * np.abs(expected).max(-1)).all()


# ------------------------------------------------------------------------------------------------------ computation


def test_tokens_and_vectors_of_200_odd_sentences_are_pythons(engine: Browser) -> None:
    embedder = ElmoEmbedder.from_pretrained(MINI, layers="all")
    sentences = odd_sentences(200)
    words = [embedder.tokenizer.tokenize(sentence) for sentence in sentences]
    assert len({word for sentence in words for word in sentence}) > 150
    for sentence, own_words, vectors in zip(sentences, words, embedder.embed(words), strict=True):
        found_words, found = layers_in(engine, sentence)
        assert found_words == own_words
        assert_same_vectors(found, vectors)


def test_nearest_uses_are_those_of_elmo_neighbors(engine: Browser, tmp_path: Path) -> None:
    corpus = tmp_path / "sentences.txt"
    rows = (SAMPLE / "senses.tsv").read_text().splitlines()[1:]
    corpus.write_text("".join(row.split("\t")[2] + "\n" for row in rows))
    # The first two are stored in 8 bits, the uses of `the` are computed in the page.
    queries = [
        "He sat on the [bank] of the river and fished .",
        "They put on a [play] by Shakespeare .",
        "[The] end .",
    ]
    mixed = [1 / 3] * 3
    weights: dict[str, list[float]] = {"0": [1, 0, 0], "1": [0, 1, 0], "2": [0, 0, 1], "mix": mixed}
    for layer, own_weights in weights.items():
        index = Uses(corpus, MINI, layer, tmp_path / "indexes")
        for query in queries:
            expected = index.nearest(query, count=10)
            text = query.replace("[", "").replace("]", "")
            position = len(query.split("[")[0].split())
            word = text.split()[position]
            request = {
                "word": word,
                "weights": own_weights,
                "query": {"text": text, "position": position},
                "exact": 10,
            }
            uses = engine.ask("explore", **request)["uses"]
            by_place = {(" ".join(use["words"]), use["position"]): use["cosine"] for use in uses}
            found = sorted(by_place.values(), reverse=True)[:10]
            np.testing.assert_allclose(found, [neighbor.score for neighbor in expected], atol=COSINE_TOLERANCE)
            for neighbor in expected:
                own = by_place[" ".join(neighbor.words), neighbor.position]
                assert own == pytest.approx(neighbor.score, abs=COSINE_TOLERANCE)


def test_a_typed_sentence_of_20_words_takes_less_than_150_ms(engine: Browser) -> None:
    text = "The old man who lived by the river took {} coins out of the bank before he went home ."
    for number in range(5):  # until the loops are compiled
        engine.ask("read", text=text.format(f"some{number}"))
    before = engine.page_seconds()
    for number in range(10):
        assert len(engine.ask("read", text=text.format(number))["words"]) == 20
    # Processor time, since other programs may run beside this.
    assert (engine.page_seconds() - before) / 10 * 1000 < LONGEST_SENTENCE_MS


ODD_SIZES: dict[str, dict[str, Any]] = {
    "no projection, no clips, tanh": {
        "projection_dim": 12,
        "char_activation": "tanh",
        "cell_clip": None,
        "projection_clip": None,
        "num_hidden_layers": 1,
        "num_highway_layers": 0,
    },
    "tight clips, three layers without skips": {
        "projection_dim": 7,
        "cell_clip": 0.02,
        "projection_clip": 0.01,
        "num_hidden_layers": 3,
        "num_highway_layers": 2,
        "use_skip_connections": False,
        "max_characters_per_token": 12,
    },
}


@pytest.mark.parametrize("sizes", ODD_SIZES.values(), ids=ODD_SIZES)
def test_models_of_other_sizes_are_computed_alike(browser: Browser, tmp_path: Path, sizes: dict[str, Any]) -> None:
    torch.manual_seed(0)
    base = {"char_embedding_dim": 3, "char_filters": [[1, 5], [3, 7]], "cell_dim": 9}
    model = ElmoModel(ElmoConfig(**{**base, **sizes}))
    model.half().float().save_pretrained(tmp_path / "model")
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("The bank of England .\nA river bank .\nbank\n" * 3)
    write_page(str(corpus), tmp_path / "page.html", str(tmp_path / "model"), words="bank")
    browser.open(tmp_path / "page.html")
    embedder = ElmoEmbedder.from_pretrained(tmp_path / "model", layers="all")
    for sentence in (["The", "bank", "Donaudampfschiff", "."], ["x"], ["<S>", "河岸", "."]):
        (vectors,) = embedder.embed([sentence])
        assert_same_vectors(layers_in(browser, sentence)[1], vectors)


def test_surprise_and_substitutes_are_pythons(browser: Browser, tmp_path: Path) -> None:
    torch.manual_seed(0)
    words = "the of bank river money a . he sat on lives in".split()
    sizes = {"projection_dim": 6, "cell_dim": 8, "char_filters": [[1, 4], [3, 8]], "char_embedding_dim": 4}
    model = ElmoForPreTraining(ElmoConfig(vocab_size=4 + len(words), num_highway_layers=1, **sizes)).half().float()
    model.softmax.weight.data = model.softmax.weight.data.mul(8).to(torch.float8_e4m3fn).float()
    tokenizer = ElmoTokenizer(vocab=words)
    tokenizer.save_pretrained(tmp_path / "model")
    model.save_pretrained(tmp_path / "model")
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("he sat on the bank .\nthe money of the bank .\n")
    write_page(str(corpus), tmp_path / "page.html", str(tmp_path / "model"), words="bank")
    browser.open(tmp_path / "page.html")
    sentence = "he sat on the bank of Loire .".split()
    (score,) = model.eval().score([sentence], tokenizer)
    found = browser.ask("surprisal", text=sentence)
    assert found.pop(6) is None  # an unknown word is not counted
    known = [at for at in range(len(sentence)) if at != 6]
    for side, log_p in (("forward", score.forward[:-1]), ("backward", score.backward[1:])):
        expected = (-log_p[known] / np.log(2)).tolist()
        np.testing.assert_allclose([each[side] for each in found], expected, rtol=TOLERANCE)
    expected = model.substitutes(sentence, 4, tokenizer, count=6)
    found = browser.ask("substitutes", text=sentence, position=4, count=6)
    assert [each["word"] for each in found] == [each.word for each in expected]
    assert [each["probability"] for each in found] == pytest.approx([each.probability for each in expected], rel=0.01)


def test_without_a_worker_the_page_computes_the_same_itself(opened: Browser, page: Path) -> None:
    text = "He sat on the bank ."
    expected = layers_in(opened, text)[1]
    script = opened.send("Page.addScriptToEvaluateOnNewDocument", source="delete window.Worker;")["identifier"]
    opened.open(page)
    opened.send("Page.removeScriptToEvaluateOnNewDocument", identifier=script)
    assert opened.evaluate("elmo.runsInWorker") is False
    assert "without a worker" in opened.text("#facts-list")
    np.testing.assert_array_equal(layers_in(opened, text)[1], expected)


# --------------------------------------------------------------------------------------------------------------- use


def wait_for_uses(browser: Browser, word: str, first: str) -> None:
    """Wait until the uses of a word are listed, the first of which has some text."""
    browser.wait_for(f"document.querySelector('#word-title').textContent === '“{word}”'")
    browser.wait_for(f"document.querySelector('#uses .use')?.textContent.includes({json.dumps(first)})")


def test_typing_a_sentence_and_clicking_a_word_shows_its_nearest_uses(opened: Browser) -> None:
    assert opened.text("#sentence + .tokens .token .token-word") == "He"
    wait_for_uses(opened, "bank", "river")
    opened.type("#sentence", "She took all her money out of the bank.")
    opened.wait_for("document.querySelectorAll('#tokens .token').length === 10")
    opened.click("#tokens .token:nth-child(9)")
    wait_for_uses(opened, "bank", "money")
    cosines = [float(text) for text in opened.texts("#uses .cosine")]
    assert len(cosines) == 10
    assert cosines == sorted(cosines, reverse=True)
    assert opened.texts("#tokens [aria-pressed=true] .token-word") == ["bank"]
    assert len(opened.texts("#tokens .surprise")) == 10
    opened.click("#more")
    opened.wait_for("document.querySelectorAll('#uses .use').length === 20")
    assert "money" in opened.text("#static-words") + opened.text("#status")
    opened.click("#ask-substitutes")
    opened.wait_for("document.querySelectorAll('#substitute-words li').length === 10")


def test_layers_change_the_order_and_the_mix_has_sliders(opened: Browser) -> None:
    wait_for_uses(opened, "bank", "river")
    tops = opened.texts("#uses .cosine")
    opened.click("#layers label:nth-of-type(1) span")
    opened.wait_for("[...document.querySelectorAll('#uses .cosine')].every((e) => e.textContent === '1.000')")
    opened.click("#layers label:nth-of-type(4) span")
    opened.wait_for("!document.querySelector('#mix').hidden")
    assert opened.texts("#mix output")[:3] == ["0.0 → 33 %"] * 3
    # The mix with all its weight on the top layer is the top layer.
    opened.evaluate(
        "document.querySelectorAll('#mix input').forEach((input, at) => {"
        " if (at < 2) { input.value = -10; input.dispatchEvent(new Event('input')); } })"
    )
    cosines = "[...document.querySelectorAll('#uses .cosine')].map((e) => e.textContent).join()"
    opened.wait_for(f"{cosines} === {json.dumps(','.join(tops))}")


def test_the_map_shows_every_use_by_its_sense_and_answers_to_keys_and_pointer(opened: Browser) -> None:
    wait_for_uses(opened, "bank", "river")
    labels = opened.evaluate("[...document.querySelectorAll('#map .point')].map((e) => e.getAttribute('aria-label'))")
    assert len(labels) == 20
    assert {label.split(",")[0] for label in labels} == {"river", "money"}
    assert opened.texts("#legend li") == ["river 10", "money 10"]
    assert opened.evaluate("document.querySelectorAll('#map .own').length") == 1
    # One point takes part in tabbing; arrow keys reach the others.
    assert opened.evaluate("document.querySelectorAll('#map .point[tabindex=\"0\"]').length") == 1
    opened.evaluate("document.querySelector('#map .point[tabindex=\"0\"]').focus()")
    seen = set()
    for key in ["ArrowRight"] * 6 + ["ArrowUp"] * 6 + ["ArrowLeft"] * 6 + ["ArrowDown"] * 6:
        opened.press(key)
        seen.add(opened.evaluate("document.activeElement.getAttribute('aria-label')"))
        assert opened.text("#map-caption mark").lower() == "bank"
    assert len(seen) > 8
    chosen = opened.evaluate("document.activeElement.getAttribute('aria-label')").split(": ", 1)[1]
    opened.press("Enter")
    opened.wait_for("document.querySelector('#uses-note .sentence') !== null")
    assert opened.text("#uses-note .sentence").split() == chosen.split()
    assert opened.evaluate("document.activeElement.getAttribute('aria-label')").endswith(chosen)
    opened.evaluate(
        "(e => { e.value = '3'; e.dispatchEvent(new Event('change')); })(document.querySelector('#colours'))"
    )
    opened.wait_for("document.querySelectorAll('#legend li').length === 3")
    assert opened.text("#legend li").startswith("group 1")


def test_a_word_of_the_corpus_can_be_found_and_one_that_is_not_there_is_said_so(opened: Browser) -> None:
    opened.click("#corpus-words .chip:nth-child(4)")
    wait_for_uses(opened, "play", "play")
    assert opened.texts("#uses .cosine") == []
    opened.type("#find", "the")
    opened.press("Enter")
    wait_for_uses(opened, "the", "the")
    opened.type("#find", "Xylophone")
    opened.press("Enter")
    opened.wait_for("document.querySelector('#status').textContent === '“Xylophone” does not occur in the corpus.'")
    assert opened.texts("#uses .use") == []


def test_two_sentences_are_compared_layer_by_layer(opened: Browser) -> None:
    assert opened.text("#compare-caption") == "“bank” and “bank”"
    embedder = ElmoEmbedder.from_pretrained(MINI, layers="all")
    texts = [example.replace("[", "").replace("]", "").split() for example in EXAMPLES]
    left, right = (
        vectors[:, words.index("bank")] for vectors, words in zip(embedder.embed(texts), texts, strict=True)
    )
    left, right = (np.concatenate([vectors, vectors.mean(0, keepdims=True)]) for vectors in (left, right))
    cosines = (left * right).sum(-1) / np.linalg.norm(left, axis=-1) / np.linalg.norm(right, axis=-1)
    assert opened.texts("#cosines td.cosine") == [f"{cosine:.3f}" for cosine in cosines]
    opened.type("#right", "He sat on the bank of the river and fished .")
    opened.wait_for("document.querySelectorAll('#right-tokens .token').length === 11")
    opened.click("#right-tokens .token:nth-child(5)")
    opened.wait_for("[...document.querySelectorAll('#cosines td.cosine')].every((e) => e.textContent === '1.000')")


# ------------------------------------------------------------------------------------------------- safety and access


MARKUP = [
    "<script>window.broken=1</script> bank",
    "</script><img src=x onerror=window.broken=1> bank",
    "<!-- --> <svg/onload=window.broken=1> bank \"'&amp;",
    "<b>bank</b> ${broken} {{bank}} javascript:window.broken=1 bank",
]


def test_text_of_corpus_and_reader_is_never_markup(browser: Browser, tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = ElmoConfig(
        char_embedding_dim=2, char_filters=[[1, 4]], projection_dim=4, cell_dim=4, num_highway_layers=0
    )
    ElmoModel(config).save_pretrained(tmp_path / "model")
    corpus = tmp_path / "<img src=x onerror=window.broken=1>.tsv"
    rows = [f"bank\t<i>{number}</i>\t{text}\n" for number, text in enumerate(MARKUP)]
    corpus.write_text("word\tsense\tsentence\n" + "".join(row.replace('"', '""') for row in rows))
    write_page(str(corpus), tmp_path / "page.html", str(tmp_path / "model"), examples=[MARKUP[0]])
    browser.logged.clear()
    browser.open(tmp_path / "page.html")
    browser.type("#sentence", " ".join(MARKUP))
    browser.wait_for("document.querySelectorAll('#tokens .token').length > 20")
    browser.click("#corpus-words .chip")
    wait_for_uses(browser, "bank", "bank")
    assert {"<i>0</i> 1", "<i>3</i> 1"} <= set(browser.texts("#legend li"))
    assert (
        browser.evaluate("document.querySelectorAll('main img, main script, main b:not(#map-caption b), i').length")
        == 0
    )
    assert browser.evaluate("window.broken === undefined")
    assert "<img src=x" in browser.text("#facts-list")
    assert browser.logged == []


def test_the_page_may_not_reach_the_network_even_if_it_wanted_to(browser: Browser, page: Path) -> None:
    browser.open(page)
    refused = browser.evaluate("fetch('http://127.0.0.1:9/').then(() => 'sent', () => 'refused')")
    assert refused == "refused"
    assert any("Content Security Policy" in line for line in browser.logged)
    browser.logged.clear()


# Texts with less contrast than LEAST, as WCAG computes it.
CONTRASTS = """(() => {
    const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
    const rgba = (color) => {
        canvas.clearRect(0, 0, 1, 1);
        canvas.fillStyle = color;
        canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data];
    };
    const linear = (value) => (value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
    const luminance = (color) => {
        const [red, green, blue] = rgba(color).map((value) => linear(value / 255));
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
    };
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const low = [];
    let count = 0;
    while (walker.nextNode()) {
        const text = walker.currentNode.data.trim();
        const element = walker.currentNode.parentElement;
        if (!text || !element.checkVisibility() || element.closest("script, .hidden, .skip, noscript")) continue;
        let ground = element;
        while (rgba(getComputedStyle(ground).backgroundColor)[3] < 255) ground = ground.parentElement;
        const colors = [getComputedStyle(element).color, getComputedStyle(ground).backgroundColor];
        const [dark, bright] = colors.map(luminance).sort((a, b) => a - b);
        const contrast = (bright + 0.05) / (dark + 0.05);
        count++;
        if (contrast < LEAST) low.push(`${text.slice(0, 30)}: ${contrast.toFixed(2)}`);
    }
    return { low, count };
})()"""
COLOURS = """["surface", ...[0, 1, 2, 3, 4, 5].map((at) => `sense-${at}`)].map((name) =>
    getComputedStyle(document.documentElement).getPropertyValue(`--${name}`))"""
HEADINGS = "[...document.querySelectorAll('h1, h2, h3')].filter((e) => e.checkVisibility()).map((e) => +e.tagName[1])"
# What has the focus, and whether the end of the page comes after it.
FOCUS = """(() => {
    const element = document.activeElement;
    const isBeforeTheEnd = element.compareDocumentPosition(document.querySelector("#about")) === 4;
    return [(element.id || element.getAttribute("class") || "").split(" ")[0], isBeforeTheEnd];
})()"""


def contrast(first: str, second: str) -> float:
    """The contrast of two colours like #0072b2, as WCAG computes it."""
    luminances = []
    for colour in (first, second):
        values = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
        linear = np.where(values <= 0.03928, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
        luminances.append(float(linear @ [0.2126, 0.7152, 0.0722]))
    return (max(luminances) + 0.05) / (min(luminances) + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast_by_the_system_or_the_switch_and_nothing_is_wider_than_a_phone(
    opened: Browser, page: Path, scheme: str
) -> None:
    other = {"light": "dark", "dark": "light"}[scheme]
    opened.prefer(other)
    opened.wait_for(f"document.documentElement.dataset.theme === '{other}'")
    opened.click("#theme")
    assert opened.evaluate("document.documentElement.dataset.theme") == scheme
    assert opened.evaluate("theme.getAttribute('aria-pressed')") == str(scheme == "dark").lower()
    wait_for_uses(opened, "bank", "river")
    found = opened.evaluate(CONTRASTS.replace("LEAST", str(CONTRAST)))
    assert found["count"] > 100
    assert found["low"] == []
    # Points on the map need less contrast than text.
    surface, *senses = opened.evaluate(COLOURS)
    assert len(set(senses)) == 6
    assert min(contrast(surface, sense) for sense in senses) >= GRAPHIC_CONTRAST
    opened.resize(*PHONE, 2, is_phone=True)
    opened.wait_for("innerWidth < 400")
    assert opened.evaluate("document.documentElement.scrollWidth") <= PHONE[0]


def test_every_control_has_a_name_and_the_keyboard_reaches_all_in_the_order_of_the_page(opened: Browser) -> None:
    wait_for_uses(opened, "bank", "river")
    nodes = opened.send("Accessibility.getFullAXTree")["nodes"]
    roles = {"button", "textbox", "searchbox", "slider", "radio", "checkbox", "combobox", "list", "table", "figure"}
    controls = [node for node in nodes if not node.get("ignored") and node["role"]["value"] in roles]
    unnamed = [node["role"]["value"] for node in controls if not node["name"]["value"].strip()]
    assert len(controls) > 60
    assert [role for role in unnamed if role not in ("list", "figure")] == []
    assert any(node["role"]["value"] == "status" for node in nodes)
    headings = opened.evaluate(HEADINGS)
    assert headings[0] == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(headings))
    # Tab goes through the page from top to bottom; a group of words is one stop, and so is the map.
    opened.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
    stops = []
    for _ in range(18):
        opened.press("Tab")
        name, is_before_the_end = opened.evaluate(FOCUS)
        assert is_before_the_end
        stops.append(name)
    assert stops[:5] == ["skip", "theme", "sentence", "token", "surprise"]
    assert stops.count("token") == stops.count("point") == 1
    assert stops.index("colours") < stops.index("point") < stops.index("use")
    # A word is chosen without a mouse.
    opened.evaluate("document.querySelector('#tokens [aria-pressed=true]').focus()")
    for _ in range(3):
        opened.press("ArrowRight")
    opened.press("Enter")
    opened.wait_for("document.querySelector('#word-title').textContent === '“river”'")
    assert opened.texts("#tokens [aria-pressed=true] .token-word") == ["river"]
