// Layout of the job graph: layers from left to right with few crossings. Pure; tested in the browser.

export const NODE = { width: 252, height: 206, gapX: 72, gapY: 26 };

// `nodes` are `{id, inputs: [{id, label}]}` in any order. Returns `{width, height, places: {id: {x, y}}, edges}`; an edge
// has `from`, `to`, `label` and the `path` of an SVG path. An edge over several layers runs between their vertices.
export function layout(nodes, size = NODE) {
  const layerOf = layersOf(nodes);
  const layers = [];
  const put = (entry, layer) => (layers[layer] ??= []).push(entry);
  for (const node of nodes) put({ id: node.id, real: true, before: [] }, layerOf.get(node.id));
  const chains = [];
  const entries = new Map(layers.flat().map((entry) => [entry.id, entry]));
  for (const node of nodes) {
    for (const input of node.inputs) {
      if (!entries.has(input.id)) continue;
      const chain = [entries.get(input.id)];
      for (let layer = layerOf.get(input.id) + 1; layer < layerOf.get(node.id); layer += 1) {
        const bend = { id: `${input.id} ${node.id} ${layer}`, real: false, before: [chain.at(-1)] };
        put(bend, layer);
        chain.push(bend);
      }
      entries.get(node.id).before.push(chain.at(-1));
      chains.push({ chain: [...chain, entries.get(node.id)], label: input.label });
    }
  }
  order(layers);
  return drawn(layers, chains, size);
}

// The longest path from a source; nodes on a cycle, which no job graph has, stay in the layer where they were first
// reached.
function layersOf(nodes) {
  const inputs = new Map(nodes.map((node) => [node.id, node.inputs.map((input) => input.id)]));
  const found = new Map();
  const layer = (id, path) => {
    if (found.has(id)) return found.get(id);
    const before = (inputs.get(id) ?? []).filter((other) => inputs.has(other) && !path.includes(other));
    const value = before.length ? 1 + Math.max(...before.map((other) => layer(other, [...path, id]))) : 0;
    found.set(id, value);
    return value;
  };
  for (const node of nodes) layer(node.id, []);
  return found;
}

// Order each layer by the mean position of its inputs; then the sources by that of their outputs.
function order(layers) {
  const number = (layer) => layer.forEach((entry, i) => (entry.place = i - (layer.length - 1) / 2));
  const mean = (list, otherwise) => (list.length ? list.reduce((sum, e) => sum + e.place, 0) / list.length : otherwise);
  layers.forEach(number);
  for (const backwards of [false, true, false]) {
    const walked = backwards ? [...layers].reverse() : layers;
    for (const layer of walked) {
      const wish = (e) => (backwards ? mean(layers.flat().filter((o) => o.before.includes(e)), e.place) : mean(e.before, e.place));
      const wishes = new Map(layer.map((entry) => [entry, wish(entry)]));
      layer.sort((a, b) => wishes.get(a) - wishes.get(b));
      number(layer);
    }
  }
}

function drawn(layers, chains, size) {
  const tall = (entry) => (entry.real ? size.height : 12);
  const heights = layers.map((layer) => layer.reduce((sum, e) => sum + tall(e) + size.gapY, -size.gapY));
  const height = Math.max(0, ...heights);
  const places = {};
  layers.forEach((layer, number) => {
    let y = (height - heights[number]) / 2;
    for (const entry of layer) {
      entry.x = number * (size.width + size.gapX);
      entry.y = y;
      y += tall(entry) + size.gapY;
      if (entry.real) places[entry.id] = { x: entry.x, y: entry.y };
    }
  });
  const middle = (entry) => entry.y + tall(entry) / 2;
  const edges = chains.map(({ chain, label }) => {
    let path = "";
    for (let i = 1; i < chain.length; i += 1) {
      const [x, y] = [chain[i - 1].x + size.width, middle(chain[i - 1])];
      const [toX, toY] = [chain[i].x, middle(chain[i])];
      const bend = (toX - x) / 2;
      path += `${i === 1 ? `M${x} ${y}` : `L${x} ${y}`}C${x + bend} ${y} ${toX - bend} ${toY} ${toX} ${toY}`;
    }
    const last = chain.length - 1;
    const at = { x: chain[last].x - size.gapX / 2, y: (middle(chain[last - 1]) + middle(chain[last])) / 2 };
    return { from: chain[0].id, to: chain[last].id, label, path, at };
  });
  const width = layers.length * (size.width + size.gapX) - size.gapX;
  return { width: Math.max(0, width), height, places, edges };
}
