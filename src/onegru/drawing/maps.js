"use strict";
// The maps of the page: for each gate units over steps, and above them their mean. page.js uses them.

const DATA = JSON.parse(document.getElementById("data").textContent);
const LINE = 46, GAP = 6, AXIS = 20, LEFT = 46, RIGHT = 68; // pixels around a map
const element = (id) => document.getElementById(id);

// ---- numbers

/** The numbers of one panel of one run: `at[unit * steps + step]`. */
function decode(text, steps, panel) {
  const bytes = Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
  const view = new DataView(bytes.buffer);
  const at = new Float32Array(bytes.length / 2);
  for (let i = 0; i < at.length; i++) {
    const whole = view.getUint16(2 * i, true);
    at[i] = whole === 65535 ? NaN : panel.low + ((panel.high - panel.low) * whole) / 65534;
  }
  return { at, steps, low: panel.low, high: panel.high, kind: panel.kind };
}

function differenceOf(a, b, panel, units) {
  const steps = Math.min(a.steps, b.steps);
  const at = new Float32Array(units * steps);
  for (let u = 0; u < units; u++)
    for (let t = 0; t < steps; t++) at[u * steps + t] = a.at[u * a.steps + t] - b.at[u * b.steps + t];
  const apart = panel.apart || 1;
  return { at, steps, low: -apart, high: apart, kind: "diverging" };
}

/** The mean over all units at each step. */
function meanOf(sheet, units) {
  if (!sheet.mean) {
    sheet.mean = new Float32Array(sheet.steps);
    for (let u = 0; u < units; u++)
      for (let t = 0; t < sheet.steps; t++) sheet.mean[t] += sheet.at[u * sheet.steps + t] / units;
  }
  return sheet.mean;
}

/** The sheets of a view: for each panel those of the runs, then their difference. */
function sheetsOf(view) {
  view.sheets ??= view.panels.map((panel, index) => {
    const sheets = view.runs.map((run) => decode(run.data[index], run.steps, panel));
    if (sheets.length === 2) sheets.push(differenceOf(...sheets, panel, view.units));
    return sheets;
  });
  return view.sheets;
}

// ---- state

const state = { view: DATA.views[0], order: "", mode: "side", t0: 0, t1: 1, u0: 0, u1: 1, cursor: null, held: false };
const ranks = () => state.view.orders[state.order];
const totalSteps = () => Math.max(1, ...state.view.runs.map((run) => run.steps));

function showAll() {
  Object.assign(state, { t0: 0, t1: totalSteps(), u0: 0, u1: state.view.units });
}

/** Keep a window of `size` within 0…total. */
function within(start, size, total) {
  size = Math.min(total, Math.max(Math.min(total, 4), size));
  start = Math.min(Math.max(0, start), total - size);
  return [start, start + size];
}

function zoom(factor, around = (state.t0 + state.t1) / 2) {
  const size = (state.t1 - state.t0) * factor;
  const share = (around - state.t0) / (state.t1 - state.t0);
  [state.t0, state.t1] = within(around - share * size, size, totalSteps());
  schedule();
}

function pan(share) {
  const size = state.t1 - state.t0;
  [state.t0, state.t1] = within(state.t0 + share * size, size, totalSteps());
  schedule();
}

// ---- colours

const tables = {};
for (const [name, text] of Object.entries(DATA.colours)) {
  const bytes = atob(text);
  tables[name] = Uint32Array.from({ length: bytes.length / 3 }, (_, i) => {
    const [red, green, blue] = [0, 1, 2].map((part) => bytes.charCodeAt(3 * i + part));
    return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
  });
}
const theme = () => document.documentElement.dataset.theme;
const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

function abgr(colour) {
  const [red, green, blue] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

// ---- drawing

/** For each of `count` pixels the cells that it shows, of those in low…high. */
function cells(count, low, high) {
  const size = (high - low) / count;
  const from = new Int32Array(count), to = new Int32Array(count);
  for (let i = 0; i < count; i++) {
    from[i] = Math.floor(low + (size > 1 ? i : i + 0.5) * size);
    to[i] = Math.max(from[i] + 1, size > 1 ? Math.floor(low + (i + 1) * size) : 0);
  }
  return [from, to];
}

/** Paint units over steps; a pixel that shows several numbers has the colour of their mean. */
function paint(context, sheet, x, y, width, height) {
  const image = context.createImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer);
  const table = tables[`${theme()} ${sheet.kind}`], none = abgr(style("none"));
  const scale = (table.length - 1) / (sheet.high - sheet.low);
  const [left, right] = cells(width, state.t0, state.t1), [top, bottom] = cells(height, state.u0, state.u1);
  const order = ranks(), steps = sheet.steps;
  for (let row = 0; row < height; row++) {
    const begin = row * width;
    if (row && top[row] === top[row - 1] && bottom[row] === bottom[row - 1]) {
      pixels.copyWithin(begin, begin - width, begin);
      continue;
    }
    for (let column = 0; column < width; column++) {
      if (left[column] >= steps) break;
      const end = Math.min(right[column], steps);
      let sum = 0, count = 0;
      for (let rank = top[row]; rank < bottom[row]; rank++)
        for (let t = left[column], at = order[rank] * steps + t; t < end; t++, at++)
          (sum += sheet.at[at]), count++;
      const index = Math.round((sum / count - sheet.low) * scale);
      pixels[begin + column] = sum === sum ? table[Math.min(table.length - 1, Math.max(0, index))] : none;
    }
  }
  context.putImageData(image, x, y);
}

const figure = (number) => String(number.toFixed(Math.abs(number) < 0.1 ? 4 : 3)).replace("-", "−");
const short = (number) => String(+number.toPrecision(3)).replace("-", "−");

/** Round steps for about `count` ticks. */
function ticks(low, high, count) {
  const rough = Math.max(1, (high - low) / Math.max(1, count)), unit = 10 ** Math.floor(Math.log10(rough));
  const size = [1, 2, 5, 10].map((factor) => factor * unit).find((step) => step >= rough);
  const found = [];
  for (let at = Math.ceil(low / size) * size; at <= high; at += size) found.push(at);
  return found;
}

/** A path of values by step, within the line's box. */
function trace(context, box, sheet, value, colour, width) {
  const from = Math.floor(state.t0), to = Math.min(sheet.steps, Math.ceil(state.t1));
  const stride = Math.max(1, Math.floor((to - from) / (2 * box.width)));
  context.beginPath();
  for (let t = from; t < to; t += stride) {
    let sum = 0;
    const end = Math.min(to, t + stride);
    for (let at = t; at < end; at++) sum += value(at);
    const share = (sum / (end - t) - sheet.low) / (sheet.high - sheet.low);
    context.lineTo(box.x(t + (end - t) / 2), LINE - 3 - share * (LINE - 6));
  }
  context.strokeStyle = colour;
  context.lineWidth = width;
  context.lineJoin = "round";
  context.stroke();
}

class Sheet {
  constructor(parent, panel, number, part) {
    Object.assign(this, { panel, number, part });
    const holder = parent.appendChild(document.createElement("div"));
    holder.className = "sheet";
    if (state.view.runs.length === 2) {
      const label = holder.appendChild(document.createElement("div"));
      label.className = "label";
      label.textContent = part === 2 ? "difference: this run − other run" : state.view.runs[part].label;
    }
    this.base = holder.appendChild(document.createElement("canvas"));
    this.over = holder.appendChild(document.createElement("canvas"));
    this.base.setAttribute("role", "img");
    this.over.className = "over";
    this.over.tabIndex = 0;
    this.over.setAttribute("aria-label", `${panel.title}: cursor`);
    listen(this);
  }

  get sheet() {
    return sheetsOf(state.view)[this.number][this.part];
  }

  get map() {
    return Math.max(110, Math.min(320, state.view.units * (innerWidth < 640 ? 2 : 3)));
  }

  measure() {
    this.width = Math.max(120, this.base.clientWidth);
    this.height = LINE + GAP + this.map + AXIS;
    this.inner = this.width - LEFT - RIGHT;
    this.x = (t) => LEFT + ((t - state.t0) / (state.t1 - state.t0)) * this.inner;
    this.y = (rank) => LINE + GAP + ((rank - state.u0) / (state.u1 - state.u0)) * this.map;
    return { width: this.inner, x: this.x };
  }

  prepare(canvas) {
    const ratio = devicePixelRatio || 1;
    const [width, height] = [Math.round(this.width * ratio), Math.round(this.height * ratio)];
    if (canvas.width !== width || canvas.height !== height) {
      Object.assign(canvas, { width, height });
      canvas.style.height = `${this.height}px`;
    }
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    context.font = `11px ${getComputedStyle(document.body).fontFamily}`;
    return context;
  }

  draw() {
    const box = this.measure(), context = this.prepare(this.base), sheet = this.sheet;
    const ratio = devicePixelRatio || 1, units = state.view.units;
    this.text(context, sheet);
    const colour = this.part === 2 ? style("ink") : style(this.part ? "second" : "first");
    context.save();
    context.beginPath();
    context.rect(LEFT, 0, this.inner, LINE);
    context.clip();
    const mean = meanOf(sheet, units);
    trace(context, box, sheet, (t) => mean[t], colour, 1.4);
    context.restore();
    paint(context, sheet, Math.round(LEFT * ratio), Math.round((LINE + GAP) * ratio),
      Math.max(1, Math.round(this.inner * ratio)), Math.round(this.map * ratio));
    context.strokeStyle = style("frame");
    context.lineWidth = 1;
    context.strokeRect(LEFT - 0.5, LINE + GAP - 0.5, this.inner + 1, this.map + 1);
    this.scale(context, sheet);
    const last = Math.min(totalSteps(), Math.ceil(state.t1)) * DATA.stride - 1;
    const shown = `steps ${Math.floor(state.t0) * DATA.stride} to ${last}`;
    const rows = `units ${Math.floor(state.u0) + 1} to ${Math.ceil(state.u1)} of ${units}`;
    this.base.setAttribute("aria-label", `${this.panel.title}, ${shown}, ${rows}, ${state.order}`);
    this.drawCursor();
  }

  /** Axes and what they are. */
  text(context, sheet) {
    context.fillStyle = style("faint");
    context.strokeStyle = style("line");
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (const number of sheet.low < 0 ? [sheet.low, 0, sheet.high] : [0, sheet.high]) {
      const y = LINE - 3 - ((number - sheet.low) / (sheet.high - sheet.low)) * (LINE - 6);
      context.fillText(short(number), LEFT - 6, Math.min(LINE - 6, Math.max(6, y)));
      context.beginPath();
      context.moveTo(LEFT, y);
      context.lineTo(LEFT + this.inner, y);
      context.stroke();
    }
    context.save();
    context.translate(LEFT - 14, LINE + GAP + this.map / 2);
    context.rotate(-Math.PI / 2);
    context.textAlign = "center";
    context.fillText(`${state.view.units} units`, 0, 0);
    context.restore();
    context.textAlign = "center";
    context.textBaseline = "alphabetic";
    const base = LINE + GAP + this.map;
    for (const at of ticks(state.t0 * DATA.stride, state.t1 * DATA.stride - 1, this.inner / 75)) {
      const x = this.x(at / DATA.stride + 0.5 / DATA.stride);
      context.fillRect(x, base + 1, 1, 3);
      context.fillText(at, x, base + 15);
    }
    context.textAlign = "left";
    context.fillText("step", LEFT + this.inner + 8, base + 15);
    context.fillText("mean", LEFT + this.inner + 8, LINE / 2 + 4);
  }

  /** The colours and their numbers. */
  scale(context, sheet) {
    const table = tables[`${theme()} ${sheet.kind}`], x = LEFT + this.inner + 8, top = LINE + GAP;
    for (let y = 0; y < this.map; y++) {
      const colour = table[Math.round((1 - y / this.map) * (table.length - 1))];
      context.fillStyle = `rgb(${colour & 255} ${(colour >> 8) & 255} ${(colour >> 16) & 255})`;
      context.fillRect(x, top + y, 9, 1.5);
    }
    context.fillStyle = style("faint");
    context.textAlign = "left";
    context.textBaseline = "middle";
    const middle = (sheet.low + sheet.high) / 2;
    for (const [number, y] of [[sheet.high, 5], [middle, this.map / 2], [sheet.low, this.map - 5]])
      context.fillText(short(number), x + 13, top + y);
    context.textBaseline = "alphabetic";
  }

  drawCursor() {
    const box = this.measure(), context = this.prepare(this.over), sheet = this.sheet;
    const drag = state.drag;
    if (drag?.sheet === this) {
      context.strokeStyle = context.fillStyle = style("cursor");
      const [x, y, width, height] = drag.box(this);
      context.globalAlpha = 0.15;
      context.fillRect(x, y, width, height);
      context.globalAlpha = 1;
      context.strokeRect(x + 0.5, y + 0.5, width, height);
    }
    const cursor = state.cursor;
    if (!cursor) return;
    const x = this.x(cursor.t + 0.5), y = this.y(cursor.rank + 0.5), unit = ranks()[cursor.rank];
    context.save();
    context.beginPath();
    context.rect(LEFT, 0, this.inner, LINE + GAP + this.map);
    context.clip();
    trace(context, box, sheet, (t) => sheet.at[unit * sheet.steps + t], style("unit"), 1.1);
    context.fillStyle = style("cursor");
    context.globalAlpha = state.held ? 1 : 0.65;
    context.fillRect(Math.round(x), 0, 1, LINE + GAP + this.map);
    if (y > LINE + GAP) {
      context.globalAlpha = state.held ? 0.75 : 0.4;
      context.fillRect(LEFT, Math.round(y), this.inner, 1);
    }
    context.restore();
  }
}
