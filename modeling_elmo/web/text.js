"use strict";
/* Small things that every part of the page needs: elements, numbers, words to click. Text is only ever added as text,
never as markup. */

const SENSE_COLOURS = 6;

/* Return an element with properties and children; a string becomes text. */
function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in element) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

function byId(id) {
  return document.getElementById(id);
}

function thousands(number) {
  return number.toLocaleString("en");
}

function plural(number, noun) {
  return `${thousands(number)} ${noun}${number === 1 ? "" : "s"}`;
}

/* Return a sentence with one word marked. */
function sentenceWith(words, position) {
  const before = words.slice(0, position).join(" ");
  const after = words.slice(position + 1).join(" ");
  return make("span", { className: "sentence" }, before, " ", make("mark", {}, words[position]), " ", after);
}

/* Let arrow keys, Home and End move the focus among the buttons of a group, of which one takes part in tabbing. */
function roveFocus(group) {
  group.addEventListener("keydown", (event) => {
    const items = [...group.querySelectorAll("button")];
    const at = items.indexOf(event.target);
    const steps = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: items.length - 1 };
    const next = items[steps[event.key]];
    if (at < 0 || !next) return;
    event.preventDefault();
    for (const item of items) item.tabIndex = item === next ? 0 : -1;
    next.focus();
  });
}

/* Show words as buttons; `chosen` is the number of the one that is pressed, or -1. */
function showTokens(group, words, chosen, choose) {
  const hadFocus = group.contains(document.activeElement);
  group.replaceChildren(
    ...words.map((word, at) => {
      const properties = { type: "button", className: "token", tabIndex: at === Math.max(chosen, 0) ? 0 : -1 };
      const button = make("button", properties, make("span", { className: "token-word" }, word));
      button.setAttribute("aria-pressed", String(at === chosen));
      button.addEventListener("click", () => choose(at));
      return button;
    }),
  );
  if (hadFocus) group.children[Math.max(chosen, 0)]?.focus();
}

/* Press one of the buttons of a group. */
function press(group, chosen) {
  [...group.children].forEach((button, at) => {
    button.setAttribute("aria-pressed", String(at === chosen));
    button.tabIndex = at === chosen ? 0 : -1;
  });
}

/* Return a text without the brackets around one of its words, that word, and what is before it, or null. */
function parseExample(example) {
  const match = /\[([^[\]]+)\]/.exec(example);
  if (!match) return { text: example, before: null };
  return { text: example.replace(match[0], match[1]), before: example.slice(0, match.index), word: match[1] };
}

/* Call a function once a while has passed without another call. */
function debounce(wait, call) {
  let timer = 0;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(call, wait);
  };
}
