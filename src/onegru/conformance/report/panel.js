// ---- the panel: the failing cases of a cell

const panel = byId("panel");

function showPanel(shown) {
  const runtime = runtimes.findIndex(item => item.label === state.runtime);
  const row = shown.find(item => item.key === state.row);
  if (!row || runtime < 0) {
    if (panel.open) panel.close();
    return;
  }
  fillPanel(row, runtime);
  if (!panel.open) panel.showModal();
  panel.scrollTop = 0;
}

function fillPanel(row, runtime) {
  const ran = row.cases.filter(item => item.outcomes[runtime] !== undefined);
  const status = STATUSES.indexOf(state.status);
  const failing = ran.filter(item => item.outcomes[runtime] > 0 && (status < 1 || item.outcomes[runtime] === status));
  // What tells most comes first: an operator that runs at all, few unusual things, wrong results.
  const order = item => [missing[runtime].has(item.operator), item.features.length, item.outcomes[runtime]];
  failing.sort((a, b) => order(a).map((value, place) => value - order(b)[place]).find(Boolean) ?? 0);
  const passing = ran.filter(item => item.outcomes[runtime] === 0);
  const counts = countsOf(ran, runtime);
  const close = make("button", "plain", "Close");
  close.type = "button";
  close.addEventListener("click", () => panel.close());
  const title = make("h2", "", `${runtimes[runtime].label}: ${titleOf(row)}`);
  title.id = "panel-title";
  const top = make("div", "top", make("div", "", title, row.checks ? make("p", "", row.checks) : "",
    make("p", "", `Of ${counted(ran.length, "case")} ${inWords(counts)}.`)), close);
  const items = failing.map(item => failingCase(item, runtime));
  panel.replaceChildren(top, ...items, failing.length ? "" : make("p", "", "None of these cases fails here."),
    passing.length ? passingCases(passing) : "");
  const chosen = items[failing.findIndex(item => item.name === state.case)] ?? items[0];
  if (chosen) chosen.open = true;
  if (state.case && chosen) requestAnimationFrame(() => chosen.scrollIntoView());
}

panel.addEventListener("close", () => {
  const { row, runtime } = state;
  change({ row: "", runtime: "", case: "" });
  for (const button of document.querySelectorAll(".cell[aria-current]")) button.removeAttribute("aria-current");
  const button = [...document.querySelectorAll(".cell")].find(
    item => item.dataset.row === row && item.dataset.runtime === runtime);
  if (button) button.focus();
});
panel.addEventListener("click", event => { if (event.target === panel) panel.close(); });

function passingCases(items) {
  const list = make("ul", "names", ...items.map(item => make("li", "", item.name)));
  return make("details", "", make("summary", "", mark("passes"), `${items.length} pass`), list);
}

function failingCase(item, runtime) {
  const status = STATUSES[item.outcomes[runtime]];
  const [reason] = runtimes[runtime].outcomes[item.number];
  const found = make("details", "case", make("summary", "", verdict(status), " ", make("code", "", item.name),
    make("span", "reason", data.texts[reason])));
  found.addEventListener("toggle", () => {
    if (found.open && !found.querySelector(".body")) found.append(caseBody(item, runtime));
    if (found.open && state.row) change({ case: item.name });
  });
  return found;
}

function caseBody(item, runtime) {
  const [, output, where, expected, got, tolerance] = runtimes[runtime].outcomes[item.number];
  const known = data.arrays[item.number] ?? {};
  const attributes = Object.entries(known.attributes ?? {}).map(([name, value]) => `${name} = ${value}`);
  const body = make("div", "body", list({
    "what it checks": item.checks, source: item.source, attributes: attributes.join("\n") || "none",
    runtimes: runtimes.map((other, number) => item.outcomes[number] === undefined ? "" :
      `${MARKS[STATUSES[item.outcomes[number]]]} ${other.label} ${STATUSES[item.outcomes[number]]}`)
      .filter(Boolean).join("\n"),
  }));
  if (expected != null) {
    const off = Math.abs(Number(expected) - Number(got));
    const times = off / Number(tolerance);
    const far = `, off by ${digits(off, 3)}, ${digits(times, 3)} times the tolerance ${digits(Number(tolerance), 3)}`;
    body.append(make("p", "", `Worst: ${output}[${where.join(", ")}] must be ${digits(Number(expected), 8)} and is ` +
      `${digits(Number(got), 8)}${Number.isFinite(times) ? far : ""}.`));
  }
  const given = known.got?.[runtime] ?? {};
  for (const name of Object.keys(given)) {
    body.append(...difference(name, given[name], known, name === output ? where : null));
  }
  if (known.inputs) {
    const inputs = Object.entries(known.inputs).flatMap(([name, part]) => {
      const array = decode(part, 0);
      return [heading(name, array), table(array, value => make("td", "num", digits(value, array.digits)))];
    });
    const names = Object.keys(known.inputs).join(", ");
    body.append(make("details", "inputs", make("summary", "", `Inputs: ${names}`), ...inputs));
  } else body.append(make("p", "", "Its arrays are left out, as the page would be too large: the command has them."));
  body.append(rerun(`${runtimes[runtime].command} ${item.name}`));
  return body;
}

function list(items) {
  return make("dl", "", ...Object.entries(items).flatMap(([name, text]) => {
    const value = make("dd", "", text);
    value.style.whiteSpace = "pre-line";
    return [make("dt", "", name), value];
  }));
}

function rerun(command) {
  const copy = make("button", "plain", "Copy");
  copy.type = "button";
  copy.addEventListener("click", async () => {
    await navigator.clipboard.writeText(command);
    copy.textContent = "Copied";
  });
  return make("div", "", make("h3", "", "To run it again"), make("div", "rerun", make("pre", "", command), copy));
}

// ---- arrays

/** An array as the page has it: some rows along its last axis. */
function decode([dtype, shape, kind, text], first) {
  const bytes = Uint8Array.from(atob(text), letter => letter.charCodeAt(0));
  const values = kind === "f8" ? new Float64Array(bytes.buffer) : new Float32Array(bytes.buffer);
  return { dtype, shape, values, first, digits: kind === "f8" ? 12 : 6, total: shape.reduce((a, b) => a * b, 1) };
}

function heading(name, array) {
  const part = array.values.length < array.total ? `; ${array.values.length} of ${array.total} numbers` : "";
  return make("h3", "", name, " ", make("small", "", `${array.dtype} [${array.shape.join(", ")}]${part}`));
}

function digits(value, count) {
  const size = Math.abs(value);
  if (!Number.isFinite(value) || value === 0) return String(value);
  const short = Number(value.toPrecision(count));
  return size < 1e-4 || size >= 1e7 ? short.toExponential() : String(short);
}

/** The index of a row, without that along the last axis. */
function indexOf(row, shape) {
  const found = [];
  for (let axis = shape.length - 2; axis >= 0; axis--) {
    found.unshift(row % shape[axis]);
    row = Math.floor(row / shape[axis]);
  }
  return found;
}

/** A table of an array, a row for each of its rows; `show` makes a cell of a number, its place and its index. */
function table(array, show) {
  if (!array.total) return make("p", "", "empty");
  const width = Math.min(array.shape.at(-1) ?? 1, array.values.length);
  const head = make("tr", "", make("th", ""));
  for (let column = 0; column < width; column++) head.append(make("th", "", String(column)));
  const body = make("tbody", "");
  for (let start = 0; start < array.values.length; start += width) {
    const index = indexOf(array.first + start / width, array.shape);
    const line = make("tr", "", make("th", "num", `[${[...index, ":"].join(", ")}]`));
    for (let column = 0; column < width; column++) {
      line.append(show(array.values[start + column], start + column, [...index, column]));
    }
    body.append(line);
  }
  const found = make("div", "array", make("table", "", make("thead", "", head), body));
  found.tabIndex = 0;
  return found;
}

/** An output as it is; where it is not what it must be, what that is. */
function difference(name, [row, part], known, worst) {
  const [should, allowed] = known.expected[name][row].map(item => decode(item, row));
  const got = decode(part, row);
  if (String(got.shape) !== String(should.shape)) {
    const plain = array => table(array, value => make("td", "num", digits(value, array.digits)));
    return [heading(`${name} as it is`, { ...got, first: 0 }), plain({ ...got, first: 0 }),
      heading(`${name} as it must be`, should), plain(should)];
  }
  let off = 0;
  const shown = table(got, (value, place, index) => {
    const right = should.values[place];
    const isRight = Object.is(value, right) || Math.abs(value - right) <= allowed.values[place] || value === right;
    if (isRight) return make("td", "num", digits(value, got.digits));
    off++;
    const must = make("small", "", digits(right, got.digits + 1));
    const cell = make("td", "num off", `≠ ${digits(value, got.digits + 1)}`, must);
    if (worst && String(index) === String(worst)) cell.classList.add("worst");
    return cell;
  });
  const count = `: ${off} of ${got.values.length} numbers are off (≠), each above what it must be`;
  const head = heading(name, got);
  head.append(make("small", "", off ? count : ": as it must be"));
  return [head, shown];
}
