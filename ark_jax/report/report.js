"use strict";
/* Tables that sort, commands that are copied, and the table of all questions. */

const make = (tag, text = "", attributes = {}) => {
  const element = document.createElement(tag);
  element.append(text);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
};

/* A head's text becomes a button, which calls `sort` with 1 (rising) or -1. */
function sortable(head, sort) {
  const button = make("button", head.textContent, {class: "sort"});
  head.replaceChildren(button);
  button.addEventListener("click", () => {
    const falling = head.ariaSort ? head.ariaSort === "ascending" : head.classList.contains("num");
    for (const other of head.parentNode.children) other.ariaSort = null;
    head.ariaSort = falling ? "descending" : "ascending";
    sort(falling ? -1 : 1);
  });
}

const compare = (a, b) => typeof a === "number" && typeof b === "number" ? a - b
  : typeof a === typeof b ? String(a).localeCompare(String(b)) : typeof a === "number" ? -1 : 1;

/* What a cell sorts by: its number, its duration in seconds, or its text. */
function cellKey(cell) {
  const text = (cell.querySelector(".mean") || cell).textContent.replaceAll("−", "-").replaceAll(",", "");
  const [, h, m, s] = text.match(/^(?:(\d+)h)?(?:(\d+)m)?(?:([\d.]+)s)?$/) || [];
  if (h || m || s) return 3600 * (h || 0) + 60 * (m || 0) + 1 * (s || 0);
  const number = text.match(/^[^\w-]*(?:best: )?([-+]?\d[\d.]*)/);
  return cell.classList.contains("num") && number ? +number[1] : text.toLowerCase();
}

for (const table of document.querySelectorAll("table:not(.times)")) {
  const body = table.tBodies[0];
  if (body.rows.length < 3) continue;
  [...table.tHead.rows[0].cells].forEach((head, i) => sortable(head, way => {
    body.append(...[...body.rows].sort((a, b) => way * compare(cellKey(a.cells[i]), cellKey(b.cells[i]))));
  }));
}

for (const code of document.querySelectorAll("code.command, pre")) {
  const button = make("button", "Copy", {class: "copy"});
  const text = code.textContent;
  button.addEventListener("click", async () => {
    try { await navigator.clipboard.writeText(text); button.textContent = "Copied"; }
    catch { getSelection().selectAllChildren(code); button.textContent = "Press Ctrl+C"; }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  code.after(button);
}

/* Rows: question, references, a value of each system, change, [heading, passages, answer] of two. */
function questionTable(box, {systems, ranks, mark: word, rows}) {
  const find = make("input", "", {type: "search", "aria-label": "Words in question or answer", placeholder: "Words in question or answer"});
  const choice = make("select", "", {"aria-label": "Which questions"});
  for (const name of ["all", "rose", "fell", "stayed"]) choice.append(make("option", name));
  const count = make("span", "", {role: "status"}), more = make("button", "Show 100 more");
  const table = make("table", "", {class: "questions"}), body = make("tbody"), heads = make("tr");
  const show = x => x === null ? (ranks ? "not listed" : "–") : ranks ? x : x.toFixed(3);
  let order = rows, limit = 25;

  const parts = texts => texts.map((text, i) => i % 2 ? make("mark", text) : text);
  function opened([, , , , sides]) {
    const cell = make("td", "", {colspan: systems.length + 2}), two = make("div", "", {class: "two"});
    if (!sides.length) cell.append(make("p", "Its passages are left out of this page, which would be too long.", {class: "none"}));
    for (const [heading, passages, answer] of sides) {
      const side = make("div"), list = make("ol");
      for (const [needed, ...texts] of passages) {
        const item = make("li", "", {dir: "auto", class: needed ? "needed" : ""});
        item.append(...(needed ? [make("b", word), " "] : []), ...parts(texts));
        list.append(item);
      }
      side.append(make("h4", heading), passages.length ? list : make("p", "Nothing was found.", {class: "none"}));
      if (answer) { const said = make("p", "and answers: ", {class: "given"}); said.append(...parts(answer)); side.append(said); }
      two.append(side);
    }
    cell.append(two);
    const row = make("tr", "", {class: "opened"});
    row.append(cell);
    return row;
  }

  function draw() {
    const words = find.value.toLowerCase().split(/\s+/).filter(Boolean), kind = choice.value;
    const kept = order.filter(([question, references, , change]) =>
      (kind === "all" || kind === (change > 0 ? "rose" : change < 0 ? "fell" : "stayed")) &&
      words.every(word => `${question} ${references}`.toLowerCase().includes(word)));
    body.replaceChildren(...kept.slice(0, limit).map(entry => {
      const [question, references, values, change] = entry, row = make("tr");
      const button = make("button", question, {"aria-expanded": "false", dir: "auto"}), head = make("th", "", {scope: "row"});
      button.addEventListener("click", () => {
        const open = button.ariaExpanded !== "true";
        button.ariaExpanded = open;
        if (open) row.after(opened(entry)); else row.nextSibling.remove();
      });
      head.append(button, make("p", references.join(" · "), {class: "answers", dir: "auto"}));
      const mark = change > 0 ? "▲ rose" : change < 0 ? "▼ fell" : "stayed";
      row.append(head, make("td", mark, {class: change > 0 ? "up" : change < 0 ? "down" : "same"}),
        ...values.map(x => make("td", show(x), {class: "num"})));
      return row;
    }));
    count.textContent = `${Math.min(limit, kept.length)} of ${kept.length} questions`;
    more.hidden = kept.length <= limit;
  }

  const columns = [["question", row => row[0]], ["change", row => row[3]],
    ...systems.map((name, i) => [name, row => row[2][i] ?? (ranks ? 1e9 : -1e9)])];
  columns.forEach(([name, key], i) => {
    const head = make("th", name, {scope: "col", class: i > 1 ? "num" : ""});
    sortable(head, way => { order = [...rows].sort((a, b) => way * compare(key(a), key(b))); draw(); });
    heads.append(head);
  });
  const head = make("thead"), bar = make("div", "", {class: "filters"}), scroll = make("div", "", {class: "scroll", role: "region", tabindex: 0, "aria-label": "All questions"});
  head.append(heads);
  table.append(make("caption", box.dataset.caption), head, body);
  bar.append(find, choice, count);
  scroll.append(table);
  for (const input of [find, choice]) input.addEventListener("input", () => { limit = 25; draw(); });
  more.addEventListener("click", () => { limit += 100; draw(); });
  box.replaceChildren(bar, scroll, more);
  draw();
}

const data = document.getElementById("question-data");
if (data) questionTable(document.getElementById("question-table"), JSON.parse(data.textContent));
