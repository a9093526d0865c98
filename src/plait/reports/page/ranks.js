// Any rank on demand: where it is on each axis, and with whom it works.
"use strict";

plait.readRanks = function (given) {
  const names = ["row", "position", "device", "host"];
  const decoded = Object.fromEntries(names.map((name) => [name, plait.decode(given[name])]));
  const axes = Object.fromEntries(Object.entries(given.axes).map(([name, column]) => [name, plait.decode(column)]));
  return { ...given, ...decoded, axes };
};

// The ranks that differ from `rank` on one axis alone, itself among them.
plait.peers = function (ranks, rank, axis) {
  const found = [], others = Object.entries(ranks.axes).filter(([name]) => name !== axis);
  for (let other = 0; other < ranks.count; other++) {
    if (others.every(([, place]) => place[other] === place[rank])) found.push(other);
  }
  return found;
};

plait.listed = function (numbers) {
  if (numbers.length <= 12) return numbers.join(", ");
  return `${numbers.slice(0, 10).join(", ")} … ${numbers[numbers.length - 1]} (${numbers.length})`;
};

plait.layersOf = ([first, end]) => (end - first > 1 ? `${first} to ${end - 1}` : String(first));

// Name and value of all that is known of a rank.
plait.rankFacts = function (ranks, rows, rank) {
  const position = ranks.positions[ranks.position[rank]];
  const facts = [["rank", String(rank)]];
  for (const [axis, place] of Object.entries(ranks.axes)) {
    facts.push([axis, `${place[rank]} (of 0 to ${ranks.sizes[axis] - 1})`]);
  }
  if (position) {
    facts.push([position.stages.length > 1 ? "stages" : "stage", position.stages.join(", ")]);
    facts.push(["layers", position.layers.map(plait.layersOf).join("; ")]);
  }
  facts.push(["device", ranks.devices[ranks.device[rank]]], ["host", ranks.hosts[ranks.host[rank]]]);
  for (const axis of Object.keys(ranks.axes)) {
    const peers = plait.peers(ranks, rank, axis);
    if (peers.length > 1) facts.push([`${axis} group`, plait.listed(peers)]);
  }
  const row = ranks.row[rank];
  if (row < 0) facts.push(["drawn as", "not in the picture"]);
  else if (rows[row].rank !== rank) {
    facts.push(["drawn as", `rank ${rows[row].rank}, which stands for ${rows[row].count} ranks`]);
  }
  return facts;
};

plait.listOf = function (facts) {
  const list = document.createElement("dl");
  for (const fact of facts) {
    const pair = document.createElement("div");
    ["dt", "dd"].forEach((tag, at) => {
      const word = document.createElement(tag);
      word.textContent = fact[at];
      pair.append(word);
    });
    list.append(pair);
  }
  return list;
};

plait.makeRankForm = function (form, output, ranks, rows, showRow) {
  const field = form.elements.rank;
  function show(event) {
    if (event) event.preventDefault();
    const text = field.value.trim(), rank = Number(text);
    const known = /^\d+$/.test(text) && rank < ranks.count;
    field.setAttribute("aria-invalid", String(!known && text !== ""));
    if (text === "" || !known) {
      showRow(-1);
      output.textContent = text === "" ? "" : `There is no rank ${text}: the ranks are 0 to ${ranks.count - 1}.`;
      return;
    }
    showRow(ranks.row[rank]);
    output.replaceChildren(plait.listOf(plait.rankFacts(ranks, rows, rank)));
  }
  form.addEventListener("submit", show);
  return { show };
};
