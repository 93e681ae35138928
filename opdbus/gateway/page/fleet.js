// The view of a fleet: many hosts in one database. page.js loads it when somebody looks at it.

import { SEVERITIES, SPANS, address, age, breakable, choice, count, el, entry, first, format, get, parsed, plain, say, short, table, time } from "./page.js";

const PARTS = [["", "Hosts"], ["changes", "What changed"], ["drift", "Drift"], ["odd", "Odd hosts"], ["missing", "What is missing"], ["compare", "Compare two"]];
const NAMED = 5, ROWS = 200;

const to = (part, parameters) => address(part ? `fleet/${part}` : "fleet", parameters);
const hostLink = (name) => el("a", { href: to(`host/${encodeURIComponent(name)}`), class: "object" }, breakable(name));
const partOf = ({ plugin, kind, name }) => `object/${[plugin, kind, name].map(encodeURIComponent).join("/")}`;
const nameLink = (of) => el("a", { href: to(partOf(of)), class: "object" }, breakable(of.name));
const objectLink = (of) => [nameLink(of), " ", el("small", { class: "kind" }, `${of.plugin}/${of.kind}`)];
const links = (names) => names.map((name, n) => [n ? ", " : "", hostLink(name)]);
const chip = (text, level) => el("span", { class: `chip ${level ?? ""}` }, text);
const note = (text) => el("p", { class: "soft" }, text);
const empty = (text, level = "") => el("p", { class: `empty ${level}` }, text);
const section = (title, ...children) => el("section", null, el("h2", null, title), children);
const list = (rows, row) => el("ul", { class: "plain" }, rows.map((each) => el("li", { class: "line" }, row(each))));
const ago = (seconds) => (seconds === null ? "never" : el("span", { title: new Date(1000 * seconds).toLocaleString() }, age(1000 * seconds)));

// the hosts that have something: in words, with all names below if there are more than the words have
function whereNode({ words, on, not_on: others }) {
  if (on.length + others.length <= NAMED) return el("span", { class: "soft" }, words);
  return el("details", null, el("summary", null, words), el("p", null, "On: ", on.length ? links(on) : "no host"), others.length ? el("p", null, "Not on: ", links(others)) : null);
}

function valueText({ value, hosts }) {
  const text = value === "" ? "not there" : short(parsed(value), 120) || "(empty)";
  return [el("code", null, text), ` on ${hosts.length > NAMED ? count(hosts.length, "host") : hosts.join(", ")}`];
}

// values with the hosts that have each; one alone needs no hosts
const valueTexts = (values) => (values.length === 1 ? el("code", null, values[0].value === "" ? "none" : short(parsed(values[0].value), 120)) : values.map((each, n) => [n ? "; " : "", valueText(each)]));

function differing({ field, values, distinct }) {
  const more = distinct - values.length;
  return el("p", { class: "why" }, el("b", null, plain(field)), ": ", values.map((each, n) => [n ? "; " : "", valueText(each)]), more > 0 && ` and ${more} other values`);
}

function head({ headline, remarks }) {
  return el("p", { class: "soft" }, headline, remarks.map((each) => [" ", chip(each, "warning")]));
}

// A form whose fields are the parameters of an address.
function form(part, ...fields) {
  const submit = (event) => {
    event.preventDefault();
    location.hash = to(part, Object.fromEntries(new FormData(event.currentTarget)));
  };
  return el("form", { class: "filter", onsubmit: submit }, fields, el("button", null, "Show"));
}

const scope = (at) => ({ host: at.query.get("host") ?? "", tag: at.query.get("tag") ?? "" });
const scopeFields = (at) => [entry("Host", "host", scope(at).host, "web*"), entry("Tag", "tag", scope(at).tag, "web")];

// answers as rows

function hitRow({ found }) {
  const several = found.texts.length > 1;
  return [objectLink(found.object_id), found.alike > 1 && ` and ${found.alike - 1} alike`, whereNode(found.where),
    found.texts.slice(0, NAMED).map(({ text, where }) => el("p", null, short(text.split("\n")[0], 260), several && el("span", { class: "soft" }, ` (${where.words})`))), found.differing.map(differing)];
}

function changeRow(each) {
  const at = each.words.indexOf(each.object_id.name), name = nameLink(each.object_id);
  const words = at < 0 ? [name, ": ", each.words] : [each.words.slice(0, at), name, each.words.slice(at + each.object_id.name.length)];
  return el("li", { class: "change" }, time(each.last / 1000), el("div", { class: `key ${each.what}${each.severity ? ` ${each.severity}` : ""}` }, words,
    each.count > 1 && each.by.length ? ` by ${first(each.by, 3)}` : null, each.count > each.where.on.length && `, ${each.count} times`, each.last - each.first >= 1e6 && [" since ", time(each.first / 1000)], " ", whereNode(each.where)));
}

const changeList = ({ changes, asked }) => (changes.length ? el("ol", { class: "changes" }, (asked.words ? changes : [...changes].reverse()).map(changeRow)) : empty("No change matches."));

function driftRow(each) {
  return el("li", { class: `drift ${each.severity}` }, el("div", null, objectLink(each.object_id), " ", chip(each.severity, each.severity), whereNode(each.where)),
    el("div", null, each.fields.map((field) => el("p", null, el("b", null, plain(field.field)), " declared ", valueTexts(field.declared), ", observed ", valueTexts(field.observed)))));
}

const driftList = ({ drift }) => (drift.length ? el("ol", { class: "drifts" }, drift.map(driftRow)) : empty("No host drifted.", "good"));

function oddityRow(each) {
  const name = objectLink(each.object_id), part = `${each.what === "missing" ? each.agreeing : each.having} of ${each.total}`;
  if (each.what === "missing") return ["not there: ", name, ` (${part} have it)`];
  if (each.what === "extra") return [name, ` (on ${part})`];
  return [name, ` is otherwise on ${part}`, each.fields.map(differing)];
}

function oddHost({ name, score, stands_out: standsOut, counts, oddities }) {
  const total = Object.values(counts).reduce((sum, one) => sum + one, 0), more = total - oddities.length;
  return el("section", { class: `box ${standsOut ? "warning" : ""}` }, el("h2", { class: "name" }, hostLink(name), el("small", null, ` ${count(Math.round(score), "bit")}, ${count(total, "object")}`), standsOut ? [" ", chip("stands out", "warning")] : null),
    list(oddities, oddityRow), more > 0 && note(`and ${more} more`));
}

const missingList = ({ missing, total }) => (missing.length ? [list(missing, (each) => [objectLink(each.object_id), whereNode(each.where)]), total > missing.length && note(`and ${total - missing.length} more`)] : empty("Nothing that most hosts have is missing.", "good"));

function hostTable(hosts) {
  const chosen = new Set(), button = el("button", { type: "button", disabled: true, onclick: () => { const [one, two] = chosen; location.hash = to("compare", { first: one, second: two }); } }, "Compare the two chosen");
  const choose = (event) => {
    chosen[event.currentTarget.checked ? "add" : "delete"](event.currentTarget.value);
    button.disabled = chosen.size !== 2;
  };
  const rows = hosts.slice(0, ROWS).map((each) => el("tr", null,
    el("td", null, el("input", { type: "checkbox", value: each.name, onchange: choose, "aria-label": `Choose ${each.name} to compare` })),
    el("th", { scope: "row" }, hostLink(each.name)), el("td", null, each.tags.map((tag, n) => [n ? ", " : "", el("a", { href: to("", { tag }) }, tag)])),
    el("td", null, ago(each.seen_at), each.is_silent ? [" ", chip("silent", "error")] : null), el("td", null, ago(each.current_at)),
    el("td", { class: "number" }, each.objects.toLocaleString("en")), el("td", { class: "number" }, each.drifted.toLocaleString("en")), el("td", null, each.findings.map((text) => el("p", null, text)))));
  return [table("Hosts", ["Compare", "Host", "Tags", "Seen", "State of", "Objects", "Drifted", "Faults"], rows), hosts.length > ROWS && note(`and ${hosts.length - ROWS} more: name a host or a tag`), el("p", null, button)];
}

// an answer that may come later, and be refused, as of two hosts that have no usual state
function later(asked, show) {
  const place = el("div", null, note("Loading."));
  asked.then(show, (error) => note(error.message)).then((made) => place.replaceChildren(...[made].flat(2).filter(Boolean)));
  return place;
}

const parts = {
  async hosts(at, signal) {
    const q = (at.query.get("q") ?? "").trim();
    const ask = form("", entry("Ask all hosts", "q", q, "openssh, state:failed tag:web, version<9", true), scopeFields(at));
    if (q) {
      const limit = Number(at.query.get("n")) || 20, answer = await get("fleet/search", { q, ...scope(at), limit }, signal);
      say(`${count(answer.total, "object")} for ${q}`);
      return [ask, head(answer.hosts), note(count(answer.total, "object")), answer.notes.map(note), answer.verdict && note(answer.verdict), answer.corrected.map(({ asked, meant }) => note(`${asked} was looked for as ${meant}`)),
        answer.hits.length ? list(answer.hits, hitRow) : empty("Nothing fits on these hosts."), answer.total > answer.hits.length && el("p", null, el("a", { href: to("", { q, ...scope(at), n: 3 * limit }) }, "More"))];
    }
    // to find the odd ones takes a second for hundreds of hosts
    const odd = later(get("fleet/odd", { ...scope(at), limit: 5, objects: 3 }, signal), (answer) => (answer.odd.length ? answer.odd.map(oddHost) : empty("All are alike.", "good")));
    const changes = later(get("fleet/changes", { ...scope(at), since: "-24h", limit: 20 }, signal), changeList);
    const { hosts } = await get("fleet/hosts", scope(at), signal);
    const fact = (number, text, level) => el("span", { class: `fact ${number ? level : "good"}` }, el("b", null, number.toLocaleString("en")), ` ${text}`);
    return [ask, el("p", { class: "facts-line" }, fact(hosts.length, hosts.length === 1 ? "host" : "hosts", ""), fact(hosts.filter((each) => each.is_silent).length, "silent", "error"), fact(hosts.filter((each) => each.findings.length).length, "with faults", "warning"), fact(hosts.filter((each) => each.drifted).length, "drifted", "error")),
      hostTable(hosts), el("div", { class: "columns" }, section(el("a", { href: to("odd", scope(at)) }, "Odd hosts"), odd), section(el("a", { href: to("changes", scope(at)) }, "What changed in a day"), changes))];
  },

  async host(at, signal) {
    const name = at.parts[1], only = { host: name };
    const missing = later(get("fleet/missing", { of: name, limit: 20 }, signal), missingList);
    const [{ hosts }, changes, drift] = await Promise.all([get("fleet/hosts", only, signal), get("fleet/changes", { ...only, limit: 50 }, signal), get("fleet/drift", only, signal)]);
    return [hostTable(hosts).slice(0, 1), el("p", null, el("a", { href: to("compare", { first: name }) }, "Compare it with another host")), section("Drift", driftList(drift)), section("What most others have and it lacks", missing), section("What changed", changeList(changes))];
  },

  async changes(at, signal) {
    const about = at.query.get("about") ?? "", span = at.query.get("since") ?? "24h";
    const answer = await get("fleet/changes", { about, ...scope(at), since: span && span !== "all" && `-${span}`, limit: 200 }, signal);
    say(count(answer.total, "change"));
    return [form("changes", entry("About", "about", about, "name resolution", true), scopeFields(at), choice("Since", "since", SPANS.map(([key, text]) => [key || "all", text]), span)), head(answer.hosts),
      answer.listed ? note(`${count(answer.listed, "object")} were listed for the first time on ${count(answer.listed_on.length, "host")}`) : null, answer.is_cut && note("Older changes were not read: choose a shorter time."), changeList(answer)];
  },

  async drift(at, signal) {
    const severity = at.query.get("severity") || "info", answer = await get("fleet/drift", { severity, ...scope(at), limit: 200 }, signal);
    say(count(answer.total, "drifted object"));
    return [form("drift", choice("Severity", "severity", [...SEVERITIES].reverse().map((each) => [each, each === "error" ? each : `${each} or worse`]), severity), scopeFields(at)), head(answer.hosts), note(`${count(answer.total, "object")} on ${count(answer.drifted.length, "host")}`), driftList(answer)];
  },

  async odd(at, signal) {
    const answer = await get("fleet/odd", { ...scope(at), limit: 20 }, signal);
    say(count(answer.odd.length, "odd host"));
    return [form("odd", scopeFields(at)), head(answer.hosts), note(`${count(answer.standing_out, "host stands", "hosts stand")} out; the median host has ${count(Math.round(answer.usual), "bit")}. The rarer what a host has, or lacks where most agree, the more bits.`), answer.odd.length ? answer.odd.map(oddHost) : empty("All are alike.", "good")];
  },

  async missing(at, signal) {
    const of = at.query.get("of") ?? "", answer = await get("fleet/missing", { of, ...scope(at), limit: 200 }, signal);
    say(count(answer.total, "object"));
    return [form("missing", entry("On host", "of", of, "any"), entry("Peers' tag", "tag", scope(at).tag, "web")), head(answer.hosts), note("What most of these hosts have, and some lack."), missingList(answer)];
  },

  async compare(at, signal) {
    const [one, two] = ["first", "second"].map((key) => at.query.get(key) ?? ""), kind = at.query.get("kind") ?? "";
    const names = (await get("fleet/hosts", {}, signal)).hosts.map((each) => each.name).sort();
    const options = ["", ...names].map((name) => [name, name || "choose"]);
    const ask = form("compare", choice("Host", "first", options, one), choice("With", "second", options, two), entry("Kind or plugin", "kind", kind, "package"));
    if (!one || !two) return [ask, empty("Choose two hosts.")];
    const answer = await get("fleet/compare", { first: one, second: two, kind }, signal);
    say(count(answer.kinds.length, "kind differs", "kinds differ"));
    const cell = (text) => el("td", { class: text === "" ? "none" : "" }, text === "" ? "—" : short(parsed(text), 200));
    const rowsOf = (each) => (each.where === "both" ? each.fields : [{ field: "", first: each.where === "first" ? '"there"' : "", second: each.where === "second" ? '"there"' : "" }])
      .map((field) => el("tr", null, el("th", { scope: "row" }, nameLink(each.object_id), each.other && ` / ${each.other}`, field.field && [" ", el("span", { class: "soft" }, breakable(plain(field.field)))]), cell(field.first), cell(field.second)));
    return [ask, head(answer.hosts), note(`${answer.equal.toLocaleString("en")} objects are equal, ${answer.identities.toLocaleString("en")} differ in identities only, such as addresses.`), answer.kinds.length ? null : empty("They do not differ.", "good"),
      answer.kinds.map(({ plugin, kind: own, counts, differences }) => {
        const total = Object.values(counts).reduce((sum, each) => sum + each, 0), title = `${plugin}/${own}`;
        return el("section", null, el("h2", { class: "name" }, title, el("small", null, ` ${count(total, "object")}`)), table(title, ["Object", answer.first, answer.second], differences.map(rowsOf), { class: "sides" }), total > differences.length && note(`and ${total - differences.length} more`));
      })];
  },

  async object(at, signal) {
    const [, plugin, kind, ...rest] = at.parts, of = { plugin, kind, name: rest.join("/") }, name = `${plugin}/${kind}/${of.name}`, when = at.query.get("at") ?? "";
    const answer = await get("fleet/object", { name, at: when, ...scope(at) }, signal), most = answer.states[0];
    return [form(partOf(of), entry("As it was", "at", when, "now, yesterday, -2h"), scopeFields(at)), head(answer.hosts), el("p", null, el("b", null, name), " ", whereNode(answer.where)),
      answer.not_reaching.length ? note(`The history of ${first(answer.not_reaching, NAMED)} does not go back so far.`) : null,
      answer.differing.length ? section("Hosts differ in", answer.differing.map(differing)) : null,
      most ? section(answer.total === 1 ? "All have" : ["Most have", el("small", null, ` ${count(most.hosts.length, "host")}, of ${count(answer.total, "state")}`)], table(`Fields of ${name}`, ["Field", "Value"], Object.entries(most.state).map(([field, value]) => el("tr", null, el("th", { scope: "row" }, breakable(field)), el("td", null, short(format(value), 600)))), { class: "sides" })) : null];
  },
};

export default async function fleet(at, signal) {
  const part = at.parts[0] || "", show = parts[part || "hosts"];
  const title = part === "host" ? at.parts[1] : part === "object" ? at.parts.slice(3).join("/") : PARTS.find(([key]) => key === part)?.[1];
  if (!show || !title) return { title: "Fleet", heading: "Fleet", nodes: [el("p", { class: "box error" }, `there is no view fleet/${part}`)] };
  const tabs = el("nav", { class: "parts", "aria-label": "Parts of the fleet" }, PARTS.map(([key, text]) => el("a", { href: to(key), "aria-current": key === part && "page" }, text)));
  return { title: `Fleet: ${(!part && at.query.get("q")) || title}`, heading: part ? `Fleet: ${title}` : "Fleet", nodes: [tabs, ...(await show(at, signal)).flat(3)] };
}
