// One event stream per browser, however many tabs: the tab that has the lock reads it and tells the
// others. When it is closed the next tab takes over. A browser has only six connections per host.
const KINDS = [
  "snapshot", "added", "claimed", "stage_finished", "retried", "failed", "reclaimed", "released",
  "triggered", "reopened", "cancelled",
];

export function follow(url, { onEvent, onState }) {
  const name = `onceflow-live ${url}`;
  const channel = new BroadcastChannel(name);
  let last = 0;
  let closed = false;

  const take = (event) => {
    if (event.kind !== "snapshot" && event.seq <= last) return;
    last = Math.max(last, event.seq);
    onEvent(event);
  };
  channel.onmessage = ({ data }) => {
    if (data.event) take(data.event);
    if (data.state) onState(data.state);
    if (data.ask && leading) channel.postMessage({ state: leading });
  };
  let leading = "";

  const tell = (state) => {
    leading = state;
    onState(state);
    channel.postMessage({ state });
  };

  const lead = () =>
    new Promise((resolve) => {
      const address = new URL(url, location.href);
      if (last) address.searchParams.set("after", String(last));
      tell("reconnecting");
      const source = new EventSource(address);
      source.onopen = () => tell("live");
      source.onerror = () => tell(source.readyState === EventSource.CLOSED ? "off" : "reconnecting");
      for (const kind of KINDS) {
        source.addEventListener(kind, (message) => {
          const event = { ...JSON.parse(message.data), kind };
          take(event);
          channel.postMessage({ event });
        });
      }
      addEventListener("pagehide", () => {
        closed = true;
        source.close();
        resolve();
      });
    });

  if (navigator.locks) {
    channel.postMessage({ ask: true });
    navigator.locks.request(name, () => (closed ? undefined : lead())).catch(() => onState("off"));
  } else {
    lead();
  }
}
