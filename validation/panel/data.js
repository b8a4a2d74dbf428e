"use strict";
// Data: facts, blocks and the arrays in them.  What is asked for is unpacked once.
const facts = JSON.parse(document.getElementById("facts").textContent);
const KINDS = { u1: Uint8Array, i1: Int8Array, i2: Int16Array, f4: Float32Array };
const kept = new Map();  // block -> promise of its bytes
const asked = new Map();  // block -> resolver, of parts that stand in files beside the page
const NONE = -32768;

function byId(id) { return document.getElementById(id); }

function bytesIn(text) {
  const flat = atob(text), bytes = new Uint8Array(flat.length);
  for (let i = 0; i < flat.length; i++) bytes[i] = flat.charCodeAt(i);
  return bytes;
}

function panelPart(name, text) {  // what a file beside the page calls
  const resolve = asked.get(name);
  asked.delete(name);
  if (resolve) resolve(bytesIn(text));
}

function whole() {  // the page is read to its end
  return document.readyState !== "loading" ? Promise.resolve()
    : new Promise(done => document.addEventListener("DOMContentLoaded", done, { once: true }));
}

function beside(name) {  // the bytes of a part that stands in a file beside the page; null where there is none
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
  if (element) {
    const bytes = bytesIn(element.textContent);
    return bytes;
  }
  return facts.single || !/^(frames|real|maps|film):/.test(name) ? null : beside(name);
}

function block(name) {  // promise of the bytes as they are in the page, or null
  if (!kept.has(name)) kept.set(name, rawOf(name));
  return kept.get(name);
}

async function array(name, kind) {  // promise of a typed array that was compressed
  const bytes = await block(name);
  if (!bytes) return null;
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new KINDS[kind](await new Response(stream).arrayBuffer());
}

function picture(name) {  // promise of an Image, or null
  const key = "image " + name;
  if (!kept.has(key)) {
    kept.set(key, block(name).then(bytes => bytes && decoded(bytes)));
    const held = [...kept.keys()].filter(k => k.startsWith("image "));
    if (held.length > 60) kept.delete(held[0]);
  }
  return kept.get(key);
}

function decoded(bytes) {
  return new Promise(done => {
    const image = new Image();
    image.onload = () => done(image);
    image.onerror = () => done(null);
    image.src = "data:image/webp;base64," + btoa(Array.from(bytes, b => String.fromCharCode(b)).join(""));
  });
}

function decodedLevels(levels, scale, columns) {  // int16 levels -> float32, column by column; NaN where there is none
  const out = new Float32Array(levels.length);
  for (let i = 0; i < levels.length; i++) {
    const [low, step] = scale[columns ? i % columns : 0];
    out[i] = levels[i] === NONE ? NaN : low + (levels[i] + 32767) * step;
  }
  return out;
}

async function courses(name) {  // the arrays of a recording: "samples" or "real"
  const about = facts[name];
  if (!about) return null;
  const names = [["value", "f4"], ["reward", "f4"], ["action", "i2"], ["label", "i2"], ["event", "u1"], ["prob", "u1"], ["c", "i2"]];
  const found = await Promise.all(names.map(([key, kind]) => array(`${name}:${key}`, kind)));
  const out = { ...about, K: about.c_scale.length, A: about.choices.length, E: about.events.length };
  names.forEach(([key], i) => { out[key] = found[i]; });
  out.c = decodedLevels(out.c, about.c_scale, out.K);
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
