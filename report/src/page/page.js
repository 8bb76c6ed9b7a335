// What the page can do beyond being read: a switch of paper, legends that hide series, tooltips by
// pointer and by keyboard, tables as files. Listeners are on the document, and nothing is prepared
// for plots that nobody touches and tables that are closed.
"use strict";
(() => {
  const NEAR = 28;
  const MODES = ["auto", "light", "dark"];
  const SVG = "http://www.w3.org/2000/svg";
  const tip = document.getElementById("tip");
  const theme = document.getElementById("theme");
  const known = new WeakMap();
  let at = null;

  function remember(mode) {
    try {
      if (mode) localStorage.setItem("vrio-theme", mode);
      return localStorage.getItem("vrio-theme");
    } catch {
      return null;
    }
  }

  function show(mode) {
    if (mode === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = mode;
    theme.dataset.mode = mode;
    theme.textContent = "paper: " + mode;
  }

  // Where a plot's points are: in the numbers of its picture, in the order of its series.
  function points(area) {
    let found = known.get(area);
    if (found) return found;
    found = [];
    for (const g of area.querySelectorAll("g[data-p]")) {
      const k = Number(g.dataset.k);
      for (const place of g.dataset.p.split(" ")) {
        if (!place) continue;
        const [row, x, y] = place.split(",").map(Number);
        found.push({ k, row, x, y });
      }
    }
    known.set(area, found);
    return found;
  }

  function seen(area) {
    const off = new Set();
    for (const g of area.querySelectorAll("g.off[data-k]")) off.add(Number(g.dataset.k));
    return points(area).filter((point) => !off.has(point.k));
  }

  function words(area, point) {
    const table = area.closest("figure").querySelector("table");
    const head = table.tHead.rows[0].cells[point.k + 1];
    const row = table.tBodies[0].rows[point.row];
    const unit = table.dataset.y ? " " + table.dataset.y : "";
    const place = [table.dataset.words, row.cells[0].textContent, table.dataset.x];
    const spread = head.dataset.spread && row.cells[point.k + 1].textContent.includes("(")
      ? "; in brackets: " + head.dataset.spread : "";
    return {
      name: head.textContent,
      text: place.filter(Boolean).join(" ") + ": " +
        row.cells[point.k + 1].textContent + unit + spread,
    };
  }

  function hide() {
    if (at) at.ring.remove();
    at = null;
    tip.hidden = true;
  }

  function point(area, to) {
    if (at && at.area === area && at.point === to) return;
    hide();
    const svg = area.querySelector("svg");
    const ring = document.createElementNS(SVG, "circle");
    ring.setAttribute("class", "ring");
    ring.setAttribute("r", "8");
    ring.setAttribute("cx", to.x);
    ring.setAttribute("cy", to.y);
    svg.append(ring);
    const said = words(area, to);
    tip.firstElementChild.textContent = said.name;
    tip.lastElementChild.textContent = said.text;
    tip.hidden = false;
    at = { area, point: to, ring };
    const box = svg.getBoundingClientRect();
    const scale = box.width / svg.viewBox.baseVal.width;
    const x = box.left + to.x * scale;
    const y = box.top + to.y * scale;
    const left = Math.min(Math.max(8, x + 14), document.documentElement.clientWidth - tip.offsetWidth - 8);
    const above = y - tip.offsetHeight - 14;
    tip.style.left = Math.max(8, left) + scrollX + "px";
    tip.style.top = (above > 4 ? above : y + 18) + scrollY + "px";
  }

  function nearest(area, event) {
    const svg = area.querySelector("svg");
    const box = svg.getBoundingClientRect();
    const scale = box.width / svg.viewBox.baseVal.width;
    const x = (event.clientX - box.left) / scale;
    const y = (event.clientY - box.top) / scale;
    let best = null;
    let least = NEAR * NEAR;
    for (const found of seen(area)) {
      const far = (found.x - x) ** 2 + (found.y - y) ** 2;
      if (far < least) [best, least] = [found, far];
    }
    return best;
  }

  // Left and right go along a series, up and down to the next series at the nearest place.
  function step(area, key) {
    const all = seen(area);
    if (all.length === 0) return null;
    const now = at && at.area === area && all.includes(at.point) ? at.point : null;
    if (!now) return all[0];
    const own = all.filter((found) => found.k === now.k);
    const place = own.indexOf(now);
    if (key === "Home") return own[0];
    if (key === "End") return own[own.length - 1];
    if (key === "ArrowRight") return own[Math.min(place + 1, own.length - 1)];
    if (key === "ArrowLeft") return own[Math.max(place - 1, 0)];
    const series = [...new Set(all.map((found) => found.k))];
    const next = series.indexOf(now.k) + (key === "ArrowDown" ? 1 : -1);
    const k = series[(next + series.length) % series.length];
    const other = all.filter((found) => found.k === k);
    const far = (found) => Math.abs(found.row - now.row);
    return other.reduce((best, found) => (far(found) < far(best) ? found : best));
  }

  function toggle(button) {
    const off = button.getAttribute("aria-pressed") === "true";
    button.setAttribute("aria-pressed", String(!off));
    const number = [...button.closest("ul").children].indexOf(button.parentElement);
    const g = button.closest("figure").querySelector('g[data-k="' + number + '"]');
    g.classList.toggle("off", off);
    hide();
  }

  // A spreadsheet takes what begins with one of =+-@ for a formula; an apostrophe says that it is
  // none.
  function quoted(text) {
    const guarded = /^\s*[=+@-]/.test(text) ? "'" + text : text;
    return '"' + guarded.replaceAll('"', '""') + '"';
  }

  // What a cell says: its number, and where the spread begins and ends.
  function numbers(cell) {
    const text = cell.dataset.exact ?? cell.textContent;
    const said = /^(?:[≈≤≥] )?([-.\de]+)(?: \(([^)]*)\))?/.exec(text);
    if (!said) return ["", "", ""];
    const spread = said[2] ?? "";
    const low = /^(?:from )?([-.\de]+)/.exec(spread);
    const high = /to ([-.\de]+)$/.exec(spread);
    return [said[1], low ? low[1] : "", high ? high[1] : ""];
  }

  // A table as CSV (RFC 4180), its heads first. In the page it would be a fourth of all.
  function csv(table) {
    const heads = [...table.tHead.rows[0].cells];
    const spreads = heads.map((head) => head.dataset.spread);
    const names = heads.flatMap((head, at) => {
      const name = head.textContent;
      const ends = [name + ": from (" + spreads[at] + ")", name + ": to"];
      return spreads[at] ? [name, ...ends] : [name];
    });
    const lines = [names.map(quoted)];
    for (const row of table.tBodies[0].rows) {
      const head = row.cells[0].textContent;
      const isNumber = /^-?[.\d]+(e-?\d+)?$/.test(head);
      const cells = [...row.cells].slice(1);
      const line = cells.flatMap((cell, at) => numbers(cell).slice(0, spreads[at + 1] ? 3 : 1));
      lines.push([isNumber ? head : quoted(head), ...line]);
    }
    return lines.map((line) => line.join(",") + "\r\n").join("");
  }

  function offer(details) {
    const link = details.querySelector("a[download]");
    const table = details.querySelector("table");
    if (!link || !table || link.href) return;
    link.href = "data:text/csv;charset=utf-8," + encodeURIComponent(csv(table));
    link.hidden = false;
  }

  document.addEventListener("pointermove", (event) => {
    const area = event.target.closest && event.target.closest(".area");
    const found = area && nearest(area, event);
    if (found) point(area, found);
    else if (at && document.activeElement !== at.area) hide();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hide();
    const area = event.target.closest && event.target.closest(".area");
    const keys = ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End"];
    if (!area || !keys.includes(event.key)) return;
    event.preventDefault();
    const found = step(area, event.key);
    if (found) point(area, found);
  });
  document.addEventListener("focusin", (event) => {
    if (event.target.matches(".area")) {
      const found = step(event.target, "");
      if (found) point(event.target, found);
    }
  });
  document.addEventListener("focusout", hide);
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button && button.classList.contains("key")) toggle(button);
    if (button === theme) {
      const next = MODES[(MODES.indexOf(theme.dataset.mode) + 1) % MODES.length];
      remember(next);
      show(next);
    }
  });
  document.addEventListener("toggle", (event) => offer(event.target), true);
  document.querySelectorAll("details[open]").forEach(offer);
  const mode = remember();
  show(MODES.includes(mode) ? mode : "auto");
  theme.hidden = false;
  document.documentElement.dataset.ready = "1";
})();
