// Small plots of the last minutes: the numbers live in the page and nowhere else.
import { h, css } from "./dom.js";

const keep = 240; // values
const few = 60; // values that a plot has room for from the start

export class Series {
  constructor() { this.values = []; }
  add(v) { this.values.push(v); if (this.values.length > keep) this.values.shift(); }
  // gap notes that nothing was looked at for a while.
  gap() { if (this.values.length && !Number.isNaN(this.values.at(-1))) this.add(NaN); }
  get last() { return this.values[this.values.length - 1] || 0; }
}

// plot draws a series below its newest value. dashed tells it apart without colour.
export function plot(title, unit, color, series, dashed) {
  const canvas = h("canvas", { role: "img", "aria-label": title });
  const value = h("span", { class: "v num" }, "0");
  const top = h("span", { class: "small dim num most" });
  const el = h("div", { class: "card plot" }, h("div", { class: "small dim" }, title), value, " ", h("span", { class: "small dim" }, unit), top, canvas);
  const draw = () => {
    const w = canvas.clientWidth, ht = canvas.clientHeight, r = devicePixelRatio || 1;
    value.textContent = format(series.last || 0);
    canvas.setAttribute("aria-label", `${title}: now ${format(series.last || 0)} ${unit}`);
    if (!w) return;
    if (canvas.width !== Math.round(w * r)) { canvas.width = Math.round(w * r); canvas.height = Math.round(ht * r); }
    const c = canvas.getContext("2d");
    c.setTransform(r, 0, 0, r, 0, 0);
    c.clearRect(0, 0, w, ht);
    const v = series.values, known = v.filter((x) => !Number.isNaN(x)), max = Math.max(1, ...known), x = (i) => w - (v.length - 1 - i) * (w / (Math.max(few, v.length) - 1)), y = (n) => ht - 2 - (n / max) * (ht - 6);
    top.textContent = known.length > 1 && max > 1 ? "most " + format(Math.max(...known)) : "";
    for (let i = 0; i < v.length; i++) {
      if (Number.isNaN(v[i])) continue;
      const from = i;
      c.beginPath();
      for (; i < v.length && !Number.isNaN(v[i]); i++) i > from ? c.lineTo(x(i), y(v[i])) : c.moveTo(x(i), y(v[i]));
      c.strokeStyle = c.fillStyle = css(color); c.lineWidth = 1.6; c.setLineDash(dashed ? [4, 3] : []); c.stroke();
      c.lineTo(x(i - 1), ht); c.lineTo(x(from), ht); c.globalAlpha = 0.12; c.fill(); c.globalAlpha = 1;
    }
  };
  return { el, draw };
}

export function format(v) {
  if (v >= 1e6) return (v / 1e6).toFixed(1) + "M";
  if (v >= 1e4) return (v / 1e3).toFixed(1) + "k";
  return v >= 10 || Number.isInteger(v) ? Math.round(v).toLocaleString("en") : v.toFixed(1);
}
