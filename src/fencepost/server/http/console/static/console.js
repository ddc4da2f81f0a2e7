// The console's own script: the theme, the line that says whether the page is live, charts, tables on a phone.
"use strict";

const kept = (() => { try { return localStorage.getItem("theme"); } catch { return null; } })();
if (kept) document.documentElement.dataset.theme = kept; // before the body is drawn, so that nothing flashes

const charts = new Map(); // by the id of the figure

function draw(figure) {
  const points = JSON.parse(figure.dataset.points);
  const known = charts.get(figure.id);
  if (known && known.root.isConnected) {
    if (known.points !== figure.dataset.points) known.plot.setData(points);
    known.points = figure.dataset.points;
    return;
  }
  const root = document.createElement("div");
  root.className = "drawn";
  figure.append(root);
  const colour = (name) => { root.style.color = `var(${name})`; return getComputedStyle(root).color; }; // of this theme
  const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line") }, ticks: { stroke: colour("--line") } };
  // Hours as the server writes them, and with room between them. Within a few minutes the seconds tell them apart.
  const times = (_, ticks, __, ___, step) =>
    ticks.map((tick) => new Date(tick * 1000).toTimeString().slice(0, step < 60 ? 8 : 5));
  // 28: the padding of the figure; on the right there is room for half a time.
  const plot = new uPlot({
    width: Math.max(figure.clientWidth - 28, 200), height: 180, padding: [null, 30, null, null], cursor: { y: false }, legend: { show: false },
    scales: { x: { range: (_, low, high) => [Math.min(low ?? high, high - 60), high] }, y: { range: (_, low, high) => [0, Math.max(high, 1)] } },
    axes: [{ ...axis, space: 80, values: times }, { ...axis, size: 70, values: (_, ticks) => ticks.map((tick) => tick.toLocaleString("en")) }],
    series: [{}, { stroke: colour("--series"), width: 2 }],
  }, points, root);
  charts.set(figure.id, { plot, root, points: figure.dataset.points });
}

function drawAll() {
  if (typeof uPlot === "undefined") return;
  document.querySelectorAll("figure.chart").forEach(draw);
}

function redrawAll() {
  for (const { plot, root } of charts.values()) { plot.destroy(); root.remove(); }
  charts.clear();
  drawAll();
}

function say(state) {
  const line = document.getElementById("connection");
  if (line) { line.textContent = line.dataset[state]; line.className = state; }
}

// On a phone a row is a block, and each cell says what it is.
function nameCells() {
  document.querySelectorAll("table:not(#records)").forEach((table) => {
    const names = [...table.querySelectorAll("thead th")].map((each) => each.textContent);
    table.querySelectorAll("tbody tr").forEach((row) =>
      [...row.cells].forEach((cell, at) => { if (cell.colSpan === 1) cell.dataset.name = names[at]; }));
  });
}

function refresh() { drawAll(); nameCells(); }

document.addEventListener("DOMContentLoaded", () => {
  document.getElementById("theme").addEventListener("click", () => {
    const dark = document.documentElement.dataset.theme
      ? document.documentElement.dataset.theme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
    const next = dark ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    try { localStorage.setItem("theme", next); } catch { /* the choice holds for this page only */ }
    redrawAll();
  });
  // What the server sends has no drawn charts in it: those of the page stay.
  Idiomorph.defaults.callbacks.beforeNodeRemoved = (node) => !node.classList?.contains("drawn");
  // The script of the charts is deferred too, and is there by now.
  refresh();
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; redrawAll(); } });
  // A browser has six connections to a server, for all its windows together: a page that nobody sees keeps none.
  let stream = null;
  htmx.createEventSource = (address) => {
    stream?.close();
    stream = new EventSource(address);
    if (document.hidden) stream.close();
    return stream;
  };
  document.addEventListener("visibilitychange", () => {
    if (!stream) return;
    if (document.hidden) stream.close();
    else if (stream.readyState === EventSource.CLOSED) {
      const live = document.getElementById("live");
      live.dataset.opened = Date.now(); // htmx connects again when an attribute is another
      htmx.process(live);
    }
  });
  // The server ends the stream at a logout, before the next page is there: that is no error. A page that comes back
  // from the browser's memory is loaded again, because its stream is closed and its user may have logged out.
  addEventListener("beforeunload", () => stream?.close());
  addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
  document.body.addEventListener("htmx:sseOpen", () => say("live"));
  document.body.addEventListener("htmx:sseError", () => say("lost"));
  document.body.addEventListener("htmx:sseMessage", refresh);
  document.body.addEventListener("htmx:afterSwap", refresh);
  document.body.addEventListener("htmx:sseBeforeMessage", (event) => {
    if (event.detail.type === "reload") { event.preventDefault(); location.reload(); }
  });
});
