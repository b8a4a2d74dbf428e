// The page begins: which view is shown, tips, dark and light, keys.
const openers = { samples: openSamples, directions: openDirections, gallery: openGallery, films: openFilms, bookmarks: openBookmarks, live: openLive, figure: openFigure };
const openerOf = view => openers[view] || (facts.studies && facts.studies[view] ? () => openStudy(view) : null);
const opened = new Map();  // view -> promise that it is built

function showTip(text, x, y) {
  const tip = byId("tip");
  tip.textContent = text; tip.hidden = false;
  tip.style.left = Math.max(4, Math.min(x + 12, innerWidth - tip.offsetWidth - 8)) + "px";
  tip.style.top = Math.max(4, Math.min(y + 14, innerHeight - tip.offsetHeight - 8)) + "px";
}
function hideTip() { byId("tip").hidden = true; }

function tipOf(target) {  // what a number is: said by itself, or by its table
  const own = target.closest && target.closest("[data-tip]");
  if (own) return [own, own.dataset.tip];
  const cell = target.closest && target.closest(".report td");
  if (!cell) return null;
  const row = cell.parentElement, said = [`${cell.dataset.title || ""}: ${cell.innerText}`];
  for (const other of row.cells) if (other !== cell && ["n", "unit", "episodes"].includes(other.dataset.title)) said.push(`${other.dataset.title}: ${other.innerText}`);
  const made = cell.closest("section.view").dataset.command;
  if (made) said.push(`made by: ${made}`);
  return [cell, said.join("\n")];
}

function pointed(e) { const found = tipOf(e.target); if (found) showTip(found[1], e.clientX, e.clientY); else if (!(e.target.tagName === "CANVAS")) hideTip(); }
document.addEventListener("mousemove", pointed);
document.addEventListener("focusin", e => { const found = tipOf(e.target); if (found) { const box = found[0].getBoundingClientRect(); showTip(found[1], box.left, box.bottom); } else hideTip(); });
document.addEventListener("keydown", e => { if (e.key === "Escape") hideTip(); keys(e); });

function setTheme() {
  colours.clear();
  if (state.theme) document.documentElement.dataset.theme = state.theme; else delete document.documentElement.dataset.theme;
}

let seen = "";  // the view on the screen
async function showView() {
  const known = byId("view-" + state.view) ? state.view : (await whole(), byId("view-" + state.view)) ? state.view : document.querySelector("section.view").id.slice(5);
  state.view = known;
  stop();
  for (const section of document.querySelectorAll("section.view")) section.hidden = section.id !== "view-" + known;
  if (seen && seen !== known) {
    scrollTo(0, 0);
    if (document.activeElement.closest("section.view[hidden]")) byId("main").focus({ preventScroll: true });  // the keyboard follows
  }
  seen = known;
  for (const link of document.querySelectorAll("#tabs a")) link.dataset.view === known ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current");
  const tabs = byId("tabs"), tab = tabs.querySelector("[aria-current]");
  if (tab) tabs.scrollLeft = tab.offsetLeft - (tabs.clientWidth - tab.offsetWidth) / 2;  // on a phone they stand in one row
  const section = byId("view-" + known);
  if (section.parentElement !== byId("main")) byId("main").append(section);  // those that stand after the data
  if (section.dataset.command && !section.querySelector(".line-of")) {
    section.prepend(element("p", { class: "line-of soft" }, "made by ", element("code", {}, section.dataset.command), " ", element("button", { type: "button", class: "quiet", onclick: () => copy(section.dataset.command) }, "copy")));
  }
  const needs = ["directions", "gallery", "bookmarks"].includes(known) && facts.samples ? "samples" : null;
  if (needs && !opened.has(needs)) opened.set(needs, openSamples());
  if (needs) await opened.get(needs);
  if (openerOf(known) && !opened.has(known)) { const opening = Promise.resolve(openerOf(known)()); opened.set(known, opening); await opening; }
  else {
    await opened.get(known);  // it may still be opening
    if (state.view !== known) return;
    if (section.redraw) await section.redraw();
    else if (known === "samples" && data) { syncControls(); refilter(); }
  }
  document.documentElement.dataset.ready = known;
}

function syncControls() {  // the URL may have changed the state behind the controls' backs
  for (const [id, key] of [["f-id", "id"], ["f-behaviour", "fb"], ["f-event", "ev"], ["f-low", "rmin"], ["f-high", "rmax"], ["f-step", "fstep"], ["f-quantity", "fq"], ["dx", "x"], ["dy", "y"], ["dk", "k"], ["speed", "speed"]]) {
    const input = byId(id);
    if (input && state[key] !== "") input.value = String(state[key]);
  }
  const more = byId("q-more");
  if (more) more.value = Array.from(more.options).some(o => o.value === state.q) ? state.q : "";
  for (const input of document.querySelectorAll("input[name=q]")) input.checked = input.value === state.q;
  for (const input of document.querySelectorAll("input[name=path]")) input.checked = input.value === state.path;
}

function rebuild() {  // the views of samples, in another basis
  for (const view of ["samples", "directions", "gallery", "bookmarks", "figure"]) { opened.delete(view); byId("view-" + view)?.replaceChildren(); }
  clouds.clear(); barsRange = null; data = null;
  return showView();
}

function followAddress() { readState(); setTheme(); data && data.kind !== kindOf() ? rebuild() : showView(); }
window.addEventListener("hashchange", followAddress);
window.addEventListener("resize", () => { if (state.view === "samples" && data) drawSample(); else { const section = byId("view-" + state.view); if (section && section.redraw) section.redraw(); } });
byId("theme").addEventListener("click", () => {
  const dark = state.theme ? state.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  state.theme = dark ? "light" : "dark"; setTheme(); writeState();
  if (state.view === "samples" && data) drawSample(); else { const section = byId("view-" + state.view); if (section.redraw) section.redraw(); }
});
document.querySelector("#tabs").addEventListener("click", e => {  // a tab keeps the state of the others
  const link = e.target.closest("a[data-view]");
  if (!link) return;
  e.preventDefault();
  state.view = link.dataset.view; state.pa = state.pb = 0;  // what is picked in a study is its own
  writeState(); showView();
});
readState(); setTheme(); showView();
