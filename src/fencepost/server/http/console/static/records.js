// The stream of a search: rows are added as they are found, the newest on top, and the search stops when the page says so.
"use strict";

(() => {
  const MOST_ROWS = 1000; // while following: older rows make way
  const box = document.getElementById("search");
  const rows = document.querySelector("#records tbody");
  const count = document.getElementById("count");
  const shown = document.getElementById("shown");
  const stop = document.getElementById("stop");
  let found = 0;
  const source = new EventSource(box.dataset.stream);

  function isNewer(row, other) { // the newest row comes first
    const [time, offset] = [row.dataset.time - other.dataset.time, row.dataset.offset - other.dataset.offset];
    return time ? time > 0 : offset > 0;
  }

  function end(state) {
    source.close(); // at once: the server stops searching, and the browser does not try again by itself
    box.dataset.state = state;
    stop.disabled = true;
    if (state !== "ended") document.getElementById(state).hidden = false;
  }
  source.addEventListener("found", (event) => {
    const added = document.createElement("tbody");
    added.innerHTML = event.data;
    for (const row of [...added.rows]) {
      rows.insertBefore(row, [...rows.rows].find((other) => isNewer(row, other)) ?? null);
      found += 1;
    }
    while (rows.rows.length > MOST_ROWS) rows.rows[rows.rows.length - 1].remove();
    shown.textContent = rows.rows.length < found
      ? `the last ${rows.rows.length.toLocaleString("en")} of ${found.toLocaleString("en")}` : found.toLocaleString("en");
  });
  source.addEventListener("count", (event) => { count.innerHTML = event.data; });
  source.addEventListener("end", (event) => { count.innerHTML = event.data; end("ended"); });
  source.addEventListener("error", () => end("lost"));
  stop.addEventListener("click", () => end("stopped"));
})();
