// Views of other studies: a cloud of points to colour and to point at, bars with intervals, courses over time.  What is
// picked in them is state.pa and state.pb.
const picked = (key, count) => Math.min(state[key], count - 1);
const pickOf = (id, label, names, key, then) => choice(id, label, names.map((name, i) => [String(i), name]), String(picked(key, names.length)), v => { state[key] = +v; writeState(); then(); });

async function openStudy(id) {
  const told = facts.studies[id], into = byId("view-" + id).querySelector(".charts"), draws = [];
  if (told.points) draws.push(await studyPoints(id, told.points, into));
  if (told.bars) draws.push(studyBars(id, told.bars, into));
  if (told.courses && told.courses.each.length) draws.push(studyCourses(id, told.courses, into));
  if (told.targets && told.targets.length) draws.push(studyTargets(id, told.targets, into));
  byId("view-" + id).redraw = () => Promise.all(draws.map(draw => draw()));
  await byId("view-" + id).redraw();
}

const swatch = shade => { const made = element("i", { class: "swatch" }); made.style.background = shade; return made; };

async function studyPoints(id, told, into) {
  const index = await array(told.index, "int32"), maps = await Promise.all(told.maps.map(m => array(m.block, "float32")));
  const colours_ = await Promise.all(told.colours.map(c => array(c.block, "float32")));
  let map = 0, by = 0, explained = -1, hidden = new Set(), spots = [];
  const on = canvas(`${id}-points`, "Points"), legend = element("p", { id: `${id}-legend`, class: "legend" });
  const count = element("p", { class: "soft" }, told.n < told.of ? `${told.n.toLocaleString("en")} of ${told.of.toLocaleString("en")} points, at even distances` : `${told.n.toLocaleString("en")} points`);
  const shadeOf = () => {
    const about = told.colours[by], x = colours_[by];
    if (!about) return () => colour("accent");
    if (about.labels) { const shades = new Map(about.labels.map(l => [l.id, l.colour])); return i => shades.get(x[i]) || colour("line"); }
    const [low, high] = range(x);
    return i => x[i] === x[i] ? about.scale[Math.min(about.scale.length - 1, Math.floor((x[i] - low) / (high - low) * about.scale.length))] : colour("line");
  };
  const draw = () => {
    map = picked("pa", maps.length); by = picked("pb", told.colours.length);
    byId(`${id}-map`).value = String(map);
    if (by >= 0) byId(`${id}-colour`).value = String(by);
    if (explained !== by) { explained = by; hidden = new Set(); explain(); }
    const [context, width, height] = sharp(on), xy = maps[map], about = told.colours[by], shade = shadeOf(), xs = range(xy.filter((_, i) => i % 2 === 0)), ys = range(xy.filter((_, i) => i % 2 === 1));
    const size = told.n > 1000 ? 3 : 5;
    spots = [];
    context.globalAlpha = .7;
    for (let i = 0; i < told.n; i++) {
      if (about && about.labels && hidden.has(colours_[by][i]) || xy[2 * i] !== xy[2 * i]) continue;
      const x = 8 + (xy[2 * i] - xs[0]) / (xs[1] - xs[0]) * (width - 16), y = height - 8 - (xy[2 * i + 1] - ys[0]) / (ys[1] - ys[0]) * (height - 16);
      spots.push([x, y, i]);
      context.fillStyle = shade(i);
      context.fillRect(x - size / 2, y - size / 2, size, size);
    }
    context.globalAlpha = 1;
  };
  const explain = () => {
    const about = told.colours[by];
    if (!about) { legend.replaceChildren(); return; }
    if (about.labels) legend.replaceChildren(...about.labels.map(l => element("label", {}, element("input", { type: "checkbox", checked: !hidden.has(l.id), onchange: e => { e.target.checked ? hidden.delete(l.id) : hidden.add(l.id); draw(); } }), swatch(l.colour), l.name)));
    else { const [low, high] = range(colours_[by]); legend.replaceChildren(number(low), ...about.scale.filter((_, i) => i % 4 === 0).map(swatch), `${number(high)} ${about.unit}`); }
  };
  on.addEventListener("mousemove", e => {
    let near = null, least = 150;
    for (const [x, y, i] of spots) { const away = (x - e.offsetX) ** 2 + (y - e.offsetY) ** 2; if (away < least) { least = away; near = i; } }
    if (near === null) { hideTip(); return; }
    const words = told.colours.map((c, k) => { const v = colours_[k][near], l = c.labels && c.labels.find(one => one.id === v); return `${c.name}: ${l ? l.name : number(v)}${c.unit ? " " + c.unit : ""}`; });
    showTip([`episode ${index[2 * near]}, step ${index[2 * near + 1]} (n = 1)`, ...words].join("\n"), e.clientX, e.clientY);
  });
  on.addEventListener("mouseleave", hideTip);
  into.append(element("div", { class: "row" }, pickOf(`${id}-map`, "map", told.maps.map(m => m.name), "pa", draw),
    told.colours.length ? pickOf(`${id}-colour`, "colour", told.colours.map(c => c.name), "pb", draw) : null), on, legend, count);
  on.className = "study-points";
  return draw;
}

const SERIES = ["#1f5f8b", "#9a9a9a", "#c2571a", "#4a8f5a", "#8a5fa8", "#b08a2e", "#4aa3a3", "#a34a6b", "#6b6b2e", "#2e2e6b"];
function studyBars(id, told, into) {
  const on = canvas(`${id}-bars`, told.title), tall = 13, names = [...new Set(told.rows.flatMap(r => r.bars.map(b => b[0])))], spots = [];
  on.style.width = "100%"; on.style.height = `${told.rows.reduce((sum, r) => sum + r.bars.length * tall + 12, 34)}px`;
  const draw = () => {
    const [context, width, height] = sharp(on), left = Math.min(170, width * .35), right = width - 12;
    const all = told.rows.flatMap(r => r.bars.flatMap(b => b.slice(1))).filter(v => v !== null).concat(0), cut = Number.isFinite(told.least) && Math.min(...all) < told.least;
    const [low, high] = range(cut ? all.map(v => Math.max(v, told.least)) : all), at = v => left + (Math.max(v, low) - low) / (high - low) * (right - left);
    let y = 4;
    spots.length = 0;
    for (const row of told.rows) {
      context.fillStyle = colour("ink"); context.textAlign = "right"; context.textBaseline = "middle";
      context.fillText(row.name.slice(0, 26), left - 8, y + row.bars.length * tall / 2);
      for (const [name, value, lo, hi] of row.bars) {
        if (value !== null) {
          context.fillStyle = SERIES[names.indexOf(name) % SERIES.length];
          context.fillRect(Math.min(at(0), at(value)), y + 1, Math.max(1, Math.abs(at(value) - at(0))), tall - 3);
          if (lo !== null && hi !== null) { context.strokeStyle = colour("ink"); context.lineWidth = 1; context.beginPath(); context.moveTo(at(lo), y + tall / 2 - .5); context.lineTo(at(hi), y + tall / 2 - .5); context.stroke(); }
          if (cut && Math.min(value, lo ?? value) < told.least) { const x = at(told.least), m = y + tall / 2 - .5; context.fillStyle = colour("ink"); context.beginPath(); context.moveTo(x - 5, m); context.lineTo(x + 1, m - 4); context.lineTo(x + 1, m + 4); context.fill(); }
        }
        spots.push({ y, text: `${row.name}, ${name}\n${number(value)} ${told.unit}\n${lo !== null && hi !== null ? `95 % interval ${number(lo)} to ${number(hi)}` : "no interval"}\nn = ${number(row.n)}${row.told ? "\n" + row.told : ""}` });
        y += tall;
      }
      y += 12;
    }
    on.dataset.from = low;
    context.strokeStyle = colour("soft"); context.beginPath(); context.moveTo(at(0), 0); context.lineTo(at(0), height - 26); context.stroke();
    context.fillStyle = colour("soft"); context.textBaseline = "bottom"; context.textAlign = "left"; context.fillText(cut ? `${number(told.least, 2)} (◂ below)` : number(low, 2), left, height - 8);
    context.textAlign = "right"; context.fillText(`${number(high, 2)} ${told.unit}`, right, height - 8);
  };
  on.addEventListener("mousemove", e => { const found = spots.find(s => e.offsetY >= s.y && e.offsetY < s.y + tall); found ? showTip(found.text, e.clientX, e.clientY) : hideTip(); });
  on.addEventListener("mouseleave", hideTip);
  into.append(element("h3", {}, told.title), element("p", { class: "legend" }, ...names.map((name, i) => element("span", {}, swatch(SERIES[i % SERIES.length]), " ", name))), on);
  return draw;
}

function studyCourses(id, told, into) {
  let which = 0, line = -1, listedOf = -1;
  const on = canvas(`${id}-courses`, "Courses"), lines = element("span", {}), said = element("p", { class: "soft" });
  on.className = "study-courses";
  const box = (width, height) => [44, 6, width - 6, height - 34];
  const shown = () => { const all = told.each[which].lines; return line < 0 ? all.slice(0, 12) : [all[Math.min(line, all.length - 1)]]; };
  const values = l => [...l.y, ...(l.low || []), ...(l.high || [])].map(v => v ?? NaN);
  const draw = () => {
    which = picked("pa", told.each.length);
    if (listedOf !== which) { listedOf = which; listed(); }
    const one = told.each[which].one;
    line = picked("pb", told.each[which].lines.length + (one ? 0 : 1)) - (one ? 0 : 1);
    byId(`${id}-line`).value = String(one ? line : line + 1);
    if (told.each.length > 1) byId(`${id}-which`).value = String(which);
    const chart = told.each[which], [context, width, height] = sharp(on), [left, top, right, bottom] = box(width, height), all = shown();
    const xs = range(chart.x), ys = range(all.flatMap(values)), x = v => left + (v - xs[0]) / (xs[1] - xs[0]) * (right - left), y = v => bottom - (v - ys[0]) / (ys[1] - ys[0]) * (bottom - top);
    axes(context, [left, top, right, bottom], xs, ys, told.across, chart.unit);
    all.forEach(l => {
      const shade = l.colour || SERIES[chart.lines.indexOf(l) % SERIES.length];
      if (l.low && all.length === 1) { context.globalAlpha = .18; context.fillStyle = shade; context.beginPath(); chart.x.forEach((v, i) => context.lineTo(x(v), y(l.low[i] ?? l.y[i]))); [...chart.x.keys()].reverse().forEach(i => context.lineTo(x(chart.x[i]), y(l.high[i] ?? l.y[i]))); context.fill(); context.globalAlpha = 1; }
      context.strokeStyle = shade; context.lineWidth = 1.5; context.beginPath();
      let open = false;
      l.y.forEach((v, i) => { if (v === null) { open = false; return; } open ? context.lineTo(x(chart.x[i]), y(v)) : context.moveTo(x(chart.x[i]), y(v)); open = true; });
      context.stroke();
    });
    chart.strip.forEach((shade, i) => { context.fillStyle = shade; const from = x(chart.x[i]), to = i + 1 < chart.x.length ? x(chart.x[i + 1]) : right; context.fillRect(from, height - 13, Math.max(1, to - from), 10); });
  };
  const listed = () => {
    const chart = told.each[which];
    lines.replaceChildren(pickOf(`${id}-line`, "line", [...(chart.one ? [] : ["all"]), ...chart.lines.map(l => l.name)], "pb", draw));
    said.textContent = `n = ${number(chart.n)}${chart.lines.some(l => l.low) ? "; 95 % intervals on hover, and as a band around a line that is chosen" : "; a single observation, so no interval"}${chart.strip.length ? "; below: the cluster of every tick" : ""}`;
  };
  on.addEventListener("mousemove", e => {
    const chart = told.each[which], [left, , right] = box(on.clientWidth, on.clientHeight), xs = range(chart.x), v = xs[0] + (e.offsetX - left) / (right - left) * (xs[1] - xs[0]);
    const i = chart.x.reduce((best, x, j) => Math.abs(x - v) < Math.abs(chart.x[best] - v) ? j : best, 0);
    showTip([`${told.across} ${number(chart.x[i], 6)}`, chart.strip.length ? chart.strip_names[i] : "", ...shown().map(l => `${l.name}: ${number(l.y[i])}${l.low && l.low[i] !== null ? ` [${number(l.low[i])}, ${number(l.high[i])}]` : ""}`), `n = ${number(chart.n)}`].filter(Boolean).join("\n"), e.clientX, e.clientY);
  });
  on.addEventListener("mouseleave", hideTip);
  into.append(element("div", { class: "row" }, told.each.length > 1 ? pickOf(`${id}-which`, "of", told.each.map(c => c.name), "pa", draw) : element("span", {}, told.each[0].name), lines), on, said);
  return draw;
}

function studyTargets(id, told, into) {  // a target function, one of its starts, and both rollouts from it
  let which = 0, s = 0, t = 0, image = null, imageOf = -1;
  const films = ["start as it is", "optimised"].map((name, i) => [canvas(`${id}-film-${i}`, name), name]), on = canvas(`${id}-trace`, "The target over time");
  on.className = "study-courses";
  const where = element("strong", {}), scrub = element("input", { type: "range", id: `${id}-scrub`, min: "0", "aria-label": "Step", oninput: e => { t = +e.target.value; draw(); } });
  const starts = element("span", {});
  const draw = async () => {
    which = picked("pa", told.length);
    if (imageOf !== which) {
      imageOf = which;
      const found = told[which].block ? await picture(told[which].block) : null;
      if (imageOf !== which) return;
      image = found;
      starts.replaceChildren(pickOf(`${id}-start`, "start", told[which].traces[0].map((_, i) => String(i)), "pb", draw));
    }
    s = picked("pb", told[which].traces[0].length);
    byId(`${id}-target`).value = String(which); byId(`${id}-start`).value = String(s);
    const target = told[which], [before, after] = target.traces.map(rows => rows[s].map(v => v ?? NaN)), last = Math.max(before.length, target.steps || 0) - 1;
    t = Math.min(t, last);
    scrub.max = String(last); scrub.value = String(t); where.textContent = `step ${t} of ${last}`;
    films.forEach(([film], i) => target.block ? drawFrame(film, image, (2 * s + i) * target.steps + Math.min(t, target.steps - 1), { ...target, columns: 16 }) : drawNothing(film, "no picture"));
    drawCourses(on, [{ values: before, colour: colour("soft"), dashed: true }, { values: after, colour: colour("accent") }], t, last + 1, `${target.name} (${target.unit})`);
  };
  into.append(element("div", { class: "row" }, pickOf(`${id}-target`, "target function", told.map(target => target.name), "pa", draw), starts),
    element("div", { class: "controls" }, scrub, where), element("div", { class: "films" }, ...films.map(([film, name]) => element("figure", {}, film, element("figcaption", {}, name)))), on,
    element("p", { class: "soft" }, "Solid: after it was optimised; dashed: before. One start, n = 1, so no interval; the table has the means."));
  return draw;
}
