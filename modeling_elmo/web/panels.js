"use strict";
/* What the page shows of an answer of the engine: functions from answers to elements, without any state. */

// Bits of surprise that have the full colour: a word of one in 65,536.
const MOST_BITS = 16;

function bits(number) {
  return `${number.toFixed(1)} bits`;
}

/* Return a layer's name: "characters", "layer 1", …, "mix". */
function layerName(layer) {
  if (layer === "mix") return "Mix";
  return layer === 0 ? "Characters" : `Layer ${layer}`;
}

/* Return what a layer knows, in a line. */
function layerNote(layer, top) {
  if (layer === "mix") return "A weighted sum of all layers, as task models learn it. γ changes lengths, not cosines.";
  if (layer === 0)
    return "The spelling of the word alone: the same in every sentence, so all uses of a spelling are one point.";
  if (layer < top) return "The first LSTMs over the characters: more about the form of the sentence.";
  return "The top LSTMs: most about the sense of the word in its sentence. This is what elmo neighbors compares.";
}

/* Show, under each word, how surprised the forward and the backward language model are by it. */
function showSurprise(group, words, surprisal, note) {
  [...group.children].forEach((button, at) => {
    const found = surprisal[at];
    const strip = make("span", { className: found ? "surprise" : "surprise uncounted", ariaHidden: "true" });
    for (const side of ["forward", "backward"]) {
      const bar = make("span", { className: "bar" });
      if (found)
        bar.style.setProperty("--amount", `${Math.round((100 * Math.min(found[side], MOST_BITS)) / MOST_BITS)}%`);
      strip.append(bar);
    }
    const said = found
      ? `forward ${bits(found.forward)}, backward ${bits(found.backward)}`
      : "not among the words that are counted";
    button.append(strip, make("span", { className: "hidden" }, `: ${said}`));
    for (const name of ["pointerenter", "focus"])
      button.addEventListener(name, () => (note.textContent = `${words[at]}: ${said}`));
  });
}

/* Show the list of uses: their cosine, if there is one, their colour and their sentence. */
function showUses(list, uses, look, ask) {
  const focused = list.contains(document.activeElement) ? Number(document.activeElement.dataset.use) : null;
  list.replaceChildren(
    ...uses.map((use) => {
      const score = use.cosine === null ? [] : [make("span", { className: "cosine" }, use.cosine.toFixed(3))];
      const name = make("span", { className: "hidden" }, `${use.colourName}: `);
      const button = make("button", { type: "button", className: "use" }, ...score, swatch(use.colour), name);
      button.append(sentenceWith(use.words, use.position));
      button.dataset.use = String(use.number);
      button.addEventListener("click", () => ask(use.number));
      for (const name of ["pointerenter", "focus"]) button.addEventListener(name, () => look(use.number));
      for (const name of ["pointerleave", "blur"]) button.addEventListener(name, () => look(null));
      return make("li", {}, button);
    }),
  );
  if (focused !== null) (list.querySelector(`[data-use="${focused}"]`) ?? list.querySelector("button"))?.focus();
}

/* Show which colour and shape is which sense. */
function showLegend(list, names, uses) {
  list.replaceChildren(
    ...names.map((name, colour) => {
      const count = uses.filter((use) => use.colour === colour).length;
      return make("li", {}, swatch(colour), `${name} `, make("span", { className: "muted" }, thousands(count)));
    }),
  );
}

/* Show numbers from 0 to 1 as a list with bars. */
function showBars(list, entries) {
  const most = Math.max(...entries.map(({ value }) => value));
  list.replaceChildren(
    ...entries.map(({ name, value }) => {
      const bar = make("span", { className: "bar-line", ariaHidden: "true" });
      bar.style.setProperty("--amount", `${(100 * value) / most}%`);
      const share = `${(100 * value).toFixed(value < 0.1 ? 1 : 0)} %`;
      return make(
        "li",
        {},
        make("span", { className: "bar-name" }, name),
        bar,
        make("span", { className: "cosine" }, share),
      );
    }),
  );
}

/* Show the cosines of two words, layer by layer. */
function showCosines(body, rows) {
  body.replaceChildren(
    ...rows.map(({ name, value }) => {
      const bar = make("span", { className: "bar-line", ariaHidden: "true" });
      bar.style.setProperty("--amount", `${Math.max(100 * value, 0)}%`);
      const cells = [
        make("td", { className: "cosine" }, value.toFixed(3)),
        make("td", { className: "bar-cell" }, bar),
      ];
      return make("tr", {}, make("th", { scope: "row" }, name), ...cells);
    }),
  );
}

/* Show what the page holds, and what it does not. */
function showFacts(list, facts, runsInWorker) {
  const { model, corpus, softmax, config } = facts;
  const drawn = corpus.total - corpus.tooLong > corpus.sentences ? `, drawn from ${thousands(corpus.total)}` : "";
  const long = corpus.tooLong ? `; ${plural(corpus.tooLong, "sentence")} too long for a page left out` : "";
  const millions = (model.parameters / 1e6).toFixed(1);
  const numbers = 2 * config.projectionDim;
  const sizes = `${config.numHiddenLayers} LSTM layers in each direction, ${numbers} numbers per vector`;
  let counted = "not in this page, so it has no surprise and no substitutes.";
  if (softmax) {
    const some = `the ${thousands(softmax.words)} most frequent of ${thousands(softmax.total)} words`;
    const which = softmax.words < softmax.total ? some : `all ${thousands(softmax.total)} words`;
    counted = `counts ${which}, in 8 bits; probabilities are among these.`;
  }
  const entries = {
    Model: `${model.name}, an ELMo of ${millions} million parameters: ${sizes}. Weights in 16 bits.`,
    Corpus: `${corpus.name}: ${plural(corpus.sentences, "sentence")}${drawn}, ${plural(corpus.words, "word")}${long}.`,
    Vectors:
      "Those of the words with uses at hand are stored in 8 bits; the nearest uses, and all other words, are " +
      "computed here, exactly.",
    Softmax: `It ${counted}`,
    Privacy: "What you type stays here: the page makes no request of any kind.",
    Made: `by elmo page, modeling-elmo ${facts.version}${runsInWorker ? "" : "; computing without a worker"}.`,
  };
  for (const [name, text] of Object.entries(entries)) list.append(make("dt", {}, name), make("dd", {}, text));
}
