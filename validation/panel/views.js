// The other views: extremes of directions, behaviours, interventions, bookmarks, and figures for papers.
function thumb(id, t, label, href) {  // a small frame that leads to its sample and step
  const small = element("canvas", { class: "thumb", role: "img", "aria-label": label });
  const link = element("a", { class: "shot", href }, small, element("span", {}, label));
  link.draw = () => facts.frames.ids.includes(id) ? picture(`frames:${id}`).then(image => drawFrame(small, image, t)) : drawNothing(small, "no frame");
  return link;
}

const linkTo = (n, t) => { const out = new URLSearchParams({ view: "samples", s: n, t }); return "#" + out.toString(); };
const drawAll = links => { for (const link of links) link.draw(); };

// Rows (n, t) by a direction's value: the highest, the middle, the lowest; one a sample.
function extremes(k, end, only) {
  const rows = [];
  for (let n = 0; n < data.ids.length; n++) {
    if (!facts.frames.ids.includes(data.ids[n]) && facts.frames.ids.length) continue;
    let best = null;
    for (let t = only === null ? 0 : only; t < (only === null ? data.steps[n] : Math.min(only + 1, data.steps[n])); t++) {
      const v = data.c[(n * data.T + t) * data.K + k];
      const worth = end === "high" ? v : end === "low" ? -v : -Math.abs(v);
      if (best === null || worth > best.worth) best = { n, t, v, worth };
    }
    if (best) rows.push(best);
  }
  return rows.sort((a, b) => b.worth - a.worth).slice(0, 12);
}

function openDirections() {
  const view = byId("view-directions");
  if (!facts.directions) { view.append(missing("directions", "No directions were fitted.")); return; }
  if (!data) { view.append(missing("samples", "There are no samples to look at.")); return; }
  const names = facts.directions.names, target = facts.saliency ? facts.saliency.target : state.t;
  const values = k => { const out = []; for (let n = 0; n < data.ids.length; n++) for (let t = 0; t < data.steps[n]; t++) out.push(data.c[(n * data.T + t) * data.K + k]); return out; };
  const shots = element("div", { class: "shots", id: "shots" });
  const draw = () => {
    writeState();
    const k = Math.min(names.length - 1, state.k), all = values(k);
    drawHistogram(byId("histogram"), all, null);
    const mean = all.reduce((a, b) => a + b, 0) / all.length;
    byId("histogram-said").replaceChildren(`${names[k]} over ${number(all.length)} steps of ${number(data.ids.length)} samples; mean `, figure(mean, { unit: "sd", n: data.ids.length, what: `mean of ${names[k]} over simulated steps (in standard deviations of the states it was fitted on)` }));
    const links = extremes(k, state.end, state.when === "all" ? null : target).map(({ n, t, v }) => thumb(data.ids[n], t, `${number(v)} sd · sample ${data.ids[n]}, step ${t}`, linkTo(n, t)));
    shots.replaceChildren(...links);
    drawAll(links);
  };
  view.append(element("h2", {}, "Extremes and histograms"), element("div", { class: "row" },
    choice("d-k", "direction", names.map((name, k) => [String(k), name]), String(Math.min(names.length - 1, state.k)), v => { state.k = +v; draw(); }),
    choice("d-end", "frames at which it is", [["high", "high"], ["middle", "near its mean"], ["low", "low"]], state.end, v => { state.end = v; draw(); }),
    choice("d-when", "at", [["all", "any step"], ["step", `step ${target}`]], state.when, v => { state.when = v; draw(); }), command("directions")),
    canvas("histogram", "Histogram of the direction"), element("p", { id: "histogram-said", class: "soft" }), shots);
  view.redraw = () => { byId("d-k").value = String(Math.min(names.length - 1, state.k)); byId("d-end").value = state.end; draw(); };
  draw();
}

function openGallery() {
  const view = byId("view-gallery");
  if (!facts.behaviours.length || !data) { view.append(missing("behaviours", "No behaviours were found.")); return; }
  const total = data.label.reduce((sum, b) => sum + (b >= 0), 0), links = [], edited = new Map(facts.behaviours.map(b => [b.id, b.name]));
  const cards = facts.behaviours.map(b => {
    const rows = [], starts = [];
    let count = 0;
    for (let n = 0; n < data.ids.length; n++) for (let t = 0; t < data.steps[n]; t++) {
      if (data.label[n * data.T + t] !== b.id) continue;
      count++;
      if (facts.frames.ids.includes(data.ids[n]) && !starts.includes(n)) { starts.push(n); rows.push([n, t]); }
    }
    const few = rows.slice(0, 6).map(([n, t]) => thumb(data.ids[n], t, `sample ${data.ids[n]}, step ${t}`, linkTo(n, t)));
    links.push(...few);
    const name = element("input", { type: "text", value: b.name, maxlength: "80", "aria-label": `name of behaviour ${b.id}`, oninput: e => edited.set(b.id, e.target.value) });
    const swatch = element("i", { class: "swatch" }); swatch.style.background = b.colour;
    return element("article", { class: "card" }, element("h3", {}, swatch, name), element("p", { class: "soft" }, "share of steps ",
      figure(total ? count / total : null, { unit: "of simulated steps", n: data.ids.length, what: `share of behaviour ${b.id}; its interval is in Behaviours in numbers` }), " ",
      element("a", { href: "#view=samples&fb=" + b.id }, "find its samples")), element("div", { class: "shots" }, ...few));
  });
  const save = element("button", { type: "button", id: "names", onclick: () => {
    const text = JSON.stringify(Object.fromEntries(edited), null, 1);
    if (facts.served) { live.post("names", { names: Object.fromEntries(edited) }).then(() => say("names saved"), e => say(String(e.message))); return; }
    out.hidden = false; out.value = text; out.focus(); out.select(); copy(text);
  } }, facts.served ? "save names" : "names as behaviours.json");
  const out = element("textarea", { hidden: true, rows: "8", "aria-label": "behaviours.json", readonly: true });
  view.append(element("h2", {}, "Behaviours"), element("p", { class: "soft" }, "Clusters of steps; a name is yours to give. The graph: how often one follows another among the samples' steps; wider is more often."),
    canvas("graph", "Graph of the behaviours"), element("p", {}, save, " ", command("behaviours")), out, element("div", { class: "cards" }, ...cards));
  view.redraw = () => { drawGraph(byId("graph")); drawAll(links); };
  view.redraw();
}

function drawGraph(on) {  // behaviours on a circle, with arrows for what follows what
  const [context, width, height] = sharp(on), all = facts.behaviours, index = new Map(all.map((b, i) => [b.id, i]));
  const counts = all.map(() => new Array(all.length).fill(0)), out = new Array(all.length).fill(0);
  for (let n = 0; n < data.ids.length; n++) for (let t = 0; t + 1 < data.steps[n]; t++) {
    const a = index.get(data.label[n * data.T + t]), b = index.get(data.label[n * data.T + t + 1]);
    if (a !== undefined && b !== undefined && a !== b) { counts[a][b]++; out[a]++; }
  }
  const radius = Math.min(width, height) * .36, at = i => [width / 2 + Math.min(width * .36, radius * 1.8) * Math.cos(2 * Math.PI * i / all.length), height / 2 + radius * Math.sin(2 * Math.PI * i / all.length)];
  counts.forEach((row, a) => row.forEach((count, b) => {
    if (!count || count / out[a] < .05) return;
    const [x0, y0] = at(a), [x1, y1] = at(b), angle = Math.atan2(y1 - y0, x1 - x0), bend = .12, mx = (x0 + x1) / 2 - bend * (y1 - y0), my = (y0 + y1) / 2 + bend * (x1 - x0);
    context.strokeStyle = context.fillStyle = all[a].colour; context.globalAlpha = .75; context.lineWidth = .6 + 5 * count / out[a];
    context.beginPath(); context.moveTo(x0, y0); context.quadraticCurveTo(mx, my, x1, y1); context.stroke();
    const ex = x1 - 11 * Math.cos(angle), ey = y1 - 11 * Math.sin(angle);
    context.beginPath(); context.moveTo(ex, ey); context.lineTo(ex - 9 * Math.cos(angle - .4), ey - 9 * Math.sin(angle - .4)); context.lineTo(ex - 9 * Math.cos(angle + .4), ey - 9 * Math.sin(angle + .4)); context.fill();
  }));
  context.globalAlpha = 1;
  all.forEach((b, i) => {
    const [x, y] = at(i);
    context.fillStyle = b.colour; context.beginPath(); context.arc(x, y, 8, 0, 7); context.fill();
    context.fillStyle = colour("ink"); context.strokeStyle = colour("paper"); context.lineWidth = 4; context.textAlign = "center"; context.textBaseline = "top";
    const most = Math.min(34, Math.floor(width / 16)), name = b.name.length > most ? b.name.slice(0, most - 1) + "…" : b.name;
    const half = context.measureText(name).width / 2 + 3, middle = Math.max(half, Math.min(width - half, x));  // whole on a phone, too
    context.strokeText(name, middle, y + 10); context.fillText(name, middle, y + 10);  // readable across the arrows
  });
}

// Plays a film: on() shows its next step, four times a second, as long as the button can be seen.
function playButton(on, id = null) {
  let playing = false, last = 0;
  const say = () => { button.textContent = playing ? "⏸" : "▶"; button.setAttribute("aria-label", playing ? "Pause" : "Play"); };
  const next = now => {
    if (playing && !button.offsetParent) { playing = false; say(); }
    if (!playing) return;
    if (now - last >= 250) { last = now; on(); }
    requestAnimationFrame(next);
  };
  const button = element("button", { type: "button", id, onclick: () => { playing = !playing; say(); if (playing) requestAnimationFrame(next); } });
  say();
  return button;
}

let filmAt = 0;
function openFilms() {
  const view = byId("view-films");
  if (!facts.films || !facts.films.length) { view.append(element("p", {}, "No claim was tested. The view Claims says what to type.")); return; }
  state.film = Math.min(state.film, facts.films.length - 1);
  const panel = element("div", { id: "film" });
  const show = async () => {
    writeState();
    const film = facts.films[state.film];
    const intervals = film.observed === null || film.observed === undefined ? null : element("p", {}, "observed ", figure(film.observed, { unit: film.unit || "", n: film.n, low: film.low, high: film.high, what: `${film.hypothesis}: ${film.quantity}` }),
      film.low !== null && film.low !== undefined ? ` [${number(film.low)}, ${number(film.high)}]` : "", ` ${film.unit || ""}; foretold `, figure(film.foretold, { unit: film.unit || "", n: film.n, what: "foretold by the simulator" }), `; n = ${number(film.n)} starts. Verdict: `, element("strong", {}, film.verdict || "none"));
    const parts = element("ul", {}, ...Object.entries(film.parts || {}).map(([name, answer]) => element("li", {}, `${name.replaceAll("_", " ")}: ${answer}`)));
    const words = [element("h3", {}, film.text || film.hypothesis || ""), intervals, parts, element("p", {}, element("a", { href: "#view=interventions" }, "the split by path, and all effects"))];
    if (!film.block) { panel.replaceChildren(...words.filter(Boolean), element("p", { class: "soft" }, "No film of it was kept.")); return; }
    const image = await picture(film.block), shown = [];
    const rows = Array.from({ length: film.starts }, (_, s) => element("div", { class: "films" }, ...film.worlds.map((world, w) => {
      const on = canvas(`film-${s}-${w}`, `${world}, start ${s}`);
      shown.push(() => drawFrame(on, image, (s * film.worlds.length + w) * film.steps + filmAt, { ...film, columns: 16 }));
      return element("figure", {}, on, element("figcaption", {}, world));
    }), film.filmed && film.filmed[s] ? element("p", { class: "soft" }, "effect on this start: ", figure(film.filmed[s].effect, { unit: film.unit || "", n: 1, what: "with minus without the change" })) : null));
    const scrub = element("input", { type: "range", min: "0", max: String(film.steps - 1), value: String(Math.min(filmAt, film.steps - 1)), "aria-label": "Step of the film", oninput: e => { filmAt = +e.target.value; draw(); } });
    const step = element("strong", {});
    const draw = () => { scrub.value = String(filmAt); step.textContent = `step ${filmAt} of ${film.steps - 1}`; shown.forEach(f => f()); };
    const button = playButton(() => { filmAt = (filmAt + 1) % film.steps; draw(); });
    panel.replaceChildren(...words.filter(Boolean), element("div", { class: "controls" }, button, scrub, step), ...rows);
    filmAt = Math.min(filmAt, film.steps - 1);
    draw();
  };
  view.append(element("h2", {}, "Interventions, without and with"), choice("film-choice", "claim", facts.films.map((f, i) => [String(i), (f.hypothesis || f.text || `claim ${i}`) + (f.quantity ? `: ${f.quantity}` : "")]), String(state.film), v => { state.film = +v; show(); }), panel);
  view.redraw = () => { byId("film-choice").value = String(state.film); show(); };
  show();
}

function openBookmarks() {
  const view = byId("view-bookmarks");
  if (!data) { view.append(missing("samples", "There are no samples to look at.")); return; }
  const list = element("div", { id: "marks" });
  view.append(element("h2", {}, "Bookmarks"), element("p", { class: "soft" }, "Steps worth a look among the samples with frames; yours are in the page's address."), list);
  view.redraw = () => { const groups = bookmarks(); const links = [];
    list.replaceChildren(...groups.map(([title, why, rows]) => { const own = rows.map(({ n, t, words }) => thumb(data.ids[n], t, words, linkTo(n, t) + (state.marks ? "&marks=" + state.marks : ""))); links.push(...own);
      return element("section", {}, element("h3", {}, title), element("p", { class: "soft" }, why), rows.length ? element("div", { class: "shots" }, ...own) : element("p", { class: "soft" }, "none")); }));
    drawAll(links); };
  view.redraw();
}

function bookmarks() {
  const has = n => !facts.frames.ids.length || facts.frames.ids.includes(data.ids[n]), T = data.T, each = [];
  for (let n = 0; n < data.ids.length; n++) if (has(n)) for (let t = 0; t < data.steps[n]; t++) each.push([n, t]);
  const top = (worth, words, count = 6) => { const seen = new Set(), rows = each.map(([n, t]) => ({ n, t, v: worth(n, t) })).filter(r => r.v === r.v && r.v !== null).sort((a, b) => b.v - a.v);
    return rows.filter(r => !seen.has(r.n) && seen.add(r.n)).slice(0, count).map(r => ({ ...r, words: `${words(r)} · sample ${data.ids[r.n]}, step ${r.t}` })); };
  const at = (n, t) => n * T + t, next = (n, t) => t + 1 < data.steps[n];
  const groups = [["Yours", "Set by the button bookmark in Samples.", marks().map(m => m.split(".").map(Number)).map(([id, t]) => ({ n: data.ids.indexOf(id), t })).filter(m => m.n >= 0 && m.t < data.steps[m.n]).map(m => ({ ...m, words: `sample ${data.ids[m.n]}, step ${m.t}` }))],
    ["Largest change of value", "|value after − value before| (return).", top((n, t) => next(n, t) ? Math.abs(data.value[at(n, t + 1)] - data.value[at(n, t)]) : NaN, r => number(r.v))],
    ["Most surprising steps", "|reward + value after − value before| (return, undiscounted): what the agent did not expect.", top((n, t) => next(n, t) ? Math.abs(data.reward[at(n, t)] + data.value[at(n, t + 1)] - data.value[at(n, t)]) : NaN, r => number(r.v))],
    ["Least expected actions", "Probability that the agent gave to what it did.", top((n, t) => { const a = data.taken[data.action[at(n, t)]] ?? -1, p = a < 0 ? 255 : data.prob[at(n, t) * data.A + a]; return p === 255 ? NaN : -p / 250; }, r => number(-r.v))]];
  if (real) groups.push(["Where simulator and world part", "|value in the simulator − value in the real episode| at the same step (return).", top((n, t) => real.start[n][0] >= 0 && t < real.steps[n] ? Math.abs(data.value[at(n, t)] - real.value[n * real.T + t]) : NaN, r => number(r.v))]);
  if (facts.directions) {
    const k = Math.min(data.K - 1, state.k), name = facts.directions.names[k], c = (n, t) => data.c[at(n, t) * data.K + k];
    groups.push([`Most extreme of ${name}`, "Farthest from its mean (sd).", top((n, t) => Math.abs(c(n, t)), r => number(c(r.n, r.t)))], [`Most typical of ${name}`, "Nearest to its mean (sd).", top((n, t) => -Math.abs(c(n, t)), r => number(c(r.n, r.t)))]);
  }
  return groups;
}

// A small page with chosen samples alone, for a paper.
async function openFigure() {
  const view = byId("view-figure");
  await inBasis();
  const wants = what => facts.view === "all" || facts.view === what, names = facts.directions ? facts.directions.names : [], all = range(data.c);
  const q = facts.saliency ? (Object.keys(facts.saliency.quantities).includes(state.q) ? state.q : Object.keys(facts.saliency.quantities)[0]) : "";
  const panels = data.ids.map((id, n) => { const make = (what, label) => wants(what) ? element("figure", {}, canvas(`${what}-${n}`, `${label}, sample ${id}`), element("figcaption", {}, label)) : null;
    return element("article", { class: "card" }, element("h3", {}, `sample ${id}`), facts.frames.ids.length ? make("film", "frame, simulated") : null, facts.saliency && facts.frames.ids.length ? make("saliency", `saliency of ${q} at step ${facts.saliency.target}, ${{ whole: "agent and world", agent: "agent only", world: "through the world" }[state.path]}: blue raises, red lowers`) : null, names.length ? make("path", "path in the plane of two directions (sd)") : null, make("courses", "value foretold (return)"), names.length ? make("bars", q && grads ? `directions (sd), coloured by the gradient of ${q}` : "directions (sd)") : null); });
  const last = Math.max(...data.steps) - 1;
  const scrub = element("input", { type: "range", id: "scrub", min: "0", max: String(last), "aria-label": "Step", oninput: e => { state.t = +e.target.value; draw(); } }), step = element("strong", { id: "where" });
  const button = playButton(() => { state.t = (state.t + 1) % (last + 1); draw(); }, "go-play");
  const draw = () => { state.t = Math.min(state.t, last); writeState(); scrub.value = String(state.t); step.textContent = `step ${state.t} of ${last}`;
    return Promise.all(data.ids.map(async (id, n) => { const t = Math.min(state.t, data.steps[n] - 1), image = await picture(`frames:${id}`);
      if (byId(`film-${n}`)) drawFrame(byId(`film-${n}`), image, t);
      if (byId(`saliency-${n}`)) { const maps = await loadMaps(id), found = maps ? mapAt(maps, id, t, q, state.path) : null; drawMap(byId(`saliency-${n}`), image, t, found && found.map, ...facts.saliency.shape, found ? found.most : 1); }
      if (byId(`courses-${n}`)) drawCourses(byId(`courses-${n}`), [{ values: Array.from({ length: data.steps[n] }, (_, i) => data.value[n * data.T + i]), colour: colour("simulated") }], t, data.T, "value (return)");
      if (byId(`path-${n}`)) { const K = data.K, x = Math.min(K - 1, state.x), y = Math.min(K - 1, state.y), points = cloudOf(x, y);
        drawScatter(byId(`path-${n}`), points, Array.from({ length: data.steps[n] }, (_, i) => [data.c[(n * data.T + i) * K + x], data.c[(n * data.T + i) * K + y]]), t, [names[x], names[y]], new Map(facts.behaviours.map(b => [b.id, b.colour]))); }
      if (byId(`bars-${n}`)) { const keep = state.fq; state.fq = q; const read = slopesOf(); state.fq = keep; drawBars(byId(`bars-${n}`), names.map((_, k) => data.c[(n * data.T + t) * data.K + k]), names.map((_, k) => read(n, t, k)), all, names); } })); };
  view.append(element("div", { class: "controls" }, button, scrub, step), element("div", { class: "cards" }, ...panels));
  view.redraw = draw;
  await draw();
}
