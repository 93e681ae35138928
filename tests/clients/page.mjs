// Drives the page in Chromium: `node page.mjs LINK MODULES`, where MODULES/node_modules has
// playwright-core and axe-core. Writes one JSON line a step, and waits for a line on stdin where
// the test has to act first. The page's policy is in force, except where axe-core is inserted.
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

// nothing waits for ever
setTimeout(() => process.exit(3), 280_000);
const [link, modules] = process.argv.slice(2);
const require = createRequire(`${modules}/`);
const { chromium } = require("playwright-core");
const axe = require.resolve("axe-core");
const VIEWS = ["/", "/ask?q=what+sends+mail%3F", "/ask?q=is+this+host+as+declared%3F", "/drift", "/changes", "/objects", "/map", "/serving",
  "/observers", "/object/systemd/unit/postfix.service", "/no-such-view"];
const SIZES = { light: { width: 1280, height: 800 }, dark: { width: 1280, height: 800 }, phone: { width: 360, height: 740 } };

const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const say = (step, value) => console.log(JSON.stringify({ step, value }));
const wait = async (step) => { say(step, true); await lines.next(); };
const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox"] });
const context = await browser.newContext({ viewport: SIZES.light });
const faults = [];

// Times of inputs and of painted answers, points that the map draws, and breaches of the policy.
await context.addInitScript(() => {
  Object.assign(window, { inputs: [], paints: [], points: 0, breaches: [] });
  addEventListener("securitypolicyviolation", (event) => window.breaches.push(`${event.violatedDirective} ${event.blockedURI}`));
  addEventListener("input", (event) => window.inputs.push(event.timeStamp), true);
  addEventListener("DOMContentLoaded", () => document.querySelector("main") && new MutationObserver(() => {
    const first = document.querySelector("main .hit a.object")?.textContent, title = document.title;
    // after the frame that has it
    if (first) requestAnimationFrame(() => setTimeout(() => window.paints.push({ title, first, at: performance.now() })));
  }).observe(document.querySelector("main"), { childList: true }));
  const { clearRect, fill } = CanvasRenderingContext2D.prototype;
  CanvasRenderingContext2D.prototype.clearRect = function clear(...area) { window.points = 0; clearRect.apply(this, area); };
  CanvasRenderingContext2D.prototype.fill = function count(...rule) { window.points += 1; fill.apply(this, rule); };
});

const page = await context.newPage();
page.on("pageerror", (error) => faults.push(error.message));
const main = (text) => page.locator("main", { hasText: text });
await page.goto(link);
await page.locator(".facts-line").waitFor();
const base = page.url().split("#")[0];
say("link", base);

// A view is shown when its heading is, and nothing is being asked for.
const HEADINGS = { drift: "Drift", changes: "Changes", objects: "Objects", map: "Map", serving: "What serves", observers: "Observers", "": "This host now" };
const show = async (on, view) => {
  await on.goto(`${base}#/serving`);
  await on.goto(`${base}#${view}`);
  const name = view.slice(1);
  const heading = name.startsWith("ask") ? "Answers to" : name.startsWith("object/") ? name.split("/").at(-1) : HEADINGS[name] ?? "Not answered";
  await on.locator("main h1", { hasText: heading }).waitFor({ timeout: 30000 });
  await on.locator("main[aria-busy=false]").waitFor();
};

// from the input to the painted answer
const began = () => page.evaluate(() => Object.assign(window, { inputs: [], paints: [] }) && null);
const painted = async (question) => {
  await page.waitForFunction((wanted) => window.paints.some((each) => each.title.startsWith(`${wanted} `)), question);
  return page.evaluate((wanted) => {
    const { first, at } = window.paints.find((each) => each.title.startsWith(`${wanted} `));
    return { first, fromFirstKey: Math.round(window.paints[0].at - window.inputs[0]), fromLastKey: Math.round(at - window.inputs.at(-1)) };
  }, question);
};
const answers = [], requested = [];
page.on("request", (request) => requested.push(new URL(request.url())));
for (const question of ["what sends mail?", "name resolution", "backup"]) {
  await show(page, "/");
  await page.keyboard.press("/");
  await began();
  await page.keyboard.insertText(question);
  answers.push({ question, how: "pasted", ...await painted(question) });
  await page.fill("#box", "");
  await page.locator("main h1", { hasText: "This host now" }).waitFor();
  await page.locator("main[aria-busy=false]").waitFor();
  await began();
  requested.length = 0;
  await page.keyboard.type(question, { delay: 90 });
  answers.push({ question, how: "typed", ...await painted(question), asked: requested.filter((url) => url.pathname.endsWith("/ask")).map((url) => url.searchParams.get("q")) });
}
say("answers", answers);

// by keys alone: a question, its first hit, the object
await show(page, "/");
await page.keyboard.press("/");
await page.keyboard.insertText("what sends mail?");
await page.locator(".hit a.object", { hasText: "postfix.service" }).first().waitFor();
await page.keyboard.press("ArrowDown");
await page.keyboard.press("Enter");
await page.locator("table.sides").waitFor();
say("sides", await page.locator("table.sides tbody tr").evaluateAll((rows) => rows.map((row) => [row.querySelector("th").firstChild.textContent, ...[...row.querySelectorAll("td")].map((cell) => cell.textContent)])));
await page.locator("main section", { hasText: "History" }).locator("li.change").first().waitFor();
say("history", await page.locator("main section", { hasText: "History" }).locator("li.change").evaluateAll((rows) => rows.map((row) => row.textContent)));
await show(page, "/drift");
say("drift", await page.locator(".drift").evaluateAll((rows) => rows.map((row) => row.textContent)));
await show(page, "/map");
await page.waitForFunction(() => window.points > 1);
const points = await page.evaluate(() => window.points);
say("map", { points, text: await page.locator("p.pages").innerText() });
await page.locator(".map canvas").focus();
for (const key of ["+", "+", "+", "+"]) await page.keyboard.press(key);
await page.waitForFunction((all) => window.points < all, points);
await page.keyboard.press("0");
await page.waitForFunction((all) => window.points === all, points);
say("map by keys", true);
const asked = async (text) => {
  await show(page, `/ask?q=${encodeURIComponent(text)}`);
  return page.innerText("main");
};
for (const text of ["enabled=true kind=unit", "used_percent>50", "no_such_field=1 mail"]) say("condition", await asked(text));
say("vectors", await asked("what computes the vectors?"));

// a page of another origin: of another site, and of another port of this one
const foreign = createServer((_, answer) => answer.setHeader("Content-Type", "text/html").end("<!doctype html><title>foreign</title><h1>foreign</h1>"));
await new Promise((done) => foreign.listen(0, "127.0.0.1", done));
const seen = [];
for (const host of ["localhost", "127.0.0.1"]) {
  const other = await context.newPage();
  const statuses = [];
  other.on("response", (answer) => answer.url().startsWith(base) && statuses.push(answer.status()));
  await other.goto(`http://${host}:${foreign.address().port}/`);
  const read = await other.evaluate(async (of) => {
    const tries = {
      get: () => fetch(`${of}status`, { credentials: "include" }),
      post: () => fetch(`${of}add`, { method: "POST", credentials: "include", headers: { "Content-Type": "application/json" }, body: "[]" }),
      form: () => fetch(`${of}add`, { method: "POST", mode: "no-cors", credentials: "include", body: "x" }),
      opaque: () => fetch(`${of}status`, { mode: "no-cors", credentials: "include" }),
    };
    const found = {};
    for (const [name, start] of Object.entries(tries)) found[name] = await start().then((answer) => answer.text(), () => "refused");
    const load = (tag) => new Promise((done) => { const made = Object.assign(document.createElement(tag), { src: `${of}page.js`, type: "module" }); made.onload = () => done("loaded"); made.onerror = () => done("refused"); document.head.append(made); });
    found.script = await load("script");
    const frame = document.body.appendChild(Object.assign(document.createElement("iframe"), { src: of }));
    await new Promise((done) => { frame.onload = done; });
    try { found.frame = frame.contentDocument.body.innerText; } catch { found.frame = "refused"; }
    return found;
  }, base);
  const [popup] = await Promise.all([other.waitForEvent("popup"), other.evaluate((of) => void window.open(of), base)]);
  await popup.waitForLoadState();
  seen.push({ host, read, statuses, popup: await popup.innerText("body") });
  await popup.close();
  await other.close();
}
foreign.close();
say("foreign", seen);
const again = await context.newPage();
const replayed = await again.goto(link);
say("replayed", { status: replayed.status(), text: await replayed.text() });
await again.close();
const stranger = await browser.newContext();
const refused = await (await stranger.newPage()).goto(base);
say("no cookie", { status: refused.status(), text: await refused.text() });
await stranger.close();

// the policy: a script that gets into the page does not run
say("policy", await page.evaluate(async () => {
  const made = document.createElement("script");
  try { made.textContent = "window.inserted = true"; } catch { /* a string is refused */ }
  document.head.append(made);
  const marked = document.createElement("div");
  try { marked.innerHTML = "<img src=x onerror='window.inserted = true'>"; } catch { /* so is this one */ }
  // breaches are told later
  await new Promise((done) => setTimeout(done, 200));
  return { inserted: window.inserted ?? false, breaches: window.breaches };
}));

await show(page, "/changes");
await wait("wait for change");
await main("live-change").waitFor();
say("live change", true);

// the daemon stops to answer, and is killed: what was loaded stays, and what is asked waits
const notice = page.locator("#notice:not([hidden])"), quiet = page.locator("#notice[hidden]");
for (const step of ["stopped", "killed"]) {
  await show(page, "/drift");
  const before = await page.innerText("main h1");
  await wait(`wait until ${step}`);
  await notice.waitFor({ timeout: 60000 });
  say(step, { notice: await notice.innerText(), stays: await page.innerText("main h1") === before });
  await page.fill("#box", "what sends mail?");
  await page.waitForTimeout(1000);
  say(`asked while ${step}`, await notice.innerText());
  await wait(`wait until back from ${step}`);
  await quiet.waitFor({ state: "attached", timeout: 60000 });
  await page.locator(".hit a.object", { hasText: "postfix.service" }).first().waitFor({ timeout: 60000 });
  say(`back from ${step}`, true);
  await page.fill("#box", "");
}

// axe-core breaks the policy, so it has contexts of its own
const state = await context.storageState();
for (const [name, viewport] of Object.entries(SIZES)) {
  const other = await browser.newContext({ viewport, colorScheme: name === "dark" ? "dark" : "light", storageState: state, bypassCSP: true });
  const own = await other.newPage();
  for (const view of VIEWS) {
    await show(own, view);
    for (const each of await own.locator("main details").all()) await each.evaluate((made) => { made.open = true; });
    await own.addScriptTag({ path: axe });
    const found = await own.evaluate(() => window.axe.run());
    const wide = await own.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    say("axe", { name, view, wide: Math.max(0, wide), rules: found.passes.length, violations: found.violations.map((each) => [each.id, each.nodes.slice(0, 3).map((n) => n.html.slice(0, 160) + " " + (n.any[0]?.message ?? ""))]) });
  }
  await other.close();
}
say("views", true);

// the gateway ends: what was loaded stays, a reload has a page that says so
await show(page, "/observers");
await wait("wait until the gateway ends");
await notice.waitFor({ timeout: 60000 });
const reloaded = await context.newPage();
const gone = await reloaded.goto(base);
say("gateway gone", { notice: await notice.innerText(), stays: await page.innerText("main h1"), status: gone.status(), text: await reloaded.innerText("body") });
await wait("wait until the gateway is back");
await quiet.waitFor({ state: "attached", timeout: 60000 });
await reloaded.locator(".facts-line").waitFor({ timeout: 60000 });
say("gateway back", true);
say("faults", faults);
await browser.close();
process.exit(0);
