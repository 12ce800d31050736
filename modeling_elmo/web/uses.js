"use strict";
/* The uses of words in the corpus, and their vectors.

Those of the page's own words are stored, 8 bits a number with one scale per vector, for layers 1 to L; layer 0 depends
on the spelling alone and is computed. The uses of any other word are computed when they are asked for, and so are the
nearest ones of a search: what the page lists first is exact.
Shapes: n uses of a word, D = 2P numbers per vector. A layer is (n, D), row by row. */

// Uses of a word whose sentences are read here, evenly spaced ones of more.
const MOST_COMPUTED = 100;
// Words whose computed vectors are kept.
const MOST_KEPT = 12;

class Uses {
  /* `sentences`: lists of words. `stored`: for each word of the page its places and how many there are in all.
     `codes`, `scales`: the stored vectors, word by word, layer by layer. */
  constructor(sentences, stored, codes, scales, bilm) {
    this.sentences = sentences;
    this.bilm = bilm;
    this.size = 2 * bilm.config.projectionDim;
    this.layerCount = bilm.config.numHiddenLayers;
    this.codes = codes;
    this.scales = scales;
    this.stored = new Map();
    let row = 0;
    for (const { word, places, total } of stored) {
      this.stored.set(word, { places, total, row });
      row += places.length * this.layerCount;
    }
    this.index = new Map(); // every word in lower case: its places
    sentences.forEach((words, sentence) => {
      words.forEach((word, position) => {
        const places = this.index.get(word.toLowerCase());
        if (places) places.push([sentence, position]);
        else this.index.set(word.toLowerCase(), [[sentence, position]]);
      });
    });
    this.kept = new Map();
  }

  /* Return how many uses a word has, in upper or lower case. */
  count(word) {
    return this.index.get(word.toLowerCase())?.length ?? 0;
  }

  /* Return the places of a word's uses and their layers. `progress(done, of)` is awaited before each sentence that has
     to be read; what it throws ends the work. */
  async find(word, progress) {
    const key = word.toLowerCase();
    let found = this.kept.get(key);
    if (!found) {
      found = this.stored.has(key) ? this.unpack(this.stored.get(key)) : await this.compute(key, progress);
      if (this.kept.size >= MOST_KEPT) this.kept.delete(this.kept.keys().next().value);
      this.kept.set(key, found);
    }
    return found;
  }

  unpack({ places, total, row }) {
    const length = places.length * this.size;
    const layers = [this.layerZero(places)];
    for (let layer = 0; layer < this.layerCount; layer++) {
      const vectors = new Float32Array(length);
      const first = row + layer * places.length;
      for (let at = 0; at < length; at++) {
        vectors[at] = this.codes[first * this.size + at] * this.scales[first + Math.floor(at / this.size)];
      }
      layers.push(vectors);
    }
    return { places, total, layers, isExact: new Uint8Array(places.length) };
  }

  async compute(key, progress) {
    const all = this.index.get(key) ?? [];
    const step = Math.max(all.length / MOST_COMPUTED, 1);
    const places = [];
    for (let at = 0; Math.floor(at) < all.length; at += step) places.push(all[Math.floor(at)]);
    const layers = [this.layerZero(places)];
    for (let layer = 0; layer < this.layerCount; layer++) layers.push(new Float32Array(places.length * this.size));
    const found = { places, total: all.length, layers, isExact: new Uint8Array(places.length) };
    await this.refine(found, [...places.keys()], progress);
    return found;
  }

  /* Read the sentences of some uses, where their vectors are not exact yet. */
  async refine(found, uses, progress) {
    let embedded = { sentence: -1, layers: [] };
    const rounded = uses.filter((use) => !found.isExact[use]);
    for (const [done, use] of rounded.entries()) {
      const [sentence, position] = found.places[use];
      if (sentence !== embedded.sentence) {
        await progress(done, rounded.length);
        embedded = { sentence, layers: this.bilm.embed(this.sentences[sentence]) };
      }
      for (let layer = 1; layer <= this.layerCount; layer++) {
        found.layers[layer].set(wordRow(embedded.layers[layer], position, this.size), use * this.size);
      }
      found.isExact[use] = 1;
    }
  }

  layerZero(places) {
    const vectors = new Float32Array(places.length * this.size);
    places.forEach(([sentence, position], use) => {
      vectors.set(this.bilm.layerZero(this.sentences[sentence][position]), use * this.size);
    });
    return vectors;
  }
}

/* Return the row of word k in a layer of a sentence, which begins with a marker. */
function wordRow(layer, position, size) {
  return layer.subarray((position + 1) * size, (position + 2) * size);
}

/* Return the weighted sum of layers. */
function mixLayers(layers, weights) {
  const sum = new Float32Array(layers[0].length);
  layers.forEach((layer, number) => {
    if (weights[number] !== 0) layer.forEach((value, at) => (sum[at] += weights[number] * value));
  });
  return sum;
}
