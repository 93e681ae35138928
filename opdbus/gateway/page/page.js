// The page of the gateway. All that it shows of a host goes into the page as text, never as markup.

const find = (id) => document.getElementById(id);
const [main, box, notice, said] = ["main", "box", "notice", "said"].map(find);
const SEVERITIES = ["error", "warning", "notice", "info"];
const SPANS = [["1h", "last hour"], ["24h", "last day"], ["7d", "last 7 days"], ["30d", "last 30 days"], ["", "all"]];
const WHATS = ["appeared", "changed", "gone", "event", "drift", "intended", "healed", "undeclared"];
const FAILED = "state=failed";
// words of questions about op-dbus itself, and the views that answer them
const OWN = [[/\b(vectors?|embeddings?|embeds?|op-?dbus|onnx|providers?)\b/i, "serving", "What serves", "what computes the vectors, its proof, queue and latency"], [/\bobserv(e|es|ed|ers?|ing)\b/i, "observers", "Observers", "what is observed here, and what is not"]];
const CONDITION = /(^|[\s,])([a-z_][\w.-]*(?:[!<>]?=|[<>~])(?:"[^"]*"|[^\s,"=<>~]+))(?=[\s,]|$)/gi;
const HIDDEN = /(?![\n\t])[\p{Cc}\p{Cf}\p{Co}\p{Cs}\u2028\u2029]/gu;
const TYPING_MS = 130, STATUS_MS = 10000, SVG = "http://www.w3.org/2000/svg";

// elements

function fill(made, attributes, children) {
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value === true ? "" : value);
  }
  // a text becomes a text node, in which no hidden character reorders or hides what is beside it
  const shown = children.flat(3).filter((child) => child !== null && child !== undefined && child !== false && child !== "");
  made.append(...shown.map((child) => typeof child === "string" ? child.replace(HIDDEN, "\ufffd") : child));
  return made;
}

const el = (name, attributes, ...children) => fill(document.createElement(name), attributes, children);
const svg = (name, attributes, ...children) => fill(document.createElementNS(SVG, name), attributes, children);
// for screen readers, which are not told of each letter's answer
let saying = 0;
const say = (text) => {
  clearTimeout(saying);
  saying = setTimeout(() => { said.textContent = text; }, 600);
};
const count = (n, noun, many = `${noun}s`) => `${n.toLocaleString("en")} ${n === 1 ? noun : many}`;

function table(caption, heads, rows, attributes) {
  const head = el("thead", null, el("tr", null, heads.map((each) => el("th", { scope: "col" }, each))));
  // wide tables scroll by themselves, by keyboard as well
  return el("div", { class: "wide", tabindex: 0, role: "region", "aria-label": caption },
    el("table", attributes, el("caption", { class: "unseen" }, caption), head, el("tbody", null, rows)));
}

function choice(label, name, options, value, change) {
  const list = options.map(([key, text]) => el("option", { value: key, selected: key === value }, text));
  return el("label", null, label, el("select", { name, onchange: change }, list));
}

function entry(label, name, value, hint, wide) {
  return el("label", { class: wide && "grow" }, label, el("input", { name, value, placeholder: hint, autocomplete: "off", spellcheck: "false" }));
}

// addresses: #/view/parts?parameters

function address(view, parameters = {}) {
  const given = Object.entries(parameters).filter(([, value]) => value);
  return `#/${view}${given.length ? `?${new URLSearchParams(given)}` : ""}`;
}

const objectAddress = (of) => `#/object/${[of.plugin, of.kind, of.name].map(encodeURIComponent).join("/")}`;
const objectRoute = (of) => `objects/${[of.plugin, of.kind, of.name].map(encodeURIComponent).join("/")}`;
// names may break after these signs, and nowhere else if there is room
const breakable = (text) => text.split(/(?<=[_./:@-])(?=\w)/).flatMap((part, n) => (n ? [el("wbr"), part] : part));
const nameOf = (of) => (of.kind === of.name ? `${of.plugin} ${of.kind}` : of.name);
const link = (of) => el("a", { href: objectAddress(of), class: "object" }, breakable(nameOf(of)));
const kindOf = (of) => el("small", { class: "kind" }, `${of.plugin}/${of.kind}`);

function readAddress() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  const [view, ...parts] = path.split("/").map((part) => {
    try { return decodeURIComponent(part); } catch { return part; }
  });
  return { view: view || "ask", parts, query: new URLSearchParams(query) };
}

// asking the gateway

class Away extends Error {}
class Refused extends Error {}

async function get(path, parameters = {}, signal = undefined) {
  const given = Object.entries(parameters).filter(([, value]) => value !== "" && value !== undefined && value !== null && value !== false);
  const query = given.length ? `?${new URLSearchParams(given)}` : "";
  let answer;
  try {
    answer = await fetch(path + query, { signal, headers: { Accept: "application/json" } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Away("the gateway does not answer: it may be restarting, or `op-dbus page` has ended");
  }
  if (answer.ok) return answer.json();
  const body = await answer.json().catch(() => ({}));
  const why = body.error?.message ?? body.error ?? `${answer.status} ${answer.statusText}`;
  if (answer.status === 403) throw new Refused("this browser may not ask any more: run `op-dbus page` again");
  throw new (answer.status > 500 || answer.status === 429 ? Away : Refused)(why);
}

// times and values

const clock = new Intl.DateTimeFormat([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
const day = new Intl.DateTimeFormat([], { month: "short", day: "numeric" });
const whole = new Intl.DateTimeFormat([], { dateStyle: "medium", timeStyle: "medium", hour12: false });

// a time in milliseconds
function time(at) {
  const date = new Date(at), isToday = date.toDateString() === new Date().toDateString();
  return el("time", { datetime: date.toISOString(), title: whole.format(date) }, isToday ? clock.format(date) : `${day.format(date)} ${clock.format(date)}`);
}

function age(at) {
  const seconds = Math.max(0, (Date.now() - at) / 1000);
  for (const [size, unit] of [[86400, "day"], [3600, "hour"], [60, "minute"]])
    if (seconds >= size) return `${count(Math.floor(seconds / size), unit)} ago`;
  return "just now";
}

function format(value) {
  if (value === undefined || value === null || value === "") return "";
  if (Array.isArray(value)) return value.map((each) => (typeof each === "object" ? JSON.stringify(each) : String(each))).join(", ");
  if (typeof value === "boolean") return value ? "yes" : "no";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

const short = (value, most = 90) => {
  const text = format(value);
  return text.length > most ? `${text.slice(0, most)}…` : text;
};

function first(texts, most, join = ", ") {
  const rest = texts.length - most;
  return texts.slice(0, most).join(join) + (rest > 0 ? `${join}and ${rest} more` : "");
}

function leaves(value, before = "", found = new Map()) {
  for (const [key, one] of Object.entries(value ?? {})) {
    if (one && typeof one === "object" && !Array.isArray(one)) leaves(one, `${before}${key}.`, found);
    else found.set(before + key, one);
  }
  return found;
}

// a field's name, without the group that all free fields are in
const plain = (path) => path.replace(/^properties\./, "");

function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB"], step = Math.min(3, Math.floor(Math.log2(Math.max(n, 1)) / 10));
  return `${(n / 1024 ** step).toFixed(step ? 1 : 0)} ${units[step]}`;
}

// changes, in the words of `op-dbus changes`, and on a line of time

const WORDS = { event: "happened again", drift: "drifted", intended: "is newly declared", undeclared: "no longer declared", forgot: "was forgotten" };
const wordOf = (change) => WORDS[change.what] ?? change.what;

// A line has one change, or many alike.
const lineOf = (change) => ({ at: change.at, words: change.words, rows: [change] });

function linesOf({ changes, lines }) {
  const rows = new Map(changes.map((each) => [each.seq, each]));
  return lines?.length ? lines.map((line) => ({ ...line, rows: line.rows.map((seq) => rows.get(seq)) })) : changes.map(lineOf);
}

// a sentence, in which the object's name is a link
function linked(words, change) {
  const at = words.indexOf(change.name), name = el("a", { href: objectAddress(change), class: "object" }, breakable(change.name));
  return at < 0 ? [name, ": ", words] : [words.slice(0, at), name, words.slice(at + change.name.length)];
}

function changeRow(change, isFresh, { at, words } = change) {
  return el("li", { id: `row-${change.seq}`, class: `change ${isFresh ? "fresh" : ""}` }, time(at / 1000),
    el("div", { class: `key ${colourOf(change)}` }, linked(words, change), change.count > 1 && ` (${change.count} times)`,
      change.lines?.length ? el("details", null, el("summary", null, "What it logged"), el("pre", null, change.lines.join("\n"))) : null));
}

function changeList(lines, { by = "", fresh = new Set() } = {}) {
  if (!lines.length) return el("p", { class: "empty" }, "No change matches.");
  if (by === "cause") {
    return el("div", null, [...Map.groupBy(lines, (each) => each.rows.at(-1).cause_words || "cause not known")].map(([words, group]) => el("section", null,
      el("h2", null, words, el("small", null, ` ${count(group.flatMap((each) => each.rows).length, "change")}, the last `, time(group[0].at / 1000))),
      changeList(group, { fresh }))));
  }
  return el("ol", { class: "changes" }, lines.map((line) => {
    const { at, words, rows } = line;
    if (rows.length === 1) return changeRow(rows[0], fresh.has(rows[0].seq), line);
    const own = rows.map((each) => changeRow(each, fresh.has(each.seq)));
    return el("li", { class: "change" }, time(at / 1000), el("details", { class: `key ${colourOf(rows.at(-1))}` }, el("summary", null, words), el("ol", { class: "changes" }, own.reverse())));
  }));
}

// The note of an answer, and its event: the changes are those before it.
function eventNodes({ note, event, changes }) {
  return [note && el("p", { class: "verdict" }, note), event && !changes.some((each) => each.seq === event.seq) && el("ol", { class: "changes" }, changeRow(event)),
    event && el("p", { class: "soft" }, "What may have led to it, the likeliest first:")].filter(Boolean);
}

const withEvent = ({ event }, rows) => (event ? [event, ...rows] : rows);

const colourOf = (change) => (change.what === "drift" ? `drift ${change.severity}` : change.what);

// Points on a line of time; the list below says the same.
function timeline(changes, label) {
  if (changes.length < 2) return null;
  const times = changes.map((each) => each.at / 1000), last = Math.max(...times), begin = Math.min(...times);
  const span = Math.max(last - begin, 1), stacks = new Map();
  const points = [...changes].sort((a, b) => a.at - b.at).slice(-600).map((each) => {
    const share = (each.at / 1000 - begin) / span, bin = Math.round(share * 110), high = stacks.get(bin) ?? 0;
    stacks.set(bin, high + 1);
    const point = svg("circle", { cx: `${(1.5 + share * 97).toFixed(2)}%`, cy: 44 - Math.min(high, 5) * 7, r: each.event === each.seq ? 5 : 3.6, class: colourOf(each) });
    point.append(svg("title", null, `${whole.format(each.at / 1000)}: ${nameOf(each)} ${wordOf(each)}`));
    point.addEventListener("click", () => find(`row-${each.seq}`)?.scrollIntoView({ block: "center" }));
    return point;
  });
  const text = (at, x, anchor) => svg("text", { x, y: 70, "text-anchor": anchor }, span < 2 * 86400e3 && new Date(begin).toDateString() === new Date(last).toDateString() ? clock.format(at) : `${day.format(at)} ${clock.format(at).slice(0, 5)}`);
  const kinds = Map.groupBy(changes, colourOf);
  return el("figure", { class: "timeline" },
    svg("svg", { role: "img", "aria-label": `${label}: ${count(changes.length, "change")} from ${whole.format(begin)} to ${whole.format(last)}`, height: 76, width: "100%" },
      svg("line", { x1: "1%", x2: "99%", y1: 52, y2: 52 }), points, text(begin, "1%", "start"), text(begin + span / 2, "50%", "middle"), text(last, "99%", "end")),
    el("figcaption", null, "Each point is a change:", [...kinds].map(([key, own]) => el("span", { class: `key ${key}` }, `${wordOf(own[0])}${own[0].what === "drift" ? `, ${own[0].severity}` : ""} (${own.length})`)), changes.some((each) => each.event) && "large: the event itself"));
}

// hits

function why(hit) {
  const from = hit.why ?? {}, lines = [];
  const chips = (from.conditions ?? []).map((each) => el("span", { class: "chip" }, format(each)));
  for (const [field, value, words] of (from.fields ?? []).slice(0, 4))
    lines.push([el("b", null, plain(field)), ` ${short(value, 70)}`, words?.length ? el("span", { class: "soft" }, `, found by “${words.join(", ")}”`) : null]);
  for (const [asked, used] of from.corrected ?? []) lines.push([`searched for ${used} instead of ${asked}`]);
  if (from.glosses?.length) lines.push([`means: ${from.glosses.join(", ")}`]);
  if (from.missing?.length) lines.push([el("span", { class: "soft" }, `not in it: ${from.missing.join(", ")}`)]);
  return { chips, lines };
}

function hitRow(hit, isCosine) {
  const { chips, lines } = why(hit), score = hit.score ?? 0;
  const differing = Object.keys(hit.observed ?? {}).length ? Object.keys(hit.declared ?? {}) : [];
  const parts = [["meaning", hit.vector], ["words", hit.lexical], ["values", hit.values]].filter(([, value]) => value);
  const scores = isCosine ? `cosine ${score.toFixed(2)}` : `${Math.round(100 * score)}% sure`;
  return el("li", { class: `hit ${hit.weak ? "weak" : ""}` },
    el("div", { class: "score" }, el("meter", { value: score, min: 0, max: 1, "aria-label": scores }), el("span", null, isCosine ? score.toFixed(2) : `${Math.round(100 * score)}%`)),
    el("div", null, link(hit), " ", kindOf(hit), " ", chips,
      differing.length ? el("span", { class: "chip warning" }, `differs: ${first(differing.map(plain), 3)}`) : null,
      el("p", null, short((hit.snippet ?? "").split("\n")[0], 260)),
      lines.length || parts.length ? el("p", { class: "why" }, lines.map((line, n) => [n ? " · " : "", line]), parts.length && !isCosine ? el("span", { class: "soft" }, `${lines.length ? " · " : ""}${parts.map(([name, value]) => `${name} ${value.toFixed(2)}`).join(", ")}`) : null) : null));
}

// drift

const shell = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

function advice(drift) {
  const name = shell(drift.name), full = shell(`${drift.plugin}/${drift.kind}/${drift.name}`);
  const fields = new Map(drift.fields.map((each) => [plain(each.path), each]));
  const steps = [], presence = fields.get("presence") ?? fields.get("ensure");
  const isUnit = drift.plugin === "systemd" && drift.kind === "unit";
  if (drift.class === "intended") steps.push(["Declared within the last 10 minutes: the host has not followed yet. Apply it, or wait."]);
  if (presence && presence.declared === "not declared") steps.push(["Not declared, and its kind is claimed: remove it from the host, or declare it."]);
  else if (presence && ["absent"].includes(presence.declared)) steps.push(["Declared absent, and there: remove it."]);
  else if (presence && drift.kind === "package") steps.push(["Install it with the package manager: ", el("code", null, `apt install ${name}`)]);
  else if (presence && drift.kind === "mount") steps.push(["Mount it: ", el("code", null, `mount ${name}`), " (if it is in /etc/fstab)."]);
  else if (presence) steps.push(["Declared, and not there: bring it back, or take it out of the state file."]);
  if (isUnit && fields.has("active_state")) steps.push(["See why: ", el("code", null, `systemctl status ${name}`), ", ", el("code", null, `journalctl -b -u ${name}`), "; then ", el("code", null, `systemctl ${fields.get("active_state").declared === "active" ? "start" : "stop"} ${name}`)]);
  if (isUnit && fields.has("enabled")) steps.push([el("code", null, `systemctl ${fields.get("enabled").declared ? "enable" : "disable"} ${name}`)]);
  if (["sysctl", "kernel"].includes(drift.plugin)) for (const [field, each] of fields) steps.push([el("code", null, `sysctl -w ${shell(`${field === "value" ? drift.name : field}=${format(each.declared)}`)}`)]);
  if (!steps.length) steps.push(["Set it on the host as it is declared."]);
  steps.push(["If the host is right, take it over into the state file: ", el("code", null, `op-dbus declare --update ${shell(status?.StateFile || "FILE")} ${full}`)]);
  const around = address("changes", { around: `${drift.plugin}/${drift.kind}/${drift.name}` });
  steps.push([el("a", { href: around }, "What changed around it"), " may tell the reason."]);
  return el("ul", null, steps.map((step) => el("li", null, step)));
}

function driftRow(drift) {
  const lines = drift.fields.map((each) => el("p", { class: each.severity }, each.difference ? el("b", null, each.difference) : [el("b", null, plain(each.path)), " declared ", el("code", null, short(each.declared, 200) || "none"), ", observed ", el("code", null, short(each.observed, 200) || "none")], each.origin && el("span", { class: "soft" }, `, ${each.origin}`)));
  return el("li", { class: `drift ${drift.severity}` },
    el("div", null, link(drift), " ", kindOf(drift), drift.class === "intended" ? el("span", { class: "chip" }, "newly declared") : null,
      drift.since ? el("small", { class: "soft" }, ` for ${age(1000 * drift.since).replace(" ago", "").replace("just now", "less than a minute")}`) : null),
    el("div", null, lines),
    el("details", null, el("summary", null, "What to do", el("span", { class: "unseen" }, ` about ${drift.name}`)), advice(drift)));
}

function objectTable(objects) {
  return table("Objects", ["Object", "Plugin", "Kind"], objects.map((each) => el("tr", null, el("th", { scope: "row" }, link(each)), el("td", null, el("a", { href: address("objects", { plugin: each.plugin }) }, each.plugin)), el("td", null, el("a", { href: address("objects", { plugin: each.plugin, kind: each.kind }) }, each.kind)))));
}

// A question's words, and the conditions that it has, such as used_percent>90.
function splitConditions(q) {
  const found = [...q.matchAll(CONDITION)].map((each) => each[2]);
  return [found.length ? q.replace(CONDITION, " ").replace(/(^|\s)(and|where|with|,)(?=\s|$)/gi, " ").replace(/[\s,]+/g, " ").trim() : q, ...found];
}

async function answerOf({ q, words, conditions, where, plugin, limit }, signal) {
  if (conditions.length) {
    const all = [...conditions, where].filter(Boolean).join(", ");
    const listed = words ? await get("search", { q: words, limit, plugin, where: all, explain: true }, signal) : await get("objects", { plugin, where: all, limit: 100 }, signal);
    if (listed.total || listed.hits?.length) return { route: "objects", where: all, ...listed };
  }
  // both at once: most questions are answered by objects, and only `search` explains them
  const [asked, explained] = await Promise.all([plugin || where ? null : get("ask", { q, limit }, signal), get("search", { q, limit, plugin, where, explain: true }, signal)]);
  let answer = !asked || asked.route === "objects" ? { route: "objects", hits: explained.hits } : asked;
  if (answer.route === "changes" && !answer.options.about && !answer.options.before_event) {
    // all of that time, not the newest few
    const { before, ...options } = answer.options;
    answer = { ...answer, ...await get("changes", { ...options, until: before, limit: 200 }, signal) };
  }
  return { ...answer, isUnmet: conditions.length > 0 };
}

// views: each returns its title and its elements

const views = {
  async ask(at, signal) {
    const q = (at.query.get("q") ?? "").trim();
    if (!q) return overview(signal);
    const plugin = at.query.get("plugin") ?? "", where = at.query.get("where") ?? "";
    const limit = Number(at.query.get("n")) || 20, began = performance.now(), [words, ...conditions] = splitConditions(q);
    const answer = await answerOf({ q, words, conditions, where, plugin, limit }, signal);
    const ms = Math.max(1, Math.round(performance.now() - began));
    const rows = answer.objects ?? answer.hits ?? answer.changes ?? answer.drifts ?? [];
    const shown = answer.objects ? `that meet ${conditions.join(", ")}` : { objects: "by meaning and words", changes: "from the history of changes", drift: "by comparison with the state file", status: "from op-dbus itself" }[answer.route];
    const found = answer.route === "status" ? "1 answer" : count(answer.total ?? rows.length, { objects: "object", changes: "change", drift: "drifted object" }[answer.route]);
    say(`${found} for ${q}`);
    const refine = (event) => {
      event.preventDefault();
      const form = new FormData(event.currentTarget);
      location.hash = address("ask", { q, plugin: form.get("plugin"), where: form.get("where") });
    };
    const nodes = [el("p", { class: "soft" }, `${found} ${shown}, ${ms} ms`)];
    for (const [form, view, name, what] of OWN) if (answer.route === "status" ? view === "serving" : form.test(q)) nodes.push(el("p", { class: "box" }, "About op-dbus itself: ", el("a", { href: `#/${view}` }, name), ` shows ${what}.`));
    if (answer.isUnmet) nodes.push(el("p", { class: "soft" }, `No object meets ${conditions.join(", ")}: taken as words.`));
    if (answer.hits?.[0]?.verdict) nodes.push(el("p", { class: "verdict" }, answer.hits[0].verdict));
    if (answer.objects) nodes.push(objectTable(rows), answer.total > rows.length ? el("p", null, el("a", { href: address("objects", { where: answer.where, plugin }) }, "All of them")) : null);
    else if (answer.route === "objects") {
      nodes.push(el("form", { class: "filter", onsubmit: refine }, entry("Plugin", "plugin", plugin, "systemd"), entry("Condition", "where", where, "active_state=failed, used_percent>90", true), el("button", null, "Narrow")));
      nodes.push(rows.length ? el("ol", { class: "hits" }, rows.map((hit) => hitRow(hit))) : el("p", { class: "empty" }, "Nothing on this host answers this. Try other words, a name, or a condition such as state:failed."));
      if (rows.length === limit && limit < 200) nodes.push(el("p", null, el("a", { href: address("ask", { q, plugin, where, n: 3 * limit }) }, "More")));
    } else if (answer.route === "changes") {
      nodes.push(...eventNodes(answer), timeline(withEvent(answer, rows), "Changes that answer"), changeList(linesOf(answer)));
      if (answer.next) nodes.push(el("p", null, `The newest ${count(rows.length, "change")}. `, el("a", { href: address("changes", { below: answer.next, since: "" }) }, "Older")));
    }
    else if (answer.route === "drift") nodes.push(rows.length ? el("ol", { class: "drifts" }, rows.map(driftRow)) : el("p", { class: "empty" }, "Nothing differs from what is declared."));
    else nodes.push(servingTable(answer.status));
    return { title: q, heading: `Answers to “${q}”`, isUnseen: true, nodes };
  },

  async object(at, signal) {
    const [plugin, kind, ...rest] = at.parts, of = { plugin, kind, name: rest.join("/") }, route = objectRoute(of);
    // of very many objects, the history comes later than the rest
    const past = get(`${route}/changes`, { limit: 100 }, signal).catch(() => ({ changes: [] }));
    const [found, drifts, alike] = await Promise.all([
      get(route, {}, signal).catch((error) => { if (error instanceof Refused) return null; throw error; }),
      get("drift", { plugin, kind, limit: 1000 }, signal).catch(() => ({ drifts: [] })),
      get(`${route}/similar`, { limit: 8, explain: true }, signal).catch(() => ({ hits: [] })),
    ]);
    if (!found && !(await past).changes.length) throw new Refused(`there is no object ${plugin}/${kind}/${of.name}`);
    const drift = drifts.drifts.find((each) => each.name === of.name);
    const nodes = [el("p", { class: "soft" }, `${plugin}/${kind}`, found ? ` from ${found.source}` : " is gone")];
    if (found?.failed_at) nodes.push(el("div", { class: "box error" }, el("p", null, el("b", null, found.observed?.active_state === "failed" ? "Failed " : "Last failed "), time(found.failed_at / 1000), found.failed_why && `: ${found.failed_why}`), found.failed_lines?.length ? el("pre", null, found.failed_lines.join("\n")) : null));
    if (found) nodes.push(sides(found, drift));
    if (drift) nodes.push(el("section", { class: `box ${drift.severity}` }, el("h2", null, "What to do"), advice(drift)));
    const history = el("section", null, el("h2", null, "History"), el("p", { class: "soft" }, "Loading."));
    nodes.push(history);
    await Promise.race([new Promise((done) => setTimeout(done, 100)), past.then((answer) => history.replaceChildren(...[el("h2", null, "History"), timeline(answer.changes, `History of ${of.name}`), changeList(linesOf(answer)),
      answer.changes.length && el("p", null, el("a", { href: address("changes", { around: `${plugin}/${kind}/${of.name}` }) }, "Changes around it: what is connected with it"))].filter(Boolean)))]);
    if (alike.hits.length) nodes.push(el("section", null, el("h2", null, "What is like it"), el("ol", { class: "hits" }, alike.hits.map((hit) => hitRow({ ...hit, snippet: likeness(hit) }, true)))));
    if (found) nodes.push(el("details", null, el("summary", null, "Text, fingerprint and vector"), el("pre", null, found.text), el("dl", null, pair("Fingerprint", found.fingerprint), pair("Vector key", found.vector_key), pair("D-Bus path", found.path))));
    return { title: nameOf(of), heading: nameOf(of), nodes };
  },

  async drift(at, signal) {
    const severity = at.query.get("severity") ?? "", plugin = at.query.get("plugin") ?? "";
    const [answer, unseen] = await Promise.all([get("drift", { severity, plugin, limit: 200 }, signal), get("unobserved", {}, signal)]);
    const rows = answer.drifts, change = (event) => { const form = new FormData(event.currentTarget.form ?? event.currentTarget); location.hash = address("drift", Object.fromEntries(form)); };
    const nodes = [el("form", { class: "filter", onsubmit: (event) => { event.preventDefault(); change(event); } },
      choice("Severity", "severity", [["", "all"], ["error", "error"], ["warning", "warning or worse"], ["notice", "notice or worse"]], severity, change), entry("Plugin", "plugin", plugin, "systemd"), el("button", null, "Show"))];
    nodes.unshift(el("p", { class: "soft" }, `${count(rows.length, "object")} of ${status?.Drifted ?? rows.length} that ${status?.Drifted === 1 ? "is" : "are"} other than ${status?.StateFile || "the state file"} declares. The worst come first.`));
    for (const why of answer.awaits ?? []) nodes.push(el("p", { class: "box warning" }, `Not all is known yet: waiting for ${format(why)}`));
    if (!rows.length) nodes.push(el("p", { class: "empty good" }, status?.StateFile ? "Nothing differs from what is declared." : "There is no state file: `op-dbus declare` prints one that declares this host as it is."));
    for (const level of SEVERITIES) {
      const own = rows.filter((each) => each.severity === level);
      if (own.length) nodes.push(el("section", null, el("h2", { class: level }, level, el("small", null, ` ${count(own.length, "object")}`)), el("ol", { class: "drifts" }, own.map(driftRow))));
    }
    if (rows.length === 200) nodes.push(el("p", { class: "soft" }, "The worst 200 are shown: choose a plugin or a severity."));
    if (unseen.unobserved.length) nodes.push(el("section", null, el("h2", null, "Declared, and not compared"), table("Declared, and not compared", ["Kind", "Objects", "Why"], unseen.unobserved.map((each) =>
      el("tr", null, el("th", { scope: "row" }, each.plugin + (each.kind ? `/${each.kind}` : "")), el("td", null, `${each.names.slice(0, 3).join(", ")}${each.count > each.names.length ? ` and ${each.count - each.names.length} more` : ""}`), el("td", null, each.why))))));
    say(count(rows.length, "drifted object"));
    return { title: "Drift", heading: "Drift", nodes, live: (event) => ["drift", "healed", "intended", "undeclared"].includes(event.what) };
  },

  async changes(at, signal) {
    const value = (key, usual = "") => at.query.get(key) ?? usual;
    const before = value("before_event"), about = value("about"), by = value("by"), span = value("since", before || about || value("around") ? "" : "24h");
    const wanted = { about, before_event: before, cause: value("cause"), plugin: value("plugin"), kind: value("kind"), what: value("what"), around: value("around"), below: value("below"), since: span && `-${span}`, limit: before || about ? 20 : 200 };
    const minutes = Number(value("within", "30"));
    if (before) Object.assign(wanted, { within: minutes * 6e7, since: "" });
    let refused = "";
    const answer = await get("changes", wanted, signal).catch((error) => {
      if (!(error instanceof Refused)) throw error;
      refused = error.message;
      return { changes: [] };
    });
    const rows = answer.changes, fresh = new Set();
    const submit = (event) => {
      event.preventDefault();
      const given = Object.fromEntries(new FormData(event.currentTarget));
      if (!given.before_event) delete given.within;
      // without a span, `all` would be taken for the usual one
      const isUsual = given.since === "24h" && !(given.about || given.before_event);
      const { since, ...others } = given, rest = address("changes", { ...others, around: value("around") });
      location.hash = isUsual || given.before_event ? rest : `${rest}${rest.includes("?") ? "&" : "?"}since=${since}`;
    };
    const spans = SPANS.map(([key, text]) => [key, text]);
    const form = el("form", { class: "filter", onsubmit: submit },
      entry("What changed before …", "before_event", before, "nginx failed", true), choice("within", "within", [["30", "30 minutes"], ["120", "2 hours"], ["1440", "a day"]], String(minutes)),
      entry("About", "about", about, "name resolution", true),
      el("details", { open: ["cause", "plugin", "kind", "what"].some((key) => value(key)) }, el("summary", null, "Filter"), el("div", null, entry("Cause", "cause", value("cause"), "apt, job:, boot"), entry("Plugin", "plugin", value("plugin"), "packages"), entry("Kind", "kind", value("kind"), "package"),
        choice("What", "what", [["", "all"], ...WHATS.map((each) => [each, each])], value("what")))),
      choice("Since", "since", spans, span), choice("Order", "by", [["", "by time"], ["cause", "by cause"]], by), el("button", null, "Show"));
    const isLive = !before && !about && !value("below");
    const place = el("div"), list = linesOf(answer);
    const draw = () => place.replaceChildren(...[...eventNodes(answer), timeline(withEvent(answer, list.flatMap((line) => line.rows)), before ? `Before ${before}` : "Changes"), changeList(list, { by, fresh })].filter(Boolean));
    if (!refused) draw();
    const words = before ? `What may have led to “${before}”, the likeliest first` : about ? `What has to do with “${about}”, best first` : value("around") ? `Around ${value("around")}` : isLive ? "New changes come by themselves" : "Older changes";
    const nodes = [form, refused ? el("p", { class: "box error" }, refused) : el("p", { class: "soft" }, isLive ? el("span", { class: "dot" }) : null, words), place];
    if (answer.next) nodes.push(el("p", null, el("a", { href: address("changes", { ...Object.fromEntries(at.query), below: answer.next }) }, "Older")));
    const add = (change) => {
      const fits = (key) => !value(key) || change[key] === value(key);
      if (!isLive || value("around") || !fits("plugin") || !fits("kind") || !fits("what") || !change.cause.startsWith(value("cause")) || list.some((line) => line.rows.some((each) => each.seq === change.seq))) return;
      list.unshift(lineOf(change));
      list.length = Math.min(list.length, 400);
      fresh.add(change.seq);
      scheduleDraw(draw);
      say(change.words);
    };
    return { title: "Changes", heading: before ? `Before “${before}”` : "Changes", nodes, onChange: add };
  },

  async objects(at, signal) {
    const value = (key) => at.query.get(key) ?? "", offset = Number(value("offset")) || 0, size = 100;
    const wanted = { plugin: value("plugin"), kind: value("kind"), source: value("source"), where: value("where") };
    const answer = await get("objects", { ...wanted, offset, limit: size }, signal);
    const submit = (event) => { event.preventDefault(); location.hash = address("objects", Object.fromEntries(new FormData(event.currentTarget))); };
    const sources = (status?.Sources ?? []).map(([name, number]) => [name, `${name} (${number})`]);
    const rows = answer.objects;
    const page = (to, text) => el("a", { href: address("objects", { ...wanted, offset: to }) }, text);
    const nodes = [el("form", { class: "filter", onsubmit: submit }, choice("Source", "source", [["", "all"], ...sources], wanted.source), entry("Plugin", "plugin", wanted.plugin, "systemd"), entry("Kind", "kind", wanted.kind, "unit"), entry("Condition", "where", wanted.where, "active_state=failed", true), el("button", null, "Show")),
      el("p", { class: "soft" }, answer.total ? `${offset + 1} to ${offset + rows.length} of ${count(answer.total, "object")}` : "No object matches."),
      rows.length ? objectTable(rows) : null,
      el("p", { class: "pages" }, offset > 0 ? page(Math.max(0, offset - size) || "", "Previous") : null, " ", offset + size < answer.total ? page(offset + size, "Next") : null)];
    return { title: "Objects", heading: "Objects", nodes };
  },

  async map(at, signal) {
    const data = await get("map", { limit: 5000, plugin: at.query.get("plugin") ?? "" }, signal);
    return { title: "Map", heading: "Map", nodes: drawMap(data) };
  },

  // a script of its own, for those who have a fleet
  async fleet(at, signal) { return (await import("./fleet.js")).default(at, signal); },

  async serving(at, signal) {
    await readStatus(signal);
    const nodes = [servingTable(status)];
    const accuracy = status.Accuracy ?? [], fallbacks = status.Fallbacks ?? [];
    if (fallbacks.length) nodes.push(el("section", null, el("h2", null, "Providers that were passed over"), el("ul", null, fallbacks.map((each) => el("li", null, format(each))))));
    if (accuracy.length) nodes.push(el("section", null, el("h2", null, "Accuracy of precisions"), el("ul", null, accuracy.map((each) => el("li", null, format(each))))));
    const sources = status.Sources ?? [];
    nodes.push(el("section", null, el("h2", null, "Where the objects are from"), table("Sources", ["Source", "Objects"], sources.map(([name, number]) => el("tr", null, el("th", { scope: "row" }, el("a", { href: address("objects", { source: name }) }, name)), el("td", { class: "number" }, number.toLocaleString("en")))))));
    return { title: "Serving", heading: "What serves", nodes, refresh: 5000 };
  },

  async observers(at, signal) {
    await readStatus(signal);
    const order = (state) => (state === "up" ? 1 : 0);
    const rows = [...status.Observers].sort((a, b) => order(a[1]) - order(b[1]) || a[0].localeCompare(b[0]));
    const nodes = [el("p", { class: "soft" }, "An observer reads one part of the host and follows it. What an absent one would read is not known here."),
      table("Observers", ["Observer", "State", "Objects", "Note"], rows.map(([name, state, number, note]) => el("tr", null,
        el("th", { scope: "row" }, number ? el("a", { href: address("objects", { source: `live:${name}` }) }, name) : name), el("td", null, el("span", { class: `chip ${state === "up" ? "good" : "warning"}` }, state)), el("td", { class: "number" }, number.toLocaleString("en")), el("td", null, note))))];
    return { title: "Observers", heading: "Observers", nodes, refresh: 15000 };
  },
};

const pair = (name, value) => (format(value) ? el("div", null, el("dt", null, name), el("dd", null, value instanceof Node ? value : format(value))) : null);

function servingTable(of) {
  const proof = of.Proof ?? {}, nodes = Object.entries(proof.nodes ?? {}).map(([name, number]) => `${number} nodes on ${name}`).join(", ");
  return el("dl", { class: "facts" },
    pair("State", el("span", { class: `chip ${of.State === "ready" ? "good" : "warning"}` }, of.State)),
    pair("Provider", of.Provider), pair("Requested", of.RequestedProvider), pair("Device", of.Device), pair("Precision", of.Precision),
    pair("Proof", proof.checked_at ? el("span", null, `${nodes}; vectors off by ${(proof.max_deviation ?? 0).toExponential(1)} (limit ${proof.tolerance}); checked `, time(1000 * proof.checked_at)) : "none"),
    pair("Level", of.Level), pair("Model", of.Model), pair("Dimension", of.Dimension), pair("Longest text", of.MaxTokens && `${of.MaxTokens} tokens`),
    pair("Queue", count(of.QueueDepth ?? 0, "waiting text")), pair("Latency", of.Latency === undefined ? "" : `${(1000 * of.Latency).toFixed(2)} ms for a text`), pair("Texts so far", of.Texts?.toLocaleString("en")),
    pair("Objects", `${of.Count?.toLocaleString("en")}, ${of.Pending ? `${of.Pending.toLocaleString("en")} wait for vectors` : "all with vectors"}`),
    pair("Memory", of.Memory && bytes(of.Memory)), pair("Version", of.Version), pair("State file", of.StateFile), pair("State file's fault", of.StateFileError), pair("Cannot store", of.StorageError), pair("Last error", of.LastError));
}

function sides(found, drift) {
  const declared = leaves(found.declared), observed = leaves(found.observed);
  const drifted = new Map((drift?.fields ?? []).map((each) => [plain(each.path), each]));
  const names = [...new Set([...declared.keys(), ...observed.keys()])];
  // observed fields may lie beside the declared ones in `properties`
  const other = (map, name) => map.get(name) ?? map.get(plain(name)) ?? map.get(`properties.${name}`);
  const listed = new Set(), rows = [];
  for (const name of names) {
    if (listed.has(plain(name))) continue;
    listed.add(plain(name));
    const field = drifted.get(plain(name)), one = other(declared, name), two = other(observed, name);
    drifted.delete(plain(name));
    rows.push({ name: plain(name), one: field?.declared ?? one, two: field?.observed ?? two, severity: field?.severity });
  }
  for (const [name, field] of drifted) rows.unshift({ name, one: field.declared, two: field.observed, severity: field.severity });
  const rank = (row) => (row.severity ? SEVERITIES.indexOf(row.severity) : row.one !== undefined ? 8 : 9);
  rows.sort((a, b) => rank(a) - rank(b));
  const cell = (value, isThere) => el("td", { class: isThere ? "" : "none" }, format(value) || (isThere ? "" : "—"));
  const only = !found.declared ? "Nothing is declared of it." : found.observed ? "" : found.drift || drift ? "It is compared with what observers list under other names." : "Nothing observes it, so it is not compared.";
  return el("section", null, el("h2", null, "Declared and observed"), only && el("p", { class: "soft" }, only),
    table(`Fields of ${found.name}`, ["Field", "Declared", "Observed"], rows.map((row) => el("tr", { class: row.severity },
      el("th", { scope: "row" }, breakable(row.name), row.severity ? el("span", { class: `chip ${row.severity}` }, row.severity) : null), cell(row.one, row.one !== undefined), cell(row.two, row.two !== undefined))), { class: "sides" }));
}

function likeness(hit) {
  const alike = hit.alike ?? {}, texts = [];
  if (alike.fields?.length) texts.push(`both: ${alike.fields.slice(0, 3).map(([field, value]) => `${plain(field)} ${short(parsed(value), 40)}`).join(", ")}`);
  else if (alike.words?.length) texts.push(`both: ${alike.words.slice(0, 6).join(", ")}`);
  if (alike.differs?.length) texts.push(`differs: ${alike.differs.slice(0, 2).map(([field, one, two]) => `${plain(field)} ${short(parsed(one), 30)} / ${short(parsed(two), 30)}`).join(", ")}`);
  return texts.join("; ") || hit.snippet || "";
}

function parsed(text) {
  try { return JSON.parse(text); } catch { return text; }
}

async function overview(signal) {
  const [, drift, recent, failed] = await Promise.all([
    readStatus(signal), get("drift", { limit: 6 }, signal), get("changes", { limit: 40 }, signal),
    get("objects", { where: FAILED, limit: 6 }, signal),
  ]);
  const broken = await Promise.all(failed.objects.map((each) => get(objectRoute(each), {}, signal).catch(() => each)));
  const absent = status.Observers.filter(([, state]) => state !== "up");
  const fact = (href, number, text, level) => el("a", { href, class: `fact ${level}` }, el("b", null, number.toLocaleString("en")), ` ${text}`);
  const nodes = [el("p", { class: "facts-line" },
    fact("#/drift", status.Drifted ?? 0, "drifted", status.Drifted ? "error" : "good"),
    fact(address("objects", { where: FAILED }), failed.total, "failed", failed.total ? "error" : "good"),
    fact("#/objects", status.Count, "objects", ""),
    fact("#/observers", absent.length, absent.length === 1 ? "observer absent" : "observers absent", absent.length ? "warning" : "good"),
    fact("#/serving", status.Pending ?? 0, "wait for vectors", "")),
  el("p", { class: "soft" }, "Try: ", ["what sends mail?", "what failed?", "what changed since yesterday?", "is this host as declared?", "which disks are full?"].map((each, n) => [n ? " · " : "", el("a", { href: address("ask", { q: each }) }, each)])),
  el("div", { class: "columns" },
    el("section", null, el("h2", null, el("a", { href: "#/drift" }, "Worst drift")), drift.drifts.length ? el("ul", { class: "plain" }, drift.drifts.map((each) => el("li", { class: `line ${each.severity}` }, el("span", { class: `chip ${each.severity}` }, each.severity), " ", link(each), " ", kindOf(each),
      el("p", { class: "soft" }, first(each.fields.map((field) => `${field.difference || `${field.path === "presence" ? "" : `${plain(field.path)} `}declared ${short(field.declared, 40) || "none"}, observed ${short(field.observed, 40) || "none"}`}${field.origin ? `, ${field.origin}` : ""}`), 2, "; "))))) : el("p", { class: "empty good" }, "None.")),
    el("section", null, el("h2", null, el("a", { href: "#/changes" }, "Latest changes")), changeList(linesOf(recent))))];
  if (broken.length) nodes.splice(2, 0, el("section", null, el("h2", null, el("a", { href: address("objects", { where: FAILED }) }, "Failed")), el("ul", { class: "plain" }, broken.map((each) => el("li", { class: "line" },
    link(each), " ", kindOf(each), el("p", { class: "soft" }, each.failed_at ? [time(each.failed_at / 1000), each.failed_why && `: ${short(each.failed_why, 300)}`] : null))))));
  return { title: "op-dbus", heading: "This host now", nodes, live: () => true };
}

// the map: points on a canvas, and the same objects as a table

function drawMap(data) {
  const total = data.name.length, xs = data.x.map((x) => x / 65535), ys = data.y.map((y) => y / 65535);
  const of = (row) => { const [plugin, ...kind] = data.kinds[data.kind[row]].split("/"); return { plugin, kind: kind.join("/"), name: data.name[row] }; };
  const mark = (row) => data.marks[row]?.[0] ?? "", rank = (row) => ["", "changed", "drifted"].indexOf(mark(row));
  const hay = data.name.map((name, row) => [name, data.kinds[data.kind[row]], data.text[row], data.states[data.state[row]], mark(row)].join("\n").toLowerCase());
  const order = [...xs.keys()].sort((a, b) => rank(a) - rank(b));
  let shown = new Set(order), scale = 1, left = 0, top = 0, least = 1, width = 1, height = 1, hovered = -1, first = 0, only = null, frame = 0;
  const canvas = el("canvas", { tabindex: 0, role: "img", "aria-label": "Objects as points, near where alike. The table below lists the same objects. Arrows move, plus and minus zoom, 0 shows all." });
  const card = el("div", { class: "card", hidden: true }), rows = el("div"), pages = el("p", { class: "pages" });
  const context = canvas.getContext("2d");
  const redraw = () => { frame ||= requestAnimationFrame(draw); };

  function draw() {
    frame = 0;
    const style = getComputedStyle(document.documentElement), colour = (name) => style.getPropertyValue(name).trim();
    const colours = [...Array(7).keys()].map((n) => colour(`--c${n}`)), text = colour("--text"), back = colour("--raised");
    const dense = Math.min(devicePixelRatio || 1, 2), r = Math.max(2, Math.min(5, Math.sqrt(width * height / total) * .13)) * Math.min(2, (scale / least) ** .4);
    context.setTransform(dense, 0, 0, dense, 0, 0);
    context.clearRect(0, 0, width, height);
    for (const row of order) {
      const x = xs[row] * scale + left, y = ys[row] * scale + top, what = mark(row);
      if (x < -9 || y < -9 || x > width + 9 || y > height + 9) continue;
      context.globalAlpha = shown.has(row) ? .9 : .08;
      context.beginPath();
      if (what === "drifted") [[0, -1.9], [1.9, 0], [0, 1.9], [-1.9, 0]].forEach(([dx, dy], n) => context[n ? "lineTo" : "moveTo"](x + dx * r, y + dy * r));
      else if (what === "changed") [[0, -1.7], [1.6, 1.2], [-1.6, 1.2]].forEach(([dx, dy], n) => context[n ? "lineTo" : "moveTo"](x + dx * r, y + dy * r));
      else context.arc(x, y, r, 0, 7);
      context.closePath();
      context.fillStyle = colours[data.colours[data.kind[row]]];
      context.fill();
      if (what) { context.lineWidth = 1.5; context.strokeStyle = text; context.stroke(); }
    }
    context.globalAlpha = shown.size < total ? .4 : 1;
    context.textAlign = "center";
    const taken = [];
    for (const [lx, ly, lines, size] of data.labels) {
      const px = Math.round(Math.max(11, Math.min(15, 8 + Math.log2(size + 1)))), name = lines.join(" ");
      context.font = `600 ${px}px system-ui, sans-serif`;
      const w = context.measureText(name).width + 8, x = lx / 65535 * scale + left, y = ly / 65535 * scale + top - r - 6;
      const x0 = Math.max(2, Math.min(x - w / 2, width - w - 2)), area = [x0, y - px, w, px + 6];
      if (x < 0 || x > width || y < px || y > height || w > width || taken.some((o) => area[0] < o[0] + o[2] && o[0] < area[0] + w && area[1] < o[1] + o[3] && o[1] < area[1] + area[3])) continue;
      taken.push(area);
      context.lineWidth = 4;
      context.lineJoin = "round";
      context.strokeStyle = back;
      context.strokeText(name, x0 + w / 2, y);
      context.fillStyle = text;
      context.fillText(name, x0 + w / 2, y);
    }
    context.globalAlpha = 1;
    if (hovered >= 0) { context.beginPath(); context.arc(xs[hovered] * scale + left, ys[hovered] * scale + top, r + 6, 0, 7); context.lineWidth = 2.5; context.strokeStyle = text; context.stroke(); }
  }
  function fit() {
    const [w, h] = data.size.map((each) => Math.max(each, 1e-6));
    scale = least = Math.min(width * .94 / w, (height - 50) / h);
    [left, top] = [(width - w * scale) / 2, 30 + (height - 50 - h * scale) / 2];
    redraw();
  }
  function zoom(by, x = width / 2, y = height / 2) {
    const now = Math.max(least * .6, Math.min(least * 60, scale * by));
    [left, top, scale] = [x - (x - left) * now / scale, y - (y - top) * now / scale, now];
    card.hidden = true;
    redraw();
  }
  function pan(dx, dy) { left += dx; top += dy; card.hidden = true; redraw(); }
  function nearest(x, y, within) {
    let best = within * within, found = -1;
    for (const row of shown) {
      const far = (xs[row] * scale + left - x) ** 2 + (ys[row] * scale + top - y) ** 2;
      if (far < best) [best, found] = [far, row];
    }
    return found;
  }
  function hover(row) {
    if (row === hovered) return;
    hovered = row;
    card.hidden = row < 0;
    redraw();
    if (row < 0) return;
    card.replaceChildren(el("b", null, data.name[row]), el("p", null, data.text[row]), el("p", { class: "soft" }, [data.kinds[data.kind[row]], data.states[data.state[row]], (data.marks[row] ?? []).join(": ")].filter(Boolean).join(" · ")));
    const x = xs[row] * scale + left, y = ys[row] * scale + top;
    card.style.left = `${Math.max(4, Math.min(x + 14, width - card.offsetWidth - 4))}px`;
    card.style.top = `${Math.max(4, Math.min(y + 14, height - card.offsetHeight - 4))}px`;
  }
  const pointers = new Map();
  let moved = 0;
  const place = (event) => [event.offsetX, event.offsetY];
  const on = (name, handler, options) => canvas.addEventListener(name, handler, options);
  on("pointerdown", (event) => { canvas.setPointerCapture(event.pointerId); pointers.set(event.pointerId, place(event)); moved = pointers.size > 1 ? 99 : 0; });
  on("pointermove", (event) => {
    const [x, y] = place(event), before = pointers.get(event.pointerId);
    if (!before) { if (event.pointerType === "mouse") hover(nearest(x, y, 12)); return; }
    const other = [...pointers].find(([id]) => id !== event.pointerId)?.[1];
    pointers.set(event.pointerId, [x, y]);
    moved += Math.hypot(x - before[0], y - before[1]);
    if (moved < 5) return;
    pan((x - before[0]) / (other ? 2 : 1), (y - before[1]) / (other ? 2 : 1));
    if (other) zoom(Math.hypot(x - other[0], y - other[1]) / Math.max(1, Math.hypot(before[0] - other[0], before[1] - other[1])), (x + other[0]) / 2, (y + other[1]) / 2);
  });
  on("pointerup", (event) => {
    pointers.delete(event.pointerId);
    if (moved > 4) return;
    const row = nearest(...place(event), event.pointerType === "mouse" ? 12 : 26);
    // a finger cannot hover: its first touch shows what it is
    if (row >= 0 && (event.pointerType === "mouse" || row === hovered)) location.hash = objectAddress(of(row));
    else hover(row);
  });
  on("pointercancel", (event) => pointers.delete(event.pointerId));
  on("pointerleave", () => hover(-1));
  on("wheel", (event) => { event.preventDefault(); zoom(Math.exp(-event.deltaY * (event.deltaMode ? .05 : .0016)), ...place(event)); }, { passive: false });
  on("keydown", (event) => {
    const moves = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] }[event.key];
    if (moves) pan(...moves);
    else if (["+", "="].includes(event.key)) zoom(1.4);
    else if (event.key === "-") zoom(1 / 1.4);
    else if (event.key === "0") fit();
    else return;
    event.preventDefault();
  });
  new ResizeObserver(() => {
    const dense = Math.min(devicePixelRatio || 1, 2);
    [width, height] = [canvas.clientWidth || 1, canvas.clientHeight || 1];
    [canvas.width, canvas.height] = [width * dense, height * dense];
    fit();
  }).observe(canvas);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

  const size = 50, query = el("input", { type: "search", oninput: () => filter(), placeholder: "name, text, kind or state", autocomplete: "off" });
  const legend = el("div", { class: "legend", role: "group", "aria-label": "Show only" }, data.legend.map(([text, many, key]) => el("button", { type: "button", "aria-pressed": "false", onclick: (event) => {
    only = only === key ? null : key;
    for (const each of legend.children) each.setAttribute("aria-pressed", String(each === event.currentTarget && only !== null));
    filter();
  } }, el("span", { class: `sign ${typeof key === "number" ? `c${key}` : key}` }), text, el("small", null, ` ${many.toLocaleString("en")}`))));
  function filter() {
    const words = query.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
    const isKey = (row) => only === null || (typeof only === "number" ? data.colours[data.kind[row]] === only : mark(row) === only);
    shown = new Set(order.filter((row) => isKey(row) && words.every((word) => hay[row].includes(word))));
    first = 0;
    list();
    say(count(shown.size, "object"));
    redraw();
  }
  function list() {
    const all = [...shown].reverse(), part = all.slice(first, first + size);
    rows.replaceChildren(table("Objects of the map", ["Object", "Text"], part.map((row) => el("tr", null, el("th", { scope: "row" }, link(of(row)), " ", kindOf(of(row)), mark(row) ? el("span", { class: `chip ${mark(row) === "drifted" ? "error" : ""}` }, mark(row)) : null), el("td", null, data.text[row])))));
    const step = (to, text) => el("button", { type: "button", onclick: () => { first = to; list(); } }, text);
    pages.replaceChildren(...[first > 0 && step(first - size, "Previous"), ` ${all.length ? first + 1 : 0} to ${first + part.length} of ${all.length.toLocaleString("en")} `, first + size < all.length && step(first + size, "Next")].filter(Boolean));
  }
  list();
  const buttons = el("div", { class: "zoom" }, [["+", "Zoom in", () => zoom(1.5)], ["−", "Zoom out", () => zoom(1 / 1.5)], ["⤢", "Show all", fit]].map(([text, label, act]) => el("button", { type: "button", "aria-label": label, onclick: act }, text)));
  return [el("p", { class: "soft" }, data.about), legend, el("div", { class: "map" }, canvas, buttons, card), el("form", { class: "filter", onsubmit: (event) => event.preventDefault() }, el("label", { class: "grow" }, "Find on the map", query)), rows, pages];
}

// the daemon's state, and what to do while it is away

let status = null, isAway = false, pause = 500, retryTimer = 0;

async function readStatus(signal) {
  status = await get("status", {}, signal);
  const absent = status.Observers.filter(([, state]) => state !== "up").length;
  find("drifted").textContent = status.Drifted ? ` ${status.Drifted}` : "";
  find("fleet").hidden = !status.Fleet;
  find("missing").textContent = absent ? ` ${absent} absent` : "";
  return status;
}

function goAway(why) {
  if (!isAway) {
    isAway = true;
    pause = 500;
    notice.hidden = false;
  }
  const text = `op-dbus does not answer; trying again. (${why})`;
  if (notice.textContent !== text) notice.textContent = text;
  clearTimeout(retryTimer);
  retryTimer = setTimeout(comeBack, pause);
  pause = Math.min(4000, pause * 1.6);
}

async function comeBack() {
  clearTimeout(retryTimer);
  try {
    await readStatus();
  } catch (error) {
    goAway(error.message);
    return;
  }
  isAway = false;
  notice.hidden = true;
  notice.textContent = "";
  say("op-dbus answers again");
  render(true);
}

setInterval(() => {
  if (!document.hidden && !isAway) readStatus().catch((error) => error instanceof Away && goAway(error.message));
}, STATUS_MS);

// changes as they come

let stream = null, lastRow = 0, current = {}, renderTimer = 0, drawTimer = 0, refreshTimer = 0, hiddenTimer = 0;

function scheduleDraw(draw) {
  clearTimeout(drawTimer);
  drawTimer = setTimeout(draw, 150);
}

function listen() {
  if (stream) return;
  const own = stream = new EventSource(`changes/stream${lastRow ? `?after=${lastRow}` : ""}`);
  const take = (event) => {
    lastRow = Number(event.lastEventId) || lastRow;
    const change = JSON.parse(event.data);
    current.onChange?.(change);
    if (current.live?.(change)) renderSoon();
    if (["drift", "healed", "intended", "undeclared"].includes(change.what)) readStatus().catch(() => {});
  };
  own.addEventListener("change", take);
  own.addEventListener("drift", take);
  own.addEventListener("gap", () => renderSoon());
  own.addEventListener("daemon", (event) => {
    const { serving, why } = JSON.parse(event.data);
    if (serving) comeBack();
    else goAway(why);
  });
  own.addEventListener("error", () => {
    if (own.readyState !== EventSource.CLOSED || stream !== own) return;
    stream = null;
    setTimeout(listen, 3000);
  });
}

function renderSoon() {
  clearTimeout(renderTimer);
  // what somebody reads or has opened stays as it is
  renderTimer = setTimeout(() => { if (!main.querySelector("details[open]")) render(true); }, 700);
}

document.addEventListener("visibilitychange", () => {
  clearTimeout(hiddenTimer);
  if (!document.hidden) {
    listen();
    if (!isAway) readStatus().catch((error) => error instanceof Away && goAway(error.message));
  } else hiddenTimer = setTimeout(() => { stream?.close(); stream = null; }, 60000);
});

// showing a view

let asking = null;

async function render(isQuiet = false) {
  asking?.abort();
  clearTimeout(refreshTimer);
  const own = asking = new AbortController(), at = readAddress(), view = views[at.view];
  main.setAttribute("aria-busy", "true");
  for (const each of document.querySelectorAll("nav a")) {
    const isHere = each.getAttribute("href") === (at.view === "ask" && !at.query.get("q") ? "#/" : `#/${at.view}`);
    if (isHere) each.setAttribute("aria-current", "page");
    else each.removeAttribute("aria-current");
  }
  let made;
  try {
    if (!view) throw new Refused(`there is no view ${at.view}`);
    if (!status) await readStatus(own.signal);
    made = await view(at, own.signal);
  } catch (error) {
    // a newer question has taken its place
    if (own.signal.aborted) return;
    if (error instanceof Away) {
      goAway(error.message);
      return;
    }
    if (!(error instanceof Refused)) console.error(error);
    made = { title: "Not answered", heading: "Not answered", nodes: [el("p", { class: "box error" }, error.message)] };
  }
  if (own.signal.aborted) return;
  const focused = main.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  const heading = el("h1", { tabindex: -1, class: made.isUnseen && "unseen" }, made.heading);
  main.replaceChildren(heading, ...made.nodes.filter(Boolean));
  main.setAttribute("aria-busy", "false");
  document.title = made.title === "op-dbus" ? "op-dbus" : `${made.title} – op-dbus`;
  current = made;
  if (made.refresh) refreshTimer = setTimeout(() => (document.hidden ? null : render(true)), made.refresh);
  if (!isQuiet) {
    scrollTo(0, 0);
    heading.focus({ preventScroll: true });
  } else if (focused) [...main.querySelectorAll("a")].find((each) => each.getAttribute("href") === focused)?.focus({ preventScroll: true });
}

// The first letter asks at once. The next ones ask when the answer before is shown, or after a pause.
let typing = 0, isShowing = null;

async function ask() {
  clearTimeout(typing);
  typing = 0;
  const to = address("ask", { q: box.value.trim() });
  if (location.hash === to) return;
  // one step back leaves the question, not its last letter
  history[readAddress().view === "ask" && readAddress().query.get("q") ? "replaceState" : "pushState"](null, "", to);
  const own = isShowing = {};
  await render(true);
  if (isShowing !== own) return;
  isShowing = null;
  if (typing) ask();
}

box.addEventListener("input", () => {
  clearTimeout(typing);
  if (isShowing) typing = setTimeout(ask, TYPING_MS);
  else ask();
});
find("form").addEventListener("submit", (event) => {
  event.preventDefault();
  ask();
});
addEventListener("hashchange", () => {
  const at = readAddress();
  if (document.activeElement !== box) box.value = at.view === "ask" ? at.query.get("q") ?? "" : "";
  render();
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
addEventListener("keydown", (event) => {
  const isField = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (event.key === "/" && !isField && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    box.focus();
    box.select();
  } else if (["ArrowDown", "ArrowUp"].includes(event.key) && (event.target === box || event.target.matches(".hit a.object"))) {
    const stops = [box, ...main.querySelectorAll(".hit a.object")], to = stops[stops.indexOf(event.target) + (event.key === "ArrowDown" ? 1 : -1)];
    if (!to) return;
    event.preventDefault();
    to.focus();
  }
});

const start = readAddress();
if (start.view === "ask") box.value = start.query.get("q") ?? "";
render(true).then(listen);

export { SEVERITIES, SPANS, address, age, breakable, choice, count, el, entry, first, format, get, parsed, plain, say, short, table, time };
