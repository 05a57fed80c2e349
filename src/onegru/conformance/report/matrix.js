"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const STATUSES = ["passes", "differs", "refuses", "crashes"];
const BY_LETTER = { p: 0, d: 1, r: 2, c: 3 };
const PLURALS = ["pass", "differ", "refuse", "crash"];
const LETTERS = ["", "d", "r", "c"];
const MARKS = { passes: "✓", differs: "≠", refuses: "⊘", crashes: "✗", mixed: "◐" };
const MEANING = {
  passes: "correct within the tolerance", differs: "runs, but the result is wrong",
  refuses: "the runtime reports an error", crashes: "the process dies or hangs",
};
const byId = id => document.getElementById(id);
const runtimes = data.runtimes;
const cases = data.cases.map(([name, operator, features, only, checks, source], number) => {
  const outcomes = runtimes.map(runtime => BY_LETTER[runtime.status[number]]);
  const ran = outcomes.filter(outcome => outcome !== undefined);
  const reasons = runtimes.map(runtime => data.texts[runtime.outcomes[number]?.[0]] ?? "");
  checks = data.texts[checks];
  source = data.texts[source];
  return {
    number, name, operator, features, only, checks, source, outcomes, disagree: new Set(ran).size > 1,
    words: [name, checks, source, ...reasons].join("\n").toLowerCase(),
  };
});

/** An element with a class, and children: texts or elements. */
function make(tag, className, ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children.filter(child => child !== "" && child != null));
  return element;
}

function verdict(status, words) {
  return make("span", `verdict ${status}`, mark(status), words ?? status);
}

function mark(status) {
  const found = make("span", `mark ${status}`, MARKS[status]);
  found.setAttribute("aria-hidden", "true");
  return found;
}

// The operators whose plain node a runtime does not pass: a feature has no say there.
const missing = runtimes.map((_, runtime) => new Set(
  cases.filter(item => item.only === -1 && item.outcomes[runtime] > 0).map(item => item.operator)));

// ---- rows of the matrix: some are the cases of an operator, others those with a feature

const rows = [{ group: "", label: "all cases", checks: "", key: "all", cases, single: [] }];
for (const operator of data.operators) {
  const own = cases.filter(item => item.operator === operator);
  rows.push({
    group: "By operator: its plain node", label: operator, checks: "", key: `operator:${operator}`, cases: own,
    single: own.filter(item => item.only === -1),
  });
}
data.features.forEach(([factor, level, checks], number) => {
  const own = cases.filter(item => item.features.includes(number));
  rows.push({
    group: factor, label: level, checks, key: `${factor}:${level}`, cases: own,
    single: own.filter(item => item.only === number),
  });
});
for (const row of rows) row.words = [row.group, row.label, row.checks].join("\n").toLowerCase();

// ---- what is shown: kept in the address, so that it can be sent to others

const FILTERS = ["operator", "status", "text", "disagree"];
let state = {};

function readAddress() {
  state = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  for (const name of FILTERS) {
    if (name === "disagree") byId(name).checked = state[name] === "1";
    else byId(name).value = state[name] ?? "";
  }
  render();
}

function change(changes) {
  Object.assign(state, changes);
  for (const name of Object.keys(state)) if (!state[name]) delete state[name];
  history.replaceState(null, "", `#${new URLSearchParams(state)}`);
}

/** The cases of a row that the filters leave. */
function left(items, byLabel) {
  const text = (state.text ?? "").toLowerCase();
  const status = STATUSES.indexOf(state.status);
  return items.filter(item =>
    (!state.operator || item.operator === state.operator) &&
    (status < 0 || item.outcomes.includes(status)) &&
    (!state.disagree || item.disagree) &&
    (!text || byLabel || item.words.includes(text)));
}

function countsOf(items, runtime) {
  const counts = [0, 0, 0, 0];
  for (const item of items) if (item.outcomes[runtime] !== undefined) counts[item.outcomes[runtime]]++;
  return counts;
}

const counted = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

const sum = numbers => numbers.reduce((a, b) => a + b, 0);

/** Counts in words: "3 pass, 1 differs". */
function inWords(counts) {
  const words = counts.map((count, number) => `${count} ${count === 1 ? STATUSES[number] : PLURALS[number]}`);
  return words.filter((_, number) => counts[number]).join(", ");
}

/** One word for the outcomes of the cases with only one feature if these are the same; else how many pass, and what
 * the others do. A runtime that fails other cases with the feature "passes on its own", and is not shown as one that
 * passes. */
function headline(counts, all) {
  const total = sum(counts);
  const same = counts.findIndex(count => count === total);
  if (same === 0 && all[0] < sum(all)) return verdict("mixed", "passes on its own");
  if (same >= 0) return verdict(STATUSES[same]);
  const found = verdict("mixed", `${counts[0]} of ${total} pass`);
  found.append(...STATUSES.slice(1).filter((_, number) => counts[number + 1]).map(mark));
  return found;
}

function share(counts) {
  const bar = make("span", "bar", ...STATUSES.map((status, number) => {
    if (!counts[number]) return "";
    const part = make("i", status);
    part.style.flex = counts[number];
    return part;
  }));
  return make("span", "share", bar, make("span", "passing", `${counts[0]}/${sum(counts)}`), inLetters(counts));
}

/** Counts as the command's table has them: 5 1d 2r 1c. For cells without a word, and for narrow screens. */
function inLetters(counts) {
  const parts = counts.map((count, status) => count && make("span", STATUSES[status], count + LETTERS[status]));
  return make("span", "counts", ...parts.filter(part => part));
}

// ---- the matrix

function render() {
  const shown = rows.filter(row => !(state.operator && row.key.startsWith("operator:") && row.label !== state.operator))
    .map(row => {
      const text = (state.text ?? "").toLowerCase();
      const byLabel = text !== "" && row.key !== "all" && row.words.includes(text);
      return { ...row, cases: left(row.cases, byLabel), single: left(row.single, byLabel) };
    }).filter(row => row.cases.length);
  const body = make("tbody", "");
  let group = "";
  for (const row of shown) {
    if (row.group !== group) {
      const head = make("th", "", make("span", "", row.group));
      head.colSpan = runtimes.length + 1;
      head.scope = "colgroup";
      body.append(make("tr", "group", head));
      group = row.group;
    }
    const head = make("th", "", row.label, row.checks ? make("span", "checks", row.checks) : "");
    head.scope = "row";
    body.append(make("tr", "", head, ...runtimes.map((_, runtime) => make("td", "", cell(row, runtime)))));
  }
  byId("matrix").replaceChildren(columns(), body);
  const first = body.querySelector(".cell");
  if (first) first.tabIndex = 0;
  const count = left(cases).length;
  byId("shown").value = (count === cases.length ? "" : `${count} of `) + counted(cases.length, "case");
  byId("scroll").hidden = !shown.length;
  byId("nothing").hidden = shown.length > 0;
  showPanel(shown);
}

function columns() {
  const heads = runtimes.map(runtime => {
    const options = Object.entries(runtime.options).map(
      ([name, value]) => `${name} ${value.replace(/ExecutionProvider$/, "")}`);
    const head = make("th", "", runtime.name, make("span", "version", [runtime.version, ...options].join(", ")));
    head.scope = "col";
    return head;
  });
  const corner = make("th", "", "feature");
  corner.scope = "col";
  return make("thead", "", make("tr", "", corner, ...heads));
}

function cell(row, runtime) {
  const counts = countsOf(row.cases, runtime);
  if (!sum(counts)) {
    const none = make("span", "none", "–");
    none.title = "not a case for this runtime";
    return none;
  }
  const present = countsOf(row.single.filter(item => !missing[runtime].has(item.operator)), runtime);
  const only = sum(present) ? present : countsOf(row.single, runtime);
  const button = make("button", "cell", sum(only) ? headline(only, counts) : "", share(counts));
  button.type = "button";
  button.tabIndex = -1;
  button.dataset.row = row.key;
  button.dataset.runtime = runtimes[runtime].label;
  button.title = (sum(only) ? `On its own: ${inWords(only)}. ` : "") + `In all: ${inWords(counts)}.`;
  button.setAttribute("aria-label", `${runtimes[runtime].label}, ${titleOf(row)}. ${button.title}`);
  if (isOpen(row, runtime)) button.setAttribute("aria-current", "true");
  return button;
}

const titleOf = row => row.key === "all" || row.key.startsWith("operator:") ? row.label : `${row.group} ${row.label}`;

const isOpen = (row, runtime) => state.row === row.key && state.runtime === runtimes[runtime].label;

byId("matrix").addEventListener("click", event => {
  const button = event.target.closest(".cell");
  if (button) open(button);
});

function open(button) {
  change({ row: button.dataset.row, runtime: button.dataset.runtime, case: "" });
  render();
}

/** Arrow keys go from cell to cell; one of them takes part in the order of tabs. */
byId("matrix").addEventListener("keydown", event => {
  const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
  const button = event.target.closest(".cell");
  if (!step || !button) return;
  event.preventDefault();
  const lines = [...byId("matrix").tBodies[0].rows].filter(line => !line.classList.contains("group"));
  let line = lines.indexOf(button.closest("tr")), column = button.closest("td").cellIndex;
  for (;;) {
    line += step[0];
    column += step[1];
    const next = lines[line]?.cells[column];
    if (!next || column < 1) return;
    const target = next.querySelector(".cell");
    if (!target) continue;
    button.tabIndex = -1;
    target.tabIndex = 0;
    target.focus();
    return;
  }
});
