// The articles of this page, kept up to date.
import { act, keepFresh } from "./fresh.js";

const root = document.documentElement.dataset.root;
const box = document.getElementById("cards");
const slow = document.getElementById("slow");
const ids = box.dataset.ids;
const mine = new Set(ids.split(",").filter(Boolean).map(Number));

const { soon } = keepFresh({
  address: mine.size ? `${root}/admin/cards?ids=${ids}` : "",
  events: `${root}/api/events?pipeline=ingest`,
  put,
  pause: 60,
  concerns: (event) => event.kind === "snapshot" || mine.has(event.item),
  onSlow(long) {
    slow.hidden = !long;
    slow.textContent = "This takes longer than half a minute; the page goes on asking, slowly.";
  },
});

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

// --- buttons ---

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.id === "add") {
    if (form.dataset.sent) event.preventDefault();  // a double click is one
    form.dataset.sent = "yes";
  } else {
    act(event, soon);
  }
});
addEventListener("pageshow", () => {
  const form = document.getElementById("add");
  delete form.dataset.sent;
});
