// Something on a page, kept up to date: by events, or by asking again where none come.
import { follow } from "./live.js";

const POLL_MS = 1000;
const POLL_SLOWLY_MS = 10000;
const PATIENCE_MS = 30000;
const EVENTS_WITHIN_MS = 4000;
const WORDS = {
  live: "● live", reconnecting: "↻ reconnecting", polling: "○ asking every second",
  slowly: "○ asking now and then",
};

// `put` gets what `address` answers; `concerns` says which events are a reason to ask, `onSlow` is told
// whether half a minute of asking was not enough. Without an `address` only the badge is kept. Gives
// back `refresh` (now) and `soon`.
export function keepFresh({ address, events, put, pause, concerns = () => true, onSlow = () => {} }) {
  const badge = document.getElementById("live");
  let asking = false;
  let again = false;
  let timer = 0;

  async function refresh() {
    if (!address) return;
    if (asking) {
      again = true;
      return;
    }
    asking = true;
    try {
      const answer = await fetch(address, { cache: "no-store" });
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

  function soon() {
    if (!timer) timer = setTimeout(() => { timer = 0; refresh(); }, pause);
  }

  function show(state) {
    badge.hidden = false;
    badge.dataset.state = state;
    badge.textContent = WORDS[state];
  }

  let polling = 0;
  let began = 0;
  function poll() {
    const long = performance.now() - began > PATIENCE_MS;
    show(long ? "slowly" : "polling");
    if (long) onSlow(true);
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
    onSlow(false);
  }

  let streamed = false;
  const late = setTimeout(startPolling, EVENTS_WITHIN_MS);
  show("reconnecting");
  follow(events, {
    onEvent(event) {
      if (concerns(event)) soon();
    },
    onState(state) {
      clearTimeout(late);
      if (state === "live") {
        if (streamed) soon();
        streamed = true;
        stopPolling();
        show("live");
        return;
      }
      if (state !== "off" && streamed) show("reconnecting");
      startPolling();
    },
  });
  return { refresh, soon };
}

// A button's form is sent once, without leaving the page.
export async function act(event, soon) {
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
}
