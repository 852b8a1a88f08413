// Conversations as the page carries them, and the texts of their tokens.

function readJson(id) {
  return JSON.parse(document.getElementById(id).textContent);
}

const ARRAYS = { u4: Uint32Array, i4: Int32Array, f4: Float32Array, u1: Uint8Array };

function bytesOf(base64) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(base64);
  const characters = atob(base64);
  const bytes = new Uint8Array(characters.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = characters.charCodeAt(i);
  return bytes;
}

async function inflate(base64) {
  const bytes = bytesOf(base64);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// A column is stored as all first bytes of its values, then all second ones, and so on.
function column(bytes, offset, type, length) {
  const width = ARRAYS[type].BYTES_PER_ELEMENT;
  const values = new Uint8Array(width * length);
  for (let plane = 0; plane < width; plane++) {
    for (let i = 0; i < length; i++) values[i * width + plane] = bytes[offset + plane * length + i];
  }
  return new ARRAYS[type](values.buffer);
}

async function decodeConversation(scriptId) {
  const stored = readJson(scriptId);
  const bytes = await inflate(stored.block);
  const conversation = { ...stored, block: null };
  let offset = 0;
  for (const [name, type, length] of stored.columns) {
    conversation[name] = column(bytes, offset, type, length);
    offset += length * ARRAYS[type].BYTES_PER_ELEMENT;
  }
  conversation.length = conversation.ids.length;
  const first = new Uint32Array(conversation.length + 1);
  for (let i = 0; i < conversation.length; i++) first[i + 1] = first[i] + conversation.n_listed[i];
  conversation.firstListed = first;
  return conversation;
}

let vocabulary = null;

// What a token id stands for: { text, literal }.
function tokenText(id) {
  if (!vocabulary) {
    const stored = readJson("vocabulary");
    const named = new Set(stored.named);
    vocabulary = new Map(stored.ids.map((key, i) => [key, { text: stored.texts[i], literal: !named.has(key) }]));
  }
  return vocabulary.get(id) ?? { text: `[id ${id}]`, literal: false };
}

const SHOWN_AS = { " ": "·", "\n": "↵", "\t": "→" };

// White space gets a sign; what a browser would hide, or let reorder its neighbours, becomes an escape.
function visible({ text, literal }) {
  if (!literal) return text;
  const shown = text.replace(/[ \n\t]|[^\P{C}]|[\u2028\u2029\u034f\u115f\u1160\u3164\ufe00-\ufe0f]|(?! )\p{Z}/gu, (character) => {
    return SHOWN_AS[character] ?? `\\u{${character.codePointAt(0).toString(16)}}`;
  });
  return shown || "∅";
}
