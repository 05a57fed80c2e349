// ---- the rest of the page

for (const operator of data.operators) byId("operator").append(new Option(operator));
for (const status of STATUSES) byId("status").append(new Option(status));
byId("about").textContent =
  `${counted(runtimes.length, "runtime")} on ${counted(cases.length, "case")} of ` +
  `${counted(data.operators.length, "operator")}. ` +
  "The word in a cell is the outcome where this feature alone is unusual, in operators whose plain node passes; the " +
  "bar and the figures are all cases that have it. Choose a cell for its failing cases.";
byId("legend").append(...STATUSES.map(status => make("span", "", verdict(status), ` ${MEANING[status]}`)),
  make("span", "", verdict("mixed", "3 of 5 pass"), " operators or versions fare differently"),
  make("span", "passing", "12/34 pass of all cases with the feature"),
  make("span", "", inLetters([5, 1, 2, 3]), " pass, differ, are refused, crash"));
for (const name of FILTERS) {
  byId(name).addEventListener("input", event => {
    change({ [name]: name === "disagree" ? (event.target.checked ? "1" : "") : event.target.value });
    render();
  });
}
byId("filters").addEventListener("submit", event => event.preventDefault());
byId("clear").addEventListener("click", () => {
  state = {};
  change({});
  readAddress();
});
window.addEventListener("hashchange", readAddress);
readAddress();
