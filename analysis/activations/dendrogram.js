// The script of dendrogram_explorer.html; dendrogram.py says what `page` holds.
const N = page.points, branches = page.branches, M = branches.length;
const death = unpack(page.death), branchOf = unpack(page.branch), leaves = unpack(page.leaves), own = unpack(page.label);
const episode = unpack(page.episode), step = unpack(page.t), umap = unpack(page.umap), features = unpack(page.features);
const F = page.feature_names.length;

branches.forEach((b, i) => { b.id = i; b.death = death[i]; b.below = []; b.direct = []; });
for (const b of branches) if (b.parent >= 0) branches[b.parent].below.push(b);
for (let n = 0; n < N; n++) branches[branchOf[n]].direct.push(leaves[n]);
for (const b of branches) b.direct = Float64Array.from(b.direct).sort();

const name = b => b.label !== null ? `cluster ${b.label}` : b.id === 0 ? "all points" : `branch ${b.id}`;
function under(b, root) { for (; b; b = branches[b.parent]) if (b === root) return true; return false; }

// State: a cut at density `lambda`, or HDBSCAN's own choice (null).
let lambda = null, least = 0, branch = null, feature = -1;
let shown = new Int32Array(N);  // the branch that each point is in, -1: noise

const toLambda = v => page.low * (page.high / page.low) ** v;  // v from 0 to 1: the axis is logarithmic
const toShare = l => Math.log(l / page.low) / Math.log(page.high / page.low);

function cutAt(l, smallest) {  // the branch of every point at density l; noise where it has left, or too few are left
  const at = new Int32Array(N).fill(-1), of = new Int32Array(M).fill(-1), sizes = new Int32Array(M);
  for (const b of branches) {  // the deepest one that has begun; who has not left yet is still in it
    let up = b;
    while (up.parent >= 0 && up.birth > l) up = branches[up.parent];
    of[b.id] = up.id;
  }
  for (let n = 0; n < N; n++) if (leaves[n] > l) { at[n] = of[branchOf[n]]; sizes[at[n]]++; }
  for (let n = 0; n < N; n++) if (at[n] >= 0 && sizes[at[n]] < smallest) at[n] = -1;
  return at;
}
function ownChoice() {
  const of = new Map(branches.filter(b => b.label !== null).map(b => [b.label, b.id]));
  return own.map(label => of.has(label) ? of.get(label) : -1);
}
function sizesOf(at) {
  const sizes = new Map();
  let noise = 0;
  for (let n = 0; n < N; n++) if (at[n] < 0) noise++; else sizes.set(at[n], (sizes.get(at[n]) || 0) + 1);
  return [sizes, noise];
}
const percent = (k, n) => `${(100 * k / n).toFixed(1)} %`;
const number = v => !isFinite(v) ? "∞" : String(Number(v.toPrecision(3))).replace("-", "−");
const many = n => n.toLocaleString("en");

function change() {
  shown = lambda === null ? ownChoice() : cutAt(lambda, least);
  const [sizes, noise] = sizesOf(shown), what = `${sizes.size} cluster${sizes.size === 1 ? "" : "s"}`;
  byId("found").textContent = (lambda === null ? "HDBSCAN's own choice: " : `Cut at λ = ${number(lambda)}: `) +
    `${what}, ${percent(noise, N)} in none (${many(noise)} of ${many(N)} points)`;
  byId("cut_text").textContent = lambda === null ? "move the slider to cut the tree at one density" :
    `λ = ${number(lambda)}: clusters of points closer than ${number(1 / lambda)} (mutual reachability, where HDBSCAN clustered)`;
  byId("least_text").textContent = lambda === null ? "" : least > 0 ? `at least ${least} points, else in none` : "any size";
  byId("own").disabled = lambda === null;
  byId("least").disabled = lambda === null;
  const table = byId("clusters"), rows = [...sizes].sort((a, b) => b[1] - a[1]);
  table.replaceChildren();
  addRow(table, "th", ["cluster", "points", "share"]);
  for (const [id, n] of rows) {
    const tr = addRow(table, "td", [name(branches[id]), many(n), percent(n, N)]);
    mark(tr, branches[id].colour);
    tr.style.cursor = "pointer";
    tr.addEventListener("click", () => choose(branches[id]));
  }
  mark(addRow(table, "td", ["in no cluster", many(noise), percent(noise, N)]), page.noise);
  draw();
}
function mark(tr, colour) {
  const s = document.createElement("span");
  s.className = "swatch"; s.style.background = colour;
  tr.firstChild.prepend(s);
}
function addRow(table, kind, texts) {
  const tr = document.createElement("tr");
  texts.forEach((text, i) => {
    const cell = document.createElement(kind);
    cell.textContent = text;
    if (i) cell.className = "n";
    tr.append(cell);
  });
  table.append(tr);
  return tr;
}
function choose(b) {
  branch = b === branch ? null : b;
  const table = byId("facts");
  table.replaceChildren();
  byId("who").textContent = branch === null ? "No branch chosen" : name(branch)[0].toUpperCase() + name(branch).slice(1);
  if (branch !== null) {
    const inside = Array.from({ length: N }, (_, n) => under(branches[branchOf[n]], branch));
    const count = inside.filter(Boolean).length, lives = new Set(episode.filter((_, n) => inside[n])).size;
    addRow(table, "td", ["points", `${many(count)} (${percent(count, N)}) of ${many(lives)} episodes`]);
    addRow(table, "td", ["λ from, to", `${number(branch.birth)}, ${number(branch.death)}`]);
    addRow(table, "td", ["distance from, to", `${number(1 / branch.birth)}, ${number(1 / branch.death)}`]);
    addRow(table, "td", ["splits into", branch.below.map(c => `${name(c)} (${many(c.size)})`).join(", ") || "nothing"]);
    const d = differences(inside, count);
    if (d.length) addRow(table, "th", ["Features that differ most from all other points", "difference (sd of all points)"]);
    for (const [f, v] of d.slice(0, 4)) addRow(table, "td", [page.feature_names[f], (v > 0 ? "+" : "") + number(v)]);
  }
  draw();
}
function differences(inside, count) {  // mean of the inside minus mean of the rest, in standard deviations, largest first
  const out = [];
  if (count === N) return out;
  for (let f = 0; f < F; f++) {
    let sum = 0, square = 0, part = 0;
    for (let n = 0; n < N; n++) { const v = features[n * F + f]; sum += v; square += v * v; if (inside[n]) part += v; }
    const sd = Math.sqrt(Math.max(0, square / N - (sum / N) ** 2));
    if (sd > 0) out.push([f, (part / count - (sum - part) / (N - count)) / sd]);
  }
  return out.sort((a, b) => Math.abs(b[1]) - Math.abs(a[1]));
}

// The tree.
const tree = byId("tree"), scatter = byId("scatter"), AXIS = 46, SIDE = 84, TOP = 12, FOOT = 14;
const curve = [];  // clusters and noise at even steps of the slider
for (let i = 0; i <= 200; i++) {
  const [sizes, noise] = sizesOf(cutAt(toLambda(i / 200), 0));
  curve.push([sizes.size, noise / N]);
}
const yOf = (l, height) => TOP + toShare(l) * (height - TOP - FOOT);
function boxOf(b, width, height) {  // pixels: left and right edge of its slot, first and last row
  const w = width - AXIS - SIDE, first = b.parent < 0 ? TOP : yOf(b.birth, height);
  return [AXIS + b.left * w, AXIS + (b.left + b.width) * w, first, Math.min(yOf(b.death, height), height - FOOT)];
}
function sizeAt(b, l) {  // how many points are left of those it began with
  let lo = 0, hi = b.direct.length;
  while (lo < hi) { const mid = (lo + hi) >> 1; if (b.direct[mid] <= l) lo = mid + 1; else hi = mid; }
  return b.size - lo;
}
function drawTree() {
  const [g, width, height] = sharp(tree), w = width - AXIS - SIDE, unit = w * page.unit;  // pixels of a bar of one point
  const at = new Set(shown);
  g.font = "11px system-ui, sans-serif";
  for (const b of branches) {
    const [left, right, first, last] = boxOf(b, width, height), middle = (left + right) / 2;
    let colour = "#d5d1c7", alpha = 1;
    for (let up = b; up; up = branches[up.parent]) if (at.has(up.id)) { colour = up.colour; alpha = up === b ? 1 : 0.4; break; }
    if (branch !== null && !under(b, branch)) alpha *= 0.35;
    for (let y = first; y < last; y++) {
      const l = toLambda((y - TOP) / (height - TOP - FOOT)), bar = Math.max(1.5, unit * Math.sqrt(sizeAt(b, l)));
      const before = lambda !== null && l < lambda;
      g.globalAlpha = before && branch === null ? 1 : alpha;
      g.fillStyle = before ? "#d5d1c7" : colour;
      g.fillRect(middle - bar / 2, y, bar, Math.min(1.2, last - y));
    }
    g.globalAlpha = 1;
    if (b.below.length && last < height - FOOT) {
      const ends = b.below.map(c => { const [l, r] = boxOf(c, width, height); return (l + r) / 2; });
      g.strokeStyle = "#8b877d"; g.lineWidth = 1;
      g.beginPath(); g.moveTo(Math.min(middle, ...ends), last); g.lineTo(Math.max(middle, ...ends), last); g.stroke();
    }
    if (b === branch) {
      g.strokeStyle = "#1d2329"; g.lineWidth = 1.6;
      const half = Math.max(3, unit * Math.sqrt(b.size) / 2 + 2);
      g.strokeRect(middle - half, first - 1, 2 * half, Math.max(3, last - first + 2));
    }
  }
  g.fillStyle = "#5b6570"; g.textAlign = "right";
  g.fillText("λ", AXIS - 8, TOP - 1);
  let free = -1e9;
  for (const l of ticks(page.low, page.high)) {
    const y = yOf(l, height);
    if (y < free + 16 || y < TOP + 8) continue;
    free = y;
    g.fillText(number(l), AXIS - 8, y + 4); g.fillRect(AXIS - 5, y, 4, 1);
  }
  // how many clusters and how much noise, beside it
  const from = width - SIDE + 12, room = SIDE - 18, most = Math.max(1, ...curve.map(c => c[0]));
  const row = i => TOP + i / 200 * (height - TOP - FOOT);
  g.fillStyle = "#e4e1d8"; g.beginPath(); g.moveTo(from, row(0));
  curve.forEach(([, noise], i) => g.lineTo(from + noise * room, row(i)));
  g.lineTo(from, row(200)); g.fill();
  g.strokeStyle = "#1f5f8b"; g.lineWidth = 1.5; g.beginPath();
  curve.forEach(([k], i) => { if (i) g.lineTo(from + k / most * room, row(i)); else g.moveTo(from + k / most * room, row(i)); });
  g.stroke();
  g.fillStyle = "#1f5f8b"; g.fillText(`clusters (≤ ${most})`, width - 3, TOP - 2);
  g.textAlign = "left";
  g.fillStyle = "#7a766c"; g.fillText("in none", from, height - 3);
  if (lambda !== null) {
    g.fillStyle = "#a3341f"; g.fillRect(AXIS - 4, yOf(lambda, height) - 0.75, width - AXIS, 1.5);
  }
}
function ticks(low, high) {  // 1, 2, 5 in every decade
  const out = [];
  for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e++) for (const m of [1, 2, 5]) {
    const l = m * 10 ** e;
    if (l >= low && l <= high) out.push(l);
  }
  return out;
}

// The map.
const bounds = [0, 1].map(k => {
  let low = Infinity, high = -Infinity;
  for (let n = 0; n < N; n++) { low = Math.min(low, umap[2 * n + k]); high = Math.max(high, umap[2 * n + k]); }
  return [low, Math.max(high, low + 1e-6)];
});
function place(n, width, height) {
  const [x, y] = [0, 1].map(k => (umap[2 * n + k] - bounds[k][0]) / (bounds[k][1] - bounds[k][0]));
  return [14 + x * (width - 28), height - 14 - y * (height - 28)];
}
function featureRange(f) {
  const sorted = Float32Array.from({ length: N }, (_, n) => features[n * F + f]).filter(isFinite).sort();
  return [sorted[Math.floor(0.01 * (sorted.length - 1))], sorted[Math.ceil(0.99 * (sorted.length - 1))]];
}
function drawScatter() {
  const [g, width, height] = sharp(scatter), dot = Math.max(2.2, Math.min(5, 260 / Math.sqrt(N)));
  const range = feature >= 0 ? featureRange(feature) : null;
  byId("range").textContent = range === null ? "" : `${number(range[0])} (dark) to ${number(range[1])} (bright), 1st to 99th percentile`;
  const colourOf = n => {
    if (range === null) return shown[n] < 0 ? page.noise : branches[shown[n]].colour;
    const v = (features[n * F + feature] - range[0]) / (range[1] - range[0] || 1);
    return isFinite(v) ? page.scale[Math.round(Math.max(0, Math.min(1, v)) * (page.scale.length - 1))] : page.noise;
  };
  const chosen = branch === null ? null : branches.map(b => under(b, branch));
  for (const pass of [0, 1]) for (let n = 0; n < N; n++) {
    const front = chosen === null ? shown[n] >= 0 : chosen[branchOf[n]];
    if (Number(front) !== pass) continue;
    const [x, y] = place(n, width, height);
    g.globalAlpha = chosen === null ? (front || range !== null ? 0.85 : 0.45) : front ? 1 : 0.1;
    g.fillStyle = colourOf(n);
    g.beginPath(); g.arc(x, y, dot / 2 + (chosen !== null && front ? 0.6 : 0), 0, 7); g.fill();
  }
  g.globalAlpha = 1;
}
function draw() { drawTree(); drawScatter(); }

// What the user does.
byId("cut").addEventListener("input", e => { lambda = toLambda(Number(e.target.value) / 1000); change(); });
const largest = Math.max(2, ...branches.filter(b => b.parent >= 0).map(b => b.size));
byId("least").addEventListener("input", e => {
  least = Number(e.target.value) === 0 ? 0 : Math.round(largest ** (Number(e.target.value) / 100));
  change();
});
byId("own").addEventListener("click", () => { lambda = null; change(); });
byId("colour").addEventListener("change", e => { feature = Number(e.target.value); drawScatter(); });
function branchUnder(e) {
  const box = tree.getBoundingClientRect(), x = e.clientX - box.left, y = e.clientY - box.top;
  return branches.find(b => {
    const [left, right, first, last] = boxOf(b, box.width, box.height);
    return x >= left && x <= right && y >= first && y < last;
  }) || null;
}
tree.addEventListener("click", e => { const b = branchUnder(e); if (b !== null) choose(b); else if (branch !== null) choose(branch); });
function tell(e, text) {
  const tip = byId("tip");
  tip.style.display = text ? "block" : "none";
  tip.textContent = text;
  tip.style.left = `${Math.min(e.clientX + 14, window.innerWidth - tip.offsetWidth - 8)}px`;
  tip.style.top = `${e.clientY + 14}px`;
}
tree.addEventListener("pointermove", e => {
  const b = branchUnder(e);
  tell(e, b === null ? "" : `${name(b)}: ${many(b.size)} points, λ ${number(b.birth)} to ${number(b.death)}`);
});
scatter.addEventListener("pointermove", e => {
  const box = scatter.getBoundingClientRect();
  let best = -1, close = 64;
  for (let n = 0; n < N; n++) {
    const [x, y] = place(n, box.width, box.height), d = (x - e.clientX + box.left) ** 2 + (y - e.clientY + box.top) ** 2;
    if (d < close) { best = n; close = d; }
  }
  tell(e, best < 0 ? "" : `episode ${episode[best]}, t ${step[best]}: ${shown[best] < 0 ? "in no cluster" : name(branches[shown[best]])}` +
    (feature >= 0 ? `\n${page.feature_names[feature]}: ${number(features[best * F + feature])}` : ""));
});
for (const canvas of [tree, scatter]) canvas.addEventListener("pointerleave", () => { byId("tip").style.display = "none"; });
window.addEventListener("resize", draw);
page.feature_names.forEach((text, f) => {
  const option = document.createElement("option");
  option.value = f; option.textContent = text;
  byId("colour").append(option);
});
change();
