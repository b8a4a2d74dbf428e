// The page of analysis/semantics/hover.py: points of states, the frame under the pointer, search by level and step.
const codes = unpack(page.code), levels = unpack(page.level), steps = unpack(page.step), values = unpack(page.value);
const maps = Object.fromEntries(Object.entries(page.maps).map(([name, xy]) => [name, unpack(xy)]));
const hidden = new Set(), sheets = page.sheets.map((url) => { const image = new Image(); image.src = url; return image; });
let at = -1, places = [];

function matches(i) {
  const level = byId("level").value.trim(), step = byId("step").value.trim();
  return (level === "" || levels[i] === Number(level)) && (step === "" || steps[i] === Number(step));
}

function draw() {
  const [pen, width, height] = sharp(byId("map")), xy = maps[byId("which").value];
  let left = Infinity, right = -Infinity, top = Infinity, bottom = -Infinity;
  for (let i = 0; i < codes.length; i++) {
    left = Math.min(left, xy[2 * i]); right = Math.max(right, xy[2 * i]);
    top = Math.min(top, xy[2 * i + 1]); bottom = Math.max(bottom, xy[2 * i + 1]);
  }
  const asked = byId("level").value.trim() !== "" || byId("step").value.trim() !== "";
  let found = 0;
  places = [];
  for (let i = 0; i < codes.length; i++) {
    if (hidden.has(codes[i])) continue;
    const x = 8 + (width - 16) * (xy[2 * i] - left) / (right - left || 1);
    const y = height - 8 - (height - 16) * (xy[2 * i + 1] - top) / (bottom - top || 1);
    const here = matches(i);
    found += here;
    if (here) places.push([x, y, i]);
    pen.globalAlpha = here ? 1 : 0.12;
    pen.fillStyle = page.colours[codes[i]];
    const size = asked && here ? 4 : 2;
    pen.fillRect(x - size / 2, y - size / 2, size, size);
  }
  pen.globalAlpha = 1;
  const chosen = places.find(([, , i]) => i === at);
  if (chosen) { pen.strokeStyle = "#1d2329"; pen.strokeRect(chosen[0] - 5, chosen[1] - 5, 10, 10); }
  byId("found").textContent = asked ? `${found} of ${codes.length} states match` : "";
}

function show(i) {
  at = i;
  const [pen, wide, high] = sharp(byId("frame"));
  pen.imageSmoothingEnabled = false;
  const of = i % (page.sheet * page.sheet), [w, h] = page.frame;
  const sheet = sheets[Math.floor(i / (page.sheet * page.sheet))];
  const paint = () => pen.drawImage(sheet, of % page.sheet * w, Math.floor(of / page.sheet) * h, w, h, 0, 0, wide, high);
  if (sheet.complete) paint(); else sheet.addEventListener("load", paint, { once: true });
  byId("about").textContent =
    `${page.names[codes[i]]}; ${page.levels} ${levels[i]}, step ${steps[i]}; value ${values[i].toFixed(2)}`;
  draw();
}

byId("map").addEventListener("mousemove", (event) => {
  const box = byId("map").getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
  let nearest = -1, least = 225;  // 15 pixels
  for (const [px, py, i] of places) {
    const away = (px - x) ** 2 + (py - y) ** 2;
    if (away < least) { least = away; nearest = i; }
  }
  if (nearest >= 0 && nearest !== at) show(nearest);
});
for (const name of Object.keys(maps)) byId("which").append(new Option(name, name));
for (const id of ["which", "level", "step"]) {
  byId(id).addEventListener("input", () => {
    draw();
    if (id !== "which" && places.length && places.length < codes.length) show(places[0][2]);
  });
}
page.names.forEach((name, c) => {
  const row = byId("legend").insertRow(), box = document.createElement("input"), swatch = document.createElement("span");
  box.type = "checkbox"; box.checked = true; box.id = `code${c}`;
  box.addEventListener("input", () => { if (box.checked) hidden.delete(c); else hidden.add(c); draw(); });
  swatch.className = "swatch"; swatch.style.background = page.colours[c];
  const label = document.createElement("label");
  let count = 0;
  for (const code of codes) count += code === c;
  label.append(box, swatch, count ? name : `${name} (dead)`);
  row.insertCell().append(label);
  const cell = row.insertCell();
  cell.className = "n"; cell.textContent = count;
});
addEventListener("resize", draw);
draw();
