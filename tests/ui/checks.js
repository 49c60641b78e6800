// What a reader without a mouse, or without eyes, needs of a page: returns what is wrong with it, as sentences.
() => {
  const wrong = [];
  const all = (selector) => [...document.querySelectorAll(selector)].filter((e) => e.checkVisibility());
  const say = (element, text) => wrong.push(`${element.outerHTML.slice(0, 120)}: ${text}`);

  const named = (element) => {
    const by = element.getAttribute("aria-labelledby");
    if (by) return by.split(" ").map((id) => document.getElementById(id)?.textContent ?? "").join(" ").trim();
    const label = element.getAttribute("aria-label") ?? element.getAttribute("alt");
    if (label) return label.trim();
    if (element.labels?.length) return [...element.labels].map((l) => l.textContent).join(" ").trim();
    if (["INPUT", "SELECT", "TEXTAREA", "DIALOG"].includes(element.tagName)) return "";
    return element.textContent.trim();
  };
  for (const element of all("a, button, input, select, textarea, dialog, nav, [role=img], [role=region], [role=group], section")) {
    if (!named(element)) say(element, "has no name");
  }
  for (const link of all("a")) if (!link.getAttribute("href")) say(link, "leads nowhere");
  for (const image of all("img")) if (!image.hasAttribute("alt")) say(image, "has no text in its place");
  for (const drawing of all("svg")) {
    if (drawing.getAttribute("role") !== "img" && !drawing.closest("[aria-hidden=true]")) say(drawing, "is neither named nor hidden");
  }

  const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
  for (const id of new Set(ids)) if (ids.filter((other) => other === id).length > 1) wrong.push(`the id ${id} is given twice`);
  for (const element of document.querySelectorAll("[aria-labelledby]")) {
    for (const id of element.getAttribute("aria-labelledby").split(" ")) if (!document.getElementById(id)) say(element, `is named by ${id}, which is not there`);
  }

  const headings = all("h1, h2, h3, h4").map((e) => Number(e.tagName[1]));
  if (headings.filter((level) => level === 1).length !== 1) wrong.push(`there are ${headings.filter((l) => l === 1).length} main headings`);
  headings.forEach((level, i) => i && level > headings[i - 1] + 1 && wrong.push(`a heading of level ${level} comes below one of ${headings[i - 1]}`));
  for (const cell of all("th")) if (!cell.hasAttribute("scope")) say(cell, "does not say what it heads");
  for (const table of all("table")) if (!table.caption) say(table, "has no caption");
  if (!document.documentElement.lang) wrong.push("the page has no language");
  for (const tag of ["main", "header", "nav"]) if (!all(tag).length) wrong.push(`there is no ${tag}`);
  for (const element of all("[tabindex]")) if (element.tabIndex > 0) say(element, "jumps the queue of the tab key");
  for (const element of all("a, button, input:not([type=checkbox]), select")) {
    const { width, height } = element.getBoundingClientRect();
    if (element.closest("td, th, li, p, dd") === null && (width < 24 || height < 24) && !element.matches(".skip")) say(element, `is only ${width.toFixed()} by ${height.toFixed()} pixels`);
  }
  if (document.documentElement.scrollWidth > innerWidth + 1) wrong.push(`the page is ${document.documentElement.scrollWidth} pixels wide in a window of ${innerWidth}`);

  // contrast of all visible text, by what is painted behind it
  const channels = (color) => {
    const probe = (channels.canvas ??= new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true }));
    probe.clearRect(0, 0, 1, 1);
    probe.fillStyle = color;
    probe.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = probe.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = (front, back) => [0, 1, 2].map((i) => front[i] * front[3] + back[i] * (1 - front[3])).concat(1);
  const behind = (element) => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) layers.push(channels(getComputedStyle(at).backgroundColor));
    const page = channels(getComputedStyle(document.documentElement).backgroundColor);
    return layers.reverse().reduce((back, layer) => over(layer, back), over(page, [255, 255, 255, 1]));
  };
  const light = ([r, g, b]) => {
    const part = (v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
    return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let texts = 0;
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    if (!node.data.trim() || !element.checkVisibility() || element.closest("script, .unseen, .skip, :disabled")) continue;
    texts += 1;
    const style = getComputedStyle(element);
    const back = behind(element);
    const front = over(channels(element.closest("svg") ? style.fill : style.color), back);
    const [high, low] = [light(front), light(back)].sort((a, b) => b - a);
    const size = parseFloat(style.fontSize);
    const needed = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700) ? 3 : 4.5;
    const contrast = (high + 0.05) / (low + 0.05);
    if (contrast < needed) wrong.push(`"${node.data.trim().slice(0, 40)}" (${element.className || element.tagName}) has a contrast of ${contrast.toFixed(2)}, ${needed} is needed`);
  }
  if (!texts) wrong.push("nothing is written on the page");
  return wrong;
}
