// One part of a page, kept up to date: by events where there are any, else by asking again.
import { follow } from "./live.js";

const POLL_MS = 1000;
const POLL_SLOWLY_MS = 10000;
const PATIENCE_MS = 30000;
const EVENTS_WITHIN_MS = 4000;
const box = document.getElementById("part");
const badge = document.getElementById("live");
const every = Number(box.dataset.every || 0);
const pause = Number(box.dataset.pause || 120);

let shown = "";
let asking = false;
let again = false;
async function refresh() {
  if (asking) {
    again = true;
    return;
  }
  asking = true;
  try {
    const answer = await fetch(box.dataset.part, { cache: "no-store" });
    if (answer.ok) put(await answer.text());
  } catch {
    // The server is away; the stream or the next poll says when it is back.
  } finally {
    asking = false;
    if (again) {
      again = false;
      soon();
    }
  }
}

let timer = 0;
function soon() {
  if (!timer) timer = setTimeout(() => { timer = 0; refresh(); }, pause);
}

// What is open stays open, and who has the keyboard keeps it.
function put(text) {
  if (text === shown) return;
  const first = shown === "";
  shown = text;
  const fresh = new DOMParser().parseFromString(text, "text/html");
  const open = [...box.querySelectorAll("details")].map((part) => part.open);
  const focused = box.contains(document.activeElement)
    ? [...box.querySelectorAll("a, button, summary")].indexOf(document.activeElement) : -1;
  box.replaceChildren(...[...fresh.body.childNodes].map((node) => document.adoptNode(node)));
  const parts = [...box.querySelectorAll("details")];
  if (parts.length === open.length) parts.forEach((part, at) => { part.open = open[at]; });
  if (focused >= 0) box.querySelectorAll("a, button, summary")[focused]?.focus();
  if (!first) box.dispatchEvent(new Event("refreshed"));
}

const words = {
  live: "● live", reconnecting: "↻ reconnecting", polling: "○ asking every second",
  slowly: "○ asking now and then",
};
function show(state) {
  badge.hidden = false;
  badge.dataset.state = state;
  badge.textContent = words[state];
}

let polling = 0;
let began = 0;
function poll() {
  const long = performance.now() - began > PATIENCE_MS;
  show(long ? "slowly" : "polling");
  refresh();
  polling = setTimeout(poll, long ? POLL_SLOWLY_MS : POLL_MS);
}
function startPolling() {
  if (polling) return;
  began = performance.now();
  poll();
}

show("reconnecting");
const late = setTimeout(startPolling, EVENTS_WITHIN_MS);
let streamed = false;
follow(box.dataset.events, {
  onEvent: soon,
  onState(state) {
    clearTimeout(late);
    if (state === "live") {
      if (streamed) soon();
      streamed = true;
      clearTimeout(polling);
      polling = 0;
      show("live");
    } else if (state === "off" || !streamed) {
      startPolling();
    } else {
      show("reconnecting");
      startPolling();
    }
  },
});
if (every) setInterval(() => { if (!document.hidden) refresh(); }, every);

// A button of the part: once, without leaving the page.
box.addEventListener("submit", async (event) => {
  const form = event.target;
  if (!form.classList.contains("act")) return;
  event.preventDefault();
  const button = form.querySelector("button");
  if (button.disabled) return;
  button.disabled = true;
  try {
    await fetch(form.action, {
      method: "POST", body: new URLSearchParams(new FormData(form)), redirect: "manual",
    });
  } catch {
    button.disabled = false;
  }
  soon();
});
