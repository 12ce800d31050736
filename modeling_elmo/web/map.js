"use strict";
/* The map of a word's uses: points with the colour and the shape of their sense, for pointer and keyboard.

Arrow keys move to the nearest point in their direction, Enter asks about the use. */

const SVG = "http://www.w3.org/2000/svg";
const MAP_MARGIN = 28;
const POINT_SIZE = 6;
const TOUCH_SIZE = 13;
// Outlines around the origin, of about the same area. Beside colours, so that no one has to tell these apart.
const SHAPES = [
  "M-6,0 a6,6 0 1,0 12,0 a6,6 0 1,0 -12,0 Z",
  "M-5.4,-5.4 H5.4 V5.4 H-5.4 Z",
  "M0,-7 L6.8,5 H-6.8 Z",
  "M0,-7.4 L7.4,0 L0,7.4 L-7.4,0 Z",
  "M-2.4,-7 H2.4 V-2.4 H7 V2.4 H2.4 V7 H-2.4 V2.4 H-7 V-2.4 H-2.4 Z",
  "M0,7 L6.8,-5 H-6.8 Z",
];

function svg(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/* Return the symbol of a sense, for the map and for lists. */
function shapeOf(number) {
  return svg("path", { d: SHAPES[number % SHAPES.length], class: `sense-${number % SENSE_COLOURS}` });
}

function swatch(number) {
  return svg("svg", { class: "swatch", viewBox: "-8 -8 16 16", "aria-hidden": "true" }, shapeOf(number));
}

class SenseMap {
  /* `look(use)` is called for the point under the pointer or the focus, or null; `ask(use)` for one that is chosen. */
  constructor(place, look, ask) {
    this.place = place;
    this.look = look;
    this.ask = ask;
    this.points = [];
    this.drawn = null;
    new ResizeObserver(() => this.drawn && this.width !== place.clientWidth && this.draw(this.drawn)).observe(place);
    place.addEventListener("keydown", (event) => this.move(event));
  }

  /* Draw { uses, own, ownUse }: uses with `point`, `label` and `colour`, and where the one asked about is; it may
     be one of them, `ownUse`, or -1. */
  draw(drawn) {
    this.drawn = drawn;
    const { uses, own, ownUse } = drawn;
    const focused = this.points.findIndex(({ element }) => element === document.activeElement);
    this.width = this.place.clientWidth;
    const zoom = parseFloat(getComputedStyle(document.documentElement).fontSize) / 16; // larger on a projector
    const width = Math.max(this.width, 200);
    const height = Math.round(Math.min(Math.max(width * 0.72, 260), 460 * zoom));
    const toScreen = this.scale([...uses.map((use) => use.point), ...(own ? [own] : [])], width, height);
    const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "group" });
    picture.setAttribute("aria-label", `Map of ${plural(uses.length, "use")}; arrow keys move between them`);
    this.points = uses.map((use, number) => {
      const [x, y] = toScreen(use.point);
      const point = svg("g", { class: "point", transform: `translate(${x} ${y}) scale(${zoom})`, role: "button" });
      point.setAttribute("tabindex", number === Math.max(ownUse, 0) ? "0" : "-1");
      point.setAttribute("aria-label", use.label);
      point.append(svg("circle", { r: TOUCH_SIZE, class: "touch" }), shapeOf(use.colour));
      point.addEventListener("pointerenter", () => this.look(number));
      point.addEventListener("pointerleave", () => this.look(null));
      point.addEventListener("focus", () => this.look(number));
      point.addEventListener("blur", () => this.look(null));
      point.addEventListener("click", () => this.ask(number));
      return { element: point, x, y };
    });
    picture.append(...this.points.map((point) => point.element));
    if (own) picture.append(this.ownMark(...toScreen(own), zoom, ownUse >= 0));
    this.place.replaceChildren(picture);
    this.points[focused]?.element.focus();
  }

  /* Return a function from the plane to the picture, the same scale for both axes. */
  scale(points, width, height) {
    const sides = [0, 1].map((axis) => {
      const values = points.map((point) => point[axis]);
      return { low: Math.min(...values), high: Math.max(...values) };
    });
    const room = [width - 2 * MAP_MARGIN, height - 2 * MAP_MARGIN];
    const factor = Math.min(...sides.map(({ low, high }, axis) => room[axis] / Math.max(high - low, 1e-6)));
    return (point) =>
      [width, height].map((size, axis) => {
        const { low, high } = sides[axis];
        const offset = (point[axis] - (low + high) / 2) * factor;
        return Math.round((size / 2 + (axis ? -offset : offset)) * 10) / 10;
      });
  }

  /* Return the mark of the use that is asked about: a ring, and a dot inside where it is not one of the points. */
  ownMark(x, y, zoom, isUse) {
    const mark = svg("g", { class: "own", transform: `translate(${x} ${y}) scale(${zoom})`, "aria-hidden": "true" });
    mark.append(svg("circle", { r: POINT_SIZE + 6, class: "own-ring" }));
    if (!isUse) mark.append(svg("circle", { r: POINT_SIZE - 2, class: "own-dot" }));
    return mark;
  }

  /* Show which point a list has under the pointer. */
  highlight(number) {
    this.points.forEach(({ element }, at) => element.classList.toggle("looked-at", at === number));
  }

  move(event) {
    const at = this.points.findIndex(({ element }) => element === document.activeElement);
    if (at < 0) return;
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.ask(at);
      return;
    }
    const direction = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!direction) return;
    event.preventDefault();
    const next = this.nearest(at, direction);
    if (next < 0) return;
    this.points[at].element.setAttribute("tabindex", "-1");
    this.points[next].element.setAttribute("tabindex", "0");
    this.points[next].element.focus();
  }

  /* Return the nearest point in a direction, where what is beside it counts twice; -1 if there is none. */
  nearest(at, [right, down]) {
    const from = this.points[at];
    let best = { cost: Infinity, number: -1 };
    this.points.forEach(({ x, y }, number) => {
      const ahead = (x - from.x) * right + (y - from.y) * down;
      const beside = Math.abs((x - from.x) * down) + Math.abs((y - from.y) * right);
      const isAhead = ahead > 0 || (ahead === 0 && beside === 0 && (right + down > 0 ? number > at : number < at));
      if (number !== at && isAhead && ahead + 2 * beside < best.cost) best = { cost: ahead + 2 * beside, number };
    });
    return best.number;
  }
}
