// Small plots of the last minutes: the numbers live in the page and nowhere else.
import { h, css } from "./dom.js";

const keep = 240; // values

export class Series {
  constructor() { this.values = []; }
  add(v) { this.values.push(v); if (this.values.length > keep) this.values.shift(); }
  get last() { return this.values[this.values.length - 1] || 0; }
}

// plot draws a series below its newest value. dashed tells it apart without colour.
export function plot(title, unit, color, series, dashed) {
  const canvas = h("canvas", { role: "img", "aria-label": title });
  const value = h("span", { class: "v num" }, "0");
  const el = h("div", { class: "card plot" }, h("div", { class: "small dim" }, title), value, " ", h("span", { class: "small dim" }, unit), canvas);
  const draw = () => {
    const w = canvas.clientWidth, ht = canvas.clientHeight, r = devicePixelRatio || 1;
    value.textContent = format(series.last);
    canvas.setAttribute("aria-label", `${title}: now ${format(series.last)} ${unit}`);
    if (!w) return;
    if (canvas.width !== Math.round(w * r)) { canvas.width = Math.round(w * r); canvas.height = Math.round(ht * r); }
    const c = canvas.getContext("2d");
    c.setTransform(r, 0, 0, r, 0, 0);
    c.clearRect(0, 0, w, ht);
    const max = Math.max(1, ...series.values), x = (i) => w - (series.values.length - 1 - i) * (w / (keep - 1)), y = (v) => ht - 2 - (v / max) * (ht - 6);
    c.beginPath();
    series.values.forEach((v, i) => (i ? c.lineTo(x(i), y(v)) : c.moveTo(x(i), y(v))));
    c.strokeStyle = css(color); c.lineWidth = 1.6; c.setLineDash(dashed ? [4, 3] : []); c.stroke();
    if (series.values.length > 1) {
      c.lineTo(w, ht); c.lineTo(x(0), ht); c.globalAlpha = 0.12; c.fillStyle = css(color); c.fill(); c.globalAlpha = 1;
    }
  };
  return { el, draw };
}

export function format(v) {
  if (v >= 1e6) return (v / 1e6).toFixed(1) + "M";
  if (v >= 1e4) return (v / 1e3).toFixed(1) + "k";
  return v >= 10 || Number.isInteger(v) ? Math.round(v).toLocaleString("en") : v.toFixed(1);
}
