"use strict";
/* The biLM: words -> their characters -> two language models -> L + 1 layers.

The arithmetic is that of layers_elmo.py and recurrence_elmo.py, in plain loops over typed arrays.
Shapes: T words of a sentence with its two markers, C characters per word, F filters of all widths, P projection,
M memory cells, L LSTM layers. A layer is (T, 2P), row by row. Weights are (out, in), as in PyTorch. */

// The original adds 1 to the forget gate at run time; the stored bias lacks it.
const FORGET_BIAS = 1;
// Words whose context-free vectors are remembered.
const MOST_REMEMBERED = 5000;

function sigmoid(x) {
  return 1 / (1 + Math.exp(-x));
}

/* tanh by the logistic function, which takes half the time of Math.tanh. */
function tanh(x) {
  return 2 * sigmoid(2 * x) - 1;
}

/* Write matrix @ input to output, starting at `from` and `to`, four rows at a time, and add the bias if there is one.
   Every product of the page is made here. */
function multiply(matrix, bias, input, from, output, to, rows) {
  const columns = matrix.length / rows;
  let row = 0;
  for (; row + 3 < rows; row += 4) {
    let sum0 = 0;
    let sum1 = 0;
    let sum2 = 0;
    let sum3 = 0;
    const row0 = row * columns;
    const row1 = row0 + columns;
    const row2 = row1 + columns;
    const row3 = row2 + columns;
    for (let column = 0; column < columns; column++) {
      const value = input[from + column];
      sum0 += matrix[row0 + column] * value;
      sum1 += matrix[row1 + column] * value;
      sum2 += matrix[row2 + column] * value;
      sum3 += matrix[row3 + column] * value;
    }
    output[to + row] = sum0;
    output[to + row + 1] = sum1;
    output[to + row + 2] = sum2;
    output[to + row + 3] = sum3;
  }
  for (; row < rows; row++) {
    let sum = 0;
    for (let column = 0; column < columns; column++) sum += matrix[row * columns + column] * input[from + column];
    output[to + row] = sum;
  }
  if (bias) for (row = 0; row < rows; row++) output[to + row] += bias[row];
}

/* Context-free vectors: a word's characters through convolutions, highway layers and a projection. */
class CharacterEncoder {
  constructor(config, weight) {
    this.config = config;
    this.embedding = weight("char_encoder.char_embedding.weight");
    this.features = config.charFilters.reduce((sum, [, count]) => sum + count, 0);
    this.filters = config.charFilters.map(([width, count], number) => {
      const name = `char_encoder.convolutions.${number}`;
      return { width, count, table: this.fold(weight(`${name}.weight`), width, count), bias: weight(`${name}.bias`) };
    });
    this.highways = [];
    for (let number = 0; number < config.numHighwayLayers; number++) {
      const parts = ["transform.weight", "transform.bias", "carry.weight", "carry.bias"];
      this.highways.push(parts.map((part) => weight(`char_encoder.highways.${number}.${part}`)));
    }
    this.projection = null;
    if (config.hasProjection) {
      this.projection = ["weight", "bias"].map((part) => weight(`char_encoder.projection.${part}`));
    }
  }

  /* Return what each character adds to each filter at each of its places: (characters, width, count). A convolution is
     then a sum of rows of this table, without any product. */
  fold(weight, width, count) {
    const size = this.config.charEmbeddingDim;
    const characters = this.embedding.length / size;
    const table = new Float32Array(characters * width * count);
    for (let character = 0; character < characters; character++) {
      for (let place = 0; place < width; place++) {
        for (let filter = 0; filter < count; filter++) {
          let sum = 0;
          for (let at = 0; at < size; at++) {
            sum += this.embedding[character * size + at] * weight[(filter * size + at) * width + place];
          }
          table[(character * width + place) * count + filter] = sum;
        }
      }
    }
    return table;
  }

  /* Return the vector (P) of a word that is spelled by a row of characters. */
  encode({ row, length }) {
    let features = new Float64Array(this.features);
    let start = 0;
    for (const filter of this.filters) {
      this.convolve(filter, row, length, features, start);
      start += filter.count;
    }
    for (const [transform, transformBias, carry, carryBias] of this.highways) {
      const next = new Float64Array(this.features);
      const gate = new Float64Array(this.features);
      multiply(transform, transformBias, features, 0, next, 0, this.features);
      multiply(carry, carryBias, features, 0, gate, 0, this.features);
      for (let at = 0; at < next.length; at++) {
        next[at] = features[at] + sigmoid(gate[at]) * (Math.max(next[at], 0) - features[at]);
      }
      features = next;
    }
    if (!this.projection) return Float32Array.from(features);
    const vector = new Float32Array(this.config.projectionDim);
    multiply(...this.projection, features, 0, vector, 0, vector.length);
    return vector;
  }

  /* Write the maximum of each filter of one width over the places of a word, after the activation. Windows inside the
     padding are all the same, so one of them is enough. */
  convolve({ width, count, table, bias }, row, length, features, start) {
    const sums = new Float64Array(count);
    const last = Math.min(length, row.length - width);
    for (let at = 0; at <= last; at++) {
      sums.fill(0);
      for (let place = 0; place < width; place++) {
        const from = (row[at + place] * width + place) * count;
        for (let filter = 0; filter < count; filter++) sums[filter] += table[from + filter];
      }
      for (let filter = 0; filter < count; filter++) {
        if (at === 0 || sums[filter] > features[start + filter]) features[start + filter] = sums[filter];
      }
    }
    const isRelu = this.config.charActivation === "relu";
    for (let filter = 0; filter < count; filter++) {
      const value = features[start + filter] + bias[filter];
      features[start + filter] = isRelu ? Math.max(value, 0) : tanh(value);
    }
  }
}

/* One LSTM layer of one direction, with projection and clips. Gates are in the order i, j, f, o. */
class LstmLayer {
  constructor(config, weight, name) {
    this.size = config.projectionDim;
    this.cells = config.cellDim;
    this.cellClip = config.cellClip ?? Infinity;
    this.projectionClip = config.projectionClip ?? Infinity;
    this.input = weight(`${name}.input_gates.weight`);
    this.bias = Float32Array.from(weight(`${name}.input_gates.bias`), (value, at) =>
      at >= 2 * this.cells && at < 3 * this.cells ? value + FORGET_BIAS : value,
    );
    this.recurrent = weight(`${name}.recurrent_gates.weight`);
    this.projection = weight(`${name}.projection.weight`);
  }

  /* Return the outputs (T, P) for inputs (T, P), in the order in which they are read. */
  read(inputs) {
    const { size, cells } = this;
    const outputs = new Float32Array(inputs.length);
    const gates = new Float32Array(4 * cells);
    const recurrent = new Float32Array(4 * cells);
    const cell = new Float32Array(cells);
    const squashed = new Float32Array(cells);
    for (let from = 0; from < inputs.length; from += size) {
      multiply(this.input, this.bias, inputs, from, gates, 0, 4 * cells);
      if (from > 0) multiply(this.recurrent, null, outputs, from - size, recurrent, 0, 4 * cells);
      for (let at = 0; at < cells; at++) {
        const i = sigmoid(gates[at] + recurrent[at]);
        const j = tanh(gates[cells + at] + recurrent[cells + at]);
        const f = sigmoid(gates[2 * cells + at] + recurrent[2 * cells + at]);
        const o = sigmoid(gates[3 * cells + at] + recurrent[3 * cells + at]);
        const memory = Math.min(Math.max(f * cell[at] + i * j, -this.cellClip), this.cellClip);
        cell[at] = memory;
        squashed[at] = o * tanh(memory);
      }
      multiply(this.projection, null, squashed, 0, outputs, from, size);
      for (let at = from; at < from + size; at++) {
        outputs[at] = Math.min(Math.max(outputs[at], -this.projectionClip), this.projectionClip);
      }
    }
    return outputs;
  }
}

/* Return rows (T, P) from the last to the first. */
function reversed(rows, size) {
  const result = new Float32Array(rows.length);
  for (let from = 0; from < rows.length; from += size) {
    result.set(rows.subarray(from, from + size), rows.length - from - size);
  }
  return result;
}

class Bilm {
  /* `weight(name)` returns a weight by its name in PyTorch. */
  constructor(config, tokenizer, weight) {
    this.config = config;
    this.tokenizer = tokenizer;
    this.encoder = new CharacterEncoder(config, weight);
    this.directions = ["forward_lm", "backward_lm"].map((direction) => {
      const layers = [];
      for (let number = 0; number < config.numHiddenLayers; number++) {
        layers.push(new LstmLayer(config, weight, `${direction}.layers.${number}`));
      }
      return layers;
    });
    this.remembered = new Map();
  }

  /* Return the context-free vector (P) of a word. */
  wordVector(word) {
    let vector = this.remembered.get(word);
    if (!vector) {
      vector = this.encoder.encode(this.tokenizer.spell(word));
      if (this.remembered.size >= MOST_REMEMBERED) this.remembered.clear();
      this.remembered.set(word, vector);
    }
    return vector;
  }

  /* Return layer 0 of a word (2P): its vector, twice. */
  layerZero(word) {
    const vector = this.wordVector(word);
    const twice = new Float32Array(2 * vector.length);
    twice.set(vector);
    twice.set(vector, vector.length);
    return twice;
  }

  /* Return the L + 1 layers of a sentence, each (T, 2P), its markers included: word k is in row k + 1. */
  embed(words) {
    const size = this.config.projectionDim;
    const row = [this.tokenizer.begin, ...words, this.tokenizer.end];
    const inputs = new Float32Array(row.length * size);
    row.forEach((word, at) => inputs.set(this.wordVector(word), at * size));
    const left = this.readDirection(this.directions[0], inputs);
    const right = this.readDirection(this.directions[1], reversed(inputs, size));
    return [inputs, ...left].map((forward, number) => {
      const backward = number === 0 ? inputs : reversed(right[number - 1], size);
      const layer = new Float32Array(2 * forward.length);
      for (let at = 0; at < row.length; at++) {
        layer.set(forward.subarray(at * size, (at + 1) * size), 2 * at * size);
        layer.set(backward.subarray(at * size, (at + 1) * size), (2 * at + 1) * size);
      }
      return layer;
    });
  }

  /* Return the L outputs (T, P) of one language model. */
  readDirection(layers, inputs) {
    const outputs = [];
    layers.forEach((layer, number) => {
      const output = layer.read(inputs);
      if (this.config.useSkipConnections && number > 0)
        output.forEach((value, at) => (output[at] = value + inputs[at]));
      outputs.push(output);
      inputs = output;
    });
    return outputs;
  }
}
