// The page: its state, and how its parts are put together.
//
// A panel is a module with `isShown(page)` and `show(page)`, which returns its elements; the first one that is shown is
// drawn. So a panel of another kind is one more module and one more line here.

import { ActionDialog, takeToken } from './actions.js';
import * as api from './api.js';
import { byId, h, icon, show, tick } from './dom.js';
import { Feed } from './feed.js';
import { COLOURS, Fleet, isTrouble, NEW, SHOWN, WORDS } from './fleet.js';
import { KEYS, listen, listenOnMap } from './keys.js';
import { NodeList } from './list.js';
import { FleetMap } from './map.js';
import { listenToPointer } from './pointer.js';
import { fleetPanel } from './panel-fleet.js';
import { NodeAnswers, nodePanel } from './panel-node.js';
import { Search } from './search.js';
import { toggleTheme } from './theme.js';
import { verdict, zoneState } from './verdict.js';
import { CARD, TILE } from './layout.js';
import { countdown, many, millis, moment, number, zoneName } from './words.js';
import { zoneCards } from './zones.js';

const REFRESH = 250;
const NARROW = matchMedia('(max-width: 760px)');
const panels = [nodePanel, fleetPanel];

const fleet = new Fleet();
const page = {
  fleet,
  /** What the controller says, and by how much its clock is ahead of ours. */
  info: null,
  clockAhead: NaN,
  zoneInfo: new Map(),
  sources: { store: { state: 'connecting' }, controller: { state: 'connecting' } },
  isOpen: false,
  isComplete: false,
  leaseSeconds: 0,
  settings: { allowActions: false, traceUrl: null, version: '' },
  selected: -1,
  selectedName: '',
  zone: '',
  view: 'map',
  most: new Map(),
  get found() {
    return search.found;
  },
  get search() {
    return search.stamp;
  },
  get silent() {
    return performance.now() - feed.heard;
  },
  controllerNow() {
    return Number.isNaN(this.clockAhead) ? Date.now() : performance.now() + this.clockAhead;
  },
  zoneState(name) {
    return zoneState(this.zoneInfo.get(name));
  },
  /** The most pods that a drain had to move since this page looks at it. */
  drainMost(node, remaining) {
    const most = Math.max(this.most.get(node) ?? 0, remaining);
    this.most.set(node, most);
    return most;
  },
};

const search = new Search(fleet, () => {
  map?.rewrite();
  refresh();
});
page.answers = new NodeAnswers(() => refresh());
const map = new FleetMap(byId('map-canvas'), fleet, page);
const list = new NodeList(byId('list'), page);
const token = takeToken();
const dialog = new ActionDialog(token, (words) => {
  say(words);
  page.answers.ask();
});

const feed = new Feed({
  start: (data) => fleet.start(data),
  nodes: (data) => fleet.nodes(data),
  complete() {
    fleet.complete();
    page.isComplete = true;
    select(page.selectedName, false);
    if (search.query || search.only >= 0) search.run();
  },
  change(data) {
    fleet.change(data);
    if (data.removed.length || data.added.length) page.selected = fleet.byName.get(page.selectedName) ?? -1;
    if (data.states.length && search.found) searchSoon();
    for (let k = 0; k < data.states.length; k += 2) if (data.states[k] === page.selected) page.answers.ask();
  },
  fleet({ fleet: info, ageMillis }) {
    page.info = info;
    page.zoneInfo = new Map((info.zones ?? []).map((zone) => [zone.name, zone]));
    page.clockAhead = millis(info.asOf) + ageMillis - performance.now();
    map.isDirty = true;
  },
  sources(sources) {
    page.sources = sources;
  },
  alive({ leaseSeconds }) {
    page.leaseSeconds = leaseSeconds;
  },
  link(isOpen) {
    page.isOpen = isOpen;
  },
});

let searchTimer = 0;
function searchSoon() {
  // A state has changed that the search may ask for; a fleet that falls changes many at once.
  searchTimer ||= setTimeout(() => {
    searchTimer = 0;
    search.run();
  }, 1000);
}

// ---- what is drawn four times a second, and after every act

function refresh() {
  const seen = verdict(page);
  byId('app').classList.toggle('stale', seen.stale === true);
  byId('head').className = `card ${seen.kind}`;
  show(byId('verdict'), icon(seen.symbol, 'sym'), h('span', {}, seen.head, h('small', {}, seen.small)));
  // Without the numbers, which change too often to be read out.
  announce('say-verdict', seen.head.replace(/[\d,]+ (?=of)/g, ''));
  drawCounts();
  show(byId('zones'), zoneCards(page));
  show(byId('side'), panels.find((panel) => panel.isShown(page)).show(page));
  drawBar();
  if (page.view === 'list') list.refresh();
  const isEmpty = page.isComplete && !fleet.size;
  byId('empty').hidden = !isEmpty;
  tick(page.controllerNow(), countdown);
  if (map.layout.kind === CARD) map.isDirty = true;
}

function drawCounts() {
  const { info } = page;
  const chips = SHOWN.filter((state) => state !== NEW || fleet.counts[NEW]).map((state) =>
    h(
      'button',
      {
        class: `chip${fleet.counts[state] ? '' : ' zero'}`,
        'data-only': state,
        'aria-pressed': String(search.only === state),
        'data-key': COLOURS[state],
      },
      icon(`s${state}`),
      h('b', {}, number(fleet.counts[state])),
      h('span', {}, WORDS[state]),
    ),
  );
  const facts = !info
    ? null
    : [
        h('span', { class: 'sep' }),
        h(
          'span',
          { class: 'fact' },
          h('b', {}, number(info.pods ?? 0)),
          ` pods`,
          info.pendingPods ? [', ', h('b', {}, number(info.pendingPods)), ' without a node'] : null,
          ', ',
          h('b', {}, number(info.armedEvictions ?? 0)),
          ' to be evicted',
        ),
        h('span', { class: 'sep wide' }),
        h('span', { class: 'fact wide' }, 'led by ', h('b', {}, info.leader || 'none')),
      ];
  show(byId('counts'), chips, facts);
  const isLive = page.isOpen && page.sources.store.state === 'heard';
  byId('live').classList.toggle('off', !isLive);
  show(byId('clock'), isLive ? `${moment(page.controllerNow(), page.controllerNow())} UTC` : 'not live');
}

function drawBar() {
  const { kind, tile } = map.layout,
    near = map.view.k;
  const words =
    search.failure ||
    (search.found
      ? `${many(search.found.size, 'node')} found`
      : page.view === 'list'
        ? list.words()
        : near > 1
          ? `${near.toFixed(1)} times closer`
          : !fleet.size
            ? ''
            : kind === CARD
              ? 'a card for each'
              : kind === TILE && tile < 6
                ? 'a tile for each; come closer for their marks'
                : 'a tile for each');
  show(byId('map-fact'), words);
  show(byId('found'), search.found ? many(search.found.size, 'node') : h('kbd', {}, '/'));
  byId('view-map').setAttribute('aria-pressed', String(page.view === 'map'));
  byId('view-list').setAttribute('aria-pressed', String(page.view === 'list'));
  byId('list').hidden = page.view !== 'list';
  const disrupted = (page.info?.zones ?? []).filter((zone) => zoneState(zone) > 1).map((zone) => zoneName(zone.name));
  byId('map-canvas').setAttribute(
    'aria-label',
    `Map of ${many(fleet.size, 'node')} in ${many(fleet.zones.length, 'zone')}, ${fleet.failed} not Ready${disrupted.length ? `; disrupted: ${disrupted.slice(0, 5).join(', ')}` : ''}`,
  );
}

function announce(id, text) {
  const element = byId(id);
  if (element.textContent !== text) element.textContent = text;
}

const say = (text) => announce('say', text);

// ---- choosing

function select(name, reveal = true) {
  page.selectedName = name;
  page.selected = fleet.byName.get(name) ?? -1;
  page.answers.follow(name);
  if (page.selected >= 0) {
    if (reveal) map.reveal(page.selected);
    if (reveal)
      say(`${name}, ${WORDS[fleet.state[page.selected]]}, zone ${zoneName(fleet.zoneOf[page.selected].name)}`);
  }
  map.isDirty = true;
  writeAddress();
  refresh();
}

/** Chooses a node as a person does: on a narrow screen the panel is below the map. */
function explain(name) {
  select(name);
  if (NARROW.matches) byId('side').scrollIntoView({ behavior: map.isCalm ? 'auto' : 'smooth', block: 'start' });
}

function chooseZone(name) {
  page.zone = page.zone === name ? '' : name;
  map.isDirty = true;
  writeAddress();
  refresh();
}

/** The next node in trouble, in the order of the map. */
function trouble(step) {
  const order = fleet.zones.flatMap((zone) => zone.ids),
    count = order.length;
  let at = page.selected < 0 ? (step > 0 ? -1 : count) : order.indexOf(page.selected);
  for (let k = 0; k < count; k++) {
    at = (at + step + count) % count;
    const id = order[at];
    if (isTrouble(fleet.state[id]) && (!search.found || search.found.has(id))) return select(fleet.names[id]);
  }
  say('No node is in trouble.');
}

function setView(view) {
  page.view = view;
  writeAddress();
  refresh();
}

function setQuery(query) {
  if (byId('query').value !== query) byId('query').value = query;
  search.set(query);
  writeAddress();
}

/** The address of what is shown, so that it can be sent to somebody. */
function writeAddress() {
  const parts = Object.entries({
    node: page.selectedName,
    zone: page.zone,
    q: search.query,
    view: page.view === 'list' ? 'list' : '',
  });
  const text = new URLSearchParams(parts.filter(([, value]) => value)).toString();
  if (location.hash.slice(1) !== text) history.replaceState(null, '', text ? `#${text}` : location.pathname);
}

function readAddress() {
  const address = new URLSearchParams(location.hash.slice(1));
  page.zone = address.get('zone') ?? '';
  page.view = address.get('view') === 'list' ? 'list' : 'map';
  setQuery(address.get('q') ?? '');
  select(address.get('node') ?? '');
}

// ---- acts

const acts = {
  search: () => byId('query').focus(),
  leaveSearch() {
    setQuery('');
    byId('query').blur();
  },
  enterSearch() {
    const first = search.found && fleet.zones.flatMap((zone) => zone.ids).find((id) => search.found.has(id));
    if (first !== undefined && first !== null) select(fleet.names[first]);
  },
  trouble,
  zoom: (factor) => map.zoom(factor),
  fit: () => map.fit(),
  nextZone() {
    const names = fleet.zones.map((zone) => zone.name);
    if (names.length) chooseZone(names[(names.indexOf(page.zone) + 1) % names.length]);
  },
  toggleView: () => setView(page.view === 'map' ? 'list' : 'map'),
  theme: toggleTheme,
  help: () => byId('help').showModal(),
  back() {
    if (page.selectedName) select('');
    else if (search.only >= 0) search.setOnly(-1);
    else if (page.zone) chooseZone(page.zone);
    else if (map.view.k > 1) map.fit();
  },
};

const buttons = {
  close: () => select(''),
  again: () => page.answers.ask(),
  cancel: () => byId('act').close(),
  theme: acts.theme,
  help: acts.help,
  'zoom-in': () => map.zoom(1.6),
  'zoom-out': () => map.zoom(1 / 1.6),
  'zoom-fit': () => map.fit(),
  'view-map': () => setView('map'),
  'view-list': () => setView('list'),
  cordon: () => dialog.open('cordon', page.selectedName),
  uncordon: () => dialog.open('uncordon', page.selectedName),
  drain: () => dialog.open('drain', page.selectedName),
};

document.addEventListener('click', (event) => {
  const target = event.target.closest?.('[data-act],[data-zone],[data-only],[data-node],[data-label]');
  if (!target) return;
  const { act, zone, only, node, label } = target.dataset;
  if (act) buttons[act]?.();
  else if (zone !== undefined) chooseZone(zone);
  else if (only !== undefined) search.setOnly(search.only === +only ? -1 : +only);
  else if (node !== undefined) explain(node);
  else if (label !== undefined) setQuery(label);
});
byId('query').addEventListener('input', ({ target }) => setQuery(target.value));
addEventListener('hashchange', readAddress);
listen(acts);

// ---- the map

const canvas = byId('map-canvas');
listenOnMap(
  canvas,
  (dx, dy) => {
    const to = page.selected >= 0 ? map.neighbour(page.selected, dx, dy) : map.first();
    if (to >= 0) select(fleet.names[to]);
  },
  () => {
    if (!page.selectedName) return;
    byId('node-title')?.focus();
    if (NARROW.matches) byId('side').scrollIntoView({ block: 'start' });
  },
);
listenToPointer(
  canvas,
  byId('tip'),
  map,
  (id) => explain(fleet.names[id]),
  (zone) => chooseZone(zone.name),
);

// ---- the start

show(
  byId('keys'),
  KEYS.map(([keys, what]) => h('tr', {}, h('td', {}, h('kbd', {}, keys)), h('td', {}, what))),
);
api.settings().then(
  (settings) => {
    // Without the token of this process the window can only look, whatever the process allows.
    page.settings = { ...settings, allowActions: settings.allowActions && token !== '' };
    refresh();
  },
  () => {},
); // The verdict says that the server is lost.
readAddress();
setInterval(() => {
  if (!document.hidden) refresh();
}, REFRESH);
function frame(now) {
  map.frame(now);
  requestAnimationFrame(frame);
}
requestAnimationFrame(frame);
