"use strict";
// The script of the page: theme, sorting, the filter of rows, and charts that are drawn when they come into view.
// Without it, the page shows all texts and numbers.
(() => {
  const root = document.documentElement;
  const byId = (id) => document.getElementById(id);
  const all = (selector, parent = document) => [...parent.querySelectorAll(selector)];
  const hiddenRows = new Set();
  const isHidden = (row) => hiddenRows.has(row);

  // ---- Theme: the choice of the button, else the preference of the system. ----
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  const memory = {
    // Pages that are opened as files may have no storage.
    get: () => { try { return localStorage.getItem("theme"); } catch { return null; } },
    set: (theme) => { try { localStorage.setItem("theme", theme); } catch { /* the choice is not remembered */ } },
  };
  let chosenTheme = memory.get();

  function applyTheme() {
    const isDark = (chosenTheme ?? (prefersDark.matches ? "dark" : "light")) === "dark";
    root.dataset.theme = isDark ? "dark" : "light";
    byId("theme").setAttribute("aria-pressed", String(isDark));
    refreshCharts();
  }

  function toggleTheme() {
    chosenTheme = root.dataset.theme === "dark" ? "light" : "dark";
    memory.set(chosenTheme);
    applyTheme();
  }

  // ---- Sorting: a button in every heading; missing numbers stay at the end. ----
  function makeSortable(table) {
    all("thead tr:last-child th", table).forEach((heading, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = heading.textContent;
      button.addEventListener("click", () => sortBy(table, heading, column));
      heading.replaceChildren(button);
    });
  }

  function sortBy(table, heading, column) {
    const isText = "text" in heading.dataset;
    const previous = heading.getAttribute("aria-sort");
    const ascends = previous ? previous === "descending" : isText;
    all("thead th", table).forEach((other) => other.removeAttribute("aria-sort"));
    heading.setAttribute("aria-sort", ascends ? "ascending" : "descending");
    const sign = ascends ? 1 : -1;
    const value = (row) => {
      const cell = row.cells[column];
      if (isText) return cell.textContent;
      return "sort" in cell.dataset ? Number(cell.dataset.sort) : NaN;
    };
    const compare = (a, b) => {
      if (isText) return sign * a.localeCompare(b, "en", { numeric: true });
      if (Number.isNaN(a) || Number.isNaN(b)) return Number.isNaN(a) - Number.isNaN(b);
      return sign * (a - b);
    };
    const body = table.tBodies[0];
    body.append(...[...body.rows].sort((a, b) => compare(value(a), value(b))));
  }

  // ---- Filter: a row is shown if its box is checked and its name contains the searched text. ----
  const boxes = all("#filter input[type=checkbox]");
  const matches = (box) => box.value.toLowerCase().includes(byId("search").value.trim().toLowerCase());

  function applyFilter() {
    hiddenRows.clear();
    for (const box of boxes) {
      box.closest("li").hidden = !matches(box);
      if (!box.checked || !matches(box)) hiddenRows.add(box.value);
    }
    for (const element of all("[data-row]")) element.hidden = isHidden(element.dataset.row);
    for (const card of all(".card")) card.hidden = all("[data-row]", card).every((row) => row.hidden);
    all("th[data-column]").forEach(filterColumn);
    byId("shown").textContent = `${boxes.length - hiddenRows.size} of ${boxes.length} rows shown`;
    refreshCharts();
  }

  // Hide or show the column of numbers below a heading.
  function filterColumn(heading) {
    const hidden = isHidden(heading.dataset.column);
    if (heading.hidden === hidden) return;
    for (const row of heading.closest("table").rows) row.cells[heading.cellIndex].hidden = hidden;
  }

  function checkMatching(checked) {
    for (const box of boxes.filter(matches)) box.checked = checked;
    applyFilter();
  }

  const isTouched = matchMedia("(pointer: coarse)").matches;
  const CONFIG = {
    responsive: true,
    displaylogo: false,
    displayModeBar: isTouched ? false : "hover",
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
  };

  // ---- Charts: drawn when they come into view, one after the other, so that the page stays responsive. ----
  const charts = all(".chart");
  const inView = new Set();
  const waiting = new Set();
  const stateOf = new Map(); // the state (theme and filter) that a chart was drawn with
  let state = 0;
  let folded = null; // while the page is printed: what was folded before
  const PAPER_WIDTH = 640;

  function refreshCharts() {
    state += 1;
    inView.forEach((chart) => waiting.add(chart));
    schedule();
  }

  let isScheduled = false;
  function schedule() {
    if (isScheduled || !waiting.size) return;
    isScheduled = true;
    setTimeout(() => {
      isScheduled = false;
      const [chart] = waiting;
      if (!chart) return; // all of them were scrolled away
      waiting.delete(chart);
      draw(chart);
      schedule();
    });
  }

  function draw(chart) {
    if (stateOf.get(chart) === state) return;
    if (stateOf.has(chart)) {
      Plotly.update(chart, { visible: chart.data.map(isShown) }, lookOf(chart, chart.layout));
    } else {
      const { data, layout } = JSON.parse(byId(`${chart.id}-data`).textContent);
      for (const trace of data) trace.visible = isShown(trace);
      fit(layout, data, chart);
      for (const [path, value] of Object.entries(lookOf(chart, layout))) setPath(layout, path, value);
      Plotly.newPlot(chart, data, layout, CONFIG);
    }
    stateOf.set(chart, state);
  }

  const isShown = (trace) => !(trace.meta && isHidden(trace.meta.row));

  const axesOf = (layout) => Object.keys(layout).filter((key) => /^[xy]axis\d*$/.test(key));

  // The size, and the colours of the style sheet for everything but the series.
  function lookOf(chart, layout) {
    const style = getComputedStyle(root);
    const color = (name) => style.getPropertyValue(name).trim();
    const look = {
      ...(folded ? { width: PAPER_WIDTH, height: chart.clientHeight } : { autosize: true }),
      "font.color": color("--ink"),
      "paper_bgcolor": "rgba(0,0,0,0)",
      "plot_bgcolor": "rgba(0,0,0,0)",
      "legend.bgcolor": "rgba(0,0,0,0)",
      "hoverlabel.bgcolor": color("--panel"),
      "hoverlabel.bordercolor": color("--line"),
      "hoverlabel.font.color": color("--ink"),
      "modebar.bgcolor": "rgba(0,0,0,0)",
      "modebar.color": color("--muted"),
      "modebar.activecolor": color("--ink"),
    };
    for (const axis of axesOf(layout)) {
      look[`${axis}.gridcolor`] = color("--grid");
      look[`${axis}.zerolinecolor`] = color("--line");
      look[`${axis}.linecolor`] = color("--line");
      look[`${axis}.tickcolor`] = color("--line");
    }
    return look;
  }

  function setPath(value, path, leaf) {
    const keys = path.split(".");
    const last = keys.pop();
    for (const key of keys) value = value[key] ??= {};
    value[last] = leaf;
  }

  // Titles of axes break into lines where they are longer than their axis.
  function wrap(text, pixels) {
    const most = Math.max(20, pixels / 8);
    const lines = [""];
    for (const word of text.replaceAll("<br>", " ").split(" ")) {
      const line = lines.at(-1) ? `${lines.at(-1)} ${word}` : word;
      if (line.length > most && lines.at(-1)) lines.push(word);
      else lines[lines.length - 1] = line;
    }
    return lines.join("<br>");
  }

  // The chart fills its element. On small screens, its legend goes below it, and a finger scrolls the page
  // instead of zooming; rows in a long legend are named by the filter and when a point is touched.
  const NARROW = 600, LEGEND_LINE = 19, MAX_LEGEND = 12, AXIS = 90;
  function fit(layout, data, chart) {
    const height = layout.height;
    delete layout.height;
    layout.font = { ...layout.font, family: getComputedStyle(document.body).fontFamily };
    for (const axis of axesOf(layout)) {
      const room = axis.startsWith("x") ? chart.clientWidth - AXIS : height - 2 * AXIS;
      if (layout[axis].title?.text) layout[axis].title.text = wrap(layout[axis].title.text, room);
    }
    if (isTouched) layout.dragmode = false;
    if (chart.clientWidth < NARROW && layout.showlegend) {
      layout.showlegend = data.length <= MAX_LEGEND;
      const legend = layout.showlegend ? LEGEND_LINE * data.length : 0;
      layout.legend = { orientation: "v", x: 0, xanchor: "left", yref: "container", y: 0, yanchor: "bottom" };
      layout.margin = { ...layout.margin, t: 16, r: 12, b: AXIS + legend };
      chart.style.setProperty("--height", `${height + legend}px`);
    }
  }

  const observer = new IntersectionObserver((changes) => {
    for (const { target, isIntersecting } of changes) {
      if (isIntersecting) {
        inView.add(target);
        waiting.add(target);
      } else {
        inView.delete(target);
        waiting.delete(target);
      }
    }
    schedule();
  }, { rootMargin: "300px" });

  // ---- Print: light colours, everything unfolded and drawn at the width of paper. ----
  function preparePrint() {
    if (folded) return;
    folded = all("details:not([open])");
    folded.forEach((details) => { details.open = true; });
    root.dataset.theme = "light";
    state += 1;
    charts.filter((chart) => chart.checkVisibility()).forEach(draw);
  }

  function endPrint() {
    if (!folded) return;
    folded.forEach((details) => { details.open = false; });
    folded = null;
    applyTheme();
  }

  // ---- Start ----
  root.classList.add("scripted-page");
  for (const element of [byId("theme"), byId("filter"), ...all(".scripted")]) element.hidden = false;
  all("table.sortable").forEach(makeSortable);
  if (matchMedia("(max-width: 40rem)").matches) byId("choose").open = false;
  byId("theme").addEventListener("click", toggleTheme);
  prefersDark.addEventListener("change", applyTheme);
  byId("search").addEventListener("input", applyFilter);
  boxes.forEach((box) => box.addEventListener("change", applyFilter));
  byId("all").addEventListener("click", () => checkMatching(true));
  byId("none").addEventListener("click", () => checkMatching(false));
  byId("filter").addEventListener("submit", (event) => event.preventDefault());
  addEventListener("beforeprint", preparePrint);
  addEventListener("afterprint", endPrint);
  applyTheme();
  applyFilter();
  charts.forEach((chart) => observer.observe(chart));
})();
