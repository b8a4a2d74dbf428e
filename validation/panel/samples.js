// The view of samples: frames, saliency, the plane of two directions, bars, courses, and what chooses samples.
let data = null, real = null, grads = null, base = null, matches = { found: [], value: [], slope: [] };
let playing = false, playedAt = 0, pausedUntil = 0;
const mapsOf = new Map();

const EXPLAINED = {
  frames: "Left: what the agent saw in the simulator, step by step. Right: the real episode that the sample starts in, from the same step on; the two part as soon as the agent acts otherwise. The arrow is the action that follows the frame.",
  saliency: "Where a brighter pixel of this frame raises (blue) or lowers (red) the chosen quantity at the target step, summed over colours, by its gradient. Whole: through agent and world. Agent only: with the way from action to world cut. Through the world: their difference (straight-through). One shade is stored per pixel, right to within a twentieth of the map's largest number; a first-order hypothesis, not a finding.",
  plane: "Every dot is a step that the directions were fitted on, coloured by behaviour; the line is this sample's path; the large dot is the present step. Axes: the chosen directions, in standard deviations.",
  bars: "How far each direction is from its mean at this step (standard deviations; the axis does not move). Colour: the gradient of the saliency's quantity with respect to the direction: blue raises, red lowers, pale is near nothing, grey is not known for this sample.",
  courses: "Over the sample's steps: the agent's value, the probability of the chosen action, and the chosen direction. Solid: what the simulator foretold; dashed: what was in the real episode.",
  filters: "A sample matches when at one and the same step all bounds hold, on directions' values, on gradients, on behaviour and event. Bounds that are not set stand at the smallest and largest values of what matches the rest; those that are set are bold. Another quantity resets the gradients' bounds; another behaviour or step resets all.",
};

function pane(name, title, ...content) {
  const help = element("p", { class: "help", id: `help-${name}`, hidden: true }, EXPLAINED[name]);
  return element("section", { class: `pane ${name}`, "aria-label": title },
    element("h2", {}, title, element("button", { type: "button", class: "ask", "aria-label": `What is this: ${title}`, "aria-expanded": "false", "aria-controls": `help-${name}`,
      onclick: e => { help.hidden = !help.hidden; e.target.setAttribute("aria-expanded", String(!help.hidden)); } }, "?")), help, ...content);
}

function choice(id, label, options, value, onchange) {
  const list = element("select", { id, onchange: e => onchange(e.target.value) }, ...options.map(([v, text]) => element("option", { value: v }, text)));
  list.value = value;
  return element("label", {}, label + " ", list);
}

const canvas = (id, label) => element("canvas", { id, role: "img", "aria-label": label, tabindex: "-1" });

async function openSamples() {
  const view = byId("view-samples");
  if (!facts.samples) { view.append(missing("samples", "There are no simulated rollouts to look at.")); return; }
  view.append(element("p", { class: "soft", id: "loading" }, "unpacking …"));
  await showFirst();
  await inBasis();
  byId("loading").remove();
  buildSamples(view);
  refilter();
}

async function showFirst() {  // the first picture, before anything else is unpacked
  const view = byId("view-samples"), n = Math.min(state.s, facts.samples.ids.length - 1), id = facts.samples.ids[n];
  if (!facts.frames.ids.includes(id)) return;
  const first = canvas("first", "first frame");
  view.append(first);
  drawFrame(first, await picture(`frames:${id}`), Math.min(state.t, facts.samples.steps[n] - 1));
  document.documentElement.dataset.first = String(performance.now());
}

function buildSamples(view) {
  byId("first")?.remove();
  const names = facts.directions ? facts.directions.names : [], told = facts.saliency;
  const options = names.map((name, k) => [String(k), name]);
  const go = what => element("button", { type: "button", id: "go-" + what, "aria-label": { first: "First step", back: "Step back", play: "Play", forward: "Step on", last: "Last step" }[what],
    onclick: () => move(what) }, { first: "|◀", back: "‹", play: "▶", forward: "›", last: "▶|" }[what]);
  const controls = element("div", { class: "controls" },
    element("label", {}, "sample ", element("input", { id: "sample", type: "number", min: "0", onchange: e => toSample(rowOf(+e.target.value)) })),
    go("first"), go("back"), go("play"), go("forward"), go("last"),
    element("input", { id: "scrub", type: "range", min: "0", step: "1", "aria-label": "Step", oninput: e => { state.t = +e.target.value; drawSample(); } }),
    element("strong", { id: "where" }),
    facts.bases && Object.keys(facts.bases).length > 1 ? choice("basis", "basis", Object.keys(facts.bases).map(kind => [kind, kind]), kindOf(), setBasis) : null,
    choice("speed", "speed", [1, 2, 4, 8, 16, 30].map(v => [String(v), `${v} steps/s`]), String(state.speed), v => { state.speed = +v; writeState(); }),
    element("button", { type: "button", id: "mark", onclick: () => toggleMark() }, "bookmark"));
  const legend = element("div", { class: "legend" }, element("span", {}, "lowers"), canvas("legend", "Legend: red lowers, blue raises"), element("span", {}, "raises"), element("span", { id: "most" }));
  const saliency = told && told.parts.length ? [saliencyChoices(told), canvas("map", "Saliency"), legend, element("p", { id: "map-said", class: "soft" }), command("saliency")]
    : [missing("saliency", "No saliency was computed for these runs.")];
  const frames = [element("div", { class: "pair" }, element("figure", {}, canvas("frame", "Simulated frame"), element("figcaption", {}, "simulated")),
    element("figure", {}, canvas("real", "Real frame"), element("figcaption", {}, "real episode"))), element("p", { id: "facts", class: "soft" }), command("samples")];
  if (!facts.frames.ids.length) frames.unshift(element("p", { class: "soft" }, "The world's observations are no pictures."));
  const plane = names.length ? [element("div", { class: "row" }, choice("dx", "across", options, String(state.x), v => { state.x = +v; drawSample(); }), choice("dy", "up", options, String(state.y), v => { state.y = +v; drawSample(); })),
    canvas("plane", "Plane of two directions"), command("directions")] : [missing("directions", "No directions were fitted.")];
  const bars = names.length ? [element("div", { class: "row" }, element("span", { id: "bars-of", class: "soft" })), canvas("bars", "Values of the directions")] : [missing("directions", "No directions were fitted.")];
  const course = [canvas("course-value", "The agent's value"), choice("choice", "probability of", [["-1", "the action taken"], ...data.choices.map((a, i) => [String(i), a])], "-1", () => drawSample()),
    canvas("course-prob", "Probability of an action"), names.length ? choice("dk", "direction", options, String(state.k), v => { state.k = +v; drawSample(); }) : null, names.length ? canvas("course-c", "A direction") : null,
    element("p", { class: "soft" }, element("span", { class: "solid" }, "— foretold by the simulator "), element("span", { class: "dashed" }, "- - in the real episode")), real ? null : missing("real", "The recording that the samples start in is not here.")];
  view.append(controls, element("div", { class: "panes" },
    element("div", {}, pane("frames", "Observations", ...frames), pane("filters", "Find samples", buildFilters(names, told))),
    element("div", {}, pane("saliency", "Saliency", ...saliency), pane("bars", "Directions at this step", ...bars)),
    element("div", {}, pane("plane", "Plane of two directions", ...plane), pane("courses", "Courses", ...course))));
  hovers(names);
  view.addEventListener("keydown", e => { if (e.key === "Escape") stop(); });
}

function saliencyChoices(told) {
  const all = Object.keys(told.quantities), few = all.slice(0, 2);
  if (!all.includes(state.q)) state.q = all.includes("value") ? "value" : all[0];
  const radio = (name, value, label, chosen, on) => element("label", {}, element("input", { type: "radio", name, value, checked: chosen, onchange: on }), label);
  const more = element("select", { id: "q-more", "aria-label": "more quantities", onchange: e => { if (e.target.value) { state.q = e.target.value; setQuantity(); } } },
    element("option", { value: "" }, "more …"), ...all.slice(2).map(q => element("option", { value: q }, q)));
  more.value = all.indexOf(state.q) > 1 ? state.q : "";
  return element("div", { class: "row" }, element("fieldset", { class: "radios" }, element("legend", { class: "aside" }, "quantity"), ...few.map(q => radio("q", q, q, q === state.q, () => { state.q = q; setQuantity(); })), all.length > 2 ? more : null),
    element("fieldset", { class: "radios" }, element("legend", { class: "aside" }, "path"), ...[["whole", "whole"], ["agent", "agent only"], ["world", "through the world"]].map(([v, text]) => radio("path", v, text, v === state.path, () => { state.path = v; drawSample(); }))));
}

function setBasis(kind) {  // other directions: what was said of the old ones goes
  Object.assign(state, { basis: kind, x: 0, y: 1, k: 0 });
  bounds.clear();
  writeState();
  rebuild();
}

function setQuantity() {
  syncControls();
  drawSample();
}

function buildFilters(names, told) {
  const again = () => refilter();
  const all = () => { bounds.clear(); again(); };
  const labels = [["", "any"], ...facts.behaviours.map(b => [String(b.id), b.name])];
  const search = element("div", { class: "row" },
    element("label", {}, "id ", element("input", { id: "f-id", type: "search", size: "5", value: state.id, oninput: e => { state.id = e.target.value.replace(/\D/g, ""); again(); } })),
    choice("f-behaviour", "behaviour", labels, state.fb, v => { state.fb = v; all(); }),
    choice("f-event", "event", [["", "any"], ...data.events.map(e => [e, e])], state.ev, v => { state.ev = v; again(); }),
    element("label", {}, "return from ", element("input", { id: "f-low", type: "number", step: "any", value: state.rmin, oninput: e => { state.rmin = e.target.value; again(); } })),
    element("label", {}, "to ", element("input", { id: "f-high", type: "number", step: "any", value: state.rmax, oninput: e => { state.rmax = e.target.value; again(); } })),
    choice("f-step", "at step", [["all", "any"], ...Array.from({ length: data.T }, (_, t) => [String(t), String(t)])], state.fstep, v => { state.fstep = v; all(); }));
  const quantities = grads ? grads.names : [];
  if (grads && !quantities.includes(state.fq)) state.fq = quantities.includes("value") ? "value" : quantities[0];
  const of = grads ? choice("f-quantity", "gradient of", quantities.map(q => [q, q]), state.fq, v => { state.fq = v; for (const k of [...bounds.keys()]) setBound(k, "g", null, null); again(); })
    : element("p", { class: "soft" }, told ? "Bounds on gradients need saliency with --hidden_states." : "Bounds on gradients need saliency.");
  const field = (k, which, end) => element("input", { type: "number", step: "any", "data-k": k, "data-w": which, "data-end": end, "aria-label": `${names[k]} ${which === "v" ? "value" : "gradient"} ${end ? "at most" : "at least"}`,
    onchange: e => { const now = (bounds.get(k) || {})[which] || [null, null], next = [...now]; next[end] = e.target.value === "" ? null : +e.target.value; setBound(k, which, ...next); again(); } });
  const rows = names.map((name, k) => element("tr", {}, element("th", { scope: "row" }, name), element("td", {}, field(k, "v", 0)), element("td", {}, field(k, "v", 1)),
    grads ? element("td", {}, field(k, "g", 0)) : null, grads ? element("td", {}, field(k, "g", 1)) : null,
    element("td", {}, element("button", { type: "button", class: "quiet", "aria-label": `reset ${name}`, onclick: () => { setBound(k, "v", null, null); setBound(k, "g", null, null); again(); } }, "reset"))));
  const table = element("div", { class: "scroll", tabindex: "0" }, element("table", { id: "bounds" }, element("thead", {}, element("tr", {}, element("th", {}, "direction"), element("th", { colspan: "2" }, "value from, to (sd)"),
    grads ? element("th", { colspan: "2" }, "gradient from, to") : null, element("th", {}, ""))), element("tbody", {}, ...rows)));
  return element("div", {}, search, element("p", { "aria-live": "polite" }, element("strong", { id: "matches" }), " ", element("button", { type: "button", id: "reset", onclick: () => {
    Object.assign(state, { id: "", fb: "", ev: "", rmin: "", rmax: "", fstep: "all" }); for (const id of ["f-id", "f-behaviour", "f-event", "f-low", "f-high"]) byId(id).value = ""; byId("f-step").value = "all"; all(); } }, "reset all")),
    element("ul", { id: "found", class: "found" }), names.length ? element("details", { open: bounds.size > 0 }, element("summary", {}, "bounds on directions and gradients"), of, table) : null);
}

function slopesOf() {  // (n, t, k) -> gradient of the filter's quantity
  if (!grads) return () => NaN;
  const q = Math.max(0, grads.names.indexOf(state.fq)), { S, T, levels } = grads, K = data.K, [low, step] = grads.scale[q];
  const rows = grads.rows = grads.rows || data.ids.map(id => grads.row.get(id));
  const read = (n, t, k) => { const s = rows[n]; return s === undefined || t >= T ? NaN : low + (levels[((q * S + s) * T + t) * K + k] + 32767) * step; };
  read.known = n => rows[n] !== undefined;
  return read;
}

function refilter() {
  const began = performance.now();
  matches = matching(data, slopesOf());
  const took = performance.now() - began;
  const count = byId("matches");
  if (!count) return;
  count.dataset.took = String(took);
  count.textContent = matches.found.length ? `${matches.found.length} of ${data.ids.length} samples match` : `no sample matches (0 of ${data.ids.length}): loosen a bound`;
  count.classList.toggle("none", !matches.found.length);
  for (const input of document.querySelectorAll("#bounds input")) {
    const k = +input.dataset.k, w = input.dataset.w, end = +input.dataset.end, set = ((bounds.get(k) || {})[w] || [])[end];
    const rest = (w === "v" ? matches.value : matches.slope)[k][end];
    input.value = set ?? "";
    input.placeholder = Number.isFinite(rest) ? number(rest, 2) : "–";
    input.classList.toggle("active", set !== null && set !== undefined);
  }
  const list = byId("found");
  list.replaceChildren(...matches.found.slice(0, 60).map(({ n, t }) => element("li", {}, element("button", { type: "button", class: n === state.s ? "now" : "", onclick: () => { state.t = t; toSample(n); } },
    `${data.ids[n]}`, element("small", {}, ` return ${number(data.return[n], 2)}, step ${t}`)))), ...(matches.found.length > 60 ? [element("li", { class: "soft" }, `and ${matches.found.length - 60} more`)] : []));
  if (matches.found.length && !matches.found.some(m => m.n === state.s)) { state.s = matches.found[0].n; state.t = Math.min(state.t, data.steps[state.s] - 1); }
  drawSample();
}

const rowOf = id => { const n = data.ids.indexOf(id); return n < 0 ? state.s : n; };

function toSample(n) {
  state.s = Math.max(0, Math.min(data.ids.length - 1, n));
  state.t = Math.min(state.t, data.steps[state.s] - 1);
  drawSample();
}

function nextSample(by) {  // among those that match
  const rows = matches.found.map(m => m.n);
  if (!rows.length) return;
  const at = rows.indexOf(state.s);
  toSample(rows[(at + by + rows.length) % rows.length]);
}

function move(what) {
  const last = data.steps[state.s] - 1;
  if (what === "play") { playing ? stop() : play(); return; }
  stop();
  state.t = { first: 0, back: state.t - 1, forward: state.t + 1, last }[what];
  drawSample();
}

function play() { playing = true; playedAt = performance.now(); byId("go-play").textContent = "⏸"; byId("go-play").setAttribute("aria-label", "Pause"); requestAnimationFrame(tick); }
function stop() { playing = false; const button = byId("go-play"); if (button) { button.textContent = "▶"; button.setAttribute("aria-label", "Play"); } }

function tick(now) {  // 4 steps a second, a pause at the end, looped
  if (!playing) return;
  if (now - playedAt >= 1000 / state.speed && now >= pausedUntil) {
    const last = data.steps[state.s] - 1;
    playedAt = now;
    state.t = state.t >= last ? 0 : state.t + 1;
    if (state.t === last) pausedUntil = now + 1000;
    drawSample();
  }
  requestAnimationFrame(tick);
}

let drawing = 0, drawn = 0;  // how often drawing began, and which of these is on the screen
async function drawSample() {
  if (!byId("frame")) return;
  const mine = ++drawing, n = state.s = Math.max(0, Math.min(data.ids.length - 1, state.s)), id = data.ids[n], steps = data.steps[n];
  const t = state.t = Math.max(0, Math.min(steps - 1, state.t)), row = n * data.T + t;
  writeState();
  byId("sample").value = String(id);
  byId("scrub").max = String(steps - 1); byId("scrub").value = String(t);
  const action = data.choices[data.taken[data.action[row]]] ?? data.actions[data.action[row]];  // of those that do the same, the one that stands for them
  byId("where").textContent = `step ${t} of ${steps - 1} ${action === undefined ? "· end" : arrowOf(action) + " " + action}`;
  byId("mark").classList.toggle("active", marks().includes(`${id}.${t}`));
  const behaviour = facts.behaviours.find(b => b.id === data.label[row]);
  const happened = data.events.filter((_, e) => data.event[row * data.E + e]);
  byId("facts").replaceChildren("value ", figure(data.value[row], { unit: "return", n: 1, what: `the agent's value, sample ${id}, step ${t}` }), ", reward then ", figure(data.reward[row], { unit: "reward", n: 1, what: "reward of the transition after this step" }),
    behaviour ? `, ${behaviour.name}` : "", happened.length ? `; ${happened.join(", ")}` : "", ` · return of the sample `, figure(data.return[n], { unit: "return", n: 1, what: `sum of ${steps - 1} rewards` }));
  drawPlane(n, t, steps); drawSlopes(n, t); drawTimes(n, t, steps);
  const shown = facts.frames.ids.includes(id);
  const [image, beside, maps] = await Promise.all([shown ? picture(`frames:${id}`) : null, shown && real ? picture(`real:${id}`) : null, shown ? loadMaps(id) : null]);
  if (mine !== drawing) return;
  drawFrame(byId("frame"), image, t);
  const known = real && real.start[n][0] >= 0;
  if (known && t < real.steps[n]) drawFrame(byId("real"), beside, t); else drawNothing(byId("real"), known ? "episode over" : "no real episode");
  byId("frame").setAttribute("aria-label", `Simulated frame of sample ${id} at step ${t}`);
  if (byId("map")) drawSaliency(image, maps, id, t);
  drawn = mine;
}

function drawNothing(on, words) { const [context, w, h] = sharp(on); context.fillStyle = "#111"; context.fillRect(0, 0, w, h); written(context, words, w / 2, h / 2); }

async function loadMaps(id) {
  if (!facts.saliency || !facts.saliency.ids.includes(id)) return null;
  if (!mapsOf.has(id)) {
    mapsOf.set(id, array(`maps:${id}`, "int8"));
    if (mapsOf.size > 24) mapsOf.delete(mapsOf.keys().next().value);
  }
  return mapsOf.get(id);
}

// One frame's map of a quantity by a path, in units of the quantity per unit of brightness; null where it is not stored.
function mapAt(maps, id, t, quantity, path) {
  const told = facts.saliency, s = told.ids.indexOf(id), [h, w] = told.shape, size = h * w;
  const level = part => { const p = told.parts.indexOf(part); return p < 0 ? null : [maps.subarray((p * told.steps + t) * size, (p * told.steps + t + 1) * size), told.scale[part][s]]; };
  if (t >= told.steps) return { map: new Float32Array(size), most: 1, late: true };
  const all = level(`whole/${quantity}`), agent = path === "whole" ? null : level(`agent_only/${quantity}`);
  if (!all || (path !== "whole" && !agent)) return null;
  const out = new Float32Array(size);
  for (let i = 0; i < size; i++) out[i] = path === "whole" ? all[0][i] * all[1] : path === "agent" ? agent[0][i] * agent[1] : all[0][i] * all[1] - agent[0][i] * agent[1];
  return { map: out, most: told.shades * all[1] };
}

function drawSaliency(image, maps, id, t) {
  const told = facts.saliency, said = byId("map-said"), unit = told.quantities[state.q], [h, w] = told.shape;
  drawLegend(byId("legend"));
  const found = maps ? mapAt(maps, id, t, state.q, state.path) : null;
  drawMap(byId("map"), image, t, found && found.map, h, w, found ? found.most : 1);
  byId("map").setAttribute("aria-label", `Saliency of ${state.q}, ${state.path}, sample ${id}, step ${t}`);
  byId("most").textContent = found && !found.late ? `full colour at ${number(found.most, 2)} ${unit} per unit of brightness` : "";
  const s = told.ids.indexOf(id);
  if (!maps) said.textContent = "This sample has no saliency in the run that is drawn: give its id to python -m analysis.saliency --sample_ids.";
  else if (!found) said.textContent = "Only the whole map is stored of a direction; serve shows the rest.";
  else if (found.late) said.textContent = `The quantity is read at step ${told.target}: later frames have no gradient.`;
  else {
    const norm = told.norm[state.q][s], y = told.y[state.q][s], parts = { whole: 0, agent: 1, world: 2 };
    said.replaceChildren(`${state.q} at step ${told.target}: `, figure(y, { unit, n: 1, what: `${state.q} of sample ${id} at step ${told.target}` }), "; norm of this gradient over all frames ",
      figure(norm && norm[parts[state.path]], { unit: unit + " per unit of brightness", n: 1, what: `norm of the gradient, ${state.path}` }));
  }
}

function drawPlane(n, t, steps) {
  if (!byId("plane")) return;
  const K = data.K, names = facts.directions.names, x = Math.min(K - 1, state.x), y = Math.min(K - 1, state.y);
  const points = cloudOf(x, y);
  const path = Array.from({ length: steps }, (_, i) => [data.c[(n * data.T + i) * K + x], data.c[(n * data.T + i) * K + y]]);
  byId("plane").spots = drawScatter(byId("plane"), points, path, t, [`${names[x]} (sd)`, `${names[y]} (sd)`], new Map(facts.behaviours.map(b => [b.id, b.colour])));
}

const clouds = new Map();
function cloudOf(x, y) {  // the base points in the plane of two directions
  const key = `${x} ${y}`;
  if (!clouds.has(key)) {
    const points = { x: [], y: [], label: base ? base.label : [] };
    if (base) for (let i = 0; i < base.n; i++) { points.x.push(base.c[i * data.K + x]); points.y.push(base.c[i * data.K + y]); }
    points.ranges = [span(points.x), span(points.y)];
    clouds.set(key, points);
  }
  return clouds.get(key);
}

let barsRange = null;
function drawSlopes(n, t) {
  if (!byId("bars")) return;
  const K = data.K, row = (n * data.T + t) * K, names = facts.directions.names;
  if (!barsRange) { const [low, high] = range(data.c); barsRange = [Math.min(low, -1), Math.max(high, 1)]; }
  const keep = state.fq; state.fq = state.q || keep;
  const read = slopesOf(); state.fq = keep;
  const slopes = names.map((_, k) => read(n, t, k)), known = slopes.some(g => g === g);
  byId("bars-of").textContent = known ? `coloured by the gradient of ${state.q} at step ${facts.saliency.target}` : grads ? "no gradients of this sample or step" : "gradients need saliency with --hidden_states";
  drawBars(byId("bars"), names.map((_, k) => data.c[row + k]), slopes, barsRange, names);
  byId("bars").slopes = slopes;
}

function drawTimes(n, t, steps) {
  const of = (course, read) => course ? Array.from({ length: course.steps[n] }, (_, i) => read(course, n * course.T + i, i)) : [];
  const pair = read => [{ values: of(data, read), colour: colour("simulated") }, ...(real && real.start[n][0] >= 0 ? [{ values: of(real, read), colour: colour("real"), dashed: true }] : [])];
  drawCourses(byId("course-value"), pair((c, row) => c.value[row]), t, data.T, "value (return)");
  const asked = +byId("choice").value, taken = (c, row) => c.taken[c.action[row]] ?? -1;
  const prob = (c, row) => { const a = asked >= 0 ? asked : taken(c, row); const p = a < 0 ? 255 : c.prob[row * c.A + a]; return p === 255 ? NaN : p / 250; };
  drawCourses(byId("course-prob"), pair(prob), t, data.T, "probability", [0, 1]);
  if (byId("course-c")) drawCourses(byId("course-c"), pair((c, row) => c.c[row * c.K + Math.min(c.K - 1, state.k)]), t, data.T, `${facts.directions.names[Math.min(data.K - 1, state.k)]} (sd)`);
}

function hovers(names) {
  const bars = byId("bars"), plane = byId("plane");
  if (bars) bars.addEventListener("mousemove", e => {
    const tall = (bars.clientHeight - 18) / data.K, k = Math.floor(e.offsetY / tall);
    if (k < 0 || k >= data.K) { hideTip(); return; }
    const row = (state.s * data.T + state.t) * data.K + k, g = bars.slopes[k];
    showTip(`${names[k]}\n${number(data.c[row])} sd, n = 1 (no interval)\ngradient of ${state.q || "–"}: ${g === g ? number(g) + " per sd" : "not known"}`, e.clientX, e.clientY);
  });
  if (plane) plane.addEventListener("mousemove", e => {
    const near = (plane.spots || []).map(([x, y], i) => [Math.hypot(x - e.offsetX, y - e.offsetY), i]).sort((a, b) => a[0] - b[0])[0];
    if (!near || near[0] > 14) { hideTip(); return; }
    showTip(`sample ${data.ids[state.s]}, step ${near[1]}`, e.clientX, e.clientY);
  });
  if (plane) plane.addEventListener("click", e => { const near = (plane.spots || []).map(([x, y], i) => [Math.hypot(x - e.offsetX, y - e.offsetY), i]).sort((a, b) => a[0] - b[0])[0]; if (near && near[0] < 14) { state.t = near[1]; drawSample(); } });
  for (const [id, T] of [["course-value", data.T], ["course-prob", data.T], ["course-c", data.T]]) byId(id)?.addEventListener("click", e => { state.t = Math.round((e.offsetX - 44) / (e.target.clientWidth - 50) * (T - 1)); drawSample(); });
  for (const one of [bars, plane]) one?.addEventListener("mouseleave", hideTip);
}

const marks = () => state.marks ? state.marks.split("_") : [];
function toggleMark() {
  const mark = `${data.ids[state.s]}.${state.t}`, now = marks();
  state.marks = (now.includes(mark) ? now.filter(m => m !== mark) : [...now, mark]).join("_");
  drawSample();
}

function keys(e) {
  if (state.view !== "samples" || !data || !byId("frame") || e.ctrlKey || e.metaKey || e.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(e.target.tagName) && e.target.type !== "range" && e.target.type !== "radio") return;
  if (e.target.type === "radio" && e.key.startsWith("Arrow")) return;
  const act = { ArrowLeft: () => move("back"), ArrowRight: () => move("forward"), ArrowUp: () => nextSample(-1), ArrowDown: () => nextSample(1), Home: () => move("first"), End: () => move("last"), " ": () => move("play") }[e.key];
  if (!act || (e.key === " " && e.target.tagName === "BUTTON")) return;
  e.preventDefault(); act();
}
