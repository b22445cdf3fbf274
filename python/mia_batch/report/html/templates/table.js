"use strict";
for (const section of document.querySelectorAll("section.data")) {
  const table = section.querySelector("table");
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const form = section.querySelector("form");
  const [search, answer] = [form.querySelector("input"), form.querySelector("select")];
  const texts = new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));
  const show = () => {
    const wanted = search.value.toLowerCase();
    let shown = 0;
    for (const row of rows) {
      const cells = [...row.cells].map((cell) => cell.textContent);
      row.hidden = !texts.get(row).includes(wanted) ||
        Boolean(answer && answer.value && !cells.includes(answer.value));
      shown += !row.hidden;
    }
    form.querySelector("[role=status]").textContent = `${shown} of ${rows.length} rows`;
  };
  form.hidden = false;
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", show);
  show();
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const isNumber = head.classList.contains("n");
      const now = head.getAttribute("aria-sort");
      const down = now ? now === "ascending" : isNumber;
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = (row) => isNumber ? Number(row.cells[column].dataset.v ?? NaN) : row.cells[column].textContent;
      const order = (a, b) => {
        if (!isNumber) return a.localeCompare(b);
        return a - b;
      };
      const missing = (value) => Number.isNaN(value);
      rows.sort((one, other) => {
        const [a, b] = [key(one), key(other)];
        if (missing(a) || missing(b)) return missing(a) - missing(b);
        return down ? order(b, a) : order(a, b);
      });
      body.append(...rows);
    });
  });
}
addEventListener("beforeprint", () => {
  for (const each of document.querySelectorAll("details")) each.open = true;
});
const open = () => {
  const wanted = location.hash && document.getElementById(location.hash.slice(1));
  for (let each = wanted; each; each = each.parentElement) if (each.tagName === "DETAILS") each.open = true;
  if (wanted) wanted.scrollIntoView();
};
addEventListener("hashchange", open);
open();
