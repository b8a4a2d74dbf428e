// The state of the view, which lives in the URL; and the filters, which hold at the same step.
const DEFAULT = { view: "answer", s: 0, t: 4, q: "", path: "whole", basis: "", x: 0, y: 1, k: 0, end: "high", when: "all", fstep: "all", fb: "",
  fq: "", ev: "", rmin: "", rmax: "", id: "", f: "", speed: 4, theme: "", film: 0, marks: "", pa: 0, pb: 0 };
let state = { ...DEFAULT };
let bounds = new Map();  // direction -> {v: [low, high], g: [low, high]}, numbers or null

function readState() {
  wrote = location.hash;
  const found = new URLSearchParams(location.hash.slice(1));
  state = { ...DEFAULT };
  for (const key of Object.keys(DEFAULT)) {
    if (!found.has(key)) continue;
    const text = found.get(key).slice(0, 2000);
    state[key] = typeof DEFAULT[key] === "number" ? (Number.isFinite(+text) ? Math.max(0, +text) : DEFAULT[key]) : text;
  }
  bounds = new Map();
  for (const part of state.f.split("!").filter(Boolean)) {  // 3v-1~2 : direction 3, value from -1 to 2
    const m = /^(\d+)([vg])(-?[\d.e+-]*)~(-?[\d.e+-]*)$/.exec(part);
    if (m) setBound(+m[1], m[2], m[3] === "" ? null : +m[3], m[4] === "" ? null : +m[4]);
  }
}

const OFTEN = 300;  // milliseconds between changes of the address: browsers refuse more than some hundred in a short time
let wroteAt = -OFTEN, wrote = "", writing = 0;  // writing: the timer of one that waits
function writeState() {
  state.f = [...bounds].flatMap(([k, of]) => ["v", "g"].filter(w => of[w]).map(w => `${k}${w}${of[w][0] ?? ""}~${of[w][1] ?? ""}`)).join("!");
  const out = new URLSearchParams();
  for (const [key, value] of Object.entries(state)) if (value !== DEFAULT[key] || key === "view") out.set(key, String(value));
  const hash = "#" + out.toString();
  if (hash === location.hash) return;
  const wait = OFTEN - (performance.now() - wroteAt);
  if (wait > 0) { writing ||= setTimeout(() => { writing = 0; if (location.hash === wrote) writeState(); }, wait); return; }
  wroteAt = performance.now();
  history.replaceState(null, "", hash);
  wrote = location.hash;
}

function setBound(k, which, low, high) {
  const of = bounds.get(k) || {};
  if (low === null && high === null) delete of[which]; else of[which] = [low, high];
  if (of.v || of.g) bounds.set(k, of); else bounds.delete(k);
}

// Which samples match, [{n, t: first step that does}], and what the bounds could be: the smallest and largest values of
// what matches the rest.  data: courses; slopes(n, t, k): gradient of the chosen quantity, NaN where it is not known.
function matching(data, slopes) {
  const { T, K, E } = data, N = data.ids.length, only = state.fstep === "all" ? -1 : +state.fstep;
  const wantLabel = state.fb === "" ? null : +state.fb, wantEvent = state.ev === "" ? -1 : data.events.indexOf(state.ev);
  const low = state.rmin === "" ? -Infinity : +state.rmin, high = state.rmax === "" ? Infinity : +state.rmax;
  const active = [];
  for (const [k, of] of bounds) {
    if (k >= K) continue;
    if (of.v) active.push([k, "v", of.v[0] ?? -Infinity, of.v[1] ?? Infinity]);
    if (of.g) active.push([k, "g", of.g[0] ?? -Infinity, of.g[1] ?? Infinity]);
  }
  const value = Array.from({ length: K }, () => [Infinity, -Infinity]), slope = Array.from({ length: K }, () => [Infinity, -Infinity]);
  const wide = (of, k, v) => { if (v === v) { if (v < of[k][0]) of[k][0] = v; if (v > of[k][1]) of[k][1] = v; } };
  const c = data.c, found = [];
  for (let n = 0; n < N; n++) {
    if (state.id !== "" && !String(data.ids[n]).startsWith(state.id)) continue;
    if (data.return[n] < low || data.return[n] > high) continue;
    let first = -1;
    const from = only < 0 ? 0 : only, to = only < 0 ? Math.min(T, data.steps[n]) : Math.min(only + 1, data.steps[n]);
    for (let t = from; t < to; t++) {
      const row = n * T + t;
      if (wantLabel !== null && data.label[row] !== wantLabel) continue;
      if (wantEvent >= 0 && !data.event[row * E + wantEvent]) continue;
      let broken = 0, which = -1;
      for (let a = 0; a < active.length && broken < 2; a++) {
        const [k, kind, lo, hi] = active[a], v = kind === "v" ? c[row * K + k] : slopes(n, t, k);
        if (!(v >= lo && v <= hi)) { broken++; which = a; }
      }
      if (broken === 0) {
        if (first < 0) first = t;
        for (let k = 0; k < K; k++) wide(value, k, c[row * K + k]);
        if (slopes.known && slopes.known(n)) for (let k = 0; k < K; k++) wide(slope, k, slopes(n, t, k));
      } else if (broken === 1) {
        const [k, kind] = active[which];
        if (kind === "v") wide(value, k, c[row * K + k]); else wide(slope, k, slopes(n, t, k));
      }
    }
    if (first >= 0) found.push({ n, t: first });
  }
  return { found, value, slope };
}
