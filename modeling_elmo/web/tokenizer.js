"use strict";
/* Tokenizer: text -> words, Penn-Treebank style -> rows of C character ids.

This is splitting_elmo.py and, of tokenization_elmo.py, what spells words in UTF-8 bytes, rule by rule. */

// Character ids: bytes are 1 to 256.
const SENTENCE_BEGIN = 257;
const SENTENCE_END = 258;
const WORD_BEGIN = 259;
const WORD_END = 260;
const CHARACTER_PADDING = 261;

// Words written as one that are two tokens, and the length of the first.
const FUSED = new Map();
for (const word of "cannot gonna gotta wanna gimme lemme".split(" ")) FUSED.set(word, 3);
for (const word of "'tis ’tis 'twas ’twas".split(" ")) FUSED.set(word, 2);
const ABBREVIATIONS =
  "Mr|Mrs|Ms|Messrs|Dr|Prof|Rev|Hon|Gen|Col|Maj|Capt|Lt|Sgt|Sen|Rep|Gov|Pres|St|Mt|Ft|Jr|Sr|Inc|Ltd|Co|Corp|Bros|" +
  "Jan|Feb|Aug|Sept|Sep|Oct|Nov|Dec|vs|etc|cf|Ph\\.D";
// Variation selectors, the keycap, skin tones, and the tags that make a flag of England.
const EMOJI_MODIFIERS = "\\uFE00-\\uFE0F\\u20E3\\u{1F3FB}-\\u{1F3FF}\\u{E0020}-\\u{E007F}";
// Unicode's punctuation and symbols, and all other characters.
const SYMBOL = "[\\p{P}\\p{S}]";
const LETTER = "[^\\p{P}\\p{S}]";
const DIGIT = "\\p{Nd}";
// What Python takes for whitespace; JavaScript's \s has other characters.
const WHITESPACE = /[\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+/u;

/* Let the letters of a pattern match in upper and lower case; İ is an i and ſ an s. */
function anyCase(pattern) {
  const others = { i: "İ", s: "ſ" };
  return pattern.replace(/[a-z]/g, (letter) => `[${letter}${letter.toUpperCase()}${others[letter] ?? ""}]`);
}

// A token inside a run of text without whitespace.
const TOKEN = new RegExp(
  [
    "\\.{2,}|--+|[`']{2}", // ellipsis, dash, Treebank quotes
    `(?:${anyCase("http")}${anyCase("s")}?://|${anyCase("ftp")}://|${anyCase("www")}\\.)` +
      "[^]*[^.,;:!?)\\]}>'\"’”»]", // an address, without what follows it
    `(?:(?:(?!${DIGIT})${LETTER}\\.){2,}|[A-HJ-Z]\\.|(?:${ABBREVIATIONS})\\.)(?!-?${LETTER})`, // U.S., an initial, Mr.
    `(?<!${LETTER})['’](?:${anyCase("s|re|ve|ll|d|m|t|em|til|tis|twas|bout|cause")}|${DIGIT}{2}${anyCase("s")}?)` +
      `(?!${LETTER})`, // 's, 'em, '90s
    `(?:^[-+]?\\.?(?=${DIGIT}))?${LETTER}+` + // a word or number,
      `(?:(?:\\.?-|['’./&_@+]|(?<=${DIGIT})[,:](?=${DIGIT}))${LETTER}+)*`, // hyphens and the like inside
    "[\\u{1F1E6}-\\u{1F1FF}]{2}", // a flag
    `${SYMBOL}(?:[${EMOJI_MODIFIERS}]|\\u200D${SYMBOL})*`, // punctuation, an emoji sequence
  ].join("|"),
  "gu",
);
const CLITIC = new RegExp(
  `(?<=${LETTER})(?:${anyCase("n")}['’]${anyCase("t")}|['’](?:${anyCase("s|re|ve|ll|d|m")}))$`,
  "u",
);

/* Return the words of a run of text without whitespace: don't -> do n't, she'll -> she 'll, cannot -> can not. */
function splitChunk(chunk) {
  const words = [];
  for (const token of chunk.match(TOKEN) ?? []) {
    const clitics = [];
    let rest = token;
    for (let match = CLITIC.exec(rest); match; match = CLITIC.exec(rest)) {
      clitics.unshift(match[0]);
      rest = rest.slice(0, match.index);
    }
    const cut = FUSED.get(rest.toLowerCase()) ?? rest.length;
    words.push(...[rest.slice(0, cut), rest.slice(cut), ...clitics].filter((part) => part !== ""));
  }
  return words;
}

function splitAtWhitespace(text) {
  return text.split(WHITESPACE).filter((chunk) => chunk !== "");
}

class Tokenizer {
  /* `facts`: the special words, the width C of a row of characters, and whether only whitespace splits typed text. */
  constructor(facts) {
    this.width = facts.maxCharacters;
    this.begin = facts.begin;
    this.end = facts.end;
    this.special = facts.special;
    this.splitsAtWhitespace = facts.splitsAtWhitespace;
    this.encoder = new TextEncoder();
  }

  /* Return the words of a text. */
  split(text) {
    if (this.splitsAtWhitespace) return splitAtWhitespace(text);
    const words = [];
    let start = 0;
    for (let at = 0; at < text.length; at++) {
      const special = this.special.find((word) => text.startsWith(word, at));
      if (special === undefined) continue;
      words.push(...splitAtWhitespace(text.slice(start, at)).flatMap(splitChunk), special);
      at += special.length - 1;
      start = at + 1;
    }
    return words.concat(splitAtWhitespace(text.slice(start)).flatMap(splitChunk));
  }

  /* Return the row of character ids that spells a word, and how many of them come before its padding. */
  spell(word) {
    const row = new Int32Array(this.width).fill(CHARACTER_PADDING);
    row[0] = WORD_BEGIN;
    if (word === this.begin || word === this.end) {
      row[1] = word === this.begin ? SENTENCE_BEGIN : SENTENCE_END;
      row[2] = WORD_END;
      return { row, length: 3 };
    }
    // Lone surrogates have no UTF-8 and are dropped.
    const bytes = this.encoder.encode(word.replace(/[\ud800-\udfff]/gu, "")).subarray(0, this.width - 2);
    bytes.forEach((byte, at) => (row[at + 1] = byte + 1));
    row[bytes.length + 1] = WORD_END;
    return { row, length: bytes.length + 2 };
  }
}
