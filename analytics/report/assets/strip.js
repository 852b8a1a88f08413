// The tokens of one conversation. Only blocks near the visible part are in the document.

const BLOCK_TOKENS = 64;
const MARGIN_PX = 300;
const MAX_NODES = 3000;
const MAX_CHARACTERS = 60;
const PRINTED_TOKENS = 20000;

class Strip {
  constructor(box) {
    this.box = box;
    this.above = box.querySelector("#above");
    this.content = box.querySelector("#blocks");
    this.below = box.querySelector("#below");
    this.blocks = [];
    this.elements = new Map();
    this.selected = -1;
    let waiting = false;
    box.addEventListener("scroll", () => {
      if (waiting) return;
      waiting = true;
      requestAnimationFrame(() => {
        waiting = false;
        this.update();
      });
    });
    new ResizeObserver(() => this.update()).observe(box);
    addEventListener("beforeprint", () => this.renderForPrint());
    addEventListener("afterprint", () => {
      this.isPrinting = false;
      this.redraw();
    });
  }

  // levels: Int8Array, -1 unknown; negative: Uint8Array.
  show(conversation, levels, negative) {
    const isNew = this.conversation !== conversation;
    Object.assign(this, { conversation, levels, negative });
    if (isNew) {
      this.blocks = blocksOf(conversation);
      this.selected = -1;
      this.box.scrollTop = 0;
    }
    this.redraw();
  }

  redraw() {
    this.content.replaceChildren();
    this.elements.clear();
    this.update();
  }

  // Prefix sums of block heights: where each block begins.
  tops() {
    const tops = new Float64Array(this.blocks.length + 1);
    this.blocks.forEach((block, i) => (tops[i + 1] = tops[i] + block.height));
    return tops;
  }

  update() {
    if (!this.blocks.length || this.isPrinting) return;
    const top = this.box.scrollTop;
    let tops = this.tops();
    const anchor = indexAt(tops, top);
    const offset = top - tops[anchor];
    const first = indexAt(tops, top - MARGIN_PX);
    let last = indexAt(tops, top + this.box.clientHeight + MARGIN_PX);
    while (last > anchor && (last - first + 1) * BLOCK_TOKENS > MAX_NODES) last--;
    this.renderRange(first, last);
    for (let i = first; i <= last; i++) this.blocks[i].height = this.elements.get(i).offsetHeight;
    tops = this.tops();
    this.above.style.height = `${tops[first]}px`;
    this.below.style.height = `${tops[this.blocks.length] - tops[last + 1]}px`;
    const shifted = tops[anchor] + offset;
    if (Math.abs(shifted - this.box.scrollTop) > 1) this.box.scrollTop = shifted;
  }

  renderRange(first, last) {
    for (const [i, element] of this.elements) {
      if (i < first || i > last) {
        element.remove();
        this.elements.delete(i);
      }
    }
    let next = this.content.firstChild;
    for (let i = first; i <= last; i++) {
      const present = this.elements.get(i);
      if (present) {
        next = present.nextSibling;
      } else {
        const element = this.blockElement(this.blocks[i]);
        this.elements.set(i, element);
        this.content.insertBefore(element, next);
      }
    }
  }

  blockElement(block) {
    const role = this.conversation.messages[block.message]?.role;
    const element = make("div", `block role-${/^[a-z]+$/.test(role ?? "") ? role : "other"}`);
    if (block.heading) element.append(make("h4", "", block.heading));
    for (let i = block.start; i < block.stop; i++) this.appendToken(element, i);
    return element;
  }

  appendToken(element, i) {
    const text = tokenText(this.conversation.ids[i]);
    const level = this.levels[i];
    const classes = ["t"];
    if (!text.literal) classes.push("raw");
    classes.push(level < 0 ? "unknown" : `l${level}`);
    if (this.negative[i] && level > 0) classes.push("negative");
    if (i === this.selected) classes.push("selected");
    const end = text.literal ? text.text.lastIndexOf("\n") + 1 : 0;
    const first = end ? { ...text, text: text.text.slice(0, end) } : text;
    const token = make("span", classes.join(" "), shortened(visible(first)));
    token.dataset.i = i;
    element.append(token);
    if (!end) return;
    element.append(make("br"));
    // Indentation begins the line that it indents.
    if (end === text.text.length) return;
    const rest = make("span", classes.join(" "), shortened(visible({ ...text, text: text.text.slice(end) })));
    rest.dataset.of = i;
    element.append(rest);
  }

  select(i, { scroll = true } = {}) {
    this.element(this.selected)?.classList.remove("selected");
    this.selected = i;
    if (i < 0) return;
    if (scroll) this.scrollTo(i);
    this.element(i)?.classList.add("selected");
  }

  element(i) {
    return i < 0 ? null : this.content.querySelector(`[data-i="${i}"]`);
  }

  scrollTo(i) {
    const at = this.blocks.findIndex((block) => i < block.stop);
    if (!this.element(i)) {
      this.box.scrollTop = this.tops()[at];
      this.update();
    }
    const token = this.element(i);
    if (!token) return;
    const place = token.getBoundingClientRect();
    const frame = this.box.getBoundingClientRect();
    if (place.top < frame.top || place.bottom > frame.bottom) {
      this.box.scrollTop += place.top - frame.top - frame.height / 3;
      this.update();
    }
  }

  // Paper does not scroll: the whole conversation, up to a limit.
  renderForPrint() {
    if (!this.blocks.length) return;
    this.isPrinting = true;
    const last = Math.min(this.blocks.length, Math.ceil(PRINTED_TOKENS / BLOCK_TOKENS)) - 1;
    this.renderRange(0, last);
    if (last < this.blocks.length - 1) this.content.append(make("p", "", "The rest is left out in print."));
  }
}

// Blocks begin at every change of message, and hold a limited number of tokens.
function blocksOf(conversation) {
  const [starts, messages] = conversation.runs;
  const blocks = [];
  const seen = new Set();
  for (let run = 0; run < starts.length; ) {
    let next = run + 1;
    while (next < starts.length && messages[next] === messages[run]) next++;
    const stop = next < starts.length ? starts[next] : conversation.length;
    for (let start = starts[run]; start < stop; start += BLOCK_TOKENS) {
      const heading = start === starts[run] ? headingOf(conversation, messages[run], seen) : "";
      const end = Math.min(start + BLOCK_TOKENS, stop);
      blocks.push({ start, stop: end, message: messages[run], heading, height: 140 });
    }
    run = next;
  }
  return blocks;
}

function headingOf(conversation, message, seen) {
  if (message < 0) return "no message";
  const { role, tool_name: tool, flags } = conversation.messages[message];
  const continued = seen.has(message) ? ", continued" : "";
  seen.add(message);
  const noted = flags.length ? ` (${flags.join(", ")})` : "";
  return `message ${message}: ${role}${tool ? ` ${tool}` : ""}${continued}${noted}`;
}

function indexAt(tops, y) {
  let low = 0;
  let high = tops.length - 2;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (tops[middle] <= y) low = middle;
    else high = middle - 1;
  }
  return low;
}

function shortened(text) {
  if (text.length <= MAX_CHARACTERS) return text;
  const kept = text.slice(0, MAX_CHARACTERS).replace(/[\ud800-\udbff]$/, "");
  return `${kept}… +${(text.length - kept.length).toLocaleString("en")}`;
}

function make(tag, classes = "", text = "") {
  const element = document.createElement(tag);
  if (classes) element.className = classes;
  if (text !== "") element.textContent = text;
  return element;
}
