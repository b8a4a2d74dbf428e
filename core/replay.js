// The script of a replay page; core/replay.py says what `page` holds.  Ticks are counted from 0 here (t), agents too (a).
const T = page.ticks.length, A = page.agents.length;
const row = unpack(page.row), col = unpack(page.col);
const [R, C] = page.map.shape;
const choices = [...page.labels.map(l => ({ ...l, kind: "label" })), ...page.values.map(v => ({ ...v, kind: "value" }))];
for (const choice of choices) {
  choice.data = unpack(choice.data);
  if (choice.kind === "label") choice.classOf = new Map(choice.classes.map(c => [c.id, c]));
}
const PLAIN = "#ffffff", NOT_KNOWN = -32768;
const alive = (t, a) => row[t * A + a] >= 0;

// When each agent is first and last there, and how many are at each tick.
const first = new Int32Array(A).fill(-1), last = new Int32Array(A).fill(-1), count = new Int32Array(T);
for (let t = 0; t < T; t++) for (let a = 0; a < A; a++) if (alive(t, a)) {
  if (first[a] < 0) first[a] = t;
  last[a] = t;
  count[t]++;
}

let now = 0, chosen = -1, playing = false, colouring = choices[0] || null;

function valueOf(choice, t, a) {  // a number, or null where it is not known
  const level = choice.data[t * A + a];
  return level === NOT_KNOWN ? null : choice.low + (level + 32767) * choice.step;
}
function colourOf(choice, t, a) {
  if (choice === null) return PLAIN;
  if (choice.kind === "label") return choice.classOf.get(choice.data[t * A + a]).colour;
  const v = valueOf(choice, t, a);
  return v === null ? "#cccccc" : scaleColour(choice, v);
}
function scaleColour(choice, v) {
  const share = choice.high > choice.low ? (v - choice.low) / (choice.high - choice.low) : 0.5;
  return page.scale[Math.round(share * (page.scale.length - 1))];
}
function written(v, step) {  // whole numbers as they are, others to four digits
  if (v === null) return "–";
  const text = step === 1 && Number.isInteger(v) ? String(v) : String(Number(v.toPrecision(4)));
  return text.replace("-", "−");
}
function said(choice, t, a) {
  if (choice.kind === "label") return choice.classOf.get(choice.data[t * A + a]).name;
  return written(valueOf(choice, t, a), choice.step);
}

// The map, one pixel a tile, drawn once.
const tiles = document.createElement("canvas");
tiles.width = C; tiles.height = R;
const used = { top: R, left: C, bottom: 0, right: 0 };  // what is not void
{
  const context = tiles.getContext("2d"), material = unpack(page.map);
  const colour = new Map(page.materials.map(m => [m.id, m.colour])), isVoid = m => m === 0;
  for (let r = 0; r < R; r++) for (let c = 0; c < C; c++) {
    const m = material[r * C + c];
    context.fillStyle = colour.get(m);
    context.fillRect(c, r, 1, 1);
    if (!isVoid(m)) {
      used.top = Math.min(used.top, r); used.bottom = Math.max(used.bottom, r + 1);
      used.left = Math.min(used.left, c); used.right = Math.max(used.right, c + 1);
    }
  }
  if (used.bottom <= used.top) Object.assign(used, { top: 0, left: 0, bottom: R, right: C });
}

// What part of the map is seen: its centre (in tiles) and how many tiles the shorter side shows.
const map = byId("map"), line = byId("line"), view = {};
function wholeMap() {
  view.row = (used.top + used.bottom) / 2;
  view.col = (used.left + used.right) / 2;
  view.span = Math.max(used.bottom - used.top, used.right - used.left);
}
wholeMap();
function scaleOf(width, height) { return Math.min(width, height) / view.span; }
function at(r, c, width, height) {  // the pixel of a place on the map
  const s = scaleOf(width, height);
  return [width / 2 + (c - view.col) * s, height / 2 + (r - view.row) * s];
}
const centre = (t, a, width, height) => at(row[t * A + a] + 0.5, col[t * A + a] + 0.5, width, height);

function drawMap() {
  const [g, width, height] = sharp(map), s = scaleOf(width, height), trail = Number(byId("trail").value);
  g.imageSmoothingEnabled = false;
  const [x0, y0] = at(0, 0, width, height);
  g.drawImage(tiles, x0, y0, C * s, R * s);
  const radius = Math.max(3.8, Math.min(9, s * 0.42));
  if (trail) {
    g.lineWidth = Math.max(1.4, radius * 0.45);
    g.lineCap = "round";
    for (let a = 0; a < A; a++) if (alive(now, a)) for (let t = Math.max(first[a] + 1, now - trail + 1); t <= now; t++) {
      if (!alive(t, a) || !alive(t - 1, a)) continue;
      g.globalAlpha = 0.25 + 0.6 * (1 - (now - t) / Math.min(trail, now + 1));
      g.strokeStyle = colourOf(colouring, t, a);
      g.beginPath();
      g.moveTo(...centre(t - 1, a, width, height));
      g.lineTo(...centre(t, a, width, height));
      g.stroke();
    }
    g.globalAlpha = 1;
  }
  if (byId("deaths").checked) {
    const arm = radius * 0.8;
    for (const [w, colour] of [[3.4, "#ffffff"], [1.7, "#b0121b"]]) {
      g.lineWidth = w; g.strokeStyle = colour;
      for (let a = 0; a < A; a++) if (diedBefore(a, now)) {
        const [x, y] = centre(last[a], a, width, height);
        g.beginPath();
        g.moveTo(x - arm, y - arm); g.lineTo(x + arm, y + arm);
        g.moveTo(x - arm, y + arm); g.lineTo(x + arm, y - arm);
        g.stroke();
      }
    }
  }
  for (let a = 0; a < A; a++) if (alive(now, a)) {
    const [x, y] = centre(now, a, width, height);
    g.beginPath();
    g.arc(x, y, radius + 1.3, 0, 7);
    g.fillStyle = "#ffffff";
    g.fill();
    g.beginPath();
    g.arc(x, y, radius, 0, 7);
    g.fillStyle = colourOf(colouring, now, a);
    g.fill();
    g.lineWidth = 1; g.strokeStyle = "#1d2329";
    g.stroke();
  }
  if (chosen >= 0 && alive(now, chosen)) {
    const [x, y] = centre(now, chosen, width, height);
    for (const [r, colour] of [[radius + 4.2, "#1d2329"], [radius + 2.6, "#ffffff"]]) {
      g.beginPath(); g.arc(x, y, r, 0, 7);
      g.lineWidth = 2; g.strokeStyle = colour; g.stroke();
    }
  }
}
// Dead: gone before the last tick that was recorded.  Who is there at that one may well live on.
const diedBefore = (a, t) => last[a] >= 0 && last[a] < T - 1 && last[a] < t;

// The strip above the scrub bar: how many are alive, or the chosen agent's value over its life.
const PAD = 8;  // the thumb of the scrub bar stands so far from either end
const xOf = (t, width) => PAD + (T > 1 ? t / (T - 1) : 0.5) * (width - 2 * PAD);
function drawLine() {
  const [g, width, height] = sharp(line), floor = height - 16, top = 16, most = Math.max(...count);
  g.font = "11px system-ui, sans-serif";
  g.fillStyle = "#e6e2d8";
  g.beginPath(); g.moveTo(xOf(0, width), floor);
  for (let t = 0; t < T; t++) g.lineTo(xOf(t, width), floor - (floor - top) * count[t] / most);
  g.lineTo(xOf(T - 1, width), floor); g.fill();
  let says = `grey: agents alive (at most ${most})`;
  if (chosen >= 0 && colouring !== null) {
    const step = Math.max(1.5, (width - 2 * PAD) / Math.max(1, T - 1) + 0.5);
    for (let t = Math.max(0, first[chosen]); t <= last[chosen]; t++) if (alive(t, chosen)) {
      g.fillStyle = colourOf(colouring, t, chosen);
      if (colouring.kind === "label") g.fillRect(xOf(t, width) - step / 2, floor - 18, step, 18);
      else {
        const v = valueOf(colouring, t, chosen), range = colouring.high - colouring.low;
        if (v !== null) g.fillRect(xOf(t, width) - 1, floor - 2 - (floor - top - 4) * (range ? (v - colouring.low) / range : 0.5), 2.4, 2.4);
      }
    }
    says += `; colour: ${colouring.name} of agent ${page.agents[chosen]}`;
  }
  g.fillStyle = "#5b6570";
  g.textAlign = "left"; g.fillText(says, PAD, 11);
  g.fillText(String(page.ticks[0]), PAD, height - 4);
  g.textAlign = "right"; g.fillText(`tick ${page.ticks[T - 1]}`, width - PAD, height - 4);
  g.fillStyle = "#a3341f"; g.fillRect(xOf(now, width) - 0.75, top - 2, 1.5, floor - top + 4);
}

function cell(tr, text, cls) {
  const td = document.createElement("td");
  td.textContent = text;
  if (cls) td.className = cls;
  tr.append(td);
  return td;
}
function swatch(colour) {
  const s = document.createElement("span");
  s.className = "swatch"; s.style.background = colour;
  return s;
}
function drawFacts() {
  const table = byId("facts");
  table.replaceChildren();
  if (chosen < 0) { byId("who").textContent = "No agent chosen"; return; }
  const there = alive(now, chosen);
  const state = there ? "" : first[chosen] < 0 ? " (never there)" : now < first[chosen] ? " (not there yet)" : " (dead)";
  byId("who").textContent = `Agent ${page.agents[chosen]}${state}`;
  const add = (name, text) => { const tr = document.createElement("tr"); cell(tr, name); cell(tr, text, "n"); table.append(tr); };
  if (first[chosen] >= 0) add("life", `${page.ticks[first[chosen]]} to ${page.ticks[last[chosen]]}${last[chosen] === T - 1 ? " or later" : ""}`);
  if (!there) return;
  add("row, column", `${row[now * A + chosen]}, ${col[now * A + chosen]}`);
  for (const choice of choices) add(choice.name, said(choice, now, chosen));
}
function drawLegend() {
  const list = byId("legend"), label = colouring !== null && colouring.kind === "label";
  byId("scale").style.display = colouring !== null && !label ? "" : "none";
  list.replaceChildren();
  if (label) {
    const counts = new Map();
    for (let a = 0; a < A; a++) if (alive(now, a)) {
      const id = colouring.data[now * A + a];
      counts.set(id, (counts.get(id) || 0) + 1);
    }
    for (const c of colouring.classes) {
      const li = document.createElement("li"), n = document.createElement("span");
      n.className = "count"; n.textContent = ` ${counts.get(c.id) || 0}`;
      li.append(swatch(c.colour), c.name, n);
      list.append(li);
    }
  } else if (colouring !== null) {
    const [g, width, height] = sharp(byId("scale").querySelector("canvas"));
    page.scale.forEach((c, i) => { g.fillStyle = c; g.fillRect(i * width / page.scale.length, 0, width / page.scale.length + 1, height); });
    byId("low").textContent = written(colouring.low, colouring.step);
    byId("high").textContent = written(colouring.high, colouring.step);
    byId("exact").textContent = colouring.step === 1 ? "" : `range over this replay; values kept to within ${(colouring.step / 2).toPrecision(2)}`;
  }
}
function draw() {
  byId("scrub").value = now;
  byId("status").textContent = `tick ${page.ticks[now]} · ${count[now]} of ${A} alive`;
  drawMap(); drawLine(); drawLegend(); drawFacts();
}
function go(t) { now = Math.max(0, Math.min(T - 1, Math.round(t))); draw(); }

// Playing.
let since = 0, owed = 0;
function play(on) {
  playing = on;
  if (on && now === T - 1) now = 0;
  byId("play").textContent = on ? "❚❚" : "▶";
  byId("play").setAttribute("aria-label", on ? "Stop" : "Play");
  if (on) { since = performance.now(); owed = 0; requestAnimationFrame(frame); }
}
function frame(time) {
  if (!playing) return;
  owed += Math.max(0, time - since) / 1000 * Number(byId("speed").value);
  since = time;
  const steps = Math.floor(owed);
  owed -= steps;
  if (steps) go(now + steps);
  if (now >= T - 1) play(false); else requestAnimationFrame(frame);
}

// Who is under the pointer.
function nearest(event) {
  const box = map.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
  let best = -1, least = Math.max(10, scaleOf(box.width, box.height)) ** 2;
  for (let a = 0; a < A; a++) if (alive(now, a)) {
    const [u, v] = centre(now, a, box.width, box.height), d = (u - x) ** 2 + (v - y) ** 2;
    if (d < least) { best = a; least = d; }
  }
  return best;
}
let drag = null;
map.addEventListener("pointerdown", e => { drag = { x: e.clientX, y: e.clientY, row: view.row, col: view.col, moved: false }; });
window.addEventListener("pointerup", e => {
  if (drag !== null && !drag.moved && e.target === map) { chosen = nearest(e); draw(); }
  drag = null;
});
map.addEventListener("pointermove", e => {
  const tip = byId("tip"), box = map.getBoundingClientRect();
  if (drag !== null) {
    const dx = e.clientX - drag.x, dy = e.clientY - drag.y, s = scaleOf(box.width, box.height);
    drag.moved = drag.moved || Math.hypot(dx, dy) > 4;
    if (drag.moved) { view.row = drag.row - dy / s; view.col = drag.col - dx / s; drawMap(); }
    tip.style.display = "none";
    return;
  }
  const a = nearest(e);
  tip.style.display = a < 0 ? "none" : "block";
  if (a < 0) return;
  tip.textContent = `agent ${page.agents[a]} at ${row[now * A + a]}, ${col[now * A + a]}` +
    (colouring === null ? "" : `\n${colouring.name}: ${said(colouring, now, a)}`);
  tip.style.left = `${Math.min(e.clientX + 14, window.innerWidth - tip.offsetWidth - 8)}px`;
  tip.style.top = `${e.clientY + 14}px`;
});
map.addEventListener("pointerleave", () => { byId("tip").style.display = "none"; });
map.addEventListener("wheel", e => {
  e.preventDefault();
  const box = map.getBoundingClientRect(), s = scaleOf(box.width, box.height);
  const r = view.row + (e.clientY - box.top - box.height / 2) / s, c = view.col + (e.clientX - box.left - box.width / 2) / s;
  const span = Math.max(8, Math.min(2 * Math.max(R, C), view.span * Math.exp(e.deltaY / 500))), k = span / view.span;
  view.row = r + (view.row - r) * k; view.col = c + (view.col - c) * k; view.span = span;  // what is under the pointer stays
  drawMap();
}, { passive: false });

function seek(e) {
  const box = line.getBoundingClientRect();
  go((e.clientX - box.left - PAD) / (box.width - 2 * PAD) * (T - 1));
}
line.addEventListener("pointerdown", e => { line.setPointerCapture(e.pointerId); seek(e); });
line.addEventListener("pointermove", e => { if (line.hasPointerCapture(e.pointerId)) seek(e); });
byId("scrub").max = T - 1;
byId("scrub").addEventListener("input", e => go(Number(e.target.value)));
byId("play").addEventListener("click", () => play(!playing));
byId("whole").addEventListener("click", () => { wholeMap(); drawMap(); });
for (const id of ["trail", "deaths"]) byId(id).addEventListener("change", drawMap);
byId("colour").addEventListener("change", e => { colouring = choices[Number(e.target.value)]; draw(); });
document.addEventListener("keydown", e => {
  if (e.ctrlKey || e.metaKey || e.altKey || e.target.tagName === "SELECT") return;
  const step = e.shiftKey ? 10 : 1;
  const to = { ArrowLeft: now - step, ArrowRight: now + step, Home: 0, End: T - 1 }[e.key];
  if (to !== undefined) { e.preventDefault(); go(to); }
  if (e.key === " " && e.target.tagName !== "BUTTON" && e.target.type !== "checkbox") { e.preventDefault(); play(!playing); }
});
window.addEventListener("resize", draw);

choices.forEach((choice, i) => {
  const option = document.createElement("option");
  option.value = i; option.textContent = choice.name;
  byId("colour").append(option);
});
if (!choices.length) byId("colour").parentElement.style.display = "none";
for (const m of page.materials) {
  const li = document.createElement("li");
  li.append(swatch(m.colour), m.name);
  byId("materials").append(li);
}

function linked() {  // #tick=57&agent=12: a moment, and who to look at
  const asked = new URLSearchParams(location.hash.slice(1));
  const a = asked.has("agent") ? page.agents.indexOf(Number(asked.get("agent"))) : -1;
  if (a >= 0) chosen = a;
  if (!asked.has("tick")) return;
  const tick = Number(asked.get("tick")), t = page.ticks.findIndex(x => x >= tick);
  go(t < 0 ? T - 1 : t);
}
window.addEventListener("hashchange", () => { linked(); draw(); });
linked();
draw();
