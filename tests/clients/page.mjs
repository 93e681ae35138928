// Drives the page in Chromium: `node page.mjs LINK MODULES`, where MODULES/node_modules has
// playwright-core and axe-core. Reads a line when something was done, and writes one JSON line a step.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

// nothing waits for ever
setTimeout(() => process.exit(3), 280_000);
const [link, modules] = process.argv.slice(2);
const require = createRequire(`${modules}/`);
const { chromium } = require("playwright-core");
const axe = require.resolve("axe-core");
const VIEWS = ["/", "/ask?q=what+sends+mail%3F", "/drift", "/changes", "/objects", "/map", "/serving", "/observers",
  "/object/systemd/unit/postfix.service"];

const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const say = (step, value) => console.log(JSON.stringify({ step, value }));
const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox"] });
const context = await browser.newContext({ viewport: { width: 1280, height: 800 } });
const page = await context.newPage();
const faults = [];
page.on("pageerror", (error) => faults.push(error.message));
await page.goto(link);
await page.waitForSelector("#box");
const base = page.url().split("#")[0];
say("link", base);

// the views by the words of their headings
const HEADINGS = { drift: "Drift", changes: "Changes", objects: "Objects", map: "Map", serving: "serves", observers: "Observers" };
const show = async (on, view) => {
  await on.goto(`${base}#${view}`);
  const heading = HEADINGS[view.slice(1)] ?? "";
  await on.waitForFunction((wanted) => {
    const main = document.querySelector("main");
    return !main.innerText.includes("Loading.") && (!wanted || main.querySelector("h1")?.textContent.includes(wanted));
  }, heading, { timeout: 30000 });
  await on.waitForTimeout(1000);
};
const hasText = (text) => page.waitForFunction((wanted) => document.querySelector("main").innerText.includes(wanted), text, { timeout: 30000 });

const times = [];
for (const question of ["what sends mail?", "mail relay", "outgoing mail"]) {
  await show(page, "/drift");
  const before = Date.now();
  await page.fill("#box", question);
  await hasText("postfix.service");
  times.push(Date.now() - before);
}
say("ask", times);
await show(page, "/object/systemd/unit/postfix.service");
await hasText("postfix");
say("object", await page.innerText("main"));
await show(page, "/drift");
say("drift", await page.innerText("main"));
await show(page, "/map");
say("map", await page.evaluate(async () => {
  const canvas = document.querySelector("main canvas"), { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const served = await (await fetch("map?limit=5000")).json();
  return { painted: data.some((each) => each), served: served.name.length, shown: document.querySelector("main").innerText };
}));
await show(page, "/changes");
say("wait for change", true);
await lines.next();
await hasText("live-change");
say("live change", true);
await lines.next();
await page.waitForSelector("#notice:not([hidden])", { timeout: 60000 });
say("gone", await page.innerText("#notice"));
await lines.next();
await page.waitForSelector("#notice", { state: "hidden", timeout: 60000 });
say("back", true);

for (const what of ["daemon", "gateway"]) {
  await page.goto(`${base}#/drift`);
  await hasText("postfix.service");
  say(`kill the ${what}`, true);
  await lines.next();
  await page.waitForSelector("#notice:not([hidden])", { timeout: 60000 });
  say(`no ${what}`, await page.innerText("#notice"));
  await lines.next();
  await page.waitForSelector("#notice", { state: "hidden", timeout: 60000 });
  await hasText("postfix.service");
  say(`the ${what} again`, true);
}

// another site in the same browser, which has the cookie
await context.route("http://foreign.example/**", (route) => route.fulfill({ contentType: "text/html", body: "<p>foreign</p>" }));
const foreign = await context.newPage();
await foreign.goto("http://foreign.example/");
const tried = await foreign.evaluate(async (own) => {
  const outcome = (work) => work.then((answer) => answer.text()).then((text) => text || "nothing", () => "refused");
  const frame = document.createElement("iframe");
  frame.src = own;
  document.body.append(frame);
  await new Promise((done) => { frame.onload = done; });
  return { read: await outcome(fetch(`${own}status`, { credentials: "include" })),
    post: await outcome(fetch(`${own}ask`, { method: "POST", credentials: "include", mode: "no-cors", body: "q=x" })) };
}, base);
const framed = foreign.frames().map((each) => each.url()).filter((each) => !each.startsWith("http://foreign.example"));
const response = foreign.waitForResponse(base);
await foreign.evaluate((own) => { location.href = own; }, base);
say("foreign origin", { ...tried, framed, link: (await response).status() });
await foreign.close();

const stranger = await browser.newContext(), strange = await stranger.newPage();
say("without the cookie", [(await strange.goto(link)).status(), (await strange.goto(base)).status(), (await strange.goto(`${base}status`)).status()]);
await stranger.close();

const state = await context.storageState();
const PHONE = { width: 360, height: 740 }, SCREEN = { width: 1280, height: 800 };
for (const [colorScheme, viewport] of [["light", SCREEN], ["dark", SCREEN], ["light", PHONE]]) {
  // axe is a script that the page's policy refuses
  const other = await browser.newContext({ colorScheme, viewport, storageState: state, bypassCSP: true });
  const own = await other.newPage();
  for (const view of VIEWS) {
    await show(own, view);
    await own.addScriptTag({ path: axe });
    const found = await own.evaluate(() => window.axe.run());
    say("axe", { colorScheme, view, width: viewport.width, violations: found.violations.map((each) => [each.id, each.nodes.slice(0, 3).map((n) => n.html.slice(0, 160) + " " + (n.any[0]?.message ?? ""))]) });
  }
  await other.close();
}
say("faults", faults);
await browser.close();
process.exit(0);
