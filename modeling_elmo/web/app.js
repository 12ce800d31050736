"use strict";
/* The page: what the reader has chosen, and what happens when that changes. */

const SHOWN_AT_ONCE = 10;
const SHOWN_CHIPS = 12;
const SHOWN_EXAMPLES = 4;
// Where the word is far below the sentence, as in page.css.
const NARROW = "(max-width: 46rem)";
const REDUCED = "(prefers-reduced-motion: reduce)";
const TYPING_PAUSE = 250;
const SUBSTITUTES = 10;
const STATIC_NEIGHBORS = 12;

class App {
  constructor(facts, client) {
    this.facts = facts;
    this.client = client;
    this.top = facts.config.numHiddenLayers;
    this.layer = this.top; // a number or "mix"
    this.mix = { s: [...facts.mix.weights], gamma: facts.mix.gamma };
    this.typed = { text: "", words: [], chosen: -1 };
    this.word = null;
    this.query = null; // the use that is asked about: { text, position, place }, a place in the corpus or null
    this.colours = null; // "sense", or a number of groups, 0 for as many as there seem to be
    this.request = null; // the newest one for the uses of a word
    this.uses = [];
    this.shown = SHOWN_AT_ONCE;
    this.map = new SenseMap(
      byId("map"),
      (number) => this.look(number),
      (number) => this.askUse(number),
    );
    this.sides = { left: { words: [], chosen: -1 }, right: { words: [], chosen: -1 } };
  }

  /* Fill in what never changes, and show the first sentence. */
  async start() {
    const { corpus, model, examples, words } = this.facts;
    byId("subtitle").textContent =
      `in ${corpus.name}, ${plural(corpus.sentences, "sentence")}, as ${model.name} reads them`;
    showFacts(byId("facts-list"), this.facts, this.client.runsInWorker);
    this.makeChips(byId("examples"), examples, SHOWN_EXAMPLES, (example) => this.useExample(example));
    const chips = words.map(({ word, total }) => `${word} ${thousands(total)}`);
    this.makeChips(byId("corpus-words"), chips, SHOWN_CHIPS, (chip) =>
      this.chooseWord(chip.slice(0, chip.lastIndexOf(" "))),
    );
    this.makeLayers();
    this.makeMix();
    this.listen();
    for (const id of ["main", "about"]) byId(id).hidden = false;
    byId("examples-part").hidden = !examples.length;
    byId("surprise-row").hidden = !this.facts.softmax;
    byId("substitutes").hidden = !this.facts.softmax;
    say("");
    const [first, second] = examples;
    if (first) {
      await this.useExample(first);
      await this.fillSide("left", first);
      await this.fillSide("right", second ?? first);
    } else if (words.length) {
      await this.chooseWord(words[0].word);
      const uses = this.uses.filter((_, at) => at === 0 || at === this.uses.length - 1);
      const [left, right] = [uses[0], uses.at(-1)].map(({ words, position }) => ({ text: words.join(" "), position }));
      await this.fillSide("left", left.text, left.position);
      await this.fillSide("right", right.text, right.position);
    }
  }

  /* Show names as buttons, so many of them at first. */
  makeChips(group, names, shown, choose) {
    const chips = names.map((name) => {
      const chip = make("button", { type: "button", className: "chip" }, name.replace(/[[\]]/g, ""));
      chip.addEventListener("click", () => choose(name));
      return chip;
    });
    group.replaceChildren(...chips);
    if (chips.length <= shown) return;
    for (const chip of chips.slice(shown)) chip.hidden = true;
    const all = make("button", { type: "button", className: "chip quiet" }, `${chips.length - shown} more`);
    all.addEventListener("click", () => {
      for (const chip of chips) chip.hidden = false;
      chips[shown].focus();
      all.remove();
    });
    group.append(all);
  }

  makeLayers() {
    const layers = [...Array(this.top + 1).keys(), "mix"];
    for (const layer of layers) {
      const input = make("input", {
        type: "radio",
        name: "layer",
        value: String(layer),
        checked: layer === this.layer,
      });
      input.addEventListener("change", () => {
        this.layer = layer;
        this.explore();
        this.compare();
      });
      byId("layers").append(make("label", {}, input, make("span", {}, layerName(layer))));
    }
  }

  makeMix() {
    const sliders = [];
    const update = () => {
      const total = this.mix.s.reduce((sum, value) => sum + Math.exp(value), 0);
      sliders.forEach(({ input, output }, at) => {
        const isGamma = at > this.top;
        output.textContent = isGamma
          ? this.mix.gamma.toFixed(2)
          : `${this.mix.s[at].toFixed(1)} → ${Math.round((100 * Math.exp(this.mix.s[at])) / total)} %`;
        input.value = String(isGamma ? this.mix.gamma : this.mix.s[at]);
      });
    };
    const changed = debounce(80, () => {
      this.explore();
      this.compare();
    });
    const add = (name, settings, change) => {
      const input = make("input", { type: "range", ...settings });
      const output = make("output", {});
      input.addEventListener("input", () => {
        change(Number(input.value));
        update();
        changed();
      });
      sliders.push({ input, output });
      byId("mix").append(make("label", {}, make("span", {}, name), input, output));
    };
    this.mix.s.forEach((_, at) => {
      add(
        `s${at} ${layerName(at).toLowerCase()}`,
        { min: -10, max: 10, step: 0.1 },
        (value) => (this.mix.s[at] = value),
      );
    });
    add("γ", { min: 0.05, max: 4, step: 0.05 }, (value) => (this.mix.gamma = value));
    const reset = make("button", { type: "button", className: "quiet" }, "Reset");
    reset.addEventListener("click", () => {
      this.mix = { s: [...this.facts.mix.weights], gamma: this.facts.mix.gamma };
      update();
      changed();
    });
    byId("mix").append(reset);
    update();
  }

  listen() {
    for (const id of ["tokens", "left-tokens", "right-tokens"]) roveFocus(byId(id));
    byId("sentence").addEventListener(
      "input",
      debounce(TYPING_PAUSE, () => this.read()),
    );
    byId("surprise").addEventListener("change", () => this.showTyped());
    byId("find-form").addEventListener("submit", (event) => {
      event.preventDefault();
      const word = byId("find").value.trim();
      if (word) this.chooseWord(word);
    });
    byId("colours").addEventListener("change", ({ target }) => {
      this.colours = target.value === "sense" ? "sense" : Number(target.value);
      this.explore();
    });
    byId("more").addEventListener("click", () => {
      const first = this.shown;
      this.shown += 2 * SHOWN_AT_ONCE;
      this.showList();
      byId("uses").children[first]?.firstChild.focus();
      this.explore();
    });
    byId("ask-substitutes").addEventListener("click", () => this.askSubstitutes());
    for (const side of ["left", "right"]) {
      byId(side).addEventListener(
        "input",
        debounce(TYPING_PAUSE, () => this.readSide(side)),
      );
    }
  }

  /* Return the weight of each layer. */
  weights() {
    if (this.layer === "mix") return this.mixWeights();
    return Array.from({ length: this.top + 1 }, (_, at) => (at === this.layer ? 1 : 0));
  }

  mixWeights() {
    const exponentials = this.mix.s.map(Math.exp);
    const total = exponentials.reduce((sum, value) => sum + value, 0);
    return exponentials.map((value) => (this.mix.gamma * value) / total);
  }

  // ------------------------------------------------------------------------------------------- the typed sentence

  async useExample(example) {
    const { text, before, word } = parseExample(example);
    byId("sentence").value = text;
    await this.read(await this.placeOf(before, word));
  }

  /* Return the place of a word after a text that comes before it. */
  async placeOf(before, word) {
    if (before === null) return -1;
    const { words } = await this.client.ask({ kind: "read", text: before });
    const marked = await this.client.ask({ kind: "read", text: word });
    return marked.words.length === 1 ? words.length : -1;
  }

  /* Read the typed sentence; choose the word at a place, or the one that was chosen before, if it is still there. */
  async read(place = -1) {
    const text = byId("sentence").value;
    const { words } = await this.client.ask({ kind: "read", text });
    if (byId("sentence").value !== text) return; // more was typed meanwhile
    const before = this.typed;
    let chosen = place;
    if (chosen < 0 && before.chosen >= 0 && words[before.chosen] === before.words[before.chosen])
      chosen = before.chosen;
    this.typed = { text, words, chosen };
    this.showTyped();
    if (chosen >= 0) await this.chooseTyped(chosen);
  }

  async showTyped() {
    const { text, words, chosen } = this.typed;
    showTokens(byId("tokens"), words, chosen, async (at) => {
      await this.chooseTyped(at);
      if (matchMedia(NARROW).matches)
        byId("word").scrollIntoView({ behavior: matchMedia(REDUCED).matches ? "auto" : "smooth" });
    });
    byId("surprise-note").textContent = "";
    if (!this.facts.softmax || !words.length || !byId("surprise").checked) return;
    const surprisal = await this.client.ask({ kind: "surprisal", text });
    if (this.typed.text === text && !byId("tokens").querySelector(".surprise")) {
      showSurprise(byId("tokens"), words, surprisal, byId("surprise-note"));
    }
  }

  async chooseTyped(at) {
    this.typed.chosen = at;
    press(byId("tokens"), at);
    await this.choose(this.typed.words[at], { text: this.typed.text, position: at, place: null });
  }

  // ------------------------------------------------------------------------------------------------ the word's uses

  async chooseWord(word) {
    this.typed.chosen = -1;
    press(byId("tokens"), -1);
    await this.choose(word, null);
  }

  /* Ask for the uses nearest to one of those that are shown. */
  async askUse(number) {
    const { words, position, sentence } = this.uses[number];
    await this.choose(this.word, { text: words, position, place: sentence });
  }

  async choose(word, query) {
    if (word !== this.word) this.shown = SHOWN_AT_ONCE;
    this.word = word;
    this.query = query;
    byId("substitute-words").replaceChildren();
    byId("ask-substitutes").hidden = !query;
    byId("substitutes").hidden = !query || !this.facts.softmax;
    await Promise.all([this.explore(), this.showStatic()]);
  }

  async explore() {
    byId("mix").hidden = this.layer !== "mix";
    byId("layer-note").textContent = layerNote(this.layer, this.top);
    if (this.word === null) return;
    const request = { kind: "explore", word: this.word, weights: this.weights(), query: this.query };
    request.groupCount = typeof this.colours === "number" ? this.colours : 0;
    const progress = (done, of) => say(`Reading the sentences with “${request.word}”: ${done} of ${of}`);
    this.request = request;
    const isCurrent = () => this.request === request;
    try {
      let answer = await this.client.ask(request, progress);
      if (!isCurrent()) return;
      this.showExplored(answer);
      if (this.query && !answer.isExact) {
        answer = await this.client.ask({ ...request, exact: this.shown });
        if (!isCurrent()) return;
        this.showExplored(answer);
      }
      this.sayFound();
    } catch (error) {
      if (error.message !== STOPPED) throw error;
    }
  }

  showExplored({ uses, total, own, share }) {
    const senses = this.sensesOf(uses);
    this.makeColours(senses.length > 0);
    const names = this.colours === "sense" ? senses : this.groupNames(uses);
    this.uses = uses.map((use, number) => {
      const colour = this.colours === "sense" ? senses.indexOf(use.sense ?? "no sense given") : use.group;
      const near = use.cosine === null ? "" : `, cosine ${use.cosine.toFixed(3)}`;
      const label = `${names[colour]}${near}: ${use.words.join(" ")}`;
      return { ...use, number, colour, colourName: names[colour], label };
    });
    const ownUse = this.uses.findIndex((use) => this.isAsked(use));
    byId("word-title").textContent = `“${this.word}”`;
    const some = uses.length < total ? `, ${thousands(uses.length)} of them shown` : "";
    byId("word-count").textContent = `${plural(total, "use")} in the corpus${some}`;
    byId("map").hidden = uses.length === 0;
    if (uses.length) this.map.draw({ uses: this.uses, own, ownUse });
    showLegend(byId("legend"), names, this.uses);
    this.share = share;
    this.look(null);
    this.showList();
  }

  isAsked(use) {
    return this.query !== null && this.query.place === use.sentence && this.query.position === use.position;
  }

  sayFound() {
    const listed = this.listed();
    if (!this.uses.length) say(`“${this.word}” does not occur in the corpus.`);
    else if (!this.query) say(`${plural(this.uses.length, "use")} of “${this.word}”.`);
    else if (listed.length)
      say(`The use nearest to “${this.word}” by ${layerName(this.layer).toLowerCase()}: ${listed[0].label}`);
  }

  /* Return the names of senses that the file gives these uses, the most frequent first. */
  sensesOf(uses) {
    if (uses.every((use) => use.sense === null)) return [];
    const counts = new Map();
    for (const { sense } of uses)
      counts.set(sense ?? "no sense given", (counts.get(sense ?? "no sense given") ?? 0) + 1);
    return [...counts.keys()].sort((a, b) => counts.get(b) - counts.get(a));
  }

  groupNames(uses) {
    const count = Math.max(0, ...uses.map((use) => use.group + 1));
    return Array.from({ length: count }, (_, at) => (count === 1 ? "all uses" : `group ${at + 1}`));
  }

  /* Offer the colours that these uses can have. */
  makeColours(hasSenses) {
    if (this.colours === null || (this.colours === "sense" && !hasSenses)) this.colours = hasSenses ? "sense" : 0;
    const offered = [["0", "by groups found (k-means)"]];
    for (let count = 2; count <= MOST_GROUPS; count++) offered.push([String(count), `by ${count} groups`]);
    if (hasSenses) offered.unshift(["sense", "by sense, from the file"]);
    byId("colours").replaceChildren(...offered.map(([value, name]) => make("option", { value }, name)));
    byId("colours").value = String(this.colours);
  }

  /* Return the uses in the order of the list: without the one that is asked about, the nearest first. */
  listed() {
    const others = this.uses.filter((use) => !this.isAsked(use));
    return this.query ? others.sort((a, b) => b.cosine - a.cosine) : others.sort((a, b) => a.colour - b.colour);
  }

  showList() {
    const listed = this.listed();
    const none = this.uses.length === 0;
    byId("uses-title").textContent = none ? "No uses" : this.query ? "Nearest uses" : "Uses";
    const note = byId("uses-note");
    if (none) note.textContent = "This word does not occur in the corpus.";
    else if (!this.query) note.textContent = "Choose one, in the list or on the map, to see which are nearest to it.";
    else if (this.query.place === null) note.textContent = "By their cosine with the word in your sentence.";
    else
      note.replaceChildren("By their cosine with the word in: ", sentenceWith(this.query.text, this.query.position));
    showUses(
      byId("uses"),
      listed.slice(0, this.shown),
      (number) => this.look(number),
      (number) => this.askUse(number),
    );
    byId("more").hidden = listed.length <= this.shown;
  }

  /* Show the sentence of a use that is looked at, and where it is on the map. */
  look(number) {
    this.map.highlight(number);
    const caption = byId("map-caption");
    if (number === null) {
      const share = Math.round(100 * (this.share ?? 0));
      const shown = `The two directions in which these uses differ most (${share} % of the differences).`;
      const asked = !this.query
        ? ""
        : ` The ring is ${this.query.place === null ? "your sentence" : "the use you chose"}.`;
      caption.textContent = this.uses.length ? shown + asked : "";
      return;
    }
    const use = this.uses[number];
    caption.replaceChildren(
      swatch(use.colour),
      make("b", {}, use.colourName),
      " ",
      sentenceWith(use.words, use.position),
    );
  }

  // ------------------------------------------------------------------------------------------ the softmax's words

  async showStatic() {
    byId("static").hidden = true;
    if (!this.facts.softmax) return;
    const word = this.word;
    const found = await this.client.ask({ kind: "static", word, count: STATIC_NEIGHBORS });
    if (word !== this.word || !found) return;
    byId("static-words").textContent = found.map((neighbor) => neighbor.word).join(", ");
    byId("static").hidden = false;
  }

  async askSubstitutes() {
    const { text, position } = this.query;
    const found = await this.client.ask({ kind: "substitutes", text, position, count: SUBSTITUTES });
    if (this.query.text !== text || this.query.position !== position) return;
    showBars(
      byId("substitute-words"),
      found.map(({ word, probability }) => ({ name: word, value: probability })),
    );
    byId("ask-substitutes").hidden = true;
    say(`In place of “${this.word}”: ${found.map(({ word }) => word).join(", ")}`);
  }

  // ---------------------------------------------------------------------------------------------- two sentences

  async fillSide(side, example, place = -1) {
    const { text, before, word } = parseExample(example);
    byId(side).value = text;
    await this.readSide(side, place < 0 ? await this.placeOf(before, word) : place);
  }

  async readSide(side, place = -1) {
    const text = byId(side).value;
    const { words } = await this.client.ask({ kind: "read", text });
    if (byId(side).value !== text) return;
    const before = this.sides[side];
    const isStill = before.chosen >= 0 && words[before.chosen] === before.words[before.chosen];
    const chosen = place >= 0 ? place : isStill ? before.chosen : -1;
    this.sides[side] = { text, words, chosen };
    showTokens(byId(`${side}-tokens`), words, chosen, (at) => {
      this.sides[side].chosen = at;
      press(byId(`${side}-tokens`), at);
      this.compare();
    });
    await this.compare();
  }

  async compare() {
    const { left, right } = this.sides;
    byId("cosines").hidden = left.chosen < 0 || right.chosen < 0;
    if (byId("cosines").hidden) return;
    const request = { kind: "compare", texts: [left.text, right.text], positions: [left.chosen, right.chosen] };
    // The mix is shown by its own weights, whatever layer is chosen above.
    const { layers, mix } = await this.client.ask({ ...request, weights: this.mixWeights() });
    const rows = layers.map((value, layer) => ({ name: layerName(layer), value }));
    showCosines(byId("cosines").tBodies[0], [...rows, { name: layerName("mix"), value: mix }]);
    byId("compare-caption").textContent = `“${left.words[left.chosen]}” and “${right.words[right.chosen]}”`;
  }
}

/* Say something in the status line, which screen readers read out. */
function say(text) {
  byId("status").textContent = text;
}

/* Follow the system's colours until the reader chooses others. */
function followTheme() {
  const system = matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  const apply = () => {
    const isDark = chosen ?? system.matches;
    document.documentElement.dataset.theme = isDark ? "dark" : "light";
    byId("theme").setAttribute("aria-pressed", String(isDark));
  };
  system.addEventListener("change", apply);
  byId("theme").addEventListener("click", () => {
    chosen = !(chosen ?? system.matches);
    apply();
  });
  apply();
}

/* Open the page. `elmo` is there for the browser's console: await elmo.ask({ kind: "layers", text: "The bank ." }) */
async function openPage() {
  followTheme();
  say("Unpacking the model…");
  const facts = JSON.parse(byId("facts").textContent);
  const blocks = {};
  for (const name of Object.keys(facts.sizes)) {
    const element = byId(`block-${name}`);
    blocks[name] = element.textContent;
    element.remove(); // the worker has it; twice would be too much for a phone
  }
  const client = new Client();
  window.elmo = client;
  try {
    await client.ask({ kind: "open", facts, blocks });
    await new App(facts, client).start();
    document.documentElement.dataset.ready = "true";
  } catch (error) {
    say(`This page cannot be opened: ${error.message}`);
  }
}

openPage();
