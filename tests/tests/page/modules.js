// Tables for the pure modules of the page. Returns what is not as it should be.

const { natural, Fleet } = await import('/fleet.js');
const { countdown, span, zoneName, enumWord } = await import('/words.js');
const { layOut } = await import('/layout.js');
const { parse } = await import('/search.js');

const wrong = [];
function is(what, found, wanted) {
  const [a, b] = [found, wanted].map((value) => JSON.stringify(value));
  if (a !== b) wrong.push(`${what}: ${a}, not ${b}`);
}

// The same order as in Rust: the page sorts what is added to what Rust has sorted.
const names = ['', '1', '2', '10', 'a', 'a01', 'a1', 'a1b', 'a2', 'a10', 'a10b2', 'a10b10', 'b'];
names.push('n99999999999999999999998', 'n99999999999999999999999', 'n-2', 'n-10');
is('the natural order', [...names].reverse().sort(natural), [...names].sort(natural));
for (let k = 1; k < names.length; k++)
  if (natural(names[k - 1], names[k]) >= 0) wrong.push(`${names[k - 1]} is not before ${names[k]}`);

for (const [millis, wanted] of [
  [-1, 'now'],
  [1, '0:01'],
  [61000, '1:01'],
  [3599000, '59:59'],
  [4020000, '1 h 7 min'],
])
  is('a countdown', countdown(millis), wanted);
for (const [seconds, wanted] of [
  [12, '12 s'],
  [185, '3 min 5 s'],
  [140400, '39 h'],
  [219600, '2 d 13 h'],
  [Infinity, 'never'],
])
  is('a span', span(seconds), wanted);
for (const [name, wanted] of [
  ['/', 'no zone'],
  ['/a', 'a'],
  ['eu/', 'eu'],
  ['eu/a', 'eu/a'],
])
  is('a zone', zoneName(name), wanted);
is('an enum', enumWord('ZONE_STATE_FULL_DISRUPTION', 'ZONE_STATE_'), 'FullDisruption');
is('a selector', parse('web zone=b pool=gpu,old=1').selector, 'pool=gpu,old=1');

// Every node has a place, no zone is too wide, and none lies on another one.
const many = (count, size) => Array(count).fill(size);
for (const sizes of [[1], [3, 3, 3], [500, 1, 20], [16000, 14000, 3500], many(60, 7), many(400, 250)])
  for (const [width, height] of [
    [740, 730],
    [374, 300],
    [1900, 1000],
  ]) {
    const { tile, aspect, boxes } = layOut(sizes, width, height),
      what = `${sizes.length} zones in ${width} x ${height}`;
    is(what, boxes.length, sizes.length);
    boxes.forEach((box, k) => {
      if (box.columns * box.rows < sizes[k]) wrong.push(`${what}: zone ${k} has no place for its nodes`);
      if (box.left + box.columns * tile > width) wrong.push(`${what}: zone ${k} is too wide`);
      if (sizes.length < 10 && box.top + box.rows * tile * aspect > height + 1)
        wrong.push(`${what}: zone ${k} is too low`);
      const before = boxes[k - 1];
      const isBeside = !before || before.x + before.w <= box.x + 1,
        isBelow = !before || before.y + before.h <= box.y + 1;
      if (!isBeside && !isBelow) wrong.push(`${what}: zones ${k - 1} and ${k} overlap`);
    });
  }

// The nodes, as the feed changes them.
const fleet = new Fleet();
const piece = (zone, ids, names, states) => ({ zone, ids, names, states, silent: ids.map(() => 1) });
const change = (parts) => fleet.change({ added: [], states: [], removed: [], renewed: [], silent: [], ...parts });
fleet.start({ nodes: 3 });
fleet.nodes(piece('r/a', [4, 2], ['n-1', 'n-2'], [0, 7]));
fleet.nodes(piece('r/b', [3], ['n-3'], [4]));
fleet.complete();
is('the counts', [...fleet.counts], [1, 0, 0, 0, 1, 0, 0, 1]);
change({ states: [4, 6], added: [piece('r/a', [9, 1500], ['n-10', 'n-0'], [0, 2])] });
is(
  'the order in a zone',
  fleet.zones[0].ids.map((id) => fleet.names[id]),
  ['n-0', 'n-1', 'n-2', 'n-10'],
);
is(
  'the places in a zone',
  fleet.zones[0].ids.map((id) => fleet.place[id]),
  [0, 1, 2, 3],
);
is('the failed nodes', fleet.failed, 2);
change({ removed: [3] });
is(
  'the zones that have nodes',
  fleet.zones.map((zone) => zone.name),
  ['r/a'],
);
change({ removed: [4], added: [piece('r/c', [4], ['n-1'], [0])] });
is('a node that moves', [fleet.size, fleet.zoneOf[4].name, [...fleet.counts]], [4, 'r/c', [2, 0, 1, 0, 0, 0, 0, 1]]);
fleet.start({ nodes: 1 });
fleet.nodes(piece('r/z', [0], ['n'], [0]));
is('the nodes while a snapshot is read', fleet.size, 4);
fleet.complete();
is('the nodes after it', [fleet.size, fleet.zones[0].name], [1, 'r/z']);
return wrong;
