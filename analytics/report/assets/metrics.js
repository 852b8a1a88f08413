// The numbers by which tokens are coloured.

const METRICS = {
  logprob: { title: "logprob", relation: "below", value: (c, i) => c.logprob[i], salience: (x) => -x },
  rank: { title: "rank", relation: "above", value: (c, i) => c.rank[i] || NaN, salience: (x) => x },
  entropy: { title: "entropy", relation: "above", value: (c, i) => c.entropy[i], salience: (x) => x },
  gjs: { title: "GJS (lower limit)", relation: "above", value: (c, i) => c.gjs_lower[i], salience: (x) => x },
  kl: { title: "KL(T||S), exact", relation: "above", value: (c, i) => c.kl[i], salience: (x) => x },
  delta: {
    title: "delta: logprob of teacher less student",
    relation: "beyond ±",
    value: (c, i) => c.logprob[i] - c.student_logprob[i],
    salience: Math.abs,
    sides: ["the teacher's", "the student's"],
  },
  recorded: {
    title: "scored less recorded logprob",
    relation: "beyond ±",
    value: (c, i) => (c.recorded ? c.logprob[i] - c.recorded[i] : NaN),
    salience: Math.abs,
    sides: ["the scored", "the recorded"],
  },
};

// Level of every token: the number of limits that its salience exceeds, -1 where it has no value.
function levelsOf(conversation, metric, limits) {
  const { value, salience, sides } = METRICS[metric];
  const levels = new Int8Array(conversation.length);
  const negative = new Uint8Array(conversation.length);
  for (let i = 0; i < conversation.length; i++) {
    const x = value(conversation, i);
    const s = salience(x);
    levels[i] = Number.isNaN(x) ? -1 : limits.reduce((n, limit) => n + (limit !== null && s > limit), 0);
    negative[i] = sides && x < 0 ? 1 : 0;
  }
  return { levels, negative };
}

function shownTokens(n) {
  return `${n.toLocaleString("en")} ${n === 1 ? "token" : "tokens"}`;
}

function shownNumber(x) {
  if (x === null || x === undefined || Number.isNaN(x)) return "–";
  if (!Number.isFinite(x)) return x > 0 ? "∞" : "−∞";
  const rounded = Math.abs(x) >= 1e-3 || x === 0 ? String(Number(x.toPrecision(4))) : x.toExponential(2);
  return rounded.replace("-", "−");
}

function shownShare(logprob) {
  const share = 100 * Math.exp(logprob);
  return share >= 0.01 ? `${share.toPrecision(3)} %` : `${share.toExponential(1)} %`;
}
