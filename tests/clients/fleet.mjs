// Drives the page's view of a fleet in Chromium: `node fleet.mjs LINK MODULES`, where
// MODULES/node_modules has playwright-core and axe-core. Writes one JSON line a step.
import { createRequire } from "node:module";

// nothing waits for ever
setTimeout(() => process.exit(3), 180_000);
const [link, modules] = process.argv.slice(2);
const require = createRequire(`${modules}/`);
const { chromium } = require("playwright-core");
const axe = require.resolve("axe-core");
const VIEWS = ["", "?q=openssh", "?q=session+of+backup", "/host/web5", "/changes?since=all", "/drift", "/odd?tag=web", "/missing?of=web4", "/compare?first=web1&second=web5", "/compare",
  "/object/packages/package/openssh", "/odd?tag=db", "/no-such-part"];
const SIZES = { light: { width: 1280, height: 800 }, dark: { width: 1280, height: 800 }, phone: { width: 360, height: 740 } };

const say = (step, value) => console.log(JSON.stringify({ step, value }));
const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox"] });
const context = await browser.newContext({ viewport: SIZES.light });
const faults = [], requested = [];
await context.addInitScript(() => {
  window.breaches = [];
  addEventListener("securitypolicyviolation", (event) => window.breaches.push(`${event.violatedDirective} ${event.blockedURI}`));
});
const page = await context.newPage();
page.on("pageerror", (error) => faults.push(error.message));
page.on("request", (request) => requested.push(new URL(request.url()).pathname.split("/").at(-1)));
await page.goto(link);
await page.locator(".facts-line").waitFor();
const base = page.url().split("#")[0];
say("linked", { visible: await page.locator("#fleet").isVisible(), script: requested.includes("fleet.js") });

const settled = async (on) => {
  await on.locator("main[aria-busy=false]").waitFor({ timeout: 30000 });
  await on.locator("main", { hasText: "Loading." }).waitFor({ state: "detached", timeout: 30000 });
};
const show = async (on, view) => {
  await on.goto(`${base}#/serving`);
  await on.locator("main h1", { hasText: "What serves" }).waitFor({ timeout: 30000 });
  await settled(on);
  await on.goto(`${base}#/fleet${view}`);
  await on.locator("main h1", { hasText: /Fleet|Not answered/ }).waitFor({ timeout: 30000 });
  await settled(on);
};
if (await page.locator("#fleet").isVisible()) {
  await page.click("#fleet");
  await page.locator("main h1", { hasText: "Fleet" }).waitFor();
  await settled(page);
  say("overview", { text: await page.innerText("main"), script: requested.includes("fleet.js"), current: await page.getAttribute("#fleet", "aria-current") });

  // by keyboard alone: a question, and two hosts
  await page.getByLabel("Ask all hosts").focus();
  await page.keyboard.type("stores tables");
  await page.keyboard.press("Enter");
  await page.locator("main .soft", { hasText: /^\d+ objects?$/ }).waitFor();
  say("answer", { text: await page.innerText("main"), address: new URL(page.url()).hash });
  await show(page, "");
  const compare = page.getByRole("button", { name: "Compare the two chosen" });
  const before = await compare.isDisabled();
  for (const host of ["web1", "web5"]) {
    await page.getByLabel(`Choose ${host} to compare`).focus();
    await page.keyboard.press("Space");
  }
  await compare.focus();
  await page.keyboard.press("Enter");
  await page.locator("main h1", { hasText: "Compare two" }).waitFor();
  await settled(page);
  say("compared", { before, text: await page.innerText("main"), address: new URL(page.url()).hash });
  for (const view of VIEWS.slice(2)) {
    await show(page, view);
    say("view", { view, text: await page.innerText("main") });
  }
  for (const [name, viewport] of Object.entries(SIZES)) {
    const own = await browser.newContext({ viewport, colorScheme: name === "dark" ? "dark" : "light", bypassCSP: true, storageState: await context.storageState() });
    const other = await own.newPage();
    for (const view of VIEWS) {
      await show(other, view);
      for (const each of await other.locator("main details").all()) await each.evaluate((made) => { made.open = true; });
      await other.addScriptTag({ path: axe });
      const found = await other.evaluate(() => window.axe.run());
      const wide = await other.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      say("axe", { name, view, wide: Math.max(0, wide), rules: found.passes.length, violations: found.violations.map((each) => [each.id, each.nodes.slice(0, 3).map((n) => n.html.slice(0, 160) + " " + (n.any[0]?.message ?? ""))]) });
    }
    await own.close();
  }
}
say("faults", { faults, breaches: await page.evaluate(() => window.breaches) });
await browser.close();
process.exit(0);
