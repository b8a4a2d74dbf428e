// Live: a start, a change of the hidden state or of the world, and what follows in simulator and real game, side by side.
const live = {
  facts: null, job: null, result: null, step: 0,
  async call(path, options = {}) {
    const answer = await fetch(path, { ...options, credentials: "omit", headers: options.body ? { "Content-Type": "application/json" } : {} });
    const told = await answer.json().catch(() => ({}));
    if (!answer.ok) throw Object.assign(new Error(told.error || `the server says ${answer.status}`), { loading: told.loading });
    return told;
  },
  post(path, values) { return live.call(path, { method: "POST", body: JSON.stringify(values) }); },
};
const RUNS = ["simulator", "simulator, changed", "real", "real, changed"];

async function openLive() {
  const view = byId("view-live");
  const loading = element("p", { id: "live-loading", "aria-live": "polite" });
  view.append(loading);
  while (!live.facts) {
    try { live.facts = await live.call("live"); }
    catch (error) {
      if (!error.loading) { loading.textContent = `Nothing is live: ${error.message}. Serve with --starts 12 and a simulator.`; return; }
      loading.textContent = `Loading: ${error.message} …`;
      await new Promise(done => setTimeout(done, 500));
    }
  }
  loading.remove();
  const told = live.facts, drawn = [], starts = element("div", { class: "starts", role: "group", "aria-label": "Start" });
  let sheet = null, start = 0, hand = [];
  const choose = i => { start = i; hand = []; showHand(); [...starts.children].forEach((b, j) => { b.classList.toggle("now", j === i); b.setAttribute("aria-pressed", String(j === i)); }); };
  const showStarts = async () => {
    sheet = told.picture ? await decoded(told.picture) : null;
    drawn.length = 0;
    starts.replaceChildren(...Array.from({ length: told.starts }, (_, i) => {
      const small = canvas(`start-${i}`, `start ${i}, step ${told.age[i]} of its episode`);
      drawn.push(() => drawFrame(small, sheet, i, { ...told, columns: 16 }));
      return element("button", { type: "button", title: `start ${i}`, onclick: () => choose(i) }, small);
    }));
    more.disabled = !told.more;
    const list = byId("live-donor") || donor.querySelector("select"), now = list.value;
    list.replaceChildren(...[-1, ...told.age.keys()].map(i => element("option", { value: String(i) }, i < 0 ? "none" : String(i))));
    list.value = now;
  };
  const more = element("button", { type: "button", id: "live-draw", title: "other episodes of the real game", onclick: () => ask({ draw: true }, async result => {
    const first = told.starts;
    Object.assign(told, result.facts);
    await showStarts(); drawn.forEach(f => f()); choose(first);
  }) }, "draw others");
  const directions = told.directions.map((name, k) => [name, name]);
  const fields = { kind: "shift", one: told.directions[0] || "", two: told.directions[1] || "", amount: 2, path: "", last: "" };
  const line = element("input", { id: "live-change", type: "text", maxlength: "300", "aria-label": "change in words" });
  const edit = element("input", { id: "live-edit", type: "text", maxlength: "300", placeholder: "remove coin · move saw nearest by 2 0 · set velocity 0 0", "aria-label": "edit of the world in words" });
  const compose = () => { const end = [fields.last, fields.path && `through ${fields.path}`].filter(Boolean).join(" ");
    line.value = [{ none: "", shift: `shift ${fields.one} by ${+fields.amount >= 0 ? "+" : ""}${fields.amount}`, collapse: `collapse ${fields.one}`, swap: `swap ${fields.one} ${fields.two}`, resample: `resample ${fields.one}`, keep_only: `keep_only ${fields.one}` }[fields.kind], fields.kind === "none" ? "" : end].filter(Boolean).join(" "); };
  const set = key => value => { fields[key] = value; compose(); fit(); };
  const needs = { "live-one": k => k !== "none", "live-two": k => k === "swap", "live-amount": k => k === "shift", "live-donor": k => k === "resample", "live-path": k => k !== "none", "live-last": k => k !== "none" };
  const fit = () => { for (const [id, has] of Object.entries(needs)) { const label = byId(id) && byId(id).closest("label"); if (label) label.hidden = !has(fields.kind); } };
  const slider = element("input", { id: "live-amount", type: "range", min: "-4", max: "4", step: "0.25", value: "2", "aria-label": "amount in standard deviations", oninput: e => { set("amount")(e.target.value); amount.textContent = `${e.target.value} sd`; } }), amount = element("span", {}, "2 sd");
  const donor = choice("live-donor", "from start", [["-1", "none"]], "-1", () => {});
  const horizon = element("input", { id: "live-horizon", type: "number", min: "1", max: String(told.longest), value: "16" });
  const quantity = choice("live-quantity", "saliency of", [["", "none"], ["value", "value"], ["action", "action"], ...told.choices.map(a => [a, a]), ...directions], "", () => {});
  const bar = element("progress", { id: "live-bar", max: "1", value: "0", hidden: true }), words = element("p", { id: "live-said", "aria-live": "polite" });
  const go = element("button", { type: "submit", id: "live-go" }, "run"), cancel = element("button", { type: "button", id: "live-cancel", hidden: true, onclick: () => live.job && live.call(`live/${live.job}`, { method: "DELETE" }) }, "cancel");
  const handWords = element("p", { id: "hand", class: "soft", "aria-live": "polite" });
  const showHand = () => { handWords.textContent = hand.length ? `by hand: ${hand.map(a => a || "agent").join(", ")}, then the agent` : "the agent acts; choose actions to take over from the start, one a step"; };
  const keysOf = told.by_hand ? element("div", { class: "keys" }, ...told.choices.map(a => element("button", { type: "button", onclick: () => { hand.push(a); showHand(); horizon.value = String(Math.max(+horizon.value, hand.length)); ask(); } }, `${arrowOf(a)} ${a}`)),
    element("button", { type: "button", onclick: () => { hand.push(""); showHand(); } }, "let the agent"), element("button", { type: "button", id: "hand-here", onclick: () => { const run = live.result && live.result.runs.simulator; if (run) { hand = run.action.slice(0, live.step); showHand(); } } }, "take over at the shown step"), element("button", { type: "button", onclick: () => { hand.pop(); showHand(); } }, "back"), element("button", { type: "button", onclick: () => { hand = []; showHand(); } }, "clear")) : null;
  const out = element("div", { id: "live-out" }), came = element("div", { id: "live-came" });

  const question = () => {
    const values = { start, horizon: Math.max(1, Math.min(told.longest, Math.round(+horizon.value) || 16)), change: edit.value.trim() ? "" : line.value.trim(), edit: edit.value.trim(), donor: +byId("live-donor").value, actions: hand, quantity: byId("live-quantity").value };
    return { ...values, target: Math.min(4, values.horizon) };
  };
  const answered = result => { live.result = result; return showRuns(out); };

  const show = () => { if (came.offsetTop > form.offsetTop && came.getBoundingClientRect().top > 0) came.scrollIntoView(); };  // where it stands below the question
  async function ask(values = question(), then = answered) {
    if (live.job) return;
    const from = document.activeElement;  // a button that is switched off loses the keyboard
    go.disabled = true; cancel.hidden = bar.hidden = false; words.textContent = "";
    show();
    const began = performance.now();
    try {
      let job = await live.post("live", values);
      live.job = job.id;
      while (job.state === "waiting" || job.state === "running") {
        await new Promise(done => setTimeout(done, 60));
        job = await live.call(`live/${live.job}`);
        bar.max = job.total || 1; bar.value = job.done;
      }
      if (job.state === "done") { await then(job.result); words.textContent = `${((performance.now() - began) / 1000).toFixed(2)} s`; show(); }
      else words.textContent = job.state === "failed" ? job.error : job.state;
    } catch (error) { words.textContent = error.message; }
    live.job = null; go.disabled = false; cancel.hidden = bar.hidden = true;
    if (document.activeElement === document.body || document.activeElement === cancel) (from === cancel ? go : from).focus({ preventScroll: true });
  }

  const form = element("form", { onsubmit: e => { e.preventDefault(); ask(); } }, element("h2", {}, "Ask"), starts, element("div", { class: "row" }, more),
    element("div", { class: "row" }, choice("live-kind", "change", ["shift", "collapse", "swap", "resample", "keep_only", "none"].map(k => [k, k]), "shift", set("kind")), directions.length ? choice("live-one", "of", directions, fields.one, set("one")) : null, directions.length ? choice("live-two", "with", directions, fields.two, set("two")) : null),
    element("label", {}, element("span", {}, "by ", amount), slider), element("div", { class: "row" }, choice("live-path", "through", [["", "everything"], ["memory", "memory"], ["world", "the world"]], "", set("path")), choice("live-last", "for", [["", "one step"], ["for 4 steps", "4 steps"], ["always", "always"]], "", set("last")), donor),
    element("label", {}, "change of the hidden state, in words", line), told.edits ? element("label", {}, "or an edit of the world, in words", edit) : null,
    element("div", { class: "row" }, element("label", {}, "steps ", horizon), quantity), element("div", { class: "row" }, go));
  came.append(...(keysOf ? [element("h2", {}, "By hand"), handWords, keysOf] : []), element("div", { class: "row status" }, bar, cancel, words), out);
  view.append(element("div", { class: "live" }, form, came));
  compose(); fit(); if (!directions.length) line.value = "";
  showHand(); await showStarts(); choose(0); drawn.forEach(f => f());
  view.redraw = () => drawn.forEach(f => f());
}

async function showRuns(out) {
  const { runs, saliency, warning } = live.result, told = live.facts, names = RUNS.filter(name => runs[name]), longest = Math.max(...names.map(n => runs[n].steps)), draws = [];
  const numbers = x => Array.isArray(x) ? x.map(numbers) : x === null ? NaN : x;  // what JSON has no number for
  for (const name of names) for (const key of ["value", "reward", "prob", "c"]) runs[name][key] = numbers(runs[name][key]);
  const images = await Promise.all(names.map(name => runs[name].frames ? decoded(runs[name].frames) : null));
  const films = names.map((name, i) => { const on = canvas(`live-${i}`, name), words = element("figcaption", {});
    draws.push(() => { const run = runs[name], t = Math.min(live.step, run.steps - 1); if (live.step < run.steps) drawFrame(on, images[i], t, { ...told, columns: 16 }); else drawNothing(on, "episode over"); words.textContent = live.step < run.steps ? `${name} ${arrowOf(run.action[t])} ${run.action[t]}` : name; });
    return element("figure", {}, on, words); });
  const line = canvas("live-value", "Value in every run"), shade = { simulator: "simulated", "simulator, changed": "simulated", real: "real", "real, changed": "real" };
  draws.push(() => drawCourses(line, names.map(name => ({ values: runs[name].value.slice(0, runs[name].steps), colour: colour(shade[name]), dashed: !name.endsWith("changed") })), live.step, longest, "value (return)"));
  const table = element("table", { id: "live-probs" }), fill = () => {
    const at = name => runs[name].prob[live.step];  // none where its episode is over
    table.replaceChildren(element("thead", {}, element("tr", {}, element("th", {}, "probability of"), ...names.map(n => element("th", { class: "n" }, n)))), element("tbody", {}, ...told.choices.map((a, i) => element("tr", {}, element("td", {}, `${arrowOf(a)} ${a}`), ...names.map(n => { const changed = n.endsWith("changed") && runs[n.replace(", changed", "")]; if (!at(n)) return element("td", { class: "n soft" }, "over"); const p = at(n)[i], was = changed ? at(n.replace(", changed", ""))?.[i] ?? null : null;
      return element("td", { class: "n" }, figure(p, { unit: "probability", n: 1, what: `${a}, ${n}, step ${live.step}` }), was !== null && Math.abs(p - was) >= .005 ? element("strong", {}, ` ${p > was ? "+" : "−"}${number(Math.abs(p - was), 2)}`) : ""); })))));
  };
  draws.push(fill);
  const scrub = element("input", { type: "range", id: "live-scrub", min: "0", max: String(longest - 1), "aria-label": "Step", oninput: e => { live.step = +e.target.value; draw(); } }), where = element("strong", { id: "live-where" });
  const play = playButton(() => { live.step = (live.step + 1) % longest; draw(); }, "live-play");
  const map = saliency ? canvas("live-map", `Saliency of ${saliency.quantity}`) : null;
  const path = saliency ? choice("live-map-path", "path", [["whole", "whole"], ["agent", "agent only"], ["world", "through the world"]], "whole", () => draw()) : null;
  if (saliency) { const levels = { whole: new Int8Array(bytesIn(saliency.whole).buffer), agent: new Int8Array(bytesIn(saliency.agent).buffer) }, size = told.height * told.width;
    draws.push(() => { const which = byId("live-map-path").value, t = Math.min(live.step, saliency.target), of = new Float32Array(size);
      for (let i = 0; i < size; i++) { const w = levels.whole[t * size + i] * saliency.whole_step, a = levels.agent[t * size + i] * saliency.agent_step; of[i] = which === "whole" ? w : which === "agent" ? a : w - a; }
      drawMap(map, images[0], t, of, told.height, told.width, 127 * saliency.whole_step);
      byId("live-map-said").textContent = `the frame of step ${t}${live.step > t ? ": later ones have no gradient" : ""}; blue raises, red lowers`; }); }
  const draw = () => { live.step = Math.min(live.step, longest - 1); scrub.value = String(live.step); where.textContent = `step ${live.step} of ${longest - 1}`; draws.forEach(f => f()); };
  out.replaceChildren(element("div", { class: "controls" }, play, scrub, where), warning ? element("p", { id: "live-far" }, element("strong", {}, "Far: "), warning) : "", element("div", { class: "films" }, ...films), line, element("p", { class: "soft" }, element("span", { class: "solid" }, "simulator"), ", ", element("span", { class: "dashed" }, "real game"), "; dashed: unaltered, solid: changed. One start, n = 1, so no interval: a study (python -m validation.interventions, .edits) tests it on many."),
    saliency ? element("div", {}, element("h3", {}, "Saliency of ", saliency.quantity, ` at step ${saliency.target}: `, figure(saliency.y, { unit: saliency.unit, n: 1, what: saliency.quantity })), path, map, element("p", { id: "live-map-said", class: "soft" })) : null || "", element("div", { class: "scroll", tabindex: "0" }, table));
  draw();
}
