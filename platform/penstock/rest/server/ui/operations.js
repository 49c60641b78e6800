// The page at /docs: every operation of openapi.json, one per line.

const rows = document.getElementById("operations");

function cell(row, text) {
  const made = row.insertCell();
  made.textContent = text;
}

async function show() {
  const answer = await fetch("openapi.json");
  if (!answer.ok) throw new Error(`status ${answer.status}`);
  const { paths } = await answer.json();
  for (const [path, operations] of Object.entries(paths)) {
    for (const [method, operation] of Object.entries(operations)) {
      const row = rows.insertRow();
      cell(row, `${method.toUpperCase()} ${path}`);
      const asked = (operation.parameters ?? []).filter((one) => one.in !== "path").map((one) => one.name);
      cell(row, [...asked, ...(operation.requestBody ? ["a body"] : [])].join(", "));
      cell(row, Object.keys(operation.responses ?? {}).join(", "));
    }
  }
}

show().catch((error) => {
  document.getElementById("problem").textContent = `cannot read openapi.json: ${error.message}`;
});
