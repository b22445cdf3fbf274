"use strict";
for (const section of document.querySelectorAll("section.data")) {
  const table = section.querySelector("table");
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const form = section.querySelector("form");
  const search = form.querySelector("input");
  const [answer, order] = [form.querySelector(".answers"), form.querySelector(".order")];
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
  const heads = [...table.tHead.rows[0].cells];
  const sort = (column, direction) => {
    const isNumber = column !== null && heads[column].classList.contains("n");
    for (const head of heads) head.removeAttribute("aria-sort");
    if (column === null) {
      body.append(...rows);
      return;
    }
    heads[column].setAttribute("aria-sort", direction);
    order.value = `${column} ${direction}`;
    const key = (row) => isNumber ? Number(row.cells[column].dataset.v ?? NaN) : row.cells[column].textContent;
    const compare = (a, b) => isNumber ? a - b : a.localeCompare(b);
    const missing = (value) => Number.isNaN(value);
    body.append(...[...rows].sort((one, other) => {
      const [a, b] = [key(one), key(other)];
      if (missing(a) || missing(b)) return missing(a) - missing(b);
      return direction === "descending" ? compare(b, a) : compare(a, b);
    }));
  };
  order.addEventListener("change", () => {
    const [column, direction] = order.value.split(" ");
    sort(order.value ? Number(column) : null, direction);
  });
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const now = head.getAttribute("aria-sort");
      const down = now ? now === "ascending" : head.classList.contains("n");
      sort(column, down ? "descending" : "ascending");
    });
  });
}
for (const command of document.querySelectorAll(".copied")) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(command.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(command);
      button.textContent = "Selected: press Ctrl+C";
    }
  });
  command.after(button);
}
for (const plot of document.querySelectorAll(".plot")) {
  const dots = plot.querySelectorAll(".dot");
  if (!dots.length) continue;
  const picked = document.createElement("p");
  picked.className = "picked";
  picked.setAttribute("role", "status");
  picked.textContent = "Point at a dot, or tap it, for its name.";
  plot.after(picked);
  for (const dot of dots) {
    const name = () => { picked.textContent = dot.querySelector("title").textContent; };
    for (const event of ["pointerenter", "click", "focus"]) dot.addEventListener(event, name);
  }
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
