// ---- the rest of the page

for (const operator of data.operators) byId("operator").append(new Option(operator));
for (const status of STATUSES) byId("status").append(new Option(status));
byId("about").textContent =
  `${counted(runtimes.length, "runtime")} on ${counted(cases.length, "case")} of ` +
  `${counted(data.operators.length, "operator")}. ` +
  "The label in a cell is the outcome of the cases whose only unusual feature is this one, for operators whose plain " +
  "node passes; the bar and the numbers count every case with the feature. Select a cell to see its failing cases.";
byId("legend").append(...STATUSES.map(status => make("span", "", verdict(status), ` ${MEANING[status]}`)),
  make("span", "", verdict("mixed", "passes on its own"), " but not in every combination"),
  make("span", "", verdict("mixed", "3 of 5 pass"), " depending on operator or version"),
  make("span", "passing", "12/34: passing cases of all with the feature"),
  make("span", "", inLetters([5, 1, 2, 3]), " passed, differed, refused, crashed"));
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
