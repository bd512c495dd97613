// A text that a model wrote in Markdown, as elements: headings, paragraphs, lists, tables, bold, code. Every word enters the
// page as text, never as markup; a link is left as it was written, so that one sees where it leads. A number in brackets
// leads to its source, where there is one.

const made = (name, ...children) => {
  const element = document.createElement(name);
  element.append(...children);
  return element;
};
const INLINE = /\*\*(?=\S)(.+?)(?<=\S)\*\*|`([^`]+)`|\[(\d{1,4}(?:\s*,\s*\d{1,4})*)\]|(?<![\w*\\])\*(?=[^\s*])([^*]+)(?<=[^\s*])\*(?![\w*])/g;
const ITEM = /^(\s*)(?:[-*+]|(\d{1,3})[.)])\s+(.*)$/;
const ROW = /^\s*\|/;
const RULE = /^\|?(?::?-+:?\|)+:?-*:?$/;

function inline(text, sourceOf) {
  const parts = [];
  let at = 0;
  for (const match of text.matchAll(INLINE)) {
    parts.push(text.slice(at, match.index));
    at = match.index + match[0].length;
    if (match[1] !== undefined) parts.push(made("strong", ...inline(match[1], sourceOf)));
    else if (match[2] !== undefined) parts.push(made("code", match[2]));
    else if (match[4] !== undefined) parts.push(made("em", ...inline(match[4], sourceOf)));
    else parts.push(numbers(match, sourceOf));
  }
  return [...parts, text.slice(at)].filter((part) => part !== "");
}

/** `[1, 3]`: each number leads to its source. */
function numbers(match, sourceOf) {
  const group = made("span", "[");
  group.className = "cited";
  match[3].split(",").forEach((number, place) => {
    const target = sourceOf(Number(number));
    const shown = target ? made("a", number.trim()) : number.trim();
    if (target) shown.href = `#${target}`;
    group.append(...(place ? [", "] : []), shown);
  });
  group.append("]");
  return group;
}

const isRule = (line = "") => RULE.test(line.replaceAll(/\s/g, ""));
const inner = (line) => line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "");
const cells = (line) => inner(line).split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));

function table(lines, sourceOf) {
  const row = (line, name) => made("tr", ...cells(line).map((cell) => made(name, ...inline(cell, sourceOf))));
  const body = lines.slice(2).map((line) => row(line, "td"));
  const box = made("div", made("table", made("thead", row(lines[0], "th")), made("tbody", ...body)));
  box.className = "table";
  box.tabIndex = 0; // a wide one is scrolled, with the keyboard too
  return box;
}

/** The items of a list; those that stand further in are lists of their own. */
function list(lines, sourceOf) {
  const [, indent, number] = ITEM.exec(lines[0]);
  const root = made(number === undefined ? "ul" : "ol");
  if (number !== undefined && number !== "1") root.start = Number(number);
  for (let at = 0; at < lines.length; ) {
    let end = at + 1;
    while (end < lines.length && !(ITEM.test(lines[end]) && ITEM.exec(lines[end])[1].length <= indent.length)) end += 1;
    const inner = lines.slice(at + 1, end);
    const first = inner.findIndex((line) => ITEM.test(line));
    const more = (first < 0 ? inner : inner.slice(0, first)).map((line) => ` ${line.trim()}`).join("");
    const item = made("li", ...inline(ITEM.exec(lines[at])[3] + more, sourceOf));
    if (first >= 0) item.append(list(inner.slice(first), sourceOf));
    root.append(item);
    at = end;
  }
  return root;
}

/** The text as one element. `sourceOf` gives the id of the element that shows a source, by its number. */
export function rendered(text, sourceOf = () => null) {
  const root = made("div");
  root.className = "written";
  const lines = text.split("\n");
  for (let at = 0; at < lines.length; ) {
    const begin = at;
    const take = (belongs) => {
      while (at < lines.length && belongs(lines[at])) at += 1;
      return lines.slice(begin, at);
    };
    const heading = /^\s{0,3}(#{1,6})\s(.*)/.exec(lines[at]);
    if (!lines[at].trim()) at += 1;
    else if (/^\s*```/.test(lines[at])) {
      at += 1;
      take((line) => !/^\s*```/.test(line));
      root.append(made("pre", lines.slice(begin + 1, at).join("\n")));
      at += 1;
    } else if (heading) {
      at += 1;
      root.append(made(heading[1].length < 3 ? "h4" : "h5", ...inline(heading[2].trim().replace(/(?<!#)#+$/, "").trim(), sourceOf)));
    } else if (ROW.test(lines[at]) && isRule(lines[at + 1])) {
      root.append(table(take((line) => ROW.test(line)), sourceOf));
    } else if (ITEM.test(lines[at])) {
      root.append(list(take((line) => ITEM.test(line) || /^\s+\S/.test(line)), sourceOf));
    } else {
      at += 1;
      take((line) => line.trim() && !ITEM.test(line) && !ROW.test(line) && !/^\s*(?:#{1,6}\s|```)/.test(line));
      root.append(made("p", ...inline(lines.slice(begin, at).map((line) => line.trim()).join(" "), sourceOf)));
    }
  }
  return root;
}
