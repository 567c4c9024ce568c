// One part of a page, kept up to date.
import { act, keepFresh } from "./fresh.js";

const box = document.getElementById("part");
const every = Number(box.dataset.every || 0);
const { refresh, soon } = keepFresh({
  address: box.dataset.part,
  events: box.dataset.events,
  put,
  pause: Number(box.dataset.pause || 120),
});
if (every) setInterval(() => { if (!document.hidden) refresh(); }, every);
box.addEventListener("submit", (event) => act(event, soon));

// What is open stays open, and who has the keyboard keeps it.
let shown = "";
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
