// Data: facts, blocks and the arrays in them.  What is asked for is unpacked once.
const facts = JSON.parse(document.getElementById("facts").textContent);
const kept = new Map();  // block -> promise of its text, base64
const asked = new Map();  // block -> resolver, of parts that stand in files beside the page
const NONE = -32768;

function panelPart(name, text) {  // what a file beside the page calls
  const resolve = asked.get(name);
  asked.delete(name);
  if (resolve) resolve(text);
}

function whole() {  // the page is read to its end
  return document.readyState !== "loading" ? Promise.resolve()
    : new Promise(done => document.addEventListener("DOMContentLoaded", done, { once: true }));
}

function beside(name) {  // the text of a part that stands in a file beside the page; null where there is none
  return new Promise(done => {
    asked.set(name, done);
    const part = document.createElement("script");
    part.src = `data/${name.replaceAll(":", "_")}.js`;
    part.onerror = () => { asked.delete(name); done(null); };
    part.onload = () => part.remove();
    document.head.append(part);
  });
}

async function rawOf(name) {
  let element = byId("b:" + name);
  if (!element && document.readyState === "loading") {  // still being read: look again as more arrives
    for (let i = 0; i < 200 && !element && document.readyState === "loading"; i++) {
      await new Promise(done => setTimeout(done, 15));
      element = byId("b:" + name);
    }
    if (!element) { await whole(); element = byId("b:" + name); }
  }
  if (element) return element.textContent;
  return facts.single || !/^(frames|real|maps|film):/.test(name) ? null : beside(name);
}

function block(name) {  // promise of the base64 that is in the page, or null
  if (!kept.has(name)) kept.set(name, rawOf(name));
  return kept.get(name);
}

async function array(name, kind) {  // promise of a typed array that was compressed
  const text = await block(name);
  if (!text) return null;
  const stream = new Blob([bytesIn(text)]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new KINDS[kind](await new Response(stream).arrayBuffer());
}

function picture(name) {  // promise of an Image, or null
  const key = "image " + name;
  if (!kept.has(key)) {
    kept.set(key, block(name).then(text => text && decoded(text)));
    const held = [...kept.keys()].filter(k => k.startsWith("image "));
    if (held.length > 60) kept.delete(held[0]);
  }
  return kept.get(key);
}

function decoded(base64) {  // promise of an Image, or null
  return new Promise(done => {
    const image = new Image();
    image.onload = () => done(image);
    image.onerror = () => done(null);
    image.src = "data:image/webp;base64," + base64;
  });
}

function decodedLevels(levels, scale, columns) {  // int16 levels -> float32, column by column; NaN where there is none
  const out = new Float32Array(levels.length);
  for (let k = 0; k < columns; k++) {
    const [low, step] = scale[k];
    for (let i = k; i < levels.length; i += columns) out[i] = levels[i] === NONE ? NaN : low + (levels[i] + 32767) * step;
  }
  return out;
}

// Bases: facts.bases says what there is of each kind; facts.directions is the one that is chosen.
const kindOf = () => facts.bases && (facts.bases[state.basis] ? state.basis : Object.keys(facts.bases)[0]);

async function coordinates(name, kind) {  // of "samples", "real" or "base" in a basis; null where there are none
  const about = facts.bases[kind];
  return about[name] ? decodedLevels(await array(`${name}:c:${kind}`, "int16"), about[name], about.names.length) : null;
}

async function inBasis() {  // everything that is told in the chosen basis
  const kind = kindOf(), about = kind && facts.bases[kind];
  facts.directions = kind ? { kind, names: about.names } : null;
  data = await courses("samples");
  real = await courses("real");
  grads = base = null;
  if (about && about.gradients) {
    const levels = await array(`gradients:${kind}`, "int16"), names = Object.keys(facts.saliency.quantities), S = facts.saliency.ids.length;
    grads = { levels, scale: about.gradients, S, names, row: new Map(facts.saliency.ids.map((i, s) => [i, s])), T: levels.length / (names.length * S * data.K) };
  }
  if (about && about.base) base = { c: await coordinates("base", kind), label: await array("base:label", "int16"), n: facts.base.n };
}

async function courses(name) {  // the arrays of a recording: "samples" or "real"
  const about = facts[name];
  if (!about) return null;
  const names = [["value", "float32"], ["reward", "float32"], ["action", "int16"], ["label", "int16"], ["event", "uint8"], ["prob", "uint8"]];
  const found = await Promise.all(names.map(([key, kind]) => array(`${name}:${key}`, kind)));
  const kind = kindOf(), K = kind ? facts.bases[kind].names.length : 0;
  const out = { ...about, kind, K, A: about.choices.length, E: about.events.length };
  names.forEach(([key], i) => { out[key] = found[i]; });
  out.c = kind ? await coordinates(name, kind) : new Float32Array(0);
  return out;
}

const number = (x, digits = 3) => x === null || x === undefined || Number.isNaN(x) ? "–"
  : (Math.abs(x) >= 1000 ? Math.round(x).toLocaleString("en") : String(+x.toPrecision(digits))).replace("-", "−");

function element(tag, attributes = {}, ...children) {  // children: elements, or text, which is never markup
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key === "class") made.className = value;
    else if (key === "value" || key === "checked" || key === "disabled") made[key] = value;
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter(c => c !== null && c !== undefined));
  return made;
}

// A number that says on hover what it is: unit, n, interval.
function figure(value, { unit = "", n = null, low = null, high = null, what = "" } = {}) {
  const tip = [what, `${number(value, 5)}${unit ? " " + unit : ""}`,
    low !== null && high !== null ? `95 % interval ${number(low)} to ${number(high)}` : "no interval: a single observation",
    n !== null ? `n = ${number(n)}` : ""].filter(Boolean).join("\n");
  return element("span", { class: "num", tabindex: "0", "data-tip": tip }, number(value));
}

// What made a pane's data, to copy.
function command(name) {
  const line = (facts.commands || {})[name];
  if (!line) return null;
  const field = element("input", { class: "line", readonly: true, value: line, "aria-label": "the command", hidden: true });
  return element("span", { class: "made" }, element("button", { type: "button", class: "quiet", title: "the command that made this",
    onclick: () => { field.hidden = !field.hidden; if (!field.hidden) { field.focus(); field.select(); copy(line); } } }, "command"), field);
}

function copy(text) {
  if (navigator.clipboard) navigator.clipboard.writeText(text).then(() => say("copied"), () => say("select and copy"));
}

function say(text) { byId("said").textContent = text; }

function missing(name, words) {  // a view whose data are not there says what makes them
  const how = (facts.missing || {})[name];
  return element("div", { class: "missing" }, element("p", {}, words + (how && how.note ? " " + how.note : "") + (how && how.line ? " To make it:" : "")),
    how && how.line ? element("code", {}, how.line) : null);
}
