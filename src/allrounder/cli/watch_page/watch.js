// Asks for the state every two seconds and shows it. Every text goes through textContent or escape().
"use strict";

const PERIOD = 2000;
const COLORS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31", "#7f7f7f"];
const DASHES = ["solid", "dash", "dot", "dashdot"];
const LONG = 30; // Longer cells of a table may break into lines.
const get = (id) => document.getElementById(id);
// A panel becomes narrower when the next one appears.
const sizes = new ResizeObserver((entries) => {
  for (const {target} of entries) {
    if (target.classList.contains("js-plotly-plot")) window.Plotly.Plots.resize(target);
  }
});
let selected = null;
let state = null;
let drawn = "";
let plotlyRequested = false;

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function make(tag, parent, text = "") {
  const element = document.createElement(tag);
  element.textContent = text;
  parent.append(element);
  return element;
}

// Plotly reads tags in texts.
function escape(text) {
  return String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

function formatSeconds(seconds) {
  if (seconds === null) return "unknown";
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 72) return `${hours} h ${String(minutes % 60).padStart(2, "0")} min`;
  return `${Math.floor(hours / 24)} days ${hours % 24} h`;
}

function formatNumber(value, percent) {
  if (value === null || value === undefined) return "";
  return percent ? `${value.toFixed(1)}%` : String(Number(value.toPrecision(4)));
}

function describePhase(part) {
  if (part.phase === "finished" && state.kind === "study") return part.message;
  return part.phase === "damaged" ? `damaged: ${part.message}` : part.phase;
}

function describeEta(part) {
  if (part.phase === "finished" || part.phase === "evaluating") return "done";
  return part.phase === "running" ? formatSeconds(part.eta) : "";
}

// Fills a table, keeping its elements, so that the focus and the position of the reader stay.
function fillTable(table, header, rows) {
  fillRows(table.tHead, [header], "th");
  fillRows(table.tBodies[0], rows, "td");
}

function fillRows(body, rows, tag) {
  while (body.rows.length > rows.length) body.deleteRow(-1);
  rows.forEach((cells, number) => {
    const row = body.rows[number] ?? body.insertRow();
    while (row.cells.length > cells.length) row.deleteCell(-1);
    cells.forEach((cell, column) => {
      const element = row.cells[column] ?? make(tag, row);
      if (tag === "th") element.scope = "col";
      if (cell instanceof Object) fillButton(element, cell);
      else setText(element, cell);
      element.className = cell.length > LONG ? "long" : "";
    });
  });
}

function fillButton(cell, {text, number, pressed}) {
  let button = cell.querySelector("button");
  if (button === null) {
    cell.textContent = "";
    button = make("button", cell);
    button.type = "button";
    button.addEventListener("click", () => { selected = number; refresh(); });
  }
  setText(button, text);
  button.setAttribute("aria-pressed", String(pressed));
}

function showPhase(phase, text, message) {
  setText(get("phase"), text);
  get("phase").dataset.phase = phase;
  setText(get("message"), message);
}

function showProgress() {
  const percent = Math.floor(100 * state.progress);
  const unit = state.kind === "study" ? "trainings" : "epochs";
  const count = state.epochs ? `${state.epoch} of ${state.epochs} ${unit}` : "";
  setText(get("title"), state.label || "allrounder watch");
  setText(get("folder"), state.folder);
  showPhase(state.phase, state.phase, state.message);
  document.title = `${percent}% ${state.label}`;
  get("bar").setAttribute("aria-valuenow", String(percent));
  get("bar").setAttribute("aria-valuetext", `${percent}%${count ? `, ${count}` : ""}, ${state.phase}`);
  get("fill").style.width = `${100 * state.progress}%`;
  const facts = [["Progress", `${percent}%`]];
  if (count) facts.push([state.kind === "study" ? "Trainings" : "Epochs", `${state.epoch} of ${state.epochs}`]);
  facts.push(["Time so far", formatSeconds(state.elapsed)]);
  if (state.phase === "running" && state.progress < 1) facts.push(["Time left", formatSeconds(state.eta)]);
  if (state.epoch_seconds) facts.push(["Per epoch", formatSeconds(state.epoch_seconds)]);
  if (state.steps_per_second) facts.push(["Speed", `${formatNumber(state.steps_per_second)} steps/s`]);
  const list = get("facts");
  list.replaceChildren();
  for (const [name, text] of facts) {
    const group = make("div", list);
    make("dt", group, name);
    make("dd", group, text);
  }
}

function showParts() {
  get("parts").hidden = state.parts.length === 0;
  setText(get("parts-title"), state.kind === "pipeline" ? "Stages" : "Trainings");
  const seeds = state.parts.some((part) => part.seed !== null);
  const header = ["training", ...(seeds ? ["seed"] : []), "state", "epochs", "time so far", "time left"];
  const rows = state.parts.map((part, number) => [
    {text: part.label, number, pressed: number === state.selected},
    ...(seeds ? [String(part.seed ?? "")] : []),
    describePhase(part),
    part.epochs ? `${part.epoch} of ${part.epochs}` : "",
    part.elapsed ? formatSeconds(part.elapsed) : "",
    describeEta(part),
  ]);
  fillTable(get("parts").querySelector("table"), header, rows);
}

function showLatest() {
  const rows = [];
  for (const chart of state.charts) {
    for (const series of chart.series) {
      const numbers = series.y.filter((value) => value !== null);
      if (numbers.length === 0) continue;
      const limits = [Math.min(...numbers), Math.max(...numbers)];
      const cells = [numbers.at(-1), ...limits].map((value) => formatNumber(value, chart.y.percent));
      rows.push([`${chart.title}: ${series.name}`, ...cells]);
    }
  }
  get("latest").hidden = rows.length === 0;
  fillTable(get("latest").querySelector("table"), ["curve", "latest", "lowest", "highest"], rows);
}

function loadPlotly() {
  if (plotlyRequested) return;
  plotlyRequested = true;
  const script = document.createElement("script");
  script.src = "plotly.js";
  script.addEventListener("load", () => { drawn = ""; showCharts(); });
  document.head.append(script);
}

function showCharts() {
  const part = state.parts[state.selected];
  const best = state.best_epoch === null ? "" : ` (best weights: epoch ${state.best_epoch})`;
  get("curves-title").hidden = state.charts.length === 0;
  const seed = part === undefined || part.seed === null ? "" : `, seed ${part.seed}`;
  setText(get("curves-title"), `Curves${part === undefined ? "" : ` of ${part.label}${seed}`}${best}`);
  const hasExchanges = state.charts.some((chart) => chart.marks.length > 0);
  get("marks").hidden = !state.has_plotly || !hasExchanges;
  get("hint").hidden = state.has_plotly;
  const content = JSON.stringify(state.charts);
  if (content === drawn) return;
  drawn = content;
  const parent = get("charts");
  const names = state.charts.map((chart) => chart.name);
  for (const panel of [...parent.children]) {
    if (!names.includes(panel.dataset.name)) panel.remove();
  }
  state.charts.forEach((chart, number) => {
    const panel = [...parent.children].find((item) => item.dataset.name === chart.name) ?? makePanel(chart);
    if (parent.children[number] !== panel) parent.insertBefore(panel, parent.children[number]);
    showNumbers(panel, chart);
    if (window.Plotly) drawChart(panel.querySelector(".plot"), chart, (part ?? state).epochs);
  });
}

function makePanel(chart) {
  const panel = make("section", get("charts"));
  panel.className = "chart";
  panel.dataset.name = chart.name;
  make("h2", panel, chart.title);
  make("p", panel, chart.about);
  if (state.has_plotly) {
    const plot = make("div", panel);
    plot.className = "plot";
    plot.setAttribute("role", "img");
    plot.setAttribute("aria-label", `${chart.title} by epoch; the numbers are in the table below`);
    sizes.observe(plot);
  }
  const details = make("details", panel);
  details.open = !state.has_plotly;
  make("summary", details, "Numbers");
  const scroll = make("div", details);
  scroll.className = "scroll tall";
  scroll.tabIndex = 0;
  const table = make("table", scroll);
  table.createTHead();
  table.createTBody();
  return panel;
}

function showNumbers(panel, chart) {
  const epochs = [...new Set(chart.series.flatMap((series) => series.x))].sort((a, b) => b - a);
  const columns = chart.series.map((series) => new Map(series.x.map((x, i) => [x, series.y[i]])));
  const exchanges = new Set(chart.marks.map(([epoch]) => epoch));
  const rows = epochs.map((epoch) => [
    String(epoch), ...columns.map((values) => formatNumber(values.get(epoch), chart.y.percent)),
    ...(exchanges.size ? [exchanges.has(epoch) ? "yes" : ""] : [])]);
  const names = chart.series.map((series) => series.name);
  const header = ["epoch", ...names, ...(exchanges.size ? ["exchange"] : [])];
  fillTable(panel.querySelector("table"), header, rows);
}

function drawChart(plot, chart, epochs) {
  const style = getComputedStyle(document.documentElement);
  const [text, line] = ["--text", "--line"].map((name) => style.getPropertyValue(name).trim());
  const traces = chart.series.map((series, number) => ({
    x: series.x, y: series.y, name: escape(series.name), mode: "lines+markers", type: "scatter",
    line: {color: COLORS[number % COLORS.length], dash: DASHES[Math.floor(number / COLORS.length) % 4]},
    marker: {size: 5}, hovertemplate: `%{y:.4g}${chart.y.percent ? "%" : ""}`,
  }));
  const axis = {gridcolor: line, zerolinecolor: line, automargin: true};
  const layout = {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: {color: text},
    margin: {l: 45, r: 10, t: 10, b: 40}, hovermode: "x unified", showlegend: true,
    hoverlabel: {bgcolor: style.getPropertyValue("--panel").trim(), font: {color: text}},
    legend: {orientation: "h", y: 1.02, yanchor: "bottom"},
    xaxis: {
      ...axis, title: {text: escape(chart.x.title)}, range: [0, 1.02 * epochs],
      ...(epochs <= 12 ? {dtick: 1} : {}),
    },
    yaxis: {
      ...axis, title: {text: escape(chart.y.title)}, ...(chart.name === "share" ? {range: [0, 1.05]} : {}),
    },
    shapes: chart.marks.map(([x]) => ({
      type: "line", x0: x, x1: x, y0: 0, y1: 1, yref: "paper", layer: "below",
      line: {color: style.getPropertyValue("--dim").trim(), width: 1, dash: "dot"},
    })),
  };
  window.Plotly.react(plot, traces, layout, {displayModeBar: false});
}

async function refresh() {
  const asked = selected;
  try {
    const answer = await fetch(asked === null ? "state.json" : `state.json?part=${asked}`);
    if (!answer.ok) throw new Error(await answer.text());
    const news = await answer.json();
    if (asked !== selected) return; // Another training was selected meanwhile.
    state = news;
    showProgress();
    showParts();
    showLatest();
    if (state.has_plotly) loadPlotly();
    showCharts();
  } catch (error) {
    showPhase("damaged", "no answer", `${error.message}: is allrounder watch still running?`);
  }
}

async function poll() {
  await refresh();
  setTimeout(poll, PERIOD);
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  drawn = "";
  if (state !== null) showCharts();
});
poll();
