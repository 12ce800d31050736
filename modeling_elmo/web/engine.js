"use strict";
/* The engine: everything that the page computes, by requests and answers.

`engine.answer(request)` takes { kind, ... } and returns a promise. In a worker, requests come as messages; where there
can be no worker, the page calls the engine itself. A text is a string, or the words of a sentence of
the corpus. */

// Texts whose layers are kept.
const MOST_TEXTS = 24;
// By how much 8 bits change a cosine: of elmo-mini's vectors by 0.003 at most.
const LARGEST_ROUNDING = 0.006;
const STOPPED = "another word was asked for";

class Engine {
  constructor() {
    this.texts = new Map();
    this.latestExplored = null; // an older request for the uses of a word stops
  }

  /* Answer one request. `report(done, of)` tells of work that takes long. */
  async answer(request, report = () => {}) {
    return this[`answer_${request.kind}`](request, report);
  }

  /* Unpack the page's blocks: what the page holds, as Python wrote it. */
  async answer_open({ facts, blocks }) {
    this.facts = facts;
    const { sizes } = facts;
    const numbers = readFloat16(await readBlock(blocks.weights, sizes.weights));
    const weights = new Map();
    let start = 0;
    for (const [name, length] of facts.tensors) {
      weights.set(name, numbers.subarray(start, start + length));
      start += length;
    }
    this.bilm = new Bilm(facts.config, new Tokenizer(facts.tokenizer), (name) => weights.get(name));
    const corpus = await readJsonBlock(blocks.corpus, sizes.corpus);
    const codes = new Int8Array((await readBlock(blocks.vectors, sizes.vectors)).buffer);
    const scales = new Float32Array((await readBlock(blocks.scales, sizes.scales)).buffer);
    this.senses = new Map();
    for (const [sentence, position, sense] of corpus.senses) this.senses.set(placeKey(sentence, position), sense);
    this.uses = new Uses(corpus.sentences, corpus.uses, codes, scales, this.bilm);
    this.softmax = null;
    if (facts.softmax) {
      const words = await readJsonBlock(blocks.vocabulary, sizes.vocabulary);
      const rows = readFloat8(await readBlock(blocks.softmax, sizes.softmax));
      const bias = readFloat16(await readBlock(blocks.bias, sizes.bias));
      this.softmax = new WordSoftmax(rows, bias, words, facts.softmax.special, facts.softmax.total);
    }
    return {};
  }

  /* Return the words of a text and how often each occurs in the corpus; its layers are kept. */
  async answer_read({ text }) {
    const started = performance.now();
    const { words } = this.read(text);
    return { words, counts: words.map((word) => this.uses.count(word)), milliseconds: performance.now() - started };
  }

  /* Return the words of a text and its layers, each (T, 2P), without markers. */
  async answer_layers({ text }) {
    const { size } = this.uses;
    const { words, layers } = this.read(text);
    return { words, layers: layers.map((layer) => layer.slice(size, layer.length - size)) };
  }

  async answer_surprisal({ text }) {
    const { words, layers } = this.read(text);
    return this.softmax.surprisal(words, layers.at(-1));
  }

  async answer_substitutes({ text, position, count }) {
    return this.softmax.substitutes(this.read(text).layers.at(-1), position, count);
  }

  /* Return the words nearest to a word by one vector for all its uses. */
  async answer_static({ word, count }) {
    return this.softmax.neighbors(word, count);
  }

  /* Return the cosine of two words of two texts in every layer, and in the mix. */
  async answer_compare({ texts, positions, weights }) {
    const [left, right] = texts.map((text, side) => this.wordLayers(text, positions[side]));
    return {
      layers: left.map((vector, layer) => cosine(vector, right[layer])),
      mix: cosine(mixLayers(left, weights), mixLayers(right, weights)),
    };
  }

  /* Return the uses of a word: their sentences, where they are on the map, their group, and their cosine with the use
     that is asked about, { text, position }, if there is one; then where that is on the map is `own`. Of the nearest
     ones as many as `exact` are computed from their sentences, not from 8 bits. */
  async answer_explore({ word, weights, query, groupCount, exact }, report) {
    const ticket = {};
    this.latestExplored = ticket;
    const progress = async (done, of) => {
      report(done, of);
      await new Promise((resolve) => setTimeout(resolve, 0)); // lets newer requests in
      if (this.latestExplored !== ticket) throw new Error(STOPPED);
    };
    const found = await this.uses.find(word, progress);
    const { size, sentences } = this.uses;
    const asked = query ? mixLayers(this.wordLayers(query.text, query.position), weights) : null;
    let vectors = mixLayers(found.layers, weights);
    if (asked && exact) {
      let nearest = this.nearest(found, vectors, asked, exact);
      while (nearest.some((use) => !found.isExact[use])) {
        await this.uses.refine(found, nearest, progress);
        vectors = mixLayers(found.layers, weights);
        nearest = this.nearest(found, vectors, asked, exact);
      }
    }
    const plane = principalPlane(vectors, size);
    const groups = groupsOf(plane.products, groupCount);
    const uses = found.places.map(([sentence, position], use) => {
      const vector = vectors.subarray(use * size, (use + 1) * size);
      return {
        sentence,
        position,
        words: sentences[sentence],
        sense: this.senses.get(placeKey(sentence, position)) ?? null,
        point: plane.points[use],
        group: groups[use],
        cosine: asked ? cosine(asked, vector) : null,
      };
    });
    return {
      uses,
      total: found.total,
      isExact: found.isExact.every((flag) => flag === 1),
      share: plane.share,
      own: asked ? plane.project(asked) : null,
    };
  }

  /* Return the nearest uses, and those that could be but for the 8 bits. */
  nearest(found, vectors, asked, count) {
    const { size } = this.uses;
    const cosines = found.places.map((_, use) => cosine(asked, vectors.subarray(use * size, (use + 1) * size)));
    const order = highest(cosines, cosines.length);
    const last = cosines[order[Math.min(count, order.length) - 1]];
    return order.filter((use) => cosines[use] >= last - LARGEST_ROUNDING);
  }

  /* Return the vector of a word of a text in every layer. */
  wordLayers(text, position) {
    return this.read(text).layers.map((layer) => wordRow(layer, position, this.uses.size));
  }

  /* Return the words of a text, or of a list of words, and its layers, its markers included. */
  read(text) {
    const key = JSON.stringify(text);
    let read = this.texts.get(key);
    if (!read) {
      const words = Array.isArray(text) ? text : this.bilm.tokenizer.split(text);
      read = { words, layers: this.bilm.embed(words) };
      if (this.texts.size >= MOST_TEXTS) this.texts.delete(this.texts.keys().next().value);
      this.texts.set(key, read);
    }
    return read;
  }
}

function placeKey(sentence, position) {
  return `${sentence} ${position}`;
}

/* In a worker: answer messages { id, request } by { id, answer }, { id, error } or, meanwhile, { id, progress }. */
function serve() {
  const engine = new Engine();
  self.onmessage = async ({ data: { id, request } }) => {
    try {
      const answer = await engine.answer(request, (done, of) => self.postMessage({ id, progress: [done, of] }));
      self.postMessage({ id, answer });
    } catch (error) {
      self.postMessage({ id, error: error.message });
    }
  };
}
