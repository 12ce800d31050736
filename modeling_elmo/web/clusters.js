"use strict";
/* A picture of n vectors: the plane of their two principal components, and groups of them by k-means.

Both need only the products of the centred vectors with each other, G (n, n), row by row. */

const MOST_GROUPS = 5;
const POWER_STEPS = 200;
const RESTARTS = 8;
const KMEANS_STEPS = 30;
// Smaller lengths are rounding: such vectors are all one.
const SMALLEST_SPREAD = 1e-9;

/* Return the rows (n, D) at unit length. */
function unitRows(vectors, size) {
  const result = Float64Array.from(vectors);
  for (let from = 0; from < result.length; from += size) {
    let sum = 0;
    for (let at = from; at < from + size; at++) sum += result[at] ** 2;
    const length = Math.max(Math.sqrt(sum), 1e-12);
    for (let at = from; at < from + size; at++) result[at] /= length;
  }
  return result;
}

/* Return the mean (D) of rows (n, D), and subtract it from them. */
function centre(rows, size) {
  const mean = new Float64Array(size);
  const count = rows.length / size;
  rows.forEach((value, at) => (mean[at % size] += value / count));
  rows.forEach((_, at) => (rows[at] -= mean[at % size]));
  return mean;
}

/* Return the products of rows with each other. */
function productsOf(rows, size) {
  const count = rows.length / size;
  const products = new Float64Array(count * count);
  for (let i = 0; i < count; i++) multiply(rows, null, rows, i * size, products, i * count, count);
  return products;
}

/* Return the eigenvector of the largest eigenvalue of G, and that, by repeated multiplication. */
function principal(products, count) {
  let vector = Float64Array.from({ length: count }, (_, at) => Math.sin(at + 1));
  let value = 0;
  for (let step = 0; step < POWER_STEPS; step++) {
    const next = new Float64Array(count);
    multiply(products, null, vector, 0, next, 0, count);
    value = Math.sqrt(next.reduce((sum, entry) => sum + entry * entry, 0));
    if (value < SMALLEST_SPREAD) return { vector: new Float64Array(count), value: 0 };
    vector = next.map((entry) => entry / value);
  }
  // Of a vector and its opposite always the same one, so that the picture of a word is always the same.
  const sign =
    vector.reduce((most, entry) => (Math.abs(entry) > Math.abs(most) + 1e-6 ? entry : most), 0) < 0 ? -1 : 1;
  return { vector: vector.map((entry) => sign * entry), value };
}

/* Return the plane of unit rows (n, D): their points, what share of their variance it shows, how another vector is
   projected on it, and the products for `groupsOf`. */
function principalPlane(vectors, size) {
  const rows = unitRows(vectors, size);
  const mean = centre(rows, size);
  const count = rows.length / size;
  const products = productsOf(rows, size);
  const rest = Float64Array.from(products);
  const axes = [0, 1].map(() => {
    const { vector, value } = principal(rest, count);
    for (let i = 0; i < count; i++) {
      for (let j = 0; j < count; j++) rest[i * count + j] -= value * vector[i] * vector[j];
    }
    const scale = Math.sqrt(value);
    const direction = new Float64Array(size);
    rows.forEach((entry, at) => (direction[at % size] += value ? (entry * vector[Math.floor(at / size)]) / scale : 0));
    return { direction, values: vector.map((entry) => entry * scale), value };
  });
  let total = 0;
  for (let i = 0; i < count; i++) total += products[i * count + i];
  const project = (vector) => {
    const unit = unitRows(vector, size);
    return axes.map(({ direction }) => direction.reduce((sum, entry, at) => sum + entry * (unit[at] - mean[at]), 0));
  };
  return {
    points: Array.from({ length: count }, (_, at) => axes.map(({ values }) => values[at])),
    share: total > SMALLEST_SPREAD ? (axes[0].value + axes[1].value) / total : 0,
    project,
    products,
  };
}

/* Return numbers from 0 to 1 that are the same in every run. */
function makeRandom() {
  let state = 1;
  return () => {
    state = (state * 48271) % 2147483647;
    return state / 2147483647;
  };
}

/* Return the squared distances (n, k) of points to the means of groups. A mean is known by its products alone. */
function distancesToMeans(products, count, groups, k) {
  const sizes = new Float64Array(k);
  groups.forEach((group) => (sizes[group] += 1));
  const toMean = new Float64Array(count * k);
  for (let i = 0; i < count; i++) {
    for (let j = 0; j < count; j++) toMean[i * k + groups[j]] += products[i * count + j] / sizes[groups[j]];
  }
  const lengths = new Float64Array(k);
  for (let i = 0; i < count; i++) lengths[groups[i]] += toMean[i * k + groups[i]] / sizes[groups[i]];
  return toMean.map((product, at) => products[Math.floor(at / k) * (count + 1)] - 2 * product + lengths[at % k]);
}

/* Return the group of each point by k-means, from points drawn far from each other, the best of several runs. */
function kMeans(products, count, k) {
  const random = makeRandom();
  const distance = (i, j) => products[i * count + i] - 2 * products[i * count + j] + products[j * count + j];
  let best = { inertia: Infinity, groups: new Array(count).fill(0) };
  for (let run = 0; run < RESTARTS; run++) {
    const seeds = [Math.floor(random() * count)];
    while (seeds.length < k) {
      const gaps = Array.from({ length: count }, (_, i) =>
        Math.max(Math.min(...seeds.map((seed) => distance(i, seed))), 0),
      );
      let left = random() * gaps.reduce((sum, gap) => sum + gap, 0);
      const drawn = gaps.findIndex((gap) => (left -= gap) < 0);
      seeds.push(drawn < 0 ? count - 1 : drawn);
    }
    let groups = Array.from({ length: count }, (_, i) => {
      const gaps = seeds.map((seed) => distance(i, seed));
      return gaps.indexOf(Math.min(...gaps));
    });
    let inertia = Infinity;
    for (let step = 0; step < KMEANS_STEPS; step++) {
      const gaps = distancesToMeans(products, count, groups, k);
      const nearest = groups.map((_, i) => {
        const own = Array.from(gaps.subarray(i * k, (i + 1) * k), (gap) => (Number.isNaN(gap) ? Infinity : gap));
        return own.indexOf(Math.min(...own));
      });
      inertia = groups.reduce((sum, group, i) => sum + gaps[i * k + group], 0);
      if (nearest.every((group, i) => group === groups[i])) break;
      groups = nearest;
    }
    if (inertia < best.inertia) best = { inertia, groups };
  }
  return best.groups;
}

/* Return the mean silhouette: how much nearer points are to their own group than to the next one, from -1 to 1. */
function silhouette(products, count, groups, k) {
  let sum = 0;
  for (let i = 0; i < count; i++) {
    const totals = new Float64Array(k);
    const sizes = new Float64Array(k);
    for (let j = 0; j < count; j++) {
      if (i === j) continue;
      const squared = products[i * count + i] - 2 * products[i * count + j] + products[j * count + j];
      totals[groups[j]] += Math.sqrt(Math.max(squared, 0));
      sizes[groups[j]] += 1;
    }
    if (sizes[groups[i]] === 0) continue; // alone in its group: 0
    const own = totals[groups[i]] / sizes[groups[i]];
    let other = Infinity;
    for (let group = 0; group < k; group++) {
      if (group !== groups[i] && sizes[group]) other = Math.min(other, totals[group] / sizes[group]);
    }
    if (other < Infinity) sum += (other - own) / Math.max(own, other, SMALLEST_SPREAD);
  }
  return sum / count;
}

/* Return the group of each point, the largest group first; `wanted` groups, or as many as the silhouette prefers. */
function groupsOf(products, wanted) {
  const count = Math.sqrt(products.length);
  let spread = 0;
  for (let i = 0; i < count; i++) spread += products[i * count + i];
  if (count < 4 || spread < SMALLEST_SPREAD) return new Array(count).fill(0);
  let best = { score: -Infinity, groups: [] };
  const tried = wanted ? [wanted] : Array.from({ length: MOST_GROUPS - 1 }, (_, at) => at + 2);
  for (const k of tried.filter((k) => k < count)) {
    const groups = kMeans(products, count, k);
    const score = silhouette(products, count, groups, k);
    if (score > best.score) best = { score, groups };
  }
  const sizes = new Map();
  for (const group of best.groups) sizes.set(group, (sizes.get(group) ?? 0) + 1);
  const order = [...sizes.keys()].sort((a, b) => sizes.get(b) - sizes.get(a));
  return best.groups.map((group) => order.indexOf(group));
}
