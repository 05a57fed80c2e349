// The page around the maps of maps.js, which comes before it: the cursor, zoom, keys, and the list of numbers.

let sheets = [], waiting = false;

/** Draw soon; only the cursor if nothing else has changed. */
function schedule(cursorOnly = false) {
  if (!cursorOnly) state.stale = true;
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    for (const sheet of sheets) state.stale ? sheet.draw() : sheet.drawCursor();
    state.stale = false;
    read();
  });
}

function parts() {
  if (state.view.runs.length === 1) return [0];
  return { side: [0, 1, 2], first: [0], second: [1], difference: [2] }[state.mode];
}

function build() {
  const main = element("panels");
  main.replaceChildren();
  sheets = [];
  for (const [number, panel] of state.view.panels.entries()) {
    const section = main.appendChild(document.createElement("section"));
    section.className = "panel";
    section.appendChild(document.createElement("h2")).textContent = panel.title;
    const words = section.appendChild(document.createElement("span"));
    words.className = "words";
    words.textContent = panel.words;
    const holder = section.appendChild(document.createElement("div"));
    holder.className = "sheets";
    holder.style.setProperty("--columns", parts().length);
    for (const part of parts()) sheets.push(new Sheet(holder, panel, number, part));
  }
  for (const button of element("modes").children)
    button.setAttribute("aria-pressed", String(button.value === state.mode));
  schedule();
}

/** The numbers under the cursor. */
function read() {
  const { view, cursor } = state, all = sheetsOf(view);
  const [head, body] = [document.querySelector("thead"), document.querySelector("tbody")];
  head.replaceChildren();
  body.replaceChildren();
  const row = (parent, name, values) => {
    const line = parent.appendChild(document.createElement("tr"));
    line.appendChild(document.createElement("th")).textContent = name;
    for (const value of values)
      line.appendChild(document.createElement(parent === head ? "th" : "td")).textContent = value;
  };
  row(head, "", view.panels.map((panel) => panel.key));
  const unit = cursor ? ranks()[cursor.rank] : 0;
  for (const [part, run] of view.runs.entries()) {
    const suffix = view.runs.length === 2 ? `, ${run.label}` : "";
    const value = (get) => all.map((panel) => {
      const sheet = panel[part];
      return !cursor ? "·" : cursor.t < sheet.steps ? figure(get(sheet)) : "–";
    });
    const name = cursor ? `unit ${unit}` : "unit";
    row(body, name + suffix, value((sheet) => sheet.at[unit * sheet.steps + cursor.t]));
    row(body, `mean${suffix}`, value((sheet) => meanOf(sheet, view.units)[cursor.t]));
  }
  const first = cursor?.t * DATA.stride;
  const last = Math.min(first + DATA.stride, Math.max(...view.runs.map((run) => run.length))) - 1;
  const steps = first === last ? `step ${first}` : `mean of steps ${first} to ${last}`;
  element("place").textContent = cursor
    ? `${steps} · unit ${unit} (${cursor.rank + 1} of ${view.units})${state.held ? " · held" : ""}`
    : "move over a map";
  const isAll = state.t1 - state.t0 >= totalSteps() && state.u1 - state.u0 >= view.units;
  element("out").disabled = element("all").disabled = isAll;
  element("left").disabled = state.t0 <= 0;
  element("right").disabled = state.t1 >= totalSteps();
}

function point(sheet, event) {
  sheet.measure();
  const box = sheet.over.getBoundingClientRect();
  const [x, y] = [event.clientX - box.left, event.clientY - box.top];
  const t = state.t0 + ((x - LEFT) / sheet.inner) * (state.t1 - state.t0);
  const rank = state.u0 + ((y - LINE - GAP) / sheet.map) * (state.u1 - state.u0);
  return { x, y, t, rank };
}

function moveCursor(t, rank) {
  const limit = (value, most) => Math.min(most - 1, Math.max(0, Math.floor(value)));
  state.cursor = { t: limit(t, totalSteps()), rank: limit(rank, state.view.units) };
  schedule(true);
}

/** A drag over a map: which part it selects; thin ones select along one axis only. */
class Drag {
  constructor(sheet, from) {
    Object.assign(this, { sheet, from, to: from });
  }
  get moved() {
    return Math.abs(this.to.x - this.from.x) > 5 || Math.abs(this.to.y - this.from.y) > 5;
  }
  get axes() {
    return [Math.abs(this.to.x - this.from.x) > 12, Math.abs(this.to.y - this.from.y) > 12];
  }
  box(sheet) {
    const [steps, units] = this.axes, top = LINE + GAP;
    const clamp = (value, low, high) => Math.min(high, Math.max(low, value));
    const pick = (chosen, a, b, low, high) => (chosen ? [clamp(a, low, high), clamp(b, low, high)] : [low, high]);
    const xs = pick(steps, this.from.x, this.to.x, LEFT, LEFT + sheet.inner);
    const ys = pick(units, this.from.y, this.to.y, top, top + sheet.map);
    return [Math.min(...xs), Math.min(...ys), Math.abs(xs[1] - xs[0]), Math.abs(ys[1] - ys[0])];
  }
  apply() {
    const [steps, units] = this.axes;
    const pick = (a, b, total) => within(Math.floor(Math.min(a, b)), Math.ceil(Math.abs(a - b)), total);
    if (steps) [state.t0, state.t1] = pick(this.from.t, this.to.t, totalSteps());
    if (units) [state.u0, state.u1] = pick(this.from.rank, this.to.rank, state.view.units);
  }
}

function listen(sheet) {
  const over = sheet.over;
  over.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    state.drag = new Drag(sheet, point(sheet, event));
    over.setPointerCapture(event.pointerId);
  });
  over.addEventListener("pointermove", (event) => {
    const at = point(sheet, event);
    if (state.drag) state.drag.to = at;
    if (!state.held) moveCursor(at.t, at.rank);
    else schedule(true);
  });
  over.addEventListener("pointerup", (event) => {
    const drag = state.drag, at = point(sheet, event);
    state.drag = null;
    if (drag?.moved && event.pointerType !== "touch") drag.apply();
    else {
      state.held = !state.held || event.pointerType === "touch";
      moveCursor(at.t, at.rank);
    }
    schedule();
  });
  over.addEventListener("pointercancel", () => ((state.drag = null), schedule(true)));
  over.addEventListener("pointerleave", () => {
    if (state.held || state.drag) return;
    state.cursor = null;
    schedule(true);
  });
  over.addEventListener("dblclick", () => ((state.held = false), showAll(), schedule()));
  over.addEventListener("wheel", (event) => {
    if (event.ctrlKey || event.metaKey) zoom(Math.exp(event.deltaY / 300), point(sheet, event).t);
    else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY))
      pan((event.deltaX || event.deltaY) / 800);
    else return;
    event.preventDefault();
  }, { passive: false });
}

const KEYS = {
  ArrowLeft: () => step(-1, 0), ArrowRight: () => step(1, 0), ArrowUp: () => step(0, -1), ArrowDown: () => step(0, 1),
  "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), 0: () => (showAll(), schedule()),
  Escape: () => (Object.assign(state, { cursor: null, held: false }), schedule(true)),
};

function step(t, rank) {
  const first = { t: Math.floor(state.t0) - Math.max(0, t), rank: Math.floor(state.u0) - Math.max(0, rank) };
  const at = state.cursor ?? first;
  state.held = true;
  moveCursor(at.t + t, at.rank + rank);
  const out = state.cursor.t < state.t0 || state.cursor.t >= state.t1;
  if (out) pan(state.cursor.t < state.t0 ? -0.5 : 0.5);
}

addEventListener("keydown", (event) => {
  if (event.target instanceof HTMLSelectElement || event.ctrlKey || event.metaKey || event.altKey) return;
  if (!KEYS[event.key]) return;
  KEYS[event.key]();
  event.preventDefault();
});

function options(select, names) {
  select.replaceChildren(...names.map((name) => new Option(name, name)));
}

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  element("theme").textContent = name === "dark" ? "light" : "dark";
  schedule();
}

function begin() {
  for (const [index, run] of state.view.runs.entries()) {
    const line = element("runs").appendChild(document.createElement("p"));
    if (state.view.runs.length === 2) {
      const dot = line.appendChild(document.createElement("span"));
      dot.className = "dot";
      dot.style.background = `var(--${index ? "second" : "first"})`;
      line.append(`${run.label}: ${run.words}`);
    } else line.append(DATA.words);
  }
  for (const note of DATA.notes) element("notes").appendChild(document.createElement("p")).textContent = note;
  options(element("view"), DATA.views.map((view) => view.name));
  element("directions").hidden = DATA.views.length === 1;
  options(element("order"), Object.keys(state.view.orders));
  state.order = element("order").value;
  if (state.view.runs.length === 2) {
    element("modes").hidden = false;
    const modes = { side: "both", first: "this run", second: "other run", difference: "difference" };
    for (const [mode, name] of Object.entries(modes)) {
      const button = element("modes").appendChild(document.createElement("button"));
      Object.assign(button, { value: mode, textContent: name });
      button.addEventListener("click", () => ((state.mode = mode), build()));
    }
  }
  element("view").addEventListener("change", (event) => {
    state.view = DATA.views.find((view) => view.name === event.target.value);
    build();
  });
  element("order").addEventListener("change", (event) => ((state.order = event.target.value), schedule()));
  element("in").addEventListener("click", () => zoom(0.5, state.cursor?.t));
  element("out").addEventListener("click", () => zoom(2, state.cursor?.t));
  element("left").addEventListener("click", () => pan(-0.5));
  element("right").addEventListener("click", () => pan(0.5));
  element("all").addEventListener("click", () => (showAll(), schedule()));
  element("theme").addEventListener("click", () => setTheme(theme() === "dark" ? "light" : "dark"));
  addEventListener("resize", () => schedule());
  const dark = matchMedia("(prefers-color-scheme: dark)");
  dark.addEventListener("change", () => setTheme(dark.matches ? "dark" : "light"));
  setTheme(dark.matches ? "dark" : "light");
  showAll();
  build();
}

begin();
