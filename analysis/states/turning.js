// The page of analysis/states/turning.py: states in three principal components, turning, coloured by choice.
const xyz = unpack(page.xyz), count = xyz.length / 3;
const shades = page.by.map((by) => unpack(by.shade));
const STEP = 0.006, REACH = 1.9;  // turned a frame; of the half width that a state may be from the middle
let angle = 0.6, tilt = 0.35, turning = true, held = null, chosen = 0;
const order = Array.from({ length: count }, (_, i) => i), places = new Float32Array(3 * count);

function placed(x, y, z) {  // to the right, up, and towards the viewer
  const right = Math.cos(angle) * x + Math.sin(angle) * y, away = -Math.sin(angle) * x + Math.cos(angle) * y;
  return [right, Math.cos(tilt) * z + Math.sin(tilt) * away, Math.sin(tilt) * z - Math.cos(tilt) * away];
}

function draw() {
  const [pen, width, height] = sharp(byId("space")), half = Math.min(width, height) / 2, unit = half / REACH;
  const at = (x, y) => [width / 2 + unit * x, height / 2 - unit * y];
  for (let i = 0; i < count; i++) {
    const [x, y, near] = placed(xyz[3 * i], xyz[3 * i + 1], xyz[3 * i + 2]);
    places[3 * i] = x; places[3 * i + 1] = y; places[3 * i + 2] = near;
  }
  order.sort((a, b) => places[3 * a + 2] - places[3 * b + 2]);
  pen.strokeStyle = "#b9b5aa"; pen.fillStyle = "#5b6570"; pen.font = "13px system-ui, sans-serif"; pen.textAlign = "center";
  page.axes.forEach((name, axis) => {
    const end = placed(...[0, 1, 2].map((k) => (k === axis ? 1.15 : 0)));
    pen.beginPath(); pen.moveTo(...at(-end[0], -end[1])); pen.lineTo(...at(end[0], end[1])); pen.stroke();
    pen.fillText(name, ...at(1.1 * end[0], 1.1 * end[1]));
  });
  const by = page.by[chosen], shade = shades[chosen];
  for (const i of order) {
    pen.globalAlpha = Math.min(1, Math.max(0.25, 0.7 + 0.3 * places[3 * i + 2]));
    pen.fillStyle = shade[i] < 0 ? page.unknown : by.colours[shade[i]];
    const [x, y] = at(places[3 * i], places[3 * i + 1]);
    pen.fillRect(x - 1.5, y - 1.5, 3, 3);
  }
  pen.globalAlpha = 1;
}

function choose(which) {
  chosen = which;
  const by = page.by[which], legend = byId("legend");
  legend.replaceChildren();
  for (const [colour, name] of by.legend || []) {
    const swatch = document.createElement("span");
    swatch.className = "swatch"; swatch.style.background = by.colours[colour];
    legend.insertRow().insertCell().append(swatch, name);
  }
  byId("scale").hidden = !by.ends;
  if (by.ends) {
    const [pen, width, height] = sharp(byId("bar"));
    by.colours.forEach((colour, i) => {
      pen.fillStyle = colour;
      pen.fillRect(i / by.colours.length * width, 0, width / by.colours.length + 1, height);
    });
    byId("ends").replaceChildren(...by.ends.map((end) => Object.assign(document.createElement("span"), { textContent: end })));
  }
  draw();
}

function step() {
  if (!turning) return;
  angle += STEP;
  draw();
  requestAnimationFrame(step);
}

function turn(on) {
  turning = on;
  byId("turn").textContent = on ? "Stop" : "Turn";
  if (on) requestAnimationFrame(step);
}

page.by.forEach((by, i) => byId("by").append(new Option(by.title, i)));
byId("by").addEventListener("input", () => choose(Number(byId("by").value)));
byId("turn").addEventListener("click", () => turn(!turning));
byId("space").addEventListener("pointerdown", (event) => {
  held = [event.clientX, event.clientY];
  byId("space").setPointerCapture(event.pointerId);
  turn(false);
});
byId("space").addEventListener("pointermove", (event) => {
  if (!held) return;
  angle -= (event.clientX - held[0]) / 150;
  tilt = Math.min(1.57, Math.max(-1.57, tilt + (event.clientY - held[1]) / 150));
  held = [event.clientX, event.clientY];
  draw();
});
byId("space").addEventListener("pointerup", () => { held = null; });
addEventListener("resize", draw);
choose(0);
turn(!matchMedia("(prefers-reduced-motion: reduce)").matches);
