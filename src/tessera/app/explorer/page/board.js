// The grid of locations: one cell has the keyboard focus, arrows move it, space adds or removes an object.

import { textOn } from "./paint.js";

export class Board {
  constructor(root, { onToggle }) {
    this.root = root;
    this.onToggle = onToggle;
    this.cells = 0;
    this.current = [7, 7];
    root.addEventListener("click", (event) => this.clicked(event));
    root.addEventListener("keydown", (event) => this.pressed(event));
  }

  build(cells, marked) {
    if (this.cells === cells) return;
    this.cells = cells;
    this.current = [Math.floor(cells / 2), Math.floor(cells / 2)];
    this.root.style.setProperty("--cells", cells);
    const known = new Set(marked.map((location) => this.cellOf(location).join()));
    this.root.replaceChildren(...Array.from({ length: cells }, (_, row) => this.row(row, known)));
  }

  row(row, known) {
    const line = document.createElement("div");
    line.setAttribute("role", "row");
    for (let col = 0; col < this.cells; col++) {
      const cell = document.createElement("div");
      cell.setAttribute("role", "gridcell");
      cell.dataset.row = row;
      cell.dataset.col = col;
      cell.classList.toggle("study", known.has([row, col].join()));
      line.append(cell);
    }
    return line;
  }

  /** The number and color of the object in each cell. */
  render(locations, inkOf) {
    const objectsAt = new Map();
    locations.forEach((location, n) => {
      const key = this.cellOf(location).join();
      objectsAt.set(key, [...(objectsAt.get(key) ?? []), n]);
    });
    for (const cell of this.root.querySelectorAll("[role=gridcell]")) {
      const at = [Number(cell.dataset.row), Number(cell.dataset.col)];
      const objects = objectsAt.get(at.join()) ?? [];
      cell.classList.toggle("filled", objects.length > 0);
      cell.textContent = objects.length ? objects[0] + 1 : "";
      cell.style.setProperty("--object", objects.length ? inkOf(objects[0]) : "");
      cell.style.color = objects.length ? textOn(inkOf(objects[0])) : "";
      cell.setAttribute("aria-selected", String(objects.length > 0));
      const [x, y] = this.center(at);
      cell.setAttribute("aria-label", `${x.toFixed(2)}, ${y.toFixed(2)}${objects.length ? `, object ${objects[0] + 1}` : ""}`);
      cell.tabIndex = at.join() === this.current.join() ? 0 : -1;
    }
  }

  cellOf([x, y]) {
    return [y, x].map((c) => Math.min(Math.floor(c * this.cells), this.cells - 1));
  }

  center([row, col]) {
    return [(col + 0.5) / this.cells, (row + 0.5) / this.cells];
  }

  at([row, col]) {
    return this.root.children[row].children[col];
  }

  focus(next) {
    this.at(this.current).tabIndex = -1;
    this.current = next.map((c) => Math.max(0, Math.min(this.cells - 1, c)));
    this.at(this.current).tabIndex = 0;
    this.at(this.current).focus();
  }

  clicked(event) {
    const cell = event.target.closest("[role=gridcell]");
    if (!cell) return;
    this.focus([Number(cell.dataset.row), Number(cell.dataset.col)]);
    this.onToggle(this.current);
  }

  pressed(event) {
    const [row, col] = this.current;
    const moves = {
      ArrowLeft: [row, col - 1], ArrowRight: [row, col + 1], ArrowUp: [row - 1, col], ArrowDown: [row + 1, col],
      Home: [row, 0], End: [row, this.cells - 1], PageUp: [0, col], PageDown: [this.cells - 1, col],
    };
    if (event.key === " " || event.key === "Enter") this.onToggle(this.current);
    else if (moves[event.key]) this.focus(moves[event.key]);
    else return;
    event.preventDefault();
  }
}
