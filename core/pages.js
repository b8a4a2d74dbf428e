"use strict";
// What every interactive page stands on: elements by id, arrays out of base64, canvases as sharp as the screen.
const KINDS = { int8: Int8Array, uint8: Uint8Array, int16: Int16Array, uint16: Uint16Array, int32: Int32Array,
  float32: Float32Array, float64: Float64Array };
const FONT = "11px system-ui, 'DejaVu Sans', sans-serif";

function byId(id) { return document.getElementById(id); }

function bytesIn(base64) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(base64);
  const text = atob(base64), bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

function unpack(packed) { return new KINDS[packed.dtype](bytesIn(packed.base64).buffer); }  // as core/pages.py packed it

// Sizes of canvases in CSS pixels, measured once: measuring makes the browser lay the page out, drawing does not.
let sizes = new WeakMap();
const watched = new WeakSet();
const watcher = new ResizeObserver((entries) => {
  let stale = false;
  for (const { target } of entries) {
    const known = sizes.get(target), now = target.getBoundingClientRect();
    if (!known || known.width === now.width && known.height === now.height) continue;
    sizes.delete(target);
    stale ||= now.width > 0;  // a hidden one is drawn when it is shown
  }
  if (stale) dispatchEvent(new Event("resize"));  // every page draws again then
});
addEventListener("resize", () => { sizes = new WeakMap(); });

function sizeOf(canvas) {
  if (!sizes.has(canvas)) {
    const { width, height } = canvas.getBoundingClientRect();
    if (!width) return { width, height };
    sizes.set(canvas, { width, height });
    if (!watched.has(canvas)) { watched.add(canvas); watcher.observe(canvas); }
  }
  return sizes.get(canvas);
}

function sharp(canvas) {  // give a canvas the pixels of the screen; returns its 2d context in CSS pixels
  const ratio = window.devicePixelRatio || 1, size = sizeOf(canvas);
  const width = Math.round(size.width * ratio), height = Math.round(size.height * ratio);
  if (canvas.width !== width || canvas.height !== height) { canvas.width = width; canvas.height = height; }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, size.width, size.height);
  context.font = FONT;
  return [context, size.width, size.height];
}
