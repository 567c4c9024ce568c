// The knowledge graph: articles in rings by depth, coloured by state, kept up to date while it grows.
import { follow } from "./live.js";

const REFETCH_MS = 2500;
const TYPING_MS = 350;
const LISTED_MAX = 200;
const LABELS_FROM = 8;
const FEW_EDGES = 5000;
const root = document.documentElement.dataset.root;
const at = (id) => document.getElementById(id);
const picture = at("picture");
const side = at("side");
const GAPS = [6, 4, 3, 2.6];  // between the articles of a ring, by depth
const STATES = ["discovered", "claimed", "loaded", "processed", "failed", "cancelled"];

// --- colours: what the page's style says, as the canvas needs them ---

const probe = document.createElement("span");
probe.hidden = true;
document.body.append(probe);
let colours = {};
function readColours() {
  const read = (name) => {
    probe.style.color = `var(${name})`;
    return getComputedStyle(probe).color;
  };
  colours = { line: read("--edge"), text: read("--text"), faint: read("--faint"), page: read("--card") };
  for (const state of STATES) colours[state] = read(`--state-${state}`);
}
// The label of the article under the pointer; sigma's own is always on white.
function hover(context, node, settings) {
  const size = settings.labelSize;
  context.font = `${settings.labelWeight} ${size}px ${settings.labelFont}`;
  context.beginPath();
  context.arc(node.x, node.y, node.size + 2, 0, Math.PI * 2);
  context.strokeStyle = colours.text;
  context.lineWidth = 2;
  context.stroke();
  if (!node.label) return;
  const left = node.x + node.size + 4;
  const width = context.measureText(node.label).width + 12;
  context.fillStyle = colours.page;
  context.fillRect(left, node.y - size, width, size * 2);
  context.lineWidth = 1;
  context.strokeRect(left, node.y - size, width, size * 2);
  context.fillStyle = colours.text;
  context.fillText(node.label, left + 6, node.y + size / 3);
}

const colourOf = (state) => colours[state] || colours.discovered;

// --- what is shown ---

const nodes = new Map();
let edges = [];
let total = 0;
let edgesCut = false;
let chosen = 0;
let near = new Set();

function size(depth, loaded) {
  const room = Math.max(0.45, Math.min(1, picture.clientWidth / 800));
  return [11, 6, 4, 3][Math.min(depth, 3)] * (loaded ? 1 : 0.7) * room;
}

// Rings by depth; within a ring next to where the article was linked from. A full ring has several
// rows, so that its area grows with its articles.
function place() {
  const rings = new Map();
  for (const node of nodes.values()) {
    if (!rings.has(node.depth)) rings.set(node.depth, []);
    rings.get(node.depth).push(node);
  }
  const parents = new Map();
  for (const [source, target] of edges) {
    const from = nodes.get(source);
    const to = nodes.get(target);
    if (from && to && from.depth < to.depth && !parents.has(target)) parents.set(target, from);
  }
  let radius = 0;
  for (const depth of [...rings.keys()].sort((a, b) => a - b)) {
    const ring = rings.get(depth);
    ring.sort((a, b) => {
      const first = parents.get(a.id)?.angle ?? 7;
      const second = parents.get(b.id)?.angle ?? 7;
      return first - second || a.id - b.id;
    });
    const alone = depth === 0 && ring.length === 1;
    const gap = GAPS[Math.min(depth, GAPS.length - 1)];
    if (!alone) radius += 2 * gap;
    const rows = Math.max(1, Math.ceil((ring.length * gap) / (2 * Math.PI * Math.max(radius, gap))));
    ring.forEach((node, number) => {
      node.angle = (2 * Math.PI * number) / ring.length;
      const far = alone ? 0 : radius + (number % rows) * gap;
      node.x = far * Math.cos(node.angle);
      node.y = far * Math.sin(node.angle);
    });
    radius += (rows - 1) * gap;
  }
}

// --- the picture ---

let graph = null;
let sigma = null;
let drawn = false;

function begin() {
  if (!window.graphology || !window.Sigma) return false;
  picture.hidden = false;
  graph = new window.graphology.Graph({ type: "directed", multi: false });
  fill();
  try {
    sigma = new window.Sigma(graph, picture, {
      hideEdgesOnMove: true,
      hideLabelsOnMove: true,
      labelRenderedSizeThreshold: LABELS_FROM,
      labelFont: "system-ui, sans-serif",
      labelColor: { color: colours.text },
      defaultDrawNodeHover: hover,
      defaultEdgeColor: colours.line,
      minEdgeThickness: 0.4,
      zIndex: true,
      nodeReducer: (key, data) => {
        if (!chosen) return data;
        if (Number(key) === chosen) return { ...data, size: data.size + 5, forceLabel: true, zIndex: 2 };
        if (near.has(Number(key))) return { ...data, forceLabel: near.size <= 40, zIndex: 1 };
        return { ...data, color: colours.faint, label: null, zIndex: 0 };
      },
      edgeReducer: (key, data) => {
        if (!chosen) return data;
        const [source, target] = graph.extremities(key).map(Number);
        if (source === chosen || target === chosen) return { ...data, color: colours.text, size: 1.4, zIndex: 1 };
        return { ...data, hidden: true };
      },
    });
  } catch {
    picture.hidden = true;
    sigma = null;
    say("There is no picture: this browser has no WebGL. Search and neighbours work without it.");
    return false;
  }
  at("tools").hidden = false;
  sigma.on("clickNode", ({ node }) => choose(Number(node)));
  sigma.on("clickStage", () => clear());
  sigma.on("enterNode", () => { picture.style.cursor = "pointer"; });
  sigma.on("leaveNode", () => { picture.style.cursor = ""; });
  requestAnimationFrame(() => {
    drawn = true;
    picture.dataset.drawn = String(graph.order);
  });
  return true;
}

function fill() {
  place();
  const keys = new Set();
  for (const node of nodes.values()) {
    const key = String(node.id);
    keys.add(key);
    const shown = {
      x: node.x, y: node.y, size: size(node.depth, node.loaded), label: node.title,
      color: colourOf(node.state),
    };
    if (graph.hasNode(key)) graph.mergeNodeAttributes(key, shown);
    else graph.addNode(key, shown);
  }
  for (const key of graph.nodes()) if (!keys.has(key)) graph.dropNode(key);
  const thick = edges.length < FEW_EDGES ? 1 : 0.5;
  for (const [source, target] of edges) {
    if (source !== target) graph.mergeEdge(String(source), String(target), { size: thick });
  }
}

function paint(id) {
  const node = nodes.get(id);
  if (sigma && node && graph.hasNode(String(id))) {
    graph.mergeNodeAttributes(String(id), {
      color: colourOf(node.state), size: size(node.depth, node.loaded),
    });
  }
}

function clear() {
  chosen = 0;
  near = new Set();
  sigma?.refresh();
}

// --- words ---

function say(text) {
  at("note").hidden = !text;
  at("note").textContent = text;
}

function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function link(node, more) {
  const button = element("button", undefined, "name");
  button.type = "button";
  button.append(dot(node.state), element("span", node.title, "outside"));
  if (more) button.append(element("span", more, "made"));
  button.addEventListener("click", () => choose(node.id ?? node.item));
  const item = document.createElement("li");
  item.append(button);
  return item;
}

function dot(state) {
  const mark = element("span", undefined, "dot");
  mark.dataset.state = state || "";
  mark.title = state || "";
  return mark;
}

function legend() {
  const counts = new Map();
  for (const node of nodes.values()) counts.set(node.state, (counts.get(node.state) || 0) + 1);
  const states = [...counts.keys()].sort((a, b) => STATES.indexOf(a) - STATES.indexOf(b));
  at("legend").replaceChildren(...states.map((state) => {
    const item = document.createElement("li");
    item.append(dot(state), element("span", `${state} ${counts.get(state).toLocaleString()}`));
    return item;
  }));
  const number = (value) => value.toLocaleString();
  const of = total > nodes.size ? ` of ${number(total)}` : "";
  const nearest = total > nodes.size ? ", those nearest to the seeds" : "";
  const lines = `${number(edges.length)} link${edges.length === 1 ? "" : "s"}${edgesCut ? " of more" : ""} among them`;
  at("count").textContent = nodes.size
    ? `${number(nodes.size)}${of} article${total === 1 ? "" : "s"} shown${nearest}; ${lines}.`
    : "No article is shown.";
}

function list() {
  const shown = [...nodes.values()].slice(0, LISTED_MAX);
  at("list").hidden = false;
  at("list").replaceChildren(...shown.map((node) => link(node, `depth ${node.depth}`)));
}

// --- asking the server ---

async function ask(path) {
  const answer = await fetch(`${root}${path}`, { cache: "no-store" });
  if (!answer.ok) throw new Error(String(answer.status));
  return answer.json();
}

let heard = 0;
let asking = false;
let again = false;
async function load() {
  if (asking) {
    again = true;
    return;
  }
  asking = true;
  try {
    const found = await ask("/api/graph");
    say(found.note);
    if (!found.note || found.nodes.length) {
      const kept = new Set(found.nodes.map((node) => node.id));
      for (const id of nodes.keys()) if (!kept.has(id)) nodes.delete(id);
      for (const node of found.nodes) nodes.set(node.id, { ...nodes.get(node.id), ...node });
      ({ edges, total, edges_cut: edgesCut } = found);
    }
    legend();
    if (sigma) fill();
    else if (nodes.size && !begin()) list();
    if (found.note && !nodes.size) soon(REFETCH_MS * 2);
    else if (found.seq < heard) soon();  // the graph does not know yet what we were told
  } catch {
    say("The server does not answer; this page asks again.");
    soon(REFETCH_MS * 2);
  } finally {
    asking = false;
    if (again) {
      again = false;
      soon();
    }
  }
}

let timer = 0;
function soon(wait = REFETCH_MS) {
  if (!timer) timer = setTimeout(() => { timer = 0; load(); }, wait);
}

async function choose(id) {
  clearTimeout(typing);
  wanted += 1;  // what is still being searched for comes too late
  chosen = id;
  near = new Set();
  sigma?.refresh();
  let found;
  try {
    found = await ask(`/api/graph/articles/${id}`);
  } catch {
    side.replaceChildren(element("p", "The server does not answer.", "none"));
    return;
  }
  if (chosen !== id) return;
  near = new Set([...found.links_to, ...found.linked_from].map((node) => node.id));
  const title = element("h2", found.title || found.note, "outside");
  const parts = [title];
  if (found.title) {
    const about = element("p", undefined, "made");
    about.append(dot(found.state), ` ${found.state}, depth ${found.depth}`);
    parts.push(about);
    if (/^https?:\/\//.test(found.url)) {
      const out = element("a", "Read the article");
      out.href = found.url;
      out.rel = "noreferrer noopener";
      out.target = "_blank";
      const line = document.createElement("p");
      line.append(out);
      parts.push(line);
    }
    const heads = [["Links to", found.links, found.links_to], ["Linked from", found.linked, found.linked_from]];
    for (const [name, count, listed] of heads) {
      if (!count) continue;
      const more = count > listed.length ? `, the first ${listed.length}` : "";
      parts.push(element("h3", `${name} ${count.toLocaleString()}${more}`));
      const names = element("ul", undefined, "plainlist");
      names.append(...listed.map((node) => link(node)));
      parts.push(names);
    }
    for (const [name, listed] of [["Sections", found.sections], ["Categories", found.categories]]) {
      if (!listed.length) continue;
      parts.push(element("h3", name));
      const tags = element("ul", undefined, "tags");
      tags.append(...listed.map((text) => element("li", text)));
      parts.push(tags);
    }
  }
  side.replaceChildren(...parts);
  if (sigma && graph.hasNode(String(id))) {
    const where = sigma.getNodeDisplayData(String(id));
    const camera = sigma.getCamera();
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    camera.animate({ x: where.x, y: where.y, ratio: Math.min(camera.ratio, 0.5) }, { duration: still ? 0 : 300 });
  }
  sigma?.refresh();
}

let wanted = 0;
async function search() {
  const text = at("q").value.trim();
  const mine = ++wanted;
  if (!text) return;
  let found;
  try {
    found = await ask(`/api/search?q=${encodeURIComponent(text)}`);
  } catch {
    side.replaceChildren(element("p", "The server does not answer.", "none"));
    return;
  }
  if (mine !== wanted) return;
  const parts = [];
  if (found.titles.length) {
    const names = element("ul", undefined, "plainlist");
    names.append(...found.titles.map((node) => link(node)));
    parts.push(element("h2", "Titles"), names);
  }
  if (found.sections.length) {
    const names = element("ul", undefined, "plainlist");
    for (const one of found.sections) {
      const state = nodes.get(one.item)?.state || "processed";
      const title = one.section ? `${one.title} › ${one.section}` : one.title;
      const item = link({ id: one.item, title, state }, one.score.toFixed(2));
      item.append(element("p", one.passage, "passage outside"));
      names.append(item);
    }
    parts.push(element("h2", "By meaning"), names);
  }
  if (!parts.length) parts.push(element("p", "Nothing was found.", "none"));
  if (found.note) parts.push(element("p", found.note, "made"));
  side.replaceChildren(...parts);
}

// --- what the reader does ---

at("search").addEventListener("submit", (event) => {
  event.preventDefault();
  clearTimeout(typing);
  search();
});
let typing = 0;
at("q").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(search, TYPING_MS);
});
at("tools").addEventListener("click", (event) => act(event.target.dataset.do));
const KEYS = {
  "+": "in", "=": "in", "-": "out", 0: "all",
  ArrowLeft: "left", ArrowRight: "right", ArrowUp: "up", ArrowDown: "down", Escape: "clear",
};
picture.addEventListener("keydown", (event) => {
  if (KEYS[event.key] && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    act(KEYS[event.key]);
  }
});
function act(what) {
  if (!sigma) return;
  const camera = sigma.getCamera();
  const step = 0.15 * camera.ratio;
  const moves = { left: [-step, 0], right: [step, 0], up: [0, step], down: [0, -step] };
  if (what === "in") camera.animatedZoom({ duration: 150 });
  else if (what === "out") camera.animatedUnzoom({ duration: 150 });
  else if (what === "all") camera.animatedReset({ duration: 150 });
  else if (what === "clear") clear();
  else if (moves[what]) camera.setState({ x: camera.x + moves[what][0], y: camera.y + moves[what][1] });
}
function recolour() {
  readColours();
  if (!sigma) return;
  sigma.setSetting("labelColor", { color: colours.text });
  sigma.setSetting("defaultEdgeColor", colours.line);
  for (const id of nodes.keys()) paint(id);
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
new MutationObserver(recolour).observe(document.documentElement, { attributeFilter: ["data-theme"] });

// --- live ---

const badge = at("live");
const words = { live: "● live", reconnecting: "↻ reconnecting", off: "○ not live" };
follow(`${root}/api/events?pipeline=expand`, {
  onEvent(event) {
    const node = nodes.get(event.item);
    if (node && event.state) {
      node.state = event.state;
      paint(event.item);
    }
    if (event.item !== null && event.item !== undefined) {
      heard = Math.max(heard, event.seq);
      soon();
    }
  },
  onState(state) {
    badge.hidden = false;
    badge.dataset.state = state;
    badge.textContent = words[state] || state;
    if (state === "live" && drawn) soon();
  },
});

readColours();
load();
