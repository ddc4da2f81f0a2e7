// The stream of a search: rows are added as they are found, and the search stops when the page says so.
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

  function end(state) {
    source.close(); // at once: the server stops searching, and the browser does not try again by itself
    box.dataset.state = state;
    stop.disabled = true;
    if (state !== "ended") document.getElementById(state).hidden = false;
  }
  source.addEventListener("found", (event) => {
    const before = rows.rows.length;
    rows.insertAdjacentHTML("beforeend", event.data);
    found += rows.rows.length - before;
    while (rows.rows.length > MOST_ROWS) rows.rows[0].remove();
    shown.textContent = rows.rows.length < found
      ? `the last ${rows.rows.length.toLocaleString("en")} of ${found.toLocaleString("en")}` : found.toLocaleString("en");
  });
  source.addEventListener("count", (event) => { count.innerHTML = event.data; });
  source.addEventListener("end", (event) => { count.innerHTML = event.data; end("ended"); });
  source.addEventListener("error", () => end("lost"));
  stop.addEventListener("click", () => end("stopped"));
})();
