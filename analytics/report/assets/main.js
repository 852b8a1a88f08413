// The list of conversations, the controls, and the state that the address carries.

const $ = (id) => document.getElementById(id);
const { metrics, limits, conversations, hasStudent } = readJson("report");
const PAGE_ROWS = 50;
const strip = new Strip($("strip"));
const start = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
const state = {
  conversation: -1,
  metric: metrics.includes(start.m) ? start.m : metrics[0],
  search: start.q ?? "",
  sort: start.s ?? metrics[0],
  ascending: start.o ? start.o === "asc" : metrics[0] === "logprob",
  page: 0,
  token: -1,
  pinned: false,
  theme: start.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"),
};
if (!["tokens", "id", ...metrics].includes(state.sort)) state.sort = metrics[0];
let opened = null;

function saveState() {
  const row = conversations[state.conversation];
  const parts = { m: state.metric, s: state.sort, o: state.ascending ? "asc" : "desc", theme: state.theme };
  if (row) Object.assign(parts, { c: row.id, b: row.branch });
  if (state.search) parts.q = state.search;
  if (state.token >= 0) parts.t = state.token;
  if (state.pinned) parts.pin = 1;
  history.replaceState(null, "", `#${new URLSearchParams(parts)}`);
}

function say(text) {
  $("status").textContent = text;
}

// --- list

function listed() {
  const wanted = state.search.toLowerCase();
  const found = conversations.map((row, i) => ({ row, i })).filter(({ row }) => {
    return [row.id, row.preview, ...row.roles].some((text) => text.toLowerCase().includes(wanted));
  });
  const key = ({ row }) => (state.sort === "id" ? row.id : state.sort === "tokens" ? row.n_tokens : row.means[state.sort]);
  const sign = state.ascending ? 1 : -1;
  return found.sort((a, b) => {
    const [x, y] = [key(a), key(b)];
    if (x === null || y === null) return (x === null) - (y === null);
    return sign * (x < y ? -1 : x > y ? 1 : 0) || a.i - b.i;
  });
}

function showList() {
  const rows = listed();
  const nPages = Math.max(1, Math.ceil(rows.length / PAGE_ROWS));
  state.page = Math.min(state.page, nPages - 1);
  const metric = metrics.includes(state.sort) ? state.sort : state.metric;
  $("conversations").replaceChildren(
    ...rows.slice(state.page * PAGE_ROWS, (state.page + 1) * PAGE_ROWS).map(({ row, i }) => {
      const button = make("button");
      button.type = "button";
      button.dataset.c = i;
      button.setAttribute("aria-current", String(i === state.conversation));
      const number = `${shownTokens(row.n_tokens)}, mean ${metric} ${shownNumber(row.means[metric])}`;
      const name = make("b", "", row.branch ? `${row.id} (branch ${row.branch})` : row.id);
      button.append(name, make("small", "", number), make("small", "", row.preview));
      const item = make("li");
      item.append(button);
      return item;
    }),
  );
  $("page").textContent = `${rows.length.toLocaleString("en")} found, page ${state.page + 1} of ${nPages}`;
  $("previous-page").disabled = state.page === 0;
  $("next-page").disabled = state.page >= nPages - 1;
}

// --- conversation

async function open(i, { token = -1, pinned = false } = {}) {
  state.conversation = i;
  const conversation = await decodeConversation(`c${i}`);
  if (state.conversation !== i) return;
  opened = conversation;
  state.token = -1;
  state.pinned = false;
  const branch = conversation.branch ? ` branch ${conversation.branch}` : "";
  const facts = `${conversation.place}, ${shownTokens(conversation.length)}, status ${conversation.status}`;
  $("conversation-heading").textContent = `${conversation.id}${branch} (${facts})`;
  $("token").replaceChildren(make("p", "", "Point at a token, or press n."));
  showStrip();
  document.querySelectorAll("#conversations button").forEach((button) => {
    button.setAttribute("aria-current", String(Number(button.dataset.c) === i));
  });
  if (token >= 0 && token < conversation.length) select(token, pinned);
  saveState();
}

function showStrip() {
  const metric = METRICS[state.metric];
  const steps = limits[state.metric];
  if (opened) {
    const { levels, negative } = levelsOf(opened, state.metric, steps);
    strip.show(opened, levels, negative);
  }
  const names = ["dotted", "dashed", "solid", "double"];
  const parts = steps.map((limit, i) => {
    const shown = limit === null ? "–" : shownNumber(metric.salience(limit));
    return [make("span", `t l${i + 1}`, names[i]), ` ${metric.relation} ${shown}  `];
  });
  const sides = metric.sides ? `. Line below and warm: ${metric.sides[0]} is higher; above and cool: ${metric.sides[1]}.` : "";
  $("legend").replaceChildren(`${metric.title}: `, ...parts.flat(), sides);
}

function select(i, pinned, scroll = true) {
  state.token = i;
  state.pinned = pinned;
  strip.select(i, { scroll });
  $("token").parentElement.classList.toggle("pinned", pinned);
  fillPanel($("token"), opened, i, hasStudent, pinned);
  saveState();
}

// The first token that a model generated, 0 without any.
function firstSampled() {
  const [starts, , , , sampled] = opened.runs;
  const run = sampled.indexOf(1);
  return run < 0 ? 0 : starts[run];
}

// The next token in a direction that stands out most, or nearly so.
function divergent(step) {
  if (!opened) return;
  const levels = strip.levels;
  const wanted = Math.min(3, levels.reduce((most, level) => Math.max(most, level), 0));
  if (!wanted) return say("No token of this conversation stands out.");
  const next = (i) => {
    do i += step;
    while (i >= 0 && i < levels.length && levels[i] < wanted);
    return i;
  };
  // From the start, what a model generated comes first.
  let i = next(state.token < 0 ? (step > 0 ? firstSampled() - 1 : levels.length) : state.token);
  if (i >= levels.length && state.token < 0) i = next(-1);
  if (i < 0 || i >= levels.length) return say(step > 0 ? "That was the last divergent token." : "That was the first divergent token.");
  say("");
  select(i, true);
}

// The next token at which the searched text begins, from the selected one on.
function findText(wanted) {
  if (!opened || !wanted) return;
  const texts = Array.from(opened.ids, (id) => tokenText(id).text.toLowerCase());
  const starts = [];
  let length = 0;
  for (const text of texts) {
    starts.push(length);
    length += text.length;
  }
  const whole = texts.join("");
  const from = state.token < 0 ? 0 : starts[state.token] + 1;
  let at = whole.indexOf(wanted.toLowerCase(), from);
  if (at < 0) at = whole.indexOf(wanted.toLowerCase());
  if (at < 0) return say(`"${wanted}" is not in this conversation.`);
  let i = starts.length - 1;
  while (starts[i] > at) i--;
  say("");
  select(i, true);
}

function beside(step) {
  if (!opened) return;
  select(Math.min(Math.max(state.token + step, 0), opened.length - 1), true);
}

function letGo() {
  state.pinned = false;
  state.token = -1;
  strip.select(-1);
  saveState();
}

// --- export

function save(name, blob) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

const saveCsv = (name, text) => save(name, new Blob([text], { type: "text/csv" }));
const fileName = (suffix) => `${opened.id.replace(/[^\w.-]+/g, "_")}.${suffix}`;
const csvLine = (cells) => cells.map((cell) => (/[",\r\n]/.test(cell) ? `"${String(cell).replaceAll('"', '""')}"` : cell)).join(",");

function tokensCsv() {
  const names = ["logprob", "rank", "entropy"].concat(opened.recorded ? ["recorded"] : [], hasStudent ? ["student_logprob", "student_rank", "student_entropy", "gjs_lower", "gjs_upper"] : [], opened.kl ? ["kl"] : []);
  const lines = [csvLine(["position", "token_id", "text", "message_index", ...names])];
  const [starts, messages] = opened.runs;
  for (let i = 0, run = 0; i < opened.length; i++) {
    while (run + 1 < starts.length && starts[run + 1] <= i) run++;
    const values = names.map((name) => (METRICS_OF[name]?.(opened, i) ?? opened[name][i])).map((x) => (Number.isFinite(x) ? Number(x.toPrecision(4)) : ""));
    lines.push(csvLine([i, opened.ids[i], tokenText(opened.ids[i]).text, messages[run], ...values]));
  }
  return `${lines.join("\n")}\n`;
}

// --- controls

function setTheme(theme) {
  state.theme = theme;
  document.documentElement.dataset.theme = theme;
  $("theme").setAttribute("aria-pressed", String(theme === "dark"));
  redrawCharts();
}

function option(value, text) {
  const element = make("option", "", text);
  element.value = value;
  return element;
}

$("sort").append(...metrics.map((name) => option(name, `mean ${name}`)), option("tokens", "tokens"), option("id", "id"));
$("metric").append(...metrics.map((name) => option(name, name)));
$("sort").value = state.sort;
$("metric").value = state.metric;
$("search").value = state.search;
$("ascending").checked = state.ascending;

function changeList(change) {
  change();
  state.page = 0;
  showList();
  saveState();
}
$("search").addEventListener("input", () => changeList(() => (state.search = $("search").value)));
$("sort").addEventListener("change", () => changeList(() => (state.sort = $("sort").value)));
$("ascending").addEventListener("change", () => changeList(() => (state.ascending = $("ascending").checked)));
for (const [id, step] of [["previous-page", -1], ["next-page", 1]]) {
  $(id).addEventListener("click", () => {
    state.page += step;
    showList();
  });
}
$("conversations").addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (button) open(Number(button.dataset.c));
});
$("metric").addEventListener("change", () => {
  state.metric = $("metric").value;
  showStrip();
  showList();
  saveState();
});
$("next-token").addEventListener("click", () => divergent(1));
$("previous-token").addEventListener("click", () => divergent(-1));
$("find").addEventListener("keydown", (event) => event.key === "Enter" && findText($("find").value));
$("tokens-csv").addEventListener("click", () => opened && saveCsv(fileName("csv"), tokensCsv()));
$("tokens-png").addEventListener("click", () => {
  if (!opened) return;
  const texts = [$("conversation-heading").textContent, $("legend").textContent];
  pictureOf($("strip"), texts).toBlob((blob) => save(fileName("png"), blob), "image/png");
});
$("theme").addEventListener("click", () => {
  setTheme(state.theme === "dark" ? "light" : "dark");
  saveState();
});
document.querySelectorAll("button[data-table]").forEach((button) => {
  button.addEventListener("click", () => {
    const rows = [...$(button.dataset.table).rows].map((row) => csvLine([...row.cells].map((cell) => cell.textContent)));
    saveCsv(`${button.dataset.table}.csv`, `${rows.join("\n")}\n`);
  });
});

$("strip").addEventListener("mouseover", (event) => {
  const i = event.target.dataset.i ?? event.target.dataset.of;
  if (i !== undefined && !state.pinned) fillPanel($("token"), opened, Number(i), hasStudent, false);
});
$("strip").addEventListener("click", (event) => {
  const i = Number(event.target.dataset.i ?? event.target.dataset.of ?? -1);
  if (i < 0) return;
  if (state.pinned && state.token === i) letGo();
  else select(i, true, false);
});
const KEYS = { n: () => divergent(1), p: () => divergent(-1), Escape: letGo };
const STRIP_KEYS = { ArrowRight: () => beside(1), ArrowLeft: () => beside(-1), Enter: () => state.token >= 0 && select(state.token, true) };
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, textarea")) return;
  const action = KEYS[event.key] ?? (event.target === $("strip") ? STRIP_KEYS[event.key] : undefined);
  if (!action) return;
  event.preventDefault();
  action();
});

setTheme(state.theme);
startCharts();
showList();
showStrip();
const wantedRow = conversations.findIndex((row) => row.id === start.c && row.branch === Number(start.b ?? 0));
const firstRow = wantedRow >= 0 ? wantedRow : (listed()[0]?.i ?? -1);
if (firstRow >= 0) open(firstRow, wantedRow >= 0 ? { token: Number(start.t ?? -1), pinned: start.pin === "1" } : {});
