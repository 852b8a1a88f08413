// Vega-Lite charts, drawn when they come into view, and again when the theme changes.

let vegaStarted = false;

// The library stands in the page as text, so that opening the page does not pay for it.
function startVega() {
  if (vegaStarted) return;
  vegaStarted = true;
  const script = document.createElement("script");
  script.textContent = document.getElementById("vega").textContent;
  document.head.append(script);
}

function themed(spec) {
  const style = getComputedStyle(document.documentElement);
  const [text, line, bar] = ["--text", "--line", "--link"].map((name) => style.getPropertyValue(name).trim());
  const axis = { labelColor: text, titleColor: text, gridColor: line, domainColor: line, tickColor: line };
  const config = { background: "transparent", axis, view: { stroke: line }, title: { color: text }, bar: { color: bar }, line: { color: bar }, point: { color: bar }, rule: { color: bar }, tick: { color: text } };
  return { ...spec, config: { ...spec.config, ...config } };
}

async function drawChart(figure) {
  startVega();
  const spec = themed(JSON.parse(figure.querySelector("script").textContent));
  const box = figure.querySelector(".chart");
  const { view } = await window.vegaEmbed(box, spec, { actions: false, defaultStyle: false, renderer: "svg" });
  const button = figure.querySelector("button");
  button.disabled = false;
  button.onclick = async () => {
    const background = getComputedStyle(document.documentElement).getPropertyValue("--back").trim();
    const image = document.createElement("a");
    const old = view.background();
    image.href = await view.background(background).toImageURL("png", 2);
    view.background(old);
    image.download = `${figure.dataset.name}.png`;
    image.click();
  };
}

const drawn = new Set();
const chartsInView = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) {
    if (isIntersecting && !drawn.has(target)) {
      drawn.add(target);
      drawChart(target);
    }
  }
});

function startCharts() {
  document.querySelectorAll("figure").forEach((figure) => chartsInView.observe(figure));
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((each) => (each.open = true)));
  addEventListener("beforeprint", () => document.querySelectorAll("figure").forEach((figure) => {
    if (!drawn.has(figure)) drawChart(figure);
    drawn.add(figure);
  }));
}

function redrawCharts() {
  drawn.forEach(drawChart);
}
