"use strict";
/* Packing: the text of a data block -> bytes -> numbers.

Python wrote a block as gzip, in 91 printable characters: two of them hold 13 bits (91 * 91 = 8281 >= 8192). That takes
23 % more room than the bytes, where base64 takes 33 %, and no browser changes any of these characters. */

const PACKED_BASE = 91;
const PACKED_BITS = 13;

/* Return the value of a character: # to ; are 0 to 24, = to ~ are 25 to 90. The one between, <, could end a script. */
function packedValue(code) {
  return code < 60 ? code - 35 : code - 36;
}

/* Return the bytes that a text of packed characters holds. */
function unpackText(text) {
  const bytes = new Uint8Array(Math.floor(((text.length / 2) * PACKED_BITS) / 8));
  let held = 0; // bits that have no byte yet
  let count = 0; // how many they are
  let place = 0;
  for (let at = 0; at < text.length; at += 2) {
    held =
      (held << PACKED_BITS) | (packedValue(text.charCodeAt(at)) * PACKED_BASE + packedValue(text.charCodeAt(at + 1)));
    count += PACKED_BITS;
    while (count >= 8 && place < bytes.length) {
      count -= 8;
      bytes[place++] = held >> count;
    }
    held &= (1 << count) - 1;
  }
  return bytes;
}

/* Return the bytes of a block: `size` of them are gzip, the rest fills up the last characters. */
async function readBlock(text, size) {
  const stream = new Blob([unpackText(text).subarray(0, size)]).stream();
  const plain = stream.pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(plain).arrayBuffer());
}

async function readJsonBlock(text, size) {
  return JSON.parse(new TextDecoder().decode(await readBlock(text, size)));
}

/* Return the values of all codes of a small float: `exponentBits` and `mantissaBits` after a sign. */
function floatTable(exponentBits, mantissaBits) {
  const size = 2 ** (1 + exponentBits + mantissaBits);
  const table = new Float32Array(size);
  const bias = 2 ** (exponentBits - 1) - 1;
  for (let code = 0; code < size; code++) {
    const mantissa = (code % 2 ** mantissaBits) / 2 ** mantissaBits;
    const exponent = Math.floor(code / 2 ** mantissaBits) % 2 ** exponentBits;
    const magnitude = exponent === 0 ? mantissa * 2 ** (1 - bias) : (1 + mantissa) * 2 ** (exponent - bias);
    table[code] = code < size / 2 ? magnitude : -magnitude;
  }
  return table;
}

/* Return float16 numbers whose high bytes all come before their low bytes, which makes gzip find more in them. */
function readFloat16(bytes) {
  const table = floatTable(5, 10);
  const count = bytes.length / 2;
  const numbers = new Float32Array(count);
  for (let at = 0; at < count; at++) numbers[at] = table[bytes[at] * 256 + bytes[count + at]];
  return numbers;
}

/* Return float8 numbers (e4m3). */
function readFloat8(bytes) {
  const table = floatTable(4, 3);
  const numbers = new Float32Array(bytes.length);
  for (let at = 0; at < bytes.length; at++) numbers[at] = table[bytes[at]];
  return numbers;
}
