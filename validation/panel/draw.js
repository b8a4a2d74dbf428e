// Drawing on canvases.  Colours are those of the page, dark or light.
const colours = new Map();  // until dark or light is changed
function colour(name) {
  if (!colours.has(name)) colours.set(name, getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim());
  return colours.get(name);
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => colours.clear());

function drawFrame(canvas, image, t, about = facts.frames) {  // frame t of a sheet
  const [context, width, height] = sharp(canvas);
  context.fillStyle = "#000";
  context.fillRect(0, 0, width, height);
  if (!image) { written(context, "no frame", width / 2, height / 2); return; }
  context.imageSmoothingEnabled = false;
  const columns = Math.max(1, Math.min(about.columns, Math.round(image.width / about.width)));
  const x = (t % columns) * about.width, y = Math.floor(t / columns) * about.height;
  if (y >= image.height) { written(context, "ended", width / 2, height / 2); return; }
  context.drawImage(image, x, y, about.width, about.height, 0, 0, width, height);
}

function written(context, text, x, y) {
  context.fillStyle = "#bbb"; context.textAlign = "center"; context.textBaseline = "middle";
  context.fillText(text, x, y);
}

// RdBu: red lowers, blue raises, and nothing is clear.
const LOWERS = [178, 24, 43], RAISES = [33, 102, 172];
const rgba = (raises, alpha) => `rgba(${(raises ? RAISES : LOWERS).join()},${alpha})`;
const SHADE = 256;  // levels of either sign
const shades = new Uint8ClampedArray(4 * (2 * SHADE + 1));  // RGBA over a darkened frame, from lowers most to raises most
for (let i = 0; i <= 2 * SHADE; i++) {
  const share = i / SHADE - 1, end = share < 0 ? LOWERS : RAISES;
  shades.set([1.35 * end[0], 1.35 * end[1], 1.35 * end[2], 408 * Math.abs(share)], 4 * i);
}
const shadeOf = new Uint32Array(shades.buffer);

const scratch = document.createElement("canvas");
function drawMap(canvas, image, t, map, height, width, most) {  // map: numbers of one frame, or null
  drawFrame(canvas, image, t);
  if (!map) return;
  const context = canvas.getContext("2d"), box = sizeOf(canvas);
  context.save();
  context.globalCompositeOperation = "saturation";
  context.fillStyle = "#808080"; context.fillRect(0, 0, box.width, box.height);
  context.globalCompositeOperation = "source-over";
  context.fillStyle = "#0008"; context.fillRect(0, 0, box.width, box.height);
  if (scratch.width !== width || scratch.height !== height) { scratch.width = width; scratch.height = height; }
  const small = scratch.getContext("2d"), pixels = small.createImageData(width, height), into = new Uint32Array(pixels.data.buffer);
  const scale = most > 0 ? SHADE / most : 0;
  for (let i = 0; i < map.length; i++) into[i] = shadeOf[SHADE + Math.max(-SHADE, Math.min(SHADE, Math.round(map[i] * scale)))];
  small.putImageData(pixels, 0, 0);
  context.imageSmoothingEnabled = true;
  context.drawImage(scratch, 0, 0, box.width, box.height);
  context.restore();
}

function drawLegend(canvas) {
  if (canvas.drawnAt === sizeOf(canvas)) return;
  const [context, width, height] = sharp(canvas);
  canvas.drawnAt = sizeOf(canvas);
  for (let x = 0; x < width; x++) {
    const share = 2 * x / width - 1;
    context.fillStyle = rgba(share > 0, Math.min(1, Math.abs(share) * 1.6));
    context.fillRect(x, 0, 1, height);
  }
}

function span(values, [low, high] = [Infinity, -Infinity]) {  // the smallest and the largest, of these and of those before
  for (const v of values) if (v === v) { if (v < low) low = v; if (v > high) high = v; }
  return [low, high];
}
const range = (values, before) => {  // the same, for an axis
  const [low, high] = span(values, before);
  return low === Infinity ? [0, 1] : low === high ? [low - 1, high + 1] : [low, high];
};

function axes(context, [left, top, right, bottom], [x0, x1], [y0, y1], xName, yName) {
  context.strokeStyle = colour("line"); context.lineWidth = 1; context.strokeRect(left, top, right - left, bottom - top);
  context.fillStyle = colour("soft"); context.textBaseline = "top"; context.textAlign = "left";
  context.fillText(number(x0, 2), left, bottom + 3); context.textAlign = "right"; context.fillText(number(x1, 2), right, bottom + 3);
  context.textAlign = "center"; context.fillText(xName, (left + right) / 2, bottom + 3);
  context.textAlign = "right"; context.textBaseline = "middle";
  context.fillText(number(y1, 2), left - 3, top + 5); context.fillText(number(y0, 2), left - 3, bottom - 5);
  context.save(); context.translate(9, (top + bottom) / 2); context.rotate(-Math.PI / 2); context.textAlign = "center";
  context.fillText(yName, 0, 0); context.restore();
}

// A scatter of base points with the sample's path, the current point marked.  Returns what is where, for hover.
function drawScatter(canvas, base, path, t, names, labelColours) {
  const [context, width, height] = sharp(canvas), box = [38, 6, width - 6, height - 20];
  const xs = range(path.map(p => p[0]), base.ranges[0]), ys = range(path.map(p => p[1]), base.ranges[1]);
  const at = ([x, y]) => [box[0] + (x - xs[0]) / (xs[1] - xs[0]) * (box[2] - box[0]), box[3] - (y - ys[0]) / (ys[1] - ys[0]) * (box[3] - box[1])];
  axes(context, box, xs, ys, names[0], names[1]);
  const key = [names, xs, ys, width, height, canvas.width, colour("line")].join();
  if (canvas.cloudOf !== key) {  // the cloud stays while the sample does
    const cloud = canvas.cloud = document.createElement("canvas"), small = (cloud.width = canvas.width, cloud.height = canvas.height, cloud.getContext("2d"));
    small.setTransform(context.getTransform());
    small.globalAlpha = .45;
    for (let i = 0; i < base.x.length; i++) {
      const [x, y] = at([base.x[i], base.y[i]]);
      small.fillStyle = labelColours.get(base.label[i]) || colour("line");
      small.fillRect(x - 1, y - 1, 2, 2);
    }
    canvas.cloudOf = key;
  }
  if (canvas.cloud.width && canvas.cloud.height) context.drawImage(canvas.cloud, 0, 0, width, height);  // not of a hidden view
  context.strokeStyle = colour("ink"); context.lineWidth = 1.4; context.beginPath();
  path.forEach((p, i) => { const [x, y] = at(p); i ? context.lineTo(x, y) : context.moveTo(x, y); });
  context.stroke();
  path.forEach((p, i) => { const [x, y] = at(p); context.fillStyle = colour("ink"); context.beginPath(); context.arc(x, y, 2.2, 0, 7); context.fill(); });
  if (path[t] && path[t][0] === path[t][0]) {
    const [x, y] = at(path[t]);
    context.fillStyle = "#e8a200"; context.strokeStyle = colour("ink"); context.beginPath(); context.arc(x, y, 5.5, 0, 7); context.fill(); context.stroke();
  }
  return path.map(at);
}

// Bars of the directions' values, coloured by their gradient, on an axis that stays as it is.
function drawBars(canvas, values, gradients, [low, high], names) {
  const [context, width, height] = sharp(canvas), left = 50, right = width - 8, n = values.length, tall = (height - 18) / Math.max(1, n);
  const at = v => left + (Math.max(low, Math.min(high, v)) - low) / (high - low) * (right - left), most = Math.max(...gradients.map(g => g === g ? Math.abs(g) : 0), 1e-12);
  values.forEach((v, k) => {
    const y = k * tall + 1, from = at(0), to = at(v === v ? v : 0), g = gradients[k];
    context.fillStyle = g === g ? rgba(g > 0, .15 + .85 * Math.abs(g) / most) : colour("line");
    context.fillRect(Math.min(from, to), y, Math.max(1, Math.abs(to - from)), Math.max(2, tall - 2));
    context.strokeStyle = colour("soft"); context.lineWidth = .6; context.strokeRect(Math.min(from, to), y, Math.max(1, Math.abs(to - from)), Math.max(2, tall - 2));
    context.fillStyle = colour("soft"); context.textAlign = "right"; context.textBaseline = "middle";
    if (tall >= 9) context.fillText(names[k], left - 4, y + tall / 2);
  });
  context.strokeStyle = colour("soft"); context.beginPath(); context.moveTo(at(0), 0); context.lineTo(at(0), height - 16); context.stroke();
  context.textBaseline = "bottom"; context.textAlign = "left"; context.fillText(number(low, 2), left, height);
  context.textAlign = "right"; context.fillText(number(high, 2), right, height); context.textAlign = "center"; context.fillText("sd", (left + right) / 2, height);
  return k => k * tall;
}

// Courses over time: [{name, values, colour, dashed}].
function drawCourses(canvas, lines, t, T, name, fixed) {
  const [context, width, height] = sharp(canvas), box = [44, 6, width - 6, height - 18];
  const ys = fixed || range(lines.flatMap(l => Array.from(l.values)));
  const x = i => box[0] + i / Math.max(1, T - 1) * (box[2] - box[0]), y = v => box[3] - (v - ys[0]) / (ys[1] - ys[0]) * (box[3] - box[1]);
  axes(context, box, [0, T - 1], ys, "step", name);
  context.strokeStyle = "#e8a200"; context.beginPath(); context.moveTo(x(t), box[1]); context.lineTo(x(t), box[3]); context.stroke();
  for (const line of lines) {
    context.strokeStyle = line.colour; context.lineWidth = 1.6; context.setLineDash(line.dashed ? [4, 3] : []);
    context.beginPath();
    let on = false;
    line.values.forEach((v, i) => { if (v !== v) { on = false; return; } on ? context.lineTo(x(i), y(v)) : context.moveTo(x(i), y(v)); on = true; });
    context.stroke();
  }
  context.setLineDash([]);
}

function drawHistogram(canvas, values, mark, bins = 48) {
  const [context, width, height] = sharp(canvas), [low, high] = range(values), counts = new Array(bins).fill(0);
  for (const v of values) if (v === v) counts[Math.min(bins - 1, Math.floor((v - low) / (high - low) * bins))]++;
  const top = Math.max(...counts, 1), box = [4, 4, width - 4, height - 16];
  counts.forEach((c, i) => {
    context.fillStyle = colour("accent");
    const tall = c / top * (box[3] - box[1]);
    context.fillRect(box[0] + i / bins * (box[2] - box[0]), box[3] - tall, (box[2] - box[0]) / bins - 1, tall);
  });
  context.fillStyle = colour("soft"); context.textBaseline = "bottom"; context.textAlign = "left"; context.fillText(number(low, 2), box[0], height);
  context.textAlign = "right"; context.fillText(number(high, 2), box[2], height);
  if (mark === mark && mark !== null) {
    const x = box[0] + (mark - low) / (high - low) * (box[2] - box[0]);
    context.strokeStyle = "#e8a200"; context.lineWidth = 2; context.beginPath(); context.moveTo(x, box[1]); context.lineTo(x, box[3]); context.stroke();
  }
  return counts;
}

// Arrow of an action, by its name; the name itself where it says no direction.
function arrowOf(name) {
  const known = /^(up|down)?(left|right)?$/.exec(name || "x");
  const arrows = { up: "↑", down: "↓", left: "←", right: "→", upleft: "↖", upright: "↗", downleft: "↙", downright: "↘" };
  return known && arrows[name] ? arrows[name] : "·";
}
