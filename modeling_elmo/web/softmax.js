"use strict";
/* The softmax over the page's words: surprisal, substitutes, and the one vector that a word has in it.

The page may hold fewer words than the model, the most frequent ones; probabilities are then among these.
Shapes: V words of the page, P projection. Word 0 is padding, which is never predicted. */

const LN2 = Math.log(2);
// Frequent words among which the neighbours of a static vector are looked for.
const MOST_FREQUENT = 10000;

class WordSoftmax {
  /* `rows` (V * P), `bias` (V), the words by id, the special ones first, and how many words the model has. */
  constructor(rows, bias, words, specialCount, total) {
    this.rows = rows;
    this.bias = bias;
    this.words = words;
    this.size = rows.length / words.length;
    this.specialCount = specialCount;
    this.total = total;
    this.ids = new Map(words.map((word, id) => [word, id]));
  }

  /* Return the logits (V) of a language model's output, which starts at `from`; padding has none. */
  logits(hidden, from) {
    const logits = new Float64Array(this.words.length);
    multiply(this.rows, this.bias, hidden, from, logits, 0, logits.length);
    logits[0] = -Infinity;
    return logits;
  }

  /* Return, for each word, how many bits each language model is surprised by it; null for a word that is not counted.
     The forward model predicts a word from the row before it, the backward one from the row after it. */
  surprisal(words, top) {
    return words.map((word, at) => {
      const id = this.ids.get(word);
      if (id === undefined || id < this.specialCount) return null;
      const [forward, backward] = this.contexts(top, at).map((from) => {
        const logits = this.logits(top, from);
        return (logSumExp(logits) - logits[id]) / LN2;
      });
      return { forward, backward };
    });
  }

  /* Return where the outputs start that predict a word: forward in the row before it, backward in the one after. */
  contexts(top, at) {
    return [2 * at * this.size, (2 * (at + 2) + 1) * this.size];
  }

  /* Return the words that both language models find most probable in a place: p_forward * p_backward / p(word).
     The latter is known by the word's rank alone: log(1 + 1 / rank), up to a factor. */
  substitutes(top, at, count) {
    const [forward, backward] = this.contexts(top, at).map((from) => this.logits(top, from));
    const logits = forward.map((value, id) => value + backward[id] - Math.log(Math.log1p(1 / id)));
    logits.fill(-Infinity, 0, this.specialCount);
    const total = logSumExp(logits);
    return highest(logits, count).map((id) => ({ word: this.words[id], probability: Math.exp(logits[id] - total) }));
  }

  /* Return the frequent words whose rows are nearest to that of a word, or null where it has none. */
  neighbors(word, count) {
    const id = this.ids.get(word) ?? this.ids.get(word.toLowerCase());
    if (id === undefined || id < this.specialCount) return null;
    const own = this.rows.subarray(id * this.size, (id + 1) * this.size);
    const cosines = new Float64Array(Math.min(this.words.length, MOST_FREQUENT)).fill(-Infinity);
    for (let other = this.specialCount; other < cosines.length; other++) {
      if (other !== id) cosines[other] = cosine(own, this.rows.subarray(other * this.size, (other + 1) * this.size));
    }
    return highest(cosines, count).map((other) => ({ word: this.words[other], cosine: cosines[other] }));
  }
}

function logSumExp(values) {
  let largest = -Infinity;
  for (const value of values) if (value > largest) largest = value;
  let sum = 0;
  for (const value of values) sum += Math.exp(value - largest);
  return largest + Math.log(sum);
}

/* Return the indices of the highest values, the highest first. */
function highest(values, count) {
  return Array.from(values.keys())
    .sort((a, b) => values[b] - values[a])
    .slice(0, count);
}

/* Return the cosine of two vectors; with a vector of zeros it is 0. */
function cosine(a, b) {
  let product = 0;
  let lengthA = 0;
  let lengthB = 0;
  for (let at = 0; at < a.length; at++) {
    product += a[at] * b[at];
    lengthA += a[at] * a[at];
    lengthB += b[at] * b[at];
  }
  return product / Math.max(Math.sqrt(lengthA * lengthB), 1e-12);
}
