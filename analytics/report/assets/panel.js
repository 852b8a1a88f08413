// Everything known about one token.

function fillPanel(box, conversation, i, hasStudent, isPinned) {
  const text = tokenText(conversation.ids[i]);
  const shown = make("p", "token-text", visible(text));
  shown.dir = "ltr";
  const [starts, messages, sources, contents, sampled] = conversation.runs;
  let run = starts.length - 1;
  while (starts[run] > i) run--;
  const message = messages[run];
  const owner = message < 0 ? "no message" : `message ${message}, ${conversation.messages[message].role}`;
  const origin = sampled[run] === 1 ? "sampled" : sampled[run] === 0 ? "not sampled" : "sampled or not: unknown";
  const facts = `id ${conversation.ids[i]}, position ${i}, ${owner}, ${conversation.sources[sources[run]]}, ${contents[run] ? "content" : "scaffold"}, ${origin}`;
  const parts = [shown, make("p", "small", `${isPinned ? "Pinned: " : ""}${facts}`), scoresTable(conversation, i, hasStudent)];
  parts.push(...listTable(conversation, i, hasStudent));
  box.replaceChildren(...parts);
}

function scoresTable(conversation, i, hasStudent) {
  const names = [["logprob", "logprob"], ["rank", "rank"], ["entropy", "entropy"]];
  const number = (column) => (column ? shownNumber(METRICS_OF[column]?.(conversation, i) ?? conversation[column][i]) : "");
  const rows = names.map(([title, name]) => [title, number(name), ...(hasStudent ? [number(`student_${name}`)] : [])]);
  if (conversation.recorded) {
    const blank = hasStudent ? [""] : [];
    rows.push(["recorded logprob", shownNumber(conversation.recorded[i]), ...blank]);
    rows.push(["scored less recorded", shownNumber(METRICS.recorded.value(conversation, i)), ...blank]);
  }
  if (hasStudent) {
    rows.push(["delta", shownNumber(METRICS.delta.value(conversation, i)), ""]);
    rows.push(["GJS", `[${shownNumber(conversation.gjs_lower[i])}, ${shownNumber(conversation.gjs_upper[i])}]`, ""]);
    if (conversation.kl) rows.push(["KL(T||S), exact", shownNumber(conversation.kl[i]), ""]);
  }
  return table(["", hasStudent ? "teacher" : "model", ...(hasStudent ? ["student"] : [])], rows);
}

// A rank of 0 stands for none.
const METRICS_OF = {
  rank: (conversation, i) => conversation.rank[i] || NaN,
  student_rank: (conversation, i) => conversation.student_rank[i] || NaN,
};

// Both lists side by side. An id that one list lacks is unknown there: at most as likely as the last one listed.
function listTable(conversation, i, hasStudent) {
  const [first, stop] = [conversation.firstListed[i], conversation.firstListed[i + 1]];
  const sides = hasStudent ? ["", "student_"] : [""];
  if (sides.every((side) => Number.isNaN(conversation[`${side}cap`][i]))) return [make("p", "small", "No list of likely tokens here.")];
  const entries = [];
  for (let at = first; at < stop; at++) {
    entries.push({ id: conversation.listed_ids[at], values: sides.map((side) => conversation[`${side}listed`][at]) });
  }
  const highest = ({ values }) => Math.max(...values.map((x) => (Number.isNaN(x) ? -Infinity : x)));
  entries.sort((a, b) => highest(b) - highest(a));
  const rows = entries.map(({ id, values }) => [
    shortened(visible(tokenText(id))) + (id === conversation.ids[i] ? " (this token)" : ""),
    ...values.map((x, side) => (Number.isNaN(x) ? unknown(conversation[`${sides[side]}cap`][i]) : shownShare(x))),
  ]);
  const rest = sides.map((_, side) => {
    const known = entries.reduce((sum, { values }) => sum + (Number.isNaN(values[side]) ? 0 : Math.exp(values[side])), 0);
    return shownShare(Math.log(Math.max(1 - known, 0)));
  });
  rows.push(["all else", ...rest]);
  return [table(["likely here", hasStudent ? "teacher" : "model", ...(hasStudent ? ["student"] : [])], rows)];
}

function unknown(cap) {
  return Number.isNaN(cap) ? "unknown" : `unknown, at most ${shownShare(cap)}`;
}

function table(head, rows) {
  const element = make("table");
  const top = element.createTHead().insertRow();
  head.forEach((title, i) => {
    const cell = make(title ? "th" : "td", i ? "" : "text", title);
    if (title) cell.scope = "col";
    top.append(cell);
  });
  const body = element.createTBody();
  for (const row of rows) {
    const line = body.insertRow();
    row.forEach((value, i) => line.append(make("td", i ? "" : "text", value)));
  }
  return element;
}
