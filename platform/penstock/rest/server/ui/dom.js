// A page is a function from data to a tree of plain objects; `render` updates the document to that tree. Unchanged
// parts are kept: focus, selection, scroll positions and open <details> survive every refresh.

const SVG = "http://www.w3.org/2000/svg";

// Return a node of the tree. Children may be nested lists; null, false and "" are dropped. Attributes: `key` identifies
// siblings over refreshes, `on...` are event handlers, `style` is an object, true and false set and remove.
export function h(tag, attributes, ...children) {
  const kept = children.flat(Infinity).filter((child) => child || child === 0);
  return { tag, attributes: attributes ?? {}, children: kept.map((c) => (typeof c === "object" ? c : String(c))) };
}

export function render(parent, children) {
  place(parent, [children].flat(Infinity).filter(Boolean));
}

function place(parent, children) {
  const wanted = new Set(children.map((child) => child.attributes?.key).filter((key) => key !== undefined));
  const keyed = new Map();
  for (const node of parent.childNodes) if (node.ownKey !== undefined) keyed.set(node.ownKey, node);
  let at = parent.firstChild;
  for (const child of children) {
    while (at && at.ownKey !== undefined && !wanted.has(at.ownKey)) at = removed(at);
    const node = reusable(child, at, keyed) ?? make(child, parent);
    if (node === at) at = at.nextSibling;
    else parent.insertBefore(node, at);
    update(node, child);
  }
  while (at) at = removed(at);
}

function removed(node) {
  const next = node.nextSibling;
  node.remove();
  return next;
}

function reusable(child, at, keyed) {
  if (typeof child === "string") return at?.nodeType === Node.TEXT_NODE ? at : null;
  const key = child.attributes.key;
  const node = key !== undefined ? keyed.get(key) : at?.ownKey === undefined ? at : null;
  return node?.localName === child.tag ? node : null;
}

function make(child, parent) {
  if (typeof child === "string") return document.createTextNode(child);
  const drawing = child.tag === "svg" || parent.namespaceURI === SVG;
  return drawing ? document.createElementNS(SVG, child.tag) : document.createElement(child.tag);
}

function update(node, child) {
  if (typeof child === "string") {
    if (node.data !== child) node.data = child;
    return;
  }
  const before = node.own ?? {};
  for (const name in before) if (!(name in child.attributes)) set(node, name, null, before[name]);
  for (const name in child.attributes) {
    if (before[name] !== child.attributes[name]) set(node, name, child.attributes[name], before[name]);
  }
  node.own = child.attributes;
  place(node, child.children);
}

function set(node, name, value, before) {
  if (name === "key") node.ownKey = value ?? undefined;
  else if (name.startsWith("on")) node[name] = value;
  else if (name === "style") {
    for (const property in before ?? {}) if (!(property in (value ?? {}))) node.style.removeProperty(property);
    for (const property in value ?? {}) node.style.setProperty(property, value[property]);
  } else if (value === null || value === undefined || value === false) node.removeAttribute(name);
  else node.setAttribute(name, value === true ? "" : value);
}
