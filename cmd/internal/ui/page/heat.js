// The heat map of the matrix: it draws the cells in sight, and of a map that is shown
// small a picture with one point for each cell.
import { css } from "./dom.js";

const tiny = 10; // pixels below which a cell is a point of colour
const names = ["--ink", "--dim", "--line", "--card", "--soft", "--allow", "--drop", "--focus", "--warn", "--allow-bg", "--drop-bg"];
const rgb = (color) => color.match(/[\d.]+/g).slice(0, 3).map(Number);

export class Heat {
  // scroll holds the canvas and an element that is as large as the whole map.
  constructor(scroll, canvas, space) {
    Object.assign(this, { scroll, canvas, space, groups: [], cells: [], size: 20, left: 0, top: 0, at: null, picked: null, onwant: null, onfull: null, colors: {}, points: document.createElement("canvas"), texts: new Map(), drawing: false });
  }

  // set shows other groups. No cell is known yet.
  set(groups) {
    this.groups = groups;
    this.cells = groups.map(() => []);
    this.at = this.picked = null;
    const n = groups.length, c = this.canvas.getContext("2d");
    c.font = font;
    const widest = groups.reduce((w, g) => Math.max(w, c.measureText(g.name).width), 0);
    this.texts.clear();
    this.left = Math.min(190, Math.max(56, Math.ceil(widest) + 20), this.scroll.clientWidth * 0.42);
    this.top = Math.min(n > 30 ? 120 : 156, Math.max(40, Math.ceil(widest * slope) + 18));
    this.points.width = this.points.height = Math.max(1, n);
    this.blank();
  }

  // zoom makes cells of a size, in pixels; 0 fits the map into the screen. Given a
  // cell, it stays in the middle.
  zoom(size, keep) {
    const n = this.groups.length || 1, s = this.scroll, room = Math.max(220, innerHeight - s.getBoundingClientRect().top - scrollY - 60);
    this.size = Math.max(1.5, Math.min(38, size || Math.min((room - this.top) / n, (s.clientWidth - this.left) / n)));
    const w = this.left + n * this.size, h = this.top + n * this.size;
    s.style.height = Math.ceil(h) + 18 + "px";
    this.space.style.width = w + "px";
    this.space.style.height = h + "px";
    if (keep) s.scrollTo(this.left + (keep[1] + 0.5) * this.size - (s.clientWidth + this.left) / 2, this.top + (keep[0] + 0.5) * this.size - (s.clientHeight + this.top) / 2);
    this.draw();
  }

  recolor() {
    this.colors = Object.fromEntries(names.map((n) => [n, css(n)]));
    const c = this.colors, mix = (a, b, x) => a.map((v, i) => Math.round(v + (b[i] - v) * x)), card = rgb(c["--card"]), allow = rgb(c["--allow"]);
    this.tones = { none: card, unknown: rgb(c["--soft"]), nobody: mix(card, rgb(c["--drop"]), 0.28), opened: rgb(c["--focus"]), closed: rgb(c["--drop"]), share: (x) => mix(card, allow, 0.3 + 0.7 * x) };
    this.blank();
    this.cells.forEach((row, i) => row.forEach((v, j) => this.point(i, j, v)));
    this.flush();
    this.draw();
  }

  blank() {
    const n = this.groups.length;
    this.image = n && this.tones ? new ImageData(n, n) : null;
    if (!this.image) return;
    const d = this.image.data, [r, g, b] = this.tones.unknown;
    for (let k = 0; k < d.length; k += 4) { d[k] = r; d[k + 1] = g; d[k + 2] = b; d[k + 3] = 255; }
    this.flush();
  }
  point(i, j, v) {
    const t = this.tones, p = !v.total ? t.none : v.opened ? t.opened : v.closed ? t.closed : v.allowed ? t.share(v.allowed / v.total) : t.nobody;
    this.image.data.set(p, 4 * (i * this.groups.length + j));
  }
  flush() { if (this.image) this.points.getContext("2d").putImageData(this.image, 0, 0); }

  // fill takes the answers about a block of cells.
  fill(i0, j0, rows) {
    rows.forEach((row, di) => row.forEach((v, dj) => { this.cells[i0 + di][j0 + dj] = v; this.point(i0 + di, j0 + dj, v); }));
    this.flush();
    this.draw();
  }

  // sight is the range of cells on the screen.
  sight() {
    const { scroll: s, size, left, top } = this, n = this.groups.length, x0 = s.scrollLeft, y0 = s.scrollTop, w = s.clientWidth, h = s.clientHeight;
    return { x0, y0, w, h, c1: Math.floor(x0 / size), c2: Math.min(n, Math.ceil((x0 + w - left) / size)), r1: Math.floor(y0 / size), r2: Math.min(n, Math.ceil((y0 + h - top) / size)) };
  }

  draw() {
    if (this.drawing) return;
    this.drawing = true;
    requestAnimationFrame(() => { this.drawing = false; if (this.canvas.isConnected) this.paint(); });
  }

  paint() {
    const { canvas, colors, size, left, top, cells } = this, { x0, y0, w, h, c1, c2, r1, r2 } = this.sight(), r = devicePixelRatio || 1;
    if (canvas.width !== Math.round(w * r) || canvas.height !== Math.round(h * r)) { canvas.width = Math.round(w * r); canvas.height = Math.round(h * r); canvas.style.width = w + "px"; canvas.style.height = h + "px"; }
    const c = canvas.getContext("2d");
    c.setTransform(r, 0, 0, r, 0, 0);
    c.fillStyle = colors["--card"]; c.fillRect(0, 0, w, h);
    c.save(); c.beginPath(); c.rect(left, top, w, h); c.clip();
    let waiting = false;
    for (let i = r1; i < r2 && !waiting; i++) for (let j = c1; j < c2; j++) if (!cells[i][j]) { waiting = true; break; }
    if (size < tiny) {
      c.imageSmoothingEnabled = false;
      if (this.groups.length) c.drawImage(this.points, left - x0, top - y0, this.groups.length * size, this.groups.length * size);
    } else {
      for (let i = r1; i < r2; i++) for (let j = c1; j < c2; j++) {
        const x = left + j * size - x0, y = top + i * size - y0, v = cells[i][j];
        if (v) this.square(c, x, y, size, v); else { c.fillStyle = colors["--soft"]; c.fillRect(x + 1, y + 1, size - 2, size - 2); }
      }
    }
    for (const [p, color, wide] of [[this.picked, "--ink", 2], [this.at, "--focus", 2]]) {
      if (!p) continue;
      const s = Math.max(size, 5), e = (s - size) / 2;
      c.strokeStyle = colors[color]; c.lineWidth = wide; c.strokeRect(left + p[1] * size - x0 + 1 - e, top + p[0] * size - y0 + 1 - e, s - 2, s - 2);
    }
    c.restore();
    this.labels(c, w, h, x0, y0, c1, c2, r1, r2);
    if (waiting) this.onwant && this.onwant(r1, r2, c1, c2);
    else if (this.groups.length && this.onfull) this.onfull(r1, r2, c1, c2);
  }

  // labels names rows and columns; where there is no room for all, some, and always
  // those pointed at.
  labels(c, w, h, x0, y0, c1, c2, r1, r2) {
    const { colors, size, left, top, at } = this, every = Math.max(1, Math.ceil(13 / size));
    c.font = font; c.textBaseline = "middle";
    const tell = (i, axis) => (at ? at[axis] === i : false);
    c.save(); c.beginPath(); c.rect(0, top, left, h); c.clip(); c.textAlign = "right";
    const row = (i) => { c.fillStyle = tell(i, 0) ? colors["--ink"] : colors["--dim"]; c.fillText(this.fit(c, this.groups[i].name, left - 14), left - 8, top + i * size - y0 + size / 2); };
    for (let i = r1; i < r2; i++) if (i % every === 0 && !(every > 1 && at && Math.abs(at[0] - i) < every)) row(i);
    if (at && at[0] >= r1 && at[0] < r2 && every > 1) row(at[0]);
    c.restore();
    c.save(); c.beginPath(); c.rect(left, 0, w, top); c.clip(); c.textAlign = "left";
    const column = (j) => { c.save(); c.translate(left + j * size - x0 + size / 2, top - 8); c.rotate(-tilt); c.fillStyle = tell(j, 1) ? colors["--ink"] : colors["--dim"]; c.fillText(this.fit(c, this.groups[j].name, (top - 14) / slope), 0, 0); c.restore(); };
    for (let j = c1; j < c2; j++) if (j % every === 0 && !(every > 1 && at && Math.abs(at[1] - j) < every)) column(j);
    if (at && at[1] >= c1 && at[1] < c2 && every > 1) column(at[1]);
    c.restore();
  }

  // A square says by its size what share is allowed; nothing allowed is a small cross.
  square(c, x, y, s, v) {
    const { colors } = this, share = v.total ? v.allowed / v.total : 0, m = s / 2;
    if (!v.total) { c.fillStyle = colors["--dim"]; c.fillRect(x + m - 3, y + m - 0.5, 6, 1); return; }
    if (v.opened || v.closed) { c.fillStyle = v.opened ? colors["--allow-bg"] : colors["--drop-bg"]; c.fillRect(x, y, s, s); }
    if (share === 0) {
      c.strokeStyle = colors["--drop"]; c.lineWidth = 1.4;
      const a = Math.min(3.5, s / 6);
      c.beginPath(); c.moveTo(x + m - a, y + m - a); c.lineTo(x + m + a, y + m + a); c.moveTo(x + m + a, y + m - a); c.lineTo(x + m - a, y + m + a); c.stroke();
    } else {
      const e = Math.max(Math.min(5, s / 2), (s - 3) * Math.sqrt(share));
      c.fillStyle = colors["--allow"];
      c.fillRect(x + m - e / 2, y + m - e / 2, e, e);
      if (share < 1) { c.strokeStyle = colors["--line"]; c.lineWidth = 1; c.strokeRect(x + 1.5, y + 1.5, s - 3, s - 3); }
    }
    if (v.opened || v.closed) {
      c.strokeStyle = colors["--ink"]; c.lineWidth = 1.5; c.setLineDash(v.closed && !v.opened ? [3, 2] : []); c.strokeRect(x + 1, y + 1, s - 2, s - 2); c.setLineDash([]);
    }
  }

  fit(c, text, w) {
    const key = text + "\n" + w;
    if (!this.texts.has(key)) { let t = text; while (t.length > 4 && c.measureText(t).width > w) t = t.replace(/…$/, "").slice(0, -1) + "…"; this.texts.set(key, t); }
    return this.texts.get(key);
  }

  // where is the cell below a pointer.
  where(e) {
    const b = this.canvas.getBoundingClientRect(), x = e.clientX - b.left, y = e.clientY - b.top, n = this.groups.length;
    const j = Math.floor((x - this.left + this.scroll.scrollLeft) / this.size), i = Math.floor((y - this.top + this.scroll.scrollTop) / this.size);
    return i >= 0 && j >= 0 && i < n && j < n && x > this.left && y > this.top ? [i, j] : null;
  }

  // reveal scrolls a cell into sight.
  reveal([i, j]) {
    const { scroll: s, size, left, top } = this, x = j * size, y = i * size;
    if (x < s.scrollLeft) s.scrollLeft = x; else if (x + size + left > s.scrollLeft + s.clientWidth) s.scrollLeft = x + size + left - s.clientWidth;
    if (y < s.scrollTop) s.scrollTop = y; else if (y + size + top > s.scrollTop + s.clientHeight) s.scrollTop = y + size + top - s.clientHeight;
  }
}

const font = "12px system-ui, sans-serif", tilt = Math.PI / 3.2, slope = Math.sin(tilt);
