// Replaces what the page shows whenever the node sends it again. Without this script the page reloads itself.
"use strict";
const main = document.getElementById("main");
const live = document.getElementById("live");
const events = new EventSource("/events");
events.onmessage = (e) => {
  const page = JSON.parse(e.data);
  main.innerHTML = page.main;
  document.title = page.title;
  live.textContent = "live";
};
events.onopen = () => { live.textContent = "live"; };
events.onerror = () => { live.textContent = "no connection to the node: what is shown is old"; };
