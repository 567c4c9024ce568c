// The articles of this page, kept up to date: by events, or by asking again where none come.
import { follow } from "./live.js";

const POLL_MS = 1000;
const POLL_SLOWLY_MS = 10000;
const PATIENCE_MS = 30000;
const EVENTS_WITHIN_MS = 4000;
const root = document.documentElement.dataset.root;
const box = document.getElementById("cards");
const badge = document.getElementById("live");
const slow = document.getElementById("slow");
const ids = box.dataset.ids;
const mine = new Set(ids.split(",").filter(Boolean).map(Number));

let asking = false;
let again = false;
async function refresh() {
  if (!mine.size) return;
  if (asking) {
    again = true;
    return;
  }
  asking = true;
  try {
    const answer = await fetch(`${root}/admin/cards?ids=${ids}`, { cache: "no-store" });
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
  if (!timer) timer = setTimeout(() => { timer = 0; refresh(); }, 60);
}

// Only cards that changed are replaced: what is open or focused elsewhere stays as it is.
function put(text) {
  const fresh = new DOMParser().parseFromString(text, "text/html");
  for (const card of fresh.querySelectorAll("article")) {
    const old = document.getElementById(card.id);
    if (!old) box.append(document.adoptNode(card));
    else if (old.dataset.shown !== card.outerHTML && !same(old, card)) replace(old, card);
  }
}

function same(old, card) {
  const plain = (node) => {
    const copy = node.cloneNode(true);
    copy.removeAttribute("data-shown");
    for (const part of copy.querySelectorAll("details")) part.removeAttribute("open");
    for (const part of copy.querySelectorAll("button")) part.removeAttribute("disabled");
    return copy.outerHTML;
  };
  return plain(old) === plain(card);
}

function replace(old, card) {
  const open = [...old.querySelectorAll("details")].map((part) => part.open);
  const node = document.adoptNode(card);
  [...node.querySelectorAll("details")].forEach((part, at) => { part.open = Boolean(open[at]); });
  old.replaceWith(node);
}

// --- live, or polling ---

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
  if (long) {
    slow.hidden = false;
    slow.textContent = "This takes longer than half a minute; the page goes on asking, slowly.";
  }
  refresh();
  polling = setTimeout(poll, long ? POLL_SLOWLY_MS : POLL_MS);
}
function startPolling() {
  if (polling) return;
  began = performance.now();
  poll();
}
function stopPolling() {
  clearTimeout(polling);
  polling = 0;
  slow.hidden = true;
}

let streamed = false;
const late = setTimeout(startPolling, EVENTS_WITHIN_MS);
show("reconnecting");
follow(`${root}/api/events?pipeline=ingest`, {
  onEvent(event) {
    if (event.kind === "snapshot" || mine.has(event.item)) soon();
  },
  onState(state) {
    clearTimeout(late);
    if (state === "live") {
      if (streamed) soon();
      streamed = true;
      stopPolling();
      show("live");
    } else if (state === "off" || !streamed) {
      startPolling();
    } else {
      show("reconnecting");
      startPolling();
    }
  },
});

// --- buttons ---

document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (form.id === "add") {
    if (form.dataset.sent) event.preventDefault();  // a double click is one
    form.dataset.sent = "yes";
    return;
  }
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
addEventListener("pageshow", () => {
  const form = document.getElementById("add");
  delete form.dataset.sent;
});
