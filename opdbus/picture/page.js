"use strict";
// The page of `op-dbus map`. Names and texts are a host's: they go into the page as text alone.
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const find = (id) => document.getElementById(id);
const canvas = find("canvas"), context = canvas.getContext("2d"), card = find("card");
const count = data.name.length, PAGE = 50, WIDE = 65535, OTHERS = 6, FEW = 200, MANY = 4000;
const xs = Float32Array.from(data.x, (x) => x / WIDE), ys = Float32Array.from(data.y, (y) => y / WIDE);
const marks = Array(count).fill(""), marked = Object.keys(data.marks).map(Number);
for (const row of marked) marks[row] = data.marks[row][0];
const colour = (row) => data.colours[data.kind[row]];
const words = (row) => [data.name[row], data.kinds[data.kind[row]], data.text[row], data.states[data.state[row]], marks[row]];
const hay = Array.from({ length: count }, (_, row) => words(row).join("\n").toLowerCase());
const rank = (row) => ["", "changed", "drifted"].indexOf(marks[row]);
// what is drawn last lies on top: in no order, so that no plugin hides another, and what is marked last
const order = Array.from({ length: count }, (_, row) => row);
for (let at = count - 1, seed = 15; at > 0; at--) {
  seed = (seed * 48271) % 2147483647;
  const other = seed % (at + 1);
  [order[at], order[other]] = [order[other], order[at]];
}
order.sort((a, b) => rank(a) - rank(b));
const drifted = order.filter((row) => marks[row] === "drifted");
const byRank = Array.from({ length: count }, (_, row) => row).sort((a, b) => rank(b) - rank(a));

let width = 1, height = 1, dense = 1, scale = 1, left = 0, top = 0, least = 1;
let shown = new Uint8Array(count).fill(1), all = count, only = null, chosen = -1, hovered = -1, first = 0, frame = 0, resting = 0, kept = null;
let covered = [], colours = [], text = "", back = "", soft = "";
const sprites = new Map();

function readTheme() {
  const style = getComputedStyle(document.documentElement), value = (name) => style.getPropertyValue(name).trim();
  colours = Array.from({ length: OTHERS + 1 }, (_, n) => value("--c" + n));
  [text, back, soft] = [value("--text"), value("--back"), value("--soft")];
  sprites.clear();
  redraw();
}

// drawing

function path(to, shape, x, y, r) {
  to.beginPath();
  const corners = { drifted: [[0, -1.45], [1.45, 0], [0, 1.45], [-1.45, 0]], changed: [[0, -1.4], [1.35, 1], [-1.35, 1]] }[shape];
  if (!corners) to.arc(x, y, r, 0, 7);
  else corners.forEach(([dx, dy], n) => to[n ? "lineTo" : "moveTo"](x + dx * r, y + dy * r));
  to.closePath();
}

function sprite(number, shape, r) {
  const key = number + shape + r;
  if (!sprites.has(key)) {
    const half = Math.ceil(r * 2 + 3), made = document.createElement("canvas");
    made.width = made.height = 2 * half * dense;
    const to = made.getContext("2d");
    to.scale(dense, dense);
    path(to, shape, half, half, r);
    // a light edge parts it from its neighbours, a dark one says that it is marked
    for (const [wide, edge] of shape ? [[6, back], [3.4, text]] : [[Math.min(.8, r / 4), back]]) {
      to.lineWidth = wide;
      to.strokeStyle = edge;
      to.stroke();
    }
    to.fillStyle = colours[number];
    to.fill();
    sprites.set(key, [made, half]);
  }
  return sprites.get(key);
}

function radius() {
  const base = Math.max(1.7, Math.min(5, Math.sqrt(width * height / Math.max(count, 1)) * .16));
  return Math.round(base * Math.min(2.4, (scale / least) ** .4) * 4) / 4;
}

function draw() {
  cancelAnimationFrame(frame);
  frame = 0;
  context.setTransform(dense, 0, 0, dense, 0, 0);
  context.clearRect(0, 0, width, height);
  const r = radius();
  if (resting && kept) drawKept();
  else {
    drawPoints(r, order);
    if (count > MANY) keep();
  }
  drawLabels(r);
  // nothing lies on what drifted
  drawPoints(r, drifted);
  for (const row of [chosen, hovered]) if (row >= 0) ring(row, r);
}

// very many points: while they move, the last picture of them is moved
function drawKept() {
  const by = scale / kept.scale;
  context.drawImage(kept.image, left - kept.left * by, top - kept.top * by, width * by, height * by);
}

function keep() {
  const image = kept?.image ?? document.createElement("canvas");
  [image.width, image.height] = [canvas.width, canvas.height];
  image.getContext("2d").drawImage(canvas, 0, 0);
  kept = { image, scale, left, top };
}

function moved() {
  hide();
  if (count > MANY) {
    clearTimeout(resting);
    resting = setTimeout(() => { resting = 0; redraw(); }, 120);
  }
  redraw();
}

function drawPoints(r, rows) {
  for (const isShown of all < count ? [0, 1] : [1]) {
    context.globalAlpha = isShown ? .9 : .1;
    for (const row of rows) {
      if (shown[row] !== isShown) continue;
      const x = xs[row] * scale + left, y = ys[row] * scale + top;
      if (x < -20 || y < -20 || x > width + 20 || y > height + 20) continue;
      const [image, half] = sprite(colour(row), marks[row], marks[row] ? Math.max(r * 1.25, marked.length < FEW ? 4 : 2.5) : r);
      context.drawImage(image, x - half, y - half, 2 * half, 2 * half);
    }
  }
  context.globalAlpha = 1;
}

function ring(row, r) {
  context.beginPath();
  context.arc(xs[row] * scale + left, ys[row] * scale + top, r + 6, 0, 7);
  context.lineWidth = 2.5;
  context.strokeStyle = text;
  context.stroke();
}

// the largest topics first, rather beside what is marked; what would lie on another one, or on the
// legend, comes when zoomed in
function drawLabels(r) {
  const taken = [...covered];
  const signs = marked.length < FEW ? marked.map((row) => [xs[row] * scale + left - 7, ys[row] * scale + top - 7, 14, 14]) : [];
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.lineJoin = "round";
  context.globalAlpha = all < count ? .4 : 1;
  for (const [x, y, lines, size] of data.labels) {
    const px = Math.round(Math.max(11, Math.min(17, 9 + Math.log2(size + 1))) * (width < 500 ? .85 : 1));
    context.font = `600 ${px}px system-ui, sans-serif`;
    const w = Math.max(...lines.map((line) => context.measureText(line).width)) + 10;
    const h = lines.length * px * 1.15 + 8, cx = x / WIDE * scale + left, cy = y / WIDE * scale + top - r - h / 2 - 3;
    // where it belongs, else a line higher or lower
    const x0 = cx < 0 || cx > width ? cx : Math.max(2, Math.min(cx - w / 2, width - w - 2));
    const boxes = [0, -1, 1].map((by) => [x0, cy - h / 2 + by * px * 1.2, w, h]).filter((each) => isFree(each, taken));
    const box = boxes.find((each) => isFree(each, signs)) ?? boxes[0];
    if (!box) continue;
    taken.push(box);
    lines.forEach((line, n) => {
      const at = box[1] + h / 2 + (n - (lines.length - 1) / 2) * px * 1.15;
      context.lineWidth = 4;
      context.strokeStyle = back;
      context.strokeText(line, x0 + w / 2, at);
      context.fillStyle = text;
      context.fillText(line, x0 + w / 2, at);
    });
  }
  context.globalAlpha = 1;
}

function isFree([x, y, w, h], taken) {
  const isInside = x > 1 && y > 1 && x + w < width - 1 && y + h < height - 1;
  return isInside && !taken.some((other) => x < other[0] + other[2] && other[0] < x + w && y < other[1] + other[3] && other[1] < y + h);
}

function redraw() {
  if (!frame) frame = requestAnimationFrame(draw);
}

// moving

function fit() {
  const w = Math.max(data.size[0], 1e-6), h = Math.max(data.size[1], 1e-6);
  // room for a label above, and for the legend below
  const above = 44, rest = height - above - find("legend").offsetHeight - 28;
  scale = least = Math.max(1, Math.min(width * .92 / w, rest / h));
  left = (width - w * scale) / 2;
  top = above + (rest - h * scale) / 2;
  redraw();
}

function zoom(by, x = width / 2, y = height / 2) {
  const now = Math.max(least * .5, Math.min(least * 80, scale * by)), factor = now / scale;
  left = x - (x - left) * factor;
  top = y - (y - top) * factor;
  scale = now;
  moved();
}

function pan(dx, dy) {
  left += dx;
  top += dy;
  moved();
}

function resize() {
  const box = canvas.getBoundingClientRect(), isFirst = width === 1;
  [width, height, dense] = [box.width, box.height, Math.min(devicePixelRatio || 1, 2)];
  [canvas.width, canvas.height] = [width * dense, height * dense];
  sprites.clear();
  covered = [...document.querySelectorAll("#legend button, #zoom")].map((each) => {
    const { left: x, top: y, width: w, height: h } = each.getBoundingClientRect();
    return [x - box.left, y - box.top, w, h];
  });
  if (isFirst || scale === least) fit();
  // at once: a new size empties the canvas
  draw();
}

function nearest(x, y, within) {
  let best = within * within, found = -1;
  for (let row = 0; row < count; row++) {
    if (!shown[row]) continue;
    const dx = xs[row] * scale + left - x, dy = ys[row] * scale + top - y, far = dx * dx + dy * dy;
    if (far < best) [best, found] = [far, row];
  }
  return found;
}

const pointers = new Map();
let travelled = 0;
const at = (event) => [event.offsetX, event.offsetY];
canvas.addEventListener("pointerdown", (event) => {
  canvas.setPointerCapture(event.pointerId);
  pointers.set(event.pointerId, at(event));
  travelled = pointers.size > 1 ? 99 : 0;
});
canvas.addEventListener("pointermove", (event) => {
  const [x, y] = at(event), before = pointers.get(event.pointerId);
  if (!before) return event.pointerType === "mouse" && hover(nearest(x, y, 12));
  const others = [...pointers].filter(([id]) => id !== event.pointerId).map(([, place]) => place);
  pointers.set(event.pointerId, [x, y]);
  travelled += Math.hypot(x - before[0], y - before[1]);
  if (!others.length) return travelled > 4 && pan(x - before[0], y - before[1]);
  const [ox, oy] = others[0], span = (px, py) => Math.max(Math.hypot(px - ox, py - oy), 1);
  pan((x - before[0]) / 2, (y - before[1]) / 2);
  zoom(span(x, y) / span(...before), (x + ox) / 2, (y + oy) / 2);
});
for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, (event) => {
  if (pointers.delete(event.pointerId) && name === "pointerup" && travelled <= 4)
    choose(nearest(...at(event), event.pointerType === "mouse" ? 12 : 26));
});
canvas.addEventListener("pointerleave", () => hover(-1));
canvas.addEventListener("wheel", (event) => {
  event.preventDefault();
  zoom(Math.exp(-event.deltaY * (event.deltaMode ? .05 : .0016)), ...at(event));
}, { passive: false });
canvas.addEventListener("keydown", (event) => {
  const moves = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] }[event.key];
  if (moves) pan(...moves);
  else if ("+=".includes(event.key)) zoom(1.4);
  else if (event.key === "-") zoom(1 / 1.4);
  else if (event.key === "0") fit();
  else if (event.key === "Escape") choose(-1);
  else return;
  event.preventDefault();
});
find("zoom").addEventListener("click", (event) => {
  const by = Number(event.target.dataset.zoom);
  if (by) zoom(by);
  else fit();
});

// what a point is

function hover(row) {
  if (row === hovered) return;
  hovered = row;
  show(row >= 0 ? row : chosen);
  redraw();
}

function hide() {
  hovered = -1;
  card.hidden = true;
}

function element(name, content, ...names) {
  const made = document.createElement(name);
  made.textContent = content;
  made.classList.add(...names);
  return made;
}

function show(row) {
  card.hidden = row < 0;
  if (row < 0) return;
  const [name, kind, what, state] = words(row), why = data.marks[row];
  const lines = [what, [kind, state].filter(Boolean).join(" · ")];
  if (why) lines.push(why.filter(Boolean).join(": "));
  card.replaceChildren(element("strong", name), ...lines.filter(Boolean).map((line) => element("p", line)));
  const x = xs[row] * scale + left, y = ys[row] * scale + top;
  const side = x + 14 + card.offsetWidth < width ? x + 14 : Math.max(8, x - 14 - card.offsetWidth);
  card.style.left = `${Math.max(4, Math.min(side, width - card.offsetWidth - 4))}px`;
  const low = width < 500 ? y + 16 : y - 10;
  card.style.top = `${low + card.offsetHeight < height - 8 ? low : Math.max(8, y - 16 - card.offsetHeight)}px`;
}

function choose(row) {
  chosen = row;
  if (row >= 0) {
    const place = listed().indexOf(row);
    if (place >= 0) first = place - place % PAGE;
  }
  list();
  const line = document.querySelector("tr.chosen");
  if (line && innerWidth > 800) line.scrollIntoView({ block: "nearest" });
  show(row);
  redraw();
}

function go(row) {
  if (scale < least * 3) scale = least * 3;
  left = width / 2 - xs[row] * scale;
  top = height / 2 - ys[row] * scale;
  choose(row);
  find("map").scrollIntoView({ block: "nearest" });
}

// searching, the legend and the table

function filter() {
  const asked = find("query").value.trim().toLowerCase();
  all = 0;
  for (let row = 0; row < count; row++) {
    const isOf = only === null || (typeof only === "string" ? marks[row] === only : colour(row) === only);
    all += shown[row] = Number(isOf && (!asked || hay[row].includes(asked)));
  }
  if (chosen >= 0 && !shown[chosen]) chosen = -1;
  first = 0;
  hide();
  find("count").textContent = all < count ? `${all.toLocaleString("en")} of ${count.toLocaleString("en")}` : `${count.toLocaleString("en")} objects`;
  list();
  redraw();
}

// what drifted comes first, then what changed
const listed = () => byRank.filter((row) => shown[row]);

function highlighted(to, content) {
  const asked = find("query").value.trim().toLowerCase(), low = content.toLowerCase();
  let from = 0;
  for (let found; asked && low.length === content.length && (found = low.indexOf(asked, from)) >= 0; from = found + asked.length)
    to.append(content.slice(from, found), element("mark", content.slice(found, found + asked.length)));
  to.append(content.slice(from));
  return to;
}

function line(row) {
  const made = document.createElement("tr"), [name, kind, what, state] = words(row);
  const button = highlighted(element("button", ""), name), head = element("td", ""), rest = element("td", "");
  button.type = "button";
  button.addEventListener("click", () => go(row));
  const sign = element("span", "", "sign", "c" + colour(row), ...[marks[row]].filter(Boolean));
  sign.setAttribute("aria-hidden", "true");
  head.append(sign, button, highlighted(element("small", ""), kind));
  highlighted(rest, what);
  const more = [state, (data.marks[row] || []).filter(Boolean).join(": ")].filter(Boolean).join(" · ");
  if (more) rest.append(highlighted(element("small", ""), more));
  made.append(head, rest);
  if (row === chosen) made.className = "chosen";
  return made;
}

function list() {
  const rows = listed();
  find("rows").replaceChildren(...rows.slice(first, first + PAGE).map(line));
  find("page").textContent = rows.length ? `${first + 1} to ${Math.min(first + PAGE, rows.length)} of ${rows.length.toLocaleString("en")}` : "nothing has that";
  find("before").disabled = first === 0;
  find("after").disabled = first + PAGE >= rows.length;
}

function turn(by) {
  first += by;
  list();
  find("list").scrollTop = 0;
}

function legend() {
  for (const [name, many, key] of data.legend) {
    const button = element("button", ""), sign = element("span", "", "sign", typeof key === "string" ? key : "c" + key);
    button.type = "button";
    button.setAttribute("aria-pressed", "false");
    button.append(sign, name, element("small", many.toLocaleString("en")));
    button.addEventListener("click", () => {
      only = only === key ? null : key;
      for (const other of find("legend").children) other.setAttribute("aria-pressed", other === button && only !== null);
      filter();
    });
    find("legend").append(button);
  }
}

legend();
filter();
find("query").addEventListener("input", filter);
find("asked").addEventListener("submit", (event) => event.preventDefault());
find("before").addEventListener("click", () => turn(-PAGE));
find("after").addEventListener("click", () => turn(PAGE));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", readTheme);
readTheme();
new ResizeObserver(resize).observe(canvas);
})();
