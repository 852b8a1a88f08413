// The visible tokens as a picture, with heading and legend, drawn as the page shows them.

const PICTURE_SCALE = 2;
const PICTURE_MARGIN = 12;
const LEGEND_LINE = 20;
const DASHES = { dotted: [2, 3], dashed: [6, 4] };

// Returns a canvas; texts are lines above the tokens.
function pictureOf(box, texts) {
  const frame = box.getBoundingClientRect();
  const page = getComputedStyle(document.documentElement);
  const top = PICTURE_MARGIN + LEGEND_LINE * texts.length;
  const canvas = document.createElement("canvas");
  canvas.width = Math.ceil((frame.width + 2 * PICTURE_MARGIN) * PICTURE_SCALE);
  canvas.height = Math.ceil((frame.height + top + PICTURE_MARGIN) * PICTURE_SCALE);
  const pen = canvas.getContext("2d");
  pen.scale(PICTURE_SCALE, PICTURE_SCALE);
  pen.textBaseline = "middle";
  pen.direction = "ltr";
  pen.fillStyle = page.getPropertyValue("--back").trim();
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.fillStyle = page.getPropertyValue("--text").trim();
  pen.font = "14px system-ui, sans-serif";
  texts.forEach((text, i) => pen.fillText(text, PICTURE_MARGIN, PICTURE_MARGIN + (i + 0.5) * LEGEND_LINE, frame.width));
  pen.translate(PICTURE_MARGIN - frame.left, top - frame.top);
  pen.beginPath();
  pen.rect(frame.left, frame.top, frame.width, frame.height);
  pen.clip();
  for (const block of box.querySelectorAll(".block")) {
    const place = block.getBoundingClientRect();
    if (place.bottom < frame.top || place.top > frame.bottom) continue;
    drawEdge(pen, getComputedStyle(block), "Left", place);
    block.querySelectorAll("h4").forEach((heading) => drawText(pen, heading, getComputedStyle(heading)));
    block.querySelectorAll(".t").forEach((token) => drawToken(pen, token, frame));
  }
  return canvas;
}

function drawToken(pen, token, frame) {
  const place = token.getBoundingClientRect();
  if (place.bottom < frame.top || place.top > frame.bottom) return;
  const style = getComputedStyle(token);
  pen.fillStyle = style.backgroundColor;
  pen.fillRect(place.left, place.top, place.width, place.height);
  drawEdge(pen, style, "Bottom", place);
  drawEdge(pen, style, "Top", place);
  drawText(pen, token, style);
  if (!token.classList.contains("selected")) return;
  pen.setLineDash([]);
  pen.strokeStyle = style.outlineColor;
  pen.lineWidth = parseFloat(style.outlineWidth);
  pen.strokeRect(place.left - 1, place.top - 1, place.width + 2, place.height + 2);
}

// A border; double ones as two lines.
function drawEdge(pen, style, side, place) {
  const width = parseFloat(style[`border${side}Width`]);
  const kind = style[`border${side}Style`];
  if (!width || kind === "none") return;
  const isDouble = kind === "double";
  pen.strokeStyle = style[`border${side}Color`];
  pen.lineWidth = isDouble ? width / 3 : width;
  pen.setLineDash(DASHES[kind] ?? []);
  for (const at of isDouble ? [width / 6, (5 * width) / 6] : [width / 2]) {
    pen.beginPath();
    if (side === "Left") {
      pen.moveTo(place.left + at, place.top);
      pen.lineTo(place.left + at, place.bottom);
    } else {
      const y = side === "Top" ? place.top + at : place.bottom - at;
      pen.moveTo(place.left, y);
      pen.lineTo(place.right, y);
    }
    pen.stroke();
  }
}

// The text of an element, line by line where it wraps.
function drawText(pen, element, style) {
  const node = element.firstChild;
  if (!node) return;
  pen.fillStyle = style.color;
  pen.font = `${style.fontStyle} ${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
  const range = document.createRange();
  let line = null;
  const flush = () => line && pen.fillText(line.text, line.left, line.middle);
  let at = 0;
  for (const character of node.data) {
    range.setStart(node, at);
    range.setEnd(node, (at += character.length));
    const { left, top, height } = range.getBoundingClientRect();
    if (line && height && Math.abs(top + height / 2 - line.middle) > height / 2) {
      flush();
      line = null;
    }
    line ??= { text: "", left, middle: top + height / 2 };
    line.text += character;
  }
  flush();
}
